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
async def house(furnished: OpenPageDaemon) -> AsyncGenerator[PageDaemon]:
    """Nobody is asked here, and researchers hold as long as a test wants them to."""
    async with furnished() as house:
        house.configured(approvals="auto")
        house.agent("researcher", "description: Finds out.\ntools: [hold, tell]\n", "You find out.")
        await house.start()
        yield house


def hands_on(prompt: str, description: str = "analyze patterns") -> FakeResponse:
    return tool_call_reply(
        ("PersistentAgent", {"preset": "researcher", "description": description, "prompt": prompt}),
        text="I hand this on.",
    )


async def test_a_card_stands_at_the_call_follows_its_child_and_takes_no_focus(house: PageDaemon):
    """Shows: A050, A051, A052, A055, D033."""
    asked, gate = asyncio.Event(), house.gate("patterns")

    async def once_asked(_: CapturedRequest) -> FakeResponse:
        await asked.wait()
        return tool_call_reply(("hold", {"name": "patterns"}), ("tell", {"name": "held.py"}))

    house.plays("Look at all patterns.", once_asked, text_reply("There are two patterns."))
    task = house.plays("Have it looked at.", hands_on("Look at all patterns."), text_reply("Two, it says."))
    session = await house.session()
    async with house.opened() as window:
        await window.goes(session["session_id"])
        await window.says(task)
        await window("composer").press_sequentially("And then")
        call = window("tool-call", tool="PersistentAgent")
        card = call.locator('[data-test="card"]')
        await window.see(card).to_have_count(1)
        await window.see(card.locator('[data-test="card-title"]')).to_have_text(
            "Researcher Task: analyze patterns"
        )
        await window.see(card.locator('[data-test="card-status"]')).to_have_text("Waiting...")
        rules = await card.evaluate(
            "each => [getComputedStyle(each).borderTopWidth, getComputedStyle(each).borderBottomWidth]"
        )
        assert rules == ["1px", "1px"]
        below = await card.evaluate("each => each.parentElement.dataset.test")
        assert below == "tool-call"
        where = window.page.url

        asked.set()
        await window.see(card.locator('[data-test="card-status"]')).to_have_text("Calling Tools... (+2)")
        entries = window("ledger-entry")
        await window.see(entries).to_have_text(
            [re.compile(r"^researcher#2 running$"), re.compile(r"^general#1 waiting$")]
        )
        await window.see("composer").to_be_focused()
        await window.see("composer").to_have_value("And then")
        assert window.page.url == where

        gate.unlink()
        await window.see(window("said-agent").locator(".prose").last).to_have_text("Two, it says.")
        await window.see("card").to_have_count(0)
        await window.see("composer").to_be_focused()
        await window.see("ledger-entry").to_have_count(0)
        await call.locator('[data-test="child-line"]').click()
        await window.see("current-agent").to_have_text("Researcher")
        await window.see(window("said-agent").locator(".prose").last).to_have_text("There are two patterns.")
        await window("parent").click()
        await window.see("current-agent").to_have_text("General")


@pytest.mark.parametrize("how", ["done", "failed", "cancelled"])
async def test_a_card_is_gone_however_its_child_ended(house: PageDaemon, how: str):
    """Shows: A054."""
    gate = house.gate(how)
    ends = http_error(400, "no such thing") if how == "failed" else text_reply("It came to an end.")
    prompt = house.plays(f"Come to be {how}.", tool_call_reply(("hold", {"name": how})), ends)
    task = house.plays(f"Let one be {how}.", hands_on(prompt, f"to be {how}"), text_reply("I know."))
    session = await house.session()
    async with house.opened() as window:
        await window.goes(session["session_id"])
        await window.says(task)
        await window.see("card-status").to_have_text("Calling Tools... (+1)")
        if how == "cancelled":
            await window("card-cancel").click()
        else:
            gate.unlink()
        await window.see("child-line", status=how).to_be_visible()
        await window.see("card").to_have_count(0)
        await window.see(window("said-agent").locator(".prose").last).to_have_text("I know.")
    await house.quiet()
    runs = await house.api("GET", "/runs?limit=2")
    assert {run["agent"]: run["status"] for run in runs} == {"general": "done", "researcher": how}


async def test_a_page_that_is_closed_harms_nobody_and_one_that_comes_back_sees_all(house: PageDaemon):
    """Shows: A053."""
    gate = house.gate("closed")
    prompt = house.plays(
        "Go on alone.", tool_call_reply(("hold", {"name": "closed"})), text_reply("I went on.")
    )
    task = house.plays("Nobody will look.", hands_on(prompt, "go on"), text_reply("It went on."))
    session = await house.session()
    async with house.opened() as window:
        await window.goes(session["session_id"])
        await window.says(task)
        await window.see("card-status").to_have_text("Calling Tools... (+1)")
    async with house.opened() as late:
        await late.goes(session["session_id"])
        await late.see("card-status").to_have_text("Calling Tools... (+1)")
        await late.see("card").to_contain_text("hold closed")
    gate.unlink()
    await house.quiet()
    [child] = [run for run in await house.api("GET", "/runs?limit=2") if run["agent"] == "researcher"]
    assert "I went on." in Path(child["path"]).read_text()
    assert not [line for line in house.told if "Traceback" in line]
    async with house.opened() as again:
        await again.goes(session["session_id"])
        await again.see("child-line", status="done").to_be_visible()
        await again.see(again("said-agent").locator(".prose")).to_have_text(
            ["I hand this on.", "It went on."]
        )
        await again.see("card").to_have_count(0)


