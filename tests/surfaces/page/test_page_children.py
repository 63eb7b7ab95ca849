"""Children on the page: a card at the call while they live, a line when they have ended, and everybody's tree."""

import asyncio
import re
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from page_fixture import OpenPageDaemon, PageDaemon

from retinue.testing.fake_model_server import CapturedRequest
from retinue.testing.replies import FakeResponse, http_error, text_reply, tool_call_reply


@pytest.fixture(scope="module")
async def daemon(module_daemon: OpenPageDaemon) -> AsyncGenerator[PageDaemon]:
    """Nobody is asked here, and researchers hold as long as a test wants them to."""
    async with module_daemon() as daemon:
        daemon.write_config(approvals="auto")
        daemon.write_agent("researcher", "description: Finds out.\ntools: [hold, tell]\n", "You find out.")
        await daemon.start()
        yield daemon


def hands_on(prompt: str, description: str = "analyze patterns") -> FakeResponse:
    return tool_call_reply(
        ("PersistentAgent", {"preset": "researcher", "description": description, "prompt": prompt}),
        text="I hand this on.",
    )


async def test_a_card_stands_at_the_call_follows_its_child_and_takes_no_focus(daemon: PageDaemon):
    """Shows: A050, A051, A052, A055, D033."""
    asked, gate = asyncio.Event(), daemon.create_gate("patterns")

    async def once_asked(_: CapturedRequest) -> FakeResponse:
        await asked.wait()
        return tool_call_reply(("hold", {"name": "patterns"}), ("tell", {"name": "held.py"}))

    daemon.script_task("Look at all patterns.", once_asked, text_reply("There are two patterns."))
    task = daemon.script_task(
        "Have it looked at.", hands_on("Look at all patterns."), text_reply("Two, it says.")
    )
    session = await daemon.create_session()
    async with daemon.open_page() as window:
        await window.open_session(session["session_id"])
        await window.send_message(task)
        await window("composer").press_sequentially("And then")
        call = window("tool-call", tool="PersistentAgent")
        card = call.locator('[data-test="card"]')
        await window.expect(card).to_have_count(1)
        await window.expect(card.locator('[data-test="card-title"]')).to_have_text(
            "Researcher Task: analyze patterns"
        )
        await window.expect(card.locator('[data-test="card-status"]')).to_have_text("Waiting...")
        rules = await card.evaluate(
            "each => [getComputedStyle(each).borderTopWidth, getComputedStyle(each).borderBottomWidth]"
        )
        assert rules == ["1px", "1px"]
        below = await card.evaluate("each => each.parentElement.dataset.test")
        assert below == "tool-call"
        where = window.page.url

        asked.set()
        await window.expect(card.locator('[data-test="card-status"]')).to_have_text("Calling Tools... (+2)")
        entries = window("ledger-entry")
        await window.expect(entries).to_have_text(
            [re.compile(r"^researcher#2 running$"), re.compile(r"^general#1 waiting$")]
        )
        await window.expect("composer").to_be_focused()
        await window.expect("composer").to_have_value("And then")
        assert window.page.url == where

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


@pytest.mark.parametrize("how", ["done", "failed", "cancelled"])
async def test_a_card_is_gone_however_its_child_ended(daemon: PageDaemon, how: str):
    """Shows: A054."""
    gate = daemon.create_gate(how)
    ends = http_error(400, "no such thing") if how == "failed" else text_reply("It came to an end.")
    prompt = daemon.script_task(f"Come to be {how}.", tool_call_reply(("hold", {"name": how})), ends)
    task = daemon.script_task(f"Let one be {how}.", hands_on(prompt, f"to be {how}"), text_reply("I know."))
    session = await daemon.create_session()
    async with daemon.open_page() as window:
        await window.open_session(session["session_id"])
        await window.send_message(task)
        await window.expect("card-status").to_have_text("Calling Tools... (+1)")
        if how == "cancelled":
            await window("card-cancel").click()
        else:
            gate.unlink()
        await window.expect("child-line", status=how).to_be_visible()
        await window.expect("card").to_have_count(0)
        await window.expect(window("said-agent").locator(".prose").last).to_have_text("I know.")
    await daemon.wait_until_idle()
    runs = await daemon.call_api("GET", "/runs?limit=2")
    assert {run["agent"]: run["status"] for run in runs} == {"general": "done", "researcher": how}


