"""How the calls of one reply are divided into groups, and messages into sequences."""

import json

import pytest

from retinue.domain.call_groups import group_calls, sequences_by_recipient
from retinue.domain.io_results import FetchedPage
from retinue.domain.transcript import ToolCall
from retinue.tools.registry import built_in_tools
from retinue.tools.web.web_fetch import make_web_fetch


async def fetch_nothing(_url: str) -> FetchedPage:
    raise AssertionError


TOOLS = built_in_tools() | {"web_fetch": make_web_fetch(fetch_nothing)}


def make_calls(*names: str) -> list[ToolCall]:
    return [ToolCall(id=f"c{number}", tool=name, args="{}") for number, name in enumerate(names)]


@pytest.mark.parametrize(
    ("names", "groups"),
    [
        (["write", "read"], ["write", "read"]),
        (["read", "grep", "ls"], ["read grep ls"]),
        (["read", "write", "read", "glob"], ["read", "write", "read glob"]),
        (["web_fetch", "read", "agents_list", "inbox"], ["web_fetch read agents_list inbox"]),
        (["agent", "agents_message", "sessions_spawn"], ["agent agents_message sessions_spawn"]),
        (["agent", "read", "agent"], ["agent", "read", "agent"]),
        (["write", "write"], ["write", "write"]),
        (["bash", "bash", "edit", "todo"], ["bash", "bash", "edit", "todo"]),
        (["missing", "missing"], ["missing", "missing"]),
        ([], []),
    ],
)
def test_neighbours_that_read_or_that_delegate_share_a_group(names: list[str], groups: list[str]):
    found = group_calls(make_calls(*names), TOOLS)
    assert [" ".join(call.tool for call in group) for group in found] == groups


def test_messages_to_one_recipient_form_a_sequence_and_other_calls_do_not():
    def message(call_id: str, agent: str) -> ToolCall:
        return ToolCall(
            id=call_id, tool="agents_message", args=json.dumps({"agentId": agent, "content": "Hi."})
        )

    def spawn(call_id: str) -> ToolCall:
        return ToolCall(id=call_id, tool="sessions_spawn", args='{"task": "Look."}')

    invalid = ToolCall(id="e", tool="agents_message", args="{")
    calls = [message("a", "one"), message("b", "two"), spawn("c"), message("d", "one"), invalid, spawn("f")]
    sequences = sequences_by_recipient(calls, TOOLS)
    assert [[call.id for call in each] for each in sequences] == [["a", "d"], ["b"], ["c"], ["e"], ["f"]]
