"""A real browser on a real daemon with a home of its own and a scripted model."""

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from commands import RETINUE, start_process
from playwright.async_api import (
    Browser,
    ConsoleMessage,
    Dialog,
    Locator,
    Page,
    Request,
    expect,
)

from retinue.testing.fake_model_server import CapturedRequest, FakeModelServer
from retinue.testing.replies import FakeResponse, http_error

TIMEOUT_S = 60.0
INHERITED_VARIABLES = ("PATH", "LANG", "LC_ALL", "TMPDIR", "COVERAGE_PROCESS_START")
TOOLS_SOURCE = '''
import asyncio, os
from retinue import tool

@tool(effect="read")
async def hold(name: str) -> str:
    """Holds until the file of this name is gone."""
    while os.path.exists(name):
        await asyncio.sleep(0.01)
    return "held"

@tool(effect="read")
async def tell(name: str) -> str:
    """Tells what the file of this name says."""
    with open(name, encoding="utf-8") as file:
        return file.read()
'''
RECORD_SCRIPT_CALLS = """
window.ran = [];
for (const name of ["alert", "confirm", "prompt", "print"]) window[name] = () => window.ran.push(name);
document.addEventListener("securitypolicyviolation", (event) => window.ran.push("policy " + event.blockedURI));
"""
"""Runs before the page: what hostile words would do is written down, and nothing of the page's own does any of it."""

ScriptedAnswer = FakeResponse | Callable[[CapturedRequest], Awaitable[FakeResponse]]

expect.set_options(timeout=TIMEOUT_S * 500)


@dataclass(slots=True, kw_only=True)
class BrowserPage:
    """One page in its own browser context. Faults and requests are recorded, and checked when the page is closed."""

    page: Page
    base: str
    requests: list[Request] = field(default_factory=list[Request])
    errors: list[str] = field(default_factory=list[str])

    def __call__(self, name: str, **attributes: str) -> Locator:
        """Everything with this data-test name, and with these other data attributes."""
        more = "".join(f'[data-{key}="{value}"]' for key, value in attributes.items())
        return self.page.locator(f'[data-test="{name}"]{more}')

    def expect(self, what: str | Locator, **attributes: str):
        """What becomes true of something, sooner or later."""
        return expect(self(what, **attributes) if isinstance(what, str) else what)

    def record_events(self) -> None:
        # Functions, for the library writes on what it is given.
        self.page.on("request", lambda request: self.requests.append(request))  # noqa: PLW0108
        self.page.on("pageerror", lambda error: self.errors.append(f"error: {error}"))
        self.page.on("console", lambda message: self._on_console(message))  # noqa: PLW0108
        self.page.on("dialog", lambda dialog: self._on_dialog(dialog))  # noqa: PLW0108

    def _on_console(self, message: ConsoleMessage) -> None:
        # A refused or unanswered request is told of by the browser itself; the page shows it in its own words.
        if message.type in ("error", "warning") and not message.text.startswith("Failed to load resource"):
            self.errors.append(f"{message.type}: {message.text}")

    async def _on_dialog(self, dialog: Dialog) -> None:
        self.errors.append(f"dialog: {dialog.message}")
        await dialog.dismiss()

    @property
    def external_requests(self) -> list[str]:
        """Requests that left the origin."""
        urls = [each.url for each in self.requests]
        return [url for url in urls if not url.startswith((f"{self.base}/", "data:", "blob:"))]

    async def injected_calls(self) -> list[str]:
        """What ran, or wanted to, that is not the page's own."""
        return await self.page.evaluate("window.ran ?? []")

    async def assert_clean(self) -> None:
        assert self.errors == []
        assert self.external_requests == []
        assert await self.injected_calls() == []

    async def open_session(self, session: str) -> None:
        """Opens a conversation by its address, and waits until it is there."""
        await self.page.evaluate("where => { location.hash = where }", f"#/s/{session}")
        await self.expect("conversation").to_be_visible()

    async def send_message(self, text: str) -> None:
        await self("composer").fill(text)
        await self("composer").press("Enter")

    async def click_menu(self, *verbs: str) -> None:
        """What the menu of the open conversation offers."""
        for verb in verbs:
            await self.page.locator(".head").locator('[data-test="session-menu-open"]').click()
            await self.page.locator(".head").locator(f'[data-test="{verb}"]').click()


