"""Refusals: what a server's error says about a request, and the one change that may make it acceptable.

Vendors change what their models accept within weeks, so no list of models decides. The rules below are about the
sentences of servers; a rule for a new one is a row. What no rule knows is judged by the optional field that the
server names. Tools, messages, the system message and the schema of the answer are never changed.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import msgspec
from msgspec import Struct

from retinue.providers.errors import Refusal
from retinue.providers.request_changes import (
    BINDING,
    CALL_IDS,
    DROP,
    FOREIGN_CALLS,
    REPLAY,
    SCHEMA,
    SIGNATURES,
    THINKING,
    WIRE,
    RequestChange,
    RequestChanges,
    drop_field,
    field_names,
    field_value,
    limit_value,
    rename_field,
    replace_value,
)

CHAT, RESPONSES, MESSAGES = "openai-chat", "openai-responses", "anthropic"
MAX_TEXT_CHARS = 8_000
OPTIONAL_FIELDS = frozenset(
    {
        "temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty", "seed",
        "thinking", "thinking.type", "thinking.budget_tokens", "thinking.display", "thinking.block_binding",
        "thinking.block_binding.prefix_mismatch_behavior",
        "reasoning", "reasoning.effort", "reasoning.summary", "reasoning_effort", "output_config.effort", "include",
        "cache_control", "prompt_cache_key", "stream_options", "stream_options.include_usage",
    }
)  # fmt: skip
"""Fields that may be left out: sampling, thinking, effort, cache hints, binding and stream options."""
_REQUIRED_FIELDS = frozenset(
    {
        "model",
        "messages",
        "input",
        "instructions",
        "system",
        "tools",
        "tool_choice",
        "response_format",
        "text",
        "stream",
    }
    | {"output_config.format", "store"}
)
_NOT_FOUND_STATUSES = frozenset({404, 405, 501})
_REFUSAL_STATUSES = frozenset({400, 422})
_EFFORTS = ("max", "xhigh", "high", "medium", "low", "minimal", "none")
"""From the highest to the lowest."""
_EFFORT_FIELDS = ("reasoning.effort", "reasoning_effort", "output_config.effort")
_REFUSING_PHRASE = re.compile(
    r"not supported|unsupported|not support|not permitted|not allowed|not accept|deprecated|unknown|unrecogni[sz]ed|"
    r"unexpected|invalid|extra (?:inputs|fields)|extra_forbidden|cannot|can't|must|only|remove|removed|no longer"
)


class SentRequest(Struct, frozen=True, kw_only=True):
    """The request that was refused."""

    wire: str
    fields: Mapping[str, Any]
    """Its fields without those that the user added: only the user may remove them."""
    changes: RequestChanges
    other_wires: Sequence[str] = ()
    """Other APIs that the server may have."""
    schema: str = ""
    """Fingerprint of the output schema, if it was sent in the API's own field."""


ChangeBuilder = Callable[[Refusal, SentRequest], RequestChange | None]


class RefusalRule(Struct, frozen=True, kw_only=True):
    """A change for a sentence of a server."""

    pattern: re.Pattern[str]
    """Searched in the body, in lower case."""
    build: ChangeBuilder
    wires: frozenset[str] = frozenset({CHAT, RESPONSES, MESSAGES})


def parse_refusal(status: int, body: bytes) -> Refusal:
    """Read an error body in any of the usual forms."""
    raw = body[: 4 * MAX_TEXT_CHARS].decode("utf-8", "replace")[:MAX_TEXT_CHARS]
    try:
        document: Any = msgspec.json.decode(body)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return Refusal(status=status, message=raw, text=raw.lower())
    fields = _error_fields(document)
    details = fields.get("message") or fields.get("detail") or ""
    message = details if isinstance(details, str) else msgspec.json.encode(details).decode()
    return Refusal(
        status=status,
        message=message[:MAX_TEXT_CHARS],
        param=_short_text(fields.get("param")),
        text=raw.lower(),
    )


def find_change(refusal: Refusal, sent: SentRequest) -> RequestChange | None:
    """Return the change to try, or None if the refusal must be reported."""
    change = _find_change(refusal, sent)
    if change is None or sent.changes.treatment_of(change.name) == change.treatment:
        return None
    return change.with_reason(refusal.message)


def _find_change(refusal: Refusal, sent: SentRequest) -> RequestChange | None:
    if is_unknown_route(refusal):
        return _use_other_wire(refusal, sent)
    if refusal.status not in _REFUSAL_STATUSES:
        return None
    for rule in RULES:
        if sent.wire in rule.wires and rule.pattern.search(refusal.text):
            change = rule.build(refusal, sent)
            if change is not None:
                return change
    if _names_required_field(refusal.param):
        return None
    name = _named_optional_field(refusal, sent.fields)
    return drop_field(name) if name else None


def is_unknown_route(refusal: Refusal) -> bool:
    """Return True if the server has no such API, as opposed to no such model."""
    return refusal.status in _NOT_FOUND_STATUSES and not re.search(r"\bmodel(?:_not_found)?\b", refusal.text)


