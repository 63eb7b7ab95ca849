"""Sessions, runs, agents and tools from the command line: tables for people, arrays for programs."""

import json
from pathlib import Path
from typing import Any

import pytest
from cli_fixture import CliFixture, WaitUntil

SHOW_KEYS = {
    "session_id", "key", "agent", "name", "branch", "parent_session_id", "type", "depth", "path", "created_at",
    "updated_at", "pinned_at", "last_snippet", "attributes", "status", "entries", "announcements",
}  # fmt: skip
MORE_KEYS = {
    "requester", "parent", "depth", "label", "task", "model", "thinking", "source", "entry_point", "role",
    "trigger", "keep_session", "timeout_seconds", "deadline_at", "delivery", "attempts", "workspace", "scope_hash", "exit",
    "evidence", "effects", "root", "created_at", "call", "questions", "cached_tokens", "cost", "tree",
}  # fmt: skip


@pytest.fixture
def talked(cli: CliFixture) -> dict[str, Any]:
    """A conversation that has begun."""
    cli.script_model(["First answer.", "Second answer.", "Third answer."])
    return cli("run", "First question", "--json").json


def test_a_session_is_shown_with_all_its_facts(cli: CliFixture, talked: dict[str, Any]):
    """Shows: C011, C014."""
    shown = cli("sessions", "show", talked["slug"], "--json")
    assert shown.json.keys() >= SHOW_KEYS
    assert shown.json["path"] == talked["path"]
    assert (shown.json["type"], shown.json["status"], shown.json["entries"]) == ("branch", "idle", 2)
    for reference in (talked["session_id"], talked["key"], talked["path"], str(Path(talked["path"]).parent)):
        assert cli("sessions", "show", reference, "--json").json["session_id"] == talked["session_id"]
    assert "First answer." in cli("sessions", "show", talked["slug"]).out


def test_sessions_are_listed_pinned_ones_first(cli: CliFixture, talked: dict[str, Any]):
    """Shows: C019."""
    later = cli("run", "Another", "--json").json
    listed = cli("sessions", "list", "--json").json
    assert [row["session_id"] for row in listed] == [later["session_id"], talked["session_id"]]
    assert listed[0].keys() <= cli("sessions", "show", later["slug"], "--json").json.keys()
    assert cli("sessions", "pin", talked["slug"], "--json").json["pinned_at"]
    table = cli("sessions", "list")
    assert table.out.splitlines()[1].startswith(talked["slug"])
    assert cli("sessions", "pin", later["slug"]).code == 0
    again = cli("sessions", "list", "--json").json
    assert [row["session_id"] for row in again] == [later["session_id"], talked["session_id"]]
    assert cli("sessions", "unpin", talked["slug"], "--json").json["pinned_at"] is None
    assert cli("sessions", "list", "--agent", "researcher", "--json").json == []


def test_an_empty_list_says_what_to_do_next(cli: CliFixture):
    listed = cli("sessions", "list")
    assert (listed.code, listed.out) == (0, "")
    assert "retinue run" in listed.err
    assert cli("sessions", "list", "--json").out == "[]\n"


def test_a_session_is_renamed_cleared_and_deleted(cli: CliFixture, talked: dict[str, Any]):
    """Shows: C014, C021, C022, C023."""
    ref = talked["session_id"]
    assert cli("sessions", "rename", ref, "Cron work", "--json").json["name"] == "Cron work"
    assert "Cron work" in cli("sessions", "list").out
    cleared = cli("sessions", "clear", ref, "--json").json
    assert (cleared["entries"], cleared["last_snippet"], cleared["name"]) == (0, "", "Cron work")
    gone = cli("sessions", "delete", ref, "--json")
    assert (gone.code, gone.json["deleted"]) == (0, True)
    assert Path(gone.json["path"], "branches", "main", "session.md").is_file()
    assert cli("sessions", "show", ref).code == 7
    assert cli("sessions", "list", "--json").json == []
    assert gone.json["restore_command"] == f"retinue sessions restore {ref}"
    assert cli(*gone.json["restore_command"].split()[1:], "--json").json["path"] == talked["path"]
    assert cli("sessions", "show", ref, "--json").json["name"] == "Cron work"
    assert cli("sessions", "restore", ref).code == 7


