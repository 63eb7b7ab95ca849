"""Joining active runs: `wait`, `attach`, and the tree of runs."""

import json
import signal
from pathlib import Path
from subprocess import Popen
from typing import Any

import pytest
from cli_fixture import CliFixture, WaitUntil

PLAIN = {"NO_COLOR": "1", "COLUMNS": "100"}
DELEGATE_ARGS = {"preset": "researcher", "description": "analyze patterns", "prompt": "Look."}
TREE = {
    "general": [
        {"text": "I ask others.", "tools": [{"tool": "PersistentAgent", "args": DELEGATE_ARGS}]},
        "They know.",
    ],
    "researcher": [{"text": "I hold.", "tools": [{"tool": "hold", "args": {"name": "gate"}}]}, "Found."],
}


@pytest.fixture
def tree(gated_cli: CliFixture, wait_until: WaitUntil) -> list[dict[str, Any]]:
    """The runs of a child and its waiting parent, executed by another process, child first."""
    gated_cli.script_model(TREE)
    gated_cli.start("run", "ask")

    def live_tree() -> Any:
        live = gated_cli("runs", "list", "--json").json
        states = [(run["agent"], run["status"]) for run in live]
        return live if states == [("researcher", "running"), ("general", "waiting")] else None

    return wait_until(live_tree)


def shows_child(lines: list[str]) -> bool:
    return any("researcher#2 running" in line for line in lines)


def shows_only_parent(lines: list[str]) -> bool:
    return len(lines) == 1 and lines[0].startswith("general#1 running")


def wait_for_owners(process: Popen[bytes], cli: CliFixture, wait_until: WaitUntil, count: int) -> None:
    """Wait until as many processes have opened the home."""
    owners = Path(cli.env["RETINUE_HOME"]) / "owners"
    wait_until(lambda: len(list(owners.iterdir())) >= count)
    assert process.poll() is None


def start_and_kill_tree(gated_cli: CliFixture, wait_until: WaitUntil) -> dict[str, Any]:
    """Kill the process of a parent that waits for its child, and return the run of the parent."""
    gated_cli.script_model(TREE)
    process = gated_cli.start("run", "ask")
    parents = wait_until(
        lambda: [run for run in gated_cli("runs", "list", "--json").json if len(run["children"])]
    )
    process.send_signal(signal.SIGKILL)
    process.wait(30)
    return parents[0]


def test_runs_are_listed_as_a_tree_and_as_a_flat_array(gated_cli: CliFixture, tree: list[dict[str, Any]]):
    """Shows: D033, E021, E031."""
    output = gated_cli("subagent", "list")
    heading, parent, child = output.out.splitlines()
    assert heading.split() == ["AGENT", "TIME", "TURNS", "TOOLS", "TOKENS", "RUN", "SESSION", "TASK"]
    assert parent.startswith("general#1 waiting for child  ")
    assert child.startswith("  researcher#2 running  ")
    assert [tree[1]["run_id"] in parent, tree[0]["run_id"] in child] == [True, True]
    assert parent.split()[5:7] == ["1", "1"]
    assert child.endswith("analyze patterns")
    assert [set(row) for row in tree] == [set(tree[0])] * 2
    assert tree[1]["children"] == [tree[0]["run_id"]]


def test_a_run_is_shown_with_its_child_runs(gated_cli: CliFixture, tree: list[dict[str, Any]]):
    """Shows: E032."""
    child, parent = tree
    lines = gated_cli("subagent", "show", parent["run_id"]).out.splitlines()
    assert lines[0].startswith("general#1 waiting for child, ")
    assert lines[1] == "Requested by person: ask"
    assert lines[2].startswith("1 turn, 1 tool call, ")
    assert lines[3].startswith("Total with sub-agents: ")
    assert lines[4] == "Last message: I ask others."
    assert lines[5].startswith("  researcher#2 running, ")
    assert lines[5].endswith(f"s: analyze patterns ({child['run_id']})")
    assert lines[-1] == f'Stop it with "retinue runs cancel {parent["run_id"]}".'
    child_output = gated_cli("runs", "show", child["run_id"]).out
    assert f"Requested by general#1 ({parent['run_id']}): Look." in child_output
    gated_cli.open_gate()
    assert gated_cli("wait", parent["run_id"]).code == 0
    ended_lines = gated_cli("runs", "show", parent["run_id"]).out.splitlines()
    assert ended_lines[0].startswith("general#1 done, ")
    assert not any("cancel" in line for line in ended_lines)


