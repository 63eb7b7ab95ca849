"""A home that is forgotten: where it is while it lasts, and that nothing of it stays."""

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


@pytest.mark.parametrize("said", [True, False])
def test_what_is_forgotten_is_kept_in_memory_unless_a_person_says_where(tmp_path: Path, said: bool):
    env = {name: word for name, word in os.environ.items() if name != "TMPDIR"}
    env |= {"TMPDIR": str(tmp_path)} if said else {}
    shown = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=env, check=True, capture_output=True, text=True
    )
    home, mode = shown.stdout.split()
    free = os.statvfs(MEMORY_DIR)
    in_memory = not said and free.f_bavail * free.f_frsize >= MIN_FREE_BYTES
    assert (Path(home).is_relative_to(MEMORY_DIR), Path(home).parent == tmp_path) == (in_memory, said)
    assert (mode, Path(home).exists()) == ("0o700", False)
