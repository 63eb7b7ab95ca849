"""The layout of the page: long sessions, narrow and wide windows, download size, and the empty page."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import pytest
from page_fixture import BrowserPage, OpenPageDaemon, PageDaemon
from playwright.async_api import Page

from retinue.testing.replies import text_reply, tool_call_reply

ENTRY_COUNT = 10_000
MAX_ROWS = 120
"""Entries in the document at once, whatever the conversation's length."""
MAX_BYTES = 120_000
COUNT_ROWS = """() => { window.maxRows = 0; new MutationObserver(() => {
    window.maxRows = Math.max(window.maxRows, document.querySelectorAll(".row").length);
}).observe(document.body, { childList: true, subtree: true }); }"""
FIRST_VISIBLE_ENTRY = """log => { const outer = log.getBoundingClientRect();
    for (const each of log.querySelectorAll("[data-entry]")) { const box = each.getBoundingClientRect();
        if (box.top >= outer.top) return { entry: each.dataset.entry, top: Math.round(box.top) }; } }"""
MEASURE_OVERFLOW = """() => { const log = document.querySelector("[role=log]");
    return [document.documentElement.scrollWidth - innerWidth, document.body.scrollWidth - innerWidth,
        log ? log.scrollWidth - log.clientWidth : 0].map((each) => Math.max(0, each)); }"""


def long_session_text(session: dict[str, Any], count: int) -> str:
    """The text of a session file with this many entries."""
    head = f"<!-- retinue 1 session={session['slug']} id={session['session_id']} branch=main -->\n\n"
    exchanges: list[str] = []
    for i in range(0, count, 2):
        question_id, answer_id = f"01JCR{i:021d}", f"01JCR{i + 1:021d}"
        exchanges += [
            f"<!-- user id={question_id} at=2026-01-01T00:00:00Z -->\nQuestion {i}, of some length, to be answered.\n\n"
        ]
        answer = f"Answer {i + 1}.\n\n" + "It has some lines of its own.\n" * (i % 7)
        exchanges += [
            f"<!-- agent id={answer_id} at=2026-01-01T00:00:01Z model=m in=10 out=5 -->\n{answer}\n"
        ]
    return head + "".join(exchanges)


async def entry_locator(window: BrowserPage, number: int) -> Any:
    return window("conversation").locator(f'[data-entry="01JCR{number:021d}"]')


async def test_a_session_of_ten_thousand_entries_is_scrolled_with_few_rows_in_the_document(
    daemon: PageDaemon,
):
    session = await daemon.create_session(name="Ten thousand")
    Path(session["path"]).write_text(long_session_text(session, ENTRY_COUNT))
    task = daemon.script_task("And the next?", text_reply("Answer ten thousand and one."))
    async with daemon.open_page(1280, 800) as window:
        await window.page.evaluate(COUNT_ROWS)
        await window.open_session(session["session_id"])
        await window.expect(await entry_locator(window, ENTRY_COUNT - 1)).to_be_in_viewport()
        entry_urls = [request.url for request in window.requests if "/entries" in request.url]
        assert entry_urls
        assert all("limit=" in url or "after=" in url for url in entry_urls), (
            "no request may fetch all entries"
        )
        log = window("conversation")

        await log.evaluate("log => { log.scrollTop = 2500 }")
        await window.expect(await entry_locator(window, ENTRY_COUNT - 1)).not_to_be_in_viewport()
        await window.expect("to-end").to_be_visible()
        position_before = await log.evaluate(FIRST_VISIBLE_ENTRY)
        async with window.page.expect_response("**/entries?*before=*"):
            await log.evaluate("log => { log.scrollTop -= 800 }")
        position = await log.evaluate(FIRST_VISIBLE_ENTRY)
        assert position["entry"] < position_before["entry"]
        await daemon.wait_until(lambda: _older_page_is_shown(window))
        assert await log.evaluate(FIRST_VISIBLE_ENTRY) == position, (
            "the text in view must not move when older entries arrive"
        )

        await window.page.keyboard.press("g")
        await window.expect(await entry_locator(window, 0)).to_be_in_viewport()
        await window.expect((await entry_locator(window, 1)).locator(".prose")).to_have_text("Answer 1.")
        await window.page.keyboard.press("G")
        await window.expect(await entry_locator(window, ENTRY_COUNT - 1)).to_be_in_viewport()
        await window("to-start").click()
        await window.expect(await entry_locator(window, 0)).to_be_in_viewport()
        await window("to-end").click()
        await window.expect(await entry_locator(window, ENTRY_COUNT - 1)).to_be_in_viewport()
        await window.send_message(task)
        await window.expect(window("said-agent").last.locator(".prose")).to_have_text(
            "Answer ten thousand and one."
        )
        await window.expect(window("said-agent").last).to_be_in_viewport()
        assert await window.page.evaluate("window.maxRows") < MAX_ROWS


