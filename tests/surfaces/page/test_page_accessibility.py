"""The page without a mouse, and for those who do not see it well: keys, focus, names, roles and contrast."""

import re

import pytest
from page_fixture import BrowserPage, PageDaemon

from retinue.testing.replies import text_reply, tool_call_reply

LEAST = 4.5
TEXT = """() => {
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
    const found = [];
    const judge = (each, text, colour) => {
        const ground = behind(each);
        const ink = over(rgba(colour), ground);
        const [high, low] = [light(ink), light(ground)].sort((a, b) => b - a);
        found.push({ text: text.slice(0, 60), contrast: (high + 0.05) / (low + 0.05), at: each.className || each.tagName });
    };
    const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walk.nextNode()) {
        const each = walk.currentNode.parentElement, text = walk.currentNode.textContent.trim();
        if (!text || each.closest("button:disabled, script, style, noscript")) continue;
        if (!each.checkVisibility({ opacityProperty: true, visibilityProperty: true })) continue;
        judge(each, text, getComputedStyle(each).color);
    }
    for (const each of document.querySelectorAll("input, textarea")) {
        judge(each, each.value || each.placeholder, getComputedStyle(each, each.value ? null : "::placeholder").color);
    }
    return found;
}"""
NAMELESS = """() => {
    const named = (each) => (each.getAttribute("aria-label") || each.textContent || each.title || each.labels?.[0]?.textContent || "").trim();
    const all = [...document.querySelectorAll("button, a, input, textarea, select, summary, [role=button], [role=tab], [role=log], [role=dialog], dialog, nav, aside[aria-label], section[data-test]")];
    return all.filter((each) => !named(each)).map((each) => each.outerHTML.slice(0, 200));
}"""
TWICE = """() => { const ids = [...document.querySelectorAll("[id]")].map((each) => each.id);
    return ids.filter((each, i) => ids.indexOf(each) !== i); }"""
DRAWINGS = """() => [...document.querySelectorAll("svg, img")]
    .filter((each) => each.getAttribute("aria-hidden") !== "true" && !each.getAttribute("aria-label")).length"""
FOCUSED = """() => { const each = document.activeElement; const rings = [];
    for (let at = each; at && rings.length < 3; at = at.parentElement) rings.push(at);
    return { test: each.dataset.test ?? each.className, ring: rings.some((at) => {
        const style = getComputedStyle(at);
        return (style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 1.5) || at.matches(".composer:focus-within, .search:focus-within"); }) }; }"""


async def focus(window: BrowserPage) -> str:
    """Where the keys go, which one sees."""
    now = await window.page.evaluate(FOCUSED)
    assert now["ring"], f"one does not see that {now['test']} has the focus"
    return now["test"]


async def test_everything_is_done_without_a_mouse(daemon: PageDaemon):
    task = daemon.script_task(
        "Write without a mouse.",
        tool_call_reply(("write", {"path": "keys.txt", "content": "typed\n"})),
        text_reply("It is written."),
    )
    other = await daemon.create_session("oracle", name="The other one")
    async with daemon.open_page(1440, 900) as window:
        keys = window.page.keyboard
        await window.expect("session-row", session=other["session_id"]).to_be_visible()
        await keys.press("n")
        await window.expect("new-filter").to_be_focused()
        await keys.type("general")
        await keys.press("Enter")
        await window.expect("composer").to_be_focused()
        assert await focus(window) == "composer"
        await keys.type(task)
        await keys.press("Enter")
        await window.expect("approval").to_be_visible()
        await window.expect("composer").to_be_focused()
        await keys.press("Escape")
        await keys.press("a")
        await window.expect("allow").to_be_focused()
        assert await focus(window) == "allow"
        await keys.press("Shift+Tab")
        assert await focus(window) == "deny"
        await keys.press("Tab")
        await keys.press("Enter")
        await window.expect("approvals").to_have_count(0)
        await window.expect(window("said-agent").locator(".prose")).to_have_text(["It is written."])
        for key, panel, away in (("i", "inbox", "Escape"), ("r", "runs", "r")):
            await keys.press(key)
            await window.expect(panel).to_be_visible()
            await keys.press(away)
            await window.expect("panel").to_have_count(0)
        before = await window("composer").bounding_box()
        await keys.press("/")
        await window.expect("search").to_be_focused()
        assert await window("composer").bounding_box() == before, "the list stands beside the conversation"
        await keys.type("other")
        await window.expect("session-row").to_have_count(1)
        await keys.press("ArrowDown")
        assert await focus(window) == "session-open"
        await keys.press("Enter")
        await window.expect("title").to_have_text("The other one")
        await keys.press("c")
        await window.expect("composer").to_be_focused()
        await keys.press("Escape")
        await keys.press("?")
        await window.expect("keys").to_be_visible()
        await keys.press("Escape")
        await window.expect("keys").to_have_count(0)
    assert (daemon.folder / "keys.txt").read_text() == "typed\n"


