"""The built-in read and search tools: arguments as a model writes them, results as it reads them."""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from inline_snapshot import snapshot
from msgspec.structs import replace
from tool_calls import UseTool, make_call, use_tool

from retinue.domain.io_results import FileContent, FileEntry
from retinue.domain.permissions.scope import DEFAULT_DENIED_PATHS, Scope
from retinue.domain.rules import subtree_pattern
from retinue.domain.tool import Effect
from retinue.errors import Failed, OutOfScope, UserUnavailable
from retinue.tools import ls as ls_tool
from retinue.tools.grep import GrepSearch
from retinue.tools.registry import built_in_tools


def read_scope(root: Path) -> Scope:
    return Scope(read=(subtree_pattern(str(root)),), deny=DEFAULT_DENIED_PATHS, root=str(root))


@pytest.fixture
def ws(tmp_path: Path) -> Path:
    ws = tmp_path.resolve() / "ws"
    for path, text in {
        "readme.md": "# Hello\nworld\n",
        "src/app.py": "import os\n\n\ndef main():\n    return os.sep\n",
        "src/deep/util.py": "def helper():\n    return 1\n",
        "src/deep/style.css": "a { color: red }\n",
        ".env": "KEY=secret main\n",
        ".hidden": "main thing\n",
    }.items():
        (ws / path).parent.mkdir(parents=True, exist_ok=True)
        (ws / path).write_text(text)
    (ws / "link").symlink_to("readme.md")
    (ws / "out").symlink_to("/etc")
    return ws


@pytest.fixture
def use(ws: Path) -> UseTool:
    async def use_built_in_tool(name: str, **arguments: Any) -> str:
        return await use_tool(built_in_tools()[name], make_call(ws, read_scope(ws)), **arguments)

    return use_built_in_tool


def test_the_registry_lists_every_built_in_tool_with_its_effect():
    assert {name: str(tool.effect) for name, tool in built_in_tools().items()} == snapshot(
        {
            "read": "read",
            "write": "idempotent",
            "edit": "once",
            "ls": "read",
            "glob": "read",
            "grep": "read",
            "bash": "once",
            "todo": "idempotent",
            "ask_user": "idempotent",
            "request_scope_expansion": "idempotent",
            "submit_for_review": "idempotent",
            "ask_for_help": "idempotent",
            "llm_unreachable": "idempotent",
            "approve": "idempotent",
            "request_changes": "idempotent",
            "agent": "idempotent",
            "agent_ask": "idempotent",
            "explore": "idempotent",
            "plan": "idempotent",
            "PersistentAgent": "idempotent",
            "sessions_spawn": "idempotent",
            "sessions_list": "read",
            "spawn_subagent": "idempotent",
            "request_review": "idempotent",
            "inbox": "read",
            "interject": "idempotent",
            "agents_message": "idempotent",
            "agents_list": "read",
        }
    )
    delegation_tools = {name for name, tool in built_in_tools().items() if tool.is_delegation}
    assert {"PersistentAgent", "sessions_spawn", "agents_message"} <= delegation_tools
    assert all(isinstance(tool.effect, Effect) for tool in built_in_tools().values())


async def test_read_returns_the_text_unchanged(use: UseTool, ws: Path):
    (ws / "dos.txt").write_bytes(b"one\r\ntwo\r\n\ttab\x0cpage")
    assert await use("read", path="readme.md") == "# Hello\nworld\n"
    assert await use("read", path=str(ws / "link")) == "# Hello\nworld\n"
    assert await use("read", path="dos.txt") == "one\r\ntwo\r\n\ttab\x0cpage"


async def test_read_returns_long_files_in_pieces_and_names_the_next_offset(use: UseTool, ws: Path):
    (ws / "long").write_text("".join(f"line {number}\n" for number in range(1, 3001)))
    first = await use("read", path="long")
    assert first.startswith("line 1\n")
    assert first.endswith("line 2000\n[lines 1\u20132,000 of 3,000; continue with offset=2001]")
    rest = await use("read", path="long", offset=2001)
    assert rest.startswith("line 2001\n")
    assert rest.endswith("line 3000\n")
    assert await use("read", path="long", offset=7, limit=2) == snapshot(
        """\
line 7
line 8
[lines 7\u20138 of 3,000; continue with offset=9]\
"""
    )
    with pytest.raises(Failed, match="Offset 3,001 is past the end: long has 3,000 lines"):
        await use("read", path="long", offset=3001)


