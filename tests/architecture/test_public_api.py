"""The names other programs may import: few, and none comes or goes unnoticed."""

import ast
import importlib
from pathlib import Path

import retinue

MOST_NAMES = 25
PROMISE = [
    "App",
    "Call",
    "Cancelled",
    "Event",
    "Failed",
    "Message",
    "NotFound",
    "Notice",
    "Refused",
    "RetinueError",
    "Run",
    "RunOptions",
    "Session",
    "SpawnOptions",
    "Status",
    "TimedOut",
    "Tool",
    "ToolCall",
    "ToolResult",
    "__version__",
    "open",
    "run",
    "tool",
]


def test_the_promise_is_kept_name_by_name():
    assert sorted(vars(retinue)["__all__"]) == PROMISE
    assert len(PROMISE) <= MOST_NAMES


def test_every_promised_name_is_there_when_asked_for():
    assert [name for name in PROMISE if getattr(importlib.import_module("retinue"), name) is None] == []


def test_type_checkers_are_promised_the_same_names():
    stub = Path(retinue.__file__).with_suffix(".pyi")
    tree = ast.parse(stub.read_text(encoding="utf-8"))
    imported = {
        name.asname or name.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for name in node.names
    }
    declared = {ast.unparse(node.target) for node in tree.body if isinstance(node, ast.AnnAssign)}
    assert {name for name in PROMISE if name not in imported | declared} == set()


def test_dir_lists_the_public_names_and_nothing_else():
    assert dir(retinue) == sorted(PROMISE)
