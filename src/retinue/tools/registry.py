"""The built-in tools."""

from retinue.interfaces import Tool
from retinue.tools.ask_user import ask_user
from retinue.tools.bash import bash
from retinue.tools.delegation.agent import agent, agent_ask, explore, plan
from retinue.tools.delegation.agents_message import agents_list, agents_message
from retinue.tools.delegation.persistent_agent import persistent_agent
from retinue.tools.delegation.request_review import request_review
from retinue.tools.delegation.sessions_spawn import sessions_list, sessions_spawn
from retinue.tools.delegation.spawn_subagent import spawn_subagent
from retinue.tools.edit import edit
from retinue.tools.exit_tools import exit_tools
from retinue.tools.glob import glob
from retinue.tools.grep import grep
from retinue.tools.inbox import inbox
from retinue.tools.interject import interject
from retinue.tools.ls import ls
from retinue.tools.read import read
from retinue.tools.request_scope_expansion import request_scope_expansion
from retinue.tools.todo import todo
from retinue.tools.write import write

_BUILT_IN_TOOLS = (
    *(read, write, edit, ls, glob, grep, bash, todo, ask_user, request_scope_expansion),
    *exit_tools(),
    *(agent, agent_ask, explore, plan),
    *(persistent_agent, sessions_spawn, sessions_list),
    *(spawn_subagent, request_review, inbox, interject),
    *(agents_message, agents_list),
)


def built_in_tools() -> dict[str, Tool]:
    """Return the built-in tools by name, in the order in which the model sees them."""
    return {each.spec.name: each for each in _BUILT_IN_TOOLS}
