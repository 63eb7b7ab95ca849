"""The inbox and the tree of runs on the page: delegated tasks, their agents, results and cost."""

import re
import subprocess
from pathlib import Path

from page_fixture import PageDaemon

from retinue.testing.replies import text_reply, tool_call_reply


def create_changed_repository(folder: Path) -> Path:
    """Create a repository with an uncommitted change to review."""
    folder.mkdir()
    (folder / "port.txt").write_text("Calais\n")
    for arguments in (
        ("init", "-q"),
        ("add", "."),
        ("-c", "user.name=ada", "-c", "user.email=a@b", "commit", "-qm", "One"),
    ):
        subprocess.run(("git", *arguments), cwd=folder, check=True)
    (folder / "port.txt").write_text("Dover\n")
    return folder


async def test_the_inbox_lists_subtasks_reviews_and_the_work_of_an_orchestrator(
    daemon: PageDaemon, tmp_path: Path
):
    """Shows: D034."""
    daemon.write_config(prices={"test-model": {"input": 1000, "output": 2000}})
    subtask = daemon.script_task("Lay the stones.", text_reply("Laid."))
    orchestrator_task = daemon.script_task(
        "Build the wall.",
        tool_call_reply(("spawn_subagent", {"agentId": "explorer", "prompt": subtask, "label": "stones"})),
        text_reply("The wall stands."),
    )
    daemon.script_task("handed to a reviewer", text_reply("One port is wrong."))
    task = daemon.script_task(
        "Have it built and looked at.",
        tool_call_reply(
            (
                "spawn_subagent",
                {
                    "agentId": "orchestrator",
                    "capability": "orchestrator",
                    "prompt": orchestrator_task,
                    "label": "wall",
                },
            ),
            ("request_review", {"instructions": "handed to a reviewer", "returnMode": "background"}),
        ),
        text_reply("Built."),
    )
    folder = create_changed_repository(tmp_path / "repository")
    session = await daemon.create_session(workspace=str(folder))
    async with daemon.open_page(1440, 900) as window:
        await window.open_session(session["session_id"])
        await window.send_message(task)
        await window.expect(window("said-agent").last.locator(".prose")).to_have_text("Built.")
        await daemon.wait_until_idle()
        await window("open-inbox").click()
        for agent, kind, result in (
            ("orchestrator", ["orchestrator"], "The wall stands."),
            ("reviewer", ["review"], "One port is wrong."),
            ("explorer", [], "Laid."),
        ):
            row = window("inbox-row", status="complete").filter(
                has=window.page.locator(f'b:text-is("{agent}")')
            )
            await window.expect(row).to_contain_text(result)
            await window.expect(row.locator('[data-test="inbox-kind"]')).to_have_text(kind)
        step_row = window("inbox-row").filter(has_text="stones")
        await window.expect(step_row).to_contain_text("for orchestrator-")
        await window("tab-runs").click()
        tree = window("run").filter(has_text="Have it built").first
        # Each reply has 10 input and 5 output tokens: 2 replies of general (3 if the review was late), 2 of orchestrator.
        totals = tree.locator('[data-test="run-sum"]')
        await window.expect(totals.first).to_have_text(
            re.compile(r"^total (90 tok · \$0\.1200|105 tok · \$0\.1400)$")
        )
        await window.expect(totals.last).to_have_text("total 45 tok · $0.0600")
        line = window("child-line").filter(has_text="wall")
        await window.expect(line.locator('[data-test="child-cost"]')).to_contain_text("45 tok · $0.0600")
