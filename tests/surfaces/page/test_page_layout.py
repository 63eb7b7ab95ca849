"""The page at any size: long conversations, narrow and wide windows, what it weighs, and what it shows when nothing is
there."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import pytest
from page_fixture import BrowserPage, OpenPageDaemon, PageDaemon
from playwright.async_api import Page

from retinue.testing.replies import text_reply, tool_call_reply

MANY = 10_000
MOST_ROWS = 120
"""Entries in the document at once, whatever the conversation's length."""
MOST_BYTES = 120_000
COUNTED = """() => { window.most = 0; new MutationObserver(() => {
    window.most = Math.max(window.most, document.querySelectorAll(".row").length);
}).observe(document.body, { childList: true, subtree: true }); }"""
READING = """log => { const outer = log.getBoundingClientRect();
    for (const each of log.querySelectorAll("[data-entry]")) { const box = each.getBoundingClientRect();
        if (box.top >= outer.top) return { entry: each.dataset.entry, top: Math.round(box.top) }; } }"""
WIDE = """() => { const log = document.querySelector("[role=log]");
    return [document.documentElement.scrollWidth - innerWidth, document.body.scrollWidth - innerWidth,
        log ? log.scrollWidth - log.clientWidth : 0].map((each) => Math.max(0, each)); }"""


def long_file(session: dict[str, Any], count: int) -> str:
    """A conversation of so many entries, as its file holds it."""
    head = f"<!-- retinue 1 session={session['slug']} id={session['session_id']} branch=main -->\n\n"
    body: list[str] = []
    for i in range(0, count, 2):
        one, two = f"01JCR{i:021d}", f"01JCR{i + 1:021d}"
        body += [
            f"<!-- user id={one} at=2026-01-01T00:00:00Z -->\nQuestion {i}, of some length, to be answered.\n\n"
        ]
        answer = f"Answer {i + 1}.\n\n" + "It has some lines of its own.\n" * (i % 7)
        body += [f"<!-- agent id={two} at=2026-01-01T00:00:01Z model=m in=10 out=5 -->\n{answer}\n"]
    return head + "".join(body)


async def entry(window: BrowserPage, number: int) -> Any:
    return window("conversation").locator(f'[data-entry="01JCR{number:021d}"]')


async def test_ten_thousand_entries_are_read_from_end_to_beginning_in_a_small_document(daemon: PageDaemon):
    session = await daemon.create_session(name="Ten thousand")
    Path(session["path"]).write_text(long_file(session, MANY))
    task = daemon.script_task("And the next?", text_reply("Answer ten thousand and one."))
    async with daemon.open_page(1280, 800) as window:
        await window.page.evaluate(COUNTED)
        await window.open_session(session["session_id"])
        await window.expect(await entry(window, MANY - 1)).to_be_in_viewport()
        read = [each.url for each in window.requests if "/entries" in each.url]
        assert read
        assert all("limit=" in url or "after=" in url for url in read), "no page asks for all of it"
        log = window("conversation")

        await log.evaluate("log => { log.scrollTop = 2500 }")
        await window.expect(await entry(window, MANY - 1)).not_to_be_in_viewport()
        await window.expect("to-end").to_be_visible()
        before = await log.evaluate(READING)
        async with window.page.expect_response("**/entries?*before=*"):
            await log.evaluate("log => { log.scrollTop -= 800 }")
        place = await log.evaluate(READING)
        assert place["entry"] < before["entry"]
        await daemon.wait_until(lambda: _grown(window))
        assert await log.evaluate(READING) == place, (
            "what one reads stays where it is while older entries come in"
        )

        await window.page.keyboard.press("g")
        await window.expect(await entry(window, 0)).to_be_in_viewport()
        await window.expect((await entry(window, 1)).locator(".prose")).to_have_text("Answer 1.")
        await window.page.keyboard.press("G")
        await window.expect(await entry(window, MANY - 1)).to_be_in_viewport()
        await window("to-start").click()
        await window.expect(await entry(window, 0)).to_be_in_viewport()
        await window("to-end").click()
        await window.expect(await entry(window, MANY - 1)).to_be_in_viewport()
        await window.send_message(task)
        await window.expect(window("said-agent").last.locator(".prose")).to_have_text(
            "Answer ten thousand and one."
        )
        await window.expect(window("said-agent").last).to_be_in_viewport()
        assert await window.page.evaluate("window.most") < MOST_ROWS


async def _grown(window: BrowserPage) -> bool:
    """Whether an older page has come in."""
    return await window("conversation").evaluate("log => log.scrollTop > 3000")


async def test_who_reads_further_up_is_left_there_while_words_come_in(daemon: PageDaemon):
    session = await daemon.create_session(name="Reading")
    Path(session["path"]).write_text(long_file(session, 60))
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
        place = await log.evaluate(READING)
        await daemon.wait_until_idle()
        await window.expect("now").to_have_count(0)
        assert await log.evaluate(READING) == place
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


