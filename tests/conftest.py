"""What every test may lean on: one event loop, and an environment that holds nothing of this machine's user."""

import os
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

FOREIGN = ("RETINUE_", "OPENAI_", "ANTHROPIC_")
KEPT = ("PATH", "LANG", "LC_ALL", "TMPDIR", "COVERAGE_PROCESS_START")

# No test may reach a real model or a real home because the person who runs it has them set.
for _name in [name for name in os.environ if name.startswith(FOREIGN)]:
    del os.environ[_name]


# A busy machine is not a failing test; where a build must say the same twice, so do the examples.
settings.register_profile(
    "retinue",
    deadline=None,
    derandomize="CI" in os.environ,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("retinue")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def isolated_env(tmp_path: Path) -> dict[str, str]:
    """An environment for a process of ours: its home, data and configuration are this test's own, and empty."""
    folders = {"HOME": "user", "RETINUE_HOME": "home", "RETINUE_CONFIG": "config"}
    for folder in folders.values():
        (tmp_path / folder).mkdir(mode=0o700, exist_ok=True)
    kept = {name: os.environ[name] for name in KEPT if name in os.environ}
    kept["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), kept.get("PATH", os.defpath)))
    return kept | {name: str(tmp_path / folder) for name, folder in folders.items()}
