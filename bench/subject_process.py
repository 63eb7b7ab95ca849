"""The systems under test, each in a separate process that accepts commands as JSON lines."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from msgspec import Struct, field

ROOT = Path(__file__).resolve().parents[1]
HARNESS = ROOT / "bench" / "peers" / "peer_harness.py"
_MAX_LINE_BYTES = 1 << 26
TELEMETRY_OFF_ENV: Mapping[str, str] = {
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
"""Environment variables that switch off the systems' telemetry."""


class System(Struct, frozen=True, kw_only=True):
    """A system to be measured."""

    name: str
    module: str
    delegation_tool: str = "child"
    """Tool with which its parent agent starts children."""
    python: str = sys.executable
    requirements: tuple[str, ...] = ()
    """Packages to install for it in an environment of its own."""
    versions: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def is_peer(self) -> bool:
        return bool(self.requirements)


def subject_environment(system: System) -> dict[str, str]:
    """Return the environment variables to add for a process of the system.

    The benchmark is not installed: a system whose module is part of it finds it through PYTHONPATH. A peer
    does not use this checkout.
    """
    if system.is_peer:
        return dict(TELEMETRY_OFF_ENV)
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**TELEMETRY_OFF_ENV, "PYTHONPATH": os.pathsep.join(paths)}


BASELINE = System(name="bare", module="bench.baseline")
MINIMUM = System(name="floor", module="bench.minimum_system")
RETINUE = System(name="retinue", module="bench.subject_retinue", delegation_tool="agent")


class SubjectError(Exception):
    """A system did not execute a command."""

    def __init__(self, reason: str, *, is_supported: bool = True) -> None:
        super().__init__(reason)
        self.is_supported = is_supported
        """False if the system does not support the command."""


class SubjectProcess:
    """A process of a system."""

    def __init__(self, system: System, process: asyncio.subprocess.Process, folder: Path) -> None:
        self.system = system
        self.process = process
        self.folder = folder

    async def open(self, url: str, **options: Any) -> None:
        await self.send_command("open", timeout_s=60, url=url, place=str(self.folder), **options)

    async def send_command(self, command: str, *, timeout_s: float = 120, **arguments: Any) -> dict[str, Any]:
        """Send a command and return its result.

        Raises SubjectError if the command timed out, the process ended, or the answer was wrong.
        """
        if self.process.stdin is None or self.process.stdout is None:
            raise RuntimeError("the process has no pipes")
        self.process.stdin.write(json.dumps({"do": command, **arguments}).encode() + b"\n")
        try:
            async with asyncio.timeout(timeout_s):
                await self.process.stdin.drain()
                line = await self.process.stdout.readline()
        except TimeoutError:
            raise SubjectError(f"took more than {timeout_s:.0f} s") from None
        except ConnectionError:
            line = b""
        if not line:
            raise SubjectError("the process ended")
        result: dict[str, Any] = json.loads(line)
        if "cannot" in result:
            raise SubjectError(str(result["cannot"]), is_supported=False)
        if "failed" in result:
            raise SubjectError(str(result["failed"]))
        return result


@asynccontextmanager
async def start_subject(system: System, log: Path, folder: Path) -> AsyncGenerator[SubjectProcess]:
    """Start a process in a folder, log its output, and kill it at the end in any case."""
    with log.open("ab") as log_file:
        process = await asyncio.create_subprocess_exec(
            system.python,
            str(HARNESS),
            system.module,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log_file,
            env={**os.environ, **subject_environment(system)},
            cwd=folder,
            limit=_MAX_LINE_BYTES,
            start_new_session=True,
        )
    subject = SubjectProcess(system, process, folder)
    try:
        yield subject
        with suppress(SubjectError):
            await subject.send_command("close", timeout_s=20)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


@asynccontextmanager
async def start_model_server() -> AsyncGenerator[str]:
    """Start the model server in a separate process, so that its cost is not attributed to a system."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "bench.server",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        limit=_MAX_LINE_BYTES,
    )
    try:
        if process.stdout is None:
            raise RuntimeError("the model server has no output")
        yield str(json.loads(await process.stdout.readline())["url"])
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        await process.wait()
