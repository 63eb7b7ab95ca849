"""A model with random replies and tool calls, which also checks every request that it receives."""

import asyncio
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from plan import Plan
from process import ProcessLife

from retinue.domain.model_turn import ModelReply, ModelRequest, ReplyDelta, StopReason, UnsavedToolCall
from retinue.domain.run import Usage
from retinue.domain.transcript import Message, Notice, ToolResult, unanswered_calls
from retinue.errors import ModelFailed
from retinue.interfaces import Call, Tool
from retinue.tools.define import tool

AGENTS = ("main", "one", "two")
REASONS = ("unreachable", "provider", "rate_limited")


class RandomModel:
    """Implements `interfaces.Provider` for one process."""

    def __init__(
        self, plan: Plan, random: Random, life: ProcessLife, report_violation: Callable[[str], None]
    ) -> None:
        self._plan = plan
        self._random = random
        self._life = life
        self._report_violation = report_violation

    async def request_reply(
        self, request: ModelRequest, on_delta: Callable[[ReplyDelta], None]
    ) -> ModelReply:
        await self._life.pause()
        self._check_request(request)
        rng = self._random
        if self._plan.failures and rng.random() < 0.2:
            return await self._fail(on_delta)
        reply = self._reply(request)
        middle = len(reply.text) // 2
        on_delta(ReplyDelta(text=reply.text[:middle]))
        if rng.random() < 0.3:
            await asyncio.sleep(rng.choice((0.001, 0.3, 1.5)))
        await self._life.pause()
        on_delta(ReplyDelta(text=reply.text[middle:]))
        return reply

    async def close(self) -> None:
        return

    async def _fail(self, on_delta: Callable[[ReplyDelta], None]) -> ModelReply:
        kind = self._random.choice(("fails", "disconnects", "refuses", "sends nothing", "hangs"))
        if kind == "hangs":
            on_delta(ReplyDelta(text="I have"))
            await asyncio.sleep(self._random.choice((5.0, 30.0)))
        if kind in ("fails", "hangs"):
            raise ModelFailed(f"the model {kind}", reason=self._random.choice(REASONS))
        if kind == "disconnects":
            on_delta(ReplyDelta(text="It is"))
            await self._life.pause()
            raise ModelFailed("the model disconnects", reason="incomplete")
        return _text_reply(
            "" if kind == "sends nothing" else "No.",
            stop=StopReason.REFUSED if kind == "refuses" else StopReason.END,
        )

    def _reply(self, request: ModelRequest) -> ModelReply:
        run_id = request.entries[-1].run
        replies = [
            each
            for each in request.entries
            if isinstance(each, Message) and each.role == "agent" and each.run == run_id
        ]
        text = f"Words {self._random.randrange(10**9)}."
        tools = [each.name for each in request.tools if each.name in CALLS]
        if len(replies) >= self._plan.turns or not tools or self._random.random() < 0.35:
            return _text_reply(text)
        names = [self._random.choice(tools) for _ in range(self._random.randint(1, self._plan.fan))]
        tool_calls = tuple(
            UnsavedToolCall(tool=name, arguments=json.dumps(CALLS[name](self._random, request)))
            for name in names
        )
        return ModelReply(
            text=text,
            tool_calls=tool_calls,
            stop_reason=StopReason.TOOLS,
            usage=Usage(input=1, output=1),
            model="played",
        )

    def _check_request(self, request: ModelRequest) -> None:
        """Report a request that a provider would refuse, or that shows a notice twice."""
        if open_calls := unanswered_calls(request.entries):
            self._report_violation(f"a request while {open_calls[0].tool} {open_calls[0].id} has no result")
        times = Counter(each.id for each in request.entries if isinstance(each, Notice))
        for notice, count in times.items():
            if count > 1:
                self._report_violation(f"the model is shown notice {notice} {count} times")


def _text_reply(text: str, *, stop: StopReason = StopReason.END) -> ModelReply:
    return ModelReply(text=text, stop_reason=stop, usage=Usage(input=1, output=1), model="played")


def _random_task(rng: Random) -> str:
    return f"Look {rng.randrange(10**9)}."


def _persistent_agent_arguments(rng: Random, _: ModelRequest) -> Mapping[str, Any]:
    return {"preset": rng.choice(AGENTS), "description": "look", "prompt": _random_task(rng)}


def _sessions_spawn_arguments(rng: Random, _: ModelRequest) -> Mapping[str, Any]:
    arguments: dict[str, Any] = {"task": _random_task(rng)}
    if rng.random() < 0.2:
        arguments["timeoutSeconds"] = rng.choice((0, 1, 3))
    if rng.random() < 0.3:
        arguments["cleanup"] = "delete"
    return arguments


def _agent_arguments(rng: Random, _: ModelRequest) -> Mapping[str, Any]:
    keep = rng.random() < 0.7
    return {"agent_name": rng.choice(AGENTS), "task_prompt": _random_task(rng), "persist": keep}


def _agent_ask_arguments(rng: Random, request: ModelRequest) -> Mapping[str, Any]:
    """Name an agent from an earlier tool result."""
    texts = (each.text for each in request.entries if isinstance(each, ToolResult))
    agent_ids = [agent_id for text in texts for agent_id in _AGENT_ID.findall(text)] or ["nobody"]
    return {"agent_id": rng.choice(agent_ids), "message": _random_task(rng)}


def _agents_message_arguments(rng: Random, _: ModelRequest) -> Mapping[str, Any]:
    return {
        "agentId": rng.choice(AGENTS),
        "content": _random_task(rng),
        "session": rng.choice(("latest", "create", "latest-or-create")),
        "mode": rng.choice(("sync", "sync", "async")),
        "timeout": rng.choice((0, 0.5, 2, 300)),
    }


def _spawn_subagent_arguments(rng: Random, _: ModelRequest) -> Mapping[str, Any]:
    mode = rng.choice(("blocking", "background"))
    return {"agentId": rng.choice(AGENTS), "prompt": _random_task(rng), "returnMode": mode}


def _number_arguments(rng: Random, _: ModelRequest) -> Mapping[str, Any]:
    return {"number": rng.randrange(10**9)}


_AGENT_ID = re.compile(r'"agent_id":"([^"]+)"')
CALLS: Mapping[str, Callable[[Random, ModelRequest], Mapping[str, Any]]] = {
    "PersistentAgent": _persistent_agent_arguments,
    "sessions_spawn": _sessions_spawn_arguments,
    "agent": _agent_arguments,
    "agent_ask": _agent_ask_arguments,
    "agents_message": _agents_message_arguments,
    "spawn_subagent": _spawn_subagent_arguments,
    "ponder": _number_arguments,
    "act": _number_arguments,
}
"""The tools that the model may call, each with a function that draws its arguments."""


def tools_for(random: Random, life: ProcessLife, on_executed: Callable[[str], None]) -> dict[str, Tool]:
    """Return a tool that may be repeated, and one that may not and reports its executions to `on_executed`."""

    async def wait_at_random() -> None:
        await life.pause()
        if random.random() < 0.4:
            await asyncio.sleep(random.choice((0.001, 0.4, 2.0)))
        life.check()

    @tool(effect="read")
    async def ponder(number: int) -> str:
        """Waits for a random time."""
        await wait_at_random()
        return f"so {number}"

    @tool
    async def act(call: Call, number: int) -> str:
        """Has a side effect that must not be repeated."""
        life.check()
        on_executed(call.id)
        await wait_at_random()
        return f"done {number}"

    return {"ponder": ponder, "act": act}
