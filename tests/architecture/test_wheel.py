"""The contents of a built wheel."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
STATIC = Path("src/retinue/server/static")
PAGE = ("app.css", "app.js", "index.html", "licences.txt")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A copy of the files that a wheel is built from, without the bundled page."""
    folder = tmp_path / "clone"
    shutil.copytree(
        ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__", "static", "*.egg-info")
    )
    shutil.copytree(ROOT / "bench", folder / "bench", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE", ".gitignore", "scripts/page_build_hook.py"):
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    return folder


def test_a_wheel_contains_the_untracked_page_and_no_benchmark(clone: Path):
    (clone / STATIC).mkdir()
    for name in PAGE:
        (clone / STATIC / name).write_text(f"this is {name}")

    done = _build(clone)

    assert done.returncode == 0, done.stderr
    (wheel,) = (clone / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as files:
        packaged = {name: files.read(f"retinue/server/static/{name}").decode() for name in PAGE}
        folders = {name.partition("/")[0] for name in files.namelist()}
    assert packaged == {name: f"this is {name}" for name in PAGE}
    assert {name for name in folders if not name.endswith(".dist-info")} == {"retinue"}


def test_building_without_the_page_fails_and_reports_what_to_run(clone: Path):
    done = _build(clone)

    assert done.returncode == 1
    assert done.stderr.strip() == (
        "The page is not bundled: index.html, app.js, app.css, licences.txt missing in src/retinue/server/static. "
        "Run scripts/page, then build again."
    )
    assert list(clone.rglob("*.whl")) == []


def test_the_npm_lock_file_has_digests_and_no_urls():
    text = (ROOT / "web" / "package-lock.json").read_text(encoding="utf-8")

    assert '"integrity": "sha512-' in text
    assert "://" not in text
    assert '"resolved"' not in text


def _build(folder: Path) -> subprocess.CompletedProcess[str]:
    """Build a wheel with the installed hatchling, without network access."""
    return subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
