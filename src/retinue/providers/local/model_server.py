"""The process that runs the model: JSON lines in and out until its standard input is closed.

Request {"id", "slot", "prompt", "top"}      → {"id", "top": {token: log probability}}: the most likely next
tokens. Request {"id", "slot", "prompt", "max_tokens", …}  → {"id", "text"}…, then {"id", "end", "input", "output"}:
generated text. Request {"id", "stop": true}                 stops that generation. Before the first answer:
{"loading": 0…1}, then {"ready": true} or {"load_error": text}.
"""

import hashlib
import importlib
import json
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from secrets import token_hex
from typing import Any, TextIO

CONTEXT_TOKENS = 8192
"""Context tokens shared by all prompts: about 190 MB."""
PROMPT_SLOTS = 8
"""Number of cached prompts.

A prompt that begins like a cached one is not read from its start again.
"""
BATCH_TOKENS = 128
"""Tokens processed between two checks for a stopped request."""
READ_CHUNK_BYTES = 4 << 20


class MessageWriter:
    """An output stream shared by several threads."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._lock = threading.Lock()

    def write(self, **fields: Any) -> None:
        with self._lock:
            try:
                self._out.write(json.dumps(fields) + "\n")
                self._out.flush()
            except OSError:
                os._exit(0)  # the parent process is gone


class ModelServer:
    """Answer requests, several concurrently."""

    def __init__(self, model: Any, writer: MessageWriter) -> None:
        self._model = model
        self._write = writer.write
        self._active: set[int] = set()

    def register(self, query_id: int) -> None:
        self._active.add(query_id)

    def stop(self, query_id: int) -> None:
        self._active.discard(query_id)

    def answer(self, request: dict[str, Any]) -> None:
        query_id: int = request["id"]
        try:
            if "top" in request:
                self._answer_logprobs(query_id, request)
            else:
                self._generate_text(query_id, request)
        except (RuntimeError, ValueError, KeyError, IndexError, TypeError) as error:
            self._write(id=query_id, error=str(error)[:500] or type(error).__name__)
        finally:
            self.stop(query_id)

    def _answer_logprobs(self, query_id: int, request: dict[str, Any]) -> None:
        if query_id not in self._active:
            return
        params = {
            "prompt": request["prompt"],
            "n_predict": 1,
            "n_probs": request["top"],
            "temperature": 0,
            "id_slot": request["slot"],
        }
        reply = self._model.handle_completions({**params, "cache_prompt": True})
        _raise_for_error(reply)
        candidates = reply["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
        usage = reply["usage"]
        top: dict[str, float] = {}
        for each in candidates:  # sorted by probability: of equal texts, the most likely counts
            top.setdefault(each["token"], each["logprob"])
        self._write(
            id=query_id,
            top=top,
            input=usage["prompt_tokens"],
            output=usage["completion_tokens"],
        )

    def _generate_text(self, query_id: int, request: dict[str, Any]) -> None:
        last: dict[str, Any] = {}

        def on_chunk(chunk: dict[str, Any]) -> bool:
            last.update(chunk)
            for choice in chunk.get("choices") or ():
                last["finish_reason"] = choice.get("finish_reason") or last.get("finish_reason")
                if choice.get("text"):
                    self._write(id=query_id, text=choice["text"])
            return query_id not in self._active

        params: dict[str, Any] = {
            "prompt": request["prompt"],
            "n_predict": request["max_tokens"],
            "id_slot": request["slot"],
            "temperature": request.get("temperature", 0),
            "repeat_penalty": request.get("repeat_penalty", 1),
            "stop": request.get("stop_strings") or [],
            "stream": True,
            "return_progress": True,
            "cache_prompt": True,
            "stream_options": {"include_usage": True},
        }
        if request.get("grammar"):
            params["grammar"] = request["grammar"]
        self._model.handle_completions(params, on_chunk)
        _raise_for_error(last)
        usage: dict[str, int] = last.get("usage") or {}
        self._write(
            id=query_id,
            end=last.get("finish_reason") or "",
            input=usage.get("prompt_tokens", 0),
            output=usage.get("completion_tokens", 0),
        )


def _raise_for_error(reply: dict[str, Any] | None) -> None:
    """Raise if the library returned an error as a value."""
    if reply is not None and reply.get("error"):
        raise RuntimeError(str(reply["error"]["message"]))


def main(weights: str, sha256: str, threads: str) -> None:
    """Run the model process.

    Output printed by the library is kept out of the protocol, and Ctrl-C is left to the parent process.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    writer = MessageWriter(out)
    lines: Queue[str] = Queue()
    threading.Thread(target=_read_stdin, args=(lines,), daemon=True).start()
    try:
        _verify_and_preload(Path(weights), sha256, lambda fraction: writer.write(loading=round(fraction, 2)))
        server = ModelServer(_load_model(weights, int(threads)), writer)
    except (OSError, ValueError, RuntimeError, ImportError) as error:
        writer.write(load_error=str(error))
        return
    writer.write(ready=True)
    pool = ThreadPoolExecutor(PROMPT_SLOTS)
    while True:
        request = json.loads(lines.get())
        if request.get("stop"):
            server.stop(request["id"])
        else:
            server.register(request["id"])
            pool.submit(server.answer, request)


def _read_stdin(lines: Queue[str]) -> None:
    for line in sys.stdin:
        lines.put(line)
    os._exit(0)  # the parent process is gone: stop whatever is running


def _verify_and_preload(weights: Path, sha256: str, on_progress: Callable[[float], None]) -> None:
    """Read the file once, to verify its checksum and to have it in memory when the library maps it."""
    size, bytes_read, digest = weights.stat().st_size, 0, hashlib.sha256()
    with weights.open("rb") as file:
        while chunk := file.read(READ_CHUNK_BYTES):
            digest.update(chunk)
            bytes_read += len(chunk)
            on_progress(bytes_read / size)
    if digest.hexdigest() != sha256:
        raise ValueError(f"{weights} is damaged. Delete it and run `retinue models pull`")


def _load_model(weights: str, threads: int) -> Any:
    """Load the model.

    The library always starts an HTTP server; its socket is deleted before anything can connect to it.
    """
    library = importlib.import_module("xllamacpp")
    params = library.CommonParams()
    params.model.path = weights
    params.n_ctx = CONTEXT_TOKENS
    params.n_parallel = PROMPT_SLOTS
    params.kv_unified = True
    params.n_batch = params.n_ubatch = BATCH_TOKENS
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.n_threads_http = 1
    params.cache_ram_mib = 0
    params.warmup = False
    params.verbosity = 0
    params.api_keys = [token_hex(16)]
    with tempfile.TemporaryDirectory(prefix="retinue-model-") as folder:
        params.hostnames = [f"{folder}/model.sock"]
        return library.Server(params)


if __name__ == "__main__":
    main(*sys.argv[1:])
