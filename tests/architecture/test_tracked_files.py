"""What the repository holds belongs to everybody: nothing of one machine, nothing about who made it."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SKIPPED = {".git", ".venv", ".demo", "__pycache__", "mutants", "node_modules", "build", "dist"}
MACHINE = re.compile(
    r"/[w]ork/(main|shared|briefs)|/[r]oot/\.(pyenv|cache|config)|/[o]pt/(pypi|wheels)"
    r"|\b[p]ypi\.org\b|\b[p]ythonhosted\.org\b|\b[n]pmjs\.(org|com)\b"
)
"""Spelt with a class of one letter, so that this file does not find itself."""
ORGANISATION = re.compile(
    r"\b(my brief|the briefs?|ACCEPTANCE\.md|FAULTS\.md|STYLE\.md|seed 00\d|the seeds?|seeds/)\b",
    re.IGNORECASE,
)
PRODUCT_TEXT = (
    "README.md",
    "CHANGELOG.md",
    "docs/",
    "src/retinue/cli/",
    "src/retinue/server/",
    "src/retinue/agents/builtin/",
    "src/retinue/errors.py",
)


def test_no_file_knows_the_machine_it_was_written_on_or_a_registry():
    assert _found(MACHINE, "") == []


def test_product_text_speaks_about_the_product():
    assert _found(ORGANISATION, PRODUCT_TEXT) == []


def test_the_map_and_the_front_page_stay_short():
    lines = {
        name: (ROOT / name).read_text(encoding="utf-8").count("\n") for name in ("AGENTS.md", "README.md")
    }
    assert lines["AGENTS.md"] <= 80
    assert lines["README.md"] <= 60


FIRST_QUESTIONS = (
    "## Question",
    "## Decision",
    "## What changes in the data",
    "## What it costs",
    "## How we would know it was wrong",
)
"""Sections of the decisions up to 0042, whose text is kept to the letter."""
QUESTIONS = ("## Context", "## Decision", "## Alternatives considered", "## Consequences")
HEADER = re.compile(
    r"# (?P<number>\d{4}) (?P<title>.+)\n\n"
    r"Status: (?P<status>accepted|(?:partly )?superseded by \[\d{4}\]\(.+)\n\n"
    r"Date: (?P<date>\d{4}-\d{2}-\d{2})\n"
)


def _decisions() -> list[Path]:
    return sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))


def test_each_decision_fits_on_a_page_and_answers_the_same_questions():
    decisions = _decisions()
    assert [path.name[:4] for path in decisions] == [
        f"{number:04}" for number in range(1, len(decisions) + 1)
    ]
    for path in decisions:
        text = path.read_text(encoding="utf-8")
        sections = tuple(line for line in text.splitlines() if line.startswith("## "))
        assert sections == (FIRST_QUESTIONS if path.name < "0043" else QUESTIONS), path.name
        assert text.count("\n") <= 90, path.name


def test_each_decision_has_a_status_and_a_date():
    decisions = _decisions()
    headers = {path.name: HEADER.match(path.read_text(encoding="utf-8")) for path in decisions}
    assert [name for name, header in headers.items() if not header or header["number"] != name[:4]] == []


def test_the_index_of_decisions_repeats_their_headers():
    index = (ROOT / "docs" / "decisions" / "README.md").read_text(encoding="utf-8").splitlines()
    rows = [
        f"| {header['number']} | [{header['title']}]({path.name}) | {header['status']} | {header['date']} |"
        for path in _decisions()
        if (header := HEADER.match(path.read_text(encoding="utf-8")))
    ]
    assert [line for line in index if line[:3] == "| 0"] == rows


def _found(pattern: re.Pattern[str], only: str | tuple[str, ...]) -> list[str]:
    return [
        f"{name}:{number}: {line.strip()[:120]}"
        for name in _tracked()
        if name.startswith(only)
        for number, line in enumerate(
            (ROOT / name).read_text(encoding="utf-8", errors="replace").splitlines(), start=1
        )
        if pattern.search(line)
    ]


def _tracked() -> list[str]:
    """What git tracks; in an archive without git, every file that is not made by our own commands."""
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    names = (
        done.stdout.splitlines()
        if done.returncode == 0
        else [str(path.relative_to(ROOT)) for path in ROOT.rglob("*")]
    )
    return [name for name in names if not SKIPPED & set(Path(name).parts) and (ROOT / name).is_file()]
