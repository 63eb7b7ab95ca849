"""`retinue run`: reply, progress, exit codes and arguments."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from cli_fixture import CliFixture, WaitUntil
from commands import require_pipe

RUN_KEYS = [
    "run_id", "session_id", "slug", "key", "agent", "status", "waiting_for", "reason", "approvals", "text", "output",
    "error", "turns", "tool_calls", "usage", "started_at", "ended_at", "duration_ms", "path", "children", "cost", "sandbox",
]  # fmt: skip
WORK_TOOL = '''
import os, time
from retinue import tool

@tool(effect="read")
def work() -> str:
    """Works until the file `hold` is gone."""
    while os.path.exists("hold"):
        time.sleep(0.01)
    return "worked"
'''


def test_run_prints_the_reply_and_the_path_of_the_session(cli: CliFixture):
    cli.script_model(["The answer."])
    result = cli("run", "Question?")
    assert (result.code, result.out) == (0, "The answer.\n")
    path = Path(result.err.split(": ", 1)[1].strip())
    assert path.name == "session.md"
    assert "Question?" in path.read_text()


def test_run_with_json_prints_one_object_with_the_documented_keys(cli: CliFixture):
    (cli.folder / "note.txt").write_text("hello")
    cli.script_model(
        [{"text": "Looking.", "tools": [{"tool": "read", "args": {"path": "note.txt"}}]}, "It says hello."]
    )
    result = cli("run", "--json", "--label", "greeting", "Read note.txt")
    assert list(result.json) == RUN_KEYS
    assert (
        result.json | {"status": "done", "text": "It says hello.", "turns": 2, "tool_calls": 1} == result.json
    )
    assert result.json["usage"].keys() == {"input", "output"}
    assert (result.code, result.err) == (0, "")


def test_a_pipe_gets_the_reply_unchanged(cli: CliFixture):
    """Shows: U01."""
    hostile = "\x1b]52;c;ZXZpbA==\x07 plain \u202eemag"
    cli.script_model([hostile])
    assert cli("run", "say it").out == hostile + "\n"


def test_control_sequences_in_a_reply_are_made_visible_on_a_terminal(cli: CliFixture):
    """Shows: U01, U03."""
    cli.script_model(["\x1b]52;c;ZXZpbA==\x07\x1b[2J\x9b6n\rgone \u202eemag"])
    screen = cli.open_terminal("run", "say it", NO_COLOR="1")
    code, output = screen.wait_for_exit()
    assert code == 0
    assert "␛]52;c;ZXZpbA==␇␛[2J<U+009B>6n␍gone <U+202E>emag" in screen.screen_lines()
    assert not {"\x9b", "\x07", "\u202e"} & set(output)


def test_a_dash_reads_the_task_from_standard_input(cli: CliFixture):
    cli.script_model(["Received."])
    result = cli("run", "--json", "-", stdin="two\nlines\n")
    assert (result.code, result.json["text"]) == (0, "Received.")
    assert "two\nlines\n" in Path(result.json["path"]).read_text()
    assert cli("run", "-", stdin="  \n").code == 2


def test_text_after_two_dashes_is_never_an_option(cli: CliFixture):
    """Shows: D15."""
    cli.script_model(["Fine."])
    result = cli("run", "--label", "--settings=x", "--json", "--", "--settings=/etc/passwd")
    assert result.code == 0
    shown = cli("runs", "show", "--json", result.json["run_id"]).json
    assert (shown["task"], shown["label"]) == ("--settings=/etc/passwd", "--settings=x")
    assert cli("run", "--settings=/etc/passwd").code == 2


def test_run_without_a_task_reports_what_is_missing(cli: CliFixture):
    cli.script_model(["Never said."])
    result = cli("run", "--json")
    assert (result.code, result.json["error"]["code"]) == (2, "usage")
    assert result.err.startswith("retinue: The task is missing.")


def test_run_on_a_session_without_a_task_sends_the_text_typed_into_its_file(cli: CliFixture):
    cli.script_model(["First.", "Second."])
    first = cli("run", "--json", "Begin").json
    without_text = cli("run", "--session", first["slug"])
    assert without_text.code == 2
    assert "No text at the end" in without_text.err
    with Path(first["path"]).open("a") as file:
        file.write("Go on, please.\n")
    second = cli("run", "--session", first["path"], "--json")
    assert (second.code, second.json["text"], second.json["session_id"]) == (
        0,
        "Second.",
        first["session_id"],
    )


def test_a_session_is_chosen_by_keyword_or_reference(cli: CliFixture):
    """Shows: C016."""
    cli.script_model(["One.", "Two.", "Three."])
    assert cli("run", "--session", "latest", "hi").code == 7
    first = cli("run", "--session", "latest-or-create", "--json", "hi").json
    second = cli("send", first["session_id"][:20], "more", "--json").json
    third = cli("run", "--session", "latest", "more", "--json").json
    assert [second["text"], third["text"]] == ["Two.", "Three."]
    assert {first["session_id"]} == {second["session_id"], third["session_id"]}
    assert cli("send", "nobody-there", "hi").code == 7


def test_exit_codes_report_how_a_run_ended(cli: CliFixture):
    cli.script_model([{"text": "Too late.", "delay": 20}])
    timed_out = cli("run", "--timeout", "0.2", "--json", "hurry")
    assert (timed_out.code, timed_out.json["status"]) == (4, "timed_out")
    cli.script_model([{"error": "the server is on fire"}])
    failed = cli("run", "hi")
    assert (failed.code, failed.out) == (1, "")
    assert "failed" in failed.err
    assert cli("run", "--timeout", "nan", "hi").code == 2
    assert cli("run", "--agent", "nobody", "hi").code == 7
    assert cli("run", "--workspace", "missing", "hi").code == 2


def test_a_reply_that_was_cut_off_is_continued_on_the_same_line(cli: CliFixture):
    cli.script_model([{"text": "The answer is forty-", "stop": "length"}, "two."])
    result = cli("run", "Question?")
    assert (result.code, result.out) == (0, "The answer is forty-two.\n")


def test_a_reply_that_stays_cut_off_is_reported_as_incomplete(cli: CliFixture):
    cli.script_model([{"text": "The answer is ", "stop": "length"}, {"text": "forty-", "stop": "length"}])
    result = cli("run", "--json", "Question?")
    fields = ("status", "reason", "text")
    assert tuple(result.json[each] for each in fields) == ("done", "incomplete", "The answer is forty-")
    assert "The reply is incomplete" in result.err
    assert "done (incomplete)" in cli("runs", "show", result.json["run_id"]).out
    assert cli("runs", "history", "--json").json[0]["reason"] == "incomplete"


def test_a_run_at_its_turn_limit_waits_and_resume_grants_as_many_turns_again(cli: CliFixture):
    Path(cli.env["RETINUE_CONFIG"]).mkdir(exist_ok=True)
    (Path(cli.env["RETINUE_CONFIG"]) / "config.toml").write_text("[limits]\nmax_turns = 2\n")
    call: dict[str, Any] = {"tools": [{"tool": "ls", "args": {}}]}
    cli.script_model([call, call, call, "That was all."])
    run = cli("run", "--json", "Look around.")
    assert run.code == 6
    assert (run.json["status"], run.json["waiting_for"], run.json["reason"]) == (
        "waiting",
        "person",
        "turn_limit",
    )
    assert "used 2 turns (limits.max_turns)" in run.json["error"]
    assert "waiting for you: the run used 2 turns" in run.err
    assert "used 2 turns" in cli("runs", "list").out
    assert "waiting for person (turn_limit)" in cli("runs", "show", run.json["run_id"]).out
    resumed = cli("runs", "resume", run.json["run_id"], "--json")
    assert resumed.code == 0
    (row,) = resumed.json
    assert (row["run_id"], row["status"], row["turns"], row["text"]) == (
        run.json["run_id"],
        "done",
        4,
        "That was all.",
    )


def test_without_a_model_the_error_names_what_to_set(cli: CliFixture):
    result = cli("run", "--json", "hi")
    assert result.code == 2
    assert list(result.json) == ["error"]
    variables = ("RETINUE_MODEL", "OPENAI_API_KEY", "ANTHROPIC_API_KEY")
    assert [name in result.json["error"]["message"] for name in variables] == [True] * 3


def test_the_home_option_is_accepted_before_and_after_the_command(cli: CliFixture, tmp_path: Path):
    cli.script_model(["Kept."])
    first_home, second_home = str(tmp_path / "one"), str(tmp_path / "two")
    assert cli("--home", first_home, "--json", "run", "hi").json["path"].startswith(first_home)
    assert cli("run", "--home", second_home, "--json", "hi").json["path"].startswith(second_home)
    assert len(cli("sessions", "--home", first_home, "list", "--json").json) == 1


def test_ctrl_c_cancels_the_run_and_prints_where_it_is_stored(cli: CliFixture, wait_until: WaitUntil):
    cli.script_model([{"text": "Slow.", "delay": 60}])
    screen = cli.open_terminal("run", "take your time")
    runs = wait_until(
        lambda: [run for run in cli("runs", "list", "--json").json if run["status"] == "running"]
    )
    screen.press("c")
    code, output = screen.wait_for_exit()
    assert code == 5
    assert "cancelled" in output
    assert "session.md" in output
    assert cli("runs", "show", "--json", runs[0]["run_id"]).json["reason"] == "user_cancel"


def test_a_question_of_the_agent_is_asked_on_the_terminal(cli: CliFixture):
    question = {"question": "Which \x1b[2J colour?", "options": ["red", "blue"]}
    cli.script_model([{"tools": [{"tool": "ask_user", "args": question}]}, "As you wish."])
    screen = cli.open_terminal("run", "paint", NO_COLOR="1")
    screen.wait_for_text("Which ␛[2J colour?")
    screen.wait_for_text("2. blue")
    screen.type("2\n")
    screen.wait_for_text("As you wish.")
    code, output = screen.wait_for_exit()
    assert code == 0
    path = Path(output.rsplit(": ", 1)[1].strip())
    assert "blue" in path.read_text().rsplit("<!-- result", 1)[1]


def test_closing_the_output_early_causes_no_error(cli: CliFixture):
    cli.script_model(["word\n" * 50_000])
    process = cli.start("run", "talk")
    require_pipe(process.stdout).close()
    assert process.wait(60) == 0
    assert b"Traceback" not in require_pipe(process.stderr).read()
    process = cli.start("tools", "list", "--json")
    require_pipe(process.stdout).close()
    process.wait(60)
    assert require_pipe(process.stderr).read() == b""


def test_an_internal_error_is_one_sentence_with_details_in_a_file(cli: CliFixture, tmp_path: Path):
    (tmp_path / "odd.py").write_text("raise RuntimeError('odd \\x1b thing')\n")
    (tmp_path / "config" / "config.toml").write_text('tools = ["odd:tool"]\n')
    cli.env["PYTHONPATH"] = str(tmp_path)
    result = cli("tools", "list", "--json")
    assert (result.code, result.json["error"]["code"]) == (1, "internal_error")
    assert "Traceback" not in result.err
    assert "␛" in result.err
    details = Path(result.err.rsplit("details are in ", 1)[1].strip())
    assert details.parent == tmp_path / "home" / "logs"
    assert "RuntimeError" in details.read_text()
    assert "Traceback" in cli("tools", "list", RETINUE_DEBUG="1").err


def test_a_spawned_child_is_stored_below_its_parent_with_its_own_paths(cli: CliFixture):
    """Shows: A061, A084."""
    cli.script_model({"general": ["Parent."], "researcher": ["Child.", "Child again."]})
    parent = cli("run", "begin", "--json").json
    command = ("spawn", "--parent", parent["slug"], "--agent", "researcher", "--description", "Look Around!")
    child = cli(*command, "--allowed-paths", "docs/**", "--denied-paths", "**/secret", "look", "--json")
    assert (child.code, child.json["text"]) == (0, "Child.")
    folder = Path(child.json["path"]).parent
    assert folder.parent == Path(parent["path"]).resolve().parent / "agents"
    assert folder.name.endswith("-look-around-")
    preset = (folder / "preset.md").read_text()
    assert "docs/**" in preset
    assert "**/secret" in preset
    session = cli("sessions", "show", child.json["session_id"], "--json").json
    assert (session["type"], session["parent_session_id"]) == ("agent", parent["slug"])
    assert cli("send", child.json["path"], "more").out == "Child again.\n"
    assert cli("spawn", "--agent", "researcher", "look").code == 2


def test_wait_follows_a_run_of_another_process(cli: CliFixture, wait_until: WaitUntil):
    (cli.folder / "held.py").write_text(WORK_TOOL)
    (cli.folder / "hold").touch()
    (Path(cli.env["RETINUE_CONFIG"]) / "config.json").write_text('{"tools": ["held:work"]}')
    cli.env["PYTHONPATH"] = str(cli.folder)
    cli.script_model([{"tools": [{"tool": "work", "args": {}}]}, "At last."])
    cli.start("run", "slowly")
    runs = wait_until(lambda: cli("runs", "list", "--json").json)
    wait_process = cli.start("wait", runs[0]["run_id"], "--json")
    owners = Path(cli.env["RETINUE_HOME"]) / "owners"
    wait_until(lambda: len(list(owners.iterdir())) == 2)
    assert wait_process.poll() is None
    (cli.folder / "hold").unlink()
    out, err = wait_process.communicate(timeout=30)
    assert wait_process.returncode == 0, err
    assert [(run["status"], run["text"]) for run in json.loads(out)] == [("done", "At last.")]


def test_a_killed_run_is_reported_and_can_be_resumed(cli: CliFixture, wait_until: WaitUntil):
    cli.script_model([{"text": "Never said.", "delay": 60}])
    process = cli.start("run", "survive", "--json")
    wait_until(lambda: [run for run in cli("runs", "list", "--json").json if run["status"] == "running"])
    process.send_signal(signal.SIGKILL)
    process.wait(30)
    assert '1 run was interrupted. Continue with "retinue runs resume".' in cli("sessions", "list").err
    cli.script_model(["Done after all."])
    resumed = cli("runs", "resume", "--json")
    assert (resumed.code, [run["text"] for run in resumed.json]) == (0, ["Done after all."])
    assert "interrupted" not in cli("sessions", "list").err


def test_help_needs_no_configuration_and_imports_no_heavy_package(cli: CliFixture):
    help_result = cli("--help")
    assert help_result.code == 0
    assert help_result.out == cli("-h").out == cli().out
    assert [group in help_result.out for group in ("Talk", "Conversations", "Runs", "Agents", "Machine")] == [
        True
    ] * 5
    code = "import sys; sys.argv = ['retinue', '--help']\nfrom retinue.__main__ import main\nmain()\n"
    print_heavy_imports = "print(sorted({'click', 'msgspec', 'asyncio', 'aiohttp', 'ruamel'} & set(sys.modules)), file=sys.stderr)"
    result = subprocess.run(
        [sys.executable, "-c", code + print_heavy_imports],
        capture_output=True,
        text=True,
        env=os.environ,
        check=True,
    )
    assert result.stderr.strip() == "[]"


def test_a_misspelt_command_is_answered_with_the_nearest_one(cli: CliFixture):
    result = cli("sesions", "list", "--json")
    assert result.code == 2
    assert "did you mean 'sessions'?" in result.json["error"]["message"]
    assert cli("run", "--modle", "x", "hi").err.count("\n") == 1
    assert "--model" in cli("run", "--modle", "x", "hi").err
    assert cli("--version").out.startswith("retinue ")
    assert json.loads(cli("--json", "--version").out).keys() == {"version"}