async def test_read_also_limits_the_size_of_its_result(use: UseTool, ws: Path):
    (ws / "wide").write_text("".join("x" * 999 + "\n" for _ in range(500)))
    wide = await use("read", path="wide")
    assert wide.endswith("[lines 1\u2013200 of 500; continue with offset=201]")
    assert len(wide) < 201_000
    (ws / "one").write_text("y" * 300_000)
    one = await use("read", path="one")
    assert one.endswith("y\n[line 1 is 300,000 characters long; the first 200,000 are shown]")
    assert len(one) < 201_000


async def test_read_reports_a_file_that_is_larger_than_its_limit(use: UseTool, ws: Path):
    with (ws / "huge").open("wb") as huge:
        huge.write(b"start\n" + b"z" * 99 + b"\n")
        huge.truncate(40_000_000)
    assert "not text" in await use("read", path="huge")
    (ws / "huge").write_bytes((b"z" * 9_999 + b"\n") * 2_000)
    text = await use("read", path="huge", limit=1)
    assert "[the file is 20.0 MB; only its first 16.0 MB can be read]" in text


async def test_read_describes_binary_files_and_reports_which_characters_it_replaced(use: UseTool, ws: Path):
    """Shows: U05."""
    (ws / "image").write_bytes(b"\x89PNG\r\n\x1a\n\0\0")
    (ws / "blob").write_bytes(b"ab\0" + b"x" * 20_000)
    (ws / "latin").write_bytes(b"caf\xe9\n")
    (ws / "colour").write_text("\x1b[31mred\x1b[0m \x1b]0;title\x07ok \x9b1mx \x1bcz\x08\n")
    (ws / "empty").touch()
    results = {name: await use("read", path=name) for name in ("image", "blob", "latin", "colour", "empty")}
    assert results == snapshot(
        {
            "image": "[image is a PNG image, 10 bytes: not shown]",
            "blob": "[blob is not text, 20 kB: not shown]",
            "latin": "caf\ufffd\n[some bytes are not UTF-8 and are shown as \ufffd]",
            "colour": "red ok x z\n[escape sequences were removed]",
            "empty": "[the file is empty]",
        }
    )


async def test_file_tools_raise_only_out_of_scope_or_failed_for_bad_paths(use: UseTool, ws: Path):
    """Shows: A085, A090."""
    for name in ("read", "ls"):
        for path in ("/etc/passwd", "out/passwd", ".env", "../x"):
            with pytest.raises(OutOfScope):
                await use(name, path=path)
        for path in ("none", "readme.md/x", "a\0b", "x" * 5000):
            with pytest.raises(Failed):
                await use(name, path=path)
    for name in ("glob", "grep"):
        with pytest.raises(OutOfScope):
            await use(name, pattern="x.*", path="/etc")
        with pytest.raises(Failed):
            await use(name, pattern="x.*", path="none")


async def test_ls_marks_folders_and_links_and_shows_sizes(use: UseTool, ws: Path):
    (ws / "bad\x1b[31m\u202ename").touch()
    (ws / os.fsdecode(b"raw\xff")).touch()
    assert await use("ls") == snapshot(
        """\
.hidden  11
bad\\x1b[31m\\u202ename  0
link@
out@
raw\\udcff  0
readme.md  14
src/\
"""
    )
    assert await use("ls", path="src/deep") == "style.css  17\nutil.py  27"
    (ws / "none").mkdir()
    assert await use("ls", path="none/") == "[the folder is empty]"


