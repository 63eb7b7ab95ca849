"""A parent's right to read the files that its sub-agents left in their private /tmp."""

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from msgspec.structs import replace

from retinue.domain.permissions.scope import Scope
from retinue.domain.session import Session
from retinue.errors import RetinueError
from retinue.interfaces import RuntimeContext, Tool

MAX_CHILDREN = 20
"""Sub-agents whose files one call may name."""


async def with_child_files(
    scope: Scope, tool: Tool, args: Mapping[str, Any], session: Session, context: RuntimeContext
) -> Scope:
    """Return the scope with the /tmp folders of the session's own children that the call names, for reading.

    The right is computed at each call from the sessions as they are then, so it ends with the child's session.
    A path counts only as it is written in a result, absolute and without `..`.
    """
    own_folder = context.sandbox.tmp_folder_for(session)
    if not own_folder or tool.access not in ("read", "run") or tool.resource_of is None:
        return scope
    resource, base = tool.resource_of(args), os.path.dirname(own_folder)  # noqa: PTH120
    real_base = os.path.realpath(base)
    if base not in resource and real_base not in resource:
        return scope
    pattern = re.compile(rf"(?:{re.escape(base)}|{re.escape(real_base)})/([0-9A-Za-z-]+)")
    folders: list[str] = []
    for child_id in list(dict.fromkeys(pattern.findall(resource)))[:MAX_CHILDREN]:
        with suppress(RetinueError):
            child = await context.store.find(child_id)
            if child.id == child_id and child.parent_id == session.id:
                folders.append(os.path.realpath(context.sandbox.tmp_folder_for(child)))
    return replace(scope, child_tmp_folders=tuple(folders)) if folders else scope
