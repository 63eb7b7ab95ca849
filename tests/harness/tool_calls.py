"""Calls of tools without a run: arguments as a model writes them, results as it reads them."""

import json
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from retinue.app.composition import reject_question
from retinue.domain.permissions.scope import Scope
from retinue.domain.run import Run, RunRequest
from retinue.domain.session import Session
from retinue.domain.workspace import Workspace
from retinue.interfaces import Call, Tool
from retinue.sandbox.files.guarded_files import GuardedFiles
from retinue.testing.shells import refusing_shell_for

CALLED_AT = datetime(2026, 11, 15, tzinfo=UTC)


class UseTool(Protocol):
    """Call a built-in tool by its name, and return its result."""

    def __call__(self, name: str, **arguments: Any) -> Awaitable[str]: ...


def make_call(
    root: Path, scope: Scope, ask_user: Callable[[str, Sequence[str]], Awaitable[str]] = reject_question
) -> Call:
    """Make the call of a run in this workspace, whose file tools obey this scope."""
    folder = str(root)
    return Call(
        run=Run(
            id="r1",
            request=RunRequest(key="k", agent="general", task="t"),
            session_id="s1",
            slug="general-1",
            session_key="general-1/main",
            agent="general",
            transcript_path=f"{folder}/session.md",
            created_at=CALLED_AT,
        ),
        session=Session(
            id="s1",
            slug="general-1",
            agent="general",
            path=folder,
            created_at=CALLED_AT,
            updated_at=CALLED_AT,
            workspace=Workspace(root=folder),
        ),
        id="c1",
        files=GuardedFiles(scope),
        shell=refusing_shell_for(Scope()),
        ask_user=ask_user,
    )


async def use_tool(tool: Tool, call: Call, **arguments: Any) -> str:
    """Call a tool with arguments that pass through its own parser."""
    return await tool.function(tool.parse_arguments(json.dumps(arguments).encode()), call)
