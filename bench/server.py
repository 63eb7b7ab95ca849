"""A minimal model server: prepared bytes over a raw asyncio protocol, in a separate process.

    python -m bench.server

The first line on standard output is its address. The path of a request selects the scenario and the latency:
`/SCENARIO/MILLISECONDS/v1/…`. The scenario `spawn-COUNT-TOOL-tool` is a parent that starts COUNT children with TOOL;
with the suffix `-tool` each child calls a tool. `GET /stats/SCENARIO` returns statistics of the requests.
"""

import asyncio
import json
import re
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from bench.canned_replies import error_response, json_response
from bench.scenarios import (
    CHILD_PROMPT,
    SCENARIOS,
    EncodedRule,
    ReplyRule,
    encode_rules,
    spawn_rules,
)

_CONTENT_LENGTH = re.compile(rb"(?i)\r\ncontent-length: *(\d+)")
_REQUEST_PATH = re.compile(rb"[A-Z]+ /([^/ ]+)/?([^/ ]*)")
_STREAM_FLAG = re.compile(rb'"stream": ?true')
_TOOL_MESSAGE = re.compile(rb'"role": ?"tool"|"type": ?"tool_result"')
_HEAD_END = b"\r\n\r\n"
DELEGATION_ARGUMENTS: Mapping[str, Mapping[str, Any]] = {
    "agent": {"task_prompt": CHILD_PROMPT, "agent_name": "general"},
    "PersistentAgent": {"preset": "general", "description": "be there", "prompt": CHILD_PROMPT},
    "spawn_subagent": {"agentId": "general", "prompt": CHILD_PROMPT},
    "child": {"task": CHILD_PROMPT},
}
"""Arguments of each delegation tool; `child` is the tool that the other systems are given."""


class ServerState:
    """The scenarios of this process, and statistics of its requests."""

    def __init__(self) -> None:
        self._rules_by_scenario: dict[bytes, list[EncodedRule]] = {}
        self._last_bodies: dict[bytes, bytes] = {}
        self._prefix_shares: dict[bytes, list[float]] = {}
        self._request_counts: dict[bytes, int] = {}

    def rules_for(self, name: bytes) -> list[EncodedRule]:
        rules = self._rules_by_scenario.get(name)
        if rules is None:
            rules = self._rules_by_scenario[name] = encode_rules(_create_rules(name.decode()))
        return rules

    def record_request(self, scenario: bytes, body: bytes) -> None:
        """Record how much of the previous request is a prefix of this one, which a provider could cache."""
        self._request_counts[scenario] = self._request_counts.get(scenario, 0) + 1
        if scenario.startswith(b"look"):
            previous = self._last_bodies.get(scenario, b"")
            if previous and len(body) > len(previous):
                self._prefix_shares.setdefault(scenario, []).append(
                    _common_prefix_length(previous, body) / len(previous)
                )
            self._last_bodies[scenario] = body

    def statistics(self, scenario: bytes) -> bytes:
        return json_response(
            {
                "requests": self._request_counts.get(scenario, 0),
                "shares": self._prefix_shares.pop(scenario, []),
            }
        )


