"""write and edit: what they change in a file, and the results that the model reads."""

import asyncio
import stat
from pathlib import Path
from typing import Any

import pytest
from inline_snapshot import snapshot
from msgspec.structs import replace
from tool_calls import UseTool, make_call, use_tool

from retinue.domain.io_results import WriteResult
from retinue.domain.permissions.scope import DEFAULT_DENIED_PATHS, DEFAULT_WRITABLE_PATHS, Scope
from retinue.domain.rules import subtree_pattern
from retinue.errors import Failed, OutOfScope
from retinue.interfaces import Call
from retinue.sandbox.files.guarded_files import GuardedFiles
from retinue.tools import edit as edit_tool
from retinue.tools.nearest_lines import nearest_lines_hint
from retinue.tools.registry import built_in_tools


def make_write_call(ws: Path) -> Call:
    patterns = (subtree_pattern(str(ws)), *DEFAULT_WRITABLE_PATHS)
    scope = Scope(
        read=patterns,
        write=patterns,
        deny=DEFAULT_DENIED_PATHS,
        root=str(ws),
        tmp_folder=str(ws.parent / "home/tmp/s1"),
    )
    return make_call(ws, scope)


@pytest.fixture
def ws(tmp_path: Path) -> Path:
    ws = tmp_path.resolve() / "ws"
    ws.mkdir()
    (ws / "app.py").write_text(
        "import os\n\n\ndef main():\n    return os.sep\n\n\ndef other():\n    return 1\n"
    )
    return ws


@pytest.fixture
def use(ws: Path) -> UseTool:
    async def use_built_in_tool(name: str, **arguments: Any) -> str:
        return await use_tool(built_in_tools()[name], make_write_call(ws), **arguments)

    return use_built_in_tool


async def test_write_creates_or_replaces_a_file_and_reports_which(use: UseTool, ws: Path):
    assert await use("write", path="src/new.py", content="a\nb\n") == "created src/new.py: 2 lines, 4 bytes"
    assert await use("write", path="src/new.py", content="a") == "replaced src/new.py: 1 line, 1 byte"
    assert await use("write", path="empty", content="") == "created empty: 0 lines, 0 bytes"
    assert await use("write", path="dos", content="é\r\n") == "created dos: 1 line, 4 bytes"
    assert (ws / "dos").read_bytes() == "é\r\n".encode()
    assert await use("write", path="/tmp/note", content="x\n") == "created /tmp/note: 1 line, 2 bytes"
    assert await use("read", path="/tmp/note") == "x\n"
    assert await use("ls", path="/tmp") == "note  2"


async def test_write_refuses_paths_outside_the_scope(use: UseTool, ws: Path):
    """Shows: F15, A085."""
    for path in (".env", ".git/hooks2", "../x", ".GIT/config"):
        with pytest.raises(OutOfScope):
            await use("write", path=path, content="MINE")
    assert [path.name for path in ws.iterdir()] == ["app.py"]


def test_write_and_edit_declare_their_access_and_resource():
    for name in ("write", "edit"):
        tool = built_in_tools()[name]
        assert (tool.access, str(tool.approval_requirement)) == ("write", "unless granted")
        assert tool.resource_of is not None
        assert tool.resource_of({"path": "a/b"}) == "a/b"


async def test_edit_replaces_the_only_match_and_shows_the_change(use: UseTool, ws: Path):
    (ws / "app.py").chmod(0o755)
    result = await use("edit", path="app.py", old="os.sep", new="os.name")
    assert result == snapshot(
        """\
edited app.py: 1 place
line 5:
-     return os.sep
+     return os.name\
"""
    )
    assert (ws / "app.py").read_text() == (
        "import os\n\n\ndef main():\n    return os.name\n\n\ndef other():\n    return 1\n"
    )
    assert stat.S_IMODE((ws / "app.py").stat().st_mode) == 0o755


