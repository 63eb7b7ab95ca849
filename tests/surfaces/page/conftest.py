"""The page as people have it: a real browser, a real daemon on a home of its own, and a scripted model before it."""

import shutil
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from page_fixture import OpenPageDaemon, PageDaemon, prepare_page_daemon
from playwright.async_api import (
    Browser,
    async_playwright,
)

CHROMIUM = shutil.which("chromium-headless-shell")


@pytest.fixture(scope="session")
async def browser(anyio_backend: str) -> AsyncGenerator[Browser]:
    """One browser for all tests of a worker; each page has a context of its own."""
    async with async_playwright() as player:
        launched = await player.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        await launched.close()


@pytest.fixture(scope="module")
async def daemon(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[PageDaemon]:
    """One daemon for a file of tests that do not disturb each other: each has sessions and tasks of its own."""
    async with prepare_page_daemon(tmp_path_factory.mktemp("house"), browser) as found:
        await found.start()
        yield found
        assert not [line for line in found.stderr_lines if "Traceback" in line], "".join(found.stderr_lines)


@pytest.fixture(scope="module")
def module_daemon(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> OpenPageDaemon:
    """A house for a file of tests that wants its own settings."""
    return lambda: prepare_page_daemon(tmp_path_factory.mktemp("house"), browser)


@pytest.fixture
def own_daemon(browser: Browser, tmp_path: Path) -> OpenPageDaemon:
    """A house of this test only: furnish it, start it, kill it."""
    return lambda: prepare_page_daemon(tmp_path, browser)
