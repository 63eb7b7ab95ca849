"""The model process as seen by the provider: started on first use and restarted when it has died."""

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import msgspec
from msgspec import Struct

from retinue.domain.run import Reason
from retinue.errors import ModelFailed
from retinue.isolated_python import inherited_environment, module_command
from retinue.providers.local.model_server import PROMPT_SLOTS
from retinue.providers.retry_policy import SERVER_ERROR, provider_error

SERVER_MODULE = "retinue.providers.local.model_server"
INHERITED_ENV = ("PATH", "HOME", "LANG", "TMPDIR", "LD_LIBRARY_PATH", "SYSTEMROOT")
"""Environment variables passed on; the keys of other providers are left out."""
SHUTDOWN_TIMEOUT_S = 5.0
"""Time for the process to exit by itself."""

OnProgress = Callable[[float], None]
"""Called with the fraction of the model that is loaded, from 0 to 1."""


class TokenLogprobs(Struct, frozen=True, kw_only=True):
    """Log probabilities of the next token; tokens not listed are less likely than all listed."""

    logprobs: Mapping[str, float]
    input_tokens: int
    output_tokens: int


class TextChunk(Struct, frozen=True, kw_only=True):
    """A piece of a generated text, or its end with the token counts."""

    text: str = ""
    end_reason: str | None = None
    input_tokens: int = 0
    output_tokens: int = 0


def model_server_command(weights: Path, sha256: str) -> list[str]:
    """Return the command of the model process, with half of the CPU cores.

    With all of them, on a machine with other work, the threads wait for each other.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return module_command(SERVER_MODULE, str(weights), sha256, str(max(1, cores // 2)))


class PromptSlots:
    """Assign prompts to cache slots: the slot with the same prefix, else the least recently used."""

    def __init__(self) -> None:
        self._slot_by_prefix: dict[str, int] = {}

    def slot_for(self, prefix: str) -> int:
        slot = self._slot_by_prefix.pop(prefix, None)
        if slot is None:
            slot = (
                len(self._slot_by_prefix)
                if len(self._slot_by_prefix) < PROMPT_SLOTS
                else self._slot_by_prefix.pop(next(iter(self._slot_by_prefix)))
            )
        self._slot_by_prefix[prefix] = slot
        return slot


class ModelProcess:
    """A process shared by all callers.

    It ends when this process ends in any way, because its standard input is then closed.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._command = tuple(command)
        self._connection: _ProcessConnection | None = None
        self._start_lock = asyncio.Lock()
        self._last_id = 0
        self._slots = PromptSlots()

    async def query_logprobs(
        self, prompt: str, max_tokens: int, shared_prefix: str, on_progress: OnProgress
    ) -> TokenLogprobs:
        """Query the most likely next tokens.

        `shared_prefix` is the beginning that this prompt shares with others, so that the model reads it once.
        """
        query = {"prompt": prompt, "top": max_tokens, "slot": self._slots.slot_for(shared_prefix)}
        async for answer in self._stream_answers(query, on_progress):
            return TokenLogprobs(
                logprobs=answer["top"], input_tokens=answer["input"], output_tokens=answer["output"]
            )
        raise _process_ended_error("")

    async def generate_text(
        self, query: Mapping[str, Any], shared_prefix: str, on_progress: OnProgress
    ) -> AsyncGenerator[TextChunk]:
        async for answer in self._stream_answers(
            {**query, "slot": self._slots.slot_for(shared_prefix)}, on_progress
        ):
            if "end" in answer:
                yield TextChunk(
                    end_reason=answer["end"], input_tokens=answer["input"], output_tokens=answer["output"]
                )
                return
            yield TextChunk(text=answer["text"])

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def _stream_answers(
        self, query: Mapping[str, Any], on_progress: OnProgress
    ) -> AsyncGenerator[dict[str, Any]]:
        connection = await self._ensure_ready(on_progress)
        self._last_id += 1
        query_id = self._last_id
        answers = connection.send_query(query_id, query)
        try:
            while True:
                answer = await answers.get()
                if answer is None:
                    raise _process_ended_error(connection.exit_text)
                if "error" in answer:
                    raise ModelFailed(f"the local model: {answer['error']}", reason=Reason.PROVIDER)
                yield answer
                if "top" in answer or "end" in answer:
                    return
        finally:
            connection.stop_query(query_id)

    async def _ensure_ready(self, on_progress: OnProgress) -> "_ProcessConnection":
        async with self._start_lock:
            if self._connection is None or self._connection.is_closed:
                self._connection = await _start_process(self._command)
            connection = self._connection
        with connection.report_progress_to(on_progress):
            problem = await asyncio.shield(connection.ready)
        if connection.is_closed and not problem:
            raise _process_ended_error(connection.exit_text)
        if problem:
            raise ModelFailed(f"the local model cannot be used: {problem}", reason=Reason.CONFIG)
        return connection


