"""A scripted demonstration: an agent explores this project's files; only the model is simulated."""

import json
import os
from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from typing import Any

from msgspec import Struct

from retinue import app as application
from retinue.domain.run import Run
from retinue.domain.transcript import Entry, ToolCall, ToolResult

AGENT = "explorer"
TASK = "Where are this project's errors defined, and how does a run end?"
PACKAGE_PLACEHOLDER = "@"
"""Placeholder in the script for the folder where the package is installed."""


class ToolCallStep(Struct, frozen=True, kw_only=True):
    """A tool call of the demonstration, with its outcome."""

    tool: str
    summary: str
    outcome: str
    duration_ms: int


class DemoResult(Struct, frozen=True, kw_only=True):
    run: Run
    steps: tuple[ToolCallStep, ...]


async def run_scripted_demo(home: str | None = None) -> DemoResult:
    """Run the script in a home of its own and return the run and its tool calls."""
    home_folder = Path(home or os.environ.get("RETINUE_HOME") or Path.cwd() / ".demo" / "home").absolute()
    root, package = _project_location()
    script = home_folder / "demo" / "script.json"
    script.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    script.write_text(_render_script(package), encoding="utf-8")
    env = {
        "RETINUE_HOME": str(home_folder),
        "RETINUE_CONFIG": str(script.parent / "config"),
        "RETINUE_MODEL": f"scripted:{script}",
    }
    async with application.open(env=env) as app:
        run = await app.run(TASK, agent=AGENT, workspace=root, label="demo")
        return DemoResult(run=run, steps=tuple(tool_call_steps(await app.sessions.entries(run.session_id))))


def tool_call_steps(entries: Iterable[Entry]) -> Iterable[ToolCallStep]:
    """Yield each tool call with its result."""
    call_by_id: dict[str, ToolCall] = {}
    for entry in entries:
        if isinstance(entry, ToolCall):
            call_by_id[entry.id] = entry
        elif isinstance(entry, ToolResult) and entry.call_id in call_by_id:
            call = call_by_id[entry.call_id]
            yield ToolCallStep(
                tool=call.tool,
                summary=_call_summary(call.args),
                outcome=_call_outcome(entry),
                duration_ms=entry.duration_ms,
            )


def _project_location() -> tuple[Path, str]:
    """Return the checkout and the package's path in it, or the package itself if there is no checkout."""
    package = Path(__file__).resolve().parent.parent
    checkout = package.parent.parent
    if (checkout / "pyproject.toml").is_file() and package.parent.name == "src":
        return checkout, f"src/{package.name}"
    return package, "."


def _render_script(package: str) -> str:
    text = resources.files("retinue.demo").joinpath("demo.json").read_text(encoding="utf-8")
    return text.replace(f'"{PACKAGE_PLACEHOLDER}', f'"{package}')


def _call_summary(args: str) -> str:
    arguments: dict[str, Any] = json.loads(args)
    return " ".join(str(arguments[name]) for name in ("pattern", "path") if name in arguments)


def _call_outcome(result: ToolResult) -> str:
    if result.ok:
        return "ok"
    return "refused" if '"success": false' in result.text else "failed"
