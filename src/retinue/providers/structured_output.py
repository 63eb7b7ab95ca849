"""Output schemas in requests: in the API's own field, or as a tool whose arguments are the final answer.

The tool is used where the server refuses the field, or would let the model call no other tool. It is only in the
request: a call of it becomes the text of the reply, so transcripts and the runtime do not know it.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from retinue.domain.model_turn import ModelReply, ModelRequest, StopReason
from retinue.domain.tool import ToolSpec, api_tool_name
from retinue.providers.reply_data import without_call
from retinue.providers.request_changes import SCHEMA, RequestChanges
from retinue.providers.request_encoding import encode_json

SCHEMA_NAME = "answer"
"""The name that OpenAI's APIs want for a schema."""
ANSWER_TOOL = "final_answer"
ANSWER_TOOL_DESCRIPTION = (
    "Give your final answer. Call this tool once, alone, when the task is done: its arguments are the answer. "
    "Do not write the answer as text."
)
_WRAPPED = "answer"
"""The argument that holds an answer which is not an object."""
_DEFINITIONS = ("$defs", "definitions")
_STRICT_KEYWORDS = frozenset(
    {
        "type", "properties", "required", "additionalProperties", "items", "enum", "const", "anyOf", "$ref", "$defs",
        "definitions", "title", "description", "pattern", "format", "minimum", "maximum", "exclusiveMinimum",
        "exclusiveMaximum", "multipleOf", "minItems", "maxItems",
    }
)  # fmt: skip
"""Keywords that OpenAI accepts in strict schemas."""


def schema_fingerprint(schema: Mapping[str, Any] | None) -> str:
    """Return a short name of a schema; empty without one."""
    return "" if schema is None else hashlib.blake2b(encode_json(schema), digest_size=4).hexdigest()


def openai_schema_format(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the description of a schema that both APIs of OpenAI take."""
    return {"name": SCHEMA_NAME, "schema": schema, "strict": is_strict_schema(schema)}


def is_strict_schema(schema: Mapping[str, Any]) -> bool:
    """Return whether OpenAI can enforce a schema: every object is closed, and all its properties are required."""
    return schema.get("type") == "object" and _is_strict_node(schema)


def _is_strict_node(node: Any) -> bool:
    if not isinstance(node, Mapping):
        return False
    fields = cast("Mapping[str, Any]", node)
    if not fields.keys() <= _STRICT_KEYWORDS:
        return False
    properties = fields.get("properties", {})
    if "properties" in fields or "object" in _types(fields):
        required = fields.get("required", [])
        if fields.get("additionalProperties") is not False or set(properties) != set(required):
            return False
    children: list[Any] = [*properties.values(), *fields.get("anyOf", [])]
    children += [each for key in _DEFINITIONS for each in fields.get(key, {}).values()]
    if "items" in fields:
        children.append(fields["items"])
    return all(map(_is_strict_node, children))


def _types(fields: Mapping[str, Any]) -> Sequence[str]:
    found = fields.get("type", ())
    return (found,) if isinstance(found, str) else found


def adapt_schema(
    request: ModelRequest, changes: RequestChanges, *, schema_disables_tools: bool = False
) -> ModelRequest:
    """Return the request with its schema as a tool, if the server does not take it in its own field."""
    schema = request.output_schema
    if schema is None:
        return request
    is_refused = changes.treatment_of(SCHEMA) or changes.treatment_of(
        f"{SCHEMA} {schema_fingerprint(schema)}"
    )
    if not is_refused and not (schema_disables_tools and request.tools):
        return request
    return replace(request, tools=(*request.tools, _answer_tool(schema, request.tools)), output_schema=None)


def take_answer(reply: ModelReply, asked: ModelRequest, sent: ModelRequest) -> ModelReply:
    """Return the reply with the call of the answer's tool as its text.

    Beside calls of other tools, the answer came too early: it is left out.
    """
    if asked.output_schema is None or sent.output_schema is not None or not reply.tool_calls:
        return reply
    tool = sent.tools[-1]
    indexes = [index for index, call in enumerate(reply.tool_calls) if call.tool == tool.name]
    if not indexes:
        return reply
    if len(indexes) < len(reply.tool_calls):
        data = reply.provider_data
        for index in reversed(indexes):
            data = without_call(data, index)
        others = tuple(call for call in reply.tool_calls if call.tool != tool.name)
        return replace(reply, tool_calls=others, provider_data=data)
    arguments = reply.tool_calls[0].arguments
    is_wrapped = _is_wrapped(asked.output_schema)
    return replace(
        reply,
        text=_unwrap(arguments) if is_wrapped else arguments,
        tool_calls=(),
        provider_data=(),  # it belongs to the call
        stop_reason=StopReason.END if reply.stop_reason is StopReason.TOOLS else reply.stop_reason,
    )


def _answer_tool(schema: Mapping[str, Any], others: Sequence[ToolSpec]) -> ToolSpec:
    names = {api_tool_name(each.name) for each in others}
    name = ANSWER_TOOL
    while name in names:
        name += "_"
    if _is_wrapped(schema):
        arguments: dict[str, Any] = {
            "type": "object",
            "properties": {_WRAPPED: schema},
            "required": [_WRAPPED],
            "additionalProperties": False,
        } | {key: schema[key] for key in _DEFINITIONS if key in schema}
    else:
        arguments = dict(schema)
    return ToolSpec(name=name, description=ANSWER_TOOL_DESCRIPTION, schema=arguments)


def _is_wrapped(schema: Mapping[str, Any]) -> bool:
    """Return whether the answer is an argument of the tool: arguments are always an object."""
    return schema.get("type") != "object"


def _unwrap(arguments: str) -> str:
    try:
        return bytes(msgspec.json.decode(arguments.encode(), type=dict[str, msgspec.Raw])[_WRAPPED]).decode()
    except (msgspec.MsgspecError, UnicodeError, RecursionError, KeyError):
        return arguments
