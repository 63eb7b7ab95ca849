"""An agent that wants the daemon's keys: by its tools, by commands, by other processes, by the daemon's own ways in."""

import asyncio
import hashlib
import re
import sys
from pathlib import Path
from typing import Any

from user_machine import UserMachine

from retinue import daemon_client
from retinue.testing.fake_model_server import CapturedRequest
from retinue.testing.replies import FakeResponse, text_reply, tool_call_reply

TRIES = r"""
import glob, hashlib, os, socket, sys
home, port, mark = sys.argv[1:4]
def tried(what, work):
    try:
        found = work()
    except OSError as error:
        found = b""
        print(what, "failed:", type(error).__name__)
    if found:
        print("REACHED", what)
def read(path):
    with open(path, "rb") as file:
        return file.read()
def elsewhere():
    found = b""
    for path in glob.glob("/proc/[0-9]*/root" + home + "/token"):
        try:
            found += read(path)
        except (FileNotFoundError, ProcessLookupError):
            pass  # that process has just ended
    return found
def told(family, place, asked):
    line = socket.socket(family, socket.SOCK_STREAM)
    line.settimeout(5)
    line.connect(place)
    line.sendall(asked)
    return line.recv(4096)
ask = b"GET /api/health HTTP/1.1\r\nHost: 127.0.0.1:" + port.encode() + b"\r\n\r\n"
tried("token", lambda: read(home + "/token"))
tried("tokens", lambda: read(home + "/tokens.json"))
tried("proc", elsewhere)
tried("socket", lambda: told(socket.AF_UNIX, home + "/daemon.sock", ask))
tried("port", lambda: told(socket.AF_INET, ("127.0.0.1", int(port)), ask))
marks = [hashlib.sha256(each.encode()).hexdigest() for each in os.environ.values()]
tried("environment", lambda: b"x" if mark in marks else b"")
print("tried everything")
"""
ALL = {"token", "tokens", "proc", "socket", "port"}


def reached(said: str) -> set[str]:
    return set(re.findall(r"REACHED (\w+)", said))


async def outside(folder: Path, *arguments: str) -> str:
    """The same program, held by nothing."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(folder / "tries.py"), *arguments, stdout=asyncio.subprocess.PIPE
    )
    return (await process.communicate())[0].decode()


async def test_no_key_and_no_way_in_is_within_an_agents_reach(machine: UserMachine):
    """What the same program reaches outside shows that there was something to reach.

    Shows: A18.
    """
    machine.write_config(approvals="auto")
    machine.write_agent("thief", "paths: {read: ['/**'], write: ['/**']}\nshell_commands: {allow: ['*']}\n")
    (machine.folder / "tries.py").write_text(TRIES)
    home = str(machine.home)
    wishes: list[Any] = []

    def script(asked: CapturedRequest) -> FakeResponse:
        return wishes[asked.reply_count]

    async with machine.serve_models(script) as server:
        started = (await machine("serve", "--detach", "--port", "0", "--json")).json
        await machine("tokens", "add", "ci", "--rights", "admin")
        token = (machine.home / "token").read_text().strip()
        mark = hashlib.sha256(token.encode()).hexdigest()
        port = re.findall(r":(\d+)/", started["url"])[0]
        command = f"python3 tries.py {home} {port} {mark}; cat {home}/token; ls -la {home}; exec 3<>/dev/tcp/127.0.0.1/{port} && echo REACHED"
        wishes += [
            tool_call_reply(("read", {"path": f"{home}/token"}), ("read", {"path": f"{home}/tokens.json"})),
            tool_call_reply(("ls", {"path": home}), ("grep", {"pattern": ".", "path": home})),
            tool_call_reply(("bash", {"command": command})),
            tool_call_reply(("write", {"path": f"{home}/token", "content": "x" * 43})),
            text_reply("Nothing."),
        ]
        ran = (await machine("run", "--background", "--agent", "thief", "--json", "Get the keys.")).json
        while (shown := (await machine("runs", "show", ran["run_id"], "--json")).json)["status"] in (  # noqa: ASYNC110  (another process does it)
            "queued",
            "running",
        ):
            await asyncio.sleep(0.1)
        control = await outside(machine.folder, home, port, mark)
        there = await daemon_client.ping_daemon(machine.home)
        await machine("serve", "--stop")
    assert (shown["status"], shown["sandbox"]) == ("done", "strict")
    assert reached(control) == ALL
    said = [str(each.body) for each in server.requests]
    tried = Path(shown["path"]).read_text()
    assert "tried everything" in tried
    assert tried.count('"error": "out_of_scope"') == 5
    assert "REACHED" not in tried.replace("&& echo REACHED", "")
    assert [each for each in (*said, tried) if token in each] == []
    assert (machine.home / "token").read_text().strip() == token
    assert there is not None
    assert there["pid"] == started["pid"]
