"""A session's preset.md with one right more, as a person granted it, and nothing else changed."""

from dataclasses import replace

from retinue.agents.definition_file import parse_preset
from retinue.agents.frontmatter import split, with_paths
from retinue.agents.frontmatter_edit import with_items
from retinue.domain.agent import Agent, Paths, ShellCommands
from retinue.domain.approval import Touch
from retinue.domain.permissions.scope import DEFAULT_WRITE
from retinue.errors import BadDefinition

WORKSPACE = "./**"
"""What a definition without a list of reads may read: written out when it gets such a list."""


def widened(text: str, touch: Touch, pattern: str, *, top: bool, where: str, name: str) -> str:
    """The same text when it says so already. BadDefinition when it cannot be said by this file."""
    agent = parse_preset(text, where, name=name)
    if touch == "run":
        return _with_command(text, agent, pattern, where, name)
    if touch not in ("read", "write"):
        return text
    if agent.paths is None and not top:
        # A child that lost its paths has none: with one list it must not gain what the others mean when they are absent.
        one = {"read": (), "write": (), touch: (pattern,)}
        return with_paths(text, Paths(**one), where)
    before: tuple[str, ...] | None = getattr(agent.paths or Paths(), touch)
    if pattern in (before or ()):
        return text
    implied = () if before is not None else ((WORKSPACE,) if touch == "read" else DEFAULT_WRITE)
    paths = replace(agent.paths or Paths(), **{touch: (*(before or ()), *implied, pattern)})
    wanted = replace(agent, paths=paths)
    try:
        return _checked(with_items(text, "paths", touch, [*implied, pattern], where), wanted, where, name)
    except BadDefinition:
        return _checked(with_paths(text, paths, where), wanted, where, name)


def _with_command(text: str, agent: Agent, pattern: str, where: str, name: str) -> str:
    commands = agent.shell_commands or ShellCommands()
    if pattern in (commands.allow or ()):
        return text
    wanted = replace(agent, shell_commands=replace(commands, allow=(*(commands.allow or ()), pattern)))
    section = "shellCommands" if "shellCommands" in split(text, where)[0] else "shell_commands"
    return _checked(with_items(text, section, "allow", [pattern], where), wanted, where, name)


def _checked(text: str, wanted: Agent, where: str, name: str) -> str:
    if parse_preset(text, where, name=name) != wanted:
        raise BadDefinition(
            where,
            "is written so that nothing can be added to its rights; add it by hand, one field to a line",
        )
    return text
