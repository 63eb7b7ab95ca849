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


def test_run_prints_the_words_and_tells_where_they_are_kept(retinue: CliFixture):
    retinue.plays(["The answer."])
    ran = retinue("run", "Question?")
    assert (ran.code, ran.out) == (0, "The answer.\n")
    path = Path(ran.err.split(": ", 1)[1].strip())
    assert path.name == "session.md"
    assert "Question?" in path.read_text()


def test_run_with_json_prints_one_value_of_the_promised_shape(retinue: CliFixture):
    (retinue.folder / "note.txt").write_text("hello")
    retinue.plays(
        [{"text": "Looking.", "tools": [{"tool": "read", "args": {"path": "note.txt"}}]}, "It says hello."]
    )
    ran = retinue("run", "--json", "--label", "greeting", "Read note.txt")
    assert list(ran.json) == RUN_KEYS
    assert ran.json | {"status": "done", "text": "It says hello.", "turns": 2, "tool_calls": 1} == ran.json
    assert ran.json["usage"].keys() == {"input", "output"}
    assert (ran.code, ran.err) == (0, "")


def test_every_word_of_a_run_reaches_a_pipe_as_it_was_said(retinue: CliFixture):
    """Shows: U01."""
    hostile = "\x1b]52;c;ZXZpbA==\x07 plain \u202eemag"
    retinue.plays([hostile])
    assert retinue("run", "say it").out == hostile + "\n"


def test_no_word_of_a_run_commands_a_terminal(retinue: CliFixture):
    """Shows: U01, U03."""
    retinue.plays(["\x1b]52;c;ZXZpbA==\x07\x1b[2J\x9b6n\rgone \u202eemag"])
    screen = retinue.on_terminal("run", "say it", NO_COLOR="1")
    code, seen = screen.left()
    assert code == 0
    assert "␛]52;c;ZXZpbA==␇␛[2J<U+009B>6n␍gone <U+202E>emag" in screen.look()
    assert not {"\x9b", "\x07", "\u202e"} & set(seen)


def test_a_dash_reads_the_text_from_standard_input(retinue: CliFixture):
    retinue.plays(["Heard."])
    ran = retinue("run", "--json", "-", stdin="two\nlines\n")
    assert (ran.code, ran.json["text"]) == (0, "Heard.")
    assert "two\nlines\n" in Path(ran.json["path"]).read_text()
    assert retinue("run", "-", stdin="  \n").code == 2


def test_words_that_look_like_an_option_are_words_after_two_dashes(retinue: CliFixture):
    """Shows: D15."""
    retinue.plays(["Fine."])
    ran = retinue("run", "--label", "--settings=x", "--json", "--", "--settings=/etc/passwd")
    assert ran.code == 0
    shown = retinue("runs", "show", "--json", ran.json["run_id"]).json
    assert (shown["task"], shown["label"]) == ("--settings=/etc/passwd", "--settings=x")
    assert retinue("run", "--settings=/etc/passwd").code == 2


def test_run_without_words_says_what_is_missing(retinue: CliFixture):
    retinue.plays(["Never said."])
    ran = retinue("run", "--json")
    assert (ran.code, ran.json["error"]["code"]) == (2, "usage")
    assert ran.err.startswith("retinue: The task is missing.")


def test_a_session_without_words_runs_what_a_person_typed_there(retinue: CliFixture):
    retinue.plays(["First.", "Second."])
    first = retinue("run", "--json", "Begin").json
    nothing = retinue("run", "--session", first["slug"])
    assert nothing.code == 2
    assert "No text at the end" in nothing.err
    with Path(first["path"]).open("a") as file:
        file.write("Go on, please.\n")
    second = retinue("run", "--session", first["path"], "--json")
    assert (second.code, second.json["text"], second.json["session_id"]) == (
        0,
        "Second.",
        first["session_id"],
    )


def test_sessions_are_chosen_by_word_or_reference(retinue: CliFixture):
    """Shows: C016."""
    retinue.plays(["One.", "Two.", "Three."])
    assert retinue("run", "--session", "latest", "hi").code == 7
    first = retinue("run", "--session", "latest-or-create", "--json", "hi").json
    second = retinue("send", first["session_id"][:20], "more", "--json").json
    third = retinue("run", "--session", "latest", "more", "--json").json
    assert [second["text"], third["text"]] == ["Two.", "Three."]
    assert {first["session_id"]} == {second["session_id"], third["session_id"]}
    assert retinue("send", "nobody-there", "hi").code == 7


