"""How each provider writes an answer on the wire: the server's side of Chat Completions and Messages."""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from retinue.testing.replies import Answer, Args

_ANTHROPIC_STOPS = {
    "stop": "end_turn",
    "tool_calls": "tool_use",
    "length": "max_tokens",
    "content_filter": "refusal",
}


def openai_events(answer: Answer, asked: str) -> Iterator[bytes]:
    """One chat completion as the events of its stream."""
    yield _openai(answer, asked, {"role": "assistant", "content": ""})
    for piece in _pieces(answer.thinking, answer.piece):
        yield _openai(answer, asked, {"reasoning_content": piece})
    for piece in _pieces(answer.text, answer.piece):
        yield _openai(answer, asked, {"content": piece})
    for index, (name, args) in enumerate(answer.calls):
        opening = {"index": index, "id": _id(answer, index), "type": "function"}
        yield _openai(
            answer, asked, {"tool_calls": [{**opening, "function": {"name": name, "arguments": ""}}]}
        )
        for piece in _pieces(_text(args), answer.piece):
            yield _openai(answer, asked, {"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    if answer.error is not None:
        yield _event({"error": {**answer.error, "code": answer.error.get("type")}})
        return
    if answer.finish:
        yield _openai(answer, asked, {}, _stop(answer))
    if answer.finish and answer.usage is not None:
        yield _event(
            {
                "id": "chatcmpl-1",
                "model": _model(answer, asked),
                "choices": [],
                "usage": _openai_usage(answer),
            }
        )
    if answer.done:
        yield b"data: [DONE]\n\n"


def openai_whole(answer: Answer, asked: str) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": answer.text or None}
    if answer.calls:
        message["tool_calls"] = [
            {"id": _id(answer, at), "type": "function", "function": {"name": name, "arguments": _text(args)}}
            for at, (name, args) in enumerate(answer.calls)
        ]
    choice = {"index": 0, "message": message, "finish_reason": _stop(answer) if answer.finish else None}
    usage = {"usage": _openai_usage(answer)} if answer.usage is not None else {}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "model": _model(answer, asked),
        "choices": [choice],
        **usage,
    }


def anthropic_events(answer: Answer, asked: str) -> Iterator[bytes]:
    """One message as the events of its stream."""
    usage = (
        {}
        if answer.usage is None
        else {"usage": {"input_tokens": answer.usage.get("input"), "output_tokens": 1}}
    )
    start: dict[str, Any] = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": _model(answer, asked),
        "content": [],
    }
    yield _named({"type": "message_start", "message": {**start, **usage}})
    yield _named({"type": "ping"})
    for index, block in enumerate(_blocks(answer)):
        yield from _block(index, block, answer.piece)
    if answer.error is not None:
        yield _named({"type": "error", "error": answer.error})
        return
    if answer.finish:
        spent = {} if answer.usage is None else {"usage": {"output_tokens": answer.usage.get("output")}}
        yield _named({"type": "message_delta", "delta": {"stop_reason": _anthropic_stop(answer)}, **spent})
    if answer.done:
        yield _named({"type": "message_stop"})


def anthropic_whole(answer: Answer, asked: str) -> dict[str, Any]:
    usage = answer.usage or {}
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": _model(answer, asked),
        "content": list(_blocks(answer)),
        "stop_reason": _anthropic_stop(answer) if answer.finish else None,
        "usage": {"input_tokens": usage.get("input"), "output_tokens": usage.get("output")},
    }


def error_body(answer: Answer) -> bytes:
    """An HTTP error's body: both providers' fields at once."""
    return msgspec.json.encode(
        {"type": "error", "error": answer.error or {"message": f"HTTP {answer.status}"}}
    )


def _blocks(answer: Answer) -> Iterator[dict[str, Any]]:
    if answer.thinking:
        yield {"type": "thinking", "thinking": answer.thinking, "signature": "c2lnbmVk"}
    if answer.text:
        yield {"type": "text", "text": answer.text}
    for at, (name, args) in enumerate(answer.calls):
        yield {"type": "tool_use", "id": _id(answer, at), "name": name, "input": args}


def _block(index: int, block: Mapping[str, Any], piece: int) -> Iterator[bytes]:
    kind = block["type"]
    opening: dict[str, Any]
    deltas: list[dict[str, Any]]
    if kind == "text":
        opening = {"type": "text", "text": ""}
        deltas = [{"type": "text_delta", "text": part} for part in _pieces(block["text"], piece)]
    elif kind == "thinking":
        opening = {"type": "thinking", "thinking": "", "signature": ""}
        deltas = [{"type": "thinking_delta", "thinking": part} for part in _pieces(block["thinking"], piece)]
        deltas.append({"type": "signature_delta", "signature": block["signature"]})
    else:
        opening = {**block, "input": {}}
        parts = _pieces(_text(block["input"]), piece)
        deltas = [{"type": "input_json_delta", "partial_json": part} for part in parts]
    yield _named({"type": "content_block_start", "index": index, "content_block": opening})
    for delta in deltas:
        yield _named({"type": "content_block_delta", "index": index, "delta": delta})
    yield _named({"type": "content_block_stop", "index": index})


def _openai(answer: Answer, asked: str, delta: Mapping[str, Any], stop: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": stop}
    return _event(
        {
            "id": "chatcmpl-1",
            "object": "chat.completion.chunk",
            "model": _model(answer, asked),
            "choices": [choice],
        }
    )


def _openai_usage(answer: Answer) -> dict[str, Any]:
    usage = answer.usage or {}
    kept = {"prompt_tokens_details": {"cached_tokens": usage["cached"]}} if "cached" in usage else {}
    return {"prompt_tokens": usage.get("input"), "completion_tokens": usage.get("output"), **kept}


def _stop(answer: Answer) -> str:
    return answer.stop or ("tool_calls" if answer.calls else "stop")


def _anthropic_stop(answer: Answer) -> str:
    return _ANTHROPIC_STOPS.get(_stop(answer), _stop(answer))


def _model(answer: Answer, asked: str) -> str:
    return answer.model or asked


def _id(answer: Answer, at: int) -> str:
    return answer.call_ids[at] if at < len(answer.call_ids) else f"call_{at}"


def _text(args: Args) -> str:
    return args if isinstance(args, str) else msgspec.json.encode(args).decode()


def _pieces(text: str, size: int) -> Iterator[str]:
    for at in range(0, len(text), max(1, size)):
        yield text[at : at + max(1, size)]


def _event(value: Any) -> bytes:
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


def _named(value: Mapping[str, Any]) -> bytes:
    return b"event: " + str(value["type"]).encode() + b"\n" + _event(value)