async def test_ls_of_a_large_folder_is_truncated_with_a_notice(use: UseTool, ws: Path):
    crowd = ws / "crowd"
    crowd.mkdir()
    for number in range(ls_tool.MAX_NAMES + 5):
        (crowd / f"{number:05}").touch()
    lines = (await use("ls", path="crowd")).split("\n")
    assert len(lines) == ls_tool.MAX_NAMES + 1
    assert lines[-1] == "[5 more entries not shown; use glob with a pattern]"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"pattern": "*.md"}, ["readme.md"]),
        ({"pattern": "**/*.py"}, ["src/app.py", "src/deep/util.py"]),
        ({"pattern": "src/**/*.py"}, ["src/app.py", "src/deep/util.py"]),
        ({"pattern": "src/*.py"}, ["src/app.py"]),
        ({"pattern": "*.py", "path": "src/deep"}, ["src/deep/util.py"]),
        (
            {"pattern": "**/*.{py,css}", "path": "src"},
            ["src/app.py", "src/deep/style.css", "src/deep/util.py"],
        ),
        ({"pattern": "./src/app.py"}, ["src/app.py"]),
        ({"pattern": "**/.*"}, [".hidden"]),
        ({"pattern": "*.nothing"}, ["[no files match]"]),
        ({"pattern": "src/**/?pp.py"}, ["src/app.py"]),
    ],
)
async def test_glob_finds_files_by_name(use: UseTool, arguments: dict[str, str], expected: list[str]):
    """Shows: A088."""
    assert (await use("glob", **arguments)).split("\n") == expected


async def test_glob_accepts_an_absolute_pattern_only_inside_the_workspace(use: UseTool, ws: Path):
    assert await use("glob", pattern=f"{ws}/src/*.py") == "src/app.py"
    with pytest.raises(Failed, match="The pattern must be relative"):
        await use("glob", pattern="/etc/*")
    with pytest.raises(OutOfScope):
        await use("glob", pattern="../*")


async def test_glob_truncates_long_results_and_refuses_complex_patterns(use: UseTool, ws: Path):
    """Shows: F20."""
    crowd = ws / "crowd"
    crowd.mkdir()
    for number in range(1_005):
        (crowd / f"{number:05}").touch()
    lines = (await use("glob", pattern="crowd/*")).split("\n")
    assert lines[999:] == ["crowd/00999", "[more than 1,000 files match: use a narrower pattern]"]
    with pytest.raises(Failed, match="more than 64 alternatives"):
        await use("glob", pattern="{a,b}" * 7)
    with pytest.raises(Failed, match="1 to 1,024"):
        await use("glob", pattern="")


async def test_grep_shows_file_line_number_and_text(use: UseTool):
    assert await use("grep", pattern=r"def \w+\(") == snapshot(
        """\
src/app.py:4: def main():
src/deep/util.py:1: def helper():\
"""
    )
    assert await use("grep", pattern="main") == ".hidden:1: main thing\nsrc/app.py:4: def main():"
    assert await use("grep", pattern="main", glob="*.py") == "src/app.py:4: def main():"
    assert (
        await use("grep", pattern="return", glob="deep/*.py", path="src")
        == "src/deep/util.py:2:     return 1"
    )
    assert await use("grep", pattern="main", path="src/app.py") == "src/app.py:4: def main():"
    assert await use("grep", pattern="(?i)HELLO$") == "readme.md:1: # Hello"
    assert await use("grep", pattern="(?<=# )Hello") == "readme.md:1: # Hello"
    assert await use("grep", pattern="no such text") == "[no matches]"


async def test_grep_matches_within_a_line_and_never_across_lines(use: UseTool, ws: Path):
    (ws / "two").write_bytes(b"alpha\r\nbeta\r\nalpha end")
    found = {pattern: await use("grep", pattern=pattern, path="two") for pattern in (
        "alpha$", r"alpha\s+beta", "[^x]+$", r"\Abeta", r"beta\Z", "a.b", r"(?s)alpha.*",
    )}  # fmt: skip
    assert found == snapshot(
        {
            "alpha$": "two:1: alpha",
            "alpha\\s+beta": "[no matches]",
            "[^x]+$": "two:1: alpha\ntwo:2: beta\ntwo:3: alpha end",
            "\\Abeta": "two:2: beta",
            "beta\\Z": "two:2: beta",
            "a.b": "[no matches]",
            "(?s)alpha.*": "two:1: alpha\ntwo:3: alpha end",
        }
    )


