"""Listing and changing sessions, runs, agents and tools: tables for people, arrays with --json."""

import json
from pathlib import Path
from typing import Any

import pytest
from cli_fixture import CliFixture, WaitUntil

SHOW_KEYS = {
    "session_id", "key", "agent", "name", "branch", "parent_session_id", "type", "depth", "path", "created_at",
    "updated_at", "pinned_at", "last_snippet", "attributes", "status", "entries", "announcements",
}  # fmt: skip
DETAIL_KEYS = {
    "requester", "parent", "depth", "label", "task", "model", "thinking", "source", "entry_point", "role",
    "trigger", "keep_session", "timeout_seconds", "deadline_at", "delivery", "attempts", "workspace", "scope_hash", "exit",
    "evidence", "effects", "root", "created_at", "call", "agent_display_name", "questions", "cached_tokens", "cache_write_tokens", "cost", "tree", "continues", "fallback_models", "pruned", "result_hash",
}  # fmt: skip


@pytest.fixture
def first_run(cli: CliFixture) -> dict[str, Any]:
    """A session with one exchange."""
    cli.script_model(["First answer.", "Second answer.", "Third answer."])
    return cli("run", "First question", "--json").json


def test_a_session_is_shown_with_all_its_fields(cli: CliFixture, first_run: dict[str, Any]):
    """Shows: C011, C014."""
    session = cli("sessions", "show", first_run["slug"], "--json")
    assert session.json.keys() >= SHOW_KEYS
    assert session.json["path"] == first_run["path"]
    assert (session.json["type"], session.json["status"], session.json["entries"]) == ("branch", "idle", 2)
    for reference in (
        first_run["session_id"],
        first_run["key"],
        first_run["path"],
        str(Path(first_run["path"]).parent),
    ):
        assert cli("sessions", "show", reference, "--json").json["session_id"] == first_run["session_id"]
    assert "First answer." in cli("sessions", "show", first_run["slug"]).out


def test_pinned_sessions_are_listed_first(cli: CliFixture, first_run: dict[str, Any]):
    """Shows: C019."""
    second_run = cli("run", "Another", "--json").json
    rows = cli("sessions", "list", "--json").json
    assert [row["session_id"] for row in rows] == [second_run["session_id"], first_run["session_id"]]
    assert rows[0].keys() <= cli("sessions", "show", second_run["slug"], "--json").json.keys()
    assert cli("sessions", "pin", first_run["slug"], "--json").json["pinned_at"]
    table = cli("sessions", "list")
    assert table.out.splitlines()[1].startswith(first_run["slug"])
    assert cli("sessions", "pin", second_run["slug"]).code == 0
    rows = cli("sessions", "list", "--json").json
    assert [row["session_id"] for row in rows] == [second_run["session_id"], first_run["session_id"]]
    assert cli("sessions", "unpin", first_run["slug"], "--json").json["pinned_at"] is None
    assert cli("sessions", "list", "--agent", "researcher", "--json").json == []


def test_an_empty_list_reports_what_to_do_next(cli: CliFixture):
    result = cli("sessions", "list")
    assert (result.code, result.out) == (0, "")
    assert "retinue run" in result.err
    assert cli("sessions", "list", "--json").out == "[]\n"


def test_a_session_is_renamed_cleared_deleted_and_restored(cli: CliFixture, first_run: dict[str, Any]):
    """Shows: C014, C021, C022, C023."""
    session_id = first_run["session_id"]
    assert cli("sessions", "rename", session_id, "Cron work", "--json").json["name"] == "Cron work"
    assert "Cron work" in cli("sessions", "list").out
    cleared = cli("sessions", "clear", session_id, "--json").json
    assert (cleared["entries"], cleared["last_snippet"], cleared["name"]) == (0, "", "Cron work")
    deleted = cli("sessions", "delete", session_id, "--json")
    assert (deleted.code, deleted.json["deleted"]) == (0, True)
    assert Path(deleted.json["path"], "branches", "main", "session.md").is_file()
    assert cli("sessions", "show", session_id).code == 7
    assert cli("sessions", "list", "--json").json == []
    assert deleted.json["restore_command"] == f"retinue sessions restore {session_id}"
    assert cli(*deleted.json["restore_command"].split()[1:], "--json").json["path"] == first_run["path"]
    assert cli("sessions", "show", session_id, "--json").json["name"] == "Cron work"
    assert cli("sessions", "restore", session_id).code == 7