def test_exit_codes_tell_how_it_went(retinue: CliFixture):
    retinue.plays([{"text": "Too late.", "delay": 20}])
    late = retinue("run", "--timeout", "0.2", "--json", "hurry")
    assert (late.code, late.json["status"]) == (4, "timed_out")
    retinue.plays([{"error": "the server is on fire"}])
    failed = retinue("run", "hi")
    assert (failed.code, failed.out) == (1, "")
    assert "failed" in failed.err
    assert retinue("run", "--timeout", "nan", "hi").code == 2
    assert retinue("run", "--agent", "nobody", "hi").code == 7
    assert retinue("run", "--workspace", "missing", "hi").code == 2


def test_without_a_model_one_sentence_says_what_to_set(retinue: CliFixture):
    ran = retinue("run", "--json", "hi")
    assert ran.code == 2
    assert list(ran.json) == ["error"]
    wanted = ("RETINUE_MODEL", "OPENAI_API_KEY", "ANTHROPIC_API_KEY")
    assert [name in ran.json["error"]["message"] for name in wanted] == [True] * 3


def test_a_home_counts_before_and_after_the_command(retinue: CliFixture, tmp_path: Path):
    retinue.plays(["Kept."])
    here, there = str(tmp_path / "one"), str(tmp_path / "two")
    assert retinue("--home", here, "--json", "run", "hi").json["path"].startswith(here)
    assert retinue("run", "--home", there, "--json", "hi").json["path"].startswith(there)
    assert len(retinue("sessions", "--home", here, "list", "--json").json) == 1


def test_ctrl_c_cancels_the_run_and_keeps_its_words(retinue: CliFixture, eventually: WaitUntil):
    retinue.plays([{"text": "Slow.", "delay": 60}])
    screen = retinue.on_terminal("run", "take your time")
    runs = eventually(
        lambda: [run for run in retinue("runs", "list", "--json").json if run["status"] == "running"]
    )
    screen.press("c")
    code, seen = screen.left()
    assert code == 5
    assert "cancelled" in seen
    assert "session.md" in seen
    assert retinue("runs", "show", "--json", runs[0]["run_id"]).json["reason"] == "user_cancel"


def test_a_question_is_put_to_the_person_at_the_terminal(retinue: CliFixture):
    question = {"question": "Which \x1b[2J colour?", "options": ["red", "blue"]}
    retinue.plays([{"tools": [{"tool": "ask_user", "args": question}]}, "As you wish."])
    screen = retinue.on_terminal("run", "paint", NO_COLOR="1")
    screen.until("Which ␛[2J colour?")
    screen.until("2. blue")
    screen.type("2\n")
    screen.until("As you wish.")
    code, seen = screen.left()
    assert code == 0
    path = Path(seen.rsplit(": ", 1)[1].strip())
    assert "blue" in path.read_text().rsplit("<!-- result", 1)[1]


def test_a_reader_that_leaves_early_is_no_failure_of_ours(retinue: CliFixture):
    retinue.plays(["word\n" * 50_000])
    process = retinue.started("run", "talk")
    require_pipe(process.stdout).close()
    assert process.wait(60) == 0
    assert b"Traceback" not in require_pipe(process.stderr).read()
    process = retinue.started("tools", "list", "--json")
    require_pipe(process.stdout).close()
    process.wait(60)
    assert require_pipe(process.stderr).read() == b""


def test_a_defect_is_one_sentence_with_its_details_in_a_file(retinue: CliFixture, tmp_path: Path):
    (tmp_path / "odd.py").write_text("raise RuntimeError('odd \\x1b thing')\n")
    (tmp_path / "config" / "config.toml").write_text('tools = ["odd:tool"]\n')
    retinue.env["PYTHONPATH"] = str(tmp_path)
    ran = retinue("tools", "list", "--json")
    assert (ran.code, ran.json["error"]["code"]) == (1, "defect")
    assert "Traceback" not in ran.err
    assert "␛" in ran.err
    details = Path(ran.err.rsplit("details are in ", 1)[1].strip())
    assert details.parent == tmp_path / "home" / "logs"
    assert "RuntimeError" in details.read_text()
    assert "Traceback" in retinue("tools", "list", RETINUE_DEBUG="1").err


