"""The command line as a real process with a scripted model, on pipes or on a terminal."""

import json
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TypeVar

import pytest
from cli_fixture import CliFixture, WaitUntil
from hold_tool import HOLD_TOOL
from terminal import TIMEOUT_S, TerminalEmulator

T = TypeVar("T")


@pytest.fixture(scope="session")
def terminal_emulator() -> type[TerminalEmulator]:
    """The class that shows what a terminal of a given size displays."""
    return TerminalEmulator


@pytest.fixture
def cli(isolated_env: dict[str, str], tmp_path: Path) -> Generator[CliFixture]:
    folder = tmp_path / "work"
    folder.mkdir()
    fixture = CliFixture(env=isolated_env, folder=folder)
    yield fixture
    fixture.close()


@pytest.fixture
def gated_cli(cli: CliFixture) -> CliFixture:
    """Approvals are automatic, and the tool `hold` waits as long as a test wants."""
    (cli.folder / "held.py").write_text(HOLD_TOOL)
    (cli.folder / "gate").touch()
    agents = Path(cli.env["RETINUE_CONFIG"]) / "agents"
    agents.mkdir()
    (agents / "researcher.md").write_text("---\nname: researcher\ntools: [hold]\n---\nYou look.\n")
    settings = {"tools": ["held:hold"], "approvals": "auto"}
    (Path(cli.env["RETINUE_CONFIG"]) / "config.json").write_text(json.dumps(settings))
    cli.env["PYTHONPATH"] = str(cli.folder)
    return cli


@pytest.fixture
def wait_until() -> WaitUntil:
    """Poll until the answer is true."""

    def poll(question: Callable[[], T | None]) -> T:
        deadline = time.monotonic() + TIMEOUT_S
        while not (answer := question()):
            assert time.monotonic() < deadline, "the condition did not become true in time"
            time.sleep(0.05)
        return answer

    return poll
