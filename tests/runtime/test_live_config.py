"""Denials in the configuration apply as soon as they are written, in whichever file."""

import os
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from msgspec.structs import replace

from retinue.app.live_config import LiveConfig
from retinue.config.load import load_config

DENIED = '[deny]\ntools = ["{tool}"]\n'


def make_live_config(folder: Path, *, approvals: str | None = None) -> LiveConfig:
    env = {"RETINUE_CONFIG": str(folder), "RETINUE_HOME": str(folder.parent / "home")}
    config = load_config(env)
    if approvals is not None:
        config = replace(config, approvals=approvals, has_own_approvals=True)
    return LiveConfig(config, now=lambda: datetime.now(UTC))


def set_old_mtime(folder: Path) -> None:
    """Set the modification time of a folder to an hour ago."""
    mtime = time.time_ns() - 3600 * 10**9
    os.utime(folder, ns=(mtime, mtime))


@pytest.fixture(params=["new folder", "old folder"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    created = tmp_path / "config"
    created.mkdir()
    if request.param == "old folder":
        set_old_mtime(created)
    return created


def test_a_new_configuration_file_applies_at_once(folder: Path):
    config = make_live_config(folder)
    assert config().deny_tools == ()
    (folder / "config.toml").write_text(DENIED.format(tool="ls"))
    assert config().deny_tools == ("ls",)
    (folder / "config.toml").unlink()
    assert config().deny_tools == ()


def test_a_change_of_the_configuration_file_applies_at_once(folder: Path):
    (folder / "config.toml").write_text(DENIED.format(tool="ls"))
    set_old_mtime(folder)
    config = make_live_config(folder)
    assert config().deny_tools == ("ls",)
    (folder / "config.toml").write_text(DENIED.format(tool="bash"))
    assert config().deny_tools == ("bash",)


def test_the_approval_policy_follows_the_file_unless_the_program_chose_it(folder: Path):
    (folder / "config.toml").write_text('approvals = "auto"\n')
    config, chosen = make_live_config(folder), make_live_config(folder, approvals="ask")
    assert (config.approval_policy(), chosen.approval_policy()) == ("auto", "ask")
    (folder / "config.toml").write_text('approvals = "deny"\n')
    assert (config.approval_policy(), chosen.approval_policy()) == ("deny", "ask")


def test_a_configuration_in_a_new_folder_applies_at_once(tmp_path: Path):
    folder = tmp_path / "config"
    config = make_live_config(folder)
    assert config().deny_tools == ()
    folder.mkdir()
    assert config().deny_tools == ()
    (folder / "config.toml").write_text(DENIED.format(tool="ls"))
    assert config().deny_tools == ("ls",)


def test_a_configuration_that_was_unreadable_for_a_while_is_read_again_afterwards(folder: Path):
    """An unreadable folder keeps the last configuration in force."""
    (folder / "config.toml").write_text(DENIED.format(tool="ls"))
    set_old_mtime(folder)
    config = make_live_config(folder)
    assert config().deny_tools == ("ls",)
    moved = folder.rename(folder.parent / "away")
    folder.symlink_to(folder)  # an endless loop of links
    assert config().deny_tools == ("ls",)
    folder.unlink()
    moved.rename(folder)
    (folder / "config.toml").write_text(DENIED.format(tool="bash"))
    assert config().deny_tools == ("bash",)
