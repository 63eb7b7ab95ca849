"""The system prompt: a base and sections in fixed order, built once per run."""

from collections.abc import Iterable, Sequence
from functools import lru_cache

from retinue.domain.agent import Agent
from retinue.domain.skill import SHELL_TOOL, SKILL_FILE, Skill

DEFAULT_BASE_PROMPT = (
    "You are a capable assistant working on the user's machine through tools. "
    "Look before you answer. Say what you found and where, and say clearly what you could not find out."
)

SUBAGENT_PREAMBLE = """\
You were started by another agent for one task. Do it yourself.
Do not ask questions in your replies: nobody reads them before your run ends.
If a tool refuses access that you need, request it with request_scope_expansion if you have that tool; \
otherwise continue without it and report what was refused.
The agent that started you sees only your last message. Make it complete: the answer, the facts that \
support it with their paths, and what is still open."""
"""Precedes the own prompt of every sub-agent."""

OMISSION_NOTICE = "This conversation is too long to be shown whole: its earlier entries are left out here."

SYSTEM_PREFIX = "system_"
"""Prefix of the runtime's own tools, which are always available and never listed."""

MESSAGE_TOOL = "agents_message"
"""The preferred tool for asking other agents, if available."""
LIST_TOOL = "agents_list"
MAX_LISTED_AGENTS = 50
"""Maximum number of other agents named in a prompt."""
MAX_INTRODUCTION_CHARS = 240
MAX_SKILL_DESCRIPTION_CHARS = 1000
"""Characters of a skill's description, which says when to use it."""


def base_prompt(agent: Agent | None) -> str:
    """Return the agent's prompt, else a sentence made from its name, else the default."""
    if agent is None:
        return DEFAULT_BASE_PROMPT
    if agent.prompt.strip():
        return agent.prompt
    return f"You are {agent.title}. {agent.description}".rstrip()


def system_prompt(
    agent: Agent | None,
    tools: Iterable[tuple[str, str]],
    *,
    depth: int = 0,
    task: str = "",
    skills: Sequence[Skill] = (),
    other_agents: Sequence[Agent] = (),
    delegation_tools: Sequence[str] = (),
) -> str:
    """Build the system prompt of an agent.

    Args:
        tools: Names and descriptions, in the order the model receives them.
        other_agents: Agents it can delegate to.
        delegation_tools: Tools to delegate with.

    The text only informs; rights are enforced elsewhere.
    """
    return assemble_prompt(
        agent,
        capability_sections(
            tools, skills=skills, other_agents=other_agents, delegation_tools=delegation_tools
        ),
        depth=depth,
        task=task,
    )


def assemble_prompt(
    agent: Agent | None, capability_texts: Sequence[str], *, depth: int = 0, task: str = ""
) -> str:
    """Assemble the prompt from capability sections that are already built."""
    sections = [SUBAGENT_PREAMBLE] if depth > 0 else []
    sections.append(base_prompt(agent))
    if task:
        sections.append(task_section(task))
    return "\n\n".join(section.strip("\n") for section in (*sections, *capability_texts))


def capability_sections(
    tools: Iterable[tuple[str, str]],
    *,
    skills: Sequence[Skill] = (),
    other_agents: Sequence[Agent] = (),
    delegation_tools: Sequence[str] = (),
) -> tuple[str, ...]:
    """Build the sections about tools, skills and other agents."""
    sections: list[str] = []
    visible_tools = [(name, text) for name, text in tools if not name.startswith(SYSTEM_PREFIX)]
    if visible_tools:
        sections.append(tools_section(visible_tools))
    if skills:
        sections.append(skills_section(skills))
    if other_agents and delegation_tools:
        sections.append(
            agents_section(
                other_agents, delegation_tools, can_list_all=LIST_TOOL in {name for name, _ in visible_tools}
            )
        )
    return tuple(sections)


def with_omission_notice(system: str) -> str:
    """Add the notice that the beginning of the conversation is left out.

    It names no position, because the position may change.
    """
    return f"{system}\n\n{OMISSION_NOTICE}".strip()


def task_section(task: str) -> str:
    """Return the section that states the task."""
    return f"Your task:\n{task}"


def tools_section(tools: Sequence[tuple[str, str]]) -> str:
    return "Available tools:\n" + "\n".join(f"- {name}: {first_sentence(text)}" for name, text in tools)


def skills_section(skills: Sequence[Skill]) -> str:
    """List each skill's purpose, instructions file and command."""
    lines = [
        f"- {each.name}: {_truncate_line(each.description, MAX_SKILL_DESCRIPTION_CHARS)}\n  {SKILL_FILE}: {each.file}\n  CLI: {each.cli}"
        for each in skills
    ]
    listed = "\n".join(lines)
    return f"Available CLI skills:\n{listed}\n\nUse a skill through {SHELL_TOOL}: read its {SKILL_FILE} first, then run its CLI."


def agents_section(
    other_agents: Sequence[Agent], delegation_tools: Sequence[str], *, can_list_all: bool = True
) -> str:
    """List the other agents and how to ask them.

    A long list is cut, with the number of omitted agents; `can_list_all` also names the tool that lists all.
    """
    lines = [f"- {each.name}: {_agent_introduction(each)}" for each in other_agents[:MAX_LISTED_AGENTS]]
    if len(other_agents) > MAX_LISTED_AGENTS:
        lines.append(
            f"- and {len(other_agents) - MAX_LISTED_AGENTS} more{f': {LIST_TOOL}' if can_list_all else ''}"
        )
    tool_names = MESSAGE_TOOL if MESSAGE_TOOL in delegation_tools else " or ".join(delegation_tools)
    listed = "\n".join(lines)
    return f"Available agents you can delegate to:\n{listed}\n\nUse {tool_names} to ask another agent to perform a task."


def _agent_introduction(agent: Agent) -> str:
    """Return the agent's title and purpose on one line of limited length."""
    introduction = " - ".join(
        " ".join(part.split()) for part in (agent.display_name, agent.description) if part
    )
    return _truncate_line(introduction, MAX_INTRODUCTION_CHARS) or agent.name


def _truncate_line(text: str, max_chars: int) -> str:
    """Return the text on one line, cut to a maximum length."""
    flat = " ".join(text.split())
    return f"{flat[: max_chars - 1]}…" if len(flat) > max_chars else flat


@lru_cache(maxsize=512)
def first_sentence(text: str) -> str:
    """Return the first sentence, on one line."""
    flat = " ".join(text.split())
    head, dot, _ = flat.partition(". ")
    return head + dot.strip()


def worker_prompt(*, requester: str, session: str, label: str, task: str) -> str:
    """Return the system prompt of `sessions_spawn` workers, with the values filled in."""
    return f"""\
You are a worker agent spawned to complete a specific task.

**Requester:** {requester}
**Session:** {session}
**Label:** {label}

**Your task:**
{task}

**Instructions:**
- Focus only on this task, and leave everything else alone.
- Be concise but thorough.
- You cannot spawn additional subagents: do the work yourself.
- Your last response will be announced to the requester, so make it complete."""


def first_message(task: str) -> str:
    """Return the first message of a child that was given a task by the `agent` tool family."""
    return f"Execute this task: {task}"
