"""The names that other programs may import: a short, fixed list."""

import ast
import importlib
from pathlib import Path

import retinue

MAX_NAMES = 25
PUBLIC_NAMES = [
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
    "UsageError",
    "__version__",
    "open",
    "run",
    "tool",
]


def test_the_package_exports_exactly_the_public_names():
    assert sorted(vars(retinue)["__all__"]) == PUBLIC_NAMES
    assert len(PUBLIC_NAMES) <= MAX_NAMES


def test_every_public_name_can_be_imported():
    assert [name for name in PUBLIC_NAMES if getattr(importlib.import_module("retinue"), name) is None] == []


def test_the_type_stub_declares_every_public_name():
    stub = Path(retinue.__file__).with_suffix(".pyi")
    tree = ast.parse(stub.read_text(encoding="utf-8"))
    imported = {
        name.asname or name.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for name in node.names
    }
    declared = {ast.unparse(node.target) for node in tree.body if isinstance(node, ast.AnnAssign)}
    assert {name for name in PUBLIC_NAMES if name not in imported | declared} == set()


def test_dir_lists_the_public_names_and_nothing_else():
    assert dir(retinue) == sorted(PUBLIC_NAMES)