def _names_required_field(param: str) -> bool:
    return bool(param) and (param in _REQUIRED_FIELDS or re.split(r"[.\[]", param)[0] in _REQUIRED_FIELDS)


def _named_optional_field(refusal: Refusal, fields: Mapping[str, Any]) -> str:
    """Return the optional field that the refusal is about; empty if there is none.

    A nested field is named before the one that contains it. A plain English word counts only if it is quoted, or if
    the sentence refuses something.
    """
    names = [name for name in field_names(fields) if name in OPTIONAL_FIELDS]
    for name in names:
        if refusal.param == name or refusal.param.endswith(f".{name}"):
            return name
    if refusal.param:
        parents = [name for name in names if refusal.param.startswith(f"{name}.")]
        return max(parents, key=len, default="")
    refuses = bool(_REFUSING_PHRASE.search(refusal.text))
    for name in names:
        variants = {name, name.replace(".", ", "), name.replace(".", "->")}
        if any(_is_quoted(variant, refusal.text) for variant in variants):
            return name
    for name in names:
        if refuses and re.search(rf"(?<![\w.]){re.escape(name)}(?![\w])", refusal.text):
            return name
    return ""


def _is_quoted(name: str, text: str) -> bool:
    return bool(
        re.search(rf"""['"`]{re.escape(name)}\\?['"`]|^{re.escape(name)}:|[" ]{re.escape(name)}: """, text)
    )


def _use_other_wire(_: Refusal, sent: SentRequest) -> RequestChange | None:
    return RequestChange(name=WIRE, treatment=sent.other_wires[0]) if sent.other_wires else None


def _leave_chat_completions(refusal: Refusal, sent: SentRequest) -> RequestChange | None:
    """Use the API that the server names; at a server without it, ask for no reasoning."""
    if (change := _use_other_wire(refusal, sent)) is not None:
        return change
    is_none = field_value(sent.fields, "reasoning_effort") == "none"
    return None if is_none else RequestChange(name="reasoning_effort", treatment="none")


def _choose_thinking_type(_: Refusal, sent: SentRequest) -> RequestChange | None:
    """Request thinking in the other form; if both were refused, not at all."""
    sent_type = field_value(sent.fields, "thinking.type")
    other = {"adaptive": "enabled", "enabled": "adaptive"}.get(str(sent_type))
    if other is None:
        return drop_field(THINKING) if sent_type is not None else None
    is_second = sent.changes.treatment_of(THINKING) in ("adaptive", "enabled")
    return drop_field(THINKING) if is_second else RequestChange(name=THINKING, treatment=other)


def _lower_effort(refusal: Refusal, sent: SentRequest) -> RequestChange | None:
    """Send the nearest effort that the server names, or the next lower one."""
    for name in _EFFORT_FIELDS:
        value = field_value(sent.fields, name)
        if not isinstance(value, str) or value not in _EFFORTS:
            continue
        named = {
            effort
            for effort in _EFFORTS
            if effort != value and re.search(rf"['\"`]{effort}\\?['\"`]", refusal.text)
        }
        position = _EFFORTS.index(value)
        if (
            value == "none"
        ):  # no reasoning cannot be asked for: the server's default is sent by leaving it out
            return replace_value(name, value, None)
        lower = _EFFORTS[position + 1 : -1]
        candidates = [effort for effort in lower if effort in named] or ([] if named else lower[:1])
        return replace_value(name, value, candidates[0] if candidates else None)
    return None


def _rename_output_limit(refusal: Refusal, sent: SentRequest) -> RequestChange | None:
    for name, other in (("max_tokens", "max_completion_tokens"), ("max_completion_tokens", "max_tokens")):
        if field_value(sent.fields, name) is not None and sent.changes.treatment_of(other) == "":
            refused = re.search(rf"['\"`\[ ]{name}\\?['\"`\], :]", refusal.text) or refusal.param == name
            return rename_field(name, other) if refused else None
    return None


def _lower_output_limit(refusal: Refusal, sent: SentRequest) -> RequestChange | None:
    """Send the highest limit that the server names."""
    for name in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
        value = field_value(sent.fields, name)
        if isinstance(value, int):
            limits = [int(number) for number in re.findall(r"\d{3,9}", refusal.text) if int(number) < value]
            return limit_value(name, max(limits)) if limits else None
    return None


def _drop_stale_thinking(_: Refusal, sent: SentRequest) -> RequestChange:
    """Ask the server to drop stale blocks; one that cannot gets no blocks."""
    if (
        sent.wire == MESSAGES
        and not sent.changes.treatment_of(BINDING)
        and field_value(sent.fields, "thinking")
    ):
        return RequestChange(name=BINDING, treatment="drop_block")
    return RequestChange(name=REPLAY, treatment=DROP, is_remembered=False)


def _replace_signatures(_: Refusal, sent: SentRequest) -> RequestChange:
    if not sent.changes.treatment_of(SIGNATURES):
        return RequestChange(name=SIGNATURES, treatment="placeholder")
    return RequestChange(name=FOREIGN_CALLS, treatment="as text")


def _stop_binding(_: Refusal, sent: SentRequest) -> RequestChange | None:
    return drop_field(BINDING) if sent.changes.treatment_of(BINDING) == "drop_block" else None


