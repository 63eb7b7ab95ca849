"""A page whose daemon was killed says so, reconnects, and shows every entry once."""

import signal
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from page_fixture import OpenPageDaemon, PageDaemon

from retinue.testing.fake_model_server import CapturedRequest
from retinue.testing.replies import FakeResponse, stalled_stream, text_reply, tool_call_reply

ENTRY_IDS = "elements => elements.map(element => element.dataset.entry)"


async def displayed_entry_ids(daemon: PageDaemon, session: dict[str, Any]) -> list[str]:
    """The ids of the entries that the page should display, in order."""
    entries = await daemon.call_api("GET", f"/sessions/{session['session_id']}/entries")
    return [
        entry["id"]
        for entry in entries
        if entry["kind"] == "tool_call" or (entry["kind"] == "message" and entry["text"])
    ]


async def restart(daemon: PageDaemon) -> None:
    port = urlsplit(daemon.base).port
    assert port is not None
    await daemon.start(port)


async def test_a_page_reconnects_after_its_daemon_was_killed_in_the_middle_of_a_reply(
    own_daemon: OpenPageDaemon,
):
    requests: list[Any] = []

    async def stall_first_reply(request: CapturedRequest) -> FakeResponse:
        requests.append(request)
        reply = text_reply("These words arrive to their very end.")
        return stalled_stream(900, reply) if len(requests) == 1 else reply

    async with own_daemon() as daemon:
        await daemon.start()
        (daemon.folder / "port.txt").write_text("Brest\n")
        task = daemon.script_task(
            "Say it whole.",
            tool_call_reply(("read", {"path": "port.txt"}), text="First I read."),
            stall_first_reply,
        )
        later_task = daemon.script_task("And afterwards?", text_reply("Afterwards too."))
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
            await restart(daemon)
            await window.expect("lost").to_have_count(0)
            await window.expect(window("said-agent").locator(".prose")).to_have_text(
                ["First I have read.", "These words arrive to their very end."]
            )
            await window.expect("streaming").to_have_count(0)
            await window.expect("composer").to_have_value("typed meanwhile")
            entry_ids = await window("conversation").locator("[data-entry]").evaluate_all(ENTRY_IDS)
            assert entry_ids == await displayed_entry_ids(daemon, session)
            await window.send_message(later_task)
            await window.expect(window("said-agent").locator(".prose").last).to_have_text("Afterwards too.")
            entry_ids = await window("conversation").locator("[data-entry]").evaluate_all(ENTRY_IDS)
            assert entry_ids == await displayed_entry_ids(daemon, session)
            assert len(entry_ids) == len(set(entry_ids))
        assert len(requests) == 2


async def test_a_pending_approval_and_a_child_survive_a_restart_of_the_daemon(own_daemon: OpenPageDaemon):
    async with own_daemon() as daemon:
        await daemon.start()
        child_task = daemon.script_task(
            "Write it down.",
            tool_call_reply(("write", {"path": "a.txt", "content": "a\n"})),
            text_reply("It is written."),
        )
        task = daemon.script_task(
            "Have it written down.",
            tool_call_reply(("agent", {"agent_name": "executor", "task_prompt": child_task})),
            text_reply("It is."),
        )
        session = await daemon.create_session()
        async with daemon.open_page() as window:
            await window.open_session(session["session_id"])
            await window.send_message(task)
            await window.expect("approval").to_be_visible()
            await daemon.kill(signal.SIGKILL)
            await window.expect("lost").to_be_visible()
            await restart(daemon)
            await window.expect("lost").to_have_count(0)
            await window.expect("card-status").to_have_text("Waiting for approval")
            await window.expect("approval").to_have_count(1)
            await window("allow").click()
            await window.expect(window("said-agent").locator(".prose")).to_have_text(["It is."])
            await window.expect("card").to_have_count(0)
            await window.expect("child-line", status="done").to_have_count(1)
            entry_ids = await window("conversation").locator("[data-entry]").evaluate_all(ENTRY_IDS)
            assert entry_ids == await displayed_entry_ids(daemon, session)
        assert (daemon.folder / "a.txt").read_text() == "a\n"


async def test_a_login_link_works_once_and_the_browser_stays_logged_in_after_a_restart(
    own_daemon: OpenPageDaemon,
):
    async with own_daemon() as daemon:
        await daemon.start()
        link = (await daemon.call_api("POST", "/links"))["url"]
        async with daemon.open_page() as window:
            first = await (await daemon.browser.new_context()).new_page()
            await first.goto(daemon.base)
            assert "needs a link" in await first.inner_text("h1")
            await first.goto(link)
            await first.locator("[data-test=home-form]").wait_for()
            second = await (await daemon.browser.new_context()).new_page()
            await second.goto(link)
            assert "already used" in await second.inner_text("h1")
            await daemon.kill(signal.SIGKILL)
            await restart(daemon)
            await window.page.reload()
            await window.expect("home-form").to_be_visible()
            await window.expect("lost").to_have_count(0)
