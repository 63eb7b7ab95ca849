"""Watchers on the page, and the slash commands and keys of agents."""

import re
from collections.abc import AsyncGenerator

import pytest
from page_fixture import OpenPageDaemon, PageDaemon

from retinue.testing.fake_model_server import CapturedRequest
from retinue.testing.replies import FakeResponse, text_reply, tool_call_reply

INTERRUPTING_COMMENT = {
    "severity": "interrupt",
    "reason": "A table is dropped that nobody named.",
    "suggestion": "Rename the column only.",
}
WARNING_COMMENT = {
    "severity": "warning",
    "reason": "The parser is rewritten.",
    "suggestion": "Change line 12.",
}


CONTROLS_BELOW_TOASTS = """() => [...document.querySelectorAll("button, a, textarea, summary")].filter((control) => {
    const box = control.getBoundingClientRect();
    const top = document.elementFromPoint(box.left + box.width / 2, box.top + box.height / 2);
    return !control.closest(".toast") && top?.closest(".toast");
}).map((control) => control.outerHTML)"""


async def answer_as_pair(request: CapturedRequest) -> FakeResponse:
    """The pair agent comments when the watched agent goes wrong."""
    last_message = str(request.messages[-1]["content"])
    if "I drop the table" in last_message:
        return tool_call_reply(("interject", INTERRUPTING_COMMENT))
    return (
        tool_call_reply(("interject", WARNING_COMMENT))
        if "I rewrite the parser" in last_message
        else text_reply("ok")
    )


@pytest.fixture(scope="module")
async def daemon(module_daemon: OpenPageDaemon) -> AsyncGenerator[PageDaemon]:
    async with module_daemon() as daemon:
        daemon.write_config(approvals="auto", limits={"watch_quiet_seconds": 0.01})
        daemon.write_agent(
            "oracle",
            "description: Thinks.\nroles: [subtask]\ntools: [read]\n"
            "triggers: {slash: [/oracle], hotkeys: [Ctrl+Shift+O]}\n",
            "You think.",
        )
        daemon.script_task("watched session=", answer_as_pair, text_reply("ok"))
        await daemon.start()
        yield daemon


async def test_a_hotkey_starts_a_watcher_whose_comment_interrupts_the_run(
    daemon: PageDaemon,
):
    """Shows: D026, D031, D033, D040, D042."""
    gate = daemon.create_gate("drift")
    task = daemon.script_task(
        "Rename the column.",
        tool_call_reply(("hold", {"name": "drift"}), text="I drop the table first."),
        text_reply("In short: nothing was dropped."),
    )
    async with daemon.open_new_session() as (window, session):
        # Once the page offers the agent's command, it also knows the agent's hotkeys.
        await window("composer").fill("/pair")
        await window.expect("slash").to_have_count(1)
        await window("composer").fill("")
        await window.page.keyboard.press("Control+Shift+P")
        await window.expect("ledger-watcher").to_have_text("Pair programmer#1 watching")
        await window.send_message(task)
        comment = window("interjections").locator('[data-test="interjection"]')
        await window.expect(comment).to_have_attribute("data-severity", "interrupt")
        await window.expect(comment.locator('[data-test="interjection-reason"]')).to_have_text(
            INTERRUPTING_COMMENT["reason"]
        )
        await window.expect(comment.locator('[data-test="interjection-suggestion"]')).to_have_text(
            f"Instead: {INTERRUPTING_COMMENT['suggestion']}"
        )

        async def run_is_interrupted() -> bool:
            return any(run["reason"] == "interrupted" for run in await daemon.call_api("GET", "/runs"))

        await daemon.wait_until(run_is_interrupted)
        gate.unlink()
        await window.expect(window("said-agent").locator(".prose").last).to_have_text(
            "In short: nothing was dropped."
        )
        await window.expect("inbox-count").to_have_text("1")
        await comment.locator('[data-test="interjection-dismiss"]').click()
        await window.expect("interjections").to_have_count(0)
        await window.expect("inbox-count").to_have_count(0)
        await window.page.keyboard.press("Control+Shift+P")
        await window.expect("ledger-watcher").to_have_count(0)
    runs = await daemon.call_api("GET", f"/runs?session={session['slug']}")
    assert [(run["status"], run["reason"]) for run in runs] == [("cancelled", "interrupted")]
    assert await daemon.call_api("GET", "/watchers") == []


