"""todo: the agent's own task list, kept in its transcript."""

from typing import Annotated, Literal

import msgspec

from retinue.domain.tool import Effect
from retinue.tools.define import tool

ItemStatus = Literal["pending", "in_progress", "done"]

_CHECKBOXES: dict[ItemStatus, str] = {"pending": "[ ]", "in_progress": "[~]", "done": "[x]"}


class TodoItem(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    text: str
    status: ItemStatus = "pending"


@tool(effect=Effect.IDEMPOTENT, category="planning", asks="never")
async def todo(
    items: Annotated[list[str | TodoItem], "The whole list, in order; it replaces the previous one."],
) -> str:
    """Write your task list. Give the whole list each time, with the status of every item: pending, in_progress or
    done. Use it for tasks of more than a few steps, and keep it up to date."""
    entries = [TodoItem(text=item) if isinstance(item, str) else item for item in items]
    lines = [f"{number}. {_CHECKBOXES[item.status]} {item.text}" for number, item in enumerate(entries, 1)]
    return "\n".join(lines) or "[the list is empty]"
