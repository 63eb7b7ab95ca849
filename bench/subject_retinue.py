"""Benchmark subject for Retinue, using the public App."""

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from msgspec.structs import replace

from bench.scenarios import (
    HELLO,
    LOOK_PROMPT,
    NOTE_FILE,
    NOTE_PROMPT,
    SPAWN_PROMPT,
    STREAM_PROMPT,
    WRITE_PROMPT,
)
from retinue.app import App
from retinue.app import open as open_app
from retinue.app.run_options import RunOptions
from retinue.app.sandbox_loader import SandboxLoader
from retinue.config.load import load_config
from retinue.domain.run import Run, Status, WaitReason
from retinue.domain.transcript import Message
from retinue.sandbox.files.guarded_files import GuardedFiles
from retinue.sessions.store import FileStore
from retinue.worker.clock import system_clock

API_KEY = "bench-key-0000"
MAX_LIVE_RUNS = 2_000
"""Limit of concurrent runs; the default is too low for the benchmark."""
SMALL_REPEATS = 100
"""Repetitions per sample of an operation that takes microseconds."""
MAX_CONCURRENT_CREATIONS = 64
"""Number of agents created concurrently before anything is measured."""


class Subject:
    """An application with a separate home."""

    def __init__(self) -> None:
        self._exit_stack = AsyncExitStack()
        self._open_conversations = AsyncExitStack()
        self._app: App | None = None
        self._workspace = ""
        self._session_ids: list[str] = []

    @property
    def app(self) -> App:
        if self._app is None:
            raise RuntimeError("open() was not called")
        return self._app

    async def open(self, url: str, place: str, keep: bool = True, driver: str = "openai") -> None:
        self._workspace = place
        config = load_config(isolated_environment(url, place, driver))
        limits = replace(config.limits, max_live=MAX_LIVE_RUNS, max_live_per_requester=MAX_LIVE_RUNS)
        config = replace(config, limits=limits)
        app_context = open_app(config=config, ephemeral=not keep)
        self._app = await self._exit_stack.enter_async_context(app_context)

    async def close(self) -> None:
        await self._open_conversations.aclose()
        await self._exit_stack.aclose()

    async def create_sessions(self, count: int) -> None:
        semaphore = asyncio.Semaphore(MAX_CONCURRENT_CREATIONS)

        async def create_session() -> str:
            async with semaphore:
                return (await self._run_prompt(NOTE_PROMPT)).session_id

        self._session_ids += await asyncio.gather(*(create_session() for _ in range(count)))

    async def run_turn(self, number: int) -> str:
        return (await self._run_prompt(NOTE_PROMPT, self._session_ids[number])).text

    async def run_new_session(self, number: int) -> str:
        return (await self._run_prompt(f"{NOTE_PROMPT} ({number})")).text

    async def run_short_turn(self, number: int) -> str:
        return (await self._run_prompt(HELLO, self._session_ids[number])).text

    async def stream_reply(self, number: int) -> str:
        return (await self._run_prompt(STREAM_PROMPT, self._session_ids[number])).text

    async def spawn_children(self, number: int) -> str:
        return (await self._run_prompt(f"{SPAWN_PROMPT} ({number})")).text

    async def spawn_children_in_history(self, number: int) -> str:
        return (await self._run_prompt(f"{SPAWN_PROMPT} ({number})", self._session_ids[0])).text

    async def run_long(self, number: int) -> str:
        return (await self._run_prompt(f"{LOOK_PROMPT} ({number})")).text

    async def count_sessions(self) -> int:
        return len(await self.app.sessions.list())

    async def write_history(self, lines: Sequence[str]) -> None:
        """Write a long history; its last turn is an ordinary one."""
        run = await self._run_prompt(NOTE_PROMPT)
        session = await self.app.sessions.find(run.session_id)
        async with self.app.context.store.open(session) as conversation:
            await conversation.append(
                *(
                    Message(id=f"past{number}", role="agent" if number % 2 else "user", text=line)
                    for number, line in enumerate(lines)
                )
            )
            await conversation.write_idle_prompt()
        self._session_ids = [run.session_id]

    async def load_history(self, _number: int) -> str:
        """Load the conversation with a new store, which has an empty cache."""
        session = await self.app.sessions.find(self._session_ids[0])
        store = FileStore(self.app.context.store.root, system_clock())
        async with store.open(session) as conversation:
            entry_count = len(conversation.entries)
        store.close()
        return "" if entry_count else "empty"

    async def create_idle_agents(self, count: int) -> None:
        """Create agents that have answered once, sequentially like the other subjects, and are idle."""
        self._session_ids += [(await self._run_prompt(NOTE_PROMPT)).session_id for _ in range(count)]

    async def wake_agent(self, number: int) -> str:
        return await self.run_turn(number)

    async def adopt_sessions(self) -> int:
        """Use the existing sessions."""
        self._session_ids = [each.id for each in await self.app.sessions.list()]
        return len(self._session_ids)

    async def open_conversations(self, count: int) -> None:
        """Open the conversations and hold them open, like those of running agents."""
        for session in self._session_ids[:count]:
            await self._open_conversations.enter_async_context(
                self.app.context.store.open(await self.app.sessions.find(session))
            )

    async def start_waiting_for_approval(self, count: int) -> int:
        """Start runs that wait for an approval, and return how many are suspended."""
        for number in range(count):
            await self.app.runs.start(f"{WRITE_PROMPT} ({number})", RunOptions(workspace=self._workspace))
        return await self._wait_for_runs(lambda run: run.waiting_for is WaitReason.APPROVAL, count)

    async def start_waiting_for_model(self, count: int) -> None:
        """Start runs that are all waiting for their model."""
        for number in range(count):
            await self.app.runs.start(f"{NOTE_PROMPT} ({number})", RunOptions(workspace=self._workspace))
        await self._wait_for_runs(lambda run: run.status is Status.RUNNING, count)
        await asyncio.sleep(1)

    def newest_session_id(self) -> str:
        return self._session_ids[-1]

    async def append_entries(self, number: int) -> str:
        """Append entries, each on disk before the next."""
        async with self.app.context.store.open(
            await self.app.sessions.find(self._session_ids[0])
        ) as conversation:
            for index in range(SMALL_REPEATS):
                await conversation.append(
                    Message(id=f"entry-{number}-{index}", role="user", text="One more line of words.")
                )
        return ""

    async def write_steps(self, _number: int) -> str:
        """Write ledger transactions, each on disk before the next; a step without changes is not written."""
        run = (await self.app.runs.list(live=False, limit=1))[0]
        for turns in range(1, SMALL_REPEATS + 1):
            changed = replace(run, turns=run.turns + turns)
            await self.app.context.ledger.write(lambda tx, changed=changed: tx.update_run(changed))
        return ""

    async def read_guarded_file(self, _number: int) -> str:
        """Open and read a file under the agent's scope."""
        files = GuardedFiles(await self.app.permissions.scope(session=self._session_ids[0]))
        for _ in range(SMALL_REPEATS - 1):
            files.read(NOTE_FILE)
        return files.read(NOTE_FILE).data.decode()

    async def run_command(self, _number: int) -> str:
        """Run an agent's command in its sandbox."""
        shell = SandboxLoader(self.app.config).shell(
            await self.app.permissions.scope(session=self._session_ids[0])
        )
        return str((await shell("true", 20)).exit_code)

    async def _wait_for_runs(self, condition: Callable[[Run], bool], count: int) -> int:
        """Wait up to two minutes until enough runs match; return how many do."""
        match_count, deadline = 0, time.monotonic() + 120
        while match_count < count and time.monotonic() < deadline:
            await asyncio.sleep(0.2)
            match_count = sum(map(condition, await self.app.runs.list(live=True)))
        return match_count

    async def _run_prompt(self, text: str, session: str | None = None) -> Run:
        if session is not None:
            return await self.app.run(text, session=session)
        return await self.app.run(text, workspace=self._workspace)


def isolated_environment(url: str, place: str, driver: str = "openai") -> dict[str, str]:
    """Return an environment without any of the user's own settings."""
    api_key_name, base_url_name = (
        ("ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL")
        if driver == "anthropic"
        else ("OPENAI_API_KEY", "OPENAI_BASE_URL")
    )
    return {
        api_key_name: API_KEY,
        base_url_name: url,
        "RETINUE_MODEL": f"{driver}:bench",
        "RETINUE_HOME": str(Path(place) / "home"),
        "RETINUE_CONFIG": str(Path(place) / "config"),
        "PATH": os.environ.get("PATH", ""),
    }
