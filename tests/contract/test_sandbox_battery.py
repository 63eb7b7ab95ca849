"""A share of the battery of attacks, through the real product: what held it is looked at from outside."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BATTERY = Path(__file__).resolve().parents[1] / "battery"


def fired(*words: str) -> Any:
    done = subprocess.run([sys.executable, "-B", BATTERY, "--json", *words], capture_output=True, check=False)
    assert done.stdout, done.stderr.decode()
    return json.loads(done.stdout)


@pytest.mark.parametrize("part", ["1/4", "3/4"])
def test_nothing_that_a_model_asks_its_tools_for_leads_out(part: str):
    """Every second attack; `scripts/battery` makes them all.

    Shows: S01, X10.
    """
    report = fired("--part", part)
    assert report["level"] == "strict"
    assert report["escaped"] == []
    assert report["failed_controls"] == []
    assert report["attacks"] >= 80
    assert report["controls_tried"] * 10 >= report["attacks"]


def test_the_same_attacks_work_where_nothing_holds_them():
    """An attack that never works shows nothing. These are some that any user can make.

    Shows: S01.
    """
    report = fired("--level", "none", "--only", "metadata outside", "--part", "1/2")
    assert report["level"] == "none"
    assert report["failed_controls"] == []
    assert 2 * report["escapes"] > report["attacks"]