def test_a_child_is_spawned_below_its_parent_with_its_own_paths(retinue: CliFixture):
    """Shows: A061, A084."""
    retinue.plays({"general": ["Parent."], "researcher": ["Child.", "Child again."]})
    parent = retinue("run", "begin", "--json").json
    spawned = ("spawn", "--parent", parent["slug"], "--agent", "researcher", "--description", "Look Around!")
    child = retinue(*spawned, "--allowed-paths", "docs/**", "--denied-paths", "**/secret", "look", "--json")
    assert (child.code, child.json["text"]) == (0, "Child.")
    folder = Path(child.json["path"]).parent
    assert folder.parent == Path(parent["path"]).resolve().parent / "agents"
    assert folder.name.endswith("-look-around-")
    preset = (folder / "preset.md").read_text()
    assert "docs/**" in preset
    assert "**/secret" in preset
    shown = retinue("sessions", "show", child.json["session_id"], "--json").json
    assert (shown["type"], shown["parent_session_id"]) == ("agent", parent["slug"])
    assert retinue("send", child.json["path"], "more").out == "Child again.\n"
    assert retinue("spawn", "--agent", "researcher", "look").code == 2


def test_wait_joins_a_run_of_another_process(retinue: CliFixture, eventually: WaitUntil):
    (retinue.folder / "held.py").write_text(HELD)
    (retinue.folder / "hold").touch()
    (Path(retinue.env["RETINUE_CONFIG"]) / "config.json").write_text('{"tools": ["held:work"]}')
    retinue.env["PYTHONPATH"] = str(retinue.folder)
    retinue.plays([{"tools": [{"tool": "work", "args": {}}]}, "At last."])
    retinue.started("run", "slowly")
    live = eventually(lambda: retinue("runs", "list", "--json").json)
    waiting = retinue.started("wait", live[0]["run_id"], "--json")
    owners = Path(retinue.env["RETINUE_HOME"]) / "owners"
    eventually(lambda: len(list(owners.iterdir())) == 2)
    assert waiting.poll() is None
    (retinue.folder / "hold").unlink()
    out, err = waiting.communicate(timeout=30)
    assert waiting.returncode == 0, err
    assert [(run["status"], run["text"]) for run in json.loads(out)] == [("done", "At last.")]


def test_a_killed_run_is_told_of_and_goes_on(retinue: CliFixture, eventually: WaitUntil):
    retinue.plays([{"text": "Never said.", "delay": 60}])
    process = retinue.started("run", "survive", "--json")
    eventually(lambda: [run for run in retinue("runs", "list", "--json").json if run["status"] == "running"])
    process.send_signal(signal.SIGKILL)
    process.wait(30)
    assert '1 run was interrupted. Continue with "retinue runs resume".' in retinue("sessions", "list").err
    retinue.plays(["Done after all."])
    resumed = retinue("runs", "resume", "--json")
    assert (resumed.code, [run["text"] for run in resumed.json]) == (0, ["Done after all."])
    assert "interrupted" not in retinue("sessions", "list").err


def test_the_overview_needs_nothing_but_its_own_file(retinue: CliFixture):
    shown = retinue("--help")
    assert shown.code == 0
    assert shown.out == retinue("-h").out == retinue().out
    assert [group in shown.out for group in ("Talk", "Conversations", "Runs", "Agents", "Machine")] == [
        True
    ] * 5
    code = "import sys; sys.argv = ['retinue', '--help']\nfrom retinue.__main__ import main\nmain()\n"
    heavy = "print(sorted({'click', 'msgspec', 'asyncio', 'aiohttp', 'ruamel'} & set(sys.modules)), file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", code + heavy], capture_output=True, text=True, env=os.environ, check=True
    )
    assert done.stderr.strip() == "[]"


def test_a_wrong_word_is_answered_with_the_nearest_command(retinue: CliFixture):
    ran = retinue("sesions", "list", "--json")
    assert ran.code == 2
    assert "did you mean 'sessions'?" in ran.json["error"]["message"]
    assert retinue("run", "--modle", "x", "hi").err.count("\n") == 1
    assert "--model" in retinue("run", "--modle", "x", "hi").err
    assert retinue("--version").out.startswith("retinue ")
    assert json.loads(retinue("--json", "--version").out).keys() == {"version"}