async def _older_page_is_shown(window: BrowserPage) -> bool:
    """Whether an older page has come in."""
    return await window("conversation").evaluate("log => log.scrollTop > 3000")


async def test_streaming_keeps_the_scroll_position_after_scrolling_up(daemon: PageDaemon):
    session = await daemon.create_session(name="Reading")
    Path(session["path"]).write_text(long_session_text(session, 60))
    task = daemon.script_task(
        "Go on at length.", text_reply("\n\n".join(f"Paragraph {i}." for i in range(60)), pace=0.005)
    )
    async with daemon.open_page(1280, 800) as window:
        await window.open_session(session["session_id"])
        await window.send_message(task)
        await window.expect("streaming").to_contain_text("Paragraph 2")
        log = window("conversation")
        await log.evaluate("log => { log.scrollTop = 200 }")
        await window.expect("to-end").to_be_visible()
        position = await log.evaluate(FIRST_VISIBLE_ENTRY)
        await daemon.wait_until_idle()
        await window.expect("now").to_have_count(0)
        assert await log.evaluate(FIRST_VISIBLE_ENTRY) == position
        other = await daemon.create_session(name="Nothing to scroll")
        await window.open_session(other["session_id"])
        await window.expect("empty-conversation").to_be_visible()
        await window.expect("to-end").to_have_count(0)
        await window.open_session(session["session_id"])
        last = window.page.get_by_text("Paragraph 59.")
        for width in (1280, 390, 1440, 700):
            await window.page.set_viewport_size({"width": width, "height": 800})
            await window.expect(last).to_be_in_viewport()
            await window.expect("to-end").to_have_count(0)


async def test_an_opened_fold_stays_in_view_and_a_button_leads_to_the_end(daemon: PageDaemon):
    (daemon.folder / "lines.txt").write_text("".join(f"line {i}\n" for i in range(60)))
    task = daemon.script_task(
        "Read many lines.", tool_call_reply(("read", {"path": "lines.txt"})), text_reply("Read, to the end.")
    )
    session = await daemon.create_session(name="Folds")
    async with daemon.open_page(1280, 600) as window:
        await window.open_session(session["session_id"])
        await window.send_message(task)
        await window.expect(window("said-agent").locator(".prose")).to_have_text(["Read, to the end."])
        await window.expect("to-end").to_have_count(0)
        fold = window("tool-call", tool="read").locator("summary")
        await fold.click()
        await window.expect(fold).to_be_in_viewport()
        await window.expect("to-end").to_be_visible()
        await window("to-end").click()
        await window.expect("said-agent").to_be_in_viewport()
        await window.expect("to-end").to_have_count(0)


@pytest.mark.parametrize("width", [360, 800, 1440])
async def test_no_content_is_wider_than_the_window(daemon: PageDaemon, width: int):
    long_word = "x" * 400
    text = f"{long_word}\n\n```\n{long_word}\n```\n\n| {' | '.join('abcdefgh' * 2)} |\n|{'---|' * 16}\n| {' | '.join([long_word] * 16)} |\n\nhttps://example.org/{long_word}"
    task = daemon.script_task(
        f"Be wide at {width}.",
        tool_call_reply(("read", {"path": long_word}), text=text),
        tool_call_reply(("write", {"path": f"{'y' * 200}.txt", "content": long_word})),
        text_reply("Narrow."),
    )
    session = await daemon.create_session(name=f"A very long name {'of a conversation ' * 8}{width}")
    async with daemon.open_page(width, 740) as window:
        assert await window.page.evaluate(MEASURE_OVERFLOW) == [0, 0, 0]
        await window.open_session(session["session_id"])
        await window.send_message(f"{task} {long_word}")
        await window.expect("approval").to_be_visible()
        await window.page.evaluate(
            "for (const each of document.querySelectorAll('details')) each.open = true"
        )
        assert await window.page.evaluate(MEASURE_OVERFLOW) == [0, 0, 0]
        is_inside = await window("allow").evaluate(
            "button => button.getBoundingClientRect().right <= innerWidth"
        )
        assert is_inside
        await window("deny").click()
        await window.expect("approvals").to_have_count(0)
        for name in ("open-inbox", "open-runs"):
            await window(name).click()
            await window.expect("panel").to_be_visible()
            assert await window.page.evaluate(MEASURE_OVERFLOW) == [0, 0, 0]
            await window("panel-close").click()


