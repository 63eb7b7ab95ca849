"""write: create or replace a whole file."""

import asyncio
from typing import Annotated

from retinue.domain.tool import Effect
from retinue.errors import Failed
from retinue.interfaces import Call
from retinue.tools.define import tool
from retinue.tools.text_format import format_size, workspace_path


@tool(effect=Effect.IDEMPOTENT, category="files", access=("write", "path"))
async def write(
    call: Call,
    path: Annotated[str, "The file, relative to the workspace or absolute. Missing folders are created."],
    content: Annotated[str, "The complete content of the file."],
) -> str:
    """Write a whole text file: create it, or replace its content. Use edit to change a part of a file; use /tmp for
    temporary files."""
    result = await asyncio.to_thread(call.files.write, path, encode_text(content))
    verb = "created" if result.is_new else "replaced"
    lines = content.count("\n") + (not content.endswith("\n") and bool(content))
    summary = f"{lines:,} {'line' if lines == 1 else 'lines'}, {format_size(result.size)}"
    return f"{verb} {workspace_path(result.real_path, call.session.workspace.root)}: {summary}"


def encode_text(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise Failed("The text is not valid Unicode: it contains an unpaired surrogate.") from error
