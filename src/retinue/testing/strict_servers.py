"""Model servers that refuse what real vendors refuse (November 2026).

`FakeModelServer(strict_script("gemini-3", [...]))` plays the script, adds what the vendor wants back to each reply, and
refuses requests that break a rule of the vendor. To add a rule, add a row.
"""

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from msgspec import Struct
from msgspec.structs import replace

from retinue.testing.fake_model_server import CapturedRequest
from retinue.testing.replies import FakeResponse, http_error

ChooseReply = Callable[[CapturedRequest], FakeResponse]


@dataclass(slots=True)
class IssuedData:
    """The data that a server has given out."""

    script: Sequence[FakeResponse] | ChooseReply
    reply_count: int = 0
    reasoning: dict[str, str] = field(default_factory=dict[str, str])
    """Call id → the reasoning text or signature that must come back with the call."""
    prefixes: dict[str, str] = field(default_factory=dict[str, str])
    """Signature of a thinking block → hash of what it is bound to."""
    encrypted: set[str] = field(default_factory=set[str])
    refusals: list[str] = field(default_factory=list[str])
    """Messages of the refusals so far."""

    def next_reply(self, request: CapturedRequest) -> FakeResponse:
        self.reply_count += 1
        if callable(self.script):
            return self.script(request)
        index = self.reply_count - 1
        return self.script[index] if index < len(self.script) else http_error(500, "the script has ended")


Rule = Callable[[CapturedRequest, IssuedData], FakeResponse | None]
Decorate = Callable[[FakeResponse, CapturedRequest, IssuedData], FakeResponse]


class StrictVendor(Struct, frozen=True, kw_only=True):
    """The rules of one vendor's models, and what its replies contain."""

    wire: str
    """`openai` or `anthropic`: the provider that talks to it."""
    rules: Sequence[Rule] = ()
    decorate: Decorate = lambda reply, _request, _issued: reply


def strict_script(
    vendor: str, script: Sequence[FakeResponse] | ChooseReply, issued: IssuedData | None = None
) -> ChooseReply:
    """Return a script for FakeModelServer that follows a vendor's rules.

    Args:
        vendor: A name in STRICT_VENDORS.
        script: Replies, played in order of the accepted requests, or a function that chooses one.
        issued: Where the refusals can be read afterwards.
    """
    spec = STRICT_VENDORS[vendor]
    state = issued or IssuedData(script)
    state.script = script

    def choose(request: CapturedRequest) -> FakeResponse:
        for rule in spec.rules:
            if (refusal := rule(request, state)) is not None:
                state.refusals.append(str((refusal.error or {}).get("message", "")))
                return refusal
        reply = state.next_reply(request)
        return reply if reply.status != 200 else spec.decorate(reply, request, state)  # noqa: PLR2004

    return choose


# rules of one field


def refuse_field(name: str, message: str, *, param: str | None = None) -> Rule:
    """Refuse requests with a field; `a.b` is a nested one."""

    def rule(request: CapturedRequest, _: IssuedData) -> FakeResponse | None:
        if _value_of(request.body, name) is None:
            return None
        return http_error(400, message, kind="invalid_request_error", param=param)

    return rule


def allow_only(fields: Sequence[str]) -> Rule:
    """Refuse fields that are not listed, in the words of servers built with pydantic."""

    def rule(request: CapturedRequest, _: IssuedData) -> FakeResponse | None:
        for name in request.body:
            if name not in fields:
                detail = [
                    {
                        "type": "extra_forbidden",
                        "loc": ["body", name],
                        "msg": "Extra inputs are not permitted",
                    }
                ]
                return FakeResponse(
                    status=422, body=json.dumps({"detail": detail}).encode(), content_type="application/json"
                )
        return None

    return rule


def _route_missing(path: str) -> Rule:
    def rule(request: CapturedRequest, _: IssuedData) -> FakeResponse | None:
        return http_error(404, f"Not Found: {request.path}") if request.path.endswith(path) else None

    return rule


# OpenAI


def _refuse_tools_with_reasoning(request: CapturedRequest, _: IssuedData) -> FakeResponse | None:
    body = request.body
    if not request.path.endswith("/chat/completions") or not body.get("tools"):
        return None
    if body.get("reasoning_effort") == "none":
        return None
    message = (
        f"Function tools with reasoning_effort are not supported for {body['model']} in /v1/chat/completions. "
        "To use function tools, use /v1/responses or set reasoning_effort to 'none'."
    )
    return http_error(400, message, kind="invalid_request_error", param="reasoning_effort")


