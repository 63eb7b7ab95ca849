"""The one gate knows plugins: what an agent has as a skill it does not get as a tool, wherever the tool came from."""

from collections.abc import Mapping
from typing import Any

from retinue.domain.agent import Exposure
from retinue.domain.mcp_tool import Offer, Pin
from retinue.domain.permissions.scope import Scope
from retinue.domain.skill import Skill
from retinue.runtime.tool_executor import offered
from retinue.tools.define import tool
from retinue.tools.mcp_tool import served
from retinue.tools.registry import built_in


@tool(plugin="notes")
async def add_note(text: str) -> str:
    """Add a note."""
    return text


async def nobody(_pin: Pin, _arguments: Mapping[str, Any]) -> str:
    raise AssertionError("no server is asked")


def server_tool(server: str) -> Any:
    return served(
        server, Pin(offer=Offer(name="look", description="Looks.", schema={"type": "object"})), nobody
    )


def test_tools_of_plugins_and_of_servers_give_way_to_skills_and_built_in_ones_do_not():
    theirs = [add_note, server_tool("notes"), server_tool("mail")]
    table = built_in() | {each.spec.name: each for each in theirs}
    ours = set(offered(built_in(), Scope()))
    skill = Skill(plugin="notes", description="", folder="/cfg/skills/notes", cli="/cfg/skills/notes/notes")
    for exposure, left in (
        (Exposure.TOOLS, {"add_note", "notes.look", "mail.look"}),
        (Exposure.MIXED, {"mail.look"}),
        (Exposure.SKILLS, set[str]()),
    ):
        scope = Scope(exposure=exposure).having([skill])
        assert set(offered(table, scope)) - ours == left, exposure
        assert ours <= set(offered(table, scope))
