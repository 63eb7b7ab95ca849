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
    daemon: PageDaemon, tmp_path: Path
):
    """Shows: D034."""
    daemon.write_config(prices={"test-model": {"input": 1000, "output": 2000}})
    step = daemon.script_task("Lay the stones.", text_reply("Laid."))
    goal = daemon.script_task(
        "Build the wall.",
        tool_call_reply(("spawn_subagent", {"agentId": "explorer", "prompt": step, "label": "stones"})),
        text_reply("The wall stands."),
    )
    daemon.script_task("handed to a reviewer", text_reply("One port is wrong."))
    task = daemon.script_task(
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
    session = await daemon.create_session(workspace=str(folder))
    async with daemon.open_page(1440, 900) as window:
        await window.open_session(session["session_id"])
        await window.send_message(task)
        await window.expect(window("said-agent").last.locator(".prose")).to_have_text("Built.")
        await daemon.wait_until_idle()
        await window("open-inbox").click()
        for who, kind, says in (
            ("orchestrator", ["orchestrator"], "The wall stands."),
            ("reviewer", ["review"], "One port is wrong."),
            ("explorer", [], "Laid."),
        ):
            row = window("inbox-row", status="complete").filter(
                has=window.page.locator(f'b:text-is("{who}")')
            )
            await window.expect(row).to_contain_text(says)
            await window.expect(row.locator('[data-test="inbox-kind"]')).to_have_text(kind)
        step_row = window("inbox-row").filter(has_text="stones")
        await window.expect(step_row).to_contain_text("for orchestrator-")
        await window("tab-runs").click()
        tree = window("run").filter(has_text="Have it built").first
        # 10 tokens in and 5 out a reply: of general two, or one more when the review came late; two of the orchestrator.
        sums = tree.locator('[data-test="run-sum"]')
        await window.expect(sums.first).to_have_text(
            re.compile(r"^in all (90 tok · \$0\.1200|105 tok · \$0\.1400)$")
        )
        await window.expect(sums.last).to_have_text("in all 45 tok · $0.0600")
        built = window("child-line").filter(has_text="wall")
        await window.expect(built.locator('[data-test="child-cost"]')).to_contain_text("45 tok · $0.0600")
