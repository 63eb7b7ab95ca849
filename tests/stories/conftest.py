"""Retinue as its users have it: the command or `retinue.open()`, with a model server that records requests."""

from pathlib import Path

import pytest
from user_machine import UserMachine


@pytest.fixture
def machine(isolated_env: dict[str, str], tmp_path: Path) -> UserMachine:
    folder = tmp_path / "work"
    folder.mkdir()
    return UserMachine(env=isolated_env, folder=folder)