@dataclass(slots=True, kw_only=True)
class PageDaemon:
    """A daemon with its scripted model, and one user's home and configuration."""

    browser: Browser
    env: dict[str, str]
    folder: Path
    scripted_answers: dict[str, tuple[ScriptedAnswer, ...]] = field(
        default_factory=dict[str, tuple[ScriptedAnswer, ...]]
    )
    """Words of a task → what the model answers whoever was given it, turn by turn; the last is said for ever."""
    process: asyncio.subprocess.Process | None = None
    base: str = ""
    stderr_lines: list[str] = field(default_factory=list[str])
    model_requests: list[CapturedRequest] = field(default_factory=list[CapturedRequest])
    client: aiohttp.ClientSession = field(init=False)
    stderr_task: asyncio.Task[None] | None = None

    @property
    def home(self) -> Path:
        return Path(self.env["RETINUE_HOME"])

    @property
    def config(self) -> Path:
        return Path(self.env["RETINUE_CONFIG"])

    def write_agent(self, name: str, front: str = "", body: str = "You help.") -> None:
        (self.config / "agents").mkdir(exist_ok=True)
        (self.config / "agents" / f"{name}.md").write_text(f"---\nname: {name}\n{front}---\n\n{body}\n")

    def write_config(self, **settings: Any) -> None:
        (self.config / "config.json").write_text(json.dumps({"tools": ["held:hold", "held:tell"]} | settings))

    def script_task(self, task: str, *parts: ScriptedAnswer) -> str:
        self.scripted_answers[task] = parts
        return task

    async def answer_request(self, asked: CapturedRequest) -> FakeResponse:
        self.model_requests.append(asked)
        latest = next(
            (text for text in reversed(_user_texts(asked)) if _find_task(text, self.scripted_answers)), ""
        )
        task = _find_task(latest, self.scripted_answers)
        if task is None:
            return http_error(400, f"no part is written for {latest[:80]!r}")
        parts = self.scripted_answers[task]
        part = parts[min(_turns_since(asked, task), len(parts) - 1)]
        return part if isinstance(part, FakeResponse) else await part(asked)

    async def start(self, port: int = 0) -> None:
        self.process = await start_process(
            [*RETINUE, "serve", "--port", str(port)],
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env=self.env,
            cwd=self.folder,
        )
        assert self.process.stderr is not None
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                line = (await self.process.stderr.readline()).decode()
                assert line, f"the daemon ended: {self.stderr_lines}"
                self.stderr_lines.append(line)
                if found := re.search(r"(http://\S+)/enter/\S+", line):
                    self.base = found[1]
                    break
        self.stderr_task = asyncio.create_task(self._read_stderr(self.process.stderr))

    async def _read_stderr(self, stream: asyncio.StreamReader) -> None:
        while line := await stream.readline():
            self.stderr_lines.append(line.decode("utf-8", "replace"))

    async def kill(self, how: signal.Signals = signal.SIGKILL) -> None:
        process = self.process
        assert process is not None
        with suppress(ProcessLookupError):
            process.send_signal(how)
        await asyncio.wait_for(process.wait(), TIMEOUT_S)
        if self.stderr_task is not None:
            await self.stderr_task

    async def call_api(self, method: str, path: str, body: Any = None) -> Any:
        """What a program hears that has the home's token."""
        headers = {"Authorization": f"Bearer {(self.home / 'token').read_text().strip()}"}
        sent: Any = None if method in ("GET", "DELETE") else (body or {})
        async with self.client.request(method, f"{self.base}/api{path}", headers=headers, json=sent) as got:
            answer = await got.json()
            assert got.status < 400, answer
            return answer

    async def create_session(self, agent: str = "general", **more: Any) -> dict[str, Any]:
        return await self.call_api(
            "POST", "/sessions", {"agent": agent, "workspace": str(self.folder)} | more
        )

    async def send_message(self, session: str, text: str, *, mode: str = "sync") -> dict[str, Any]:
        body = {"content": text, "mode": mode, "timeout": TIMEOUT_S}
        return await self.call_api("POST", f"/sessions/{session}/messages", body)

    async def wait_until(self, true: Callable[[], Any]) -> Any:
        """Asks until the answer is true: another process makes it so."""
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                answer = true()
                if answer := (await answer if asyncio.iscoroutine(answer) else answer):
                    return answer
                await asyncio.sleep(0.02)

    async def wait_until_idle(self) -> None:
        """Until nothing of this daemon's is at work."""

        async def none() -> bool:
            return not await self.call_api("GET", "/runs?live=true")

        await self.wait_until(none)

    def create_gate(self, name: str = "gate") -> Path:
        """A file for the tool `hold`: whoever calls it goes on when the file is gone."""
        (self.folder / name).touch()
        return self.folder / name

    @asynccontextmanager
    async def open_page(
        self, width: int = 1280, height: int = 800, **more: Any
    ) -> AsyncGenerator[BrowserPage]:
        """A browser that came in by a link of its own."""
        viewport = {"width": width, "height": height}
        context = await self.browser.new_context(viewport=viewport, reduced_motion="reduce", **more)  # type: ignore[arg-type]
        await context.grant_permissions(["clipboard-read", "clipboard-write"])
        await context.add_init_script(RECORD_SCRIPT_CALLS)
        window = BrowserPage(page=await context.new_page(), base=self.base)
        window.record_events()
        await window.page.goto((await self.call_api("POST", "/links"))["url"])
        yield window
        await window.assert_clean()
        await context.close()