async def test_edit_shows_added_and_removed_lines(use: UseTool, ws: Path):
    assert await use("edit", path="app.py", old="\n\ndef other():\n    return 1\n", new="") == snapshot(
        """\
edited app.py: 1 place
line 6:
-
-
- def other():
-     return 1\
"""
    )
    assert (ws / "app.py").read_text().endswith("return os.sep\n")
    assert await use("edit", path="app.py", old="import os\n", new="import os\nimport re\n") == snapshot(
        """\
edited app.py: 1 place
line 1:
- import os
+ import os
+ import re\
"""
    )


async def test_edit_of_a_repeated_text_names_the_lines_or_replaces_all_matches(use: UseTool, ws: Path):
    before = (ws / "app.py").read_text()
    with pytest.raises(Failed) as failed:
        await use("edit", path="app.py", old="return", new="yield")
    assert str(failed.value) == snapshot(
        "old occurs 2 times in app.py, at lines 5, 9. Include more of the surrounding lines, or set all=true. Nothing was changed."
    )
    assert (ws / "app.py").read_text() == before
    result = await use("edit", path="app.py", old="return", new="yield", all=True)
    assert result.startswith(
        "edited app.py: 2 places\nline 5:\n-     return os.sep\n+     yield os.sep\nline 9:"
    )
    assert (ws / "app.py").read_text() == before.replace("return", "yield")
    (ws / "aaa").write_text("aaa")
    with pytest.raises(Failed, match="old occurs 2 times in aaa, at lines 1, 1"):
        await use("edit", path="aaa", old="aa", new="b")
    (ws / "many").write_text("x\n" * 50)
    with pytest.raises(Failed, match=r"50 times in many, at lines 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, …\."):
        await use("edit", path="many", old="x", new="y")
    assert (await use("edit", path="many", old="x", new="y", all=True)).endswith("[and 47 more]")


async def test_edit_of_a_missing_text_shows_the_most_similar_lines(use: UseTool, ws: Path):
    with pytest.raises(Failed) as failed:
        await use("edit", path="app.py", old="def main():\n  return os.sep\n", new="x")
    assert str(failed.value) == snapshot(
        """\
old was not found in app.py. Nothing was changed. These lines differ only in whitespace:
4: def main():
5:     return os.sep\
"""
    )
    with pytest.raises(Failed) as failed:
        await use("edit", path="app.py", old="def mian():", new="x")
    assert str(failed.value).endswith("The most similar lines are:\n4: def main():")
    with pytest.raises(Failed, match="no line is similar to the first line of old"):
        await use("edit", path="app.py", old="@@@@ qqq", new="x")


def test_the_search_for_similar_lines_is_bounded_in_huge_texts():
    text = "\n".join(["x" * 10_000] * 6_000 + ["needle here"])
    assert nearest_lines_hint(text, "needle her").startswith(" These lines differ")
    assert (
        nearest_lines_hint(text, "noodle her")
        == " Read the file again: no line is similar to the first line of old."
    )
    assert nearest_lines_hint(text, "\n  \n") == ""


@pytest.mark.parametrize(
    ("before", "old", "new", "after"),
    [
        (b"one\r\ntwo\r\n", "one\ntwo", "1\n2", b"1\r\n2\r\n"),
        (b"one\r\ntwo\r\n", "one\r\ntwo", "1\r\n2", b"1\r\n2\r\n"),
        (b"one\r\ntwo\r\n", "two", "2\n3", b"one\r\n2\r\n3\r\n"),
        (b"one\r\ntwo", "two", "2\n3", b"one\r\n2\r\n3"),
        (b"one\ntwo\n", "one\r\ntwo", "1\r\n2", b"1\n2\n"),
        (b"one\ntwo\n", "two", "2\r\n3", b"one\n2\n3\n"),
        (b"a\nb\r\nc\n", "a", "1\n2", b"1\n2\nb\r\nc\n"),
        (b"a\nb\r\nc\n", "b", "1\n2", b"a\n1\r\n2\r\nc\n"),
        (b"\xef\xbb\xbfone\ntwo\n", "one", "1", b"\xef\xbb\xbf1\ntwo\n"),
        (b"no end", "end", "END", b"no END"),
        (b"only", "only", "a\r\nb", b"a\r\nb"),
        (b"a\n\xc3\xa9\n", "\u00e9", "e", b"a\ne\n"),
        (b"a[1].*\n", ".*", "\\1", b"a[1]\\1\n"),
        (b"cr\ronly\r", "only", "x", b"cr\rx\r"),
    ],
)
async def test_edit_keeps_line_endings_byte_order_mark_and_final_newline(
    use: UseTool, ws: Path, before: bytes, old: str, new: str, after: bytes
):
    (ws / "f").write_bytes(before)
    await use("edit", path="f", old=old, new=new)
    assert (ws / "f").read_bytes() == after