async def test_the_session_list_is_a_drawer_in_a_narrow_window(daemon: PageDaemon):
    session = await daemon.create_session(name="In the drawer")
    async with daemon.open_page(360, 740) as window:
        await window.expect("sidebar").not_to_be_in_viewport()
        await window("drawer").click()
        await window.expect("sidebar").to_be_in_viewport()
        await window("session-row", session=session["session_id"]).locator(".session-open").click()
        await window.expect("sidebar").not_to_be_in_viewport()
        await window.expect("title").to_contain_text("In the drawer")
        await window("drawer").click()
        await window.expect("sidebar").to_be_in_viewport()
        await window.page.keyboard.press("Escape")
        await window.expect("sidebar").not_to_be_in_viewport()
        await window("agent-switcher").click()
        await window.expect(window("agent-choice").first).to_be_in_viewport()
        assert await window.page.evaluate(MEASURE_OVERFLOW) == [0, 0, 0]


async def test_the_menu_of_a_session_fits_a_small_phone(daemon: PageDaemon):
    session = await daemon.create_session(name="Small")
    async with daemon.open_page(320, 568) as window:
        await window.open_session(session["session_id"])
        await window.page.locator(".head").locator('[data-test="session-menu-open"]').click()
        await window.expect("watch-pair").to_be_visible()
        boxes = await window.page.locator(".head .menu-list button").evaluate_all(
            "all => all.map((each) => each.getBoundingClientRect()).map(({ left, right }) => [left, right])"
        )
        assert boxes
        assert all(left >= 0 and right <= 320 for left, right in boxes), boxes


class DevToolsSession(Protocol):
    """The part of a Chrome DevTools session that tests use; playwright leaves its types open."""

    async def send(self, method: str, params: dict[str, object] | None = None) -> object: ...

    def on(self, event: str, f: Callable[[dict[str, Any]], None]) -> object: ...


async def open_devtools(page: Page) -> DevToolsSession:
    return await page.context.new_cdp_session(page)


async def test_the_page_is_small_and_loads_only_from_the_daemon(daemon: PageDaemon):
    sizes: dict[str, int] = {}
    async with daemon.open_page() as window:
        devtools = await open_devtools(window.page)
        await devtools.send("Network.enable")
        await devtools.send("Network.setCacheDisabled", {"cacheDisabled": True})
        urls: dict[str, str] = {}

        def record_url(event: dict[str, Any]) -> None:
            urls[event["requestId"]] = event["response"]["url"]

        def record_size(event: dict[str, Any]) -> None:
            if event["requestId"] in urls:
                sizes[urls[event["requestId"]]] = event["encodedDataLength"]

        devtools.on("Network.responseReceived", record_url)
        devtools.on("Network.loadingFinished", record_size)
        await window.page.reload()
        await window.expect("home-form").to_be_visible()
        await daemon.wait_until(
            lambda: {"/", "/app.js", "/app.css"} <= {url.removeprefix(window.base) for url in sizes}
        )
        files = {url: size for url, size in sizes.items() if "/api/" not in url}
        assert sum(files.values()) < MAX_BYTES, files
        assert all(
            request.url.startswith(window.base)
            for request in window.requests
            if not request.url.startswith("data:")
        )


async def test_a_first_visit_shows_an_example_task(own_daemon: OpenPageDaemon):
    async with own_daemon() as daemon:
        await daemon.start()
        async with daemon.open_page() as window:
            await window.expect("no-sessions").to_be_visible()
            await window.expect(window.page.locator("h1")).to_have_text("Start your first session")
            await window.expect("demonstration").to_have_count(0)
            await window("open-inbox").click()
            await window.expect("inbox-empty").to_be_visible()
            task = daemon.script_task("Explain what this project does", text_reply("It holds a tool."))
            await window.page.get_by_role("list", name="Example tasks").get_by_role("button").first.click()
            await window.expect("composer").to_be_focused()
            assert task in await window("composer").input_value()
            await window("send").click()
            await window.expect(window("said-agent").locator(".prose")).to_have_text(["It holds a tool."])
            await window.expect("no-sessions").to_have_count(0)


async def test_a_demonstration_model_is_labelled(own_daemon: OpenPageDaemon):
    async with own_daemon() as daemon:
        (daemon.folder / "script.json").write_text('{"*": ["Played."]}')
        daemon.env["RETINUE_MODEL"] = f"scripted:{daemon.folder / 'script.json'}"
        await daemon.start()
        async with daemon.open_page(360, 740) as window:
            await window.expect("demonstration").to_be_in_viewport()
            await window.expect("demonstration").to_have_text("demonstration model")
