"""A real browser, and a daemon with a home of its own and a scripted model."""

import asyncio
import json
import re
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from commands import RETINUE, start_process
from environment import create_environment
from hold_tool import HOLD_TOOL
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
TELL_TOOL = '''
@tool(effect="read")
async def tell(name: str) -> str:
    """Returns the content of the file."""
    with open(name, encoding="utf-8") as file:
        return file.read()
'''
RECORD_SCRIPT_CALLS = """
window.injectedCalls = [];
for (const name of ["alert", "confirm", "prompt", "print"]) window[name] = () => window.injectedCalls.push(name);
document.addEventListener("securitypolicyviolation", (event) => window.injectedCalls.push("policy " + event.blockedURI));
"""
"""Runs before the page. It records what an injected script would call; the page itself calls none of it."""

ScriptedAnswer = FakeResponse | Callable[[CapturedRequest], Awaitable[FakeResponse]]

expect.set_options(timeout=TIMEOUT_S * 500)


@dataclass(slots=True, kw_only=True)
class BrowserPage:
    """One page in its own browser context. Errors and requests are recorded, and checked when the page is closed."""

    page: Page
    base: str
    requests: list[Request] = field(default_factory=list[Request])
    errors: list[str] = field(default_factory=list[str])

    def __call__(self, name: str, **attributes: str) -> Locator:
        """Find all elements with this data-test name and these other data attributes."""
        selectors = "".join(f'[data-{key}="{value}"]' for key, value in attributes.items())
        return self.page.locator(f'[data-test="{name}"]{selectors}')

    def expect(self, target: str | Locator, **attributes: str):
        """Playwright's assertions about an element, which wait until they are true."""
        return expect(self(target, **attributes) if isinstance(target, str) else target)

    def record_events(self) -> None:
        # Plain functions, because playwright sets attributes on handlers.
        self.page.on("request", lambda request: self.requests.append(request))  # noqa: PLW0108
        self.page.on("pageerror", lambda error: self.errors.append(f"error: {error}"))
        self.page.on("console", lambda message: self._on_console(message))  # noqa: PLW0108
        self.page.on("dialog", lambda dialog: self._on_dialog(dialog))  # noqa: PLW0108

    def _on_console(self, message: ConsoleMessage) -> None:
        # The browser itself logs every failed request; the page shows those to the user.
        if message.type in ("error", "warning") and not message.text.startswith("Failed to load resource"):
            self.errors.append(f"{message.type}: {message.text}")

    async def _on_dialog(self, dialog: Dialog) -> None:
        self.errors.append(f"dialog: {dialog.message}")
        await dialog.dismiss()

    @property
    def external_requests(self) -> list[str]:
        """Requests that left the origin."""
        urls = [request.url for request in self.requests]
        return [url for url in urls if not url.startswith((f"{self.base}/", "data:", "blob:"))]

    async def injected_calls(self) -> list[str]:
        """What injected scripts called, or tried to."""
        return await self.page.evaluate("window.injectedCalls ?? []")

    async def assert_clean(self) -> None:
        assert self.errors == []
        assert self.external_requests == []
        assert await self.injected_calls() == []

    async def open_session(self, session: str) -> None:
        """Open a session by its address, and wait until it is shown."""
        await self.page.evaluate("hash => { location.hash = hash }", f"#/s/{session}")
        await self.expect("conversation").to_be_visible()

    async def send_message(self, text: str) -> None:
        await self("composer").fill(text)
        await self("composer").press("Enter")

    async def click_menu(self, *verbs: str) -> None:
        """Choose actions from the menu of the open session."""
        for verb in verbs:
            await self.page.locator(".head").locator('[data-test="session-menu-open"]').click()
            await self.page.locator(".head").locator(f'[data-test="{verb}"]').click()


