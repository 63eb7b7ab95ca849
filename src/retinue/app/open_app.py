"""The application opened around a program's work, and closed after it."""

import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import replace

from retinue.app.application import App
from retinue.app.composition import Question, nobody
from retinue.app.ephemeral_home import forgotten, sweep
from retinue.config.load import Config, load
from retinue.config.schema import APPROVALS
from retinue.errors import Usage
from retinue.interfaces import Tool


@asynccontextmanager
async def open(  # noqa: A001  (`retinue.open` is the promise)
    *,
    home: str | os.PathLike[str] | None = None,
    tools: Sequence[Tool] = (),
    env: Mapping[str, str] | None = None,
    config: Config | None = None,
    ask: Question | None = None,
    approvals: str | None = None,
    keeps: bool = True,
) -> AsyncGenerator[App]:
    """An application on this machine's files. `ask` puts a tool's question to a person; `approvals` (ask, auto, deny)
    says for this program what happens to a call that needs a person's yes. Without `keeps` nothing of what is said
    outlives it."""
    settings = config or load(
        os.environ if env is None else env, home=None if home is None else os.fspath(home)
    )
    if approvals is not None:
        if approvals not in APPROVALS:
            raise Usage(f"approvals is {approvals!r}; it can be {', '.join(APPROVALS)}")
        settings = replace(settings, approvals=approvals)
    sweep()
    with nullcontext() if keeps else forgotten() as place:
        if place is not None:
            settings = replace(settings, home=place, keeps=False, models_home=settings.models)
        async with _closing(App(settings, tools, ask or nobody)) as app:
            yield app


@asynccontextmanager
async def look(
    *, home: str | None = None, env: Mapping[str, str] | None = None, ask: Question | None = None
) -> AsyncGenerator[App]:
    """The same for a program that works no run: it can look where nothing can be written."""
    settings = load(os.environ if env is None else env, home=home)
    async with _closing(App(settings, (), ask or nobody, only_looks=True)) as app:
        yield app


@asynccontextmanager
async def _closing(app: App) -> AsyncGenerator[App]:
    try:
        await app.sweep()
        yield app
    finally:
        await app.close()
