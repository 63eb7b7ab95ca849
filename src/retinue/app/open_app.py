"""Open the application for a program, and close it afterwards."""

import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext

from msgspec.structs import replace

from retinue.app.application import App
from retinue.app.composition import QuestionCallback, reject_question
from retinue.app.context import build_context
from retinue.app.ephemeral_home import ephemeral_home, remove_stale_homes
from retinue.config.load import Config, load_config
from retinue.config.schema import APPROVAL_POLICIES
from retinue.errors import UsageError
from retinue.interfaces import Tool


@asynccontextmanager
async def open(  # noqa: A001  (`retinue.open` is public API)
    *,
    home: str | os.PathLike[str] | None = None,
    tools: Sequence[Tool] = (),
    env: Mapping[str, str] | None = None,
    config: Config | None = None,
    ask: QuestionCallback | None = None,
    approvals: str | None = None,
    ephemeral: bool = False,
) -> AsyncGenerator[App]:
    """Open the application on this machine's files, and close it when the context ends.

    Args:
        home: The home folder; takes precedence over `RETINUE_HOME`.
        tools: Tools of the calling program.
        env: Used instead of the process environment.
        config: Used instead of the configuration files.
        ask: Asks a person a tool's question, with its options.
        approvals: `ask`, `auto` or `deny`: what happens to calls that require approval; overrides the
            configuration.
        ephemeral: If true, everything is written to a temporary home that is removed at the end.

    Yields:
        The application.

    Raises:
        BadConfig: The configuration is invalid.
        UsageError: An argument is invalid.
    """
    config_in_use = config or load_config(
        os.environ if env is None else env, home=None if home is None else os.fspath(home)
    )
    if approvals is not None:
        if approvals not in APPROVAL_POLICIES:
            raise UsageError(f"approvals is {approvals!r}; it must be one of {', '.join(APPROVAL_POLICIES)}")
        config_in_use = replace(config_in_use, approvals=approvals, has_own_approvals=True)
    remove_stale_homes()
    with ephemeral_home() if ephemeral else nullcontext() as temporary_home:
        if temporary_home is not None:
            config_in_use = replace(
                config_in_use, home=temporary_home, is_persistent=False, models_home=config_in_use.models_dir
            )
        async with _close_after(App(build_context(config_in_use, tools, ask or reject_question))) as app:
            yield app


@asynccontextmanager
async def open_read_only(
    *, home: str | None = None, env: Mapping[str, str] | None = None, ask: QuestionCallback | None = None
) -> AsyncGenerator[App]:
    """Open the application without working on runs; works on a read-only disk."""
    config_in_use = load_config(os.environ if env is None else env, home=home)
    context = build_context(config_in_use, (), ask or reject_question, read_only=True)
    async with _close_after(App(context)) as app:
        yield app


@asynccontextmanager
async def _close_after(app: App) -> AsyncGenerator[App]:
    try:
        await app.repair.remove_orphaned_worktrees()
        yield app
    finally:
        await app.close()
