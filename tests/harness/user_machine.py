"""The machine of one user: a home, a configuration, commands and `retinue.open()`, with model servers on loopback."""

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
        """Write a definition to the user's folder of agents."""
        self.agents.mkdir(exist_ok=True)
        path = self.agents / f"{name}.md"
        path.write_text(f"---\nname: {name}\n{front}---\n\n{body}\n")
        return path

    def write_config(self, **settings: Any) -> None:
        (Path(self.env["RETINUE_CONFIG"]) / "config.json").write_text(json.dumps(settings))

    @asynccontextmanager
    async def serve_models(self, script: Script) -> AsyncGenerator[FakeModelServer]:
        """Serve scripted models for both providers."""
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
        """Run a command to its end."""
        process = await self.start(*args, **env)
        out, err = await asyncio.wait_for(process.communicate(stdin), TIMEOUT_S)
        assert process.returncode is not None
        return CommandResult(code=process.returncode, out=out.decode(), err=err.decode())

    async def start(self, *args: str, **env: str) -> asyncio.subprocess.Process:
        """Start a command that runs alongside the test."""
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
        """Run a daemon of this home, and kill it at the end unless it has ended."""
        process = await self.start("serve", "--port", "0")
        while await daemon_client.ping_daemon(self.home) is None:
            assert process.returncode is None, "the daemon ended at once"
            await asyncio.sleep(0.02)
        yield process
        if process.returncode is None:
            await self.kill(process)

    async def kill(self, process: asyncio.subprocess.Process) -> None:
        process.send_signal(signal.SIGKILL)
        await process.communicate()

    async def wait_for_requests(self, count: int) -> None:
        """Wait until the models have received this many requests."""
        assert self.server is not None
        async with asyncio.timeout(TIMEOUT_S):
            while len(self.server.requests) < count:  # noqa: ASYNC110  (another process sends them: nothing to wait on)
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
        """Return all files of the user, to check that none changed.

        The ledger, the logs and the time of the last sweep are left out, because they change by themselves.
        """
        roots = (self.sessions, self.agents, self.folder)
        paths = [
            path for root in roots for path in root.rglob("*") if path.is_file() and path.name != ".swept"
        ]
        return {str(path): path.read_bytes() for path in paths}

    @staticmethod
    def system_prompt(request: CapturedRequest) -> str:
        """Return the system prompt of a request to either provider."""
        if "system" in request.body:
            content = request.body["system"]
            return content if isinstance(content, str) else "".join(block["text"] for block in content)
        first = request.messages[0]
        assert first["role"] in ("system", "developer")
        return first["content"]

    @staticmethod
    def tool_names(request: CapturedRequest) -> list[str]:
        """Return the names of the tools in a request."""
        tools = request.body.get("tools", [])
        return sorted(each["function"]["name"] if "function" in each else each["name"] for each in tools)

    @staticmethod
    def tool_results(request: CapturedRequest) -> list[str]:
        """Return the tool results in a request to an OpenAI model."""
        return [message["content"] for message in request.messages if message["role"] == "tool"]

    @staticmethod
    def request_texts(request: CapturedRequest) -> list[str]:
        """Return the conversation in a request in order: texts, calls as JSON, results."""
        texts: list[str] = []
        for message in request.messages:
            content: Any = message.get("content") or ""
            calls: list[Any] = message.get("tool_calls") or []
            if message["role"] not in ("system", "developer"):
                texts += [content] if isinstance(content, str) else map(_block, content)
                texts += [call["function"]["arguments"] for call in calls]
        return [text for text in texts if text]


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


def _block(block: dict[str, Any]) -> str:
    """Return the text of a block of an Anthropic message."""
    return str(block.get("text") or block.get("content") or json.dumps(block.get("input")))
