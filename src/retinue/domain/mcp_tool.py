"""Offers: what a server says of its tools, and what a person agreed to of it."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from enum import StrEnum
from typing import Any, cast

from retinue.domain.sanitize import for_model, shown
from retinue.domain.system_prompt import SYSTEM_PREFIX
from retinue.domain.value import value

SERVER_NAME = re.compile(r"[a-z][a-z0-9_-]{0,31}")
TOOL_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,95}")

HINTS = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")
"""What a server may claim of a tool. Claims: only the operator says whether they are believed."""

MAX_DESCRIPTION = 16_000
MAX_SCHEMA = 64_000
"""Characters: more is no tool, it is a book for the model to read at every turn."""
MAX_DEPTH = 32

_CHOICES = ("anyOf", "oneOf", "allOf", "not", "enum")
_ARGUMENT = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_PROSE = ("description", "title", "$comment")
"""Keys of a schema whose values are words for a reader."""


@value
class Server:
    """How a server that brings tools is started, or reached, as the operator says: it has a command or an address."""

    name: str
    command: str = ""
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    """Often holds keys: it is shown nowhere."""
    inherit: tuple[str, ...] = ()
    """Variables that are handed on as they are here."""
    cwd: str | None = None
    url: str = ""
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    bearer_env: str = ""
    """The variable that holds the key for its address."""
    timeout_seconds: float = 60.0
    """For its start, and for each call."""
    believe_hints: bool = False


@value
class Offer:
    """A tool as its server describes it."""

    name: str
    description: str
    schema: Mapping[str, Any]
    hints: Mapping[str, bool] = field(default_factory=dict[str, bool])

    @property
    def hash(self) -> str:
        """Of all that the model reads and the gate goes by."""
        facts = [self.name, self.description, self.schema, dict(self.hints)]
        text = json.dumps(facts, sort_keys=True, ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def problem(self) -> str:
        """Why it can be no tool here; empty when it can."""
        if not TOOL_NAME.fullmatch(self.name):
            return f"the name {shown(self.name[:100])!r} is none: letters, digits, _ . and -, at most 96"
        if len(self.description) > MAX_DESCRIPTION:
            return f"its description has {len(self.description):,} characters, and {MAX_DESCRIPTION:,} is the most"
        if self.schema.get("type") != "object" or any(key in self.schema for key in _CHOICES):
            return "its schema does not describe one object, as model APIs want it"
        if deep(self.schema) > MAX_DEPTH:
            return f"its schema is nested deeper than {MAX_DEPTH} levels"
        if len(json.dumps(self.schema)) > MAX_SCHEMA:
            return f"its schema is longer than {MAX_SCHEMA:,} characters"
        if odd := [key for key in _names(self.schema) if not _ARGUMENT.fullmatch(key)]:
            return f"model APIs take no argument of the name {shown(odd[0][:100])!r}"
        if any(not _is_plain(each) and for_model(each) != each for each in _words(self.schema)):
            return "its schema hides characters where only names and values stand"
        return ""

    def for_model(self) -> "Offer":
        """The same, with hidden characters in the open wherever words stand."""
        schema: dict[str, Any] = {"properties": {}, **_clear(self.schema)}
        return Offer(name=self.name, description=for_model(self.description), schema=schema, hints=self.hints)


@value
class Pin:
    """An offer that a person agreed to."""

    offer: Offer
    changed: str = ""
    """The hash of what its server has said since instead; such a tool is refused. Empty: it is as it was."""


class Stand(StrEnum):
    """What a person said about a tool, and whether it still holds."""

    TRUSTED = "trusted"
    CHANGED = "changed"
    NEW = "not trusted"
    GONE = "gone"
    """It was trusted, and its server does not offer it any more."""
    UNFIT = "unfit"
    """It can be no tool here, whoever trusts it."""


@value
class Compared:
    """One tool of a server, as it is and as it was agreed to."""

    name: str
    stand: Stand
    now: Offer | None
    pinned: Offer | None
    problem: str = ""


def compared(now: Sequence[Offer], pins: Mapping[str, Pin]) -> list[Compared]:
    """Every tool that is offered or was trusted, by name. Of two offers with one name neither counts."""
    offers = {offer.name: offer for offer in now}
    twice = {offer.name for offer in now if offers[offer.name] is not offer}
    found: list[Compared] = []
    for name in sorted({*offers, *pins}):
        offer, pin = offers.get(name), pins.get(name)
        problem = "" if offer is None else offer.problem()
        if name in twice:
            problem = "its server offers two tools of this name"
        stand = _stand(offer, pin, problem)
        pinned = None if pin is None else pin.offer
        found.append(Compared(name=name, stand=stand, now=offer, pinned=pinned, problem=problem))
    return found


def _stand(offer: Offer | None, pin: Pin | None, problem: str) -> Stand:
    if offer is None:
        return Stand.GONE
    if problem:
        return Stand.UNFIT
    if pin is None:
        return Stand.NEW
    return Stand.TRUSTED if not pin.changed and pin.offer.hash == offer.hash else Stand.CHANGED


def full_name(server: str, tool: str) -> str:
    """The one name of a tool that a server brings."""
    return f"{server}.{tool}"


def server_problem(name: str) -> str:
    """Why a server cannot be called so; empty when it can."""
    if not SERVER_NAME.fullmatch(name):
        return (
            "is no name for a server: use small letters, digits, _ and -, at most 32, beginning with a letter"
        )
    if name.startswith(SYSTEM_PREFIX):
        return f"must be called otherwise: names with {SYSTEM_PREFIX} are reserved"
    return ""


def deep(value: Any) -> int:
    """How many levels something has, counted without climbing down them one by one."""
    levels, here = 0, [value]
    while here and levels <= MAX_DEPTH:
        levels += 1
        here = [inner for each in here for inner in _inside(each)]
    return levels


def _is_plain(text: str) -> bool:
    """Most are, and that is seen quickly."""
    return text.isascii() and text.isprintable()


def _names(schema: Mapping[str, Any]) -> Sequence[str]:
    properties: Any = schema.get("properties")
    return tuple(cast("dict[str, Any]", properties)) if isinstance(properties, dict) else ()


def _inside(value: Any) -> Sequence[Any]:
    if isinstance(value, Mapping):
        return tuple(cast("Mapping[str, Any]", value).values())
    return cast("list[Any]", value) if isinstance(value, list) else ()


def _words(value: Any, *, named: bool = False) -> Iterator[str]:
    """Every text of a schema that is no prose: names, choices, patterns. `named`: the keys are names of arguments,
    whatever they are called."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for each in cast("list[Any]", value):
            yield from _words(each)
    elif isinstance(value, Mapping):
        for key, each in cast("Mapping[str, Any]", value).items():
            yield key
            if named or key not in _PROSE or not isinstance(each, str):
                yield from _words(each, named=not named and key in ("properties", "$defs"))


def _clear(value: Any, *, named: bool = False) -> Any:
    if isinstance(value, list):
        return [_clear(each) for each in cast("list[Any]", value)]
    if not isinstance(value, Mapping):
        return value
    out: dict[str, Any] = {}
    for key, each in cast("Mapping[str, Any]", value).items():
        if not named and key in _PROSE and isinstance(each, str):
            out[key] = each if _is_plain(each) else for_model(each)
        else:
            out[key] = _clear(each, named=not named and key in ("properties", "$defs"))
    return out
