"""A page whose daemon dies: it says so, goes on by itself, and shows everything once."""

import signal
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from page_fixture import OpenPageDaemon, PageDaemon

from retinue.testing.fake_model_server import CapturedRequest
from retinue.testing.replies import FakeResponse, stalled_stream, text_reply, tool_call_reply

ENTRIES = "all => all.map(each => each.dataset.entry)"


async def entries_of(daemon: PageDaemon, session: dict[str, Any]) -> list[str]:
    """What a page draws of the conversation's file, in its order."""
    read = await daemon.call_api("GET", f"/sessions/{session['session_id']}/entries")
    return [
        each["id"]
        for each in read
        if each["kind"] == "tool_call" or (each["kind"] == "message" and each["text"])
    ]


async def restarted(daemon: PageDaemon) -> None:
    port = urlsplit(daemon.base).port
    assert port is not None
    await daemon.start(port)


async def test_a_page_goes_on_by_itself_when_its_daemon_was_killed_in_the_middle_of_a_word(
    own_daemon: OpenPageDaemon,
):
    heard: list[Any] = []

    async def cut_once(asked: CapturedRequest) -> FakeResponse:
        heard.append(asked)
        whole = text_reply("These words are heard to their very end.")
        return stalled_stream(900, whole) if len(heard) == 1 else whole

    async with own_daemon() as daemon:
        await daemon.start()
        (daemon.folder / "port.txt").write_text("Brest\n")
        task = daemon.script_task(
            "Say it whole.", tool_call_reply(("read", {"path": "port.txt"}), text="First I read."), cut_once
        )
        after = daemon.script_task("And afterwards?", text_reply("Afterwards too."))
        session = await daemon.create_session()
        async with daemon.open_page() as window:
            await window.open_session(session["session_id"])
            await window.send_message(task)
            await window.expect(window("streaming").last).to_contain_text("These")
            await daemon.kill(signal.SIGKILL)
            await window.expect("lost").to_be_visible()
            await window.expect("send").to_be_disabled()
            await window("composer").fill("typed meanwhile")
            file = Path(session["path"])
            file.write_text(file.read_text().replace("First I read.", "First I have read."))
            await restarted(daemon)
            await window.expect("lost").to_have_count(0)
            await window.expect(window("said-agent").locator(".prose")).to_have_text(
                ["First I have read.", "These words are heard to their very end."]
            )
            await window.expect("streaming").to_have_count(0)
            await window.expect("composer").to_have_value("typed meanwhile")
            shown = await window("conversation").locator("[data-entry]").evaluate_all(ENTRIES)
            assert shown == await entries_of(daemon, session)
            await window.send_message(after)
            await window.expect(window("said-agent").locator(".prose").last).to_have_text("Afterwards too.")
            shown = await window("conversation").locator("[data-entry]").evaluate_all(ENTRIES)
            assert shown == await entries_of(daemon, session)
            assert len(shown) == len(set(shown))
        assert len(heard) == 2


async def test_a_question_and_a_child_outlive_the_daemon(own_daemon: OpenPageDaemon):
    async with own_daemon() as daemon:
        await daemon.start()
        prompt = daemon.script_task(
            "Write it down.",
            tool_call_reply(("write", {"path": "a.txt", "content": "a\n"})),
            text_reply("It is written."),
        )
        task = daemon.script_task(
            "Have it written down.",
            tool_call_reply(("agent", {"agent_name": "executor", "task_prompt": prompt})),
            text_reply("It is."),
        )
        session = await daemon.create_session()
        async with daemon.open_page() as window:
            await window.open_session(session["session_id"])
            await window.send_message(task)
            await window.expect("approval").to_be_visible()
            await daemon.kill(signal.SIGKILL)
            await window.expect("lost").to_be_visible()
            await restarted(daemon)
            await window.expect("lost").to_have_count(0)
            await window.expect("card-status").to_have_text("Waiting for an approval")
            await window.expect("approval").to_have_count(1)
            await window("allow").click()
            await window.expect(window("said-agent").locator(".prose")).to_have_text(["It is."])
            await window.expect("card").to_have_count(0)
            await window.expect("child-line", status="done").to_have_count(1)
            shown = await window("conversation").locator("[data-entry]").evaluate_all(ENTRIES)
            assert shown == await entries_of(daemon, session)
        assert (daemon.folder / "a.txt").read_text() == "a\n"


async def test_a_link_opens_once_and_a_browser_that_came_in_stays_in(own_daemon: OpenPageDaemon):
    async with own_daemon() as daemon:
        await daemon.start()
        link = (await daemon.call_api("POST", "/links"))["url"]
        async with daemon.open_page() as window:
            stranger = await (await daemon.browser.new_context()).new_page()
            await stranger.goto(daemon.base)
            assert "needs a link" in await stranger.inner_text("h1")
            await stranger.goto(link)
            await stranger.locator("[data-test=home-form]").wait_for()
            other = await (await daemon.browser.new_context()).new_page()
            await other.goto(link)
            assert "already used" in await other.inner_text("h1")
            await daemon.kill(signal.SIGKILL)
            await restarted(daemon)
            await window.page.reload()
            await window.expect("home-form").to_be_visible()
            await window.expect("lost").to_have_count(0)
