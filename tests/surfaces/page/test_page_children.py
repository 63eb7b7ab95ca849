"""Child agents on the page: a card while they run, a line when they have ended, and the tree of runs."""

import asyncio
import re
from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from page_fixture import OpenPageDaemon, PageDaemon

from retinue.testing.fake_model_server import CapturedRequest
from retinue.testing.replies import FakeResponse, http_error, text_reply, tool_call_reply


@pytest.fixture(scope="module")
async def daemon(module_daemon: OpenPageDaemon) -> AsyncGenerator[PageDaemon]:
    """Approvals are automatic, and researchers hold until a test releases them."""
    async with module_daemon() as daemon:
        daemon.write_config(approvals="auto")
        daemon.write_agent("researcher", "description: Finds out.\ntools: [hold, tell]\n", "You find out.")
        await daemon.start()
        yield daemon


def delegate_call(prompt: str, description: str = "analyze patterns") -> FakeResponse:
    return tool_call_reply(
        ("PersistentAgent", {"preset": "researcher", "description": description, "prompt": prompt}),
        text="I hand this on.",
    )


async def test_the_card_of_a_child_shows_its_progress_at_the_call_without_taking_the_focus(
    daemon: PageDaemon,
):
    """Shows: A050, A051, A052, A055, D033."""
    released, gate = asyncio.Event(), daemon.create_gate("patterns")

    async def answer_when_released(_: CapturedRequest) -> FakeResponse:
        await released.wait()
        return tool_call_reply(("hold", {"name": "patterns"}), ("tell", {"name": "held.py"}))

    daemon.script_task("Look at all patterns.", answer_when_released, text_reply("There are two patterns."))
    task = daemon.script_task(
        "Have it looked at.", delegate_call("Look at all patterns."), text_reply("Two, it says.")
    )
    async with daemon.open_new_session() as (window, _):
        await window.send_message(task)
        await window("composer").press_sequentially("And then")
        call = window("tool-call", tool="PersistentAgent")
        card = call.locator('[data-test="card"]')
        await window.expect(card).to_have_count(1)
        await window.expect(card.locator('[data-test="card-title"]')).to_have_text(
            "Researcher Task: analyze patterns"
        )
        await window.expect(card.locator('[data-test="card-status"]')).to_have_text("Waiting...")
        borders = await card.evaluate(
            "card => [getComputedStyle(card).borderTopWidth, getComputedStyle(card).borderBottomWidth]"
        )
        assert borders == ["1px", "1px"]
        parent_element = await card.evaluate("card => card.parentElement.dataset.test")
        assert parent_element == "tool-call"
        url = window.page.url

        released.set()
        await window.expect(card.locator('[data-test="card-status"]')).to_have_text("Calling Tools... (+2)")
        entries = window("ledger-entry")
        await window.expect(entries).to_have_text(
            [re.compile(r"^researcher#2 running$"), re.compile(r"^general#1 waiting$")]
        )
        await window.expect("composer").to_be_focused()
        await window.expect("composer").to_have_value("And then")
        assert window.page.url == url

        gate.unlink()
        await window.expect(window("said-agent").locator(".prose").last).to_have_text("Two, it says.")
        await window.expect("card").to_have_count(0)
        await window.expect("composer").to_be_focused()
        await window.expect("ledger-entry").to_have_count(0)
        await call.locator('[data-test="child-line"]').click()
        await window.expect("current-agent").to_have_text("Researcher")
        await window.expect(window("said-agent").locator(".prose").last).to_have_text(
            "There are two patterns."
        )
        await window("parent").click()
        await window.expect("current-agent").to_have_text("General")


