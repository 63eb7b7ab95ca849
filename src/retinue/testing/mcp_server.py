"""An MCP server with every bad habit: what it offers and does stands in a file that is read anew at each message, so
that a test changes it while it runs. Started as a program, it needs nothing but Python itself."""

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOREVER = 3600.0


def tool(name: str, description: str = "Acts.", **more: Any) -> dict[str, Any]:
    """One tool as servers list it; `more` are arguments, each with its schema, and `annotations`."""
    said = {"annotations": more.pop("annotations")} if "annotations" in more else {}
    schema = {"type": "object", "properties": more, "required": sorted(more)}
    return {"name": name, "description": description, "inputSchema": schema, **said}


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeServer:
    """A server in a folder of its own, and what it was told."""

    folder: Path

    def offers(self, *tools: dict[str, Any], does: dict[str, Any] | None = None, **habits: Any) -> None:
        """From now on. `does` says by a tool's name what a call of it does: `say`, `error`, `result` (as it stands),
        `env`, `die`, `hang`, `flood` (standard error), `line` (without an end), `babble` (for ever); without a word it says its arguments. Of the `habits`, `start` does the
        same when it is started, and `version` is what it claims to speak."""
        said = json.dumps({"tools": tools, "does": does or {}, **habits})
        new = self.folder / "behaviour.new"
        new.write_text(said, encoding="utf-8")
        new.replace(self.folder / "behaviour.json")

    def settings(self, **more: Any) -> dict[str, Any]:
        """As the configuration names it."""
        args = ["-I", "-S", str(Path(__file__).resolve()), str(self.folder)]
        return {"command": sys.executable, "args": args, **more}

    def heard(self, method: str | None = None) -> list[dict[str, Any]]:
        """Every message so far, of every process of it."""
        log = self.folder / "heard.jsonl"
        lines = log.read_text(encoding="utf-8").split("\n")[:-1] if log.exists() else []
        return [each for each in map(json.loads, lines) if method in (None, each.get("method"))]

    def pids(self) -> list[int]:
        """Every process that it ever was, and those that it left to themselves."""
        log = self.folder / "pids"
        return [int(line) for line in log.read_text().split()] if log.exists() else []

    def living(self) -> list[int]:
        """Those of them that live."""
        return [pid for pid in self.pids() if _lives(pid)]


class Serving:
    """The server itself: it answers each message as its file says."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def behaviour(self) -> dict[str, Any]:
        return json.loads((self._folder / "behaviour.json").read_text(encoding="utf-8"))

    def serve(self) -> None:
        self.note("pids", str(os.getpid()))
        self.act(self.behaviour().get("start", {}))
        for line in sys.stdin:
            self.note("heard.jsonl", line.strip())
            message: dict[str, Any] = json.loads(line)
            if "method" in message and "id" in message:
                say({"id": message["id"], **self.answer(message["method"], message["params"])})

    def answer(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        said = self.behaviour()
        if method == "initialize":
            version = said.get("version", params["protocolVersion"])
            about: dict[str, Any] = {
                "serverInfo": {"name": "fake", "version": "1"},
                "capabilities": {"tools": {}},
            }
            return {"result": {"protocolVersion": version, **about}}
        if method == "tools/list":
            # In pages of one, so that whoever reads only the first is found out.
            at = int(params.get("cursor", 0))
            more = {"nextCursor": str(at + 1)} if at + 1 < len(said["tools"]) else {}
            return {"result": {"tools": said["tools"][at : at + 1], **more}}
        if method == "tools/call":
            does: dict[str, Any] = said["does"].get(params["name"], {})
            return self.act(does) or text(does.get("say", json.dumps(params["arguments"])))
        return {"error": {"code": -32601, "message": f"no {method} here"}}

    def act(self, does: dict[str, Any]) -> dict[str, Any]:
        if "flood" in does:
            os.write(2, b"".join(b"%d bottles of beer\n" % at for at in range(int(does["flood"]))))
        if "line" in does:
            sys.stdout.write("x" * int(does["line"]))
            sys.stdout.flush()
        while "babble" in does:
            say({"method": "notifications/message", "params": {"data": "x" * 100_000}})
        if "die" in does:
            os.write(2, b"I have had enough\n")
            os._exit(int(does["die"]))
        if "hang" in does:
            child = [sys.executable, "-I", "-S", "-c", f"import time; time.sleep({FOREVER})"]
            self.note("pids", str(subprocess.Popen(child, start_new_session=True).pid))  # noqa: S603  (ours)
            time.sleep(FOREVER)
        if "env" in does:
            return text(json.dumps({"env": dict(os.environ), "cwd": str(Path.cwd())}))
        if "error" in does:
            return {"result": {**text(does["error"])["result"], "isError": True}}
        return {"result": does["result"]} if "result" in does else {}

    def note(self, name: str, line: str) -> None:
        with (self._folder / name).open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def text(words: str) -> dict[str, Any]:
    return {"result": {"content": [{"type": "text", "text": words}]}}


def say(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    Serving(Path(sys.argv[1])).serve()
