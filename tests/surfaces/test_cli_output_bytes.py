"""The exact bytes that terminals and logs get, whatever a model, a tool or an error contains."""

import json
import os
import re
import signal
import stat
import termios
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cli_fixture import CliFixture
from planted_secret import PlantedSecret

from retinue.app.log_file import append_log_line

CONTROL_BYTES = {*range(0x20)} - {0x09, 0x0A, 0x0D} | {0x7F}
"""Control bytes except tab and newline; the terminal itself adds a carriage return before each newline."""
OWN_SEQUENCES = re.compile(rb"\x1b\[(0|1|2|31|32|33|36)m|\x1b\[(\d+[AG]|[KJ])")
"""The escape sequences that Retinue itself writes: colours and the progress display."""
HOSTILE = (
    "\x1b]52;c;ZXZpbA==\x07\x1b]0;title\x07\x1b]8;;http://evil\x1b\\x\x1b]8;;\x1b\\\x1b[2J\x1b[6n\x1bP+q544e\x1b\\"
    "\x9b2J\x9d0;t\x9cgood\rbad\x08\x7f\U000e0041 [link=http://evil]x[/link] [/]"
)


def control_bytes(output: str) -> set[int]:
    raw = OWN_SEQUENCES.sub(b"", output.encode())
    found = CONTROL_BYTES & set(raw)
    return found | ({0x0D} if b"\r" in raw.replace(b"\r\n", b"") else set())


def test_text_of_models_and_tools_contains_no_control_bytes_on_a_terminal(cli: CliFixture):
    """Shows: U01, U02, U03, U04."""
    hostile_path = f"{cli.folder}/\u202efile\x1b[2J"
    Path(hostile_path).write_text(HOSTILE)
    calls = [
        {"name": "read", "args": {"path": hostile_path}},
        {"name": "no\x1b[2Jtool", "args": {"text": HOSTILE}},
    ]
    cli.script_model([{"tools": calls, "text": HOSTILE}, HOSTILE])
    code, output = cli.open_terminal("run", f"say {HOSTILE}").wait_for_exit()
    assert code == 0
    assert control_bytes(output) == set()
    assert not {"\u202e", "\U000e0041", "\x9b", "\x9d"} & set(output)
    assert "␛]52;c;ZXZpbA==␇" in output
    for command in (("runs", "history"), ("sessions", "list"), ("sessions", "export", "general")):
        code, output = cli.open_terminal(*command).wait_for_exit()
        assert code == 0
        assert control_bytes(output) == set()


def test_a_line_of_a_million_characters_is_printed_whole_and_shortened_in_lists(cli: CliFixture):
    """Shows: U04."""
    cli.script_model(["x" * 1_000_000])
    code, output = cli.open_terminal("run", "long").wait_for_exit()
    assert (code, output.count("x")) == (0, 1_000_000)
    table = cli("runs", "history").out
    assert max(map(len, table.splitlines())) < 1_000


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_chat_ended_by_a_signal_restores_the_terminal(cli: CliFixture, number: int):
    """Shows: U10."""
    cli.script_model(["Hello."])
    screen = cli.open_terminal("chat")
    before = termios.tcgetattr(screen.fd)
    screen.wait_for_text("> ")
    os.kill(screen.process.pid, number)
    screen.wait_for_exit()
    assert termios.tcgetattr(screen.fd) == before


def test_an_internal_error_leaves_the_terminal_unchanged(cli: CliFixture, tmp_path: Path):
    """Shows: U10."""
    (tmp_path / "odd.py").write_text("raise RuntimeError('odd')\n")
    (tmp_path / "config" / "config.toml").write_text('tools = ["odd:tool"]\n')
    screen = cli.open_terminal("chat", PYTHONPATH=str(tmp_path))
    before = termios.tcgetattr(screen.fd)
    code, _ = screen.wait_for_exit()
    assert code == 1
    assert termios.tcgetattr(screen.fd) == before


def test_secrets_in_an_internal_error_are_redacted(
    cli: CliFixture, tmp_path: Path, planted_secrets: dict[str, PlantedSecret]
):
    """Shows: X12."""
    key = "sk-test-0123456789-exact"
    message = f"{key} {planted_secrets['github person'].text} Authorization: Bearer {planted_secrets['bearer'].secret}"
    (tmp_path / "odd.py").write_text(f"raise RuntimeError({message!r})\n")
    (tmp_path / "config" / "config.toml").write_text('tools = ["odd:tool"]\n')
    env = {"PYTHONPATH": str(tmp_path), "OPENAI_API_KEY": key}
    result = cli("tools", "list", **env)
    path = Path(result.err.rsplit("details are in ", 1)[1].strip())
    debug_output = cli("tools", "list", **env, RETINUE_DEBUG="1").err
    secrets = (key, planted_secrets["github person"].secret, planted_secrets["bearer"].secret)
    for text in (result.err, path.read_text(), debug_output):
        assert "RuntimeError" in text
        assert not [secret for secret in secrets if secret in text]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_command_writes_no_core_dump(cli: CliFixture, tmp_path: Path):
    """Shows: X12."""
    (tmp_path / "odd.py").write_text(
        "import resource\nraise RuntimeError(resource.getrlimit(resource.RLIMIT_CORE)[0])\n"
    )
    (tmp_path / "config" / "config.toml").write_text('tools = ["odd:tool"]\n')
    assert "unexpected RuntimeError: 0." in cli("tools", "list", PYTHONPATH=str(tmp_path)).err


def test_text_cannot_forge_a_line_of_the_log(tmp_path: Path):
    """Shows: U11."""
    hostile = '\n{"level": "info", "error": "all is well"}\r\n\u2028\x1b[2J\udc80'
    append_log_line(tmp_path, {"at": datetime(2026, 1, 1, tzinfo=UTC), "error": hostile})
    append_log_line(tmp_path, {"error": "next"})
    raw = (tmp_path / "logs" / "retinue.jsonl").read_bytes()
    lines = raw.split(b"\n")
    assert (len(lines), lines[2]) == (3, b"")
    assert json.loads(lines[0])["error"].startswith('\n{"level"')
    assert not CONTROL_BYTES & set(raw)
