"""Accessibility of the page: keyboard, focus, names, roles and contrast."""

import re

import pytest
from page_contrast import MEASURE_TEXT
from page_fixture import BrowserPage, PageDaemon

from retinue.testing.replies import text_reply, tool_call_reply

MIN_CONTRAST = 4.5
FIND_NAMELESS = """() => {
    const named = (each) => (each.getAttribute("aria-label") || each.textContent || each.title || each.labels?.[0]?.textContent || "").trim();
    const all = [...document.querySelectorAll("button, a, input, textarea, select, summary, [role=button], [role=tab], [role=log], [role=dialog], dialog, nav, aside[aria-label], section[data-test]")];
    return all.filter((each) => !named(each)).map((each) => each.outerHTML.slice(0, 200));
}"""
FIND_DUPLICATE_IDS = """() => { const ids = [...document.querySelectorAll("[id]")].map((each) => each.id);
    return ids.filter((each, i) => ids.indexOf(each) !== i); }"""
COUNT_UNLABELLED_IMAGES = """() => [...document.querySelectorAll("svg, img")]
    .filter((each) => each.getAttribute("aria-hidden") !== "true" && !each.getAttribute("aria-label")).length"""
DESCRIBE_FOCUS = """() => { const each = document.activeElement; const rings = [];
    for (let at = each; at && rings.length < 3; at = at.parentElement) rings.push(at);
    return { test: each.dataset.test ?? each.className, ring: rings.some((at) => {
        const style = getComputedStyle(at);
        return (style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 1.5) || at.matches(".composer:focus-within, .search:focus-within"); }) }; }"""


async def focused_element(window: BrowserPage) -> str:
    """Return the name of the focused element, which must have a visible focus ring."""
    focused = await window.page.evaluate(DESCRIBE_FOCUS)
    assert focused["ring"], f"the focus on {focused['test']} is not visible"
    return focused["test"]


async def test_every_task_can_be_done_with_the_keyboard(daemon: PageDaemon):
    task = daemon.script_task(
        "Write without a mouse.",
        tool_call_reply(("write", {"path": "keys.txt", "content": "typed\n"})),
        text_reply("It is written."),
    )
    other = await daemon.create_session("oracle", name="The other one")
    async with daemon.open_page(1440, 900) as window:
        keyboard = window.page.keyboard
        await window.expect("session-row", session=other["session_id"]).to_be_visible()
        await keyboard.press("n")
        await window.expect("new-filter").to_be_focused()
        await keyboard.type("general")
        await keyboard.press("Enter")
        await window.expect("composer").to_be_focused()
        assert await focused_element(window) == "composer"
        await keyboard.type(task)
        await keyboard.press("Enter")
        await window.expect("approval").to_be_visible()
        await window.expect("composer").to_be_focused()
        await keyboard.press("Escape")
        await keyboard.press("a")
        await window.expect("allow").to_be_focused()
        assert await focused_element(window) == "allow"
        await keyboard.press("Shift+Tab")
        assert await focused_element(window) == "deny"
        await keyboard.press("Tab")
        await keyboard.press("Enter")
        await window.expect("approvals").to_have_count(0)
        await window.expect(window("said-agent").locator(".prose")).to_have_text(["It is written."])
        for key, panel, closing_key in (("i", "inbox", "Escape"), ("r", "runs", "r")):
            await keyboard.press(key)
            await window.expect(panel).to_be_visible()
            await keyboard.press(closing_key)
            await window.expect("panel").to_have_count(0)
        before = await window("composer").bounding_box()
        await keyboard.press("/")
        await window.expect("search").to_be_focused()
        assert await window("composer").bounding_box() == before, "the search must not move the conversation"
        await keyboard.type("other")
        await window.expect("session-row").to_have_count(1)
        await keyboard.press("ArrowDown")
        assert await focused_element(window) == "session-open"
        await keyboard.press("Enter")
        await window.expect("title").to_have_text("The other one")
        await keyboard.press("c")
        await window.expect("composer").to_be_focused()
        await keyboard.press("Escape")
        await keyboard.press("?")
        await window.expect("keys").to_be_visible()
        await keyboard.press("Escape")
        await window.expect("keys").to_have_count(0)
    assert (daemon.folder / "keys.txt").read_text() == "typed\n"


async def test_letters_typed_into_the_composer_are_not_shortcuts(daemon: PageDaemon):
    async with daemon.open_new_session() as (window, _):
        await window("composer").click()
        await window.page.keyboard.type("njk/?airct")
        await window.expect("composer").to_have_value("njk/?airct")
        await window.expect(window.page.locator("dialog")).to_have_count(0)
        await window.expect("panel").to_have_count(0)
        await window("composer").fill("")


async def test_j_and_k_move_through_the_session_list(daemon: PageDaemon):
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


async def test_every_tab_stop_has_a_visible_focus_and_the_focus_can_leave_the_page(daemon: PageDaemon):
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
            stops.append(await focused_element(window))
        else:
            raise AssertionError(f"Tab never leaves the page: {stops[-5:]}")
        assert {
            "search",
            "composer",
            "agent-switcher",
            "open-inbox",
            "open-runs",
            "theme",
            "conversation",
        } <= set(stops)


async def open_screen(daemon: PageDaemon, window: BrowserPage, screen: str) -> None:
    """Show a screen with as many kinds of elements as possible."""
    if screen == "first page":
        await window.expect("agents").to_be_visible()
        return
    session = await daemon.create_session()
    markdown = "Some `code` and a [link](https://example.org/), **bold**.\n\n```python\nx = 1\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n> quoted"
    task = daemon.script_task(
        f"Show {screen}.",
        tool_call_reply(("read", {"path": "held.py"}), ("read", {"path": "nothing"})),
        tool_call_reply(
            ("write", {"path": "never.txt", "content": "never\n"}), text=markdown, thinking="A thought."
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
async def test_text_has_enough_contrast_and_elements_have_accessible_names(
    daemon: PageDaemon, scheme: str, screen: str
):
    async with daemon.open_page(1440, 1000, color_scheme=scheme) as window:
        await open_screen(daemon, window, f"{screen} {scheme}" if screen == "a conversation" else screen)
        texts = await window.page.evaluate(MEASURE_TEXT)
        assert len(texts) > 20
        low_contrast = [text for text in texts if text["contrast"] < MIN_CONTRAST]
        assert low_contrast == []
        assert await window.page.evaluate(FIND_NAMELESS) == []
        assert await window.page.evaluate(FIND_DUPLICATE_IDS) == []
        assert await window.page.evaluate(COUNT_UNLABELLED_IMAGES) == 0
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


async def test_the_colour_scheme_can_be_chosen_and_is_remembered(daemon: PageDaemon):
    background = "getComputedStyle(document.body).backgroundColor"
    async with daemon.open_page(color_scheme="light") as window:
        light = await window.page.evaluate(background)
        await window("theme").click()
        await window("theme").click()
        dark = await window.page.evaluate(background)
        assert dark != light
        await window.page.reload()
        await window.expect("theme").to_be_visible()
        assert await window.page.evaluate(background) == dark
        await window("theme").click()
        assert await window.page.evaluate(background) == light
        await window.page.emulate_media(color_scheme="dark")
        assert await window.page.evaluate(background) == dark