def test_a_child_is_cancelled_by_its_id_and_its_parent_continues(
    gated_cli: CliFixture, tree: list[dict[str, Any]]
):
    """Shows: E033."""
    child, parent = tree
    assert gated_cli("subagent", "cancel", child["run_id"], "--json").json["status"] == "cancelled"
    assert gated_cli("wait", parent["run_id"]).code == 0
    assert "Error: User aborted agent" in Path(parent["path"]).read_text()
    gated_cli.open_gate()


def test_wait_returns_once_all_runs_have_ended_and_exits_with_the_worst_code(
    gated_cli: CliFixture, tree: list[dict[str, Any]], wait_until: WaitUntil
):
    child, parent = tree
    gated_cli.script_model([{"error": "the server is on fire"}])
    failed = gated_cli("run", "--json", "fail").json
    waiting = gated_cli.start("wait", "--json", failed["run_id"], parent["run_id"], child["run_id"])
    wait_for_owners(waiting, gated_cli, wait_until, 2)
    gated_cli.open_gate()
    out, err = waiting.communicate(timeout=30)
    assert [(run["agent"], run["status"], run["text"]) for run in json.loads(out)] == [
        ("general", "failed", ""),
        ("general", "done", "They know."),
        ("researcher", "done", "Found."),
    ]
    assert waiting.returncode == 1, err
    assert "the server is on fire" in err.decode()


def test_wait_prints_results_in_the_order_of_its_arguments_without_repetition(
    gated_cli: CliFixture, tree: list[dict[str, Any]]
):
    gated_cli.open_gate()
    result = gated_cli("wait", tree[0]["run_id"], tree[1]["run_id"], tree[0]["run_id"])
    assert (result.code, result.out) == (0, "Found.\nThey know.\n")
    assert gated_cli("wait", tree[0]["run_id"], "nothing").code == 7


def test_wait_continues_a_tree_of_runs_whose_process_died(gated_cli: CliFixture, wait_until: WaitUntil):
    parent = start_and_kill_tree(gated_cli, wait_until)
    gated_cli.open_gate()
    result = gated_cli("wait", parent["run_id"])
    assert (result.code, result.out) == (0, "They know.\n")
    assert gated_cli("runs", "list", "--json").json == []


def test_ctrl_c_ends_wait_and_the_run_continues(gated_cli: CliFixture, tree: list[dict[str, Any]]):
    parent = tree[1]["run_id"]
    screen = gated_cli.open_terminal("wait", parent, **PLAIN)
    screen.wait_for_screen(shows_child)
    screen.press("c")
    code, _ = screen.wait_for_exit()
    assert code == 5
    assert f'Run {parent} is waiting. Stop it with "retinue runs cancel {parent}".' in "".join(
        screen.screen_lines()
    )
    assert gated_cli("runs", "show", parent, "--json").json["status"] == "waiting"
    gated_cli.open_gate()
    assert gated_cli("wait", parent).out == "They know.\n"


def test_wait_shows_the_tree_of_another_process(gated_cli: CliFixture, tree: list[dict[str, Any]]):
    """Shows: D033."""
    screen = gated_cli.open_terminal("wait", tree[1]["run_id"], **PLAIN)
    lines = screen.wait_for_screen(shows_child)
    assert "researcher#2 running" in lines[-4]
    assert lines[-1].startswith("general#1 waiting")
    gated_cli.open_gate()
    assert screen.wait_for_exit()[0] == 0
    assert screen.screen_lines() == ["They know."]


