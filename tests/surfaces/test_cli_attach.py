"""Joining what is under way: wait for runs, attach to a session, and look at a tree of runs."""

import json
import signal
from pathlib import Path
from subprocess import Popen
from typing import Any

import pytest
from cli_fixture import CliFixture, WaitUntil

PLAIN = {"NO_COLOR": "1", "COLUMNS": "100"}
HANDED_ON = {"preset": "researcher", "description": "analyze patterns", "prompt": "Look."}
TREE = {
    "general": [
        {"text": "I ask others.", "tools": [{"tool": "PersistentAgent", "args": HANDED_ON}]},
        "They know.",
    ],
    "researcher": [{"text": "I hold.", "tools": [{"tool": "hold", "args": {"name": "gate"}}]}, "Found."],
}


@pytest.fixture
def tree(gated_cli: CliFixture, wait_until: WaitUntil) -> list[dict[str, Any]]:
    """A parent that waits for its child, worked by another process: the child's row, then the parent's."""
    gated_cli.script_model(TREE)
    gated_cli.start("run", "ask")

    def both() -> Any:
        live = gated_cli("runs", "list", "--json").json
        states = [(run["agent"], run["status"]) for run in live]
        return live if states == [("researcher", "running"), ("general", "waiting")] else None

    return wait_until(both)


def opened(cli: CliFixture) -> None:
    (cli.folder / "gate").unlink()


def with_child(lines: list[str]) -> bool:
    return any("researcher#2 running" in line for line in lines)


def alone(lines: list[str]) -> bool:
    return len(lines) == 1 and lines[0].startswith("general#1 running")


def began(process: Popen[bytes], cli: CliFixture, eventually: WaitUntil, count: int) -> None:
    """Once a command works here there is one owner more."""
    owners = Path(cli.env["RETINUE_HOME"]) / "owners"
    eventually(lambda: len(list(owners.iterdir())) >= count)
    assert process.poll() is None


def test_runs_are_listed_as_a_tree_and_as_a_flat_array(gated_cli: CliFixture, tree: list[dict[str, Any]]):
    """Shows: D033, E021, E031."""
    listed = gated_cli("subagent", "list")
    heading, parent, child = listed.out.splitlines()
    assert heading.split() == ["WHO", "TIME", "TURNS", "TOOLS", "TOKENS", "RUN", "SESSION", "DOES"]
    assert parent.startswith("general#1 waiting for child  ")
    assert child.startswith("  researcher#2 running  ")
    assert [tree[1]["run_id"] in parent, tree[0]["run_id"] in child] == [True, True]
    assert parent.split()[5:7] == ["1", "1"]
    assert child.endswith("analyze patterns")
    assert [set(row) for row in tree] == [set(tree[0])] * 2
    assert tree[1]["children"] == [tree[0]["run_id"]]


def test_a_run_is_shown_in_words_with_those_it_asked_for(gated_cli: CliFixture, tree: list[dict[str, Any]]):
    """Shows: E032."""
    child, parent = tree
    shown = gated_cli("subagent", "show", parent["run_id"]).out.splitlines()
    assert shown[0].startswith("general#1 waiting for child, ")
    assert shown[1] == "Requested by person: ask"
    assert shown[2].startswith("1 turn, 1 tool call, ")
    assert shown[3].startswith("Total with sub-agents: ")
    assert shown[4] == "Result: I ask others."
    assert shown[5].startswith("  researcher#2 running, ")
    assert shown[5].endswith(f"s: analyze patterns ({child['run_id']})")
    assert shown[-1] == f'Stop it with "retinue runs cancel {parent["run_id"]}".'
    below = gated_cli("runs", "show", child["run_id"]).out
    assert f"Requested by general#1 ({parent['run_id']}): Look." in below
    opened(gated_cli)
    assert gated_cli("wait", parent["run_id"]).code == 0
    ended = gated_cli("runs", "show", parent["run_id"]).out.splitlines()
    assert ended[0].startswith("general#1 done, ")
    assert not any("cancel" in line for line in ended)


