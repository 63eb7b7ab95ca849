"""The one place that chooses: configuration becomes ports, and ports become an application."""

import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager

from retinue.app.application import App
from retinue.app.doctor import Finding
from retinue.app.wiring import Question, nobody
from retinue.config import Config, load
from retinue.ports import Tool

__all__ = ["App", "Finding", "open"]


@asynccontextmanager
async def open(  # noqa: A001  (`retinue.open` is the promise)
    *,
    home: str | os.PathLike[str] | None = None,
    tools: Sequence[Tool] = (),
    env: Mapping[str, str] | None = None,
    config: Config | None = None,
    ask: Question | None = None,
) -> AsyncGenerator[App]:
    """An application on this machine's files. `ask` puts a tool's question to a person."""
    settings = config or load(
        os.environ if env is None else env, home=None if home is None else os.fspath(home)
    )
    app = App(settings, tools, ask or nobody)
    try:
        yield app
    finally:
        await app.close()
