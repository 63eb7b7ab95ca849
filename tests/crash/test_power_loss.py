"""Power failure: unsynced data may be lost, acknowledged data never."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]


@pytest.mark.timeout(600)
def test_acknowledged_data_survives_a_power_failure_at_any_moment():
    """strace records a run with a child, a side effect and a later message, and every disk state its syncs allow is built.

    In each state the conversations and the ledger contain everything acknowledged. Some states are opened and resumed.

    Shows: P09.
    """
    env = {**os.environ, "PYTHONPATH": str(TESTS / "harness")}
    command = [sys.executable, "-B", str(TESTS / "power"), "--states", "8", "--seeds", "2"]
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "8 of" in result.stdout
