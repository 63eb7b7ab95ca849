"""Definitions: agents as people write them, in Markdown with front matter or JSON."""

from retinue.domain.agent import Agent
from retinue.errors import BadDefinition
from retinue.store import frontmatter, strict_yaml


def parse_preset(text: str, where: str, *, name: str = "preset") -> Agent:
    """The definition in a preset's text. `name` counts where the text has none of its own."""
    front, body = frontmatter.split(text, where)
    fields = strict_yaml.load(front, where) or {}
    if not isinstance(fields, dict):
        raise BadDefinition(where, "front matter must be a map of fields")
    return Agent(name=str(fields.get("name") or name), prompt=body.strip("\n"))  # pyright: ignore
