"""What a run waits for the disk for: all that must outlive the power, and nothing that would come again."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace
from runtime_fixture import RuntimeFixture

from retinue.app.composition import scheduler_callbacks
from retinue.domain.run import Status
from retinue.domain.session import Session
from retinue.domain.transcript import Entry, Message, ToolCall, ToolResult
from retinue.interfaces import Conversation, SessionStore
from retinue.testing.scripted_provider import text_reply, tool_call_reply
from retinue.tools.define import tool


class Noted:
    """A store that notes what is added and whether the disk is waited for, and adds it."""

    def __init__(self, store: SessionStore) -> None:
        self._store = store
        self.added: list[tuple[str, bool]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    @asynccontextmanager
    async def open(self, session: Session) -> AsyncGenerator[Conversation]:
        async with self._store.open(session) as talk:
            add = talk.append

            async def append(*entries: Entry, sync: bool = True) -> None:
                await add(*entries, sync=sync)
                self.added.append((" ".join(map(named, entries)), sync))

            talk.append = append
            yield talk


def named(entry: Entry) -> str:
    match entry:
        case Message():
            return entry.text
        case ToolCall():
            return f"{entry.tool}()"
        case ToolResult():
            return "result"
        case _:
            return "notice"


@tool(effect="read")
async def ponder() -> str:
    """Somebody's own: how long it takes nobody knows."""
    return "so"


@tool(touches=("read", "path"))
async def stamp_out(path: str) -> str:
    """Names a file, and must not happen twice."""
    return path


@pytest.mark.parametrize(
    ("wishes", "waits"),
    [
        ((("ls", "{}"),), False),
        ((("ls", "{}"), ("read", '{"path": "a.txt"}')), False),
        ((("ponder", "{}"),), True),
        ((("stamp_out", '{"path": "a.txt"}'),), True),
        ((("ls", "{}"), ("write", '{"path": "a.txt", "content": "x"}')), True),
        ((("nothing_like_it", "{}"),), True),
    ],
)
async def test_a_task_and_a_reply_that_only_reads_are_synced_with_what_follows(
    runtime: RuntimeFixture, wishes: tuple[tuple[str, str], ...], waits: bool
):
    async with runtime.open(
        tool_call_reply(*wishes, text="Look."), text_reply("Done."), tools=[ponder, stamp_out]
    ) as process:
        store = Noted(process.store)
        ports = replace(process.context, store=store)
        process.worker.start(
            scheduler_callbacks(ports, lambda _, error: process.crashes.append(error), lambda _: True)
        )
        run = await process.run("Go.")
        assert (run.status, process.crashes) == (Status.DONE, [])
    named_calls = " ".join(f"{name}()" for name, _ in wishes)
    assert store.added == [
        ("Go.", False),
        (f"Look. {named_calls}", waits),
        *[("result", True)] * len(wishes),
        ("Done.", True),
    ]
