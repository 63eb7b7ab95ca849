"""Add one permission that a person granted to a session's preset.md; change nothing else."""

from msgspec.structs import replace

from retinue.agents.definition_file import parse_preset
from retinue.agents.frontmatter import split_front_matter, with_paths
from retinue.agents.frontmatter_edit import with_list_items
from retinue.domain.agent import Agent, PathPatterns, ShellCommands
from retinue.domain.approval import ToolAccess
from retinue.domain.permissions.scope import DEFAULT_WRITABLE_PATHS
from retinue.errors import BadDefinition

WORKSPACE_GLOB = "./**"
"""Paths readable without an explicit list; written out when such a list is added."""


def with_granted_pattern(
    text: str, access: ToolAccess, pattern: str, *, is_top_level: bool, location: str, name: str
) -> str:
    """Return the preset with the pattern added, or the same text if it is already allowed.

    Raises BadDefinition if the file cannot express the permission.
    """
    agent = parse_preset(text, location, name=name)
    if access == "run":
        return _with_allowed_command(text, agent, pattern, location, name)
    if access not in ("read", "write"):
        return text
    if agent.paths is None and not is_top_level:
        # A child without paths has no path permissions: adding one list must not add defaults for the others.
        return with_paths(text, replace(PathPatterns(read=(), write=()), **{access: (pattern,)}), location)
    current: tuple[str, ...] | None = getattr(agent.paths or PathPatterns(), access)
    if pattern in (current or ()):
        return text
    defaults = (
        () if current is not None else ((WORKSPACE_GLOB,) if access == "read" else DEFAULT_WRITABLE_PATHS)
    )
    paths = replace(agent.paths or PathPatterns(), **{access: (*(current or ()), *defaults, pattern)})
    expected = replace(agent, paths=paths)
    try:
        return _verify_preset(
            with_list_items(text, "paths", access, [*defaults, pattern], location), expected, location, name
        )
    except BadDefinition:
        return _verify_preset(with_paths(text, paths, location), expected, location, name)


def _with_allowed_command(text: str, agent: Agent, pattern: str, location: str, name: str) -> str:
    commands = agent.shell_commands or ShellCommands()
    if pattern in (commands.allow or ()):
        return text
    expected = replace(agent, shell_commands=replace(commands, allow=(*(commands.allow or ()), pattern)))
    section = (
        "shellCommands" if "shellCommands" in split_front_matter(text, location)[0] else "shell_commands"
    )
    return _verify_preset(
        with_list_items(text, section, "allow", [pattern], location), expected, location, name
    )


def _verify_preset(text: str, expected: Agent, location: str, name: str) -> str:
    if parse_preset(text, location, name=name) != expected:
        raise BadDefinition(
            location,
            "is written in a form that permissions cannot be added to; add it by hand, one field per line",
        )
    return text
