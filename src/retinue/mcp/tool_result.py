"""The result of an MCP tool as text for the model."""

from collections.abc import Mapping
from typing import Any, cast

import msgspec

from retinue.errors import Failed

EMPTY_RESULT = "(empty result)"


def result_text(result: Mapping[str, Any]) -> str:
    """Return the texts of a result, with placeholders for other content.

    Raises:
        Failed: the tool reports an error.
    """
    items: Any = result.get("content")
    parts = [_content_text(each) for each in cast("list[Any]", items)] if isinstance(items, list) else []
    structured: Any = result.get("structuredContent")
    if not any(parts) and structured is not None:
        parts = [msgspec.json.encode(structured).decode()]
    text = "\n\n".join(part for part in parts if part)
    if result.get("isError") is True:
        raise Failed(text or "The tool failed without an error message.")
    return text or EMPTY_RESULT


def _content_text(item: Any) -> str:
    part: dict[str, Any] = cast("dict[str, Any]", item) if isinstance(item, dict) else {}
    kind = part.get("type")
    if kind == "text":
        return str(part.get("text") or "")
    if kind in ("image", "audio"):
        size = len(str(part.get("data") or "")) * 3 // 4
        return f"[{part.get('mimeType') or kind}, {size:,} bytes: only text is shown]"
    if kind == "resource_link":
        return f"[{part.get('name') or 'a resource'}: {part.get('uri')}]"
    inner: Any = part.get("resource")
    if kind == "resource" and isinstance(inner, dict):
        resource = cast("dict[str, Any]", inner)
        text = resource.get("text") or "[only text is shown]"
        return f"[{resource.get('uri')}]\n{text}"
    return f"[{kind}: unknown content type]"
