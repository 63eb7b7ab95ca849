"""The baseline: plain HTTP calls, and a journal file with one synced line per entry."""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from bench.scenarios import (
    CHILD_PROMPT,
    HELLO,
    NOTE_FILE,
    NOTE_PROMPT,
    SPAWN_PROMPT,
    STREAM_PROMPT,
)

_TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {"type": "object", "properties": {arg: {"type": "string"}}, "required": [arg]},
        },
    }
    for name, description, arg in (("read", "Read a file.", "path"), ("child", "Start a child.", "task"))
]
_REQUEST_HEAD = msgspec.json.encode({"model": "bench", "tools": _TOOLS})[:-1] + b',"stream":true,"messages":['
_PIECE_BYTES = 256 * 1024


@dataclass(slots=True)
class StreamedToolCall:
    """A tool call, assembled from the pieces of a stream."""

    id: str = ""
    name: str = ""
    arguments: str = ""


class Conversation:
    """A conversation: its encoded messages, each encoded once, and the file that stores them."""

    def __init__(self, file: Path | None) -> None:
        self.encoded_messages = bytearray()
        self._full_pieces: list[bytes] = []
        self._fd = -1
        if file is not None:
            self._fd = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def append(self, message: dict[str, Any]) -> None:
        line = msgspec.json.encode(message)
        if self._fd >= 0:
            os.write(self._fd, line + b"\n")
            os.fsync(self._fd)
        self.append_encoded(line)

    def append_encoded(self, line: bytes) -> None:
        self.encoded_messages += line
        self.encoded_messages += b","
        if len(self.encoded_messages) > _PIECE_BYTES:
            self._full_pieces.append(bytes(self.encoded_messages))
            self.encoded_messages = bytearray()

    def request_body(self) -> list[bytes]:
        return [_REQUEST_HEAD, *self._full_pieces, bytes(self.encoded_messages[:-1]), b"]}"]

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)


class Subject:
    """The workloads of the benchmark without any framework."""

    cannot: Mapping[str, str] = {
        "wake_agent": "has no idle agents",
        "create_idle_agents": "has no idle agents",
    }

    def __init__(self) -> None:
        self._http: aiohttp.ClientSession | None = None
        self._url = ""
        self._folder = Path()
        self._is_persistent = True
        self._conversations: list[Conversation] = []
        self._child_count = 0

    async def open(self, url: str, place: str, keep: bool = True) -> None:
        self._url = f"{url}/chat/completions"
        self._folder = Path(place)
        self._is_persistent = keep
        self._http = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))

    async def close(self) -> None:
        if self._http is not None:
            await self._http.close()

    async def create_sessions(self, count: int) -> None:
        self._conversations = [self._open_conversation(f"session-{number}") for number in range(count)]
        for conversation in self._conversations:
            await self._run_turns(conversation, NOTE_PROMPT)

    async def run_turn(self, number: int) -> str:
        return await self._run_turns(self._conversations[number], NOTE_PROMPT)

    async def run_new_session(self, number: int) -> str:
        conversation = self._open_conversation(f"first-{number}")
        try:
            return await self._run_turns(conversation, NOTE_PROMPT)
        finally:
            conversation.close()

    async def run_short_turn(self, number: int) -> str:
        return await self._run_turns(self._conversations[number], HELLO)

    async def stream_reply(self, number: int) -> str:
        return await self._run_turns(self._conversations[number], STREAM_PROMPT)

    async def spawn_children(self, number: int) -> str:
        conversation = self._open_conversation(f"parent-{number}")
        try:
            return await self._run_turns(conversation, SPAWN_PROMPT)
        finally:
            conversation.close()

    def count_sessions(self) -> int:
        return len(list(self._folder.glob("child-*"))) + len(list(self._folder.glob("parent-*")))

    async def write_history(self, lines: Sequence[str]) -> None:
        """Write a long history; its last turn is an ordinary one."""
        file = self._folder / f"past-{len(lines)}"
        with file.open("wb") as output:
            for number, line in enumerate(lines):
                role = "assistant" if number % 2 else "user"
                output.write(msgspec.json.encode({"role": role, "content": line}) + b"\n")
        self._conversations = [await self._load_conversation(file)]

    async def load_history(self, number: int) -> str:
        files = sorted(self._folder.glob("past-*"))
        (await self._load_conversation(files[number % len(files)])).close()
        return ""

    async def _load_conversation(self, file: Path) -> Conversation:
        conversation = Conversation(file)
        for line in file.read_bytes().splitlines():
            msgspec.json.decode(line)
            conversation.append_encoded(line)
        return conversation

    def _open_conversation(self, name: str) -> Conversation:
        return Conversation(self._folder / name if self._is_persistent else None)

    async def _run_turns(self, conversation: Conversation, text: str) -> str:
        conversation.append({"role": "user", "content": text})
        while True:
            text_reply, tool_calls = await self._request_reply(conversation)
            encoded_calls = [
                {
                    "id": each.id,
                    "type": "function",
                    "function": {"name": each.name, "arguments": each.arguments},
                }
                for each in tool_calls
            ]
            conversation.append(
                {"role": "assistant", "content": text_reply}
                | ({"tool_calls": encoded_calls} if encoded_calls else {})
            )
            if not tool_calls:
                return text_reply
            results = await asyncio.gather(*(self._execute_tool_call(each) for each in tool_calls))
            for each, result in zip(tool_calls, results, strict=True):
                conversation.append({"role": "tool", "tool_call_id": each.id, "content": result})

    async def _execute_tool_call(self, tool_call: StreamedToolCall) -> str:
        arguments: dict[str, str] = msgspec.json.decode(tool_call.arguments)
        if tool_call.name == "read":
            return (self._folder / NOTE_FILE).read_text()
        self._child_count += 1
        conversation = self._open_conversation(f"child-{self._child_count}")
        try:
            return await self._run_turns(conversation, arguments.get("task", CHILD_PROMPT))
        finally:
            conversation.close()

    async def _request_reply(self, conversation: Conversation) -> tuple[str, list[StreamedToolCall]]:
        if self._http is None:
            raise RuntimeError("open() was not called")
        body = conversation.request_body()
        size = sum(map(len, body))
        data = b"".join(body) if size < _PIECE_BYTES else _StreamedBody(body)
        headers = {"Content-Type": "application/json", "Content-Length": str(size)}
        text: list[str] = []
        tool_calls: list[StreamedToolCall] = []
        async with self._http.post(self._url, data=data, headers=headers) as response:
            response.raise_for_status()
            async for line in _sse_payloads(response.content):
                for choice in msgspec.json.decode(line)["choices"]:
                    _apply_delta(choice["delta"], text, tool_calls)
        return "".join(text), tool_calls


def _apply_delta(delta: dict[str, Any], text: list[str], tool_calls: list[StreamedToolCall]) -> None:
    if delta.get("content"):
        text.append(delta["content"])
    for piece in delta.get("tool_calls", ()):
        index: int = piece["index"]
        if index >= len(tool_calls):
            tool_calls.append(StreamedToolCall(id=piece["id"], name=piece["function"]["name"]))
        tool_calls[index].arguments += piece["function"]["arguments"]


async def _sse_payloads(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Yield the data of each event."""
    buffer = b""
    while chunk := await content.readany():
        *events, buffer = (buffer + chunk).split(b"\n\n")
        for event in events:
            if event != b"data: [DONE]":
                yield event[6:]


class _StreamedBody:
    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece
