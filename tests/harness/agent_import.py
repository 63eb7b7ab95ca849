"""Checks and imports single agent definitions of other programs."""

from pathlib import Path

from retinue.agents.importing.importer import DefinitionCheck, check_definitions, import_definitions
from retinue.agents.registry import FileAgentRegistry
from retinue.domain.agent import Agent


def check_definition(path: Path) -> DefinitionCheck:
    (check,) = check_definitions(path)
    return check


def field_verdicts(check: DefinitionCheck) -> dict[str, tuple[str, str]]:
    """Return the verdict and the note of each field."""
    return {field.field: (str(field.verdict), field.note) for field in check.fields}


def import_agent(path: Path, target: Path) -> Agent:
    """Import the only definition at `path` and load it from the folder `target`."""
    (result,) = import_definitions(path, target)
    assert result.target is not None, result.check.problems
    return FileAgentRegistry(user_dir=target).get(result.name).agent
