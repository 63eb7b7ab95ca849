"""Runs leak no file descriptors."""

import asyncio
import json
from collections.abc import Generator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

import retinue
from retinue.config.load import load_config


def count_open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture
def home() -> Generator[str]:
    """Create a home in memory, because a thousand runs sync to disk thousands of times."""
    with TemporaryDirectory(dir="/dev/shm") as folder:
        yield folder


async def test_a_thousand_runs_leave_as_many_open_files_as_a_hundred(home: str, tmp_path: Path):
    """Shows: K13."""
    script = tmp_path / "script.json"
    script.write_text(json.dumps([{"tools": [{"name": "read", "args": {"path": "a.txt"}}]}, "Done."]))
    (tmp_path / "a.txt").write_text("a")
    config = load_config(
        {
            "RETINUE_HOME": home,
            "RETINUE_CONFIG": str(tmp_path / "config"),
            "RETINUE_MODEL": f"scripted:{script}",
        }
    )
    async with retinue.open(config=config) as app:
        open_counts: list[int] = []
        for _ in range(10):
            ended = await asyncio.gather(*(app.run("Read it.", workspace=tmp_path) for _ in range(100)))
            assert {run.text for run in ended} == {"Done."}
            open_counts.append(count_open_files())
    assert open_counts == [open_counts[0]] * 10
