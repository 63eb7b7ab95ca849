"""The systems that are measured, each in a process of its own that is told what to do by lines of JSON."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import field
from importlib import resources
from pathlib import Path
from typing import Any

from retinue.domain.value import value

PEERS = Path(str(resources.files("retinue.trials.bench"))) / "peers"
_LINE = 1 << 26
QUIET: Mapping[str, str] = {
    "PYTHONDONTWRITEBYTECODE": "",
    "AGNO_TELEMETRY": "false",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "LANGSMITH_TRACING": "false",
    "LANGCHAIN_TRACING_V2": "false",
    "ENABLE_INSTRUMENTATION": "false",
    "ENABLE_OTEL": "false",
    "OTEL_SDK_DISABLED": "true",
    "PYDANTIC_AI_DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
    "OPENAI_API_KEY": "bench-key-0000",
}
"""Nobody measured here tells anybody about it."""


@value
class System:
    """Something that does the work."""

    name: str
    module: str
    door: str = "child"
    """By which tool its parent starts children."""
    python: str = sys.executable
    needs: tuple[str, ...] = ()
    """What is installed for it, in an environment of its own."""
    versions: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def peer(self) -> bool:
        return bool(self.needs)


BARE = System(name="bare", module="retinue.trials.bench.bare")
FLOOR = System(name="floor", module="retinue.trials.bench.floor")
RETINUE = System(name="retinue", module="retinue.trials.bench.ours", door="agent")


class Failure(Exception):
    """A system did not do what it was told, and why."""

    def __init__(self, why: str, *, able: bool = True) -> None:
        super().__init__(why)
        self.able = able
        """False: it says that it cannot."""


class Subject:
    """One process of a system."""

    def __init__(self, system: System, process: asyncio.subprocess.Process, place: Path) -> None:
        self.system = system
        self.process = process
        self.place = place

    async def opened(self, url: str, **wishes: Any) -> None:
        await self.told("open", seconds=60, url=url, place=str(self.place), **wishes)

    async def told(self, do: str, *, seconds: float = 120, **order: Any) -> dict[str, Any]:
        """What came of it; a Failure when it took too long, broke or answered wrongly."""
        if self.process.stdin is None or self.process.stdout is None:
            raise RuntimeError("the process has no pipes")
        self.process.stdin.write(json.dumps({"do": do, **order}).encode() + b"\n")
        try:
            async with asyncio.timeout(seconds):
                await self.process.stdin.drain()
                line = await self.process.stdout.readline()
        except TimeoutError:
            raise Failure(f"took more than {seconds:.0f} s") from None
        except ConnectionError:
            line = b""
        if not line:
            raise Failure("its process ended")
        found: dict[str, Any] = json.loads(line)
        if "cannot" in found:
            raise Failure(str(found["cannot"]), able=False)
        if "failed" in found:
            raise Failure(str(found["failed"]))
        return found


@asynccontextmanager
async def started(system: System, log: Path, place: Path) -> AsyncGenerator[Subject]:
    """The process, and its end whatever happens. It works in a place; what it prints goes to the log."""
    with log.open("ab") as errors:
        process = await asyncio.create_subprocess_exec(
            system.python,
            str(PEERS / "stage.py"),
            system.module,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env={**os.environ, **QUIET},
            cwd=place,
            limit=_LINE,
            start_new_session=True,
        )
    subject = Subject(system, process, place)
    try:
        yield subject
        with suppress(Failure):
            await subject.told("close", seconds=20)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


@asynccontextmanager
async def served() -> AsyncGenerator[str]:
    """The model server in a process of its own, so that its cost is nobody's."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "retinue.trials.bench.server",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        limit=_LINE,
    )
    try:
        if process.stdout is None:
            raise RuntimeError("the model server has no output")
        yield str(json.loads(await process.stdout.readline())["url"])
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        await process.wait()
