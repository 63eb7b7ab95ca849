"""Wire formats of the provider APIs, server side: Chat Completions and Messages."""

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
    for piece in _split_text(response.text, response.piece):
        yield _openai_chunk(response, requested_model, {"content": piece})
    for index, (name, arguments) in enumerate(response.calls):
        call_header = {"index": index, "id": _call_id(response, index), "type": "function"}
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
    if response.calls:
        message["tool_calls"] = [
            {
                "id": _call_id(response, index),
                "type": "function",
                "function": {"name": name, "arguments": _arguments_json(arguments)},
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


def anthropic_events(response: FakeResponse, requested_model: str) -> Iterator[bytes]:
    """Yield the events of a streamed message."""
    usage = (
        {}
        if response.usage is None
        else {"usage": {"input_tokens": response.usage.get("input"), "output_tokens": 1}}
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
        "usage": {"input_tokens": usage.get("input"), "output_tokens": usage.get("output")},
    }


def error_body(response: FakeResponse) -> bytes:
    """Return the body of an HTTP error, with the fields of both providers."""
    return msgspec.json.encode(
        {"type": "error", "error": response.error or {"message": f"HTTP {response.status}"}}
    )


def _content_blocks(response: FakeResponse) -> Iterator[dict[str, Any]]:
    if response.thinking:
        yield {"type": "thinking", "thinking": response.thinking, "signature": "c2lnbmVk"}
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
    cached = {"prompt_tokens_details": {"cached_tokens": usage["cached"]}} if "cached" in usage else {}
    return {"prompt_tokens": usage.get("input"), "completion_tokens": usage.get("output"), **cached}


def _finish_reason(response: FakeResponse) -> str:
    return response.stop or ("tool_calls" if response.calls else "stop")


def _anthropic_stop_reason(response: FakeResponse) -> str:
    return _ANTHROPIC_STOP_REASONS.get(_finish_reason(response), _finish_reason(response))


def _model_name(response: FakeResponse, requested_model: str) -> str:
    return response.model or requested_model


def _call_id(response: FakeResponse, index: int) -> str:
    return response.call_ids[index] if index < len(response.call_ids) else f"call_{index}"


def _arguments_json(arguments: ToolArguments) -> str:
    return arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()


def _split_text(text: str, piece_chars: int) -> Iterator[str]:
    for start in range(0, len(text), max(1, piece_chars)):
        yield text[start : start + max(1, piece_chars)]


def _sse_data(value: Any) -> bytes:
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


def _sse_event(value: Mapping[str, Any]) -> bytes:
    return b"event: " + str(value["type"]).encode() + b"\n" + _sse_data(value)
