"""What a program says while it takes a turn, put together from its lines, whichever program it is."""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import msgspec

from retinue.domain.model_turn import Act, Delta, Reply, Step
from retinue.domain.run import Usage

MAX_ACTS = 2_000
MAX_RESULT = 8_000
"""Characters of one call's result that go into the conversation: the program has read the whole of it."""
MAX_ARGS = 16_000
MAX_TEXT = 2_000_000
UNANSWERED = "No result: the program ended before it told one."


class Account:
    """Hears a program's own words and calls, in whatever order it tells them. Nothing here raises: what a program says
    is data."""

    def __init__(self, heard: Callable[[Delta], None]) -> None:
        self._heard = heard
        self._steps: list[tuple[list[str], list[str]]] = [([], [])]
        """Words, and then the ids of the calls that followed them."""
        self._acts: dict[str, Act] = {}
        self._began: dict[str, float] = {}
        self._streamed = False
        """Whether words of the message that is being said were heard already."""
        self._spoken = False
        self.id = ""
        """What the program calls this conversation."""
        self.model = ""
        self.usage = Usage()
        self.trouble = ""
        """Why it came to nothing, in the program's own words."""
        self.complaint = ""
        """What it said went wrong on the way, whether it could be mended or not."""
        self.over = False
        """It said that its turn is over: without that, nothing is a reply."""
        self.last: str | None = None
        """Its own last word, where it says which one that is."""

    @property
    def silent(self) -> bool:
        """It has neither said nor done anything yet."""
        return not self._acts and not self._spoken

    def alive(self) -> None:
        self._heard(Delta())

    def piece(self, text: str) -> None:
        """A piece of a message that comes whole later."""
        if not text:
            return
        if not self._streamed and self._spoken:
            self._heard(Delta(text="\n\n"))
        self._streamed = self._spoken = True
        self._heard(Delta(text=text))

    def thought(self, text: str) -> None:
        if text:
            self._heard(Delta(thinking=text))

    def message(self, text: str) -> None:
        """A whole message, whether pieces of it were heard or not."""
        if not text.strip():
            return
        if not self._streamed:
            self.piece(text)
        self._streamed = False
        words, acts = self._steps[-1]
        if acts:
            words, acts = list[str](), list[str]()
            self._steps.append((words, acts))
        if sum(map(len, words)) < MAX_TEXT:
            words.append(text[:MAX_TEXT])

    def began(self, name: str, tool: str, args: Mapping[str, Any]) -> None:
        if name in self._acts or len(self._acts) >= MAX_ACTS:
            return
        self._streamed = False
        act = Act(id=name, tool=tool or "tool", args=_bounded(args))
        self._acts[name] = act
        self._began[name] = time.monotonic()
        self._steps[-1][1].append(name)
        self._heard(Delta(act=act))

    def ended(self, name: str, text: str, *, ok: bool) -> None:
        act = self._acts.get(name)
        if act is None or act.over:
            return
        ms = round((time.monotonic() - self._began[name]) * 1000)
        self._acts[name] = act = replace(act, text=_short(text), ok=ok, ms=ms, over=True)
        self._heard(Delta(act=act))

    def reply(self) -> Reply:
        steps = [
            Step(text="\n\n".join(words), acts=tuple(map(self._settled, acts))) for words, acts in self._steps
        ]
        text = ""
        if not steps[-1].acts:
            text = steps.pop().text
        return Reply(
            text=self.last or text,
            model=self.model,
            usage=self.usage,
            steps=tuple(each for each in steps if each.acts),
        )

    def _settled(self, name: str) -> Act:
        act = self._acts[name]
        return act if act.over else replace(act, text=UNANSWERED, over=True)


def _bounded(args: Mapping[str, Any]) -> str:
    """A JSON object that is not longer than anybody reads."""
    try:
        text = msgspec.json.encode(args).decode()
    except (TypeError, ValueError, RecursionError):
        return "{}"
    return text if len(text) <= MAX_ARGS else msgspec.json.encode({"cut": text[:MAX_ARGS]}).decode()


def _short(text: str) -> str:
    if len(text) <= MAX_RESULT:
        return text
    half = MAX_RESULT // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half:,} characters left out …]\n{text[-half:]}"


def text_of(content: Any) -> str:
    """What a content of text blocks says, in whichever of the ways it is written."""
    if isinstance(content, str):
        return content
    if isinstance(content, dict):
        return text_of(content.get("content", content.get("text", "")))  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]  (a program's own JSON)
    if isinstance(content, list):
        return "\n".join(filter(None, (text_of(each) for each in content)))  # pyright: ignore[reportUnknownVariableType]  (the same)
    return ""


def table(value: Any) -> Mapping[str, Any]:
    """A JSON object, or an empty one."""
    return value if isinstance(value, dict) else {}  # pyright: ignore[reportUnknownVariableType]  (a program's own JSON)


def count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