@pytest.mark.parametrize("outcome", ["done", "failed", "cancelled"])
async def test_the_card_of_an_ended_child_becomes_a_line_with_its_status(daemon: PageDaemon, outcome: str):
    """Shows: A054."""
    gate = daemon.create_gate(outcome)
    reply = http_error(400, "no such thing") if outcome == "failed" else text_reply("It came to an end.")
    child_task = daemon.script_task(
        f"Come to be {outcome}.", tool_call_reply(("hold", {"name": outcome})), reply
    )
    task = daemon.script_task(
        f"Let one be {outcome}.", delegate_call(child_task, f"to be {outcome}"), text_reply("I know.")
    )
    async with daemon.open_new_session() as (window, _):
        await window.send_message(task)
        await window.expect("card-status").to_have_text("Calling Tools... (+1)")
        if outcome == "cancelled":
            await window("card-cancel").click()
        else:
            gate.unlink()
        await window.expect("child-line", status=outcome).to_be_visible()
        await window.expect("card").to_have_count(0)
        await window.expect(window("said-agent").locator(".prose").last).to_have_text("I know.")
    await daemon.wait_until_idle()
    runs = await daemon.call_api("GET", "/runs?limit=2")
    assert {run["agent"]: run["status"] for run in runs} == {"general": "done", "researcher": outcome}


async def test_runs_continue_without_a_page_and_a_page_opened_later_shows_them(daemon: PageDaemon):
    """Shows: A053."""
    gate = daemon.create_gate("closed")
    child_task = daemon.script_task(
        "Go on alone.", tool_call_reply(("hold", {"name": "closed"})), text_reply("I went on.")
    )
    task = daemon.script_task(
        "Nobody will look.", delegate_call(child_task, "go on"), text_reply("It went on.")
    )
    async with daemon.open_new_session() as (window, session):
        await window.send_message(task)
        await window.expect("card-status").to_have_text("Calling Tools... (+1)")
    async with daemon.open_page() as second:
        await second.open_session(session["session_id"])
        await second.expect("card-status").to_have_text("Calling Tools... (+1)")
        await second.expect("card").to_contain_text("hold closed")
    gate.unlink()
    await daemon.wait_until_idle()
    [child] = [run for run in await daemon.call_api("GET", "/runs?limit=2") if run["agent"] == "researcher"]
    assert "I went on." in Path(child["path"]).read_text()
    assert not [line for line in daemon.stderr_lines if "Traceback" in line]
    async with daemon.open_page() as third:
        await third.open_session(session["session_id"])
        await third.expect("child-line", status="done").to_be_visible()
        await third.expect(third("said-agent").locator(".prose")).to_have_text(
            ["I hand this on.", "It went on."]
        )
        await third.expect("card").to_have_count(0)


async def test_the_tree_of_runs_shows_the_status_and_the_usage_of_each_run(daemon: PageDaemon):
    gate = daemon.create_gate("tree")
    left_task = daemon.script_task(
        "Be the left one.", tool_call_reply(("hold", {"name": "tree"})), text_reply("Left.")
    )
    right_task = daemon.script_task(
        "Be the right one.", text_reply("Right.", usage={"input": 1200, "output": 34})
    )
    spawn_calls = tool_call_reply(
        ("spawn_subagent", {"agentId": "researcher", "prompt": left_task, "label": "left"}),
        ("spawn_subagent", {"agentId": "explorer", "prompt": right_task, "label": "right"}),
    )
    task = daemon.script_task("Grow a tree.", spawn_calls, text_reply("Grown."))
    session = await daemon.create_session()
    async with daemon.open_page(1440, 900) as window:
        await window.open_session(session["session_id"])
        await window.send_message(task)
        await window.expect("child-line", status="done").to_be_visible()
        await window("open-runs").click()
        root = window("run").filter(has=window.page.locator("b", has_text=re.compile("^general#1$"))).first
        child_rows = root.locator(':scope > ul > [data-test="run"]')
        await window.expect(child_rows).to_have_count(2)
        researcher, explorer = (
            child_rows.filter(has_text="researcher#"),
            child_rows.filter(has_text="explorer#"),
        )
        await window.expect(researcher).to_have_attribute("data-status", "running")
        await window.expect(explorer).to_have_attribute("data-status", "done")
        await window.expect(explorer).to_contain_text("1.2k in 34 out")
        await window.expect(root).to_have_attribute("data-status", "waiting")
        await researcher.locator('[data-test="run-cancel"]').click()
        await window.expect(researcher).to_have_attribute("data-status", "cancelled")
        await window.expect(root).to_have_attribute("data-status", "done")
        await window("panel-close").click()
        await window.expect("panel").to_have_count(0)
    gate.unlink()


