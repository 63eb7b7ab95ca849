"""The thinking text of a reply, stored among its thinking blocks."""

import json
from collections.abc import Iterable
from typing import Any, cast

_TEXT_KEYS = ("thinking_text", "thinking")
"""Keys of the text: in a block of our own, and in one that the provider requires back."""


def encode_thinking_text(text: str) -> str:
    """Return a block with the thinking text of a provider that does not require it back."""
    return json.dumps({_TEXT_KEYS[0]: text}, ensure_ascii=False)


def thinking_text(blocks: Iterable[str]) -> str:
    """Return the text of all thinking blocks; other blocks are skipped."""
    return "\n\n".join(text for block in blocks if (text := _block_text(block)))


def _block_text(block: str) -> str:
    try:
        data: Any = json.loads(block)
    except ValueError:
        return ""
    fields = cast("dict[str, Any]", data) if isinstance(data, dict) else {}
    return next((each for key in _TEXT_KEYS if isinstance(each := fields.get(key), str)), "").strip()
