"""The documentation is true: every block of it runs, parses or is plain text, and every list of it is complete."""

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
from retinue.domain.permissions.protected_paths import ALWAYS_CLOSED_PATHS, GUARDED_PATHS
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
RUN = ("bash", "python")
EVERYWHERE = ("--help", "--home", "--json")
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


def _definition_or_session(text: str, title: str) -> None:
    if title.endswith("session.md"):
        assert parser.parse_transcript(text.encode(), title).entries
    elif "retinue/agents/" in title:
        assert isinstance(parse_preset(text, title, name=Path(title).stem), Agent)


def _settings(text: str, title: str) -> None:
    tomllib.loads(text) if title.endswith(".toml") else json.loads(text)
    if Path(title).stem == "config":
        with TemporaryDirectory() as folder:
            (Path(folder) / Path(title).name).write_text(text, encoding="utf-8")
            assert load_config({"RETINUE_CONFIG": folder, "RETINUE_HOME": folder}).file


def _nothing(_text: str, _title: str) -> None:
    """Bash runs with its page, and text is text."""


PARSERS: dict[str, Callable[[str, str], Any]] = {
    "markdown": _definition_or_session,
    "json": _settings,
    "toml": _settings,
    "yaml": strict_yaml.load_yaml,
    "python": ast.parse,
    "bash": _nothing,
    "text": _nothing,
}
"""Language → what reads it: our own loaders where it is a definition or a setting. No other language may be used."""


BY_PAGE = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
PLAYED = [page for page in PAGES if any(block.language in RUN for block in blocks(page))]


@BY_PAGE
def test_every_block_is_understood_by_what_would_read_it(page: Path):
    for block in blocks(page):
        assert block.language in PARSERS, f"{page.name}:{block.line}: no reader for {block.language}"
        PARSERS[block.language](block.text, block.title or f"{page.name}:{block.line}")


@BY_PAGE
def test_every_link_leads_somewhere(page: Path):
    targets = [found["target"] for found in LINK.finditer(page.read_text(encoding="utf-8"))]
    assert [target for target in targets if "://" not in target and not (page.parent / target).exists()] == []


def test_every_page_is_listed():
    """On the first page, or for a decision in the index of decisions."""
    docs = ROOT / "docs"
    indexes = [docs / "README.md", docs / "decisions" / "README.md"]
    listed = {
        (index.parent / found["target"]).resolve()
        for index in indexes
        for found in LINK.finditer(index.read_text(encoding="utf-8"))
    }
    assert set(docs.rglob("*.md")) - listed - set(indexes) == set()


@pytest.mark.parametrize("page", PLAYED, ids=lambda page: str(page.relative_to(ROOT)))
async def test_every_command_and_program_runs_as_it_stands(
    page: Path, tmp_path: Path, isolated_env: dict[str, str]
):
    """One page is one shell in one folder, from the first block to the last, as a reader would type it."""
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
        code = await _run_script(_script(page), project, env, tmp_path / "output")
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


def _script(page: Path) -> str:
    return "\n".join(step for block in blocks(page) for step in _steps(block))


def _steps(block: Block) -> Iterator[str]:
    """A titled block is a file the reader saves; the others are what the reader runs."""
    yield f"echo '--- the block at line {block.line}' >&2"
    if block.title and block.language != "text":
        path = block.title.replace("~", "$HOME", 1)
        yield f'mkdir -p "$(dirname "{path}")" && cat >"{path}" <<\'END OF BLOCK\'\n{block.text}END OF BLOCK'
    elif block.language == "bash":
        yield MAKE.sub(_make, block.text)
    elif block.language == "python":
        yield f"python - <<'END OF BLOCK'\n{block.text}END OF BLOCK"


def _make(found: re.Match[str]) -> str:
    """`make test` would run this test again, so a target is only asked what it would do; the demo really plays, its
    short form."""
    wish = "DEMO=--scripted " if found["target"] == "demo" else "--dry-run "
    return f'RETINUE_HOME="$HOME/demo" make --directory "{ROOT}" {wish}{found["target"]}'


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
    """Each option stands in a row of its own command."""
    rows = (ROOT / "docs/reference/cli.md").read_text(encoding="utf-8").splitlines()
    (place,) = {group[name][1] for group in COMMANDS.values() if name in group}
    module, _, command = place.partition(":")
    for words, options in _options(name, getattr(import_module(module), command)):
        told = "\n".join(row for row in rows if f"`retinue {words}" in row)
        assert [option for option in options if option not in told] == [], words