async def test_cancelling_a_parent_cancels_its_children(daemon: PageDaemon):
    daemon.create_gate("all")
    child_task = daemon.script_task(
        "Hold below.", tool_call_reply(("hold", {"name": "all"})), text_reply("Never said.")
    )
    task = daemon.script_task(
        "Have somebody hold.", delegate_call(child_task, "hold"), text_reply("Never said.")
    )
    async with daemon.open_new_session() as (window, _):
        await window.send_message(task)
        await window.expect("card-status").to_have_text("Calling Tools... (+1)")
        await window("cancel").click()
        await window.expect("run-ended", status="cancelled").to_be_visible()
        await window.expect("card").to_have_count(0)
        await window.expect("child-line", status="cancelled").to_be_visible()
        await window.expect("ledger-entry").to_have_count(0)


async def test_a_result_in_the_inbox_is_promoted_into_the_session_once(daemon: PageDaemon):
    """Shows: D034."""
    child_task = daemon.script_task("Find the year.", text_reply("It was 1993, says the second page."))
    task = daemon.script_task(
        "Leave it to somebody.",
        tool_call_reply(
            (
                "spawn_subagent",
                {
                    "agentId": "explorer",
                    "prompt": child_task,
                    "label": "the year",
                    "returnMode": "background",
                },
            )
        ),
        text_reply("I have."),
    )
    failing_task = daemon.script_task("Find what is not there.", http_error(400, "nothing is there"))
    second_task = daemon.script_task(
        "Leave that too.",
        tool_call_reply(
            (
                "spawn_subagent",
                {"agentId": "oracle", "prompt": failing_task, "label": "nothing", "returnMode": "background"},
            )
        ),
        text_reply("That too."),
    )
    session = await daemon.create_session()
    async with daemon.open_page(1440, 900) as window:
        await window.open_session(session["session_id"])
        await window("open-inbox").click()
        await window.send_message(task)
        row = window("inbox-row").filter(has_text="the year")
        await window.expect(row).to_have_attribute("data-status", "complete")
        await window.expect(row).to_contain_text("It was 1993, says the second page.")
        await window.expect(row).to_contain_text("explorer")
        await window.send_message(second_task)
        failed = window("inbox-row").filter(has_text="nothing")
        await window.expect(failed.first).to_have_attribute("data-status", "error")
        await window.expect(failed.first).to_contain_text("nothing is there")
        await daemon.wait_until_idle()
        file = Path(session["path"])
        before = file.read_text().count("It was 1993")
        await row.locator('[data-test="promote"]').click()
        await window.expect(window("toast").last).to_contain_text("The result of explorer was added")
        await daemon.wait_until(lambda: file.read_text().count("It was 1993") == before + 1)
        await row.locator('[data-test="inbox-open"]').click()
        await window.expect(window("said-agent").locator(".prose")).to_have_text(
            ["It was 1993, says the second page."]
        )


async def test_a_card_shows_waiting_only_after_the_model_has_been_slow(daemon: PageDaemon):
    """The page's clock is set by the test; the daemon's clock runs normally.

    Shows: A042.
    """
    released = asyncio.Event()

    async def answer_when_released(_: CapturedRequest) -> FakeResponse:
        await released.wait()
        return text_reply("Now.")

    daemon.script_task("Look at slow patterns.", answer_when_released)
    task = daemon.script_task(
        "Have it looked at slowly.", delegate_call("Look at slow patterns."), text_reply("Done.")
    )
    async with daemon.open_new_session() as (window, _):
        await window.page.clock.set_fixed_time(datetime.now(UTC))
        await window.send_message(task)
        status = window("card-status")
        await daemon.wait_until(
            lambda: any("Look at slow patterns." in str(each.messages) for each in daemon.model_requests)
        )
        await window.expect(status).to_have_text("Starting...")
        [run] = [row for row in await daemon.call_api("GET", "/runs?live=true") if row["parent"]]
        requested_at = datetime.fromisoformat(run["started_at"])
        await window.page.clock.set_fixed_time(requested_at + timedelta(seconds=1))
        await window.expect(status).to_have_text("Starting...")
        await window.page.clock.set_fixed_time(requested_at + timedelta(seconds=60))
        await window.expect(status).to_have_text("Waiting...")
        released.set()
        await window.expect(window("said-agent").locator(".prose").last).to_have_text("Done.")