def _refuse_temperature(request: CapturedRequest, _: IssuedData) -> FakeResponse | None:
    if request.body.get("temperature") in (None, 1):
        return None
    message = "Unsupported parameter: 'temperature' is not supported with this model."
    return http_error(400, message, kind="invalid_request_error", param="temperature")


def _check_response_items(request: CapturedRequest, issued: IssuedData) -> FakeResponse | None:
    """Check that calls have outputs, that reasoning is ours, and that something follows it."""
    if not request.path.endswith("/responses"):
        return None
    if request.body.get("store") is not False:
        return _invalid("This server does not store responses.", "store")
    return _check_call_outputs(request.messages) or _check_reasoning_items(request.messages, issued)


def _check_call_outputs(items: Sequence[Mapping[str, Any]]) -> FakeResponse | None:
    unanswered: set[str] = set()
    for item in items:
        if item.get("type") == "function_call":
            unanswered.add(item["call_id"])
        elif item.get("type") == "function_call_output":
            if item["call_id"] not in unanswered:
                message = f"No tool call found for function call output with call_id {item['call_id']}."
                return _invalid(message, "input")
            unanswered.remove(item["call_id"])
    if unanswered:
        return _invalid(f"No tool output found for function call {min(unanswered)}.", "input")
    return None


def _check_reasoning_items(items: Sequence[Mapping[str, Any]], issued: IssuedData) -> FakeResponse | None:
    for item, following in zip(items, [*items[1:], {}], strict=True):
        if item.get("type") != "reasoning":
            continue
        if item.get("encrypted_content") not in issued.encrypted:
            message = "The encrypted content could not be verified."
            return _invalid(message, "input", code="invalid_encrypted_content")
        if (
            following.get("type") not in ("function_call", "reasoning")
            and following.get("role") != "assistant"
        ):
            message = f"Item '{item.get('id')}' of type 'reasoning' was provided without its required following item."
            return _invalid(message, "input")
    return None


def _require_reasoning_items(request: CapturedRequest, issued: IssuedData) -> FakeResponse | None:
    """Check that each call that had reasoning before it still has it."""
    items = request.messages
    for before, item in zip([{}, *items], items, strict=False):
        wanted = (
            issued.reasoning.get(str(item.get("call_id"))) if item.get("type") == "function_call" else None
        )
        if wanted is not None and before.get("encrypted_content") != wanted:
            return _invalid(
                f"Item '{item['call_id']}' of type 'function_call' was provided without its required 'reasoning' item.",
                "input",
            )
    return None


def _add_encrypted_reasoning(
    reply: FakeResponse, request: CapturedRequest, issued: IssuedData
) -> FakeResponse:
    if not request.path.endswith("/responses") or "reasoning.encrypted_content" not in request.body.get(
        "include", []
    ):
        return reply
    count = max(1, len(reply.calls))
    encrypted = tuple(f"gAAAA-{issued.reply_count}-{index}" for index in range(count))
    call_ids = tuple(f"call_{issued.reply_count}_{index}aBcDeFgHiJkL" for index in range(len(reply.calls)))
    issued.encrypted.update(encrypted)
    issued.reasoning.update(zip(call_ids, encrypted, strict=False))
    return replace(reply, encrypted_reasoning=encrypted, call_ids=call_ids)


# Chat Completions of other vendors


def _check_chat_calls(request: CapturedRequest, _: IssuedData) -> FakeResponse | None:
    """Check that each call has exactly one result right after it."""
    open_ids: list[str] = []
    for message in request.messages:
        if message.get("role") == "tool":
            if message.get("tool_call_id") not in open_ids:
                return _invalid(f"tool message without a call: {message.get('tool_call_id')}", "messages")
            open_ids.remove(message["tool_call_id"])
            continue
        if open_ids:
            return _invalid(f"tool calls without results: {open_ids}", "messages")
        open_ids = [call["id"] for call in message.get("tool_calls") or ()]
    return _invalid(f"tool calls without results: {open_ids}", "messages") if open_ids else None


def _require_reasoning_content(request: CapturedRequest, issued: IssuedData) -> FakeResponse | None:
    for message in request.messages:
        for call in message.get("tool_calls") or ():
            wanted = issued.reasoning.get(call["id"])
            if wanted is None or message.get("reasoning_content") != wanted:
                return _invalid(
                    "The `reasoning_content` in the thinking mode must be passed back to the API.", None
                )
    return None


def _add_reasoning_content(reply: FakeResponse, _: CapturedRequest, issued: IssuedData) -> FakeResponse:
    thinking = reply.thinking or f"I think, part {issued.reply_count}."
    call_ids = tuple(f"call_00_{issued.reply_count}{index}xyzXYZ" for index in range(len(reply.calls)))
    issued.reasoning.update(dict.fromkeys(call_ids, thinking))
    return replace(reply, thinking=thinking, call_ids=call_ids)


def _require_thought_signatures(request: CapturedRequest, issued: IssuedData) -> FakeResponse | None:
    for message in request.messages:
        for position, call in enumerate(message.get("tool_calls") or ()):
            signature = _value_of(call, "extra_content.google.thought_signature")
            wanted = issued.reasoning.get(call["id"])
            if signature == "skip_thought_signature_validator" or (
                wanted is not None and signature == wanted
            ):
                continue
            if wanted is None and position and call["id"] in issued.encrypted:
                continue  # only the first of parallel calls has a signature
            return _invalid(
                f"Function call is missing a thought_signature in functionCall parts. Function call `{call['function']['name']}`.",
                None,
            )
    return None


def _add_thought_signature(reply: FakeResponse, _: CapturedRequest, issued: IssuedData) -> FakeResponse:
    call_ids = tuple(f"function-call-{issued.reply_count}{index}" for index in range(len(reply.calls)))
    issued.encrypted.update(call_ids)
    if not call_ids:
        return reply
    issued.reasoning[call_ids[0]] = signature = f"CiQB{issued.reply_count}=="
    fields = {"extra_content": {"google": {"thought_signature": signature}}}
    return replace(reply, call_ids=call_ids, call_fields=(fields,))


def _require_short_call_ids(request: CapturedRequest, _: IssuedData) -> FakeResponse | None:
    for message in request.messages:
        ids = [call["id"] for call in message.get("tool_calls") or ()] + [
            message.get("tool_call_id", "a" * 9)
        ]
        for call_id in ids:
            if not re.fullmatch(r"[A-Za-z0-9]{9}", call_id):
                return _invalid(
                    f"Tool call id was {call_id} but must be a-z, A-Z, 0-9, with a length of 9.", None
                )
    return None


def _add_short_call_ids(reply: FakeResponse, _: CapturedRequest, issued: IssuedData) -> FakeResponse:
    return replace(
        reply, call_ids=tuple(f"Mi{issued.reply_count:04}{index:03}" for index in range(len(reply.calls)))
    )


def _require_reasoning_details(request: CapturedRequest, issued: IssuedData) -> FakeResponse | None:
    for message in request.messages:
        for call in message.get("tool_calls") or ():
            wanted = issued.reasoning.get(call["id"])
            if wanted is not None and message.get("reasoning_details") != json.loads(wanted):
                return _invalid(
                    "reasoning_details of an assistant message with tool calls must be passed back unchanged.",
                    None,
                )
    return None


def _add_reasoning_details(reply: FakeResponse, _: CapturedRequest, issued: IssuedData) -> FakeResponse:
    details = [
        {"type": "reasoning.text", "text": f"Step {issued.reply_count}.", "signature": "s", "index": 0}
    ]
    call_ids = tuple(f"call_{issued.reply_count}{index}" for index in range(len(reply.calls)))
    issued.reasoning.update(dict.fromkeys(call_ids, json.dumps(details)))
    return replace(reply, message_fields={"reasoning_details": details}, call_ids=call_ids)


# Anthropic


def _check_messages(request: CapturedRequest, _: IssuedData) -> FakeResponse | None:
    """Check the order of roles, and that each tool use is answered in the next message."""
    messages = request.messages
    if not messages or messages[0].get("role") != "user":
        return _invalid("messages: first message must use the user role", None)
    for message, following in zip(messages, [*messages[1:], {}], strict=True):
        uses = {block["id"] for block in message["content"] if block["type"] == "tool_use"}
        results = {
            block["tool_use_id"] for block in following.get("content", ()) if block["type"] == "tool_result"
        }
        if uses != results:
            return _invalid("`tool_use` ids were found without `tool_result` blocks immediately after.", None)
    if messages[-1]["role"] != "user":
        return _invalid("This model does not support assistant message prefill.", None)
    return None


