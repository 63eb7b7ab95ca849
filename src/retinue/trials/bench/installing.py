"""The others, each installed into an environment of its own that is thrown away, or kept where the person says."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from retinue.trials.bench.system import System

PEERS: Sequence[System] = (
    System(name="openai-agents", module="on_openai_agents", needs=("openai-agents",)),
    System(
        name="langgraph",
        module="on_langgraph",
        needs=("langgraph", "langgraph-checkpoint-sqlite", "langchain", "langchain-openai"),
    ),
    System(name="agno", module="on_agno", needs=("agno", "openai", "sqlalchemy[asyncio]", "aiosqlite")),
    System(
        name="agent-framework",
        module="on_agent_framework",
        needs=("agent-framework-core", "agent-framework-openai"),
    ),
    System(name="pydantic-ai", module="on_pydantic_ai", needs=("pydantic-ai-slim[openai]", "aiosqlite")),
)
_VERSIONS = """
import importlib.metadata as found, json, sys
print(json.dumps({name: found.version(name) for name in sys.argv[1:]}))
"""


def installed(
    place: Path, told: Callable[[str], None], only: Iterable[str] = ()
) -> tuple[list[System], dict[str, str]]:
    """The newest of each, with its versions; and why those are missing that could not be installed."""
    wanted = set(only)
    ready: list[System] = []
    missing: dict[str, str] = {}
    for system in PEERS:
        if wanted and system.name not in wanted:
            continue
        told(f"installing {system.name}")
        try:
            ready.append(_installed(system, place / "environments" / system.name))
        except subprocess.CalledProcessError as error:
            words = (error.stderr or b"").decode("utf-8", "replace").strip().splitlines()
            missing[system.name] = f"could not be installed: {words[-1] if words else error}"
    return ready, missing


def _installed(system: System, folder: Path) -> System:
    python = folder / "bin" / "python"
    mark = folder / "installed.json"
    if not mark.exists():
        uv = _uv()
        if uv is None:
            _run([sys.executable, "-m", "venv", str(folder)])
            _run([str(python), "-m", "pip", "install", "--quiet", *system.needs])
        else:
            _run([uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(folder)])
            _run([uv, "pip", "install", "--quiet", "--python", str(python), *system.needs])
        names = [each.partition("[")[0] for each in system.needs]
        versions = json.loads(_run([str(python), "-c", _VERSIONS, *names]))
        # Written last: an environment that was not finished is made anew.
        mark.write_text(json.dumps(versions))
    return replace(system, python=str(python), versions=json.loads(mark.read_text()))


def _uv() -> str | None:
    """Beside this very interpreter, or on the path."""
    own = Path(sys.executable).with_name("uv")
    return str(own) if own.exists() else shutil.which("uv")


def _run(command: list[str]) -> str:
    done = subprocess.run(command, check=True, capture_output=True, timeout=600)  # noqa: S603  (our own command)
    return done.stdout.decode()