async def test_grep_skips_binary_files_and_shortens_long_lines_around_the_match(use: UseTool, ws: Path):
    (ws / "binary").write_bytes(b"needle\0needle")
    (ws / "long").write_text("x" * 5_000 + "needle" + "y" * 5_000)
    (ws / "colour").write_text("a \x1b[31mneedle\x1b[0m\n")
    found = (await use("grep", pattern="needle")).split("\n")
    assert found[0] == "colour:1: a needle"
    assert len(found) == 2
    assert found[1].startswith("long:1: …xxx")
    assert "xneedley" in found[1]
    assert len(found[1]) < 600


async def test_grep_stops_after_five_hundred_matches(use: UseTool, ws: Path):
    (ws / "many").write_text("hit\n" * 600)
    lines = (await use("grep", pattern="hit")).split("\n")
    assert len(lines) == 501
    assert lines[-1] == "[more than 500 matches: use a narrower pattern, path or glob]"


@pytest.mark.parametrize("pattern", ["(", "[a", "*x", "(?P<a>x)(?P<a", "", "x" * 1001, "(?<!a*b", "\\"])
async def test_grep_refuses_an_invalid_pattern_with_an_error_message(use: UseTool, pattern: str):
    with pytest.raises(Failed, match="The pattern"):
        await use("grep", pattern=pattern)


async def test_grep_stops_an_expression_with_catastrophic_backtracking_at_the_timeout(use: UseTool, ws: Path):
    (ws / "trap").write_text("a" * 5_000 + "!")
    search = GrepSearch(
        files=make_call(ws, read_scope(ws)).files,
        root=str(ws),
        pattern=r"(?:a|aa)+(?<!a)$",
        path="trap",
        matches_path=bool,
        timeout_s=0.2,
    )
    assert search.run() == "[stopped after 0.2 seconds: use a simpler pattern, or path and glob]"


@dataclass(frozen=True)
class ChangingFiles:
    """Files of which one vanishes before it is opened, in a folder with more files than the limit."""

    def read(self, path: str, *, max_bytes: int = 0) -> FileContent:
        if path.endswith("gone"):
            raise Failed("no such file")
        return FileContent(real_path=path, data=b"hit\n", size=9_000_000)

    def list(self, path: str) -> "list[FileEntry]":
        return [*self.walk(path)]

    def walk(self, path: str, *, limit: int = 0) -> Iterator[FileEntry]:
        yield FileEntry(path="gone", real_path="/ws/gone", kind="file")
        yield FileEntry(path="here", real_path="/ws/here", kind="file", size=9_000_000)
        yield FileEntry(path="", real_path="/ws", kind="cut")


async def test_search_tools_skip_vanished_files_and_report_when_they_hit_a_limit():
    """Shows: F20."""
    call = replace(make_call(Path("/ws"), Scope()), files=ChangingFiles())
    calls: list[tuple[str, dict[str, str]]] = [
        ("grep", {"pattern": "hit"}),
        ("glob", {"pattern": "h*"}),
        ("ls", {}),
    ]
    results = {name: await use_tool(built_in_tools()[name], call, **arguments) for name, arguments in calls}
    assert results == snapshot(
        {
            "grep": """\
here:1: hit
[only the first 8 MB of here were searched]
[too many files to search: choose a smaller folder with path]\
""",
            "glob": """\
here
[too many files to search: choose a smaller folder with path]\
""",
            "ls": """\
gone  0
here  9,000,000
[more entries exist; use glob with a pattern]\
""",
        }
    )


async def test_grep_stops_between_files_at_the_timeout(ws: Path):
    search = GrepSearch(
        files=make_call(ws, read_scope(ws)).files,
        root=str(ws),
        pattern="main",
        path=".",
        matches_path=bool,
        timeout_s=0,
    )
    assert search.run().endswith("[stopped after 0 seconds: use a simpler pattern, or path and glob]")