def test_wait_updates_the_tree_when_another_process_ends_a_child(
    gated_cli: CliFixture, wait_until: WaitUntil
):
    """Shows: A072."""
    (gated_cli.folder / "again").touch()
    hold_call = {"tools": [{"tool": "hold", "args": {"name": "again"}}]}
    gated_cli.script_model(TREE | {"general": [TREE["general"][0], hold_call, "They know."]})
    gated_cli.start("run", "ask")
    parents = wait_until(
        lambda: [run for run in gated_cli("runs", "list", "--json").json if len(run["children"])]
    )
    screen = gated_cli.open_terminal("wait", parents[0]["run_id"], **PLAIN)
    screen.wait_for_screen(shows_child)
    gated_cli.open_gate()
    screen.wait_for_screen(shows_only_parent)
    (gated_cli.folder / "again").unlink()
    assert screen.wait_for_exit()[0] == 0
    assert screen.screen_lines() == ["They know."]


def test_attach_prints_the_reply_of_another_process(
    gated_cli: CliFixture, tree: list[dict[str, Any]], wait_until: WaitUntil
):
    parent = tree[1]
    attached = gated_cli.start("attach", parent["slug"])
    wait_for_owners(attached, gated_cli, wait_until, 2)
    gated_cli.open_gate()
    out, err = attached.communicate(timeout=30)
    assert attached.returncode == 0, err
    assert out.decode().endswith("They know.\n")
    assert f"general in {parent['slug']}" in err.decode()


def test_attach_continues_an_interrupted_run(gated_cli: CliFixture, wait_until: WaitUntil):
    parent = start_and_kill_tree(gated_cli, wait_until)
    gated_cli.open_gate()
    result = gated_cli("attach", parent["session_id"], "--json")
    assert (result.code, [(run["status"], run["text"]) for run in result.json]) == (
        0,
        [("done", "They know.")],
    )


def test_attach_to_an_idle_session_prints_a_notice_and_exits(gated_cli: CliFixture):
    gated_cli.script_model(["Hello."])
    run = gated_cli("run", "hi", "--json").json
    result = gated_cli("attach", run["slug"])
    assert (result.code, result.out) == (0, "")
    assert (
        f'No run is active in {run["slug"]}. Send it a message with "retinue send {run["slug"]} TEXT".'
        in result.err
    )
    assert gated_cli("attach", run["slug"], "--json").out == "[]\n"
    assert gated_cli("attach", "nobody-there").code == 7


def test_attach_asks_for_the_approvals_of_a_session_on_a_terminal(cli: CliFixture):
    write_call = {"tools": [{"tool": "write", "args": {"path": "a.txt", "content": "words"}}]}
    cli.script_model([write_call, "Written."])
    waiting = cli("run", "write", "--json")
    assert waiting.code == 6
    assert cli("attach", waiting.json["slug"]).code == 6
    screen = cli.open_terminal("attach", waiting.json["slug"], **PLAIN)
    screen.wait_for_text("[y]es")
    screen.type("y\n")
    screen.wait_for_text("Written.")
    assert screen.wait_for_exit()[0] == 0
    assert (cli.folder / "a.txt").read_text() == "words"


def test_leaving_attach_removes_the_tree_and_stops_no_run(gated_cli: CliFixture, tree: list[dict[str, Any]]):
    screen = gated_cli.open_terminal("attach", tree[1]["slug"], **PLAIN)
    screen.wait_for_screen(shows_child)
    screen.press("c")
    assert screen.wait_for_exit()[0] == 0
    assert not [line for line in screen.screen_lines() if line.startswith(("─", "general#"))]
    assert len(gated_cli("runs", "list", "--json").json) == 2
    gated_cli.open_gate()
    assert gated_cli("wait", tree[1]["run_id"]).code == 0
