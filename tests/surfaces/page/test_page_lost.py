"""A page whose daemon dies: it says so, goes on by itself, and shows everything once."""

import signal
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from page_fixture import OpenPageDaemon, PageDaemon

from retinue.testing.fake_model_server import CapturedRequest
from retinue.testing.replies import FakeResponse, stalled_stream, text_reply, tool_call_reply

ENTRIES = "all => all.map(each => each.dataset.entry)"


async def entries_of(house: PageDaemon, session: dict[str, Any]) -> list[str]:
    """What a page draws of the conversation's file, in its order."""
    read = await house.api("GET", f"/sessions/{session['session_id']}/entries")
    return [
        each["id"] for each in read if each["kind"] == "called" or (each["kind"] == "said" and each["text"])
    ]


async def restarted(house: PageDaemon) -> None:
    port = urlsplit(house.base).port
    assert port is not None
    await house.start(port)


async def test_a_page_goes_on_by_itself_when_its_daemon_was_killed_in_the_middle_of_a_word(
    alone: OpenPageDaemon,
):
    heard: list[Any] = []

    async def cut_once(asked: CapturedRequest) -> FakeResponse:
        heard.append(asked)
        whole = text_reply("These words are heard to their very end.")
        return stalled_stream(900, whole) if len(heard) == 1 else whole

    async with alone() as house:
        await house.start()
        (house.folder / "port.txt").write_text("Brest\n")
        task = house.plays(
            "Say it whole.", tool_call_reply(("read", {"path": "port.txt"}), text="First I read."), cut_once
        )
        after = house.plays("And afterwards?", text_reply("Afterwards too."))
        session = await house.session()
        async with house.opened() as window:
            await window.goes(session["session_id"])
            await window.says(task)
            await window.see(window("streaming").last).to_contain_text("These")
            await house.end(signal.SIGKILL)
            await window.see("lost").to_be_visible()
            await window.see("send").to_be_disabled()
            await window("composer").fill("typed meanwhile")
            file = Path(session["path"])
            file.write_text(file.read_text().replace("First I read.", "First I have read."))
            await restarted(house)
            await window.see("lost").to_have_count(0)
            await window.see(window("said-agent").locator(".prose")).to_have_text(
                ["First I have read.", "These words are heard to their very end."]
            )
            await window.see("streaming").to_have_count(0)
            await window.see("composer").to_have_value("typed meanwhile")
            shown = await window("conversation").locator("[data-entry]").evaluate_all(ENTRIES)
            assert shown == await entries_of(house, session)
            await window.says(after)
            await window.see(window("said-agent").locator(".prose").last).to_have_text("Afterwards too.")
            shown = await window("conversation").locator("[data-entry]").evaluate_all(ENTRIES)
            assert shown == await entries_of(house, session)
            assert len(shown) == len(set(shown))
        assert len(heard) == 2


async def test_a_question_and_a_child_outlive_the_daemon(alone: OpenPageDaemon):
    async with alone() as house:
        await house.start()
        prompt = house.plays(
            "Write it down.",
            tool_call_reply(("write", {"path": "a.txt", "content": "a\n"})),
            text_reply("It is written."),
        )
        task = house.plays(
            "Have it written down.",
            tool_call_reply(("agent", {"agent_name": "executor", "task_prompt": prompt})),
            text_reply("It is."),
        )
        session = await house.session()
        async with house.opened() as window:
            await window.goes(session["session_id"])
            await window.says(task)
            await window.see("approval").to_be_visible()
            await house.end(signal.SIGKILL)
            await window.see("lost").to_be_visible()
            await restarted(house)
            await window.see("lost").to_have_count(0)
            await window.see("card-status").to_have_text("Waiting for an approval")
            await window.see("approval").to_have_count(1)
            await window("allow").click()
            await window.see(window("said-agent").locator(".prose")).to_have_text(["It is."])
            await window.see("card").to_have_count(0)
            await window.see("child-line", status="done").to_have_count(1)
            shown = await window("conversation").locator("[data-entry]").evaluate_all(ENTRIES)
            assert shown == await entries_of(house, session)
        assert (house.folder / "a.txt").read_text() == "a\n"


async def test_a_link_opens_once_and_a_browser_that_came_in_stays_in(alone: OpenPageDaemon):
    async with alone() as house:
        await house.start()
        link = (await house.api("POST", "/links"))["url"]
        async with house.opened() as window:
            stranger = await (await house.browser.new_context()).new_page()
            await stranger.goto(house.base)
            assert "needs a link" in await stranger.inner_text("h1")
            await stranger.goto(link)
            await stranger.locator("[data-test=home-form]").wait_for()
            other = await (await house.browser.new_context()).new_page()
            await other.goto(link)
            assert "already used" in await other.inner_text("h1")
            await house.end(signal.SIGKILL)
            await restarted(house)
            await window.page.reload()
            await window.see("home-form").to_be_visible()
            await window.see("lost").to_have_count(0)