async def test_who_opens_a_fold_stays_with_it_and_finds_the_way_to_the_end(daemon: PageDaemon):
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
async def test_nothing_is_wider_than_the_window(daemon: PageDaemon, width: int):
    long = "x" * 400
    text = f"{long}\n\n```\n{long}\n```\n\n| {' | '.join('abcdefgh' * 2)} |\n|{'---|' * 16}\n| {' | '.join([long] * 16)} |\n\nhttps://example.org/{long}"
    task = daemon.script_task(
        f"Be wide at {width}.",
        tool_call_reply(("read", {"path": long}), text=text),
        tool_call_reply(("write", {"path": f"{'y' * 200}.txt", "content": long})),
        text_reply("Narrow."),
    )
    session = await daemon.create_session(name=f"A very long name {'of a conversation ' * 8}{width}")
    async with daemon.open_page(width, 740) as window:
        assert await window.page.evaluate(WIDE) == [0, 0, 0]
        await window.open_session(session["session_id"])
        await window.send_message(f"{task} {long}")
        await window.expect("approval").to_be_visible()
        await window.page.evaluate(
            "for (const each of document.querySelectorAll('details')) each.open = true"
        )
        assert await window.page.evaluate(WIDE) == [0, 0, 0]
        inside = await window("allow").evaluate("each => each.getBoundingClientRect().right <= innerWidth")
        assert inside
        await window("deny").click()
        await window.expect("approvals").to_have_count(0)
        for name in ("open-inbox", "open-runs"):
            await window(name).click()
            await window.expect("panel").to_be_visible()
            assert await window.page.evaluate(WIDE) == [0, 0, 0]
            await window("panel-close").click()


async def test_the_list_is_a_drawer_where_the_window_is_narrow(daemon: PageDaemon):
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
        assert await window.page.evaluate(WIDE) == [0, 0, 0]


class DevToolsSession(Protocol):
    """What a test uses of a session of the Chrome DevTools protocol, whose types playwright leaves open."""

    async def send(self, method: str, params: dict[str, object] | None = None) -> object: ...

    def on(self, event: str, f: Callable[[dict[str, Any]], None]) -> object: ...


async def open_devtools(page: Page) -> DevToolsSession:
    return await page.context.new_cdp_session(page)


async def test_the_page_weighs_little_and_comes_from_one_place(daemon: PageDaemon):
    sizes: dict[str, int] = {}
    async with daemon.open_page() as window:
        client = await open_devtools(window.page)
        await client.send("Network.enable")
        await client.send("Network.setCacheDisabled", {"cacheDisabled": True})
        urls: dict[str, str] = {}

        def named(told: dict[str, Any]) -> None:
            urls[told["requestId"]] = told["response"]["url"]

        def weighed(told: dict[str, Any]) -> None:
            if told["requestId"] in urls:
                sizes[urls[told["requestId"]]] = told["encodedDataLength"]

        client.on("Network.responseReceived", named)
        client.on("Network.loadingFinished", weighed)
        await window.page.reload()
        await window.expect("home-form").to_be_visible()
        await daemon.wait_until(
            lambda: {"/", "/app.js", "/app.css"} <= {url.removeprefix(window.base) for url in sizes}
        )
        files = {url: size for url, size in sizes.items() if "/api/" not in url}
        assert sum(files.values()) < MOST_BYTES, files
        assert all(
            each.url.startswith(window.base) for each in window.requests if not each.url.startswith("data:")
        )


async def test_a_first_visit_says_what_to_do(own_daemon: OpenPageDaemon):
    async with own_daemon() as daemon:
        await daemon.start()
        async with daemon.open_page() as window:
            await window.expect("no-sessions").to_be_visible()
            await window.expect(window.page.locator("h1")).to_have_text("Say what should be done.")
            await window.expect("demonstration").to_have_count(0)
            await window("open-inbox").click()
            await window.expect("inbox-empty").to_be_visible()
            task = daemon.script_task("Explain what this project does", text_reply("It holds a tool."))
            await window.page.get_by_role("list", name="Things to try").get_by_role("button").first.click()
            await window.expect("composer").to_be_focused()
            assert task in await window("composer").input_value()
            await window("send").click()
            await window.expect(window("said-agent").locator(".prose")).to_have_text(["It holds a tool."])
            await window.expect("no-sessions").to_have_count(0)


async def test_a_demonstration_is_called_one(own_daemon: OpenPageDaemon):
    async with own_daemon() as daemon:
        (daemon.folder / "script.json").write_text('{"*": ["Played."]}')
        daemon.env["RETINUE_MODEL"] = f"scripted:{daemon.folder / 'script.json'}"
        await daemon.start()
        async with daemon.open_page(360, 740) as window:
            await window.expect("demonstration").to_be_in_viewport()
            await window.expect("demonstration").to_have_text("demonstration model")