async def test_todo_returns_the_current_list(use: UseTool):
    items = ["look", {"text": "mend", "status": "in_progress"}, {"text": "tell", "status": "done"}]
    assert await use("todo", items=items) == "1. [ ] look\n2. [~] mend\n3. [x] tell"
    assert await use("todo", items=[]) == "[the list is empty]"


async def test_ask_user_returns_the_persons_answer(ws: Path):
    questions: list[tuple[str, list[str]]] = []

    async def answer_blue(question: str, options: Sequence[str]) -> str:
        questions.append((question, [*options]))
        return "blue"

    tool = built_in_tools()["ask_user"]
    answered = make_call(ws, read_scope(ws), answer_blue)
    assert await use_tool(tool, answered, question="Which?", options=["red", "blue"]) == "blue"
    assert await use_tool(tool, answered, question="Which?") == "blue"
    assert questions == [("Which?", ["red", "blue"]), ("Which?", [])]
    unanswered = make_call(ws, read_scope(ws))
    with pytest.raises(UserUnavailable):
        await use_tool(tool, unanswered, question="Which?")
    with pytest.raises(Failed, match="The question is empty"):
        await use_tool(tool, unanswered, question=" ")


def test_every_tool_schema_is_an_object_without_references():
    for tool in built_in_tools().values():
        text = json.dumps(tool.spec.schema)
        assert tool.spec.schema["type"] == "object"
        assert tool.spec.schema["additionalProperties"] is False
        assert "$ref" not in text
        assert "$defs" not in text
        assert all("description" in each for each in tool.spec.schema["properties"].values())


def test_the_parameters_of_the_built_in_tools_are_as_documented():
    parameters = {
        name: (sorted(tool.spec.schema["properties"]), tool.spec.schema["required"])
        for name, tool in built_in_tools().items()
    }
    assert parameters == snapshot(
        {
            "read": (["limit", "offset", "path"], ["path"]),
            "write": (["content", "path"], ["path", "content"]),
            "edit": (["all", "new", "old", "path"], ["path", "old", "new"]),
            "ls": (["path"], []),
            "glob": (["path", "pattern"], ["pattern"]),
            "grep": (["glob", "path", "pattern"], ["pattern"]),
            "bash": (["command", "timeout"], ["command"]),
            "todo": (["items"], ["items"]),
            "ask_user": (["options", "question"], ["question"]),
            "request_scope_expansion": (["reason", "resource", "tool"], ["tool", "resource", "reason"]),
            "submit_for_review": (["summary"], ["summary"]),
            "ask_for_help": (["message"], ["message"]),
            "llm_unreachable": (["reason"], ["reason"]),
            "approve": (["summary"], []),
            "request_changes": (["text"], ["text"]),
            "agent": (["agent_name", "persist", "task_prompt"], ["task_prompt"]),
            "agent_ask": (["agent_id", "message"], ["agent_id", "message"]),
            "explore": (["persist", "task_prompt"], ["task_prompt"]),
            "plan": (["persist", "task_prompt"], ["task_prompt"]),
            "PersistentAgent": (
                ["allowed_paths", "denied_paths", "description", "preset", "prompt"],
                ["preset", "description", "prompt"],
            ),
            "sessions_spawn": (
                ["cleanup", "label", "model", "task", "thinking", "timeoutSeconds"],
                ["task"],
            ),
            "sessions_list": (["limit"], []),
            "spawn_subagent": (
                ["agentId", "capability", "label", "prompt", "returnMode", "workspace"],
                ["agentId", "prompt"],
            ),
            "request_review": (["agentId", "base", "instructions", "returnMode"], []),
            "inbox": (["drain"], []),
            "interject": (["reason", "severity", "suggestion"], ["severity", "reason"]),
            "agents_message": (["agentId", "content", "mode", "session", "timeout"], ["agentId", "content"]),
            "agents_list": (["includeAll"], []),
        }
    )
