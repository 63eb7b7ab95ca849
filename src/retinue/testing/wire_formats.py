"""Wire formats of the provider APIs, server side: Chat Completions, Responses and Messages."""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from retinue.testing.replies import FakeResponse, ToolArguments

_ANTHROPIC_STOP_REASONS = {
    "stop": "end_turn",
    "tool_calls": "tool_use",
    "length": "max_tokens",
    "content_filter": "refusal",
}


def openai_events(response: FakeResponse, requested_model: str) -> Iterator[bytes]:
    """Yield the events of a streamed chat completion."""
    yield _openai_chunk(response, requested_model, {"role": "assistant", "content": ""})
    for piece in _split_text(response.thinking, response.piece):
        yield _openai_chunk(response, requested_model, {"reasoning_content": piece})
    if response.message_fields:
        yield _openai_chunk(response, requested_model, response.message_fields)
    for piece in _split_text(response.text, response.piece):
        yield _openai_chunk(response, requested_model, {"content": piece})
    for index, (name, arguments) in enumerate(response.calls):
        call_header = {
            "index": index,
            "id": _call_id(response, index),
            "type": "function",
            **_call_fields(response, index),
        }
        yield _openai_chunk(
            response,
            requested_model,
            {"tool_calls": [{**call_header, "function": {"name": name, "arguments": ""}}]},
        )
        for piece in _split_text(_arguments_json(arguments), response.piece):
            yield _openai_chunk(
                response,
                requested_model,
                {"tool_calls": [{"index": index, "function": {"arguments": piece}}]},
            )
    if response.error is not None:
        yield _sse_data({"error": {**response.error, "code": response.error.get("type")}})
        return
    if response.finish:
        yield _openai_chunk(response, requested_model, {}, _finish_reason(response))
    if response.finish and response.usage is not None:
        yield _sse_data(
            {
                "id": "chatcmpl-1",
                "model": _model_name(response, requested_model),
                "choices": [],
                "usage": _openai_usage(response),
            }
        )
    if response.done:
        yield b"data: [DONE]\n\n"


def openai_completion(response: FakeResponse, requested_model: str) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": response.text or None}
    if response.thinking:
        message["reasoning_content"] = response.thinking
    message |= response.message_fields
    if response.calls:
        message["tool_calls"] = [
            {
                "id": _call_id(response, index),
                "type": "function",
                "function": {"name": name, "arguments": _arguments_json(arguments)},
                **_call_fields(response, index),
            }
            for index, (name, arguments) in enumerate(response.calls)
        ]
    choice = {
        "index": 0,
        "message": message,
        "finish_reason": _finish_reason(response) if response.finish else None,
    }
    usage = {"usage": _openai_usage(response)} if response.usage is not None else {}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "model": _model_name(response, requested_model),
        "choices": [choice],
        **usage,
    }


def response_events(response: FakeResponse, requested_model: str) -> Iterator[bytes]:
    """Yield the events of a streamed response."""
    document = openai_response(response, requested_model)
    started: dict[str, Any] = {**document, "status": "in_progress", "output": [], "usage": None}
    yield _sse_event({"type": "response.created", "response": started})
    for index, item in enumerate(document["output"]):
        yield from _item_events(index, item, response.piece)
    if response.error is not None:
        yield _sse_event({"type": "error", **response.error, "code": response.error.get("type")})
        return
    if response.finish:
        kind = "response.completed" if document["status"] == "completed" else "response.incomplete"
        yield _sse_event({"type": kind, "response": document})


def openai_response(response: FakeResponse, requested_model: str) -> dict[str, Any]:
    reason = {"length": "max_output_tokens", "content_filter": "content_filter"}.get(response.stop)
    usage = response.usage
    return {
        "id": "resp_1",
        "object": "response",
        "status": "incomplete" if reason else "completed",
        "incomplete_details": {"reason": reason} if reason else None,
        "error": None,
        "model": _model_name(response, requested_model),
        "output": list(_output_items(response)),
        "usage": None
        if usage is None
        else {
            "input_tokens": usage.get("input"),
            "input_tokens_details": {
                "cached_tokens": usage.get("cached", 0),
                "cache_write_tokens": usage.get("cache_write", 0),
            },
            "output_tokens": usage.get("output"),
            "output_tokens_details": {"reasoning_tokens": 0},
        },
    }


