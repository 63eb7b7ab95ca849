"""The one gate knows plugins: what an agent has as a skill it does not get as a tool, wherever the tool came from."""

from collections.abc import Mapping
from typing import Any

from retinue.domain.agent import ToolExposure
from retinue.domain.mcp_tool import McpTool, PinnedTool
from retinue.domain.permissions.scope import Scope
from retinue.domain.skill import Skill
from retinue.runtime.tool_executor import visible_tools
from retinue.tools.define import tool
from retinue.tools.mcp_tool import make_mcp_tool
from retinue.tools.registry import built_in_tools


@tool(plugin="notes")
async def add_note(text: str) -> str:
    """Add a note."""
    return text


async def nobody(_pin: PinnedTool, _arguments: Mapping[str, Any]) -> str:
    raise AssertionError("no server is asked")


def server_tool(server: str) -> Any:
    return make_mcp_tool(
        server, PinnedTool(tool=McpTool(name="look", description="Looks.", schema={"type": "object"})), nobody
    )


def test_tools_of_plugins_and_of_servers_give_way_to_skills_and_built_in_ones_do_not():
    theirs = [add_note, server_tool("notes"), server_tool("mail")]
    table = built_in_tools() | {each.spec.name: each for each in theirs}
    ours = set(visible_tools(built_in_tools(), Scope()))
    skill = Skill(name="notes", description="", folder="/cfg/skills/notes", cli="/cfg/skills/notes/notes")
    for exposure, left in (
        (ToolExposure.TOOLS, {"add_note", "notes.look", "mail.look"}),
        (ToolExposure.MIXED, {"mail.look"}),
        (ToolExposure.SKILLS, set[str]()),
    ):
        scope = Scope(tool_exposure=exposure).with_skills([skill])
        assert set(visible_tools(table, scope)) - ours == left, exposure
        assert ours <= set(visible_tools(table, scope))