def test_a_deleted_session_says_where_it_is_and_how_to_get_it_back(cli: CliFixture, talked: dict[str, Any]):
    told = cli("sessions", "delete", talked["slug"]).out
    now = next(line.split()[1] for line in told.splitlines() if line.startswith("path "))
    assert Path(now).is_dir()
    assert Path(now).name.startswith(f"{talked['slug']}.deleted.")
    assert f"retinue sessions restore {talked['session_id']}\n" in told
    assert cli("sessions", "restore", Path(now).name).code == 0
    assert not Path(now).exists()


def test_a_session_is_branched_exported_and_opened(cli: CliFixture, talked: dict[str, Any]):
    """Shows: A082."""
    assert cli("send", talked["slug"], "Second question").out == "Second answer.\n"
    branched = cli("sessions", "branch", talked["slug"], "--exclude", "--name", "other", "--json").json
    assert branched["branch"] != "main"
    assert branched["entries"] == 2
    assert cli("sessions", "export", talked["path"]).out == Path(talked["path"]).read_text()
    entries = cli("sessions", "export", talked["path"], "--json").json
    assert [entry["kind"] for entry in entries] == ["message"] * 4
    assert entries[2]["text"] == "Second question"
    assert cli("sessions", "open", talked["path"]).out == talked["path"] + "\n"


def test_on_a_terminal_a_session_opens_in_the_editor(cli: CliFixture, talked: dict[str, Any]):
    screen = cli.open_terminal("sessions", "open", talked["slug"], EDITOR="head -n 1")
    code, seen = screen.wait_for_exit()
    assert code == 0
    assert "<!-- retinue 1" in seen


def test_runs_are_listed_shown_and_remembered(cli: CliFixture, talked: dict[str, Any]):
    """Shows: E032, E034."""
    assert cli("runs", "list", "--json").json == []
    cli("send", talked["slug"], "More")
    history = cli("subagent", "history", "--limit", "1", "--json").json
    assert [row["text"] for row in history] == ["Second answer."]
    assert len(cli("runs", "history", "--json").json) == 2
    assert history[0].keys() == talked.keys() - {"sandbox"}
    shown = cli("runs", "show", talked["run_id"], "--json").json
    assert shown.keys() == talked.keys() | MORE_KEYS
    assert (shown["task"], shown["requester"]) == ("First question", "person")
    assert "First question" in cli("subagent", "show", talked["run_id"]).out
    assert cli("runs", "show", "nothing").code == 7
    assert cli("runs", "history", "--limit", "0").code == 2


def test_a_run_of_another_process_is_cancelled(cli: CliFixture, wait_until: WaitUntil):
    """Shows: E031, E033."""
    cli.script_model([{"text": "Slow.", "delay": 60}])
    process = cli.start("run", "work long")
    live = wait_until(
        lambda: [run for run in cli("subagent", "list", "--json").json if run["status"] == "running"]
    )
    cancelled = cli("subagent", "cancel", live[0]["run_id"], "--json")
    assert (cancelled.code, cancelled.json["status"]) == (0, "cancelled")
    assert process.wait(30) == 5


def test_agents_are_listed_and_shown_with_the_source_of_each_field(cli: CliFixture, tmp_path: Path):
    """Shows: B005, B006."""
    folder = tmp_path / "config" / "agents"
    folder.mkdir(parents=True)
    (folder / "scribe.md").write_text(
        "---\nname: scribe\ndescription: Writes things down\ntools: [read]\n---\nYou write.\n"
    )
    (folder / "broken.md").write_text("---\nname: broken\ntols: [read]\n---\nx\n")
    listed = cli("agents", "list", "--json")
    names = [row["name"] for row in listed.json]
    assert "scribe" in names
    assert "broken" not in names
    assert "broken.md" in listed.err
    shown = cli("agents", "show", "scribe", "--json").json
    assert (shown["description"], shown["available_tools"]) == ("Writes things down", ["read"])
    assert shown["sources"]["description"] == str(folder / "scribe.md")
    assert "grep" in shown["unavailable_tools"]
    table = cli("agents", "show", "scribe").out
    assert "Writes things down" in table
    assert "withheld: grep" in table


