"""A fake MCP server with configurable misbehaviour.

Its behaviour is read from a file before each message, so a test can change it while the server runs. As a
program it needs only the standard library.
"""

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HANG_SECONDS = 3600.0


def tool_definition(name: str, description: str = "Acts.", **arguments: Any) -> dict[str, Any]:
    """Return a tool definition as servers list it.

    `arguments` maps each argument to its schema; `annotations` among them are the tool's annotations.
    """
    annotations = {"annotations": arguments.pop("annotations")} if "annotations" in arguments else {}
    schema = {"type": "object", "properties": arguments, "required": sorted(arguments)}
    return {"name": name, "description": description, "inputSchema": schema, **annotations}


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeMcpServer:
    """A fake server in a folder of its own, and the messages it received."""

    folder: Path

    def set_behaviour(
        self, *tools: dict[str, Any], actions: dict[str, Any] | None = None, **options: Any
    ) -> None:
        """Set the tools and their behaviour, from the next message on.

        Args:
            tools: The tools to list.
            actions: By tool name, what a call does: `say`, `error`, `result` (returned unchanged), `env`, `die`, `hang`,
                `flood` (write to standard error), `line` (without an end) or `babble` (send notifications forever). A tool
                without an action returns its arguments.
            options: `start` is an action run at start-up; `version` is the protocol version to claim.
        """
        text = json.dumps({"tools": tools, "actions": actions or {}, **options})
        new_file = self.folder / "behaviour.new"
        new_file.write_text(text, encoding="utf-8")
        new_file.replace(self.folder / "behaviour.json")

    def settings(self, **extra_settings: Any) -> dict[str, Any]:
        """Return the server's configuration entry."""
        args = ["-I", "-S", str(Path(__file__).resolve()), str(self.folder)]
        return {"command": sys.executable, "args": args, **extra_settings}

    def received_messages(self, method: str | None = None) -> list[dict[str, Any]]:
        """Return every message received so far, by all processes of the server."""
        log_file = self.folder / "received.jsonl"
        lines = log_file.read_text(encoding="utf-8").split("\n")[:-1] if log_file.exists() else []
        return [each for each in map(json.loads, lines) if method in (None, each.get("method"))]

    def process_ids(self) -> list[int]:
        """Return the ids of all processes of the server, including the children they started."""
        log_file = self.folder / "pids"
        return [int(line) for line in log_file.read_text().split()] if log_file.exists() else []

    def live_process_ids(self) -> list[int]:
        return [pid for pid in self.process_ids() if _is_alive(pid)]


class McpServerProcess:
    """The server process; answers each message as its behaviour file says."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read_behaviour(self) -> dict[str, Any]:
        return json.loads((self._folder / "behaviour.json").read_text(encoding="utf-8"))

    def serve(self) -> None:
        self.append_line("pids", str(os.getpid()))
        self.run_action(self.read_behaviour().get("start", {}))
        for line in sys.stdin:
            self.append_line("received.jsonl", line.strip())
            message: dict[str, Any] = json.loads(line)
            if "method" in message and "id" in message:
                send_message(
                    {"id": message["id"], **self.answer_request(message["method"], message["params"])}
                )

    def answer_request(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        behaviour = self.read_behaviour()
        if method == "initialize":
            version = behaviour.get("version", params["protocolVersion"])
            server_info: dict[str, Any] = {
                "serverInfo": {"name": "fake", "version": "1"},
                "capabilities": {"tools": {}},
            }
            return {"result": {"protocolVersion": version, **server_info}}
        if method == "tools/list":
            # One tool per page, so that a client that reads only the first page fails its test.
            position = int(params.get("cursor", 0))
            next_page = {"nextCursor": str(position + 1)} if position + 1 < len(behaviour["tools"]) else {}
            return {"result": {"tools": behaviour["tools"][position : position + 1], **next_page}}
        if method == "tools/call":
            action: dict[str, Any] = behaviour["actions"].get(params["name"], {})
            return self.run_action(action) or text_result(action.get("say", json.dumps(params["arguments"])))
        return {"error": {"code": -32601, "message": f"unknown method {method}"}}

    def run_action(self, action: dict[str, Any]) -> dict[str, Any]:
        if "flood" in action:
            os.write(
                2, b"".join(b"standard error line %d\n" % number for number in range(int(action["flood"])))
            )
        if "line" in action:
            sys.stdout.write("x" * int(action["line"]))
            sys.stdout.flush()
        while "babble" in action:
            send_message({"method": "notifications/message", "params": {"data": "x" * 100_000}})
        if "die" in action:
            os.write(2, b"fatal error\n")
            os._exit(int(action["die"]))
        if "hang" in action:
            child = [sys.executable, "-I", "-S", "-c", f"import time; time.sleep({HANG_SECONDS})"]
            self.append_line("pids", str(subprocess.Popen(child, start_new_session=True).pid))  # noqa: S603  (our own command)
            time.sleep(HANG_SECONDS)
        if "env" in action:
            return text_result(json.dumps({"env": dict(os.environ), "cwd": str(Path.cwd())}))
        if "error" in action:
            return {"result": {**text_result(action["error"])["result"], "isError": True}}
        return {"result": action["result"]} if "result" in action else {}

    def append_line(self, name: str, line: str) -> None:
        with (self._folder / name).open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def text_result(content: str) -> dict[str, Any]:
    return {"result": {"content": [{"type": "text", "text": content}]}}


def send_message(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    McpServerProcess(Path(sys.argv[1])).serve()
