"""A driver that plays replies from a JSON file: demonstrations and tests without any model."""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import msgspec

from retinue.domain.model_turn import Delta, Reply, Request, Stop, Wish
from retinue.domain.run import Reason, Usage
from retinue.domain.transcript import Called, Said
from retinue.errors import BadConfig, ModelFailed
from retinue.providers.request_encoding import not_an_object

ANYONE = "*"
_PIECES = 4
"""A text is heard in about so many pieces, as a stream would bring it."""


class ScriptedCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A tool call: `name` (or `tool`) and `args` (or `arguments`), an object, or a text passed on as it is."""

    name: str = ""
    tool: str = ""
    args: dict[str, Any] | str | None = None
    arguments: dict[str, Any] | str | None = None


class ScriptedUsage(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    input: int = 0
    output: int = 0


class ScriptedReply(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One reply: any of text and tools, after `delay` seconds; or an `error` with its `reason`."""

    text: str = ""
    tools: tuple[ScriptedCall, ...] = ()
    calls: tuple[ScriptedCall, ...] = ()
    """Another word for tools, as is `tool_calls`."""
    tool_calls: tuple[ScriptedCall, ...] = ()
    delay: float = 0
    error: str = ""
    reason: Reason = Reason.PROVIDER
    usage: ScriptedUsage = ScriptedUsage()
    stop: Stop | None = None
    model: str = ""

    @property
    def wanted(self) -> tuple[ScriptedCall, ...]:
        return self.tools + self.calls + self.tool_calls


class ScriptedPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An agent's replies; with `loop` they begin again when they are used up."""

    replies: tuple[ScriptedReply | str, ...]
    loop: bool = False


_Replies = tuple[ScriptedReply | str, ...]


class Scripted:
    """Plays the n-th reply of an agent's list when its conversation holds n replies of the model already:
    nothing is remembered, so a session that was resumed, by whatever process, goes on where it stopped.

    The file is a list of replies for any agent, or an object from agent names to such lists, `*` standing for
    every other agent. Instead of a list there may be {"replies": […], "loop": true}."""

    def __init__(self, path: str | Path) -> None:
        self._path = str(path)
        self._parts = _parsed(self._path)

    async def turn(self, request: Request, heard: Callable[[Delta], None]) -> Reply:
        reply = self._next(request)
        if reply.delay > 0:
            await asyncio.sleep(reply.delay)
        if reply.error:
            raise ModelFailed(reply.error, reason=reply.reason)
        step = max(1, -(-len(reply.text) // _PIECES))
        for at in range(0, len(reply.text), step):
            heard(Delta(text=reply.text[at : at + step]))
        wishes = tuple(_wish(call) for call in reply.wanted)
        return Reply(
            text=reply.text,
            wishes=wishes,
            model=reply.model or f"scripted:{Path(self._path).name}",
            usage=_usage(reply, request),
            stop=reply.stop or (Stop.TOOLS if wishes else Stop.END),
        )

    async def close(self) -> None:
        """Nothing is held open."""

    def _next(self, request: Request) -> ScriptedReply:
        part = self._parts.get(request.agent) or self._parts.get(ANYONE)
        if part is None:
            known = ", ".join(sorted(self._parts)) or "nobody"
            raise ModelFailed(
                f"{self._path} has no replies for {request.agent}: it knows {known}", reason=Reason.CONFIG
            )
        said = sum(1 for entry in request.entries if isinstance(entry, Said) and entry.by == "agent")
        if said >= len(part.replies) and not (part.loop and part.replies):
            raise ModelFailed(
                f"{self._path} holds {len(part.replies)} replies for {request.agent}, and all are used: "
                "add more, or set loop",
                reason=Reason.CONFIG,
            )
        reply = part.replies[said % len(part.replies)]
        return ScriptedReply(text=reply) if isinstance(reply, str) else reply


def _parsed(path: str) -> Mapping[str, ScriptedPart]:
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise BadConfig(f"cannot read the script {path}: {error.strerror}") from error
    try:
        value: Any = msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadConfig(f"the script {path} is not JSON: {error}") from error
    if isinstance(value, list):
        return {ANYONE: _part(path, "", cast("list[Any]", value))}
    if not isinstance(value, dict):
        raise BadConfig(f"the script {path} must be a list of replies, or an object from agents to lists")
    named = cast("dict[str, Any]", value)
    if "replies" in named:
        return {ANYONE: _part(path, "", named)}
    return {agent: _part(path, f" for {agent}", part) for agent, part in named.items()}


def _part(path: str, whose: str, value: Any) -> ScriptedPart:
    form: Any = ScriptedPart if isinstance(value, dict) else _Replies
    try:
        part: ScriptedPart | _Replies = msgspec.convert(value, form)
    except msgspec.ValidationError as error:
        raise BadConfig(f"the script {path} has a wrong reply{whose}: {error}") from error
    part = part if isinstance(part, ScriptedPart) else ScriptedPart(replies=part)
    for at, reply in enumerate(part.replies):
        if isinstance(reply, ScriptedReply):
            _check(f"the script {path}{whose}, reply {at + 1}", reply)
    return part


def _check(where: str, reply: ScriptedReply) -> None:
    for call in reply.wanted:
        if bool(call.name) == bool(call.tool):
            raise BadConfig(f"{where}: a call needs either name or tool")
        if call.args is not None and call.arguments is not None:
            raise BadConfig(f"{where}: a call has either args or arguments, not both")


def _wish(call: ScriptedCall) -> Wish:
    args = call.args if call.args is not None else call.arguments
    if isinstance(args, str):
        return Wish(tool=call.name or call.tool, args=args, broken=not_an_object(args))
    return Wish(tool=call.name or call.tool, args=msgspec.json.encode(args or {}).decode())


def _usage(reply: ScriptedReply, request: Request) -> Usage:
    """As the script says, else a rough count of what was said."""
    if reply.usage.input or reply.usage.output:
        return Usage(input=reply.usage.input, output=reply.usage.output)
    said = sum(len(entry.text) for entry in request.entries if not isinstance(entry, Called))
    return Usage(input=-(-(len(request.system) + said) // 4), output=-(-len(reply.text) // 4))
