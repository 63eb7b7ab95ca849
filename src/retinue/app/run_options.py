"""Options for starting a run."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

COMMAND_TRIGGER = "command"


class RunOptions(Struct, frozen=True, kw_only=True):
    """How to start a run in a new or an existing session."""

    agent: str | None = None
    """The agent; default `general`, or the session's own."""
    session: str | None = None
    """An existing session, `latest`, `latest-or-create`, or None for a new one."""
    model: str | None = None
    """Overrides the agent's model."""
    workspace: str | os.PathLike[str] | None = None
    """Folder to work in; default is the current one."""
    allow_home: bool = False
    """Allow the user's home folder as the workspace of a new session."""
    isolation: str | None = None
    """Workspace isolation of a new session, instead of the definition's."""
    writable: bool | None = None
    """Whether a new session may write to its workspace, instead of the definition's setting."""
    label: str = ""
    """A name shown in lists."""
    timeout_s: float | None = None
    """Seconds until the run's deadline."""
    thinking: str | None = None
    """Thinking effort for the model."""
    output_schema: Mapping[str, Any] | None = None
    """JSON Schema of the final answer, instead of the definition's."""
    owner: str | None = None
    """Let another process work on the run."""
    key: str = ""
    """Idempotency key: the same request with the same key creates one run."""
    entry_point: str = "cli"
    """The interface the request came through."""
    trigger: str = COMMAND_TRIGGER
    """What caused the request."""


class SpawnOptions(Struct, frozen=True, kw_only=True):
    """How to start a run in a new child session."""

    parent: str
    """The parent session."""
    agent: str
    """The agent to create the child from."""
    description: str = ""
    """What the child is for."""
    allowed_paths: Sequence[str] | None = None
    """Paths the child may use."""
    denied_paths: Sequence[str] | None = None
    """Paths the child may not use."""
    workspace: str | os.PathLike[str] | None = None
    """A folder for the child.

    Naming one grants read access to it, even if the parent has none.
    """
    allow_home: bool = False
    """Allow the user's home folder as that folder."""
    isolation: str | None = None
    """Workspace isolation, instead of the definition's."""
    writable: bool | None = None
    """Whether the child may write to its workspace."""
    model: str | None = None
    """Overrides the agent's model."""
    timeout_s: float | None = None
    """Seconds until the run's deadline."""
    label: str = ""
    """A name shown in lists."""
    trigger: str = COMMAND_TRIGGER
    """What caused the request.

    The result of a `command` is added to the parent's transcript. Anything else (a slash command or key in a
    conversation) delivers it to the parent's inbox.
    """
    in_conversation: bool = False
    """Give the child the workspace rights of the parent session, limited by its definition and all ceilings.

    Otherwise it can read what its parent can read, and write only to its own /tmp.
    """
    key: str = ""
    """Idempotency key: the same request with the same key creates one run."""
