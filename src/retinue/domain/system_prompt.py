"""The system prompt: a base, then sections in a fixed order, built once per run."""

from collections.abc import Iterable, Sequence
from functools import lru_cache

from retinue.domain.agent import Agent
from retinue.domain.skill import FILE, SHELL, Skill

DEFAULT_BASE = (
    "You are a capable assistant working on the user's machine through tools. "
    "Look before you answer, say what you found and where, and say plainly what you could not find out."
)

PREAMBLE = """\
You were started by another agent to do one piece of work, and you do it yourself.
Nobody is watching: do not ask questions in text, because nobody reads them before you end.
When a tool refuses you something you need, ask for it with request_scope_expansion if you have that tool; \
otherwise go on with what you may do and say what was refused.
Your last message is the only thing the one who asked will see. Make it complete in itself: \
the answer, the facts it rests on with their paths, and what is still open."""
"""Stands in front of every sub-agent's own prompt."""

LEFT_OUT = "This conversation is too long to be shown whole: its earlier entries are left out here."

SYSTEM_PREFIX = "system_"
"""Only the runtime registers tools with this prefix; they are always available and never listed."""

MESSAGE = "agents_message"
"""The tool for asking other agents that is named before all others."""
LISTING = "agents_list"
MAX_AGENTS = 50
"""So many other agents are named in a prompt."""
MAX_INTRODUCTION = 240
MAX_PURPOSE = 1000
"""Characters of a skill's description: it says when to use it."""


def base(agent: Agent | None) -> str:
    """The agent's own words; else a sentence made of its name; else ours."""
    if agent is None:
        return DEFAULT_BASE
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
    others: Sequence[Agent] = (),
    doors: Sequence[str] = (),
) -> str:
    """`tools` are names and descriptions, in the order the model gets them; `others` the agents that it can name, and
    `doors` the tools it names them to. Informational only: rights are elsewhere."""
    return spoken(agent, means(tools, skills=skills, others=others, doors=doors), depth=depth, task=task)


def spoken(agent: Agent | None, means: Sequence[str], *, depth: int = 0, task: str = "") -> str:
    """The prompt of an agent whose `means` are put into words already."""
    sections = [PREAMBLE] if depth > 0 else []
    sections.append(base(agent))
    if task:
        sections.append(task_section(task))
    return "\n\n".join(section.strip("\n") for section in (*sections, *means))


def means(
    tools: Iterable[tuple[str, str]],
    *,
    skills: Sequence[Skill] = (),
    others: Sequence[Agent] = (),
    doors: Sequence[str] = (),
) -> tuple[str, ...]:
    """What an agent has to work with, section by section."""
    sections: list[str] = []
    shown = [(name, text) for name, text in tools if not name.startswith(SYSTEM_PREFIX)]
    if shown:
        sections.append(tools_section(shown))
    if skills:
        sections.append(skills_section(skills))
    if others and doors:
        sections.append(agents_section(others, doors, more=LISTING in {name for name, _ in shown}))
    return tuple(sections)


def abridged(system: str) -> str:
    """The prompt of a conversation whose beginning is left out. Only the fact is told: where it begins may move."""
    return f"{system}\n\n{LEFT_OUT}".strip()


def task_section(task: str) -> str:
    """Base and task together make a specialised prompt."""
    return f"Your task:\n{task}"


def tools_section(tools: Sequence[tuple[str, str]]) -> str:
    return "Available tools:\n" + "\n".join(f"- {name}: {short(text)}" for name, text in tools)


def skills_section(skills: Sequence[Skill]) -> str:
    """What each is for, and where its text and its command are: the model reads the one and runs the other."""
    lines = [
        f"- {each.plugin}: {_cut(each.description, MAX_PURPOSE)}\n  {FILE}: {each.file}\n  CLI: {each.cli}"
        for each in skills
    ]
    listed = "\n".join(lines)
    return f"Available CLI skills:\n{listed}\n\nUse a skill through {SHELL}: read its {FILE} first, then run its CLI."


def agents_section(others: Sequence[Agent], doors: Sequence[str], *, more: bool = True) -> str:
    """Who else there is, and how to ask them. A long list is cut, and says by how much; `more`: it can be had whole."""
    lines = [f"- {each.name}: {_introduced(each)}" for each in others[:MAX_AGENTS]]
    if len(others) > MAX_AGENTS:
        lines.append(f"- and {len(others) - MAX_AGENTS} more{f': {LISTING}' if more else ''}")
    by = MESSAGE if MESSAGE in doors else " or ".join(doors)
    listed = "\n".join(lines)
    return (
        f"Available agents you can delegate to:\n{listed}\n\nUse {by} to ask another agent to perform a task."
    )


def _introduced(agent: Agent) -> str:
    """Its title and what it is for, on one line that no definition makes longer than this."""
    told = " - ".join(" ".join(part.split()) for part in (agent.display_name, agent.description) if part)
    return _cut(told, MAX_INTRODUCTION) or agent.name


def _cut(text: str, most: int) -> str:
    """On one line, and no longer than this."""
    flat = " ".join(text.split())
    return f"{flat[: most - 1]}…" if len(flat) > most else flat


@lru_cache(maxsize=512)
def short(text: str) -> str:
    """The first sentence, on one line."""
    flat = " ".join(text.split())
    head, dot, _ = flat.partition(". ")
    return head + dot.strip()


def worker_prompt(*, requester: str, session: str, label: str, task: str) -> str:
    """Seed 004's system message, with real values."""
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
    """How a task given through seed 001's door reads in the child's conversation."""
    return f"Execute this task: {task}"
