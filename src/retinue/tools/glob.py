"""glob: files whose paths fit a pattern."""

import asyncio
from typing import Annotated

from retinue.domain.tool import Effect
from retinue.errors import Failed
from retinue.interfaces import Call, Files
from retinue.tools.define import tool
from retinue.tools.file_patterns import matcher, split_literal
from retinue.tools.output_text import placed

MAX_PATHS = 1_000


@tool(effect=Effect.READ, category="files", touches=("read", "path"))
async def glob(
    call: Call,
    pattern: Annotated[str, "For example src/**/*.py. `**` is any folders, `*` anything within one name."],
    path: Annotated[str | None, "The folder the pattern starts from; the workspace if not given."] = None,
) -> str:
    """Find files by name. The answer is one path per line, sorted, relative to the workspace; `*.py` finds files
    in the folder itself, `**/*.py` also in the folders below it. Use grep to search in what files say."""
    return await asyncio.to_thread(_found, call.files, call.session.workspace.root, pattern, path or ".")


def _found(files: Files, root: str, pattern: str, path: str) -> str:
    folder, rest = split_literal(_relative(pattern, root))
    fits = matcher(rest)
    lines: list[str] = []
    note = ""
    for one in files.walk(f"{path}/{folder}" if folder else path):
        if one.kind == "cut":
            note = "[there are too many files to look at: start from a folder further down with path]"
        elif one.path != "." and fits(one.path):
            lines.append(placed(one.real, root))
        if len(lines) > MAX_PATHS:
            lines.pop()
            note = f"[more than {MAX_PATHS:,} files fit: use a narrower pattern]"
            break
    return "\n".join([*lines, note] if note else lines) or "[no file fits]"


def _relative(pattern: str, root: str) -> str:
    """An absolute pattern is taken if it starts in the workspace."""
    inside = pattern.removeprefix("./").removeprefix(root.rstrip("/") + "/")
    if inside.startswith("/"):
        raise Failed("the pattern must be relative: give the folder it starts from as path")
    return inside
