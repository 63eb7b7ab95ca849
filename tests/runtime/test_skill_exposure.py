"""Tool exposure: an agent that has a plugin as a skill does not get the tools of that plugin."""

from collections.abc import Mapping
from typing import Any

from retinue.domain.agent import ToolExposure
from retinue.domain.mcp import McpTool, PinnedTool
from retinue.domain.permissions.scope import Scope
from retinue.domain.skill import Skill
from retinue.interfaces import Tool
from retinue.runtime.tool_executor import visible_tools
from retinue.tools.define import tool
from retinue.tools.mcp_tool import make_mcp_tool
from retinue.tools.registry import built_in_tools


@tool(plugin="notes")
async def add_note(text: str) -> str:
    """Add a note."""
    return text


async def reject_call(_pin: PinnedTool, _arguments: Mapping[str, Any]) -> str:
    raise AssertionError("no server is asked")


def make_server_tool(server: str) -> Tool:
    return make_mcp_tool(
        server,
        PinnedTool(tool=McpTool(name="look", description="Looks.", schema={"type": "object"})),
        reject_call,
    )


def test_skills_hide_plugin_and_mcp_tools_of_the_same_name_but_no_built_in_tool():
    added_tools = [add_note, make_server_tool("notes"), make_server_tool("mail")]
    all_tools = built_in_tools() | {each.spec.name: each for each in added_tools}
    built_in_names = set(visible_tools(built_in_tools(), Scope()))
    skill = Skill(name="notes", description="", folder="/cfg/skills/notes", cli="/cfg/skills/notes/notes")
    for exposure, visible_names in (
        (ToolExposure.TOOLS, {"add_note", "notes.look", "mail.look"}),
        (ToolExposure.MIXED, {"mail.look"}),
        (ToolExposure.SKILLS, set[str]()),
    ):
        scope = Scope(tool_exposure=exposure).with_skills([skill])
        assert set(visible_tools(all_tools, scope)) - built_in_names == visible_names, exposure
        assert built_in_names <= set(visible_tools(all_tools, scope))
