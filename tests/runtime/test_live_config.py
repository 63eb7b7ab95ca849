"""What the configuration denies counts from the moment it stands in the file, whichever file that is."""

import os
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from retinue.app.live_config import LiveConfig
from retinue.config.load import load_config

DENIED = '[deny]\ntools = ["{tool}"]\n'


def an_operator(folder: Path) -> LiveConfig:
    env = {"RETINUE_CONFIG": str(folder), "RETINUE_HOME": str(folder.parent / "home")}
    return LiveConfig(load_config(env), now=lambda: datetime.now(UTC))


def long_ago(folder: Path) -> None:
    """As if nobody had touched the folder for an hour."""
    then = time.time_ns() - 3600 * 10**9
    os.utime(folder, ns=(then, then))


@pytest.fixture(params=["a moment ago", "long ago"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    made = tmp_path / "config"
    made.mkdir()
    if request.param == "long ago":
        long_ago(made)
    return made


def test_a_file_that_was_not_there_counts_as_soon_as_it_is(folder: Path):
    operator = an_operator(folder)
    assert operator().deny_tools == ()
    (folder / "config.toml").write_text(DENIED.format(tool="ls"))
    assert operator().deny_tools == ("ls",)
    (folder / "config.toml").unlink()
    assert operator().deny_tools == ()


def test_a_file_that_is_changed_in_its_place_counts_as_it_stands(folder: Path):
    (folder / "config.toml").write_text(DENIED.format(tool="ls"))
    long_ago(folder)
    operator = an_operator(folder)
    assert operator().deny_tools == ("ls",)
    (folder / "config.toml").write_text(DENIED.format(tool="bash"))
    assert operator().deny_tools == ("bash",)


def test_a_folder_that_was_not_there_counts_as_soon_as_it_is(tmp_path: Path):
    folder = tmp_path / "config"
    operator = an_operator(folder)
    assert operator().deny_tools == ()
    folder.mkdir()
    assert operator().deny_tools == ()
    (folder / "config.toml").write_text(DENIED.format(tool="ls"))
    assert operator().deny_tools == ("ls",)


def test_what_could_not_be_looked_at_for_a_while_counts_again_afterwards(folder: Path):
    """A folder that nobody can look at is not one without a configuration."""
    (folder / "config.toml").write_text(DENIED.format(tool="ls"))
    long_ago(folder)
    operator = an_operator(folder)
    assert operator().deny_tools == ("ls",)
    away = folder.rename(folder.parent / "away")
    folder.symlink_to(folder)  # leads nowhere, for ever
    assert operator().deny_tools == ("ls",)
    folder.unlink()
    away.rename(folder)
    (folder / "config.toml").write_text(DENIED.format(tool="bash"))
    assert operator().deny_tools == ("bash",)