def test_an_agent_is_deleted_unless_it_is_ours(cli: CliFixture, tmp_path: Path):
    """Shows: B010."""
    folder = tmp_path / "config" / "agents"
    folder.mkdir(parents=True)
    (folder / "scribe.md").write_text("---\nname: scribe\ndescription: Writes\n---\nYou write.\n")
    assert cli("agents", "delete", "scribe", "--json").json == {"name": "scribe", "deleted": True}
    assert not (folder / "scribe.md").exists()
    assert cli("agents", "delete", "general").code == 3
    assert cli("agents", "delete", "scribe").code == 7


def test_a_foreign_definition_is_checked_and_brought_home(cli: CliFixture, tmp_path: Path):
    foreign = tmp_path / "Backend Architect.md"
    foreign.write_text(
        "---\nname: Backend Architect\ndescription: Designs services\ntools: Read, Grep\ncolor: blue\n---\nYou design.\n"
    )
    checked = cli("agents", "check", str(foreign), "--json")
    assert checked.code == 0
    assert {field["field"] for field in checked.json[0]["fields"]} == {
        "name",
        "description",
        "tools",
        "color",
    }
    assert "color" in cli("agents", "check", str(foreign)).out
    imported = cli("agents", "import", str(foreign), "--json")
    assert imported.code == 0
    shown = cli("agents", "show", "backend-architect", "--json").json
    assert shown["tool_allow"] == ["read", "grep"]
    assert cli("agents", "check", str(tmp_path / "missing.md")).code == 7


def test_tools_are_listed_with_the_rule_that_decides(cli: CliFixture, talked: dict[str, Any]):
    listed = cli("tools", "list", "--json").json
    assert {"name", "category", "description", "available", "rule"} <= listed[0].keys()
    offered = [
        row["name"] for row in cli("tools", "list", "--agent", "explorer", "--json").json if row["available"]
    ]
    assert sorted(offered) == ["glob", "grep", "ls", "read"]
    assert "read" in cli("tools", "list", "--session", talked["slug"]).out
    assert cli("tools", "list", "--session", talked["slug"], "--agent", "general").code == 2


def test_a_door_is_listed_with_the_names_that_a_model_is_shown(
    cli: CliFixture, talked: dict[str, Any], tmp_path: Path
):
    """Shows: A002, A004."""
    (tmp_path / "config" / "agents" / "helper.md").write_text("---\nname: helper\n---\n\nYou help.\n")
    (tmp_path / "config" / "agents" / "lone.md").write_text(
        "---\nname: lone\nagent_allow: [helper]\n---\n\nYou ask.\n"
    )
    for words, known in (
        (("--session", talked["slug"]), {"helper", "explorer"}),
        (("--agent", "general"), {"helper", "explorer"}),
        (("--agent", "lone"), {"helper"}),
    ):
        rows = {row["name"]: row["schema"] for row in cli("tools", "list", *words, "--json").json}
        names = rows["PersistentAgent"]["properties"]["preset"]["enum"]
        assert known <= set(names)
        assert rows["agent"]["properties"]["agent_name"]["enum"] == names
    assert names == ["helper"]


def test_the_doctor_finds_what_is_wrong(cli: CliFixture, tmp_path: Path):
    cli.script_model(["Fine."])
    well = cli("doctor", "--json")
    assert well.code == 0
    assert {row["level"] for row in well.json} <= {"ok", "warn"}
    folder = tmp_path / "config" / "agents"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "broken.md").write_text("---\nname: broken\ntols: [read]\n---\nx\n")
    ill = cli("doctor")
    assert ill.code == 1
    assert "broken.md" in ill.out


def test_the_demonstration_needs_nothing(cli: CliFixture):
    env = dict(cli.env)
    for name in ("RETINUE_HOME", "RETINUE_CONFIG"):
        del cli.env[name]
    shown = cli("demo", "--scripted")
    assert shown.code == 0
    assert "scripted" in shown.err
    assert "/etc/passwd  refused" in shown.out
    path = Path(shown.out.rsplit("file: ", 1)[1].strip())
    assert path.is_relative_to(cli.folder / ".demo")
    assert "errors.py" in path.read_text()
    cli.env.update(env)
    value = json.loads(cli("demo", "--scripted", "--json").out)
    assert (value["status"], value["tool_calls"]) == ("done", 5)
    assert value["path"].startswith(cli.env["RETINUE_HOME"])