def test_deleting_a_session_prints_its_new_path_and_the_command_that_restores_it(
    cli: CliFixture, first_run: dict[str, Any]
):
    output = cli("sessions", "delete", first_run["slug"]).out
    new_path = next(line.split()[1] for line in output.splitlines() if line.startswith("path "))
    assert Path(new_path).is_dir()
    assert Path(new_path).name.startswith(f"{first_run['slug']}.deleted.")
    assert f"retinue sessions restore {first_run['session_id']}\n" in output
    assert cli("sessions", "restore", Path(new_path).name).code == 0
    assert not Path(new_path).exists()


def test_a_session_is_branched_exported_and_opened(cli: CliFixture, first_run: dict[str, Any]):
    """Shows: A082."""
    assert cli("send", first_run["slug"], "Second question").out == "Second answer.\n"
    branched = cli("sessions", "branch", first_run["slug"], "--exclude", "--name", "other", "--json").json
    assert branched["branch"] != "main"
    assert branched["entries"] == 2
    assert cli("sessions", "export", first_run["path"]).out == Path(first_run["path"]).read_text()
    entries = cli("sessions", "export", first_run["path"], "--json").json
    assert [entry["kind"] for entry in entries] == ["message"] * 4
    assert entries[2]["text"] == "Second question"
    assert cli("sessions", "open", first_run["path"]).out == first_run["path"] + "\n"


def test_on_a_terminal_a_session_opens_in_the_editor(cli: CliFixture, first_run: dict[str, Any]):
    screen = cli.open_terminal("sessions", "open", first_run["slug"], EDITOR="head -n 1")
    code, output = screen.wait_for_exit()
    assert code == 0
    assert "<!-- retinue 1" in output


@pytest.mark.parametrize("search_path", [".", ":/nowhere"])
def test_a_session_is_not_opened_with_a_program_of_the_current_folder(
    cli: CliFixture, first_run: dict[str, Any], search_path: str
):
    program = cli.folder / "pen"
    program.write_text(f"#!/bin/sh\n: > {cli.folder / 'marker'}\n")
    program.chmod(0o755)
    options = {"EDITOR": "pen -r", "PATH": search_path}
    code, output = cli.open_terminal("sessions", "open", first_run["slug"], **options).wait_for_exit()
    assert "The editor pen is not on the PATH" in output
    assert code == 1
    assert not (cli.folder / "marker").exists()


def test_runs_are_listed_shown_and_kept_in_the_history(cli: CliFixture, first_run: dict[str, Any]):
    """Shows: E032, E034."""
    assert cli("runs", "list", "--json").json == []
    cli("send", first_run["slug"], "More")
    history = cli("subagent", "history", "--limit", "1", "--json").json
    assert [row["text"] for row in history] == ["Second answer."]
    assert len(cli("runs", "history", "--json").json) == 2
    assert history[0].keys() == first_run.keys() - {"sandbox"}
    run = cli("runs", "show", first_run["run_id"], "--json").json
    assert run.keys() == first_run.keys() | DETAIL_KEYS
    assert (run["task"], run["requester"]) == ("First question", "person")
    assert "First question" in cli("subagent", "show", first_run["run_id"]).out
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
    result = cli("agents", "list", "--json")
    names = [row["name"] for row in result.json]
    assert "scribe" in names
    assert "broken" not in names
    assert "broken.md" in result.err
    agent = cli("agents", "show", "scribe", "--json").json
    assert (agent["description"], agent["available_tools"]) == ("Writes things down", ["read"])
    assert agent["sources"]["description"] == str(folder / "scribe.md")
    assert "grep" in agent["unavailable_tools"]
    output = cli("agents", "show", "scribe").out
    assert "Writes things down" in output
    assert "not available: grep" in output