class ModelServerProtocol(asyncio.Protocol):
    """A connection: requests and responses in alternation."""

    def __init__(self, state: ServerState) -> None:
        self._state = state
        self._transport: asyncio.Transport | None = None
        self._pieces: list[bytes] = []
        self._received_bytes = 0
        self._expected_bytes = 0
        self._head = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if isinstance(transport, asyncio.Transport):
            self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  (asyncio's signature)
        self._transport = None

    def data_received(self, data: bytes) -> None:
        self._pieces.append(data)
        self._received_bytes += len(data)
        if not self._head:
            received = b"".join(self._pieces)
            end = received.find(_HEAD_END)
            self._pieces = [received]
            if end < 0:
                return
            self._head = received[:end]
            length = _CONTENT_LENGTH.search(self._head)
            self._expected_bytes = end + len(_HEAD_END) + (int(length[1]) if length else 0)
        if self._received_bytes >= self._expected_bytes:
            received = b"".join(self._pieces)
            body = received[len(self._head) + len(_HEAD_END) : self._expected_bytes]
            head, remainder = self._head, received[self._expected_bytes :]
            self._pieces, self._received_bytes, self._head = [], 0, b""
            self._answer_request(head, body)
            if remainder:
                self.data_received(remainder)

    def _answer_request(self, head: bytes, body: bytes) -> None:
        match = _REQUEST_PATH.match(head)
        scenario, latency = (match[1], match[2]) if match else (b"", b"")
        if scenario == b"stats":
            self._write([self._state.statistics(latency)], 0)
            return
        is_anthropic = b"/messages" in head.partition(b"\r\n")[0]
        self._state.record_request(scenario, body)
        pieces, interval_s = _choose_reply(self._state.rules_for(scenario), body, is_anthropic=is_anthropic)
        if latency.isdigit() and int(latency):
            asyncio.get_running_loop().call_later(int(latency) / 1000, self._write, pieces, interval_s)
        else:
            self._write(pieces, interval_s)

    def _write(self, pieces: Sequence[bytes], interval_s: float) -> None:
        """Write the pieces separately; with an interval, wait that long between them."""
        if self._transport is None:
            return
        if not interval_s:
            for piece in pieces:
                self._transport.write(piece)
            return
        self._transport.write(pieces[0])
        if len(pieces) > 1:
            asyncio.get_running_loop().call_later(interval_s, self._write, pieces[1:], interval_s)


def _choose_reply(
    rules: list[EncodedRule], body: bytes, *, is_anthropic: bool
) -> tuple[Sequence[bytes], float]:
    last_role = b"tool" if _TOOL_MESSAGE.search(body, max(0, body.rfind(b'"role"'))) else b"user"
    for each in rules:
        rule = each.rule
        if rule.last_role and rule.last_role.encode() != last_role:
            continue
        if (
            rule.tool_message_count is not None
            and len(_TOOL_MESSAGE.findall(body)) != rule.tool_message_count
        ):
            continue
        if each.required_bytes and not _contains(body, each.required_bytes, rule.min_occurrences):
            continue
        canned = each.anthropic if is_anthropic else each.openai
        return (
            (canned.stream_pieces, rule.event_interval_s)
            if _STREAM_FLAG.search(body)
            else ((canned.document,), 0)
        )
    return (error_response("no rule of this scenario matches the request"),), 0


def _contains(body: bytes, text: bytes, min_occurrences: int) -> bool:
    return body.count(text) >= min_occurrences if min_occurrences > 1 else text in body


def _create_rules(name: str) -> Sequence[ReplyRule]:
    scenario, *options = name.split("-")
    if scenario == "spawn":
        count, delegation_tool, *tool = options
        return spawn_rules(
            delegation_tool, DELEGATION_ARGUMENTS[delegation_tool], int(count), with_tool=bool(tool)
        )
    return SCENARIOS[scenario]


def _common_prefix_length(first: bytes, second: bytes) -> int:
    """Return the length of the common prefix, by binary search."""
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


async def serve_scenarios() -> None:
    """Serve until a signal arrives or the parent process exits."""
    state = ServerState()
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(signal_number, stopped.set)
    server = await loop.create_server(lambda: ModelServerProtocol(state), "127.0.0.1", 0, backlog=4096)
    port = server.sockets[0].getsockname()[1]
    print(json.dumps({"url": f"http://127.0.0.1:{port}"}), flush=True)
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    parent_exit = asyncio.ensure_future(reader.read())
    stop_signal = asyncio.ensure_future(stopped.wait())
    await asyncio.wait([parent_exit, stop_signal], return_when=asyncio.FIRST_COMPLETED)
    server.close()


if __name__ == "__main__":
    asyncio.run(serve_scenarios())
