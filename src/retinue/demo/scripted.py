"""A scripted demonstration: an agent looks at this project's own files, and only the model is not real."""

import json
import os
from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from typing import Any

from retinue import app as application
from retinue.domain.run import Run
from retinue.domain.transcript import Called, Entry, Returned
from retinue.domain.value import value

AGENT = "explorer"
TASK = "Where do this project's errors live, and how does a run end?"
HERE = "@"
"""Stands in the script for the package's folder, wherever it was installed."""


@value
class Step:
    """One call of the demonstration, and what came of it."""

    tool: str
    about: str
    outcome: str
    ms: int


@value
class Shown:
    run: Run
    steps: tuple[Step, ...]


async def shown(home: str | None = None) -> Shown:
    """Plays the script in a home of its own, and tells what happened there."""
    at = Path(home or os.environ.get("RETINUE_HOME") or Path.cwd() / ".demo" / "home").absolute()
    root, package = _project()
    script = at / "demo" / "script.json"
    script.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    script.write_text(_script(package), encoding="utf-8")
    env = {
        "RETINUE_HOME": str(at),
        "RETINUE_CONFIG": str(script.parent / "config"),
        "RETINUE_MODEL": f"scripted:{script}",
    }
    async with application.open(env=env) as app:
        run = await app.run(TASK, agent=AGENT, workspace=root, label="demo")
        return Shown(run=run, steps=tuple(steps(await app.entries(run.session_id))))


def steps(entries: Iterable[Entry]) -> Iterable[Step]:
    """Each call beside its result."""
    called: dict[str, Called] = {}
    for entry in entries:
        if isinstance(entry, Called):
            called[entry.id] = entry
        elif isinstance(entry, Returned) and entry.of in called:
            call = called[entry.of]
            yield Step(tool=call.tool, about=_about(call.args), outcome=_outcome(entry), ms=entry.ms)


def _project() -> tuple[Path, str]:
    """The checkout and the package's place in it; without a checkout, the package itself."""
    package = Path(__file__).resolve().parent.parent
    checkout = package.parent.parent
    if (checkout / "pyproject.toml").is_file() and package.parent.name == "src":
        return checkout, f"src/{package.name}"
    return package, "."


def _script(package: str) -> str:
    text = resources.files("retinue.demo").joinpath("demo.json").read_text(encoding="utf-8")
    return text.replace(f'"{HERE}', f'"{package}')


def _about(args: str) -> str:
    facts: dict[str, Any] = json.loads(args)
    return " ".join(str(facts[name]) for name in ("pattern", "path") if name in facts)


def _outcome(result: Returned) -> str:
    if result.ok:
        return "ok"
    return "refused" if '"success": false' in result.text else "failed"
