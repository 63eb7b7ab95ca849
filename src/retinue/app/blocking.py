"""`retinue.run`: one run for scripts, without asyncio."""

import asyncio
import os
from collections.abc import Mapping, Sequence
from typing import Any

from retinue.app.composition import QuestionCallback
from retinue.app.open_app import open as open_app
from retinue.domain.run import Run
from retinue.errors import UsageError
from retinue.interfaces import Tool


def run(  # noqa: PLR0913  (the options of `retinue run`)
    text: str | None,
    *,
    agent: str | None = None,
    session: str | None = None,
    model: str | None = None,
    workspace: str | os.PathLike[str] | None = None,
    allow_home: bool = False,
    label: str = "",
    timeout: float | None = None,
    thinking: str | None = None,
    output_schema: Mapping[str, Any] | None = None,
    home: str | os.PathLike[str] | None = None,
    tools: Sequence[Tool] = (),
    ask: QuestionCallback | None = None,
    approvals: str | None = None,
    ephemeral: bool = False,
) -> Run:
    """Start a run, wait until it ends or needs a person, and return it.

    For scripts. A program that uses asyncio opens the application once, with `async with retinue.open() as
    app`, and calls `await app.run(...)`.

    Args:
        text: The task. None uses the text typed at the end of the session's file.
        agent: The agent; default `general`, or the session's own.
        session: An existing session, `latest`, `latest-or-create`, or None for a new one.
        model: Overrides the agent's model.
        workspace: Folder to work in; default is the current one.
        allow_home: Allow the user's home folder as the workspace of a new session.
        label: A name shown in lists.
        timeout: Seconds until the run's deadline.
        thinking: Thinking effort for the model.
        output_schema: JSON Schema of the final answer, instead of the definition's. The answer is `run.output`.
        home: The home folder; takes precedence over `RETINUE_HOME`.
        tools: Tools of the calling program.
        ask: Asks a person a tool's question, with its options.
        approvals: `ask`, `auto` or `deny`: what happens to calls that require approval.
        ephemeral: If true, everything is written to a temporary home that is removed at the end.

    Returns:
        The run as it is now. A failed run is returned, not raised: see `status`, `reason` and `error`.

    Raises:
        RetinueError: The run could not be started.
        UsageError: An event loop is running in this thread.
    """

    async def run_once() -> Run:
        async with open_app(home=home, tools=tools, ask=ask, approvals=approvals, ephemeral=ephemeral) as app:
            return await app.run(
                text,
                agent=agent,
                session=session,
                model=model,
                workspace=workspace,
                allow_home=allow_home,
                label=label,
                timeout=timeout,
                thinking=thinking,
                output_schema=output_schema,
            )

    if _is_loop_running():
        raise UsageError(
            "retinue.run blocks, and an event loop is running here. "
            "Use `async with retinue.open() as app` and `await app.run(...)`."
        )
    return asyncio.run(run_once())


def _is_loop_running() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