async def test_a_page_that_is_closed_harms_nobody_and_one_that_comes_back_sees_all(daemon: PageDaemon):
    """Shows: A053."""
    gate = daemon.create_gate("closed")
    prompt = daemon.script_task(
        "Go on alone.", tool_call_reply(("hold", {"name": "closed"})), text_reply("I went on.")
    )
    task = daemon.script_task("Nobody will look.", hands_on(prompt, "go on"), text_reply("It went on."))
    session = await daemon.create_session()
    async with daemon.open_page() as window:
        await window.open_session(session["session_id"])
        await window.send_message(task)
        await window.expect("card-status").to_have_text("Calling Tools... (+1)")
    async with daemon.open_page() as late:
        await late.open_session(session["session_id"])
        await late.expect("card-status").to_have_text("Calling Tools... (+1)")
        await late.expect("card").to_contain_text("hold closed")
    gate.unlink()
    await daemon.wait_until_idle()
    [child] = [run for run in await daemon.call_api("GET", "/runs?limit=2") if run["agent"] == "researcher"]
    assert "I went on." in Path(child["path"]).read_text()
    assert not [line for line in daemon.stderr_lines if "Traceback" in line]
    async with daemon.open_page() as again:
        await again.open_session(session["session_id"])
        await again.expect("child-line", status="done").to_be_visible()
        await again.expect(again("said-agent").locator(".prose")).to_have_text(
            ["I hand this on.", "It went on."]
        )
        await again.expect("card").to_have_count(0)


async def test_the_tree_of_runs_has_each_with_its_state_its_time_and_what_it_cost(daemon: PageDaemon):
    gate = daemon.create_gate("tree")
    left = daemon.script_task(
        "Be the left one.", tool_call_reply(("hold", {"name": "tree"})), text_reply("Left.")
    )
    right = daemon.script_task("Be the right one.", text_reply("Right.", usage={"input": 1200, "output": 34}))
    both = tool_call_reply(
        ("spawn_subagent", {"agentId": "researcher", "prompt": left, "label": "left"}),
        ("spawn_subagent", {"agentId": "explorer", "prompt": right, "label": "right"}),
    )
    task = daemon.script_task("Grow a tree.", both, text_reply("Grown."))
    session = await daemon.create_session()
    async with daemon.open_page(1440, 900) as window:
        await window.open_session(session["session_id"])
        await window.send_message(task)
        await window.expect("child-line", status="done").to_be_visible()
        await window("open-runs").click()
        root = window("run").filter(has=window.page.locator("b", has_text=re.compile("^general#1$"))).first
        below = root.locator(':scope > ul > [data-test="run"]')
        await window.expect(below).to_have_count(2)
        one, other = below.filter(has_text="researcher#"), below.filter(has_text="explorer#")
        await window.expect(one).to_have_attribute("data-status", "running")
        await window.expect(other).to_have_attribute("data-status", "done")
        await window.expect(other).to_contain_text("1.2k in 34 out")
        await window.expect(root).to_have_attribute("data-status", "waiting")
        await one.locator('[data-test="run-cancel"]').click()
        await window.expect(one).to_have_attribute("data-status", "cancelled")
        await window.expect(root).to_have_attribute("data-status", "done")
        await window("panel-close").click()
        await window.expect("panel").to_have_count(0)
    gate.unlink()


async def test_stopping_the_parent_stops_everybody_below(daemon: PageDaemon):
    daemon.create_gate("all")
    prompt = daemon.script_task(
        "Hold below.", tool_call_reply(("hold", {"name": "all"})), text_reply("Never said.")
    )
    task = daemon.script_task("Have somebody hold.", hands_on(prompt, "hold"), text_reply("Never said."))
    session = await daemon.create_session()
    async with daemon.open_page() as window:
        await window.open_session(session["session_id"])
        await window.send_message(task)
        await window.expect("card-status").to_have_text("Calling Tools... (+1)")
        await window("cancel").click()
        await window.expect("run-ended", status="cancelled").to_be_visible()
        await window.expect("card").to_have_count(0)
        await window.expect("child-line", status="cancelled").to_be_visible()
        await window.expect("ledger-entry").to_have_count(0)


async def test_the_inbox_has_what_was_left_and_promotes_it_once(daemon: PageDaemon):
    """Shows: D034."""
    prompt = daemon.script_task("Find the year.", text_reply("It was 1993, says the second page."))
    task = daemon.script_task(
        "Leave it to somebody.",
        tool_call_reply(
            (
                "spawn_subagent",
                {"agentId": "explorer", "prompt": prompt, "label": "the year", "returnMode": "background"},
            )
        ),
        text_reply("I have."),
    )
    broken = daemon.script_task("Find what is not there.", http_error(400, "nothing is there"))
    second = daemon.script_task(
        "Leave that too.",
        tool_call_reply(
            (
                "spawn_subagent",
                {"agentId": "oracle", "prompt": broken, "label": "nothing", "returnMode": "background"},
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
        await window.send_message(second)
        failed = window("inbox-row").filter(has_text="nothing")
        await window.expect(failed.first).to_have_attribute("data-status", "error")
        await window.expect(failed.first).to_contain_text("nothing is there")
        await daemon.wait_until_idle()
        file = Path(session["path"])
        before = file.read_text().count("It was 1993")
        await row.locator('[data-test="promote"]').click()
        await window.expect(window("toast").last).to_contain_text("What explorer found")
        await daemon.wait_until(lambda: file.read_text().count("It was 1993") == before + 1)
        await row.locator('[data-test="inbox-open"]').click()
        await window.expect(window("said-agent").locator(".prose")).to_have_text(
            ["It was 1993, says the second page."]
        )
