"""`retinue approvals`: answers from any process, by prefix, once, and in time."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from cli_fixture import CliFixture

CONTENT = "words\n"


def write_calls(*names: str) -> dict[str, Any]:
    calls = [{"name": "write", "args": {"path": name, "content": CONTENT}} for name in names]
    return {"tools": calls}


@pytest.fixture
def waiting_run(cli: CliFixture) -> dict[str, Any]:
    """A run without a terminal that waits for an approval."""
    cli.script_model([write_calls("a.txt"), "Written."])
    result = cli("run", "--json", "write it")
    assert result.code == 6
    return result.json


def test_without_a_terminal_a_run_waits_for_approval_and_reports_what_to_do(cli: CliFixture):
    """Shows: A006, L006, T12."""
    cli.script_model([write_calls("a.txt"), "Written."])
    result = cli("run", "write it")
    assert result.code == 6
    (approval,) = cli("approvals", "list", "--json").json
    assert (
        f'Approval {approval["id"]} is pending. View it with "retinue approvals show {approval["id"]}"'
        in result.err
    )
    assert 'is waiting for approval (see "retinue approvals list")' in result.err
    assert not (cli.folder / "a.txt").exists()


def test_a_waiting_run_names_its_approvals_and_the_approval_has_all_fields(
    cli: CliFixture, waiting_run: dict[str, Any]
):
    """Shows: L006, T10."""
    assert (waiting_run["status"], waiting_run["waiting_for"]) == ("waiting", "approval")
    (approval,) = cli("approvals", "list", "--json").json
    assert waiting_run["approvals"] == [approval["id"]]
    assert approval | {"digest": "", "call": "", "asked_at": "", "expires_at": ""} == {
        "id": approval["id"],
        "run_id": waiting_run["run_id"],
        "session_id": waiting_run["session_id"],
        "agent": "general",
        "call": "",
        "tool": "write",
        "access": "write",
        "resource": f"{cli.folder}/a.txt",
        "args": '{"path":"a.txt","content":"words\\n"}',
        "reason": "not preapproved by any rule",
        "workspace": str(cli.folder),
        "sandbox": None,
        "files": [],
        "files_note": None,
        "chain": ["person", waiting_run["key"]],
        "add_effect": None,
        "warning": None,
        "digest": "",
        "state": "pending",
        "asked_at": "",
        "expires_at": "",
        "answered_at": None,
        "answered_by": None,
        "answer": None,
    }
    assert cli("approvals", "show", approval["id"], "--json").json == approval


def test_approvals_are_listed_as_a_table_and_shown_as_a_card(cli: CliFixture, waiting_run: dict[str, Any]):
    table = cli("approvals", "list")
    assert table.out.split("\n")[0].split() == ["APPROVAL", "STATE", "AGENT", "REQUEST", "EXPIRES"]
    assert table.out.split("\n")[1].split()[:4] == [
        waiting_run["approvals"][0],
        "pending",
        "general",
        "write",
    ]
    card = cli("approvals", "show", waiting_run["approvals"][0])
    assert card.code == 0
    for line in (
        f"approval {waiting_run['approvals'][0]}",
        f"  person > {waiting_run['key']}",
        "  requests: write",
        f"    {cli.folder}/a.txt",
        "  content:",
        "    words",
        "  requires approval: not preapproved by any rule",
        "pending",
    ):
        assert line in card.out.split("\n")


def test_answering_an_approval_continues_a_run_that_no_process_executes(
    cli: CliFixture, waiting_run: dict[str, Any]
):
    """Shows: L006."""
    (approval_id,) = waiting_run["approvals"]
    result = cli("approvals", "answer", approval_id, "allow", "--json")
    assert (result.code, result.json["id"], result.json["state"]) == (0, approval_id, "used")
    assert result.json["run"].keys() == waiting_run.keys()
    assert (result.json["run"]["status"], result.json["run"]["text"]) == ("done", "Written.")
    assert result.json["run_id"] == result.json["run"]["run_id"] == waiting_run["run_id"]
    (row,) = cli("approvals", "list", "--all", "--json").json
    assert result.json == row | {"run": result.json["run"]}
    assert (cli.folder / "a.txt").read_text() == CONTENT
    assert cli("approvals", "list", "--json").json == []
    (row,) = cli("approvals", "list", "--all", "--json").json
    assert (row["state"], row["answer"], row["answered_by"]) == ("used", "allow", "person")
    assert cli("approvals", "show", approval_id).out.rstrip().endswith("used: person answered allow")


def test_after_a_denial_the_run_continues_without_the_call(cli: CliFixture, waiting_run: dict[str, Any]):
    """Shows: A007."""
    result = cli("approvals", "answer", waiting_run["approvals"][0], "deny")
    assert (result.code, result.out) == (0, "Written.\n")
    assert not (cli.folder / "a.txt").exists()
    assert "person denied it" in Path(waiting_run["path"]).read_text()


def test_an_unambiguous_prefix_of_an_approval_id_is_enough(cli: CliFixture):
    cli.script_model([write_calls("a.txt", "b.txt"), "Done."])
    assert cli("run", "--json", "write them").code == 6
    first, second = (row["id"] for row in cli("approvals", "list", "--json").json)
    ambiguous = cli("approvals", "show", first[:4])
    assert (ambiguous.code, first in ambiguous.err, second in ambiguous.err) == (2, True, True)
    prefix = next(first[:size] for size in range(1, 27) if not second.startswith(first[:size]))
    assert cli("approvals", "show", prefix, "--json").json["id"] == first
    answered = cli("approvals", "answer", prefix, "allow", "--json")
    assert (answered.code, answered.json["state"]) == (6, "used")
    assert (answered.json["run"]["status"], answered.json["run"]["approvals"]) == ("waiting", [second])
    assert [(cli.folder / name).exists() for name in ("a.txt", "b.txt")] == [True, False]
    assert cli("approvals", "answer", second, "deny", "--json").json["run"]["status"] == "done"


def test_only_the_first_answer_counts(cli: CliFixture, waiting_run: dict[str, Any]):
    (approval_id,) = waiting_run["approvals"]
    assert cli("approvals", "answer", approval_id, "deny").code == 0
    for answer in ("allow", "deny"):
        second_answer = cli("approvals", "answer", approval_id, answer, "--json")
        assert (second_answer.code, second_answer.json["error"]["code"]) == (3, "conflict")
        assert f"approval {approval_id} cannot be answered any more: it is denied" in second_answer.err
    assert not (cli.folder / "a.txt").exists()


def test_an_invalid_answer_is_refused_with_a_matching_exit_code(cli: CliFixture, waiting_run: dict[str, Any]):
    (approval_id,) = waiting_run["approvals"]
    for args in (["show", "01NONE"], ["answer", "01NONE", "allow"]):
        unknown = cli("approvals", *args, "--json")
        assert (unknown.code, unknown.json["error"]["code"]) == (7, "not_found")
        assert "retinue approvals list" in unknown.err
    added = cli("approvals", "answer", approval_id, "add")
    assert (added.code, "answer allow or deny" in added.err) == (3, True)
    assert cli("approvals", "answer", approval_id, "maybe").code == 2
    for command in (("approvals", "answer", "", "allow"), ("approvals", "show", ""), ("runs", "cancel", "")):
        assert cli(*command).code == 2
    assert [row["state"] for row in cli("approvals", "list", "--json").json] == ["pending"]


def expire_approvals(cli: CliFixture) -> None:
    """Let every pending approval expire."""
    with closing(sqlite3.connect(Path(cli.env["RETINUE_HOME"]) / "ledger.db")) as ledger, ledger:
        ledger.execute(
            "UPDATE approvals SET approval = json_set(approval, '$.expires_at', '2020-01-01T00:00:00Z')"
        )


@pytest.mark.parametrize("command", [("approvals", "list"), ("runs", "list"), ("sessions", "list")])
def test_an_expired_approval_counts_as_denied_and_listing_does_not_continue_its_run(
    cli: CliFixture, waiting_run: dict[str, Any], command: tuple[str, ...]
):
    """Shows: T12."""
    expire_approvals(cli)
    assert cli(*command, "--json").code == 0
    assert cli("runs", "show", waiting_run["run_id"], "--json").json["turns"] == 1
    late = cli("approvals", "answer", waiting_run["approvals"][0], "allow", "--json")
    assert (late.code, late.json["error"]["code"]) == (3, "conflict")
    assert "expired" in late.err
    assert not (cli.folder / "a.txt").exists()
    resumed = cli("runs", "resume", "--json")
    assert resumed.code == 0
    (run,) = cli("runs", "history", "--json").json
    assert (run["status"], run["text"]) == ("done", "Written.")
    assert "not answered within" in Path(run["path"]).read_text()
    assert not (cli.folder / "a.txt").exists()


def test_cancelling_a_waiting_run_voids_its_approval(cli: CliFixture, waiting_run: dict[str, Any]):
    cancelled = cli("runs", "cancel", waiting_run["run_id"], "--json")
    assert (cancelled.code, cancelled.json["status"]) == (0, "cancelled")
    assert cli("approvals", "list", "--json").json == []
    late = cli("approvals", "answer", waiting_run["approvals"][0], "allow")
    assert (late.code, "cannot be answered any more: it is void" in late.err) == (3, True)
    assert not (cli.folder / "a.txt").exists()


def test_a_message_to_a_waiting_session_is_queued_until_the_approval_is_answered(
    cli: CliFixture, waiting_run: dict[str, Any]
):
    """The message is queued behind the waiting run, and answered once the approval is answered.

    Shows: C044.
    """
    queued = cli("send", waiting_run["slug"], "and?", "--json")
    assert (queued.code, queued.json["status"]) == (6, "queued")
    assert queued.json["approvals"] == waiting_run["approvals"]
    assert f"Approval {waiting_run['approvals'][0]} is pending" in queued.err
    assert (
        f"run {queued.json['run_id']} is queued behind another run of {waiting_run['slug']}, which is waiting for you"
        in queued.err
    )
    waited = cli("wait", queued.json["run_id"], "--json")
    assert (waited.code, waited.json[0]["status"]) == (6, "queued")
    cli.script_model([write_calls("a.txt"), "Written.", "And that was all."])
    answered = cli("approvals", "answer", waiting_run["approvals"][0], "allow")
    assert answered.code == 0, answered.err
    assert "continues with the next queued message: and?" in answered.err
    runs = cli("runs", "history", "--json").json
    assert [(run["status"], run["text"]) for run in runs] == [
        ("done", "And that was all."),
        ("done", "Written."),
    ]


def test_waiting_for_a_run_without_a_terminal_reports_that_it_needs_an_approval(
    cli: CliFixture, waiting_run: dict[str, Any]
):
    waited = cli("wait", waiting_run["run_id"], "--json")
    assert waited.code == 6
    assert cli("approvals", "answer", waiting_run["approvals"][0], "allow").code == 0
    assert cli("wait", waiting_run["run_id"], "--json").code == 0


def write_agent(cli: CliFixture, name: str, front: str = "") -> None:
    folder = Path(cli.env["RETINUE_CONFIG"]) / "agents"
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.md").write_text(f"---\nname: {name}\n{front}---\nYou help.\n")


def test_a_parent_session_shows_which_child_waits_for_which_approval(cli: CliFixture):
    """Shows: L006."""
    write_agent(cli, "hand", "tools: [bash]\n")
    delegate_args = {"preset": "hand", "description": "do it", "prompt": "Do it."}
    cli.script_model(
        {
            "general": [{"tools": [{"name": "PersistentAgent", "args": delegate_args}]}, "Done."],
            "hand": [{"tools": [{"name": "bash", "args": {"command": "echo hi"}}]}, "Ran."],
        }
    )
    parent = cli("run", "--json", "go").json
    (own_approval,) = cli("sessions", "show", parent["slug"], "--json").json["approvals"]
    assert (own_approval["id"], own_approval["slug"], own_approval["tool"]) == (
        parent["approvals"][0],
        parent["slug"],
        "PersistentAgent",
    )
    assert f"{parent['slug']} is waiting for approval: PersistentAgent\n" in (
        cli("sessions", "show", parent["slug"]).out
    )
    assert cli("approvals", "answer", own_approval["id"], "allow").code == 6
    (approval,) = cli("approvals", "list", "--json").json
    child = next(row for row in cli("sessions", "list", "--json").json if row["agent"] == "hand")
    for reference in (parent["slug"], child["slug"]):
        (shown_approval,) = cli("sessions", "show", reference, "--json").json["approvals"]
        assert shown_approval == approval | {"slug": child["slug"], "agent_display_name": None}
    output = cli("sessions", "show", parent["slug"]).out
    assert f"\n{child['slug']} is waiting for approval: bash echo hi\n" in output
    assert f"retinue approvals answer {approval['id']} allow (or deny)" in output
    other_run = cli("run", "--agent", "hand", "--json", "go").json
    assert approval["id"] not in cli("sessions", "show", other_run["slug"]).out
    answered = cli("approvals", "answer", approval["id"], "allow", "--json")
    assert (answered.code, answered.json.keys()) == (0, approval.keys() | {"run"})
    assert answered.json["run"].keys() == parent.keys()
    assert answered.json["run"]["text"] == "Ran."
    assert cli("sessions", "show", parent["slug"], "--json").json["approvals"] == []


def test_an_expired_approval_is_not_shown_with_its_session(cli: CliFixture, waiting_run: dict[str, Any]):
    assert len(cli("sessions", "show", waiting_run["slug"], "--json").json["approvals"]) == 1
    expire_approvals(cli)
    assert cli("sessions", "show", waiting_run["slug"], "--json").json["approvals"] == []


def test_the_card_lists_the_files_of_a_command_and_a_changed_file_needs_a_new_approval(cli: CliFixture):
    """Shows: T10."""
    script = cli.folder / "run.sh"
    script.write_text("touch good\n")
    cli.script_model([{"tools": [{"name": "bash", "args": {"command": "sh run.sh"}}]}, "Ran."])
    (first,) = cli("run", "--json", "run it").json["approvals"]
    (file,) = cli("approvals", "show", first, "--json").json["files"]
    assert (file["path"], file["size"]) == (str(script), 11)
    card = cli("approvals", "show", first).out
    assert f"    {script}  11 bytes  sha256 {file['sha256']}\n" in card
    script.write_text("touch evil\n")
    answered = cli("approvals", "answer", first, "allow", "--json")
    assert answered.code == 6
    (second,) = cli("approvals", "list", "--json").json
    assert second["reason"] == f"changed since you were asked: {script}"
    assert second["files"][0]["sha256"] != file["sha256"]
    assert cli("approvals", "answer", second["id"], "allow").code == 0
    assert [(cli.folder / name).exists() for name in ("good", "evil")] == [False, True]


FORMS = {
    "cd sub && sh ../run.sh": "run.sh",
    "sh r*.sh": "run.sh",
    "make -C sub": "sub/rules.mk",
    "python3 -m pkg": "pkg/__main__.py",
    "bash -c 'cd sub; . ../run.sh'": "run.sh",
}


@pytest.mark.parametrize("command", FORMS)
def test_a_file_that_a_command_uses_indirectly_cannot_be_changed_after_the_approval(
    cli: CliFixture, command: str
):
    """Shows: T10."""
    files = {
        "run.sh": "touch $PWD/good\n",
        "sub/Makefile": "include rules.mk\n",
        "sub/rules.mk": "all:\n\ttouch good\n",
        "pkg/__main__.py": "open('good', 'w').close()\n",
    }
    for name, text in files.items():
        (cli.folder / name).parent.mkdir(exist_ok=True)
        (cli.folder / name).write_text(text)
    cli.script_model([{"tools": [{"name": "bash", "args": {"command": command}}]}, "Ran."])
    (first,) = cli("run", "--json", "run it").json["approvals"]
    shown = cli("approvals", "show", first, "--json").json
    assert str(cli.folder / FORMS[command]) in [file["path"] for file in shown["files"]]
    assert shown["files_note"].startswith("It cannot be known which other files ")
    assert shown["files_note"] in cli("approvals", "show", first).out
    changed = cli.folder / FORMS[command]
    changed.write_text(changed.read_text().replace("good", "evil"))
    assert cli("approvals", "answer", first, "allow").code == 6
    assert not list(cli.folder.rglob("evil")) + list(cli.folder.rglob("good"))
    (second,) = cli("approvals", "list", "--json").json
    assert second["reason"] == f"changed since you were asked: {changed}"
    assert cli("approvals", "answer", second["id"], "allow").code == 0
    assert len(list(cli.folder.rglob("evil"))) == 1


def test_a_command_that_chooses_files_while_it_runs_is_approved_with_a_warning(cli: CliFixture):
    command = "ls *.sh | xargs -n1 sh"
    (cli.folder / "run.sh").write_text("touch good\n")
    cli.script_model([{"tools": [{"name": "bash", "args": {"command": command}}]}, "Ran."])
    (first,) = cli("run", "--json", "run it").json["approvals"]
    card = cli("approvals", "show", first).out
    assert (
        "This command chooses files while it runs, so it cannot be known which ones; "
        "only the listed files are compared." in card
    )
    assert f"    {cli.folder / 'run.sh'}  11 bytes" in card
