"""Runtime fixture without a network: scripted provider and in-memory ledger, with real session folders and the real worker."""

from pathlib import Path

import pytest
from runtime_fixture import RuntimeFixture


@pytest.fixture
def runtime(tmp_path: Path) -> RuntimeFixture:
    (tmp_path / "work").mkdir()
    return RuntimeFixture(tmp_path)
