"""The inbox and the tree of runs on the page: what was handed on, to whom and by whom, and what it cost."""

import re
import subprocess
from pathlib import Path

from page_fixture import PageDaemon

from retinue.testing.replies import text_reply, tool_call_reply


def changed_repository(folder: Path) -> Path:
    """A folder with a change for a reviewer to look at."""
    folder.mkdir()
    (folder / "port.txt").write_text("Calais\n")
    for words in (
        ("init", "-q"),
        ("add", "."),
        ("-c", "user.name=ada", "-c", "user.email=a@b", "commit", "-qm", "One"),
    ):
        subprocess.run(("git", *words), cwd=folder, check=True)
    (folder / "port.txt").write_text("Dover\n")
    return folder


async def test_the_inbox_lists_subtasks_reviews_and_what_an_orchestrator_sets_to_work(
    house: PageDaemon, tmp_path: Path
):
    """Shows: D034."""
    house.configured(prices={"test-model": {"input": 1000, "output": 2000}})
    step = house.plays("Lay the stones.", text_reply("Laid."))
    goal = house.plays(
        "Build the wall.",
        tool_call_reply(("spawn_subagent", {"agentId": "explorer", "prompt": step, "label": "stones"})),
        text_reply("The wall stands."),
    )
    house.plays("handed to a reviewer", text_reply("One port is wrong."))
    task = house.plays(
        "Have it built and looked at.",
        tool_call_reply(
            (
                "spawn_subagent",
                {"agentId": "orchestrator", "capability": "orchestrator", "prompt": goal, "label": "wall"},
            ),
            ("request_review", {"instructions": "handed to a reviewer", "returnMode": "background"}),
        ),
        text_reply("Built."),
    )
    folder = changed_repository(tmp_path / "repository")
    session = await house.session(workspace=str(folder))
    async with house.opened(1440, 900) as window:
        await window.goes(session["session_id"])
        await window.says(task)
        await window.see(window("said-agent").last.locator(".prose")).to_have_text("Built.")
        await house.quiet()
        await window("open-inbox").click()
        for who, kind, says in (
            ("orchestrator", ["orchestrator"], "The wall stands."),
            ("reviewer", ["review"], "One port is wrong."),
            ("explorer", [], "Laid."),
        ):
            row = window("inbox-row", status="complete").filter(
                has=window.page.locator(f'b:text-is("{who}")')
            )
            await window.see(row).to_contain_text(says)
            await window.see(row.locator('[data-test="inbox-kind"]')).to_have_text(kind)
        step_row = window("inbox-row").filter(has_text="stones")
        await window.see(step_row).to_contain_text("for orchestrator-")
        await window("tab-runs").click()
        tree = window("run").filter(has_text="Have it built").first
        # 10 tokens in and 5 out a reply: of general two, or one more when the review came late; two of the orchestrator.
        sums = tree.locator('[data-test="run-sum"]')
        await window.see(sums.first).to_have_text(
            re.compile(r"^in all (90 tok · \$0\.1200|105 tok · \$0\.1400)$")
        )
        await window.see(sums.last).to_have_text("in all 45 tok · $0.0600")
        built = window("child-line").filter(has_text="wall")
        await window.see(built.locator('[data-test="child-cost"]')).to_contain_text("45 tok · $0.0600")
