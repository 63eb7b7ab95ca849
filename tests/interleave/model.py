"""The model of a case: it says and calls what chance wants, and notices what no model may be asked."""

import asyncio
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from plan import Plan
from process import Life

from retinue.domain.model_turn import Reply, ReplyDelta, Request, StopReason, UnsavedToolCall
from retinue.domain.run import Usage
from retinue.domain.transcript import Message, Notice, ToolResult, unanswered_calls
from retinue.errors import ModelFailed
from retinue.interfaces import Call, Tool
from retinue.tools.define import tool

AGENTS = ("main", "one", "two")
REASONS = ("unreachable", "provider", "rate_limited")


class RandomModel:
    """Implements `interfaces.Provider` for one process."""

    def __init__(self, plan: Plan, random: Random, life: Life, breach: Callable[[str], None]) -> None:
        self._plan = plan
        self._random = random
        self._life = life
        self._breach = breach

    async def request_reply(self, request: Request, on_delta: Callable[[ReplyDelta], None]) -> Reply:
        await self._life.moment()
        self._look(request)
        chance = self._random
        if self._plan.failures and chance.random() < 0.2:
            return await self._badly(on_delta)
        reply = self._reply(request)
        middle = len(reply.text) // 2
        on_delta(ReplyDelta(text=reply.text[:middle]))
        if chance.random() < 0.3:
            await asyncio.sleep(chance.choice((0.001, 0.3, 1.5)))
        await self._life.moment()
        on_delta(ReplyDelta(text=reply.text[middle:]))
        return reply

    async def close(self) -> None:
        return

    async def _badly(self, heard: Callable[[ReplyDelta], None]) -> Reply:
        kind = self._random.choice(("fails", "breaks off", "refuses", "is silent", "hangs"))
        if kind == "hangs":
            heard(ReplyDelta(text="I have"))
            await asyncio.sleep(self._random.choice((5.0, 30.0)))
        if kind in ("fails", "hangs"):
            raise ModelFailed(f"the model {kind}", reason=self._random.choice(REASONS))
        if kind == "breaks off":
            heard(ReplyDelta(text="It is"))
            await self._life.moment()
            raise ModelFailed("the model breaks off", reason="incomplete")
        return _said(
            "" if kind == "is silent" else "No.",
            stop=StopReason.REFUSED if kind == "refuses" else StopReason.END,
        )

    def _reply(self, request: Request) -> Reply:
        last = request.entries[-1].run
        replies = [
            each
            for each in request.entries
            if isinstance(each, Message) and each.role == "agent" and each.run == last
        ]
        text = f"Words {self._random.randrange(10**9)}."
        tools = [each.name for each in request.tools if each.name in CALLS]
        if len(replies) >= self._plan.turns or not tools or self._random.random() < 0.35:
            return _said(text)
        wanted = [self._random.choice(tools) for _ in range(self._random.randint(1, self._plan.fan))]
        wishes = tuple(
            UnsavedToolCall(tool=name, arguments=json.dumps(CALLS[name](self._random, request)))
            for name in wanted
        )
        return Reply(
            text=text,
            tool_calls=wishes,
            stop_reason=StopReason.TOOLS,
            usage=Usage(input=1, output=1),
            model="played",
        )

    def _look(self, request: Request) -> None:
        """What would be an error of the provider, or would show the model one thing twice."""
        if open_calls := unanswered_calls(request.entries):
            self._breach(f"a request while {open_calls[0].tool} {open_calls[0].id} has no result")
        times = Counter(each.id for each in request.entries if isinstance(each, Notice))
        for notice, count in times.items():
            if count > 1:
                self._breach(f"the model is shown notice {notice} {count} times")


def _said(text: str, *, stop: StopReason = StopReason.END) -> Reply:
    return Reply(text=text, stop_reason=stop, usage=Usage(input=1, output=1), model="played")


def _words(chance: Random) -> str:
    return f"Look {chance.randrange(10**9)}."


def _persistent(chance: Random, _: Request) -> Mapping[str, Any]:
    return {"preset": chance.choice(AGENTS), "description": "look", "prompt": _words(chance)}


def _spawned(chance: Random, _: Request) -> Mapping[str, Any]:
    wish: dict[str, Any] = {"task": _words(chance)}
    if chance.random() < 0.2:
        wish["timeoutSeconds"] = chance.choice((0, 1, 3))
    if chance.random() < 0.3:
        wish["cleanup"] = "delete"
    return wish


def _handed(chance: Random, _: Request) -> Mapping[str, Any]:
    keep = chance.random() < 0.7
    return {"agent_name": chance.choice(AGENTS), "task_prompt": _words(chance), "persist": keep}


def _asked_more(chance: Random, request: Request) -> Mapping[str, Any]:
    """Of an agent that a result named."""
    texts = (each.text for each in request.entries if isinstance(each, ToolResult))
    known = [found for text in texts for found in _AGENT_ID.findall(text)] or ["nobody"]
    return {"agent_id": chance.choice(known), "message": _words(chance)}


def _message(chance: Random, _: Request) -> Mapping[str, Any]:
    return {
        "agentId": chance.choice(AGENTS),
        "content": _words(chance),
        "session": chance.choice(("latest", "create", "latest-or-create")),
        "mode": chance.choice(("sync", "sync", "async")),
        "timeout": chance.choice((0, 0.5, 2, 300)),
    }


def _subtask(chance: Random, _: Request) -> Mapping[str, Any]:
    mode = chance.choice(("blocking", "background"))
    return {"agentId": chance.choice(AGENTS), "prompt": _words(chance), "returnMode": mode}


def _number(chance: Random, _: Request) -> Mapping[str, Any]:
    return {"number": chance.randrange(10**9)}


_AGENT_ID = re.compile(r'"agent_id":"([^"]+)"')
CALLS: Mapping[str, Callable[[Random, Request], Mapping[str, Any]]] = {
    "PersistentAgent": _persistent,
    "sessions_spawn": _spawned,
    "agent": _handed,
    "agent_ask": _asked_more,
    "agents_message": _message,
    "spawn_subagent": _subtask,
    "ponder": _number,
    "act": _number,
}
"""What a model may call here, where it is offered, each with arguments by chance."""


def tools_for(random: Random, life: Life, acted: Callable[[str], None]) -> dict[str, Tool]:
    """One that may be repeated, and one that may not: `acted` hears of each time."""

    async def passed() -> None:
        await life.moment()
        if random.random() < 0.4:
            await asyncio.sleep(random.choice((0.001, 0.4, 2.0)))
        life.check()

    @tool(effect="read")
    async def ponder(number: int) -> str:
        """Takes its time."""
        await passed()
        return f"so {number}"

    @tool
    async def act(call: Call, number: int) -> str:
        """Does something that must not be done twice."""
        life.check()
        acted(call.id)
        await passed()
        return f"done {number}"

    return {"ponder": ponder, "act": act}
