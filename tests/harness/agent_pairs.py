"""Processes with two agents: `main`, which starts the other agent or sends messages to it."""

import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from runtime_fixture import RuntimeFixture, RuntimeProcess

from retinue.testing.scripted_provider import ScriptedStep


def message_call(agent: str = "todo", content: str = "Add milk.", **more: Any) -> tuple[str, str]:
    """Make a call of `agents_message`."""
    return "agents_message", json.dumps({"agentId": agent, "content": content} | more)


@asynccontextmanager
async def open_main_and_todo(
    runtime: RuntimeFixture, main: Sequence[ScriptedStep], todo: Sequence[ScriptedStep], **overrides: Any
) -> AsyncGenerator[RuntimeProcess]:
    """Open a process with the agents `main`, which sends messages, and `todo`, which keeps lists."""
    runtime.write_missing_agent("main")
    runtime.write_missing_agent("todo", "display_name: Todo List Manager\n", "You keep lists.")
    async with runtime.open(by_agent={"main": main, "todo": todo}, **overrides) as process:
        yield process


@asynccontextmanager
async def open_main_and_helper(
    runtime: RuntimeFixture, main: Sequence[ScriptedStep], helper: Sequence[ScriptedStep], **overrides: Any
) -> AsyncGenerator[RuntimeProcess]:
    """Open a process with the agents `main` and `helper`, and a script for each."""
    runtime.write_missing_agent("main")
    runtime.write_missing_agent("helper", body="You look.")
    async with runtime.open(by_agent={"main": main, "helper": helper}, **overrides) as process:
        yield process