def test_a_child_is_cancelled_by_its_id_and_its_parent_goes_on(
    gated_cli: CliFixture, tree: list[dict[str, Any]]
):
    """Shows: E033."""
    child, parent = tree
    assert gated_cli("subagent", "cancel", child["run_id"], "--json").json["status"] == "cancelled"
    assert gated_cli("wait", parent["run_id"]).code == 0
    assert "Error: User aborted agent" in Path(parent["path"]).read_text()
    opened(gated_cli)


def test_wait_stays_until_all_have_ended_and_tells_the_worst(
    gated_cli: CliFixture, tree: list[dict[str, Any]], wait_until: WaitUntil
):
    child, parent = tree
    gated_cli.script_model([{"error": "the server is on fire"}])
    failed = gated_cli("run", "--json", "fail").json
    waiting = gated_cli.start("wait", "--json", failed["run_id"], parent["run_id"], child["run_id"])
    began(waiting, gated_cli, wait_until, 2)
    opened(gated_cli)
    out, err = waiting.communicate(timeout=30)
    assert [(run["agent"], run["status"], run["text"]) for run in json.loads(out)] == [
        ("general", "failed", ""),
        ("general", "done", "They know."),
        ("researcher", "done", "Found."),
    ]
    assert waiting.returncode == 1, err
    assert "the server is on fire" in err.decode()


def test_wait_says_the_words_of_several_in_the_order_they_were_asked_for(
    gated_cli: CliFixture, tree: list[dict[str, Any]]
):
    opened(gated_cli)
    ran = gated_cli("wait", tree[0]["run_id"], tree[1]["run_id"], tree[0]["run_id"])
    assert (ran.code, ran.out) == (0, "Found.\nThey know.\n")
    assert gated_cli("wait", tree[0]["run_id"], "nothing").code == 7


def test_wait_takes_up_a_whole_tree_whose_process_died(gated_cli: CliFixture, wait_until: WaitUntil):
    gated_cli.script_model(TREE)
    process = gated_cli.start("run", "ask")
    live = wait_until(
        lambda: [run for run in gated_cli("runs", "list", "--json").json if len(run["children"])]
    )
    process.send_signal(signal.SIGKILL)
    process.wait(30)
    opened(gated_cli)
    ran = gated_cli("wait", live[0]["run_id"])
    assert (ran.code, ran.out) == (0, "They know.\n")
    assert gated_cli("runs", "list", "--json").json == []


def test_whoever_waits_may_leave_and_the_run_goes_on(gated_cli: CliFixture, tree: list[dict[str, Any]]):
    parent = tree[1]["run_id"]
    screen = gated_cli.open_terminal("wait", parent, **PLAIN)
    screen.wait_for_screen(with_child)
    screen.press("c")
    code, _ = screen.wait_for_exit()
    assert code == 5
    assert f'Run {parent} is waiting. Stop it with "retinue runs cancel {parent}".' in "".join(
        screen.screen_lines()
    )
    assert gated_cli("runs", "show", parent, "--json").json["status"] == "waiting"
    opened(gated_cli)
    assert gated_cli("wait", parent).out == "They know.\n"


def test_a_terminal_shows_the_tree_of_another_process(gated_cli: CliFixture, tree: list[dict[str, Any]]):
    """Shows: D033."""
    screen = gated_cli.open_terminal("wait", tree[1]["run_id"], **PLAIN)
    lines = screen.wait_for_screen(with_child)
    assert "researcher#2 running" in lines[-4]
    assert lines[-1].startswith("general#1 waiting")
    opened(gated_cli)
    assert screen.wait_for_exit()[0] == 0
    assert screen.screen_lines() == ["They know."]


