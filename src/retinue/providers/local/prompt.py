"""What a model this small is shown of a conversation before it speaks: the task, what came of it, and little else."""

import json
import re
from collections.abc import Sequence
from typing import Any, cast

from retinue.domain.system_prompt import PREAMBLE, first_message
from retinue.domain.transcript import Called, Entry, Notice, Returned, Said
from retinue.domain.value import value

ROOM = 2400
"""Bytes of a conversation that it is shown: more takes it minutes to read, and it understands no more."""
SYSTEM = 240
ASKED = 800
SYSTEM_IF_NONE = "You are a helpful assistant."
EXAMPLES = """\
Request: read hens.md
Result: # Hens Hens lay an egg a day in spring. They sleep on perches and eat corn, which keeps them warm in winter.
Answer: Hens lay an egg a day in spring; they sleep on perches and eat corn.

Request: Which files are there?
Result: notes.txt plan.md src/
Answer: There are notes.txt, plan.md and the folder src.

Request: Ask a scout about clocks.md and a scout about ships.md.
Result: Clocks count the swings of a weight. / Ships float because they push water aside.
Answer: Clocks count the swings of a weight, and ships float because they push water aside.

"""
"""How results are told."""
MOST_RESULTS = 6
AMONG = "Say what this says."
"""What is asked of each result where there are several."""


@value
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


@value
class Speech:
    """What the model goes on from, and how."""

    prompt: str
    shared: str
    """How this and other prompts begin."""
    stops: tuple[str, ...]
    repeating: float
    """How much it shuns what was said: without it a model this small goes round in circles when it talks freely, and
    with it it does not keep to what it was shown."""
    left_out: int
    """Characters of the conversation that it is not shown."""


def speeches(system: str, entries: Sequence[Entry]) -> list[tuple[Speech, ...]]:
    """How an answer can be had, in parts: from results, each in the manner of examples, which keeps to them; and freely,
    where there are none, or that brought nothing."""
    now = shown(entries)
    free = (freely(system, now, before(entries)),)
    return [reported(now), free] if now.results else [free]


def reported(now: Shown) -> tuple[Speech, ...]:
    """Several results are told one after another: of all at once it would tell the last."""
    asked, left_out = cut(" ".join(now.request.split()), ASKED)
    given = now.results[-MOST_RESULTS:]
    left_out += sum(map(len, now.results[:-MOST_RESULTS]))
    room = (ROOM - len(asked.encode())) // len(given)
    parts: list[Speech] = []
    for each in given:
        found, missing = cut(" ".join(each.split()), room)
        prompt = f"{EXAMPLES}Request: {asked if len(given) == 1 else AMONG}\nResult: {found}\nAnswer:"
        parts.append(
            Speech(prompt=prompt, shared=EXAMPLES, stops=("\n",), repeating=1.0, left_out=left_out + missing)
        )
        left_out = 0
    return tuple(parts)


def freely(system: str, now: Shown, earlier: Sequence[Said]) -> Speech:
    asked, left_out = cut(now.request, ASKED)
    room = ROOM - len(asked.encode())
    found, missing = cut("\n\n".join(now.results), room // 2)
    left_out += missing
    room -= len(found.encode())
    said: list[str] = []
    for each in reversed(earlier):
        text = _turn("assistant" if each.by == "agent" else "user", each.text)
        if len(text.encode()) > room:
            left_out += len(each.text)
            room = 0
        else:
            said.insert(0, text)
            room -= len(text.encode())
    own = system.removeprefix(PREAMBLE).strip().partition("\n\n")[0]
    head = _turn("system", cut(own or SYSTEM_IF_NONE, SYSTEM)[0])
    last = _turn("user", f"{asked}\n\n{found}".strip())
    return Speech(
        prompt=f"{head}{''.join(said)}{last}<|im_start|>assistant\n",
        shared="",
        stops=("<|im_end|>", "<|im_start|>"),
        repeating=1.1,
        left_out=left_out,
    )


def cut(text: str, room: int) -> tuple[str, int]:
    """The beginning and the end of a text that is longer than so many bytes."""
    text = text.replace("<|im_", "<| im_")  # nobody else's words begin a turn
    data = text.encode()
    if len(data) <= room:
        return text, 0
    half = max(0, room // 2 - 12)
    head, tail = data[:half].decode(errors="ignore"), data[len(data) - half :].decode(errors="ignore")
    missing = len(text) - len(head) - len(tail)
    return f"{head} [… {missing} characters left out …] {tail}", missing


def _turn(who: str, text: str) -> str:
    return f"<|im_start|>{who}\n{text.replace('<|im_', '<| im_')}<|im_end|>\n"