async def _start_process(command: Sequence[str]) -> "_ProcessConnection":
    try:
        _, connection = await asyncio.get_running_loop().subprocess_exec(
            _ProcessConnection, *command, stderr=asyncio.subprocess.DEVNULL, start_new_session=True, cwd="/",
            env=inherited_environment(INHERITED_ENV),
        )  # fmt: skip
    except OSError as error:
        raise ModelFailed(
            f"the local model cannot be started: {error.strerror}", reason=Reason.CONFIG
        ) from error
    return connection


def _process_ended_error(exit_text: str) -> ModelFailed:
    """Return a retryable error; the next attempt restarts the process."""
    return provider_error(f"the process of the local model {exit_text or 'has ended'}", SERVER_ERROR)


class _ProcessConnection(asyncio.SubprocessProtocol):
    """The pipe to the process; passes each answer to its caller."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[str] = loop.create_future()
        """Resolves to why the model cannot be used, or to "" if it is ready or the process died before."""
        self.exit_text = ""
        self._closed: asyncio.Future[None] = loop.create_future()
        self._transport: asyncio.SubprocessTransport | None = None
        self._partial_line = bytearray()
        self._answer_queues: dict[int, asyncio.Queue[dict[str, Any] | None]] = {}
        self._progress_listeners: list[OnProgress] = []

    @property
    def is_closed(self) -> bool:
        return self._closed.done()

    def send_query(self, query_id: int, query: Mapping[str, Any]) -> asyncio.Queue[dict[str, Any] | None]:
        answers: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._answer_queues[query_id] = answers
        if self.is_closed:
            answers.put_nowait(None)
        else:
            self._write_message({"id": query_id, **query})
        return answers

    def stop_query(self, query_id: int) -> None:
        """Stop a query, finished or not."""
        del self._answer_queues[query_id]
        if not self.is_closed:
            self._write_message({"id": query_id, "stop": True})

    @contextmanager
    def report_progress_to(self, on_progress: OnProgress) -> Generator[None]:
        self._progress_listeners.append(on_progress)
        try:
            yield
        finally:
            self._progress_listeners.remove(on_progress)

    async def close(self) -> None:
        if self._transport is None or self.is_closed:
            return
        cast("asyncio.WriteTransport", self._transport.get_pipe_transport(0)).close()
        with suppress(TimeoutError):
            async with asyncio.timeout(SHUTDOWN_TIMEOUT_S):
                await asyncio.shield(self._closed)
        self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.SubprocessTransport", transport)

    def pipe_data_received(self, fd: int, data: bytes | str) -> None:  # noqa: ARG002  (only one pipe)
        self._partial_line += cast("bytes", data)
        *lines, partial = self._partial_line.split(b"\n")
        self._partial_line = bytearray(partial)
        for line in lines:
            self._dispatch_message(msgspec.json.decode(line))

    def process_exited(self) -> None:
        exit_code = self._transport.get_returncode() if self._transport is not None else None
        was_killed = exit_code is not None and exit_code < 0
        self.exit_text = (
            f"was killed ({signal.Signals(-exit_code).name})"
            if exit_code and was_killed
            else f"exited with code {exit_code}"
        )

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  (process_exited has the reason)
        self._closed.set_result(None)
        if self._transport is not None:
            self._transport.close()
        if not self.ready.done():
            self.ready.set_result("")
        for answers in self._answer_queues.values():
            answers.put_nowait(None)

    def _dispatch_message(self, message: dict[str, Any]) -> None:
        if "loading" in message:
            for listener in self._progress_listeners:
                listener(message["loading"])
        elif "ready" in message or "load_error" in message:
            self.ready.set_result(message.get("load_error", ""))
        elif (answers := self._answer_queues.get(message["id"])) is not None:
            answers.put_nowait(message)

    def _write_message(self, message: Mapping[str, Any]) -> None:
        if self._transport is not None:
            pipe = cast("asyncio.WriteTransport", self._transport.get_pipe_transport(0))
            pipe.write(msgspec.json.encode(message) + b"\n")
