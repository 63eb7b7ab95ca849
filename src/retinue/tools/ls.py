"""ls: what a folder holds."""

from typing import Annotated

from retinue.domain.io_results import Found
from retinue.domain.tool import Effect
from retinue.interfaces import Call
from retinue.tools.define import tool
from retinue.tools.output_text import shown_name

MAX_NAMES = 1_000

_MARKS = {"dir": "/", "link": "@", "other": "?"}


@tool(effect=Effect.READ, category="files", touches=("read", "path"))
async def ls(
    call: Call,
    path: Annotated[
        str | None, "The folder, relative to the workspace or absolute; the workspace if not given."
    ] = None,
) -> str:
    """List what a folder holds. A name that ends in / is a folder, in @ a link; files are followed by their
    size in bytes. Use glob to look into folders below it."""
    found = call.files.list(path or ".")
    names = [one for one in found if one.kind != "cut"]
    lines = [_line(one) for one in names[:MAX_NAMES]]
    if len(names) < len(found) or len(names) > MAX_NAMES:
        more = "more" if len(names) < len(found) else f"{len(names) - MAX_NAMES:,} more"
        lines.append(f"[{more} are not shown: use glob with a pattern]")
    return "\n".join(lines) or "[the folder is empty]"


def _line(one: Found) -> str:
    if one.kind == "file":
        return f"{shown_name(one.path)}  {one.size:,}"
    return shown_name(one.path) + _MARKS.get(one.kind, "")