def _output_items(response: FakeResponse) -> Iterator[dict[str, Any]]:
    encrypted = list(response.encrypted_reasoning)
    summary = [{"type": "summary_text", "text": response.thinking}] if response.thinking else []

    def reasoning() -> Iterator[dict[str, Any]]:
        if encrypted or summary:
            item: dict[str, Any] = {"type": "reasoning", "id": f"rs_{len(encrypted)}", "summary": [*summary]}
            if encrypted:
                item["encrypted_content"] = encrypted.pop(0)
            summary.clear()
            yield item

    if response.text:
        if not response.calls:
            yield from reasoning()
        content: list[dict[str, Any]] = [{"type": "output_text", "text": response.text, "annotations": []}]
        yield {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "status": "completed",
            "content": content,
        }
    for index, (name, arguments) in enumerate(response.calls):
        yield from reasoning()
        yield {
            "type": "function_call",
            "id": f"fc_{index}",
            "status": "completed",
            "call_id": _call_id(response, index),
            "name": name,
            "arguments": _arguments_json(arguments),
        }


_EMPTY_FIELDS: Mapping[str, tuple[str, Any]] = {
    "message": ("content", []),
    "function_call": ("arguments", ""),
    "reasoning": ("summary", []),
}
"""The field of each kind of item that is streamed, and its value at the start."""


def _item_events(index: int, item: Mapping[str, Any], piece_chars: int) -> Iterator[bytes]:
    place = {"output_index": index, "item_id": item["id"]}
    kind = item["type"]
    name, empty = _EMPTY_FIELDS[kind]
    yield _sse_event(
        {"type": "response.output_item.added", "output_index": index, "item": {**item, name: empty}}
    )
    if kind == "message":
        for piece in _split_text(item["content"][0]["text"], piece_chars):
            yield _sse_event(
                {"type": "response.output_text.delta", **place, "content_index": 0, "delta": piece}
            )
    elif kind == "function_call":
        for piece in _split_text(item["arguments"], piece_chars):
            yield _sse_event({"type": "response.function_call_arguments.delta", **place, "delta": piece})
        arguments = {"name": item["name"], "arguments": item["arguments"]}
        yield _sse_event({"type": "response.function_call_arguments.done", **place, **arguments})
    else:
        for part in item["summary"]:
            yield _sse_event({"type": "response.reasoning_summary_part.added", **place, "summary_index": 0})
            for piece in _split_text(part["text"], piece_chars):
                yield _sse_event({"type": "response.reasoning_summary_text.delta", **place, "delta": piece})
    yield _sse_event({"type": "response.output_item.done", "output_index": index, "item": item})


def anthropic_events(response: FakeResponse, requested_model: str) -> Iterator[bytes]:
    """Yield the events of a streamed message."""
    usage = (
        {}
        if response.usage is None
        else {"usage": {**_anthropic_input_usage(response.usage), "output_tokens": 1}}
    )
    start: dict[str, Any] = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": _model_name(response, requested_model),
        "content": [],
    }
    yield _sse_event({"type": "message_start", "message": {**start, **usage}})
    yield _sse_event({"type": "ping"})
    for index, block in enumerate(_content_blocks(response)):
        yield from _block_events(index, block, response.piece)
    if response.error is not None:
        yield _sse_event({"type": "error", "error": response.error})
        return
    if response.finish:
        output_usage = (
            {} if response.usage is None else {"usage": {"output_tokens": response.usage.get("output")}}
        )
        yield _sse_event(
            {
                "type": "message_delta",
                "delta": {"stop_reason": _anthropic_stop_reason(response)},
                **output_usage,
            }
        )
    if response.done:
        yield _sse_event({"type": "message_stop"})


def anthropic_message(response: FakeResponse, requested_model: str) -> dict[str, Any]:
    usage = response.usage or {}
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": _model_name(response, requested_model),
        "content": list(_content_blocks(response)),
        "stop_reason": _anthropic_stop_reason(response) if response.finish else None,
        "usage": {**_anthropic_input_usage(usage), "output_tokens": usage.get("output")},
    }


