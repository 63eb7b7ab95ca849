"""Giving work from the command line: words out, progress aside, one exit code."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from cli_fixture import CliFixture, WaitUntil
from commands import require_pipe

RUN_KEYS = [
    "run_id", "session_id", "slug", "key", "agent", "status", "waiting_for", "reason", "approvals", "text", "error",
    "turns", "tool_calls", "usage", "started_at", "ended_at", "duration_ms", "path", "children", "sandbox",
]  # fmt: skip
HELD = '''
import os, time
from retinue import tool

@tool(effect="read")
def work() -> str:
    """Works as long as it is held."""
    while os.path.exists("hold"):
        time.sleep(0.01)
    return "worked"
'''


def test_run_prints_the_words_and_tells_where_they_are_kept(cli: CliFixture):
    cli.script_model(["The answer."])
    ran = cli("run", "Question?")
    assert (ran.code, ran.out) == (0, "The answer.\n")
    path = Path(ran.err.split(": ", 1)[1].strip())
    assert path.name == "session.md"
    assert "Question?" in path.read_text()


def test_run_with_json_prints_one_value_of_the_promised_shape(cli: CliFixture):
    (cli.folder / "note.txt").write_text("hello")
    cli.script_model(
        [{"text": "Looking.", "tools": [{"tool": "read", "args": {"path": "note.txt"}}]}, "It says hello."]
    )
    ran = cli("run", "--json", "--label", "greeting", "Read note.txt")
    assert list(ran.json) == RUN_KEYS
    assert ran.json | {"status": "done", "text": "It says hello.", "turns": 2, "tool_calls": 1} == ran.json
    assert ran.json["usage"].keys() == {"input", "output"}
    assert (ran.code, ran.err) == (0, "")


def test_every_word_of_a_run_reaches_a_pipe_as_it_was_said(cli: CliFixture):
    """Shows: U01."""
    hostile = "\x1b]52;c;ZXZpbA==\x07 plain \u202eemag"
    cli.script_model([hostile])
    assert cli("run", "say it").out == hostile + "\n"


def test_no_word_of_a_run_commands_a_terminal(cli: CliFixture):
    """Shows: U01, U03."""
    cli.script_model(["\x1b]52;c;ZXZpbA==\x07\x1b[2J\x9b6n\rgone \u202eemag"])
    screen = cli.open_terminal("run", "say it", NO_COLOR="1")
    code, seen = screen.wait_for_exit()
    assert code == 0
    assert "␛]52;c;ZXZpbA==␇␛[2J<U+009B>6n␍gone <U+202E>emag" in screen.screen_lines()
    assert not {"\x9b", "\x07", "\u202e"} & set(seen)


def test_a_dash_reads_the_text_from_standard_input(cli: CliFixture):
    cli.script_model(["Heard."])
    ran = cli("run", "--json", "-", stdin="two\nlines\n")
    assert (ran.code, ran.json["text"]) == (0, "Heard.")
    assert "two\nlines\n" in Path(ran.json["path"]).read_text()
    assert cli("run", "-", stdin="  \n").code == 2


def test_words_that_look_like_an_option_are_words_after_two_dashes(cli: CliFixture):
    """Shows: D15."""
    cli.script_model(["Fine."])
    ran = cli("run", "--label", "--settings=x", "--json", "--", "--settings=/etc/passwd")
    assert ran.code == 0
    shown = cli("runs", "show", "--json", ran.json["run_id"]).json
    assert (shown["task"], shown["label"]) == ("--settings=/etc/passwd", "--settings=x")
    assert cli("run", "--settings=/etc/passwd").code == 2


def test_run_without_words_says_what_is_missing(cli: CliFixture):
    cli.script_model(["Never said."])
    ran = cli("run", "--json")
    assert (ran.code, ran.json["error"]["code"]) == (2, "usage")
    assert ran.err.startswith("retinue: The task is missing.")


def test_a_session_without_words_runs_what_a_person_typed_there(cli: CliFixture):
    cli.script_model(["First.", "Second."])
    first = cli("run", "--json", "Begin").json
    nothing = cli("run", "--session", first["slug"])
    assert nothing.code == 2
    assert "No text at the end" in nothing.err
    with Path(first["path"]).open("a") as file:
        file.write("Go on, please.\n")
    second = cli("run", "--session", first["path"], "--json")
    assert (second.code, second.json["text"], second.json["session_id"]) == (
        0,
        "Second.",
        first["session_id"],
    )


def test_sessions_are_chosen_by_word_or_reference(cli: CliFixture):
    """Shows: C016."""
    cli.script_model(["One.", "Two.", "Three."])
    assert cli("run", "--session", "latest", "hi").code == 7
    first = cli("run", "--session", "latest-or-create", "--json", "hi").json
    second = cli("send", first["session_id"][:20], "more", "--json").json
    third = cli("run", "--session", "latest", "more", "--json").json
    assert [second["text"], third["text"]] == ["Two.", "Three."]
    assert {first["session_id"]} == {second["session_id"], third["session_id"]}
    assert cli("send", "nobody-there", "hi").code == 7


def test_exit_codes_tell_how_it_went(cli: CliFixture):
    cli.script_model([{"text": "Too late.", "delay": 20}])
    late = cli("run", "--timeout", "0.2", "--json", "hurry")
    assert (late.code, late.json["status"]) == (4, "timed_out")
    cli.script_model([{"error": "the server is on fire"}])
    failed = cli("run", "hi")
    assert (failed.code, failed.out) == (1, "")
    assert "failed" in failed.err
    assert cli("run", "--timeout", "nan", "hi").code == 2
    assert cli("run", "--agent", "nobody", "hi").code == 7
    assert cli("run", "--workspace", "missing", "hi").code == 2


def test_without_a_model_one_sentence_says_what_to_set(cli: CliFixture):
    ran = cli("run", "--json", "hi")
    assert ran.code == 2
    assert list(ran.json) == ["error"]
    wanted = ("RETINUE_MODEL", "OPENAI_API_KEY", "ANTHROPIC_API_KEY")
    assert [name in ran.json["error"]["message"] for name in wanted] == [True] * 3


def test_a_home_counts_before_and_after_the_command(cli: CliFixture, tmp_path: Path):
    cli.script_model(["Kept."])
    here, there = str(tmp_path / "one"), str(tmp_path / "two")
    assert cli("--home", here, "--json", "run", "hi").json["path"].startswith(here)
    assert cli("run", "--home", there, "--json", "hi").json["path"].startswith(there)
    assert len(cli("sessions", "--home", here, "list", "--json").json) == 1


def test_ctrl_c_cancels_the_run_and_keeps_its_words(cli: CliFixture, wait_until: WaitUntil):
    cli.script_model([{"text": "Slow.", "delay": 60}])
    screen = cli.open_terminal("run", "take your time")
    runs = wait_until(
        lambda: [run for run in cli("runs", "list", "--json").json if run["status"] == "running"]
    )
    screen.press("c")
    code, seen = screen.wait_for_exit()
    assert code == 5
    assert "cancelled" in seen
    assert "session.md" in seen
    assert cli("runs", "show", "--json", runs[0]["run_id"]).json["reason"] == "user_cancel"


def test_a_question_is_put_to_the_person_at_the_terminal(cli: CliFixture):
    question = {"question": "Which \x1b[2J colour?", "options": ["red", "blue"]}
    cli.script_model([{"tools": [{"tool": "ask_user", "args": question}]}, "As you wish."])
    screen = cli.open_terminal("run", "paint", NO_COLOR="1")
    screen.wait_for_text("Which ␛[2J colour?")
    screen.wait_for_text("2. blue")
    screen.type("2\n")
    screen.wait_for_text("As you wish.")
    code, seen = screen.wait_for_exit()
    assert code == 0
    path = Path(seen.rsplit(": ", 1)[1].strip())
    assert "blue" in path.read_text().rsplit("<!-- result", 1)[1]


def test_a_reader_that_leaves_early_is_no_failure_of_ours(cli: CliFixture):
    cli.script_model(["word\n" * 50_000])
    process = cli.start("run", "talk")
    require_pipe(process.stdout).close()
    assert process.wait(60) == 0
    assert b"Traceback" not in require_pipe(process.stderr).read()
    process = cli.start("tools", "list", "--json")
    require_pipe(process.stdout).close()
    process.wait(60)
    assert require_pipe(process.stderr).read() == b""


def test_a_defect_is_one_sentence_with_its_details_in_a_file(cli: CliFixture, tmp_path: Path):
    (tmp_path / "odd.py").write_text("raise RuntimeError('odd \\x1b thing')\n")
    (tmp_path / "config" / "config.toml").write_text('tools = ["odd:tool"]\n')
    cli.env["PYTHONPATH"] = str(tmp_path)
    ran = cli("tools", "list", "--json")
    assert (ran.code, ran.json["error"]["code"]) == (1, "internal_error")
    assert "Traceback" not in ran.err
    assert "␛" in ran.err
    details = Path(ran.err.rsplit("details are in ", 1)[1].strip())
    assert details.parent == tmp_path / "home" / "logs"
    assert "RuntimeError" in details.read_text()
    assert "Traceback" in cli("tools", "list", RETINUE_DEBUG="1").err


def test_a_child_is_spawned_below_its_parent_with_its_own_paths(cli: CliFixture):
    """Shows: A061, A084."""
    cli.script_model({"general": ["Parent."], "researcher": ["Child.", "Child again."]})
    parent = cli("run", "begin", "--json").json
    spawned = ("spawn", "--parent", parent["slug"], "--agent", "researcher", "--description", "Look Around!")
    child = cli(*spawned, "--allowed-paths", "docs/**", "--denied-paths", "**/secret", "look", "--json")
    assert (child.code, child.json["text"]) == (0, "Child.")
    folder = Path(child.json["path"]).parent
    assert folder.parent == Path(parent["path"]).resolve().parent / "agents"
    assert folder.name.endswith("-look-around-")
    preset = (folder / "preset.md").read_text()
    assert "docs/**" in preset
    assert "**/secret" in preset
    shown = cli("sessions", "show", child.json["session_id"], "--json").json
    assert (shown["type"], shown["parent_session_id"]) == ("agent", parent["slug"])
    assert cli("send", child.json["path"], "more").out == "Child again.\n"
    assert cli("spawn", "--agent", "researcher", "look").code == 2


def test_wait_joins_a_run_of_another_process(cli: CliFixture, wait_until: WaitUntil):
    (cli.folder / "held.py").write_text(HELD)
    (cli.folder / "hold").touch()
    (Path(cli.env["RETINUE_CONFIG"]) / "config.json").write_text('{"tools": ["held:work"]}')
    cli.env["PYTHONPATH"] = str(cli.folder)
    cli.script_model([{"tools": [{"tool": "work", "args": {}}]}, "At last."])
    cli.start("run", "slowly")
    live = wait_until(lambda: cli("runs", "list", "--json").json)
    waiting = cli.start("wait", live[0]["run_id"], "--json")
    owners = Path(cli.env["RETINUE_HOME"]) / "owners"
    wait_until(lambda: len(list(owners.iterdir())) == 2)
    assert waiting.poll() is None
    (cli.folder / "hold").unlink()
    out, err = waiting.communicate(timeout=30)
    assert waiting.returncode == 0, err
    assert [(run["status"], run["text"]) for run in json.loads(out)] == [("done", "At last.")]


def test_a_killed_run_is_told_of_and_goes_on(cli: CliFixture, wait_until: WaitUntil):
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


def test_the_overview_needs_nothing_but_its_own_file(cli: CliFixture):
    shown = cli("--help")
    assert shown.code == 0
    assert shown.out == cli("-h").out == cli().out
    assert [group in shown.out for group in ("Talk", "Conversations", "Runs", "Agents", "Machine")] == [
        True
    ] * 5
    code = "import sys; sys.argv = ['retinue', '--help']\nfrom retinue.__main__ import main\nmain()\n"
    heavy = "print(sorted({'click', 'msgspec', 'asyncio', 'aiohttp', 'ruamel'} & set(sys.modules)), file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", code + heavy], capture_output=True, text=True, env=os.environ, check=True
    )
    assert done.stderr.strip() == "[]"


def test_a_wrong_word_is_answered_with_the_nearest_command(cli: CliFixture):
    ran = cli("sesions", "list", "--json")
    assert ran.code == 2
    assert "did you mean 'sessions'?" in ran.json["error"]["message"]
    assert cli("run", "--modle", "x", "hi").err.count("\n") == 1
    assert "--model" in cli("run", "--modle", "x", "hi").err
    assert cli("--version").out.startswith("retinue ")
    assert json.loads(cli("--json", "--version").out).keys() == {"version"}
