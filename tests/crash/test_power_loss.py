"""The power fails: whatever was not synced may be gone, and nothing that was acknowledged is."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]


@pytest.mark.timeout(600)
def test_whenever_the_power_fails_what_was_acknowledged_is_there_and_goes_on():
    """A run with a child, an effect and a later message is heard by strace, and every state that its syncs allow is made:
    in each, conversations and ledger hold all that was acknowledged. Some of them are opened and go on to their end.

    Shows: P09.
    """
    env = {**os.environ, "PYTHONPATH": str(TESTS / "harness")}
    words = [sys.executable, "-B", str(TESTS / "power"), "--states", "8", "--seeds", "2"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "8 of" in done.stdout
