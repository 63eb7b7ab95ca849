"""scripts/coverage_rows lists which test shows which requirement, and refuses malformed `Shows:` lines."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "coverage_rows"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository with the script, two requirements and one test."""
    for folder in ("scripts", "tests/stories"):
        (tmp_path / folder).mkdir(parents=True)
    shutil.copy(SCRIPT, tmp_path / "scripts")
    (tmp_path / "tests/stories/rows.txt").write_text("# rows\nA001 M the first\nP01 X a crash\n")
    write_test(tmp_path, "It is so.\n\n    Shows: A001.\n    ")
    return tmp_path


def write_test(tree: Path, docstring: str) -> None:
    (tree / "tests/test_one.py").write_text(f'def test_it():\n    """{docstring}"""\n')


def run(tree: Path, *arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "scripts/coverage_rows", *arguments],
        cwd=tree,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stderr


def test_a_requirement_is_listed_with_its_tests_and_the_others_as_missing(tree: Path):
    assert run(tree)[0] == 0
    table = (tree / "tests/stories/COVERAGE.md").read_text()
    assert "| A001 | the first | `test_one.py::test_it` |" in table
    assert "- Persistence and crashes: P01" in table
    assert "1 of 2 rows" in table


def test_a_missing_or_outdated_table_fails_the_check(tree: Path):
    assert run(tree, "--check")[0] == 1
    run(tree)
    assert run(tree, "--check") == (0, "")
    write_test(tree, "It is so.\n\n    Shows: A001, P01.\n    ")
    assert run(tree, "--check")[0] == 1


@pytest.mark.parametrize(
    ("docstring", "message"),
    [
        ("It is so.\n\n    Shows: A002.\n    ", "A002, which is not in"),
        ("It is so.\n\n    Shows: A001\n    ", "must end with a line like"),
        ("It is so. Shows: A001.", "must end with a line like"),
        ("Shows: A001.\n\n    And more.\n    ", "must end with a line like"),
    ],
)
def test_a_malformed_shows_line_is_an_error(tree: Path, docstring: str, message: str):
    write_test(tree, docstring)
    code, stderr = run(tree)
    assert code == 1
    assert message in stderr
