"""What a model this small is shown of a conversation before it speaks: the task, what came of it, and little else."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from retinue.domain.prompt import PREAMBLE, first_message
from retinue.domain.transcript import Called, Entry, Notice, Returned, Said

ROOM = 2400
"""Bytes of a conversation that it is shown: more takes it minutes to read, and it understands no more."""
SYSTEM = 240
ASKED = 800
SYSTEM_IF_NONE = "You are a helpful assistant."
IN_SHORT = "Answer in one or two sentences."


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A conversation as it stands before a turn."""

    request: str
    """What was asked last."""
    results: tuple[str, ...]
    """What came of the calls made since."""
    called: frozenset[tuple[str, str]]
    """Those calls: their tools and arguments."""
    heard: str
    """Everything, in the order it was said."""


def shown(entries: Sequence[Entry]) -> Shown:
    request, results, heard = "", list[str](), list[str]()
    called: set[tuple[str, str]] = set()
    for entry in entries:
        if isinstance(entry, Called):
            called.add((entry.tool, entry.args))
            continue
        heard.append(entry.text)
        if isinstance(entry, Returned):
            results.append(plain(entry.text) if entry.ok else f"error: {plain(entry.text)}")
        elif isinstance(entry, Notice):
            results.append(entry.text)
        elif entry.by == "user":
            request = entry.text.removeprefix(first_message(""))
            results.clear()
            called.clear()
    return Shown(request=request, results=tuple(results), called=frozenset(called), heard="\n".join(heard))


def plain(text: str) -> str:
    """A result without its envelope: of a report only its words, and no remarks in brackets about them."""
    if text.startswith("{"):
        try:
            told: Any = json.loads(text)
        except ValueError:
            told = None
        facts = cast("dict[str, Any]", told) if isinstance(told, dict) else {}
        text = next((facts[key] for key in _WORDS if isinstance(facts.get(key), str)), text)
    if fenced := _FENCED.search(text):
        text = fenced[2]
    return _REMARK.sub("", text).strip()


_WORDS = ("result", "summary", "text", "response", "error")
_FENCED = re.compile(r"^<<<(\w+)\n(.*)\n\1>>>$", re.MULTILINE | re.DOTALL)
_REMARK = re.compile(r"^\[[^\n]*\]$", re.MULTILINE)


def before(entries: Sequence[Entry]) -> list[Said]:
    """What was said before the last request, without what was found."""
    said = [entry for entry in entries if isinstance(entry, Said) and entry.text.strip()]
    last = max((at for at, each in enumerate(said) if each.by == "user"), default=0)
    return said[:last]


def prompt(system: str, entries: Sequence[Entry]) -> tuple[str, int]:
    """What it continues, and how many characters were left out of the middle."""
    now = shown(entries)
    asked, left_out = cut(now.request, ASKED)
    room = ROOM - len(asked.encode())
    found, missing = cut("\n\n".join(now.results), room)
    left_out += missing
    told = f"{asked}\n\n{found}\n\n{IN_SHORT}" if found else asked
    room -= len(found.encode())
    earlier: list[str] = []
    for each in reversed(before(entries)):
        text = _turn("assistant" if each.by == "agent" else "user", each.text)
        if len(text.encode()) > room:
            left_out += len(each.text)
            room = 0
        else:
            earlier.insert(0, text)
            room -= len(text.encode())
    own = system.removeprefix(PREAMBLE).strip().partition("\n\n")[0]
    head = cut(own or SYSTEM_IF_NONE, SYSTEM)[0]
    return f"{_turn('system', head)}{''.join(earlier)}{_turn('user', told)}<|im_start|>assistant\n", left_out


def cut(text: str, room: int) -> tuple[str, int]:
    """The beginning and the end of a text that is longer than so many bytes."""
    text = text.replace("<|im_", "<| im_")  # nobody else's words begin a turn
    data = text.encode()
    if len(data) <= room:
        return text, 0
    half = max(0, room // 2 - 12)
    head, tail = data[:half].decode(errors="ignore"), data[len(data) - half :].decode(errors="ignore")
    missing = len(text) - len(head) - len(tail)
    return f"{head}\n[… {missing} characters left out …]\n{tail}", missing


def _turn(who: str, text: str) -> str:
    return f"<|im_start|>{who}\n{text.replace('<|im_', '<| im_')}<|im_end|>\n"