async def test_the_menu_starts_a_watcher_and_its_warning_can_be_passed_on_to_the_agent(daemon: PageDaemon):
    """Shows: D032."""
    task = daemon.script_task("Fix the typo.", text_reply("I rewrite the parser."))
    async with daemon.open_new_session() as (window, session):
        await window.click_menu("watch-pair")
        await window.expect("ledger-watcher").to_have_text("Pair programmer#1 watching")
        await window.send_message(task)
        await window.expect(window("interjections").locator('[data-severity="warning"]')).to_be_visible()
        await window("interjection-pass").click()
        await window.expect("interjections").to_have_count(0)
        await window.expect(window("said-user").last).to_contain_text("Change line 12.")
        await window.click_menu("watch-pair")
        await window.expect("ledger-watcher").to_have_count(0)
    await daemon.wait_until_idle()
    (watcher_session,) = [
        row for row in await daemon.call_api("GET", "/sessions") if row["parent"] == session["session_id"]
    ]
    run_count = len(await daemon.call_api("GET", f"/runs?session={watcher_session['slug']}"))
    await daemon.send_message(session["session_id"], task)
    await daemon.wait_until_idle()
    assert len(await daemon.call_api("GET", f"/runs?session={watcher_session['slug']}")) == run_count


@pytest.mark.parametrize("size", [(1440, 900), (375, 667)])
async def test_messages_of_the_page_cover_no_control(daemon: PageDaemon, size: tuple[int, int]):
    task = daemon.script_task("Tidy it.", text_reply("I rewrite the parser."))
    async with daemon.open_page(*size) as window:
        session = await daemon.create_session()
        await window.open_session(session["session_id"])
        await window.click_menu("watch-pair")
        await window.send_message(task)
        await window.expect("interjection").to_be_visible()
        await window.send_message("/oracle")
        await window.expect(window("toast").last).to_contain_text("Type the task after the command")
        assert await window.page.evaluate(CONTROLS_BELOW_TOASTS) == []
        await window("composer").fill("")
        await window("interjection-dismiss").click()
        await window.click_menu("watch-pair")


async def test_slash_commands_and_hotkeys_of_agents_are_offered_listed_in_the_help_and_start_runs(
    daemon: PageDaemon,
):
    """Shows: D029, D041."""
    daemon.script_task("explore the side street", text_reply("It ends at the river."))
    daemon.script_task("Why at nine?", text_reply("Because of the tide."))
    async with daemon.open_new_session() as (window, session):
        await window("composer").press_sequentially("/pa")
        await window.expect("slash").to_have_count(1)
        await window("composer").press("Tab")
        await window.expect("composer").to_have_value("/pair ")
        await window.expect("composer").to_be_focused()
        await window("composer").press_sequentially("explore the side street")
        await window("composer").press("Enter")
        await window.expect("composer").to_have_value("")
        await window("composer").press_sequentially("Why at nine?")
        await window("composer").press("Control+Shift+O")
        await window.expect("composer").to_have_value("")
        await window("composer").blur()
        await window.page.keyboard.press("i")
        rows = window("inbox").locator('[data-test="inbox-row"][data-status="complete"]')
        await window.expect(rows.filter(has_text="It ends at the river.")).to_have_count(1)
        await window.expect(rows.filter(has_text="Because of the tide.")).to_have_count(1)
        await window.page.keyboard.press("?")
        for pattern in (
            r"Ctrl\+Shift\+P.*start or stop the watcher Pair programmer",
            r"Ctrl\+Shift\+O.*oracle",
            r"/oracle.*oracle",
            r"/pair.*delegate to Pair programmer",
        ):
            await window.expect(
                window("keys").locator("dl > div").filter(has_text=re.compile(pattern))
            ).to_have_count(1)
        await window.page.keyboard.press("Escape")
    runs = await daemon.call_api("GET", "/runs?limit=20")
    triggers = {run["agent"]: run["trigger"] for run in runs if run["requester"] == session["key"]}
    assert triggers == {"pair": "slash", "oracle": "key"}
    assert await daemon.call_api("GET", f"/sessions/{session['slug']}/entries") == []