def test_what_another_process_did_meanwhile_is_seen_in_place(gated_cli: CliFixture, wait_until: WaitUntil):
    """Shows: A072."""
    (gated_cli.folder / "again").touch()
    held = {"tools": [{"tool": "hold", "args": {"name": "again"}}]}
    gated_cli.script_model(TREE | {"general": [TREE["general"][0], held, "They know."]})
    gated_cli.start("run", "ask")
    parent = wait_until(
        lambda: [run for run in gated_cli("runs", "list", "--json").json if len(run["children"])]
    )
    screen = gated_cli.open_terminal("wait", parent[0]["run_id"], **PLAIN)
    screen.wait_for_screen(with_child)
    opened(gated_cli)
    screen.wait_for_screen(alone)
    (gated_cli.folder / "again").unlink()
    assert screen.wait_for_exit()[0] == 0
    assert screen.screen_lines() == ["They know."]


def test_attach_reads_what_another_process_says(
    gated_cli: CliFixture, tree: list[dict[str, Any]], wait_until: WaitUntil
):
    parent = tree[1]
    attached = gated_cli.start("attach", parent["slug"])
    began(attached, gated_cli, wait_until, 2)
    opened(gated_cli)
    out, err = attached.communicate(timeout=30)
    assert attached.returncode == 0, err
    assert out.decode().endswith("They know.\n")
    assert f"general in {parent['slug']}" in err.decode()


def test_attach_goes_on_with_what_was_interrupted(gated_cli: CliFixture, wait_until: WaitUntil):
    gated_cli.script_model(TREE)
    process = gated_cli.start("run", "ask")
    live = wait_until(
        lambda: [run for run in gated_cli("runs", "list", "--json").json if len(run["children"])]
    )
    process.send_signal(signal.SIGKILL)
    process.wait(30)
    opened(gated_cli)
    ran = gated_cli("attach", live[0]["session_id"], "--json")
    assert (ran.code, [(run["status"], run["text"]) for run in ran.json]) == (0, [("done", "They know.")])


def test_attach_to_a_quiet_session_says_so_and_leaves(gated_cli: CliFixture):
    gated_cli.script_model(["Hello."])
    talked = gated_cli("run", "hi", "--json").json
    ran = gated_cli("attach", talked["slug"])
    assert (ran.code, ran.out) == (0, "")
    assert (
        f'No run is active in {talked["slug"]}. Send it a message with "retinue send {talked["slug"]} TEXT".'
        in ran.err
    )
    assert gated_cli("attach", talked["slug"], "--json").out == "[]\n"
    assert gated_cli("attach", "nobody-there").code == 7


def test_attach_puts_the_questions_of_a_session_to_whoever_is_there(cli: CliFixture):
    wish = {"tools": [{"tool": "write", "args": {"path": "a.txt", "content": "words"}}]}
    cli.script_model([wish, "Written."])
    asked = cli("run", "write", "--json")
    assert asked.code == 6
    assert cli("attach", asked.json["slug"]).code == 6
    screen = cli.open_terminal("attach", asked.json["slug"], **PLAIN)
    screen.wait_for_text("[y]es")
    screen.type("y\n")
    screen.wait_for_text("Written.")
    assert screen.wait_for_exit()[0] == 0
    assert (cli.folder / "a.txt").read_text() == "words"


def test_on_a_terminal_attach_shows_the_tree_and_leaving_stops_nothing(
    gated_cli: CliFixture, tree: list[dict[str, Any]]
):
    screen = gated_cli.open_terminal("attach", tree[1]["slug"], **PLAIN)
    screen.wait_for_screen(with_child)
    screen.press("c")
    assert screen.wait_for_exit()[0] == 0
    assert not [line for line in screen.screen_lines() if line.startswith(("─", "general#"))]
    assert len(gated_cli("runs", "list", "--json").json) == 2
    opened(gated_cli)
    assert gated_cli("wait", tree[1]["run_id"]).code == 0