def _anthropic_input_usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    """Return the counts of input tokens, of which Anthropic's server counts only the uncached ones as input."""
    cached, written = usage.get("cached", 0), usage.get("cache_write", 0)
    return {
        "input_tokens": usage["input"] - cached - written if cached or written else usage.get("input"),
        **({"cache_read_input_tokens": cached} if cached else {}),
        **({"cache_creation_input_tokens": written} if written else {}),
    }


def error_body(response: FakeResponse) -> bytes:
    """Return the body of an HTTP error, with the fields of both providers."""
    return msgspec.json.encode(
        {"type": "error", "error": response.error or {"message": f"HTTP {response.status}"}}
    )


def _content_blocks(response: FakeResponse) -> Iterator[dict[str, Any]]:
    if response.thinking or response.signature:
        yield {
            "type": "thinking",
            "thinking": response.thinking,
            "signature": response.signature or "c2lnbmVk",
        }
    if response.text:
        yield {"type": "text", "text": response.text}
    for index, (name, arguments) in enumerate(response.calls):
        yield {"type": "tool_use", "id": _call_id(response, index), "name": name, "input": arguments}


def _block_events(index: int, block: Mapping[str, Any], piece_chars: int) -> Iterator[bytes]:
    kind = block["type"]
    first_block: dict[str, Any]
    deltas: list[dict[str, Any]]
    if kind == "text":
        first_block = {"type": "text", "text": ""}
        deltas = [{"type": "text_delta", "text": part} for part in _split_text(block["text"], piece_chars)]
    elif kind == "thinking":
        first_block = {"type": "thinking", "thinking": "", "signature": ""}
        deltas = [
            {"type": "thinking_delta", "thinking": part}
            for part in _split_text(block["thinking"], piece_chars)
        ]
        deltas.append({"type": "signature_delta", "signature": block["signature"]})
    else:
        first_block = {**block, "input": {}}
        parts = _split_text(_arguments_json(block["input"]), piece_chars)
        deltas = [{"type": "input_json_delta", "partial_json": part} for part in parts]
    yield _sse_event({"type": "content_block_start", "index": index, "content_block": first_block})
    for delta in deltas:
        yield _sse_event({"type": "content_block_delta", "index": index, "delta": delta})
    yield _sse_event({"type": "content_block_stop", "index": index})


def _openai_chunk(
    response: FakeResponse, requested_model: str, delta: Mapping[str, Any], finish_reason: str | None = None
) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return _sse_data(
        {
            "id": "chatcmpl-1",
            "object": "chat.completion.chunk",
            "model": _model_name(response, requested_model),
            "choices": [choice],
        }
    )


def _openai_usage(response: FakeResponse) -> dict[str, Any]:
    usage = response.usage or {}
    names = {"cached": "cached_tokens", "cache_write": "cache_write_tokens"}
    details = {name: usage[ours] for ours, name in names.items() if ours in usage}
    return {
        "prompt_tokens": usage.get("input"),
        "completion_tokens": usage.get("output"),
        **({"prompt_tokens_details": details} if details else {}),
    }


def _finish_reason(response: FakeResponse) -> str:
    return response.stop or ("tool_calls" if response.calls else "stop")


def _anthropic_stop_reason(response: FakeResponse) -> str:
    return _ANTHROPIC_STOP_REASONS.get(_finish_reason(response), _finish_reason(response))


def _model_name(response: FakeResponse, requested_model: str) -> str:
    return response.model or requested_model


def _call_id(response: FakeResponse, index: int) -> str:
    return response.call_ids[index] if index < len(response.call_ids) else f"call_{index}"


def _call_fields(response: FakeResponse, index: int) -> Mapping[str, Any]:
    return response.call_fields[index] if index < len(response.call_fields) else {}


def _arguments_json(arguments: ToolArguments) -> str:
    return arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()


def _split_text(text: str, piece_chars: int) -> Iterator[str]:
    for start in range(0, len(text), max(1, piece_chars)):
        yield text[start : start + max(1, piece_chars)]


def _sse_data(value: Any) -> bytes:
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


def _sse_event(value: Mapping[str, Any]) -> bytes:
    return b"event: " + str(value["type"]).encode() + b"\n" + _sse_data(value)