def _options(words: str, command: click.Command) -> Iterator[tuple[str, list[str]]]:
    """Of a command and of those below it, without what every command takes."""
    if isinstance(command, click.Group):
        for name, below in command.commands.items():
            yield from _options(f"{words} {name}", below)
    given = [param for param in command.params if isinstance(param, click.Option) and not param.hidden]
    names = [name for param in given for name in (*param.opts, *param.secondary_opts)]
    yield words, [name for name in names if name.startswith("--") and name not in EVERYWHERE]


def test_the_list_of_events_is_complete():
    text = (ROOT / "docs/reference/events.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([a-z]+\.[a-z]+)` \|", text, re.MULTILINE)
    assert sorted(rows) == sorted(get_args(event.EventKind))
    told = event.event_as_json(
        event.Event(kind="run.state", at=datetime.now(UTC), session="S", live_number=1)
    )
    assert [name for name in told if f"`{name}`" not in text] == []


def test_the_list_of_fields_of_an_agent_is_complete():
    text = (ROOT / "docs/reference/agent-file.md").read_text(encoding="utf-8")
    assert [field.name for field in fields(Agent) if f"`{field.name}`" not in text] == []


def test_the_list_of_other_spellings_is_complete():
    text = (ROOT / "docs/reference/agent-file.md").read_text(encoding="utf-8")
    assert [key for key in sorted(KNOWN_KEYS) if f"`{key}`" not in text] == []


def test_the_list_of_drivers_is_complete():
    text = (ROOT / "docs/reference/agent-file.md").read_text(encoding="utf-8")
    assert [name for name in PROVIDER_ALIASES if f"`{name}`" not in text] == []


def test_the_list_of_closed_places_is_complete():
    text = (ROOT / "docs/explanation/scope.md").read_text(encoding="utf-8")
    places = [
        pattern.removeprefix("**/").removesuffix("/**").replace(".git/modules/**/", ".git/")
        for pattern in (*ALWAYS_CLOSED_PATHS, *GUARDED_PATHS)
    ]
    assert [place for place in places if f"`{place}`" not in text] == []


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
    said = re.findall(r"^\| ((?:`[a-z_]+`(?:, )?)+) \|", text, re.MULTILINE)
    # by the machine, or said under another name
    given = {
        "home",
        "config_dir",
        "file",
        "env",
        "is_persistent",
        "models_home",
        "sandbox_minimum",
        "web_hosts",
    }
    known = {field.name for field in fields(Config)} - given | {"sandbox", "web_fetch"}
    assert known - {name for names in said for name in re.findall("[a-z_]+", names)} == set()
    defaults = [spec.default_model for spec in PROVIDERS.values() if spec.api]
    assert [model for model in defaults if f"`{model}`" not in text] == []


def test_the_list_of_limits_is_complete_with_their_defaults():
    text = (ROOT / "docs/reference/settings.md").read_text(encoding="utf-8")
    rows = [f"| `{field.name}` | {field.default} |" for field in fields(Limits)]
    assert [row for row in rows if row not in text] == []


def test_the_list_of_promised_names_is_complete():
    text = (ROOT / "docs/reference/python.md").read_text(encoding="utf-8")
    assert [name for name in vars(retinue)["__all__"] if f"`{name}`" not in text] == []


def test_the_special_terms_are_in_the_glossary_with_what_else_they_are_called():
    text = (ROOT / "docs/reference/glossary.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| ([^|]+) \| [^|]+ \| ([^|]+) \|$", text, re.MULTILINE))
    assert [term for term in TERMS if not rows.get(term)] == []


def test_the_list_of_reasons_is_complete():
    text = (ROOT / "docs/reference/glossary.md").read_text(encoding="utf-8")
    assert [each for each in (*Reason, *WaitReason, *Status) if f"`{each}`" not in text] == []
