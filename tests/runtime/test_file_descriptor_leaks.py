"""What a run opens it closes: a thousand of them leave no more open than a hundred."""

import asyncio
import json
from collections.abc import Generator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

import retinue
from retinue.config.load import load_config


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture
def home() -> Generator[str]:
    """In memory: a thousand runs wait for a disk a few thousand times, and that is not looked at here."""
    with TemporaryDirectory(dir="/dev/shm") as folder:
        yield folder


async def test_a_thousand_runs_leave_no_more_open_than_a_hundred(home: str, tmp_path: Path):
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
        seen: list[int] = []
        for _ in range(10):
            ended = await asyncio.gather(*(app.run("Read it.", workspace=tmp_path) for _ in range(100)))
            assert {run.text for run in ended} == {"Done."}
            seen.append(open_files())
    assert seen == [seen[0]] * 10
