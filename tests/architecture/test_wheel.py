"""What somebody gets who installs a package instead of cloning the repository."""

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
    """What a package is built from, without the page."""
    place = tmp_path / "clone"
    shutil.copytree(
        ROOT / "src", place / "src", ignore=shutil.ignore_patterns("__pycache__", "static", "*.egg-info")
    )
    shutil.copytree(ROOT / "bench", place / "bench", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE", ".gitignore", "scripts/carry_page.py"):
        (place / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, place / name)
    return place


def test_a_wheel_carries_the_page_although_git_does_not_and_no_benchmark(clone: Path):
    (clone / STATIC).mkdir()
    for name in PAGE:
        (clone / STATIC / name).write_text(f"this is {name}")

    done = _build(clone)

    assert done.returncode == 0, done.stderr
    (wheel,) = (clone / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as files:
        carried = {name: files.read(f"retinue/server/static/{name}").decode() for name in PAGE}
        folders = {name.partition("/")[0] for name in files.namelist()}
    assert carried == {name: f"this is {name}" for name in PAGE}
    assert {name for name in folders if not name.endswith(".dist-info")} == {"retinue"}


def test_a_wheel_without_the_page_is_not_built_and_says_what_to_run(clone: Path):
    done = _build(clone)

    assert done.returncode == 1
    assert done.stderr.strip() == (
        "The page is not bundled (src/retinue/server/static lacks index.html, app.js, app.css, licences.txt): "
        "run scripts/page, then build again."
    )
    assert list(clone.rglob("*.whl")) == []


def test_the_lock_of_the_page_names_digests_and_no_address():
    text = (ROOT / "web" / "package-lock.json").read_text(encoding="utf-8")

    assert '"integrity": "sha512-' in text
    assert "://" not in text
    assert '"resolved"' not in text


def _build(place: Path) -> subprocess.CompletedProcess[str]:
    """With what is installed here: nothing is fetched."""
    return subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel"],
        cwd=place,
        capture_output=True,
        text=True,
        check=False,
    )
