"""glob: find files whose paths match a pattern."""

import asyncio
from typing import Annotated

from retinue.domain.tool import Effect
from retinue.errors import Failed
from retinue.interfaces import Call, ScopedFiles
from retinue.tools.define import tool
from retinue.tools.file_patterns import compile_matcher, split_literal_folder
from retinue.tools.text_format import workspace_path

MAX_PATHS = 1_000


@tool(effect=Effect.READ, category="files", access=("read", "path"))
async def glob(
    call: Call,
    pattern: Annotated[str, "For example src/**/*.py. `**` matches any folders, `*` any part of one name."],
    path: Annotated[str | None, "The folder the pattern is relative to; default: the workspace."] = None,
) -> str:
    """Find files by name. The result is one path per line, sorted, relative to the workspace; `*.py` finds files
    in the folder itself, `**/*.py` also in the folders below it. Use grep to search the contents of files."""
    return await asyncio.to_thread(_find_files, call.files, call.session.workspace.root, pattern, path or ".")


def _find_files(files: ScopedFiles, root: str, pattern: str, path: str) -> str:
    folder, relative_pattern = split_literal_folder(_relative_pattern(pattern, root))
    matches = compile_matcher(relative_pattern)
    lines: list[str] = []
    note = ""
    for entry in files.walk(f"{path}/{folder}" if folder else path):
        if entry.kind == "cut":
            note = "[too many files to search: choose a smaller folder with path]"
        elif entry.path != "." and matches(entry.path):
            lines.append(workspace_path(entry.real_path, root))
        if len(lines) > MAX_PATHS:
            lines.pop()
            note = f"[more than {MAX_PATHS:,} files match: use a narrower pattern]"
            break
    return "\n".join([*lines, note] if note else lines) or "[no files match]"


def _relative_pattern(pattern: str, root: str) -> str:
    """Make a pattern relative; an absolute one must start in the workspace."""
    relative = pattern.removeprefix("./").removeprefix(root.rstrip("/") + "/")
    if relative.startswith("/"):
        raise Failed("The pattern must be relative. Give its folder as path.")
    return relative
