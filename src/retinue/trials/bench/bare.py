"""What nobody can save: the HTTP calls, and a journal with one synced line for each entry."""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from retinue.trials.bench.scenes import ASK, CHILD_ASK, FILE, HELLO, SPAWN, TELL

_TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": what,
            "parameters": {"type": "object", "properties": {arg: {"type": "string"}}, "required": [arg]},
        },
    }
    for name, what, arg in (("read", "Read a file.", "path"), ("child", "Start a child.", "task"))
]
_HEAD = msgspec.json.encode({"model": "bench", "tools": _TOOLS})[:-1] + b',"stream":true,"messages":['
_LARGE = 256 * 1024


@dataclass(slots=True)
class Call:
    """A call as it comes, piece by piece."""

    id: str = ""
    name: str = ""
    args: str = ""


class Talk:
    """A conversation: what was said as bytes, each message encoded once, and the file that holds it."""

    def __init__(self, file: Path | None) -> None:
        self.sent = bytearray()
        self._pieces: list[bytes] = []
        self._file = -1
        if file is not None:
            self._file = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def add(self, message: dict[str, Any]) -> None:
        line = msgspec.json.encode(message)
        if self._file >= 0:
            os.write(self._file, line + b"\n")
            os.fsync(self._file)
        self.known(line)

    def known(self, line: bytes) -> None:
        self.sent += line
        self.sent += b","
        if len(self.sent) > _LARGE:
            self._pieces.append(bytes(self.sent))
            self.sent = bytearray()

    def body(self) -> list[bytes]:
        return [_HEAD, *self._pieces, bytes(self.sent[:-1]), b"]}"]

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)


class Subject:
    """The same work as everybody's, by hand."""

    cannot: Mapping[str, str] = {"wake": "nothing sleeps here", "idle": "nothing sleeps here"}

    def __init__(self) -> None:
        self._http: aiohttp.ClientSession | None = None
        self._url = ""
        self._place = Path()
        self._keep = True
        self._talks: list[Talk] = []
        self._children = 0

    async def open(self, url: str, place: str, keep: bool = True) -> None:
        self._url = f"{url}/chat/completions"
        self._place = Path(place)
        self._keep = keep
        self._http = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))

    async def close(self) -> None:
        if self._http is not None:
            await self._http.close()

    async def sessions(self, count: int) -> None:
        self._talks = [self._talk(f"session-{number}") for number in range(count)]
        for talk in self._talks:
            await self._run(talk, ASK)

    async def turn(self, number: int) -> str:
        return await self._run(self._talks[number], ASK)

    async def first(self, number: int) -> str:
        talk = self._talk(f"first-{number}")
        try:
            return await self._run(talk, ASK)
        finally:
            talk.close()

    async def hello(self, number: int) -> str:
        return await self._run(self._talks[number], HELLO)

    async def stream(self, number: int) -> str:
        return await self._run(self._talks[number], TELL)

    async def crowd(self, number: int) -> str:
        talk = self._talk(f"parent-{number}")
        try:
            return await self._run(talk, SPAWN)
        finally:
            talk.close()

    def stored(self) -> int:
        return len(list(self._place.glob("child-*"))) + len(list(self._place.glob("parent-*")))

    async def past(self, lines: Sequence[str]) -> None:
        """A conversation that is long already; its last turn was like any other."""
        file = self._place / f"past-{len(lines)}"
        with file.open("wb") as written:
            for number, line in enumerate(lines):
                role = "assistant" if number % 2 else "user"
                written.write(msgspec.json.encode({"role": role, "content": line}) + b"\n")
        self._talks = [await self._loaded(file)]

    async def load(self, number: int) -> str:
        files = sorted(self._place.glob("past-*"))
        (await self._loaded(files[number % len(files)])).close()
        return ""

    async def _loaded(self, file: Path) -> Talk:
        talk = Talk(file)
        for line in file.read_bytes().splitlines():
            msgspec.json.decode(line)
            talk.known(line)
        return talk

    def _talk(self, name: str) -> Talk:
        return Talk(self._place / name if self._keep else None)

    async def _run(self, talk: Talk, text: str) -> str:
        talk.add({"role": "user", "content": text})
        while True:
            said, calls = await self._asked(talk)
            wished = [
                {"id": each.id, "type": "function", "function": {"name": each.name, "arguments": each.args}}
                for each in calls
            ]
            talk.add({"role": "assistant", "content": said} | ({"tool_calls": wished} if wished else {}))
            if not calls:
                return said
            results = await asyncio.gather(*(self._called(each) for each in calls))
            for each, result in zip(calls, results, strict=True):
                talk.add({"role": "tool", "tool_call_id": each.id, "content": result})

    async def _called(self, call: Call) -> str:
        args: dict[str, str] = msgspec.json.decode(call.args)
        if call.name == "read":
            return (self._place / FILE).read_text()
        self._children += 1
        talk = self._talk(f"child-{self._children}")
        try:
            return await self._run(talk, args.get("task", CHILD_ASK))
        finally:
            talk.close()

    async def _asked(self, talk: Talk) -> tuple[str, list[Call]]:
        if self._http is None:
            raise RuntimeError("it was not opened")
        body = talk.body()
        size = sum(map(len, body))
        data = b"".join(body) if size < _LARGE else _Pieces(body)
        headers = {"Content-Type": "application/json", "Content-Length": str(size)}
        text: list[str] = []
        calls: list[Call] = []
        async with self._http.post(self._url, data=data, headers=headers) as response:
            response.raise_for_status()
            async for line in _lines(response.content):
                for choice in msgspec.json.decode(line)["choices"]:
                    _heard(choice["delta"], text, calls)
        return "".join(text), calls


def _heard(delta: dict[str, Any], text: list[str], calls: list[Call]) -> None:
    if delta.get("content"):
        text.append(delta["content"])
    for piece in delta.get("tool_calls", ()):
        at: int = piece["index"]
        if at >= len(calls):
            calls.append(Call(id=piece["id"], name=piece["function"]["name"]))
        calls[at].args += piece["function"]["arguments"]


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """The data of each event."""
    rest = b""
    while chunk := await content.readany():
        *whole, rest = (rest + chunk).split(b"\n\n")
        for event in whole:
            if event != b"data: [DONE]":
                yield event[6:]


class _Pieces:
    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece
