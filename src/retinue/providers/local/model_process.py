"""The process that holds the model, as its driver sees it: begun when first asked, begun again when it died."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import msgspec

from retinue.domain.run import Reason
from retinue.domain.value import value
from retinue.errors import ModelFailed
from retinue.providers.errors import PASSING, trouble
from retinue.providers.local.model_server import SLOTS

HOST = "retinue.providers.local.model_server"
PASSED_ON = ("PATH", "HOME", "LANG", "TMPDIR", "PYTHONPATH", "LD_LIBRARY_PATH", "SYSTEMROOT")
"""Of the environment: the keys of other models are none of its business."""
PATIENCE = 5.0
"""Seconds that it gets to end by itself."""

Told = Callable[[float], None]
"""Hears how much of the model is loaded, from 0 to 1."""


@value
class Likely:
    """What would come next, by its logarithmic likelihood; pieces that are not named are less likely than all."""

    pieces: Mapping[str, float]
    input: int
    output: int


@value
class Spoken:
    """A piece of a text, or its end with what it took."""

    text: str = ""
    end: str | None = None
    input: int = 0
    output: int = 0


def command(weights: Path, sha256: str) -> list[str]:
    """Half of the cores: with all of them, on a machine that has other work, the threads wait for one another."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return [sys.executable, "-m", HOST, str(weights), sha256, str(max(1, cores // 2))]


class Slots:
    """Which of the model's memories a prompt goes to: the one that holds its beginning, else the one longest unused."""

    def __init__(self) -> None:
        self._held: dict[str, int] = {}

    def of(self, beginning: str) -> int:
        slot = self._held.pop(beginning, None)
        if slot is None:
            slot = len(self._held) if len(self._held) < SLOTS else self._held.pop(next(iter(self._held)))
        self._held[beginning] = slot
        return slot


class ModelProcess:
    """One process for everybody who asks. It ends with us, however we end: its input is then at its end."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = tuple(command)
        self._line: _Line | None = None
        self._starting = asyncio.Lock()
        self._number = 0
        self._slots = Slots()

    async def likely(self, prompt: str, top: int, shared: str, told: Told) -> Likely:
        """`shared`: how this prompt and others begin, so that the model reads it once."""
        wish = {"prompt": prompt, "top": top, "slot": self._slots.of(shared)}
        async for answer in self._answers(wish, told):
            return Likely(pieces=answer["top"], input=answer["input"], output=answer["output"])
        raise _gone("")

    async def spoken(self, wish: Mapping[str, Any], shared: str, told: Told) -> AsyncGenerator[Spoken]:
        async for answer in self._answers({**wish, "slot": self._slots.of(shared)}, told):
            if "end" in answer:
                yield Spoken(end=answer["end"], input=answer["input"], output=answer["output"])
                return
            yield Spoken(text=answer["text"])

    async def close(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            await line.close()

    async def _answers(self, wish: Mapping[str, Any], told: Told) -> AsyncGenerator[dict[str, Any]]:
        line = await self._ready(told)
        self._number += 1
        number = self._number
        heard = line.ask(number, wish)
        try:
            while True:
                answer = await heard.get()
                if answer is None:
                    raise _gone(line.end)
                if "error" in answer:
                    raise ModelFailed(f"the local model: {answer['error']}", reason=Reason.PROVIDER)
                yield answer
                if "top" in answer or "end" in answer:
                    return
        finally:
            line.leave(number)

    async def _ready(self, told: Told) -> "_Line":
        async with self._starting:
            if self._line is None or self._line.gone:
                self._line = await _begun(self._command)
            line = self._line
        with line.loading(told):
            broken = await asyncio.shield(line.ready)
        if line.gone and not broken:
            raise _gone(line.end)
        if broken:
            raise ModelFailed(f"the local model cannot be used: {broken}", reason=Reason.CONFIG)
        return line


async def _begun(command: Sequence[str]) -> "_Line":
    env = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    try:
        _, line = await asyncio.get_running_loop().subprocess_exec(
            _Line, *command, stderr=asyncio.subprocess.DEVNULL, env=env, start_new_session=True
        )
    except OSError as error:
        raise ModelFailed(
            f"the local model cannot be started: {error.strerror}", reason=Reason.CONFIG
        ) from error
    return line


def _gone(how: str) -> ModelFailed:
    """It is begun again with the next attempt."""
    return trouble(f"the process of the local model {how or 'is gone'}", PASSING)


class _Line(asyncio.SubprocessProtocol):
    """The process's answers, brought to whoever asked."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[str] = loop.create_future()
        """Why it cannot be used; empty when it can, or has died before it could."""
        self.end = ""
        self._closed: asyncio.Future[None] = loop.create_future()
        self._transport: asyncio.SubprocessTransport | None = None
        self._rest = bytearray()
        self._heard: dict[int, asyncio.Queue[dict[str, Any] | None]] = {}
        self._loading: list[Told] = []

    @property
    def gone(self) -> bool:
        return self._closed.done()

    def ask(self, number: int, wish: Mapping[str, Any]) -> asyncio.Queue[dict[str, Any] | None]:
        heard: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._heard[number] = heard
        if self.gone:
            heard.put_nowait(None)
        else:
            self._write({"id": number, **wish})
        return heard

    def leave(self, number: int) -> None:
        """Nobody wants to hear any more of it, whether it has ended or not."""
        del self._heard[number]
        if not self.gone:
            self._write({"id": number, "stop": True})

    @contextmanager
    def loading(self, told: Told) -> Generator[None]:
        self._loading.append(told)
        try:
            yield
        finally:
            self._loading.remove(told)

    async def close(self) -> None:
        if self._transport is None or self.gone:
            return
        cast("asyncio.WriteTransport", self._transport.get_pipe_transport(0)).close()
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                await asyncio.shield(self._closed)
        self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.SubprocessTransport", transport)

    def pipe_data_received(self, fd: int, data: bytes | str) -> None:  # noqa: ARG002  (there is one)
        self._rest += cast("bytes", data)
        *lines, rest = self._rest.split(b"\n")
        self._rest = bytearray(rest)
        for line in lines:
            self._say(msgspec.json.decode(line))

    def process_exited(self) -> None:
        code = self._transport.get_returncode() if self._transport is not None else None
        killed = code is not None and code < 0
        self.end = f"was killed ({signal.Signals(-code).name})" if code and killed else f"ended with {code}"

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  (the exit says it)
        self._closed.set_result(None)
        if self._transport is not None:
            self._transport.close()
        if not self.ready.done():
            self.ready.set_result("")
        for heard in self._heard.values():
            heard.put_nowait(None)

    def _say(self, told: dict[str, Any]) -> None:
        if "loading" in told:
            for listener in self._loading:
                listener(told["loading"])
        elif "ready" in told or "broken" in told:
            self.ready.set_result(told.get("broken", ""))
        elif (heard := self._heard.get(told["id"])) is not None:
            heard.put_nowait(told)

    def _write(self, asked: Mapping[str, Any]) -> None:
        if self._transport is not None:
            pipe = cast("asyncio.WriteTransport", self._transport.get_pipe_transport(0))
            pipe.write(msgspec.json.encode(asked) + b"\n")
