"""The text of an approval card: everything the user must see before allowing a call."""

import json
from collections.abc import Callable, Iterator
from typing import Any, cast

from retinue.domain.approval import (
    MAX_COMPARED_BYTES,
    MAX_COMPARED_FILES,
    Approval,
    NamedFile,
    describe_add_answer,
    describe_root_request,
    describe_unknown_files,
)
from retinue.domain.timestamps import iso_timestamp

MAX_ARGUMENT_LINES = 24
"""Lines of one argument that are shown at first; the rest on request."""

MAX_LISTED_FILES = 8
"""Files of a command that are shown at first; the rest on request."""

SHORT_DIGEST_CHARS = 16
"""Digest characters shown at first: enough to compare by eye. The full card shows all."""

_ACTION_VERBS = {
    "read": "read",
    "write": "write",
    "run": "run",
    "tool": "use",
    "scope": "more permissions for",
}


def approval_card_lines(
    approval: Approval, *, full: bool = False, title: Callable[[str], str] = str
) -> list[str]:
    """Return the card for one exact call, with every argument line by line.

    A shortened argument says how much is missing. `title` returns an agent's display name.
    """
    agent = title(approval.agent)
    lines = [
        f"approval {approval.id}{'' if agent == approval.agent else f', {agent}'}",
        f"  {' > '.join(approval.chain)}",
        f"  requests: {_requested_action(approval)}",
    ]
    if approval.access != "tool":
        lines += [f"    {line}" for line in approval.resource.split("\n")]
    for name, text in _shown_arguments(approval):
        lines.append(f"  {name}:")
        lines += [f"    {line}" for line in _truncate_lines(text, full=full)]
    lines += _named_file_lines(approval, full=full)
    lines += _reason_lines(approval)
    lines += [f"  {warning}"] if (warning := describe_root_request(approval)) else []
    lines += [f"  {meaning}"] if (meaning := describe_add_answer(approval)) else []
    sandbox_note = "" if approval.level is None else f", sandbox {approval.level}"
    root = approval.root.replace("\n", "␊")
    lines.append(f"  in {root}{sandbox_note}, until {iso_timestamp(approval.expires_at)}")
    return lines


def answer_prompt(approval: Approval) -> str:
    """Return the prompt that lists every valid answer key."""
    add = "[a]dd to its permissions, " if approval.access == "scope" else ""
    return f"[y]es, once, {add}[n]o, [s]how everything"


def _requested_action(approval: Approval) -> str:
    """Name the requested action, and the tool unless the action already implies it."""
    verb, tool = _ACTION_VERBS[approval.access], approval.tool
    if approval.access in ("scope", "tool"):
        return f"{verb} {tool}"
    return verb if tool in (verb, "bash") else f"{verb}, with {tool}"


def _named_file_lines(approval: Approval, *, full: bool) -> list[str]:
    """List the files that a command uses, with the content hash the approval applies to."""
    note = describe_unknown_files(approval)
    note_lines = [f"  {note}"] if note else []
    if not approval.files:
        return note_lines
    lines = ["  uses these files; the approval covers their current content:"]
    shown = approval.files if full else approval.files[:MAX_LISTED_FILES]
    for each in shown:
        path = each.path.replace("\n", "␊")
        digest = each.sha256 if full else f"{each.sha256[:SHORT_DIGEST_CHARS]}…"
        lines.append(f"    {path}  {each.size:,} bytes  sha256 {digest}{_comparison_limit_note(each)}")
    if len(shown) < len(approval.files):
        lines.append(f"    [… {len(approval.files) - len(shown)} more files: [s]how them]")
    if len(approval.files) == MAX_COMPARED_FILES:
        lines.append(f"    (further files are not compared: the limit is {MAX_COMPARED_FILES})")
    return lines + note_lines


def _comparison_limit_note(file: NamedFile) -> str:
    return (
        ""
        if file.size <= MAX_COMPARED_BYTES
        else f" of its first {MAX_COMPARED_BYTES:,} bytes, the rest is not compared"
    )


def _reason_lines(approval: Approval) -> list[str]:
    """Return the reason the agent gave.

    Several lines are indented further than the card, so that they cannot imitate its own lines.
    """
    label = "  reason:" if approval.access == "scope" else "  requires approval:"
    first, *rest = approval.reason.split("\n")
    if not rest:
        return [f"{label} {first}"] if first else []
    return [label, *(f"    {line}" for line in (first, *rest))]


def _shown_arguments(approval: Approval) -> Iterator[tuple[str, str]]:
    """Yield the arguments that the card does not show elsewhere."""
    try:
        arguments: Any = json.loads(approval.args or "{}")
    except ValueError:
        arguments = None
    if not isinstance(arguments, dict):
        yield "arguments", approval.args
        return
    for name, value in cast("dict[str, Any]", arguments).items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        if text != approval.resource and not (approval.access == "scope" and name in ("tool", "reason")):
            yield str(name), text


def _truncate_lines(text: str, *, full: bool) -> list[str]:
    lines = text.split("\n")
    if full or len(lines) <= MAX_ARGUMENT_LINES:
        return lines
    return [*lines[:MAX_ARGUMENT_LINES], f"[… {len(lines) - MAX_ARGUMENT_LINES:,} more lines: [s]how them]"]
