"""Questions answered by command: from any process, by prefix, once, in time, and never by accident."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from cli_fixture import CliFixture

WORDS = "words\n"


def wants_to_write(*names: str) -> dict[str, Any]:
    calls = [{"name": "write", "args": {"path": name, "content": WORDS}} for name in names]
    return {"tools": calls}


@pytest.fixture
def parked(cli: CliFixture) -> dict[str, Any]:
    """A run without anybody at its terminal that waits for a yes."""
    cli.script_model([wants_to_write("a.txt"), "Written."])
    ran = cli("run", "--json", "write it")
    assert ran.code == 6
    return ran.json


def test_without_a_terminal_the_run_waits_and_says_what_to_do(cli: CliFixture):
    """Shows: A006, L006, T12."""
    cli.script_model([wants_to_write("a.txt"), "Written."])
    ran = cli("run", "write it")
    assert ran.code == 6
    (asked,) = cli("approvals", "list", "--json").json
    assert (
        f'Approval {asked["id"]} is pending. Show it with "retinue approvals show {asked["id"]}"' in ran.err
    )
    assert 'waits for an approval (see "retinue approvals list")' in ran.err
    assert not (cli.folder / "a.txt").exists()


def test_a_waiting_run_names_its_questions_and_the_row_says_everything(
    cli: CliFixture, parked: dict[str, Any]
):
    """Shows: L006, T10."""
    assert (parked["status"], parked["waiting_for"]) == ("waiting", "approval")
    (asked,) = cli("approvals", "list", "--json").json
    assert parked["approvals"] == [asked["id"]]
    assert asked | {"digest": "", "call": "", "asked_at": "", "expires_at": ""} == {
        "id": asked["id"],
        "run_id": parked["run_id"],
        "session_id": parked["session_id"],
        "agent": "general",
        "call": "",
        "tool": "write",
        "access": "write",
        "resource": f"{cli.folder}/a.txt",
        "args": '{"path":"a.txt","content":"words\\n"}',
        "reason": "no rule allows write there without approval",
        "workspace": str(cli.folder),
        "sandbox": None,
        "files": [],
        "chain": ["person", parked["key"]],
        "add_effect": None,
        "digest": "",
        "state": "pending",
        "asked_at": "",
        "expires_at": "",
        "answered_at": None,
        "answered_by": None,
        "answer": None,
    }
    assert cli("approvals", "show", asked["id"], "--json").json == asked


def test_for_people_the_list_is_a_table_and_one_question_is_the_whole_card(
    cli: CliFixture, parked: dict[str, Any]
):
    listed = cli("approvals", "list")
    assert listed.out.split("\n")[0].split() == ["APPROVAL", "STATE", "WHO", "WANTS", "UNTIL"]
    assert listed.out.split("\n")[1].split()[:4] == [parked["approvals"][0], "pending", "general", "write"]
    shown = cli("approvals", "show", parked["approvals"][0])
    assert shown.code == 0
    for line in (
        f"approval {parked['approvals'][0]}",
        f"  person > {parked['key']}",
        "  wants: write",
        f"    {cli.folder}/a.txt",
        "  content:",
        "    words",
        "  requires approval: no rule allows write there without approval",
        "pending",
    ):
        assert line in shown.out.split("\n")


def test_with_nobody_working_it_the_answer_carries_the_run_to_its_end(
    cli: CliFixture, parked: dict[str, Any]
):
    """Shows: L006."""
    (asked,) = parked["approvals"]
    ran = cli("approvals", "answer", asked, "allow", "--json")
    assert (ran.code, ran.json["id"], ran.json["state"]) == (0, asked, "used")
    assert ran.json["run"].keys() == parked.keys()
    assert (ran.json["run"]["status"], ran.json["run"]["text"]) == ("done", "Written.")
    assert ran.json["run_id"] == ran.json["run"]["run_id"] == parked["run_id"]
    (row,) = cli("approvals", "list", "--all", "--json").json
    assert ran.json == row | {"run": ran.json["run"]}
    assert (cli.folder / "a.txt").read_text() == WORDS
    assert cli("approvals", "list", "--json").json == []
    (row,) = cli("approvals", "list", "--all", "--json").json
    assert (row["state"], row["answer"], row["answered_by"]) == ("used", "allow", "person")
    assert cli("approvals", "show", asked).out.rstrip().endswith("used: person said allow")


def test_a_no_by_command_goes_on_without_the_call(cli: CliFixture, parked: dict[str, Any]):
    """Shows: A007."""
    ran = cli("approvals", "answer", parked["approvals"][0], "deny")
    assert (ran.code, ran.out) == (0, "Written.\n")
    assert not (cli.folder / "a.txt").exists()
    assert "person denied it" in Path(parked["path"]).read_text()


def test_a_prefix_is_enough_when_only_one_begins_so(cli: CliFixture):
    cli.script_model([wants_to_write("a.txt", "b.txt"), "Done."])
    assert cli("run", "--json", "write them").code == 6
    first, second = (row["id"] for row in cli("approvals", "list", "--json").json)
    both = cli("approvals", "show", first[:4])
    assert (both.code, first in both.err, second in both.err) == (2, True, True)
    one = next(first[:size] for size in range(1, 27) if not second.startswith(first[:size]))
    assert cli("approvals", "show", one, "--json").json["id"] == first
    half = cli("approvals", "answer", one, "allow", "--json")
    assert (half.code, half.json["state"]) == (6, "used")
    assert (half.json["run"]["status"], half.json["run"]["approvals"]) == ("waiting", [second])
    assert [(cli.folder / name).exists() for name in ("a.txt", "b.txt")] == [True, False]
    assert cli("approvals", "answer", second, "deny", "--json").json["run"]["status"] == "done"


def test_the_first_answer_counts(cli: CliFixture, parked: dict[str, Any]):
    (asked,) = parked["approvals"]
    assert cli("approvals", "answer", asked, "deny").code == 0
    for word in ("allow", "deny"):
        again = cli("approvals", "answer", asked, word, "--json")
        assert (again.code, again.json["error"]["code"]) == (3, "conflict")
        assert f"approval {asked} is denied already" in again.err
    assert not (cli.folder / "a.txt").exists()


def test_what_cannot_be_answered_is_told_with_its_own_exit_code(cli: CliFixture, parked: dict[str, Any]):
    (asked,) = parked["approvals"]
    for args in (["show", "01NONE"], ["answer", "01NONE", "allow"]):
        unknown = cli("approvals", *args, "--json")
        assert (unknown.code, unknown.json["error"]["code"]) == (7, "not_found")
        assert "retinue approvals list" in unknown.err
    added = cli("approvals", "answer", asked, "add")
    assert (added.code, "answer allow or deny" in added.err) == (3, True)
    assert cli("approvals", "answer", asked, "maybe").code == 2
    for nothing in (("approvals", "answer", "", "allow"), ("approvals", "show", ""), ("runs", "cancel", "")):
        assert cli(*nothing).code == 2
    assert [row["state"] for row in cli("approvals", "list", "--json").json] == ["pending"]


def grown_old(retinue: CliFixture) -> None:
    """Every open question is past its time."""
    with closing(sqlite3.connect(Path(retinue.env["RETINUE_HOME"]) / "ledger.db")) as ledger, ledger:
        ledger.execute(
            "UPDATE approvals SET approval = json_set(approval, '$.expires_at', '2020-01-01T00:00:00Z')"
        )


@pytest.mark.parametrize("command", [("approvals", "list"), ("runs", "list"), ("sessions", "list")])
def test_a_question_that_waited_too_long_is_a_no_and_looking_at_lists_works_nothing(
    cli: CliFixture, parked: dict[str, Any], command: tuple[str, ...]
):
    """Shows: T12."""
    grown_old(cli)
    assert cli(*command, "--json").code == 0
    assert cli("runs", "show", parked["run_id"], "--json").json["turns"] == 1
    late = cli("approvals", "answer", parked["approvals"][0], "allow", "--json")
    assert (late.code, late.json["error"]["code"]) == (3, "conflict")
    assert "expired" in late.err
    assert not (cli.folder / "a.txt").exists()
    resumed = cli("runs", "resume", "--json")
    assert resumed.code == 0
    (run,) = cli("runs", "history", "--json").json
    assert (run["status"], run["text"]) == ("done", "Written.")
    assert "nobody answered within" in Path(run["path"]).read_text()
    assert not (cli.folder / "a.txt").exists()


def test_a_waiting_run_is_cancelled_from_elsewhere_and_its_question_with_it(
    cli: CliFixture, parked: dict[str, Any]
):
    cancelled = cli("runs", "cancel", parked["run_id"], "--json")
    assert (cancelled.code, cancelled.json["status"]) == (0, "cancelled")
    assert cli("approvals", "list", "--json").json == []
    late = cli("approvals", "answer", parked["approvals"][0], "allow")
    assert (late.code, "is void already" in late.err) == (3, True)
    assert not (cli.folder / "a.txt").exists()


def test_more_words_wait_for_the_answer(cli: CliFixture, parked: dict[str, Any]):
    """They are queued behind the run that waits, and answered after it by whoever answers that.

    Shows: C044."""
    more = cli("send", parked["slug"], "and?", "--json")
    assert (more.code, more.json["status"]) == (6, "queued")
    assert more.json["approvals"] == parked["approvals"]
    assert f"Approval {parked['approvals'][0]} is pending" in more.err
    assert (
        f"run {more.json['run_id']} is queued behind another run of {parked['slug']}, which waits for you"
        in more.err
    )
    waiting = cli("wait", more.json["run_id"], "--json")
    assert (waiting.code, waiting.json[0]["status"]) == (6, "queued")
    cli.script_model([wants_to_write("a.txt"), "Written.", "And that was all."])
    answered = cli("approvals", "answer", parked["approvals"][0], "allow")
    assert answered.code == 0, answered.err
    assert "continues with the next queued message: and?" in answered.err
    runs = cli("runs", "history", "--json").json
    assert [(each["status"], each["text"]) for each in runs] == [
        ("done", "And that was all."),
        ("done", "Written."),
    ]


def test_who_joins_a_waiting_run_hears_that_nobody_here_can_answer(cli: CliFixture, parked: dict[str, Any]):
    joined = cli("wait", parked["run_id"], "--json")
    assert joined.code == 6
    assert cli("approvals", "answer", parked["approvals"][0], "allow").code == 0
    assert cli("wait", parked["run_id"], "--json").code == 0


def has_agent(retinue: CliFixture, name: str, front: str = "") -> None:
    folder = Path(retinue.env["RETINUE_CONFIG"]) / "agents"
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.md").write_text(f"---\nname: {name}\n{front}---\nYou help.\n")


def test_the_parent_shows_which_child_waits_for_what_and_how_to_answer(cli: CliFixture):
    """Shows: L006."""
    has_agent(cli, "hand", "tools: [bash]\n")
    handed_on = {"preset": "hand", "description": "do it", "prompt": "Do it."}
    cli.script_model(
        {
            "general": [{"tools": [{"name": "PersistentAgent", "args": handed_on}]}, "Done."],
            "hand": [{"tools": [{"name": "bash", "args": {"command": "echo hi"}}]}, "Ran."],
        }
    )
    parent = cli("run", "--json", "go").json
    (own,) = cli("sessions", "show", parent["slug"], "--json").json["approvals"]
    assert (own["id"], own["slug"], own["tool"]) == (
        parent["approvals"][0],
        parent["slug"],
        "PersistentAgent",
    )
    assert f"{parent['slug']} waits for an approval: PersistentAgent\n" in (
        cli("sessions", "show", parent["slug"]).out
    )
    assert cli("approvals", "answer", own["id"], "allow").code == 6
    (asked,) = cli("approvals", "list", "--json").json
    child = next(row for row in cli("sessions", "list", "--json").json if row["agent"] == "hand")
    for reference in (parent["slug"], child["slug"]):
        (seen,) = cli("sessions", "show", reference, "--json").json["approvals"]
        assert seen == asked | {"slug": child["slug"]}
    shown = cli("sessions", "show", parent["slug"]).out
    assert f"\n{child['slug']} waits for an approval: bash echo hi\n" in shown
    assert f"retinue approvals answer {asked['id']} allow (or deny)" in shown
    other = cli("run", "--agent", "hand", "--json", "go").json
    assert asked["id"] not in cli("sessions", "show", other["slug"]).out
    answered = cli("approvals", "answer", asked["id"], "allow", "--json")
    assert (answered.code, answered.json.keys()) == (0, asked.keys() | {"run"})
    assert answered.json["run"].keys() == parent.keys()
    assert answered.json["run"]["text"] == "Ran."
    assert cli("sessions", "show", parent["slug"], "--json").json["approvals"] == []


def test_a_question_that_nobody_can_answer_any_more_is_not_shown_with_its_session(
    cli: CliFixture, parked: dict[str, Any]
):
    assert len(cli("sessions", "show", parked["slug"], "--json").json["approvals"]) == 1
    grown_old(cli)
    assert cli("sessions", "show", parked["slug"], "--json").json["approvals"] == []


def test_the_card_names_the_files_of_a_command_and_another_script_is_another_question(cli: CliFixture):
    """Shows: T10."""
    script = cli.folder / "run.sh"
    script.write_text("touch good\n")
    cli.script_model([{"tools": [{"name": "bash", "args": {"command": "sh run.sh"}}]}, "Ran."])
    (first,) = cli("run", "--json", "run it").json["approvals"]
    (file,) = cli("approvals", "show", first, "--json").json["files"]
    assert (file["path"], file["size"]) == (str(script), 11)
    shown = cli("approvals", "show", first).out
    assert f"    {script}  11 bytes  sha256 {file['sha256']}\n" in shown
    script.write_text("touch evil\n")
    again = cli("approvals", "answer", first, "allow", "--json")
    assert again.code == 6
    (second,) = cli("approvals", "list", "--json").json
    assert second["reason"] == f"changed since you were asked: {script}"
    assert second["files"][0]["sha256"] != file["sha256"]
    assert cli("approvals", "answer", second["id"], "allow").code == 0
    assert [(cli.folder / name).exists() for name in ("good", "evil")] == [False, True]
