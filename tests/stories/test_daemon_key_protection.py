"""An agent cannot obtain the daemon's tokens by tools, commands, other processes or the daemon's sockets."""

import asyncio
import hashlib
import re
import sys
from pathlib import Path

from user_machine import UserMachine

from retinue import daemon_client
from retinue.testing.fake_model_server import CapturedRequest
from retinue.testing.replies import FakeResponse, text_reply, tool_call_reply

ATTEMPTS = r"""
import glob, hashlib, os, socket, sys
home, port, digest = sys.argv[1:4]
def attempt(name, action):
    try:
        data = action()
    except OSError as error:
        data = b""
        print(name, "failed:", type(error).__name__)
    if data:
        print("REACHED", name)
def read(path):
    with open(path, "rb") as file:
        return file.read()
def read_through_proc():
    data = b""
    for path in glob.glob("/proc/[0-9]*/root" + home + "/token"):
        try:
            data += read(path)
        except (FileNotFoundError, ProcessLookupError):
            pass  # that process has just ended
    return data
def send(family, address, request):
    connection = socket.socket(family, socket.SOCK_STREAM)
    connection.settimeout(5)
    connection.connect(address)
    connection.sendall(request)
    return connection.recv(4096)
request = b"GET /api/health HTTP/1.1\r\nHost: 127.0.0.1:" + port.encode() + b"\r\n\r\n"
attempt("token", lambda: read(home + "/token"))
attempt("tokens", lambda: read(home + "/tokens.json"))
attempt("proc", read_through_proc)
attempt("socket", lambda: send(socket.AF_UNIX, home + "/daemon.sock", request))
attempt("port", lambda: send(socket.AF_INET, ("127.0.0.1", int(port)), request))
digests = [hashlib.sha256(each.encode()).hexdigest() for each in os.environ.values()]
attempt("environment", lambda: b"x" if digest in digests else b"")
print("tried everything")
"""
ALL_TARGETS = {"token", "tokens", "proc", "socket", "port"}


def targets_reached(output: str) -> set[str]:
    return set(re.findall(r"REACHED (\w+)", output))


async def run_unsandboxed(folder: Path, *arguments: str) -> str:
    """Run the same program without a sandbox."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(folder / "attempts.py"), *arguments, stdout=asyncio.subprocess.PIPE
    )
    return (await process.communicate())[0].decode()


async def test_an_agent_reaches_neither_the_tokens_nor_a_socket_of_the_daemon(machine: UserMachine):
    """The same program without a sandbox reaches every target, which shows that the attempts work.

    Shows: A18.
    """
    machine.write_config(approvals="auto")
    machine.write_agent("thief", "paths: {read: ['/**'], write: ['/**']}\nshell_commands: {allow: ['*']}\n")
    (machine.folder / "attempts.py").write_text(ATTEMPTS)
    home = str(machine.home)
    replies: list[FakeResponse] = []

    def script(asked: CapturedRequest) -> FakeResponse:
        return replies[asked.reply_count]

    async with machine.serve_models(script) as server:
        started = (await machine("serve", "--detach", "--port", "0", "--json")).json
        await machine("tokens", "add", "ci", "--rights", "admin")
        token = (machine.home / "token").read_text().strip()
        digest = hashlib.sha256(token.encode()).hexdigest()
        port = re.findall(r":(\d+)/", started["url"])[0]
        command = f"python3 attempts.py {home} {port} {digest}; cat {home}/token; ls -la {home}; exec 3<>/dev/tcp/127.0.0.1/{port} && echo REACHED"
        replies += [
            tool_call_reply(("read", {"path": f"{home}/token"}), ("read", {"path": f"{home}/tokens.json"})),
            tool_call_reply(("ls", {"path": home}), ("grep", {"pattern": ".", "path": home})),
            tool_call_reply(("bash", {"command": command})),
            tool_call_reply(("write", {"path": f"{home}/token", "content": "x" * 43})),
            text_reply("Nothing."),
        ]
        ran = (await machine("run", "--background", "--agent", "thief", "--json", "Get the keys.")).json
        shown = await machine.wait_for_end(ran["run_id"])
        control = await run_unsandboxed(machine.folder, home, port, digest)
        daemon = await daemon_client.ping_daemon(machine.home)
        await machine("serve", "--stop")
    assert (shown["status"], shown["sandbox"]) == ("done", "strict")
    assert targets_reached(control) == ALL_TARGETS
    requests = [str(each.body) for each in server.requests]
    transcript = Path(shown["path"]).read_text()
    assert "tried everything" in transcript
    assert transcript.count('"error": "out_of_scope"') == 5
    assert "REACHED" not in transcript.replace("&& echo REACHED", "")
    assert [each for each in (*requests, transcript) if token in each] == []
    assert (machine.home / "token").read_text().strip() == token
    assert daemon is not None
    assert daemon["pid"] == started["pid"]
