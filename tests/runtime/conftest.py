"""The loop without a network: a played model and a forgetful ledger, on real folders, worked by the real engine."""

from pathlib import Path

import pytest
from runtime_fixture import RuntimeFixture


@pytest.fixture
def runtime(tmp_path: Path) -> RuntimeFixture:
    (tmp_path / "work").mkdir()
    return RuntimeFixture(tmp_path)
