"""A tool that a server brings: shown to the model as a person agreed to it, and believed as little as the operator says."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

import msgspec

from retinue.domain.ceiling import NETWORK
from retinue.domain.mcp_tool import Offer, Pin, full_name
from retinue.domain.tool import Asks, Effect, ToolSpec
from retinue.interfaces import Call, Tool
from retinue.tools.arguments import prescan

Ask = Callable[[Pin, Mapping[str, Any]], Awaitable[str]]
"""Calls the tool at its server, if it is still what was agreed to."""

CATEGORY = "mcp"
CHANGED = "its server describes it otherwise than you trusted it: retinue mcp trust {server}"


def served(server: str, pin: Pin, ask: Ask, *, believe_hints: bool = False) -> Tool:
    """Without a hint that counts it may destroy, happens once, asks first and reaches the network."""
    face = pin.offer.for_model()
    hints: Mapping[str, bool] = pin.offer.hints if believe_hints else {}
    reads = hints.get("readOnlyHint") is True

    async def body(arguments: Mapping[str, Any], _call: Call) -> str:
        return await ask(pin, arguments)

    return Tool(
        spec=ToolSpec(
            name=full_name(server, face.name),
            description=face.description or f"{face.name}, a tool of the server {server}.",
            schema=face.schema,
        ),
        parse=_parser(pin.offer),
        body=body,
        effect=_effect(reads=reads, again=hints.get("idempotentHint") is True),
        asks=Asks.NEVER if reads else Asks.UNLESS_GRANTED,
        capabilities=() if hints.get("openWorldHint") is False else (NETWORK,),
        category=CATEGORY,
        plugin=server,
        withheld=CHANGED.format(server=server) if pin.changed else "",
    )


def _effect(*, reads: bool, again: bool) -> Effect:
    if reads:
        return Effect.READ
    return Effect.IDEMPOTENT if again else Effect.ONCE


def _parser(offer: Offer) -> Callable[[bytes], Mapping[str, Any]]:
    """One object, with what must be there and nothing that is said to have no place; the rest its server judges."""
    required: Any = offer.schema.get("required")
    needed = [str(each) for each in cast("list[Any]", required)] if isinstance(required, list) else []
    properties: Any = offer.schema.get("properties")
    known = set(cast("dict[str, Any]", properties)) if isinstance(properties, dict) else set[str]()
    closed = offer.schema.get("additionalProperties") is False and "patternProperties" not in offer.schema

    def parse(raw: bytes) -> Mapping[str, Any]:
        raw = raw.strip() or b"{}"
        prescan(raw)
        try:
            given: Any = msgspec.json.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ValueError(f"the arguments cannot be read: {error}") from error
        if not isinstance(given, dict):
            raise ValueError("the arguments must be one object")  # noqa: TRY004  (they were misread, not mistyped)
        found = cast("dict[str, Any]", given)
        for each in needed:
            if each not in found:
                raise ValueError(f"the argument `{each}` is missing")
        for each in found:
            if closed and each not in known:
                raise ValueError(
                    f"there is no argument `{each}`; it takes {', '.join(sorted(known)) or 'none'}"
                )
        return found

    return parse