@dataclass(slots=True, kw_only=True)
class PageDaemon:
    """A daemon process with its scripted model, and one user's home and configuration."""

    browser: Browser
    env: dict[str, str]
    folder: Path
    scripted_answers: dict[str, tuple[ScriptedAnswer, ...]] = field(
        default_factory=dict[str, tuple[ScriptedAnswer, ...]]
    )
    """Task text → the model's answers to any agent with that task, one per turn; the last one repeats."""
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

    def script_task(self, task: str, *answers: ScriptedAnswer) -> str:
        self.scripted_answers[task] = answers
        return task

    async def answer_request(self, request: CapturedRequest) -> FakeResponse:
        self.model_requests.append(request)
        latest_text = next(
            (text for text in reversed(_user_texts(request)) if _find_task(text, self.scripted_answers)), ""
        )
        task = _find_task(latest_text, self.scripted_answers)
        if task is None:
            return http_error(400, f"no answer is scripted for {latest_text[:80]!r}")
        answers = self.scripted_answers[task]
        answer = answers[min(_turns_since(request, task), len(answers) - 1)]
        return answer if isinstance(answer, FakeResponse) else await answer(request)

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

    async def kill(self, signum: signal.Signals = signal.SIGKILL) -> None:
        process = self.process
        assert process is not None
        with suppress(ProcessLookupError):
            process.send_signal(signum)
        await asyncio.wait_for(process.wait(), TIMEOUT_S)
        if self.stderr_task is not None:
            await self.stderr_task

    async def call_api(self, method: str, path: str, body: object = None) -> Any:
        """Call the API with the token of the home."""
        headers = {"Authorization": f"Bearer {(self.home / 'token').read_text().strip()}"}
        json_body: object = None if method in ("GET", "DELETE") else (body or {})
        async with self.client.request(
            method, f"{self.base}/api{path}", headers=headers, json=json_body
        ) as response:
            data = await response.json()
            assert response.status < 400, data
            return data

    async def create_session(self, agent: str = "general", **fields: Any) -> dict[str, Any]:
        return await self.call_api(
            "POST", "/sessions", {"agent": agent, "workspace": str(self.folder)} | fields
        )

    async def send_message(self, session: str, text: str, *, mode: str = "sync") -> dict[str, Any]:
        body = {"content": text, "mode": mode, "timeout": TIMEOUT_S}
        return await self.call_api("POST", f"/sessions/{session}/messages", body)

    async def wait_until(self, condition: Callable[[], Any]) -> Any:
        """Poll until the answer is true."""
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                answer = condition()
                if answer := (await answer if asyncio.iscoroutine(answer) else answer):
                    return answer
                await asyncio.sleep(0.02)

    async def wait_until_idle(self) -> None:
        """Wait until this daemon has no live run."""

        async def has_no_live_runs() -> bool:
            return not await self.call_api("GET", "/runs?live=true")

        await self.wait_until(has_no_live_runs)

    def create_gate(self, name: str = "gate") -> Path:
        """Create a file for the tool `hold`, which waits until the test deletes it."""
        (self.folder / name).touch()
        return self.folder / name

    @asynccontextmanager
    async def open_new_session(self) -> AsyncGenerator[tuple[BrowserPage, dict[str, Any]]]:
        """Create a session and open it in a page."""
        session = await self.create_session()
        async with self.open_page() as window:
            await window.open_session(session["session_id"])
            yield window, session

    @asynccontextmanager
    async def open_page(
        self, width: int = 1280, height: int = 800, **options: Any
    ) -> AsyncGenerator[BrowserPage]:
        """Open a page that entered by a login link of its own."""
        viewport = {"width": width, "height": height}
        context = await self.browser.new_context(viewport=viewport, reduced_motion="reduce", **options)  # type: ignore[arg-type]
        await context.grant_permissions(["clipboard-read", "clipboard-write"])
        await context.add_init_script(RECORD_SCRIPT_CALLS)
        window = BrowserPage(page=await context.new_page(), base=self.base)
        window.record_events()
        await window.page.goto((await self.call_api("POST", "/links"))["url"])
        yield window
        await window.assert_clean()
        await context.close()


def _user_texts(request: CapturedRequest) -> list[str]:
    return [
        str(message["content"])
        for message in request.messages
        if message["role"] == "user" and message.get("content")
    ]


def _find_task(text: str, answers: dict[str, tuple[ScriptedAnswer, ...]]) -> str | None:
    return next((task for task in answers if task in text), None)


def _turns_since(request: CapturedRequest, task: str) -> int:
    """How many replies the model has given since the task was last given."""
    turns = 0
    for message in reversed(request.messages):
        if message["role"] == "user" and task in str(message.get("content") or ""):
            break
        turns += message["role"] == "assistant"
    return turns


OpenPageDaemon = Callable[[], AbstractAsyncContextManager[PageDaemon]]
"""Makes a home for one daemon, which the test configures and starts."""


@asynccontextmanager
async def prepare_page_daemon(folder: Path, browser: Browser) -> AsyncGenerator[PageDaemon]:
    """Make a home, a model server and a client; the test starts the daemon."""
    env = create_environment(folder)
    (folder / "work").mkdir(mode=0o700)
    (folder / "work" / "held.py").write_text(HOLD_TOOL + TELL_TOOL)
    daemon = PageDaemon(browser=browser, env=env, folder=folder / "work")
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
            "PYTHONPATH": str(folder / "work"),
        }
        try:
            yield daemon
        finally:
            if daemon.process is not None and daemon.process.returncode is None:
                await daemon.kill()
