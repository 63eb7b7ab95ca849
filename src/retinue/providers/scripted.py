"""A provider that plays replies from a JSON file, for demonstrations and tests without a model."""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import msgspec

from retinue.domain.model_turn import Model, ModelReply, ModelRequest, ReplyDelta, StopReason, UnsavedToolCall
from retinue.domain.run import Reason, Usage
from retinue.domain.transcript import Message, ToolCall
from retinue.errors import BadConfig, ModelFailed
from retinue.providers.interface import ProviderServices, ProviderSettings
from retinue.providers.request_encoding import invalid_arguments_reason

ANY_AGENT = "*"
_DELTAS_PER_TEXT = 4
"""Number of deltas a text is split into, as a stream would do."""


class ScriptedCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A tool call: `name` (or `tool`) and `args` (or `arguments`).

    The arguments are an object, or a string passed on as it is.
    """

    name: str = ""
    tool: str = ""
    args: dict[str, Any] | str | None = None
    arguments: dict[str, Any] | str | None = None


class ScriptedUsage(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    input: int = 0
    output: int = 0


class ScriptedReply(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A reply: any of text and tools, after `delay` seconds; or an `error` with its `reason`."""

    text: str = ""
    tools: tuple[ScriptedCall, ...] = ()
    calls: tuple[ScriptedCall, ...] = ()
    """An alias of `tools`, as is `tool_calls`."""
    tool_calls: tuple[ScriptedCall, ...] = ()
    delay: float = 0
    error: str = ""
    reason: Reason = Reason.PROVIDER
    usage: ScriptedUsage = ScriptedUsage()
    stop: StopReason | None = None
    model: str = ""

    @property
    def all_calls(self) -> tuple[ScriptedCall, ...]:
        return self.tools + self.calls + self.tool_calls


class AgentScript(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An agent's replies; with `loop` they repeat from the start when used up."""

    replies: tuple[ScriptedReply | str, ...]
    loop: bool = False


_ReplyList = tuple[ScriptedReply | str, ...]


def create_provider(
    model: Model, _settings: ProviderSettings, _services: ProviderServices
) -> "ScriptedProvider":
    return ScriptedProvider(Path(model.name))


def check_script(model: Model, _settings: ProviderSettings) -> None:
    if not Path(model.name).is_file():
        raise BadConfig(
            f"The script {model.name} is not a file. scripted:FILE reads replies from a JSON file."
        )


class ScriptedProvider:
    """Play the n-th reply of an agent's list when its conversation already has n replies.

    No state is stored, so a session resumed by any process continues where it stopped.

    The file is a list of replies for any agent, or an object from agent names to such lists, where `*` stands
    for every other agent. Instead of a list there may be {"replies": […], "loop": true}.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = str(path)
        self._replies_by_agent = _load_script(self._path)

    async def request_reply(
        self, request: ModelRequest, on_delta: Callable[[ReplyDelta], None]
    ) -> ModelReply:
        reply = self._next_reply(request)
        if reply.delay > 0:
            await asyncio.sleep(reply.delay)
        if reply.error:
            raise ModelFailed(reply.error, reason=reply.reason)
        delta_chars = max(1, -(-len(reply.text) // _DELTAS_PER_TEXT))
        for start in range(0, len(reply.text), delta_chars):
            on_delta(ReplyDelta(text=reply.text[start : start + delta_chars]))
        tool_calls = tuple(_make_tool_call(call) for call in reply.all_calls)
        return ModelReply(
            text=reply.text,
            tool_calls=tool_calls,
            model=reply.model or f"scripted:{Path(self._path).name}",
            usage=_estimate_usage(reply, request),
            stop_reason=reply.stop or (StopReason.TOOLS if tool_calls else StopReason.END),
        )

    async def close(self) -> None:
        """Do nothing; no resources are held."""

    def _next_reply(self, request: ModelRequest) -> ScriptedReply:
        script = self._replies_by_agent.get(request.agent_name) or self._replies_by_agent.get(ANY_AGENT)
        if script is None:
            names = ", ".join(sorted(self._replies_by_agent)) or "no agent"
            raise ModelFailed(
                f"{self._path} has no replies for {request.agent_name}, only for {names}",
                reason=Reason.CONFIG,
            )
        reply_count = sum(
            1 for entry in request.entries if isinstance(entry, Message) and entry.role == "agent"
        )
        if reply_count >= len(script.replies) and not (script.loop and script.replies):
            raise ModelFailed(
                f"{self._path} has {len(script.replies)} replies for {request.agent_name}, and all were used. "
                "Add more, or set loop",
                reason=Reason.CONFIG,
            )
        reply = script.replies[reply_count % len(script.replies)]
        return ScriptedReply(text=reply) if isinstance(reply, str) else reply


def _load_script(path: str) -> Mapping[str, AgentScript]:
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise BadConfig(f"cannot read the script {path}: {error.strerror}") from error
    try:
        value: Any = msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadConfig(f"the script {path} is not valid JSON: {error}") from error
    if isinstance(value, list):
        return {ANY_AGENT: _parse_replies(path, "", cast("list[Any]", value))}
    if not isinstance(value, dict):
        raise BadConfig(
            f"the script {path} must be a list of replies, or an object that maps agent names to lists"
        )
    by_agent = cast("dict[str, Any]", value)
    if "replies" in by_agent:
        return {ANY_AGENT: _parse_replies(path, "", by_agent)}
    return {agent: _parse_replies(path, f" for {agent}", replies) for agent, replies in by_agent.items()}


def _parse_replies(path: str, suffix: str, value: Any) -> AgentScript:
    expected_type: Any = AgentScript if isinstance(value, dict) else _ReplyList
    try:
        script: AgentScript | _ReplyList = msgspec.convert(value, expected_type)
    except msgspec.ValidationError as error:
        raise BadConfig(f"the script {path} has an invalid reply{suffix}: {error}") from error
    script = script if isinstance(script, AgentScript) else AgentScript(replies=script)
    for index, reply in enumerate(script.replies):
        if isinstance(reply, ScriptedReply):
            _check_reply(f"the script {path}{suffix}, reply {index + 1}", reply)
    return script


def _check_reply(location: str, reply: ScriptedReply) -> None:
    for call in reply.all_calls:
        if bool(call.name) == bool(call.tool):
            raise BadConfig(f"{location}: a call needs either name or tool")
        if call.args is not None and call.arguments is not None:
            raise BadConfig(f"{location}: a call has either args or arguments, not both")


def _make_tool_call(call: ScriptedCall) -> UnsavedToolCall:
    args = call.args if call.args is not None else call.arguments
    if isinstance(args, str):
        return UnsavedToolCall(
            tool=call.name or call.tool, arguments=args, invalid_reason=invalid_arguments_reason(args)
        )
    return UnsavedToolCall(tool=call.name or call.tool, arguments=msgspec.json.encode(args or {}).decode())


def _estimate_usage(reply: ScriptedReply, request: ModelRequest) -> Usage:
    """Return the scripted usage, else a rough count of the texts."""
    if reply.usage.input or reply.usage.output:
        return Usage(input=reply.usage.input, output=reply.usage.output)
    entry_chars = sum(len(entry.text) for entry in request.entries if not isinstance(entry, ToolCall))
    return Usage(input=-(-(len(request.system) + entry_chars) // 4), output=-(-len(reply.text) // 4))
