"""The crash test checks the product, so it must not read files with the product's own code."""

import ast
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "src"
TORTURE = SOURCE / "retinue" / "torture"


def imported_modules(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    plain = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    return plain | {
        node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module
    }


def test_the_reader_of_the_crash_test_imports_nothing_of_the_product():
    own = {each for each in imported_modules(TORTURE / "home_reader.py") if each.startswith("retinue")}
    assert own == set()


def test_the_judges_of_the_crash_test_import_only_the_crash_test():
    for name in ("invariants.py", "injuries.py", "sync_order.py", "scenario.py", "random_kills.py"):
        own = {each for each in imported_modules(TORTURE / name) if each.startswith("retinue")}
        assert {each for each in own if not each.startswith("retinue.torture.")} == set(), name


def test_no_module_of_the_crash_test_imports_the_code_it_judges():
    judged = ("retinue.sessions", "retinue.ledger", "retinue.runtime", "retinue.storage", "retinue.worker")
    for path in TORTURE.glob("*.py"):
        assert not {each for each in imported_modules(path) if each.startswith(judged)}, path.name