def test_an_agent_of_the_user_can_be_deleted_and_a_built_in_agent_cannot(cli: CliFixture, tmp_path: Path):
    """Shows: B010."""
    folder = tmp_path / "config" / "agents"
    folder.mkdir(parents=True)
    (folder / "scribe.md").write_text("---\nname: scribe\ndescription: Writes\n---\nYou write.\n")
    assert cli("agents", "delete", "scribe", "--json").json == {"name": "scribe", "deleted": True}
    assert not (folder / "scribe.md").exists()
    assert cli("agents", "delete", "general").code == 3
    assert cli("agents", "delete", "scribe").code == 7


def test_an_agent_definition_of_another_tool_is_checked_and_imported(cli: CliFixture, tmp_path: Path):
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
    agent = cli("agents", "show", "backend-architect", "--json").json
    assert agent["tool_allow"] == ["read", "grep"]
    assert cli("agents", "check", str(tmp_path / "missing.md")).code == 7


def test_tools_are_listed_with_the_rule_that_decides(cli: CliFixture, first_run: dict[str, Any]):
    tools = cli("tools", "list", "--json").json
    assert {"name", "category", "description", "available", "rule"} <= tools[0].keys()
    available_tools = [
        row["name"] for row in cli("tools", "list", "--agent", "explorer", "--json").json if row["available"]
    ]
    assert sorted(available_tools) == ["glob", "grep", "ls", "read"]
    assert "read" in cli("tools", "list", "--session", first_run["slug"]).out
    assert cli("tools", "list", "--session", first_run["slug"], "--agent", "general").code == 2


def test_a_delegation_tool_is_listed_with_the_agents_that_a_model_may_choose(
    cli: CliFixture, first_run: dict[str, Any], tmp_path: Path
):
    """Shows: A002, A004."""
    (tmp_path / "config" / "agents" / "helper.md").write_text("---\nname: helper\n---\n\nYou help.\n")
    (tmp_path / "config" / "agents" / "lone.md").write_text(
        "---\nname: lone\nagent_allow: [helper]\n---\n\nYou ask.\n"
    )
    for options, expected in (
        (("--session", first_run["slug"]), {"helper", "explorer"}),
        (("--agent", "general"), {"helper", "explorer"}),
        (("--agent", "lone"), {"helper"}),
    ):
        rows = {row["name"]: row["schema"] for row in cli("tools", "list", *options, "--json").json}
        names = rows["PersistentAgent"]["properties"]["preset"]["enum"]
        assert expected <= set(names)
        assert rows["agent"]["properties"]["agent_name"]["enum"] == names
    assert names == ["helper"]


def test_the_doctor_shows_its_advice_in_full_on_a_narrow_terminal(cli: CliFixture):
    agents = Path(cli.env["RETINUE_CONFIG"]) / "agents"
    agents.mkdir()
    (agents / "bad.md").write_text("---\nname: bad\nzork: 1\n---\n")
    screen = cli.open_terminal("doctor", COLUMNS="60", NO_COLOR="1")
    code, output = screen.wait_for_exit()
    assert code == 1
    assert "repair the file; until then the agent is not available" in output


def test_the_doctor_reports_a_broken_agent_file(cli: CliFixture, tmp_path: Path):
    cli.script_model(["Fine."])
    healthy = cli("doctor", "--json")
    assert healthy.code == 0
    assert {row["level"] for row in healthy.json} <= {"ok", "warn"}
    folder = tmp_path / "config" / "agents"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "broken.md").write_text("---\nname: broken\ntols: [read]\n---\nx\n")
    broken = cli("doctor")
    assert broken.code == 1
    assert "broken.md" in broken.out


def test_the_scripted_demonstration_needs_no_configuration(cli: CliFixture):
    env = dict(cli.env)
    for name in ("RETINUE_HOME", "RETINUE_CONFIG"):
        del cli.env[name]
    result = cli("demo", "--scripted")
    assert result.code == 0
    assert "scripted" in result.err
    assert "/etc/passwd  refused" in result.out
    path = Path(result.out.rsplit("file: ", 1)[1].strip())
    assert path.is_relative_to(cli.folder / ".demo")
    assert "errors.py" in path.read_text()
    cli.env.update(env)
    run = json.loads(cli("demo", "--scripted", "--json").out)
    assert (run["status"], run["tool_calls"]) == ("done", 5)
    assert run["path"].startswith(cli.env["RETINUE_HOME"])
