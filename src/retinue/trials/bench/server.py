"""A model server that does as little as it can: canned bytes by the raw protocol, in a process of its own.

    python -m retinue.trials.bench.server

The first line on standard output is its address. The path of a request says what is played: `/SCENE/MS/v1/…` answers
after so many milliseconds, `/crowd-COUNT-DOOR-tool/…` plays a parent with so many children. A question about the server
itself is `GET /seen/SCENE`.
"""

import asyncio
import json
import re
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from retinue.trials.bench.answers import facts, refusal
from retinue.trials.bench.scenes import CHILD_ASK, SCENES, Playable, Rule, crowd, playable

_LENGTH = re.compile(rb"(?i)\r\ncontent-length: *(\d+)")
_PATH = re.compile(rb"[A-Z]+ /([^/ ]+)/?([^/ ]*)")
_STREAM = re.compile(rb'"stream": ?true')
_TOOL = re.compile(rb'"role": ?"tool"|"type": ?"tool_result"')
_END = b"\r\n\r\n"
DOORS: Mapping[str, Mapping[str, Any]] = {
    "agent": {"task_prompt": CHILD_ASK, "agent_name": "general"},
    "PersistentAgent": {"preset": "general", "description": "be there", "prompt": CHILD_ASK},
    "spawn_subagent": {"agentId": "general", "prompt": CHILD_ASK},
    "child": {"task": CHILD_ASK},
}
"""What each way to a child is called with; `child` is the tool that the others are given."""


class Stage:
    """What is played in this process, and what was heard."""

    def __init__(self) -> None:
        self._scenes: dict[bytes, list[Playable]] = {}
        self._heard: dict[bytes, bytes] = {}
        self._shares: dict[bytes, list[float]] = {}
        self._count: dict[bytes, int] = {}

    def scene(self, name: bytes) -> list[Playable]:
        found = self._scenes.get(name)
        if found is None:
            found = self._scenes[name] = playable(_rules(name.decode()))
        return found

    def heard(self, scene: bytes, body: bytes) -> None:
        """How much of the request before is the beginning of this one: what a provider need not read again."""
        self._count[scene] = self._count.get(scene, 0) + 1
        if scene.startswith(b"look"):
            before = self._heard.get(scene, b"")
            if before and len(body) > len(before):
                self._shares.setdefault(scene, []).append(_common(before, body) / len(before))
            self._heard[scene] = body

    def seen(self, scene: bytes) -> bytes:
        return facts({"requests": self._count.get(scene, 0), "shares": self._shares.pop(scene, [])})


class Speaker(asyncio.Protocol):
    """One connection: a request, its answer, the next."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._transport: asyncio.Transport | None = None
        self._pieces: list[bytes] = []
        self._have = 0
        self._wanted = 0
        self._head = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if isinstance(transport, asyncio.Transport):
            self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  (asyncio says it)
        self._transport = None

    def data_received(self, data: bytes) -> None:
        self._pieces.append(data)
        self._have += len(data)
        if not self._head:
            whole = b"".join(self._pieces)
            end = whole.find(_END)
            self._pieces = [whole]
            if end < 0:
                return
            self._head = whole[:end]
            length = _LENGTH.search(self._head)
            self._wanted = end + len(_END) + (int(length[1]) if length else 0)
        if self._have >= self._wanted:
            whole = b"".join(self._pieces)
            body = whole[len(self._head) + len(_END) : self._wanted]
            head, rest = self._head, whole[self._wanted :]
            self._pieces, self._have, self._head = [], 0, b""
            self._asked(head, body)
            if rest:
                self.data_received(rest)

    def _asked(self, head: bytes, body: bytes) -> None:
        found = _PATH.match(head)
        scene, latency = (found[1], found[2]) if found else (b"", b"")
        if scene == b"seen":
            self._write([self._stage.seen(latency)], 0)
            return
        messages = b"/messages" in head.partition(b"\r\n")[0]
        self._stage.heard(scene, body)
        pieces, pace = _chosen(self._stage.scene(scene), body, messages=messages)
        if latency.isdigit() and int(latency):
            asyncio.get_running_loop().call_later(int(latency) / 1000, self._write, pieces, pace)
        else:
            self._write(pieces, pace)

    def _write(self, pieces: Sequence[bytes], pace: float) -> None:
        """All at once, each in a write of its own; with a pace one after the other."""
        if self._transport is None:
            return
        if not pace:
            for piece in pieces:
                self._transport.write(piece)
            return
        self._transport.write(pieces[0])
        if len(pieces) > 1:
            asyncio.get_running_loop().call_later(pace, self._write, pieces[1:], pace)


def _chosen(rules: list[Playable], body: bytes, *, messages: bool) -> tuple[Sequence[bytes], float]:
    last = b"tool" if _TOOL.search(body, max(0, body.rfind(b'"role"'))) else b"user"
    for each in rules:
        rule = each.rule
        if rule.role and rule.role.encode() != last:
            continue
        if rule.exactly is not None and len(_TOOL.findall(body)) != rule.exactly:
            continue
        if each.holds and not _holds(body, each.holds, rule.times):
            continue
        canned = each.anthropic if messages else each.openai
        return (canned.stream, rule.pace) if _STREAM.search(body) else ((canned.whole,), 0)
    return (refusal("no rule of this scene fits the request"),), 0


def _holds(body: bytes, words: bytes, times: int) -> bool:
    return body.count(words) >= times if times > 1 else words in body


def _rules(name: str) -> Sequence[Rule]:
    kind, *more = name.split("-")
    if kind == "crowd":
        count, door, *tool = more
        return crowd(door, DOORS[door], int(count), tool=bool(tool))
    return SCENES[kind]


def _common(one: bytes, other: bytes) -> int:
    """How many bytes both begin with."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


async def serve() -> None:
    """Until a signal, or until whoever started it is gone."""
    stage = Stage()
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for name in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(name, stopped.set)
    server = await loop.create_server(lambda: Speaker(stage), "127.0.0.1", 0, backlog=4096)
    port = server.sockets[0].getsockname()[1]
    print(json.dumps({"url": f"http://127.0.0.1:{port}"}), flush=True)
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    gone = asyncio.ensure_future(reader.read())
    ended = asyncio.ensure_future(stopped.wait())
    await asyncio.wait([gone, ended], return_when=asyncio.FIRST_COMPLETED)
    server.close()


if __name__ == "__main__":
    asyncio.run(serve())