def _refuse_thinking_budget(request: CapturedRequest, _: IssuedData) -> FakeResponse | None:
    if _value_of(request.body, "thinking.type") != "enabled":
        return None
    return _invalid(
        '"thinking.type.enabled" is not supported for this model. Use "thinking.type.adaptive" and '
        '"output_config.effort" to control thinking behavior.', None,
    )  # fmt: skip


def _refuse_adaptive_thinking(request: CapturedRequest, _: IssuedData) -> FakeResponse | None:
    if _value_of(request.body, "thinking.type") != "adaptive":
        return None
    return _invalid(
        "thinking: Input tag 'adaptive' found using 'type' does not match any of the expected tags: 'disabled', 'enabled'",
        None,
    )


def _refuse_disabled_thinking(request: CapturedRequest, _: IssuedData) -> FakeResponse | None:
    if _value_of(request.body, "thinking.type") != "disabled":
        return None
    return _invalid('"thinking.type.disabled" is not supported for this model.', None)


def _require_thinking_in_tool_loops(request: CapturedRequest, _: IssuedData) -> FakeResponse | None:
    if _value_of(request.body, "thinking.type") != "enabled":
        return None
    for message in reversed(request.messages):
        kinds = [block["type"] for block in message["content"]]
        if message["role"] == "user" and "tool_result" not in kinds:
            return None
        if "tool_use" in kinds and kinds[0] not in ("thinking", "redacted_thinking"):
            return _invalid(
                "messages: Expected `thinking` or `redacted_thinking`, but found `tool_use`.", None
            )
    return None


def _check_signatures(request: CapturedRequest, issued: IssuedData) -> FakeResponse | None:
    """Check that each thinking block still follows what it was made for."""
    knows_binding = "thinking-binding-controls-2026-08-01" in request.headers.get("anthropic-beta", "")
    if _value_of(request.body, "thinking.block_binding") is not None and not knows_binding:
        return _invalid("thinking.adaptive.block_binding: Extra inputs are not permitted", None)
    if knows_binding:
        return None  # the server drops stale blocks itself
    for index, message in enumerate(request.messages):
        for block in message["content"]:
            if block["type"] != "thinking":
                continue
            if issued.prefixes.get(block["signature"]) != _prefix_hash(request, index):
                return _invalid(
                    "Invalid `signature` in `thinking` block. The block is bound to a different conversation.",
                    None,
                )
    return None


def _add_signature(reply: FakeResponse, request: CapturedRequest, issued: IssuedData) -> FakeResponse:
    signature = f"EqQB{issued.reply_count}=="
    issued.prefixes[signature] = _prefix_hash(request, len(request.messages))
    call_ids = tuple(f"toolu_{issued.reply_count:02}{index}AbCdEf" for index in range(len(reply.calls)))
    return replace(reply, signature=signature, call_ids=call_ids)


def _prefix_hash(request: CapturedRequest, message_count: int) -> str:
    bound = [request.body.get("system"), request.body.get("tools"), request.messages[:message_count]]
    return hashlib.sha256(json.dumps(bound, sort_keys=True).encode()).hexdigest()


def _invalid(message: str, param: str | None, *, code: str = "") -> FakeResponse:
    refusal = http_error(400, message, kind="invalid_request_error", param=param)
    return replace(
        refusal, error={**cast("Mapping[str, Any]", refusal.error), **({"code": code} if code else {})}
    )


def _value_of(body: Mapping[str, Any], name: str) -> Any:
    value: Any = body
    for step in name.split("."):
        value = cast("Mapping[str, Any]", value).get(step) if isinstance(value, Mapping) else None
    return value


# schemas of the final answer


def _check_schema_format(request: CapturedRequest, _: IssuedData) -> FakeResponse | None:
    """Check a schema as OpenAI does: it has a name, and a strict one is closed."""
    for name in ("text.format", "response_format.json_schema"):
        described = _value_of(request.body, name)
        if described is None:
            continue
        if not re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", str(described.get("name") or "")):
            return _invalid(f"Missing required parameter: '{name}.name'.", f"{name}.name")
        if described.get("strict") and not _is_closed(described["schema"]):
            message = "Invalid schema for response_format 'answer': In context=(), 'additionalProperties' is required to be supplied and to be false."
            return _invalid(message, name, code="invalid_json_schema")
    return None


