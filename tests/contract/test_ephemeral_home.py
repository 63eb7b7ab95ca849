"""The ephemeral home: where it is created, and that nothing of it stays."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from retinue.app.ephemeral_home import MEMORY_DIR, MIN_FREE_BYTES

PROGRAM = """
from retinue.app.ephemeral_home import ephemeral_home

with ephemeral_home() as home:
    (home / "sessions").mkdir()
    (home / "sessions" / "words").touch()
    print(home, oct(home.stat().st_mode & 0o777))
"""


@pytest.mark.parametrize("has_tmpdir", [True, False])
def test_an_ephemeral_home_is_in_memory_unless_tmpdir_is_set(tmp_path: Path, has_tmpdir: bool):
    env = {name: word for name, word in os.environ.items() if name != "TMPDIR"}
    env |= {"TMPDIR": str(tmp_path)} if has_tmpdir else {}
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=env, check=True, capture_output=True, text=True
    )
    home, mode = result.stdout.split()
    free = os.statvfs(MEMORY_DIR)
    in_memory = not has_tmpdir and free.f_bavail * free.f_frsize >= MIN_FREE_BYTES
    assert (Path(home).is_relative_to(MEMORY_DIR), Path(home).parent == tmp_path) == (in_memory, has_tmpdir)
    assert (mode, Path(home).exists()) == ("0o700", False)
