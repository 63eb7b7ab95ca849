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
from commands import RETINUE, begun
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

PATIENCE = 60.0
KEPT = ("PATH", "LANG", "LC_ALL", "TMPDIR", "COVERAGE_PROCESS_START")
HELD = '''
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
WATCHED = """
window.ran = [];
for (const name of ["alert", "confirm", "prompt", "print"]) window[name] = () => window.ran.push(name);
document.addEventListener("securitypolicyviolation", (event) => window.ran.push("policy " + event.blockedURI));
"""
"""Runs before the page: what hostile words would do is written down, and nothing of the page's own does any of it."""

ScriptedAnswer = FakeResponse | Callable[[CapturedRequest], Awaitable[FakeResponse]]

expect.set_options(timeout=PATIENCE * 500)


@dataclass(slots=True, kw_only=True)
class BrowserPage:
    """One page in its own browser context. Faults and requests are recorded, and checked when the page is closed."""

    page: Page
    base: str
    requests: list[Request] = field(default_factory=list[Request])
    faults: list[str] = field(default_factory=list[str])

    def __call__(self, name: str, **attributes: str) -> Locator:
        """Everything with this data-test name, and with these other data attributes."""
        more = "".join(f'[data-{key}="{value}"]' for key, value in attributes.items())
        return self.page.locator(f'[data-test="{name}"]{more}')

    def see(self, what: str | Locator, **attributes: str):
        """What becomes true of something, sooner or later."""
        return expect(self(what, **attributes) if isinstance(what, str) else what)

    def watch(self) -> None:
        # Functions, for the library writes on what it is given.
        self.page.on("request", lambda request: self.requests.append(request))  # noqa: PLW0108
        self.page.on("pageerror", lambda error: self.faults.append(f"error: {error}"))
        self.page.on("console", lambda message: self._said(message))  # noqa: PLW0108
        self.page.on("dialog", lambda dialog: self._asked(dialog))  # noqa: PLW0108

    def _said(self, message: ConsoleMessage) -> None:
        # A refused or unanswered request is told of by the browser itself; the page shows it in its own words.
        if message.type in ("error", "warning") and not message.text.startswith("Failed to load resource"):
            self.faults.append(f"{message.type}: {message.text}")

    async def _asked(self, dialog: Dialog) -> None:
        self.faults.append(f"dialog: {dialog.message}")
        await dialog.dismiss()

    @property
    def outside(self) -> list[str]:
        """Requests that left the origin."""
        urls = [each.url for each in self.requests]
        return [url for url in urls if not url.startswith((f"{self.base}/", "data:", "blob:"))]

    async def ran(self) -> list[str]:
        """What ran, or wanted to, that is not the page's own."""
        return await self.page.evaluate("window.ran ?? []")

    async def clean(self) -> None:
        assert self.faults == []
        assert self.outside == []
        assert await self.ran() == []

    async def goes(self, session: str) -> None:
        """Opens a conversation by its address, and waits until it is there."""
        await self.page.evaluate("where => { location.hash = where }", f"#/s/{session}")
        await self.see("conversation").to_be_visible()

    async def says(self, text: str) -> None:
        await self("composer").fill(text)
        await self("composer").press("Enter")

    async def does(self, *verbs: str) -> None:
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
    parts: dict[str, tuple[ScriptedAnswer, ...]] = field(
        default_factory=dict[str, tuple[ScriptedAnswer, ...]]
    )
    """Words of a task → what the model answers whoever was given it, turn by turn; the last is said for ever."""
    process: asyncio.subprocess.Process | None = None
    base: str = ""
    told: list[str] = field(default_factory=list[str])
    asked: list[CapturedRequest] = field(default_factory=list[CapturedRequest])
    client: aiohttp.ClientSession = field(init=False)
    hears: asyncio.Task[None] | None = None

    @property
    def home(self) -> Path:
        return Path(self.env["RETINUE_HOME"])

    @property
    def config(self) -> Path:
        return Path(self.env["RETINUE_CONFIG"])

    def agent(self, name: str, front: str = "", body: str = "You help.") -> None:
        (self.config / "agents").mkdir(exist_ok=True)
        (self.config / "agents" / f"{name}.md").write_text(f"---\nname: {name}\n{front}---\n\n{body}\n")

    def configured(self, **settings: Any) -> None:
        (self.config / "config.json").write_text(json.dumps({"tools": ["held:hold", "held:tell"]} | settings))

    def plays(self, task: str, *parts: ScriptedAnswer) -> str:
        self.parts[task] = parts
        return task

    async def script(self, asked: CapturedRequest) -> FakeResponse:
        self.asked.append(asked)
        latest = next((text for text in reversed(_said(asked)) if _known(text, self.parts)), "")
        task = _known(latest, self.parts)
        if task is None:
            return http_error(400, f"no part is written for {latest[:80]!r}")
        parts = self.parts[task]
        part = parts[min(_turns_since(asked, task), len(parts) - 1)]
        return part if isinstance(part, FakeResponse) else await part(asked)

    async def start(self, port: int = 0) -> None:
        self.process = await begun(
            [*RETINUE, "serve", "--port", str(port)],
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env=self.env,
            cwd=self.folder,
        )
        assert self.process.stderr is not None
        async with asyncio.timeout(PATIENCE):
            while True:
                line = (await self.process.stderr.readline()).decode()
                assert line, f"the daemon ended: {self.told}"
                self.told.append(line)
                if found := re.search(r"(http://\S+)/enter/\S+", line):
                    self.base = found[1]
                    break
        self.hears = asyncio.create_task(self._hear(self.process.stderr))

    async def _hear(self, stream: asyncio.StreamReader) -> None:
        while line := await stream.readline():
            self.told.append(line.decode("utf-8", "replace"))

    async def end(self, how: signal.Signals = signal.SIGKILL) -> None:
        process = self.process
        assert process is not None
        with suppress(ProcessLookupError):
            process.send_signal(how)
        await asyncio.wait_for(process.wait(), PATIENCE)
        if self.hears is not None:
            await self.hears

    async def api(self, method: str, path: str, body: Any = None) -> Any:
        """What a program hears that has the home's token."""
        headers = {"Authorization": f"Bearer {(self.home / 'token').read_text().strip()}"}
        sent: Any = None if method in ("GET", "DELETE") else (body or {})
        async with self.client.request(method, f"{self.base}/api{path}", headers=headers, json=sent) as got:
            answer = await got.json()
            assert got.status < 400, answer
            return answer

    async def session(self, agent: str = "general", **more: Any) -> dict[str, Any]:
        return await self.api("POST", "/sessions", {"agent": agent, "workspace": str(self.folder)} | more)

    async def said(self, session: str, text: str, *, mode: str = "sync") -> dict[str, Any]:
        body = {"content": text, "mode": mode, "timeout": PATIENCE}
        return await self.api("POST", f"/sessions/{session}/messages", body)

    async def until(self, true: Callable[[], Any]) -> Any:
        """Asks until the answer is true: another process makes it so."""
        async with asyncio.timeout(PATIENCE):
            while True:
                answer = true()
                if answer := (await answer if asyncio.iscoroutine(answer) else answer):
                    return answer
                await asyncio.sleep(0.02)

    async def quiet(self) -> None:
        """Until nothing of this daemon's is at work."""

        async def none() -> bool:
            return not await self.api("GET", "/runs?live=true")

        await self.until(none)

    def gate(self, name: str = "gate") -> Path:
        """A file for the tool `hold`: whoever calls it goes on when the file is gone."""
        (self.folder / name).touch()
        return self.folder / name

    @asynccontextmanager
    async def opened(self, width: int = 1280, height: int = 800, **more: Any) -> AsyncGenerator[BrowserPage]:
        """A browser that came in by a link of its own."""
        viewport = {"width": width, "height": height}
        context = await self.browser.new_context(viewport=viewport, reduced_motion="reduce", **more)  # type: ignore[arg-type]
        await context.grant_permissions(["clipboard-read", "clipboard-write"])
        await context.add_init_script(WATCHED)
        window = BrowserPage(page=await context.new_page(), base=self.base)
        window.watch()
        await window.page.goto((await self.api("POST", "/links"))["url"])
        yield window
        await window.clean()
        await context.close()


def _said(asked: CapturedRequest) -> list[str]:
    return [str(each["content"]) for each in asked.messages if each["role"] == "user" and each.get("content")]


def _known(text: str, parts: dict[str, tuple[ScriptedAnswer, ...]]) -> str | None:
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
    (place / "work" / "held.py").write_text(HELD)
    kept = {name: os.environ[name] for name in KEPT if name in os.environ}
    kept["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), kept.get("PATH", os.defpath)))
    env = kept | {name: str(place / folder) for name, folder in folders.items()}
    house = PageDaemon(browser=browser, env=env, folder=place / "work")
    house.configured()
    async with (
        FakeModelServer(house.script) as server,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as client,
    ):
        house.client = client
        env |= {
            "OPENAI_BASE_URL": server.url,
            "OPENAI_API_KEY": "sk-test-openai-0123456789",
            "RETINUE_MODEL": "openai:test-model",
            "PYTHONPATH": str(place / "work"),
        }
        try:
            yield house
        finally:
            if house.process is not None and house.process.returncode is None:
                await house.end()
