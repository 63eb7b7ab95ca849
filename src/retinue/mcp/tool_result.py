"""What a tool of a server answers, as text for the model."""

from collections.abc import Mapping
from typing import Any, cast

import msgspec

from retinue.errors import Failed

SILENT = "(it answered with nothing)"


def told(result: Mapping[str, Any]) -> str:
    """The texts, and a word for what is none. Failed when the tool itself says that it failed."""
    listed: Any = result.get("content")
    parts = [_part(each) for each in cast("list[Any]", listed)] if isinstance(listed, list) else []
    structured: Any = result.get("structuredContent")
    if not any(parts) and structured is not None:
        parts = [msgspec.json.encode(structured).decode()]
    text = "\n\n".join(part for part in parts if part)
    if result.get("isError") is True:
        raise Failed(text or "the tool says that it failed, and not why")
    return text or SILENT


def _part(said: Any) -> str:
    part: dict[str, Any] = cast("dict[str, Any]", said) if isinstance(said, dict) else {}
    kind = part.get("type")
    if kind == "text":
        return str(part.get("text") or "")
    if kind in ("image", "audio"):
        size = len(str(part.get("data") or "")) * 3 // 4
        return f"[{part.get('mimeType') or kind}, {size:,} bytes: only text is shown here]"
    if kind == "resource_link":
        return f"[{part.get('name') or 'a resource'}: {part.get('uri')}]"
    inner: Any = part.get("resource")
    if kind == "resource" and isinstance(inner, dict):
        resource = cast("dict[str, Any]", inner)
        words = resource.get("text") or "[only text is shown here]"
        return f"[{resource.get('uri')}]\n{words}"
    return f"[{kind}: not understood here]"