async def test_letters_that_are_typed_are_no_keys(daemon: PageDaemon):
    session = await daemon.create_session()
    async with daemon.open_page() as window:
        await window.open_session(session["session_id"])
        await window("composer").click()
        await window.page.keyboard.type("njk/?airct")
        await window.expect("composer").to_have_value("njk/?airct")
        await window.expect(window.page.locator("dialog")).to_have_count(0)
        await window.expect("panel").to_have_count(0)
        await window("composer").fill("")


async def test_the_list_is_walked_with_j_and_k(daemon: PageDaemon):
    for name in ("Third", "Second", "First"):
        await daemon.create_session("planner", name=f"{name} of three")
    async with daemon.open_page() as window:
        await window("search").fill("of three")
        await window.expect("session-row").to_have_count(3)
        await window("search").press("ArrowDown")
        names: list[str] = []
        for key in ("j", "j", "j", "k"):
            names.append(
                await window.page.evaluate(
                    "document.activeElement.querySelector('.session-title').textContent"
                )
            )
            await window.page.keyboard.press(key)
        assert names == ["First of three", "Second of three", "Third of three", "Third of three"]
        await window.page.keyboard.press("Enter")
        await window.expect("title").to_have_text("Second of three")


async def test_every_tab_stop_is_seen_and_none_is_a_trap(daemon: PageDaemon):
    task = daemon.script_task("Say a little.", text_reply("A little, with a [link](https://example.org/)."))
    session = await daemon.create_session()
    await daemon.send_message(session["session_id"], task)
    async with daemon.open_page() as window:
        await window.open_session(session["session_id"])
        await window.expect("said-agent").to_be_visible()
        await window.page.evaluate("document.activeElement?.blur()")
        stops: list[str] = []
        for _ in range(120):
            await window.page.keyboard.press("Tab")
            if await window.page.evaluate("document.activeElement === document.body"):
                break
            stops.append(await focus(window))
        else:
            raise AssertionError(f"the keys never leave: {stops[-5:]}")
        assert {
            "search",
            "composer",
            "agent-switcher",
            "open-inbox",
            "open-runs",
            "theme",
            "conversation",
        } <= set(stops)


async def shown(daemon: PageDaemon, window: BrowserPage, screen: str) -> None:
    """Brings a screen up that has as much on it as it can have."""
    if screen == "first page":
        await window.expect("agents").to_be_visible()
        return
    session = await daemon.create_session()
    code = "Some `code` and a [link](https://example.org/), **bold**.\n\n```python\nx = 1\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n> quoted"
    task = daemon.script_task(
        f"Show {screen}.",
        tool_call_reply(("read", {"path": "held.py"}), ("read", {"path": "nothing"})),
        tool_call_reply(
            ("write", {"path": "never.txt", "content": "never\n"}), text=code, thinking="A thought."
        ),
        text_reply("Not written."),
    )
    await window.open_session(session["session_id"])
    await window.send_message(task)
    await window.expect("approval").to_be_visible()
    await window.expect("tool-call", tool="write", state="asks").to_be_visible()
    await window.page.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")
    if screen == "a dialog":
        await window.page.keyboard.press("Escape")
        await window.page.keyboard.press("n")
        await window.expect("new-dialog").to_be_visible()
    else:
        await window("open-runs").click()
        await window.expect(window("run").first).to_be_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("screen", ["first page", "a conversation", "a dialog"])
async def test_text_is_read_and_everything_has_a_name(daemon: PageDaemon, scheme: str, screen: str):
    async with daemon.open_page(1440, 1000, color_scheme=scheme) as window:
        await shown(daemon, window, f"{screen} {scheme}" if screen == "a conversation" else screen)
        found = await window.page.evaluate(TEXT)
        assert len(found) > 20
        weak = [each for each in found if each["contrast"] < LEAST]
        assert weak == []
        assert await window.page.evaluate(NAMELESS) == []
        assert await window.page.evaluate(TWICE) == []
        assert await window.page.evaluate(DRAWINGS) == 0
        assert await window.page.locator("main").count() == 1
        assert await window.page.locator("html[lang=en]").count() == 1
        assert await window.page.locator("h1").count() == 1
        assert await window.page.get_by_role("status").count() == 1
        assert await window.page.get_by_role("navigation", name="Sessions").count() == 1
        if screen != "first page":
            assert await window.page.locator("[role=log]").get_attribute("aria-live") in ("polite", "off")
            label = await window.page.locator("[role=log]").get_attribute("aria-label")
            assert label is not None
            assert re.match("Conversation with", label)
        for row in await daemon.call_api("GET", "/approvals"):
            await daemon.call_api("POST", f"/approvals/{row['id']}", {"answer": "deny"})
        await daemon.wait_until_idle()


async def test_light_and_dark_are_chosen_and_kept(daemon: PageDaemon):
    ground = "getComputedStyle(document.body).backgroundColor"
    async with daemon.open_page(color_scheme="light") as window:
        light = await window.page.evaluate(ground)
        await window("theme").click()
        await window("theme").click()
        dark = await window.page.evaluate(ground)
        assert dark != light
        await window.page.reload()
        await window.expect("theme").to_be_visible()
        assert await window.page.evaluate(ground) == dark
        await window("theme").click()
        assert await window.page.evaluate(ground) == light
        await window.page.emulate_media(color_scheme="dark")
        assert await window.page.evaluate(ground) == dark
