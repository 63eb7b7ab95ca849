"""Fixtures of the crash tests."""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from retinue.sessions.store import FileStore
from retinue.testing.fixed_clock import fixed_clock


@pytest.fixture
async def store(tmp_path: Path) -> AsyncGenerator[FileStore]:
    store = FileStore(tmp_path / "sessions", fixed_clock())
    yield store
    store.close()
