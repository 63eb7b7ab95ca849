"""The page in a real browser, with a real daemon on a home of its own and a scripted model."""

import shutil
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from page_fixture import OpenPageDaemon, PageDaemon, prepare_page_daemon
from playwright.async_api import Browser, async_playwright

CHROMIUM = shutil.which("chromium-headless-shell")


@pytest.fixture(scope="session")
async def browser(anyio_backend: str) -> AsyncGenerator[Browser]:
    """One browser for all tests of a worker; each page has its own context."""
    async with async_playwright() as playwright:
        browser_process = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser_process
        await browser_process.close()


@pytest.fixture(scope="module")
async def daemon(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[PageDaemon]:
    """One daemon for a module whose tests do not disturb each other: each has its own sessions and tasks."""
    async with prepare_page_daemon(tmp_path_factory.mktemp("daemon"), browser) as daemon_process:
        await daemon_process.start()
        yield daemon_process
        assert not [line for line in daemon_process.stderr_lines if "Traceback" in line], "".join(
            daemon_process.stderr_lines
        )


@pytest.fixture(scope="module")
def module_daemon(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> OpenPageDaemon:
    """A daemon for a module that needs its own settings."""
    return lambda: prepare_page_daemon(tmp_path_factory.mktemp("daemon"), browser)


@pytest.fixture
def own_daemon(browser: Browser, tmp_path: Path) -> OpenPageDaemon:
    """A daemon for one test, which configures, starts and kills it."""
    return lambda: prepare_page_daemon(tmp_path, browser)
