"""Tracked files name no machine, registry or internal document; short files stay short; decisions have one form."""

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


def test_no_file_names_a_development_machine_or_a_package_registry():
    assert _matching_lines(MACHINE, "") == []


def test_product_text_names_no_internal_document():
    assert _matching_lines(ORGANISATION, PRODUCT_TEXT) == []


def test_agents_md_and_the_readme_stay_short():
    lines = {
        name: (ROOT / name).read_text(encoding="utf-8").count("\n") for name in ("AGENTS.md", "README.md")
    }
    assert lines["AGENTS.md"] <= 80
    assert lines["README.md"] <= 60


FIRST_SECTIONS = (
    "## Question",
    "## Decision",
    "## What changes in the data",
    "## What it costs",
    "## How we would know it was wrong",
)
"""Sections of the decisions up to 0042, whose text is never edited."""
SECTIONS = ("## Context", "## Decision", "## Alternatives considered", "## Consequences")
HEADER = re.compile(
    r"# (?P<number>\d{4}) (?P<title>.+)\n\n"
    r"Status: (?P<status>accepted|(?:partly )?superseded by \[\d{4}\]\(.+)\n\n"
    r"Date: (?P<date>\d{4}-\d{2}-\d{2})\n"
)


def _decisions() -> list[Path]:
    return sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))


def test_each_decision_fits_on_a_page_and_has_the_same_sections():
    decisions = _decisions()
    assert [path.name[:4] for path in decisions] == [
        f"{number:04}" for number in range(1, len(decisions) + 1)
    ]
    for path in decisions:
        text = path.read_text(encoding="utf-8")
        sections = tuple(line for line in text.splitlines() if line.startswith("## "))
        assert sections == (FIRST_SECTIONS if path.name < "0043" else SECTIONS), path.name
        assert text.count("\n") <= 90, path.name


def test_each_decision_has_a_status_and_a_date():
    decisions = _decisions()
    headers = {path.name: HEADER.match(path.read_text(encoding="utf-8")) for path in decisions}
    assert [name for name, header in headers.items() if not header or header["number"] != name[:4]] == []


def test_the_index_of_decisions_matches_their_headers():
    index = (ROOT / "docs" / "decisions" / "README.md").read_text(encoding="utf-8").splitlines()
    rows = [
        f"| {header['number']} | [{header['title']}]({path.name}) | {header['status']} | {header['date']} |"
        for path in _decisions()
        if (header := HEADER.match(path.read_text(encoding="utf-8")))
    ]
    assert [line for line in index if line[:3] == "| 0"] == rows


def _matching_lines(pattern: re.Pattern[str], only: str | tuple[str, ...]) -> list[str]:
    return [
        f"{name}:{number}: {line.strip()[:120]}"
        for name in _tracked_files()
        if name.startswith(only)
        for number, line in enumerate(
            (ROOT / name).read_text(encoding="utf-8", errors="replace").splitlines(), start=1
        )
        if pattern.search(line)
    ]


def _tracked_files() -> list[str]:
    """Return the files that git tracks; without git, every file outside the folders that our commands create."""
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    names = (
        done.stdout.splitlines()
        if done.returncode == 0
        else [str(path.relative_to(ROOT)) for path in ROOT.rglob("*")]
    )
    return [name for name in names if not SKIPPED & set(Path(name).parts) and (ROOT / name).is_file()]
