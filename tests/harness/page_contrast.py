"""JavaScript that measures the contrast of text and icons on the page."""

COLOUR_FUNCTIONS = """
    const canvas = document.createElement("canvas"); canvas.width = canvas.height = 1;
    const pen = canvas.getContext("2d", { willReadFrequently: true });
    const rgba = (colour) => { pen.clearRect(0, 0, 1, 1); pen.fillStyle = colour; pen.fillRect(0, 0, 1, 1);
        return [...pen.getImageData(0, 0, 1, 1).data].map((each, i) => i < 3 ? each : each / 255); };
    const over = (top, below) => [0, 1, 2].map((i) => top[i] * top[3] + below[i] * (1 - top[3]));
    const light = (colour) => { const [r, g, b] = colour.map((each) => { const one = each / 255;
        return one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4; });
        return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
    const behind = (each) => { const layers = [];
        for (let at = each; at; at = at.parentElement) layers.push(rgba(getComputedStyle(at).backgroundColor));
        return layers.reverse().reduce((below, top) => over(top, below), [255, 255, 255]); };
    const contrast = (each, colour, opacity = 1) => {
        const ground = behind(each), [r, g, b, a] = rgba(colour);
        const [high, low] = [light(over([r, g, b, a * opacity], ground)), light(ground)].sort((a, b) => b - a);
        return (high + 0.05) / (low + 0.05); };
"""
"""Functions of a page script: `contrast(element, colour, opacity)` is the contrast with what is behind the element."""

MEASURE_TEXT = f"""() => {{ {COLOUR_FUNCTIONS}
    const found = [];
    const judge = (each, text, colour) =>
        found.push({{ text: text.slice(0, 60), contrast: contrast(each, colour), at: each.className || each.tagName }});
    const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walk.nextNode()) {{
        const each = walk.currentNode.parentElement, text = walk.currentNode.textContent.trim();
        if (!text || each.closest("button:disabled, script, style, noscript")) continue;
        if (!each.checkVisibility({{ opacityProperty: true, visibilityProperty: true }})) continue;
        judge(each, text, getComputedStyle(each).color);
    }}
    for (const each of document.querySelectorAll("input, textarea")) {{
        judge(each, each.value || each.placeholder, getComputedStyle(each, each.value ? null : "::placeholder").color);
    }}
    return found;
}}"""
"""Returns the contrast of every visible text, and of fields."""

CONTROLS = "button, a[href], summary, input, textarea, select, [role=tab], [role=menuitem]"

MEASURE_CONTROLS = f"""() => {{ {COLOUR_FUNCTIONS}
    const found = [];
    const opacity = (each) => {{ let product = 1;
        for (let at = each; at; at = at.parentElement) product *= parseFloat(getComputedStyle(at).opacity);
        return product; }};
    const judge = (each, what, colour, minimum) => {{
        if (!each.checkVisibility({{ opacityProperty: true, visibilityProperty: true }})) return;
        if (getComputedStyle(each).filter !== "none") found.push({{ what, contrast: 0, minimum }});
        found.push({{ what, contrast: contrast(each, colour, opacity(each)), minimum }}); }};
    for (const control of document.querySelectorAll("{CONTROLS}")) {{
        const name = `${{control.className}} ${{control.dataset.test ?? ""}} ${{control.disabled ? "disabled" : ""}}`;
        if (control.matches("input, textarea"))
            judge(control, name, getComputedStyle(control, control.value ? null : "::placeholder").color, 4.5);
        const walk = document.createTreeWalker(control, NodeFilter.SHOW_TEXT);
        while (walk.nextNode()) {{
            const each = walk.currentNode.parentElement, text = walk.currentNode.textContent.trim();
            if (text) judge(each, `${{name}}: ${{text.slice(0, 40)}}`, getComputedStyle(each).color, 4.5);
        }}
        for (const icon of control.querySelectorAll("svg.icon"))
            judge(icon, `${{name}}: icon`, getComputedStyle(icon).color, 3);
    }}
    return found;
}}"""
"""Returns the contrast of the texts and icons of every visible control, disabled ones included, and its minimum."""

FIND_OVERLAPS = f"""() => {{
    const layers = ["dialog[open]", ".sidebar.open", ".panel"].map((each) => document.querySelector(each));
    const root = layers.find((each) => each?.checkVisibility({{ visibilityProperty: true }})) ?? document.body;
    const shown = (each) => {{
        let {{ left, top, right, bottom }} = each.getBoundingClientRect();
        for (let at = each.parentElement; at; at = at.parentElement) {{
            if (getComputedStyle(at).overflow === "visible") continue;
            const box = at.getBoundingClientRect();
            [left, top] = [Math.max(left, box.left), Math.max(top, box.top)];
            [right, bottom] = [Math.min(right, box.right), Math.min(bottom, box.bottom)];
        }}
        return {{ left: Math.max(left, 0), top: Math.max(top, 0), right: Math.min(right, innerWidth), bottom: Math.min(bottom, innerHeight) }}; }};
    const all = [...root.querySelectorAll("{CONTROLS}, .dot, .spinner, .badge, .tag, .when, .state")]
        .filter((each) => each.checkVisibility({{ opacityProperty: true, visibilityProperty: true }}))
        .filter((each) => root !== document.body || !each.closest(".sidebar:not(.open)") || innerWidth > 720)
        .map((each) => ({{ each, ...shown(each) }})).filter((box) => box.right - box.left > 1 && box.bottom - box.top > 1);
    const name = ({{ each }}) => `${{each.tagName}}.${{each.className}} ${{each.dataset.test ?? each.textContent.slice(0, 30)}}`;
    const found = [];
    all.forEach((one, i) => {{ for (const other of all.slice(i + 1)) {{
        if (one.each.contains(other.each) || other.each.contains(one.each)) continue;
        const width = Math.min(one.right, other.right) - Math.max(one.left, other.left);
        const height = Math.min(one.bottom, other.bottom) - Math.max(one.top, other.top);
        if (width > 1 && height > 1) found.push(`${{name(one)}} and ${{name(other)}}`);
    }} }});
    return {{ count: all.length, overlaps: found }};
}}"""
"""Returns how many controls and marks are visible in the top layer, and which of them overlap."""