async def test_the_tree_of_runs_has_each_with_its_state_its_time_and_what_it_cost(house: PageDaemon):
    gate = house.gate("tree")
    left = house.plays("Be the left one.", tool_call_reply(("hold", {"name": "tree"})), text_reply("Left."))
    right = house.plays("Be the right one.", text_reply("Right.", usage={"input": 1200, "output": 34}))
    both = tool_call_reply(
        ("spawn_subagent", {"agentId": "researcher", "prompt": left, "label": "left"}),
        ("spawn_subagent", {"agentId": "explorer", "prompt": right, "label": "right"}),
    )
    task = house.plays("Grow a tree.", both, text_reply("Grown."))
    session = await house.session()
    async with house.opened(1440, 900) as window:
        await window.goes(session["session_id"])
        await window.says(task)
        await window.see("child-line", status="done").to_be_visible()
        await window("open-runs").click()
        root = window("run").filter(has=window.page.locator("b", has_text=re.compile("^general#1$"))).first
        below = root.locator(':scope > ul > [data-test="run"]')
        await window.see(below).to_have_count(2)
        one, other = below.filter(has_text="researcher#"), below.filter(has_text="explorer#")
        await window.see(one).to_have_attribute("data-status", "running")
        await window.see(other).to_have_attribute("data-status", "done")
        await window.see(other).to_contain_text("1.2k in 34 out")
        await window.see(root).to_have_attribute("data-status", "waiting")
        await one.locator('[data-test="run-cancel"]').click()
        await window.see(one).to_have_attribute("data-status", "cancelled")
        await window.see(root).to_have_attribute("data-status", "done")
        await window("panel-close").click()
        await window.see("panel").to_have_count(0)
    gate.unlink()


async def test_stopping_the_parent_stops_everybody_below(house: PageDaemon):
    house.gate("all")
    prompt = house.plays("Hold below.", tool_call_reply(("hold", {"name": "all"})), text_reply("Never said."))
    task = house.plays("Have somebody hold.", hands_on(prompt, "hold"), text_reply("Never said."))
    session = await house.session()
    async with house.opened() as window:
        await window.goes(session["session_id"])
        await window.says(task)
        await window.see("card-status").to_have_text("Calling Tools... (+1)")
        await window("cancel").click()
        await window.see("run-ended", status="cancelled").to_be_visible()
        await window.see("card").to_have_count(0)
        await window.see("child-line", status="cancelled").to_be_visible()
        await window.see("ledger-entry").to_have_count(0)


async def test_the_inbox_has_what_was_left_and_promotes_it_once(house: PageDaemon):
    """Shows: D034."""
    prompt = house.plays("Find the year.", text_reply("It was 1993, says the second page."))
    task = house.plays(
        "Leave it to somebody.",
        tool_call_reply(
            (
                "spawn_subagent",
                {"agentId": "explorer", "prompt": prompt, "label": "the year", "returnMode": "background"},
            )
        ),
        text_reply("I have."),
    )
    broken = house.plays("Find what is not there.", http_error(400, "nothing is there"))
    second = house.plays(
        "Leave that too.",
        tool_call_reply(
            (
                "spawn_subagent",
                {"agentId": "oracle", "prompt": broken, "label": "nothing", "returnMode": "background"},
            )
        ),
        text_reply("That too."),
    )
    session = await house.session()
    async with house.opened(1440, 900) as window:
        await window.goes(session["session_id"])
        await window("open-inbox").click()
        await window.says(task)
        row = window("inbox-row").filter(has_text="the year")
        await window.see(row).to_have_attribute("data-status", "complete")
        await window.see(row).to_contain_text("It was 1993, says the second page.")
        await window.see(row).to_contain_text("explorer")
        await window.says(second)
        failed = window("inbox-row").filter(has_text="nothing")
        await window.see(failed.first).to_have_attribute("data-status", "error")
        await window.see(failed.first).to_contain_text("nothing is there")
        await house.quiet()
        file = Path(session["path"])
        before = file.read_text().count("It was 1993")
        await row.locator('[data-test="promote"]').click()
        await window.see(window("toast").last).to_contain_text("What explorer found")
        await house.until(lambda: file.read_text().count("It was 1993") == before + 1)
        await row.locator('[data-test="inbox-open"]').click()
        await window.see(window("said-agent").locator(".prose")).to_have_text(
            ["It was 1993, says the second page."]
        )
