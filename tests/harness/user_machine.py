"""One user: a home, a configuration, the command and `retinue.open()`, with model servers on loopback."""

import asyncio
import json
import signal
import sqlite3
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from commands import RETINUE, CommandResult, start_process

import retinue
from retinue import daemon_client
from retinue.app.run_options import SpawnOptions
from retinue.interfaces import Tool
from retinue.testing.fake_model_server import CapturedRequest, FakeModelServer, Script

TIMEOUT_S = 45.0


@dataclass(slots=True, kw_only=True)
class UserMachine:
    """A home, a configuration, a folder to work in, and model servers on loopback."""

    env: dict[str, str]
    folder: Path
    server: FakeModelServer | None = None

    @property
    def home(self) -> Path:
        return Path(self.env["RETINUE_HOME"])

    @property
    def sessions(self) -> Path:
        return self.home / "sessions"

    @property
    def agents(self) -> Path:
        return Path(self.env["RETINUE_CONFIG"]) / "agents"

    def write_agent(self, name: str, front: str = "", body: str = "You help.") -> Path:
        """A definition in the user's folder."""
        self.agents.mkdir(exist_ok=True)
        path = self.agents / f"{name}.md"
        path.write_text(f"---\nname: {name}\n{front}---\n\n{body}\n")
        return path

    def write_config(self, **settings: Any) -> None:
        (Path(self.env["RETINUE_CONFIG"]) / "config.json").write_text(json.dumps(settings))

    @asynccontextmanager
    async def serve_models(self, script: Script) -> AsyncGenerator[FakeModelServer]:
        """Both providers' models, played."""
        async with FakeModelServer(script) as server:
            self.env |= {
                "OPENAI_BASE_URL": server.url,
                "ANTHROPIC_BASE_URL": server.url,
                "OPENAI_API_KEY": "sk-test-openai-0123456789",
                "ANTHROPIC_API_KEY": "sk-test-anthropic-0123456789",
                "RETINUE_MODEL": "openai:test-model",
            }
            self.server = server
            yield server

    def open(self, *, tools: Sequence[Tool] = (), **more: Any) -> AbstractAsyncContextManager[retinue.App]:
        return retinue.open(env=self.env, tools=tools, **more)

    async def __call__(self, *args: str, stdin: bytes = b"", **env: str) -> CommandResult:
        """One command to its end."""
        process = await self.start(*args, **env)
        out, err = await asyncio.wait_for(process.communicate(stdin), TIMEOUT_S)
        assert process.returncode is not None
        return CommandResult(code=process.returncode, out=out.decode(), err=err.decode())

    async def start(self, *args: str, **env: str) -> asyncio.subprocess.Process:
        """A command that goes on beside the test."""
        return await start_process(
            [*RETINUE, *args],
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=self.env | env,
            cwd=self.folder,
        )

    @asynccontextmanager
    async def daemon(self) -> AsyncGenerator[asyncio.subprocess.Process]:
        """A daemon of this home while this lasts, unless it is dead by then."""
        process = await self.start("serve", "--port", "0")
        while await daemon_client.ping_daemon(self.home) is None:
            assert process.returncode is None, "it ended at once"
            await asyncio.sleep(0.02)
        yield process
        if process.returncode is None:
            await self.kill(process)

    async def kill(self, process: asyncio.subprocess.Process) -> None:
        process.send_signal(signal.SIGKILL)
        await process.communicate()

    async def wait_for_requests(self, count: int) -> None:
        """Waits until the models were asked so often."""
        assert self.server is not None
        async with asyncio.timeout(TIMEOUT_S):
            while len(self.server.requests) < count:  # noqa: ASYNC110  (another process asks: nothing to wait on)
                await asyncio.sleep(0.01)

    async def wait_for_live_runs(self, *statuses: str) -> list[dict[str, Any]]:
        """Wait until the live runs have these statuses, oldest first, and return them."""
        await wait_until(lambda: self._live_statuses() == [*statuses])
        rows = (await self("runs", "list", "--json")).json
        return sorted(rows, key=lambda row: row["run_id"])

    def _live_statuses(self) -> list[str]:
        query = "SELECT status FROM runs WHERE status IN ('queued', 'running', 'waiting') ORDER BY id"
        try:
            with closing(sqlite3.connect(f"file:{self.home}/ledger.db?mode=ro", uri=True)) as ledger:
                return [status for (status,) in ledger.execute(query)]
        except sqlite3.OperationalError:
            return []  # the ledger does not exist yet

    async def wait_for_end(self, run: str) -> dict[str, Any]:
        """Wait until a run has ended in any process, and return it."""
        while True:
            shown = (await self("runs", "show", run, "--json")).json
            if shown["status"] not in ("queued", "running", "waiting"):
                return shown
            await asyncio.sleep(0.1)

    def read_files(self) -> dict[str, bytes]:
        """Every file of the user's, to see that nothing was touched; the ledger, the logs and when leftovers were last
        swept change by themselves."""
        roots = (self.sessions, self.agents, self.folder)
        paths = [
            path for root in roots for path in root.rglob("*") if path.is_file() and path.name != ".swept"
        ]
        return {str(path): path.read_bytes() for path in paths}

    @staticmethod
    def system_prompt(request: CapturedRequest) -> str:
        """The system prompt of a request, whichever provider it was for."""
        if "system" in request.body:
            said = request.body["system"]
            return said if isinstance(said, str) else "".join(block["text"] for block in said)
        first = request.messages[0]
        assert first["role"] in ("system", "developer")
        return first["content"]

    @staticmethod
    def tool_names(request: CapturedRequest) -> list[str]:
        """The names of the tools that a request offers."""
        offered = request.body.get("tools", [])
        return sorted(each["function"]["name"] if "function" in each else each["name"] for each in offered)

    @staticmethod
    def tool_results(request: CapturedRequest) -> list[str]:
        """The tool results in a request to an OpenAI model."""
        return [message["content"] for message in request.messages if message["role"] == "tool"]

    @staticmethod
    def request_texts(request: CapturedRequest) -> list[str]:
        """What a request says of the conversation, in order: texts, calls as JSON, results."""
        found: list[str] = []
        for message in request.messages:
            said: Any = message.get("content") or ""
            called: list[Any] = message.get("tool_calls") or []
            if message["role"] not in ("system", "developer"):
                found += [said] if isinstance(said, str) else map(_block, said)
                found += [call["function"]["arguments"] for call in called]
        return [text for text in found if text]


async def wait_until(condition: Callable[[], object]) -> None:
    """Poll a condition that another process makes true."""
    async with asyncio.timeout(TIMEOUT_S):
        while not condition():  # noqa: ASYNC110  (another process makes it true: nothing to wait on)
            await asyncio.sleep(0.02)


async def spawn_and_wait(
    app: retinue.App, parent: str, agent: str, task: str = "Go", **options: Any
) -> retinue.Run:
    """Spawn a child of the session `parent`, and wait for the end of its run."""
    run = await app.runs.spawn(task, SpawnOptions(parent=parent, agent=agent, **options))
    return await app.runs.wait(run.id)


def _block(block: Any) -> str:
    """A block of a message in Anthropic's shape."""
    return str(block.get("text") or block.get("content") or json.dumps(block.get("input")))
