"""Part of the attacks of `scripts/battery`, made through the real product and judged from outside the sandbox."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BATTERY = Path(__file__).resolve().parents[1] / "battery"


def run_battery(*args: str) -> dict[str, Any]:
    process = subprocess.run(
        [sys.executable, "-B", BATTERY, "--json", *args], capture_output=True, check=False
    )
    assert process.stdout, process.stderr.decode()
    return json.loads(process.stdout)


@pytest.mark.parametrize("part", ["1/4", "3/4"])
def test_no_attack_escapes_the_strict_sandbox(part: str):
    """Every second attack is made here; `scripts/battery` makes them all.

    Shows: S01, X10.
    """
    report = run_battery("--part", part)
    assert report["level"] == "strict"
    assert report["escaped"] == []
    assert report["failed_controls"] == []
    assert report["attacks"] >= 80
    assert report["controls_tried"] * 10 >= report["attacks"]


def test_the_same_attacks_succeed_without_a_sandbox():
    """An attack that never succeeds proves nothing. These attacks need no special rights.

    Shows: S01.
    """
    report = run_battery("--level", "none", "--only", "metadata outside", "--part", "1/2")
    assert report["level"] == "none"
    assert report["failed_controls"] == []
    assert 2 * report["escapes"] > report["attacks"]
