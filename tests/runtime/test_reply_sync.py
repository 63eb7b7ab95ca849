"""Which transcript entries are synced to disk before a run continues."""

import pytest
from intercepted_io import InterceptedStore
from runtime_fixture import RuntimeFixture

from retinue.domain.run import Status
from retinue.domain.transcript import Entry, Message, ToolCall, ToolResult
from retinue.testing.scripted_provider import text_reply, tool_call_reply
from retinue.tools.define import tool


def describe_entry(entry: Entry) -> str:
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
    """A tool of the user that may take any time."""
    return "so"


@tool(access=("read", "path"))
async def stamp_out(path: str) -> str:
    """A tool that takes a path and must not be repeated."""
    return path


@pytest.mark.parametrize(
    ("calls", "is_synced"),
    [
        ((("ls", "{}"),), False),
        ((("ls", "{}"), ("read", '{"path": "a.txt"}')), False),
        ((("ponder", "{}"),), True),
        ((("stamp_out", '{"path": "a.txt"}'),), True),
        ((("ls", "{}"), ("write", '{"path": "a.txt", "content": "x"}')), True),
        ((("nothing_like_it", "{}"),), True),
    ],
)
async def test_only_replies_with_built_in_read_calls_are_not_synced_before_their_calls_run(
    runtime: RuntimeFixture, calls: tuple[tuple[str, str], ...], is_synced: bool
):
    appended: list[tuple[str, bool]] = []

    def record_append(entries: tuple[Entry, ...], sync: bool) -> None:
        appended.append((" ".join(map(describe_entry, entries)), sync))

    async with runtime.open(
        tool_call_reply(*calls, text="Look."), text_reply("Done."), tools=[ponder, stamp_out]
    ) as process:
        process.replace_parts(store=InterceptedStore(process.store, record_append))
        run = await process.run("Go.")
        assert (run.status, process.crashes) == (Status.DONE, [])
    call_names = " ".join(f"{name}()" for name, _ in calls)
    assert appended == [
        ("Go.", False),
        (f"Look. {call_names}", is_synced),
        *[("result", True)] * len(calls),
        ("Done.", True),
    ]