@pytest.mark.parametrize(
    ("data", "old", "new", "error"),
    [
        (b"text", "", "x", "old is empty"),
        (b"text", "x", "x", "old and new are the same"),
        (b"caf\xe9 x", "x", "y", r"f is not UTF-8 \(byte 3\)\. Nothing was changed"),
        (b"a\0b x", "x", "y", "f is not text. Nothing was changed"),
        (b"a\r\nb", "a\nb", "a\r\nb", "differ only in line endings"),
        (b"", "x", "y", "old was not found in f"),
    ],
)
async def test_a_refused_edit_leaves_the_file_unchanged(
    use: UseTool, ws: Path, data: bytes, old: str, new: str, error: str
):
    (ws / "f").write_bytes(data)
    with pytest.raises(Failed, match=error):
        await use("edit", path="f", old=old, new=new)
    assert (ws / "f").read_bytes() == data


async def test_edit_refuses_files_that_are_too_large_or_have_too_many_matches(use: UseTool, ws: Path):
    (ws / "big").write_bytes(b"x" * (edit_tool.MAX_FILE_BYTES + 1))
    with pytest.raises(Failed, match=r"big is 8\.0 MB\. Only files up to 8\.0 MB can be edited"):
        await use("edit", path="big", old="x", new="y")
    (ws / "many").write_bytes(b"x" * 20_000)
    with pytest.raises(Failed, match="more than 10,000 times"):
        await use("edit", path="many", old="x", new="y", all=True)
    with pytest.raises(Failed, match="no such file: none"):
        await use("edit", path="none", old="x", new="y")


async def test_edit_shortens_a_large_change_and_removes_escape_sequences(use: UseTool, ws: Path):
    (ws / "f").write_text("x\n")
    result = await use("edit", path="f", old="x", new="\x1b[31mred\n" + "y\n" * 500)
    assert "\x1b" not in result
    assert result.count("\n") < 20
    assert result.endswith("+ [489 more lines]")


async def test_concurrent_edits_of_one_file_are_all_applied(use: UseTool, ws: Path):
    (ws / "f").write_text("".join(f"<{number}>\n" for number in range(30)))
    await asyncio.gather(
        *(use("edit", path="f", old=f"<{number}>", new=f"[{number}]") for number in range(30))
    )
    assert (ws / "f").read_text() == "".join(f"[{number}]\n" for number in range(30))


class ConcurrentlyWrittenFiles(GuardedFiles, frozen=True):
    """Another program writes the file between the read and the write."""

    def write(self, path: str, data: bytes, *, expected: bytes | None = None) -> WriteResult:
        (Path(self.scope.root) / path).write_text("someone else's\n")
        return super().write(path, data, expected=expected)


async def test_edit_fails_if_another_program_changed_the_file_in_between(ws: Path):
    call = make_write_call(ws)
    assert isinstance(call.files, GuardedFiles)
    tool = built_in_tools()["edit"]
    with pytest.raises(Failed, match=r"app\.py was changed by another process"):
        await tool.function(
            {"path": "app.py", "old": "os.sep", "new": "x", "all": False},
            replace(call, files=ConcurrentlyWrittenFiles(call.files.scope)),
        )
    assert (ws / "app.py").read_text() == "someone else's\n"