def _refuse_response_schema(request: CapturedRequest, _: IssuedData) -> FakeResponse | None:
    if _value_of(request.body, "response_format.type") != "json_schema":
        return None
    return _invalid("This response_format type is unavailable now", None)


def _require_closed_schema(request: CapturedRequest, _: IssuedData) -> FakeResponse | None:
    schema = _value_of(request.body, "output_config.format.schema")
    if schema is None or _is_closed(schema):
        return None
    message = "output_config.format.schema: For 'object' type, 'additionalProperties' must be explicitly set to false"
    return _invalid(message, None)


def _is_closed(node: Any) -> bool:
    """Return True if every object of a schema allows only its own properties."""
    if isinstance(node, list):
        return all(map(_is_closed, cast("list[Any]", node)))
    if not isinstance(node, Mapping):
        return True
    fields = cast("Mapping[str, Any]", node)
    is_open = fields.get("type") == "object" and fields.get("additionalProperties") is not False
    return not is_open and all(map(_is_closed, fields.values()))


_NEW_CLAUDE = (
    _check_messages,
    _require_closed_schema,
    _refuse_thinking_budget,
    refuse_field("temperature", "`temperature` is deprecated for this model."),
    refuse_field("top_p", "`top_p` is deprecated for this model."),
)

STRICT_VENDORS: Mapping[str, StrictVendor] = {
    "gpt-5.6": StrictVendor(
        wire="openai",
        rules=(
            _refuse_tools_with_reasoning, _refuse_temperature, _check_chat_calls, _check_response_items,
            _require_reasoning_items, _check_schema_format,
        ),
        decorate=_add_encrypted_reasoning,
    ),
    "gpt-5.6 without the Responses API": StrictVendor(
        wire="openai",
        rules=(_route_missing("/responses"), _refuse_tools_with_reasoning, _refuse_temperature, _check_chat_calls),
    ),
    "responses only": StrictVendor(
        wire="openai",
        rules=(_route_missing("/chat/completions"), _check_response_items, _require_reasoning_items),
        decorate=_add_encrypted_reasoning,
    ),
    "gpt-4.1": StrictVendor(
        wire="openai",
        rules=(
            refuse_field("include", "Encrypted content is not supported with this model.", param="include"),
            refuse_field("reasoning", "Unsupported parameter: 'reasoning.effort' is not supported with this model.",
                         param="reasoning.effort"),
            refuse_field("reasoning_effort", "Unrecognized request argument supplied: reasoning_effort"),
            _check_chat_calls, _check_response_items,
        ),
    ),
    "deepseek-v4": StrictVendor(
        wire="openai",
        rules=(
            _route_missing("/responses"), _check_chat_calls, _require_reasoning_content, _refuse_response_schema,
        ),
        decorate=_add_reasoning_content,
    ),
    "gemini-3": StrictVendor(
        wire="openai",
        rules=(_route_missing("/responses"), _check_chat_calls, _require_thought_signatures),
        decorate=_add_thought_signature,
    ),
    "mistral": StrictVendor(
        wire="openai",
        rules=(
            _route_missing("/responses"), _check_chat_calls, _require_short_call_ids,
            allow_only(("model", "messages", "tools", "temperature", "max_tokens", "stream", "tool_choice")),
        ),
        decorate=_add_short_call_ids,
    ),
    "minimax": StrictVendor(
        wire="openai",
        rules=(_route_missing("/responses"), _check_chat_calls, _require_reasoning_details),
        decorate=_add_reasoning_details,
    ),
    "claude-4.5": StrictVendor(
        wire="anthropic",
        rules=(
            _check_messages, _refuse_adaptive_thinking, _require_thinking_in_tool_loops,
            refuse_field("output_config", "output_config: Extra inputs are not permitted"),
        ),
    ),
    "claude-4.7": StrictVendor(wire="anthropic", rules=_NEW_CLAUDE, decorate=_add_signature),
    "claude-5.1": StrictVendor(wire="anthropic", rules=(*_NEW_CLAUDE, _check_signatures), decorate=_add_signature),
    "opus-5.5": StrictVendor(
        wire="anthropic",
        rules=(*_NEW_CLAUDE, _refuse_disabled_thinking, _check_signatures),
        decorate=_add_signature,
    ),
}  # fmt: skip
"""Vendors by name; a server of an older kind is there to show that it is still served."""
