"""The documentation: every code block runs or parses, every link has a target, and every reference list is complete."""

import ast
import asyncio
import json
import os
import re
import signal
import tomllib
from asyncio.subprocess import DEVNULL, STDOUT
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args

import click
import pytest
from msgspec.structs import fields

import retinue
from retinue import errors
from retinue.__main__ import COMMANDS
from retinue.agents.definition_file import parse_preset
from retinue.agents.fields import KNOWN_KEYS
from retinue.agents.sources import built_in_texts
from retinue.config.load import Config, load_config
from retinue.domain import event
from retinue.domain.agent import Agent
from retinue.domain.limits import Limits
from retinue.domain.permissions.guarded_paths import GUARDED_PATH_TABLE
from retinue.domain.permissions.protected_paths import ALWAYS_CLOSED_PATHS
from retinue.domain.providers import PROVIDER_ALIASES, PROVIDERS
from retinue.domain.run import Reason, Status, WaitReason
from retinue.sessions.markdown import parser
from retinue.storage import strict_yaml
from retinue.testing.fake_model_server import FakeModelServer
from retinue.testing.replies import text_reply
from retinue.tools.registry import built_in_tools

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r'^(?P<ticks>`{3,})(?P<language>[a-z]+)(?: title="(?P<title>[^"]+)")?$')
LINK = re.compile(r"\]\((?P<target>[^)#\s]+)(?:#[^)]*)?\)")
MAKE = re.compile(r"^make (?P<target>[a-z]+)", re.MULTILINE)
EXECUTED_LANGUAGES = ("bash", "python")
COMMON_OPTIONS = ("--help", "--home", "--json")
TERMS = (
    "agent", "role", "capability", "session", "branch", "run", "turn", "entry", "message", "tool call", "tool result",
    "parent, child", "requester", "spawn", "send", "scope", "rule", "ceiling", "approval", "workspace", "worktree", "preset",
    "side effect", "suspended", "detach", "pool", "announcement", "delivery", "inbox", "watcher, watch", "sandboxed command",
    "sandbox level", "ledger", "worker", "daemon", "daemon link", "provider", "delegation tool", "user interface",
)  # fmt: skip
PROJECT = {
    "README.md": "# Parcel\n\nSends parcels. The timetable is in src/timetable.py.\n",
    "src/timetable.py": 'def next_after(cron: str, at: float) -> float:\n    """When a cron line is due next."""\n    raise NotImplementedError\n',
    "docs/notes.md": "Parcels leave at nine.\n",
}
"""A small project for the examples to work in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    line: int
    language: str
    title: str
    text: str


def blocks(page: Path) -> Iterator[Block]:
    lines = enumerate(page.read_text(encoding="utf-8").splitlines(), start=1)
    for number, line in lines:
        if not line.startswith("```"):
            continue
        fence = FENCE.match(line)
        assert fence, f'{page.name}:{number}: a block names its language, and a title only as title="…"'
        body: list[str] = []
        for _, inner in lines:
            if inner == fence["ticks"]:
                break
            body.append(inner)
        else:
            pytest.fail(f"{page.name}:{number}: this block is never closed")
        yield Block(
            line=number, language=fence["language"], title=fence["title"] or "", text="\n".join(body) + "\n"
        )


def _parse_definition_or_session(text: str, title: str) -> None:
    if title.endswith("session.md"):
        assert parser.parse_transcript(text.encode(), title).entries
    elif "retinue/agents/" in title:
        assert isinstance(parse_preset(text, title, name=Path(title).stem), Agent)


def _parse_settings(text: str, title: str) -> None:
    tomllib.loads(text) if title.endswith(".toml") else json.loads(text)
    if Path(title).stem == "config":
        with TemporaryDirectory() as folder:
            (Path(folder) / Path(title).name).write_text(text, encoding="utf-8")
            assert load_config({"RETINUE_CONFIG": folder, "RETINUE_HOME": folder}).file


def _accept_any_text(_text: str, _title: str) -> None:
    """Accept bash, which is executed with its page, and plain text."""


PARSERS: dict[str, Callable[[str, str], Any]] = {
    "markdown": _parse_definition_or_session,
    "json": _parse_settings,
    "toml": _parse_settings,
    "yaml": strict_yaml.load_yaml,
    "python": ast.parse,
    "bash": _accept_any_text,
    "text": _accept_any_text,
}
"""The parser of each language that a block may have: our own loaders for definitions and settings."""


BY_PAGE = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
PAGES_WITH_COMMANDS = [
    page for page in PAGES if any(block.language in EXECUTED_LANGUAGES for block in blocks(page))
]


@BY_PAGE
def test_every_code_block_can_be_parsed(page: Path):
    for block in blocks(page):
        assert block.language in PARSERS, f"{page.name}:{block.line}: no parser for {block.language}"
        PARSERS[block.language](block.text, block.title or f"{page.name}:{block.line}")


@BY_PAGE
def test_every_relative_link_has_a_target(page: Path):
    targets = [found["target"] for found in LINK.finditer(page.read_text(encoding="utf-8"))]
    assert [target for target in targets if "://" not in target and not (page.parent / target).exists()] == []


def test_every_page_is_linked_from_the_index_or_the_list_of_decisions():
    docs = ROOT / "docs"
    indexes = [docs / "README.md", docs / "decisions" / "README.md"]
    listed = {
        (index.parent / found["target"]).resolve()
        for index in indexes
        for found in LINK.finditer(index.read_text(encoding="utf-8"))
    }
    assert set(docs.rglob("*.md")) - listed - set(indexes) == set()


@pytest.mark.parametrize("page", PAGES_WITH_COMMANDS, ids=lambda page: str(page.relative_to(ROOT)))
async def test_every_command_and_program_in_the_documentation_runs(
    page: Path, tmp_path: Path, isolated_env: dict[str, str]
):
    """Execute the blocks of a page in order, in one shell and one folder."""
    project = tmp_path / "project"
    for name, text in PROJECT.items():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(text, encoding="utf-8")
    env = {name: value for name, value in isolated_env.items() if not name.startswith("RETINUE_")}
    async with FakeModelServer(lambda _request: text_reply("It is `src/timetable.py`.")) as server:
        env |= {
            "OPENAI_BASE_URL": f"{server.url}/v1",
            "ANTHROPIC_BASE_URL": server.url,
            "OPENAI_API_KEY": "sk-docs",
        }
        code = await _run_script(_page_script(page), project, env, tmp_path / "output")
    assert code == 0, (tmp_path / "output").read_text(encoding="utf-8", errors="replace")[-3000:]


async def _run_script(script: str, folder: Path, env: dict[str, str], output: Path) -> int:
    """Run the script of a page and return its exit code. Processes that it started are killed at the end."""
    with output.open("wb") as output_file:
        process = await asyncio.create_subprocess_exec(
            "bash", "-euo", "pipefail", "-c", script,
            cwd=folder, env=env, stdin=DEVNULL, stdout=output_file, stderr=STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            return await process.wait()
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def _page_script(page: Path) -> str:
    return "\n".join(step for block in blocks(page) for step in _block_steps(block))


def _block_steps(block: Block) -> Iterator[str]:
    """Save a block with a title as a file, and execute any other block."""
    yield f"echo '--- the block at line {block.line}' >&2"
    if block.title and block.language != "text":
        path = block.title.replace("~", "$HOME", 1)
        yield f'mkdir -p "$(dirname "{path}")" && cat >"{path}" <<\'END OF BLOCK\'\n{block.text}END OF BLOCK'
    elif block.language == "bash":
        yield MAKE.sub(_make_command, block.text)
    elif block.language == "python":
        yield f"python - <<'END OF BLOCK'\n{block.text}END OF BLOCK"


def _make_command(found: re.Match[str]) -> str:
    """Replace make targets by a dry run, because `make test` would run this test again; run the demo in its short form."""
    arguments = "DEMO=--scripted " if found["target"] == "demo" else "--dry-run "
    return f'RETINUE_HOME="$HOME/demo" make --directory "{ROOT}" {arguments}{found["target"]}'


def test_the_list_of_errors_is_complete():
    text = (ROOT / "docs/reference/errors.md").read_text(encoding="utf-8")
    kinds = [
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, errors.RetinueError)
    ]
    rows = [f"| `{kind.code}` | {kind.exit_code} |" for kind in kinds if kind is not errors.RetinueError]
    assert [row for row in rows if row not in text] == []


def test_the_list_of_commands_is_complete():
    text = (ROOT / "docs/reference/cli.md").read_text(encoding="utf-8")
    commands = [name for group in COMMANDS.values() for name in group]
    assert [name for name in commands if f"`retinue {name}" not in text] == []


@pytest.mark.parametrize(
    "name", sorted({name for group in COMMANDS.values() for name in group} - {"subagent"})
)
def test_the_list_of_options_is_complete(name: str):
    """Each option is in a table row of its own command."""
    rows = (ROOT / "docs/reference/cli.md").read_text(encoding="utf-8").splitlines()
    (reference,) = {group[name][1] for group in COMMANDS.values() if name in group}
    module, _, command = reference.partition(":")
    for words, options in _command_options(name, getattr(import_module(module), command)):
        text = "\n".join(row for row in rows if f"`retinue {words}" in row)
        assert [option for option in options if option not in text] == [], words


def _command_options(words: str, command: click.Command) -> Iterator[tuple[str, list[str]]]:
    """Yield a command and its subcommands with their options, except those that every command has."""
    if isinstance(command, click.Group):
        for name, subcommand in command.commands.items():
            yield from _command_options(f"{words} {name}", subcommand)
    visible = [param for param in command.params if isinstance(param, click.Option) and not param.hidden]
    names = [name for param in visible for name in (*param.opts, *param.secondary_opts)]
    yield words, [name for name in names if name.startswith("--") and name not in COMMON_OPTIONS]


def test_the_list_of_events_is_complete():
    text = (ROOT / "docs/reference/events.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([a-z]+\.[a-z]+)` \|", text, re.MULTILINE)
    assert sorted(rows) == sorted(get_args(event.EventKind))
    event_json = event.event_as_json(
        event.Event(kind="run.state", at=datetime.now(UTC), session="S", live_seq=1)
    )
    assert [name for name in event_json if f"`{name}`" not in text] == []


def test_the_list_of_fields_of_an_agent_is_complete():
    text = (ROOT / "docs/reference/agent-file.md").read_text(encoding="utf-8")
    assert [field.name for field in fields(Agent) if f"`{field.name}`" not in text] == []


def test_the_list_of_other_spellings_is_complete():
    text = (ROOT / "docs/reference/agent-file.md").read_text(encoding="utf-8")
    assert [key for key in sorted(KNOWN_KEYS) if f"`{key}`" not in text] == []


def test_the_list_of_provider_names_is_complete():
    text = (ROOT / "docs/reference/agent-file.md").read_text(encoding="utf-8")
    assert [name for name in PROVIDER_ALIASES if f"`{name}`" not in text] == []


def test_the_list_of_protected_paths_is_complete():
    text = (ROOT / "docs/explanation/scope.md").read_text(encoding="utf-8")
    paths = [
        pattern.removeprefix("**/").removesuffix("/**").replace(".git/modules/**/", ".git/")
        for pattern in ALWAYS_CLOSED_PATHS
    ]
    assert [path for path in paths if f"`{path}`" not in text] == []


def test_the_list_of_guarded_paths_is_complete_with_their_programs():
    lines = (ROOT / "docs/reference/guarded-paths.md").read_text(encoding="utf-8").splitlines()
    rows = {line.split(" | ")[0].removeprefix("| "): line for line in lines if line.startswith("| ")}
    assert [
        row
        for row in GUARDED_PATH_TABLE
        if f"`{row.pattern.removeprefix('**/').removesuffix('/**')}`" not in rows[row.program]
        or row.source not in rows[row.program]
    ] == []


def test_the_list_of_tools_is_complete_with_their_arguments():
    text = (ROOT / "docs/reference/tools.md").read_text(encoding="utf-8")
    rows = [
        f"| `{name}` | {', '.join(f'`{each}`' for each in tool.spec.schema['properties'])} |"
        for name, tool in built_in_tools().items()
    ]
    assert [row for row in rows if row not in text] == []


def test_the_list_of_built_in_agents_is_complete():
    text = (ROOT / "docs/reference/agent-file.md").read_text(encoding="utf-8")
    assert [name for name in built_in_texts() if f"| `{name}` |" not in text] == []


def test_the_list_of_settings_is_complete():
    text = (ROOT / "docs/reference/settings.md").read_text(encoding="utf-8")
    documented = re.findall(r"^\| ((?:`[a-z_]+`(?:, )?)+) \|", text, re.MULTILINE)
    # set by the environment, or documented under another name
    undocumented = {
        "home",
        "config_dir",
        "file",
        "env",
        "is_persistent",
        "is_unattended",
        "has_own_approvals",
        "models_home",
        "sandbox_minimum",
        "web_hosts",
    }
    settings = {field.name for field in fields(Config)} - undocumented | {"sandbox", "web_fetch"}
    assert settings - {name for names in documented for name in re.findall("[a-z_]+", names)} == set()
    defaults = [spec.default_model for spec in PROVIDERS.values() if spec.api]
    assert [model for model in defaults if f"`{model}`" not in text] == []


def test_the_list_of_limits_is_complete_with_their_defaults():
    text = (ROOT / "docs/reference/settings.md").read_text(encoding="utf-8")
    rows = [f"| `{field.name}` | {field.default} |" for field in fields(Limits)]
    assert [row for row in rows if row not in text] == []


def test_the_list_of_public_names_is_complete():
    text = (ROOT / "docs/reference/python.md").read_text(encoding="utf-8")
    assert [name for name in vars(retinue)["__all__"] if f"`{name}`" not in text] == []


def test_the_glossary_has_every_special_term_with_its_synonyms():
    text = (ROOT / "docs/reference/glossary.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| ([^|]+) \| [^|]+ \| ([^|]+) \|$", text, re.MULTILINE))
    assert [term for term in TERMS if not rows.get(term)] == []


def test_the_list_of_reasons_is_complete():
    text = (ROOT / "docs/reference/glossary.md").read_text(encoding="utf-8")
    assert [each for each in (*Reason, *WaitReason, *Status) if f"`{each}`" not in text] == []
