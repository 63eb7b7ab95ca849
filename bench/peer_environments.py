"""Installation of the other systems, each into a virtual environment of its own."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from msgspec.structs import replace

from bench.subject_process import System

PEERS: Sequence[System] = (
    System(name="openai-agents", module="on_openai_agents", requirements=("openai-agents",)),
    System(
        name="langgraph",
        module="on_langgraph",
        requirements=("langgraph", "langgraph-checkpoint-sqlite", "langchain", "langchain-openai"),
    ),
    System(
        name="agno", module="on_agno", requirements=("agno", "openai", "sqlalchemy[asyncio]", "aiosqlite")
    ),
    System(
        name="agent-framework",
        module="on_agent_framework",
        requirements=("agent-framework-core", "agent-framework-openai"),
    ),
    System(
        name="pydantic-ai", module="on_pydantic_ai", requirements=("pydantic-ai-slim[openai]", "aiosqlite")
    ),
)
_VERSIONS_SCRIPT = """
import importlib.metadata, json, sys
print(json.dumps({name: importlib.metadata.version(name) for name in sys.argv[1:]}))
"""


def install_peers(
    work_dir: Path, on_progress: Callable[[str], None], names: Iterable[str] = ()
) -> tuple[list[System], dict[str, str]]:
    """Install the newest version of each system.

    Returns the installed systems with their versions, and the reason for each one that could not be installed.
    """
    selected = set(names)
    installed: list[System] = []
    failures: dict[str, str] = {}
    for system in PEERS:
        if selected and system.name not in selected:
            continue
        on_progress(f"installing {system.name}")
        try:
            installed.append(_install_peer(system, work_dir / "environments" / system.name))
        except subprocess.CalledProcessError as error:
            error_lines = (error.stderr or b"").decode("utf-8", "replace").strip().splitlines()
            failures[system.name] = f"could not be installed: {error_lines[-1] if error_lines else error}"
    return installed, failures


def _install_peer(system: System, folder: Path) -> System:
    python = folder / "bin" / "python"
    versions_file = folder / "installed.json"
    if not versions_file.exists():
        uv = _find_uv()
        if uv is None:
            _run_command([sys.executable, "-m", "venv", str(folder)])
            _run_command([str(python), "-m", "pip", "install", "--quiet", *system.requirements])
        else:
            _run_command([uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(folder)])
            _run_command([uv, "pip", "install", "--quiet", "--python", str(python), *system.requirements])
        names = [each.partition("[")[0] for each in system.requirements]
        versions = json.loads(_run_command([str(python), "-c", _VERSIONS_SCRIPT, *names]))
        # Written last: an unfinished environment is created again.
        versions_file.write_text(json.dumps(versions))
    return replace(system, python=str(python), versions=json.loads(versions_file.read_text()))


def _find_uv() -> str | None:
    """Find uv next to this interpreter or on the PATH."""
    sibling = Path(sys.executable).with_name("uv")
    return str(sibling) if sibling.exists() else shutil.which("uv")


def _run_command(command: list[str]) -> str:
    completed = subprocess.run(command, check=True, capture_output=True, timeout=600)  # noqa: S603  (our own command)
    return completed.stdout.decode()