def _send_schema_as_tool(refusal: Refusal, sent: SentRequest) -> RequestChange | None:
    """Send the output schema as a tool: every schema, if the server does not know the field, else this one."""
    if not sent.schema:
        return None
    is_general = _SCHEMA_UNSUPPORTED.search(refusal.text) and not _SCHEMA_INVALID.search(refusal.text)
    return RequestChange(name=SCHEMA if is_general else f"{SCHEMA} {sent.schema}", treatment="as a tool")


_SCHEMA_FIELD = r"response[_ ]?format|json[_ ]schema|json[_ ]mode|text\.format|output_config(?!\.effort)|output[_ ]format|structured[_ ]outputs?|response mime type|grammar"
_UNSUPPORTED = (
    r"not support|unsupported|not available|unavailable|unknown|unrecogni[sz]ed|extra inputs|not permitted|not allowed|"
    r"unexpected|cannot be|can't be|not implemented"
)
_SCHEMA_UNSUPPORTED = re.compile(
    rf"(?:{_SCHEMA_FIELD})[^{{}}]{{0,80}}(?:{_UNSUPPORTED})|(?:{_UNSUPPORTED})[^{{}}]{{0,80}}(?:{_SCHEMA_FIELD})"
)
_SCHEMA_INVALID = re.compile(r"invalid schema|invalid_json_schema|\.schema\b|additionalproperties|keyword")


def _constant(change: RequestChange) -> ChangeBuilder:
    return lambda _refusal, _sent: change


def _row(pattern: str, build: ChangeBuilder | RequestChange, *wires: str) -> RefusalRule:
    builder = _constant(build) if isinstance(build, RequestChange) else build
    return RefusalRule(
        pattern=re.compile(pattern, re.DOTALL),
        build=builder,
        wires=frozenset(wires or (CHAT, RESPONSES, MESSAGES)),
    )


RULES: Sequence[RefusalRule] = (
    # The schema of the final answer, in the field of the API.
    _row(_SCHEMA_FIELD, _send_schema_as_tool),
    # OpenAI: tools with reasoning only on the Responses API.
    _row(r"/v1/responses|responses api|use the responses", _leave_chat_completions, CHAT),
    _row(r"/v1/chat/completions|chat completions api", _use_other_wire, RESPONSES),
    _row(r"encrypted content (?:is|are) not supported|reasoning\.encrypted_content", drop_field("include"), RESPONSES),
    _row(r"invalid_encrypted_content|encrypted content .*could not be (?:verified|decrypted)|required following item",
         RequestChange(name=REPLAY, treatment=DROP, is_remembered=False), RESPONSES),
    _row(r"max_(?:completion_)?tokens.*(?:not supported|unsupported|unknown|unrecogni|extra|not permitted|use ['\"`\\]*max_)",
         _rename_output_limit, CHAT),
    _row(r"^(?!.*context).*max_(?:completion_|output_)?tokens.*(?:maximum|at most|less than|too large|<=|must be)",
         _lower_output_limit),
    _row(r"effort.*(?:unsupported value|supported values|invalid value|not supported with|does not support|must be one of|"
         r"input should be)|(?:unsupported value|supported values|invalid value|input should be).*effort", _lower_effort),
    # Anthropic: thinking, and blocks bound to the conversation they were made in.
    _row(r"block_binding|thinking-binding-controls|prefix_mismatch_behavior", _stop_binding, MESSAGES),
    _row(r"bound to a different conversation|invalid [`'\"\\]*signature[`'\"\\]* in [`'\"\\]*thinking",
         _drop_stale_thinking, MESSAGES),
    _row(r"expected [`'\"\\]*thinking[`'\"\\]* or [`'\"\\]*redacted_thinking",
         RequestChange(name=THINKING, treatment=DROP, is_remembered=False), MESSAGES),
    _row(r"thinking\.type|adaptive|budget_tokens|input tag", _choose_thinking_type, MESSAGES),
    # Data that only this server issues, missing in calls of other servers.
    _row(r"thought_?signature", _replace_signatures, CHAT),
    _row(r"reasoning_content|reasoning_details", RequestChange(name=FOREIGN_CALLS, treatment="as text"), CHAT),
    _row(r"tool[ _]call[ _]?ids?.*(?:a-z|length|9)", RequestChange(name=CALL_IDS, treatment="short"), CHAT),
)  # fmt: skip


def _error_fields(document: Any) -> Mapping[str, Any]:
    """Return the object that describes the error, also if it is nested or the first of a list."""
    if isinstance(document, list) and document:
        document = cast("list[Any]", document)[0]
    if not isinstance(document, dict):
        return {"message": document} if isinstance(document, str) else {}
    fields = cast("dict[str, Any]", document)
    inner = fields.get("error")
    if isinstance(inner, dict):
        return cast("dict[str, Any]", inner)
    return fields | {"message": inner} if isinstance(inner, str) else fields


def _short_text(value: Any) -> str:
    return value[:200] if isinstance(value, str) else str(value) if isinstance(value, int) else ""
