"""The keywords of `replace` calls are fields of some value: type checkers cannot see this."""

import ast
import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path

import retinue

PACKAGE = Path(retinue.__file__).parent
REPLACE_FUNCTIONS = {"replace", "structs.replace", "dataclasses.replace"}


def value_classes() -> Iterator[type]:
    for module in pkgutil.walk_packages(retinue.__path__, "retinue."):
        if module.name.rpartition(".")[2] != "__main__":
            members = vars(importlib.import_module(module.name)).values()
            yield from (each for each in members if isinstance(each, type))


def field_names(value_class: type) -> set[str]:
    """Return the fields of a struct or data class; the empty set for any other class."""
    return {
        name
        for attribute in ("__struct_fields__", "__dataclass_fields__")
        for name in getattr(value_class, attribute, ())
    }


def replace_keywords() -> Iterator[tuple[str, str]]:
    """Yield each keyword of each `replace` call with its place."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in REPLACE_FUNCTIONS:
                for keyword in node.keywords:
                    if keyword.arg is not None:
                        yield f"{path.relative_to(PACKAGE)}:{node.lineno}", keyword.arg


def test_replace_names_only_fields_that_exist():
    known = set[str]().union(*(field_names(each) for each in value_classes()))
    assert [(place, name) for place, name in replace_keywords() if name not in known] == []
