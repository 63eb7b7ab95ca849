"""ls: list a folder."""

from typing import Annotated

from retinue.domain.io_results import FileEntry
from retinue.domain.tool import Effect
from retinue.interfaces import Call
from retinue.tools.define import tool
from retinue.tools.text_format import printable_name

MAX_NAMES = 1_000

_KIND_SUFFIXES = {"dir": "/", "link": "@", "other": "?"}


@tool(effect=Effect.READ, category="files", access=("read", "path"))
async def ls(
    call: Call,
    path: Annotated[
        str | None, "The folder, relative to the workspace or absolute; default: the workspace."
    ] = None,
) -> str:
    """List the contents of a folder. A name that ends in / is a folder, in @ a link; files are followed by their
    size in bytes. Use glob to find files in the folders below it."""
    entries = call.files.list(path or ".")
    names = [entry for entry in entries if entry.kind != "cut"]
    lines = [_entry_line(entry) for entry in names[:MAX_NAMES]]
    if len(names) < len(entries) or len(names) > MAX_NAMES:
        extra = len(names) - MAX_NAMES
        omitted = (
            "more entries exist"
            if len(names) < len(entries)
            else f"{extra:,} more {'entry' if extra == 1 else 'entries'} not shown"
        )
        lines.append(f"[{omitted}; use glob with a pattern]")
    return "\n".join(lines) or "[the folder is empty]"


def _entry_line(entry: FileEntry) -> str:
    if entry.kind == "file":
        return f"{printable_name(entry.path)}  {entry.size:,}"
    return printable_name(entry.path) + _KIND_SUFFIXES.get(entry.kind, "")