def _user_texts(asked: CapturedRequest) -> list[str]:
    return [str(each["content"]) for each in asked.messages if each["role"] == "user" and each.get("content")]


def _find_task(text: str, parts: dict[str, tuple[ScriptedAnswer, ...]]) -> str | None:
    return next((task for task in parts if task in text), None)


def _turns_since(asked: CapturedRequest, task: str) -> int:
    """How often the model has answered since the task was given for the last time."""
    turns = 0
    for message in reversed(asked.messages):
        if message["role"] == "user" and task in str(message.get("content") or ""):
            break
        turns += message["role"] == "assistant"
    return turns


OpenPageDaemon = Callable[[], AbstractAsyncContextManager[PageDaemon]]
"""Makes a home for one daemon, which the test configures and starts."""


@asynccontextmanager
async def prepare_page_daemon(place: Path, browser: Browser) -> AsyncGenerator[PageDaemon]:
    """Make a home, a model server and a client; the test starts the daemon."""
    folders = {"HOME": "user", "RETINUE_HOME": "home", "RETINUE_CONFIG": "config"}
    for name in (*folders.values(), "work"):
        (place / name).mkdir(mode=0o700)
    (place / "work" / "held.py").write_text(TOOLS_SOURCE)
    kept = {name: os.environ[name] for name in INHERITED_VARIABLES if name in os.environ}
    kept["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), kept.get("PATH", os.defpath)))
    env = kept | {name: str(place / folder) for name, folder in folders.items()}
    daemon = PageDaemon(browser=browser, env=env, folder=place / "work")
    daemon.write_config()
    async with (
        FakeModelServer(daemon.answer_request) as server,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as client,
    ):
        daemon.client = client
        env |= {
            "OPENAI_BASE_URL": server.url,
            "OPENAI_API_KEY": "sk-test-openai-0123456789",
            "RETINUE_MODEL": "openai:test-model",
            "PYTHONPATH": str(place / "work"),
        }
        try:
            yield daemon
        finally:
            if daemon.process is not None and daemon.process.returncode is None:
                await daemon.kill()
