"""The card: what a person sees before they say yes. Nothing in it is left to the imagination."""

import json
from collections.abc import Iterator
from typing import Any, cast

from retinue.domain.approval import MOST_COMPARED, MOST_NAMED, Approval, NamedFile, adding
from retinue.domain.run import iso

LINES = 24
"""Of one argument; the rest is shown when asked for."""

SHORT = 16
"""Characters of a file's digest, enough to compare by eye; all of them when everything is shown."""

_WHAT = {"read": "read", "write": "write", "run": "run", "tool": "use", "more": "more scope for"}


def card(approval: Approval, *, whole: bool = False) -> list[str]:
    """Every argument of the exact call, line by line; text that was cut says how much is missing."""
    lines = [
        f"approval {approval.id}",
        f"  {' > '.join(approval.chain)}",
        f"  wants: {_wish(approval)}",
    ]
    if approval.touch != "tool":
        lines += [f"    {line}" for line in approval.resource.split("\n")]
    for name, text in _arguments(approval):
        lines.append(f"  {name}:")
        lines += [f"    {line}" for line in _cut(text, whole=whole)]
    lines += _files(approval, whole=whole)
    lines += _why(approval)
    lines += [f"  {meaning}"] if (meaning := adding(approval)) else []
    held = "" if approval.level is None else f", sandbox {approval.level}"
    root = approval.root.replace("\n", "␊")
    lines.append(f"  in {root}{held}, until {iso(approval.expires_at)}")
    return lines


def choices(approval: Approval) -> str:
    """Every key that means something, and no other."""
    add = "[a]dd to its scope, " if approval.touch == "more" else ""
    return f"[y]es, once, {add}[n]o, [s]how all of it"


def _wish(approval: Approval) -> str:
    """The tool is named wherever its name says something that the kind of wish does not."""
    what, tool = _WHAT[approval.touch], approval.tool
    if approval.touch in ("more", "tool"):
        return f"{what} {tool}"
    return what if tool in (what, "bash") else f"{what}, with {tool}"


def _files(approval: Approval, *, whole: bool) -> list[str]:
    """What the files that a command names held when it asked: the yes is one to that."""
    if not approval.files:
        return []
    lines = ["  names these files, and a yes is for what they hold now:"]
    for each in approval.files:
        path = each.path.replace("\n", "␊")
        digest = each.sha256 if whole else f"{each.sha256[:SHORT]}…"
        lines.append(f"    {path}  {each.size:,} bytes  sha256 {digest}{_compared(each)}")
    if len(approval.files) == MOST_NAMED:
        lines.append(f"    (more than {MOST_NAMED} are not compared)")
    return lines


def _compared(file: NamedFile) -> str:
    return (
        ""
        if file.size <= MOST_COMPARED
        else f" of its first {MOST_COMPARED:,} bytes, the rest is not compared"
    )


def _why(approval: Approval) -> list[str]:
    """An agent's words stand further in than the card's own, however many lines they have."""
    label = "  reason:" if approval.touch == "more" else "  asks because:"
    first, *more = approval.reason.split("\n")
    if not more:
        return [f"{label} {first}"] if first else []
    return [label, *(f"    {line}" for line in (first, *more))]


def _arguments(approval: Approval) -> Iterator[tuple[str, str]]:
    """Those that the line above does not show already."""
    try:
        found: Any = json.loads(approval.args or "{}")
    except ValueError:
        found = None
    if not isinstance(found, dict):
        yield "arguments", approval.args
        return
    for name, value in cast("dict[str, Any]", found).items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        if text != approval.resource and not (approval.touch == "more" and name in ("tool", "reason")):
            yield str(name), text


def _cut(text: str, *, whole: bool) -> list[str]:
    lines = text.split("\n")
    if whole or len(lines) <= LINES:
        return lines
    return [*lines[:LINES], f"[… {len(lines) - LINES:,} lines more: [s]how them]"]
