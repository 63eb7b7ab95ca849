"""The process that holds the model: lines of JSON in, lines of JSON out, and it ends when nobody is left to ask.

Asked {"id", "slot", "prompt", "top"}      it answers {"id", "top": {piece: log likelihood}}: what would come next.
Asked {"id", "slot", "prompt", "most", …}  it answers {"id", "text"}…, then {"id", "end", "input", "output"}: what comes next.
Told  {"id", "stop": true}         it stops saying that.
Before the first answer it says {"loading": 0…1} and {"ready": true}, or {"broken": why}.
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

CONTEXT = 8192
"""Tokens that all prompts share: about 190 MB."""
SLOTS = 8
"""So many prompts are remembered: one that begins like an earlier one is not read from its start again."""
BATCH = 128
"""Tokens read between two looks at whether anybody still wants to know."""
CHUNK = 4 << 20


class Voice:
    """One stream for several threads."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._writing = threading.Lock()

    def say(self, **words: Any) -> None:
        with self._writing:
            try:
                self._out.write(json.dumps(words) + "\n")
                self._out.flush()
            except OSError:
                os._exit(0)  # nobody listens any more


class Host:
    """Answers whatever is asked, several things at once."""

    def __init__(self, model: Any, voice: Voice) -> None:
        self._model = model
        self._say = voice.say
        self._wanted: set[int] = set()

    def expect(self, number: int) -> None:
        self._wanted.add(number)

    def stop(self, number: int) -> None:
        self._wanted.discard(number)

    def answer(self, asked: dict[str, Any]) -> None:
        number: int = asked["id"]
        try:
            if "top" in asked:
                self._likely(number, asked)
            else:
                self._speak(number, asked)
        except (RuntimeError, ValueError, KeyError, IndexError, TypeError) as error:
            self._say(id=number, error=str(error)[:500] or type(error).__name__)
        finally:
            self.stop(number)

    def _likely(self, number: int, asked: dict[str, Any]) -> None:
        if number not in self._wanted:
            return
        wish = {
            "prompt": asked["prompt"],
            "n_predict": 1,
            "n_probs": asked["top"],
            "temperature": 0,
            "id_slot": asked["slot"],
        }
        reply = self._model.handle_completions({**wish, "cache_prompt": True})
        _check(reply)
        found = reply["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
        usage = reply["usage"]
        top: dict[str, float] = {}
        for each in found:  # the likeliest first: of pieces that read alike, that one counts
            top.setdefault(each["token"], each["logprob"])
        self._say(
            id=number,
            top=top,
            input=usage["prompt_tokens"],
            output=usage["completion_tokens"],
        )

    def _speak(self, number: int, asked: dict[str, Any]) -> None:
        last: dict[str, Any] = {}

        def heard(piece: dict[str, Any]) -> bool:
            last.update(piece)
            for choice in piece.get("choices") or ():
                last["why"] = choice.get("finish_reason") or last.get("why")
                if choice.get("text"):
                    self._say(id=number, text=choice["text"])
            return number not in self._wanted

        wish: dict[str, Any] = {
            "prompt": asked["prompt"],
            "n_predict": asked["most"],
            "id_slot": asked["slot"],
            "temperature": asked.get("temperature", 0),
            "repeat_penalty": asked.get("repeat_penalty", 1),
            "stop": asked.get("stops") or [],
            "stream": True,
            "return_progress": True,
            "cache_prompt": True,
            "stream_options": {"include_usage": True},
        }
        if asked.get("grammar"):
            wish["grammar"] = asked["grammar"]
        self._model.handle_completions(wish, heard)
        _check(last)
        usage: dict[str, int] = last.get("usage") or {}
        self._say(
            id=number,
            end=last.get("why") or "",
            input=usage.get("prompt_tokens", 0),
            output=usage.get("completion_tokens", 0),
        )


def _check(reply: dict[str, Any] | None) -> None:
    """A refusal comes as a value."""
    if reply is not None and reply.get("error"):
        raise RuntimeError(str(reply["error"]["message"]))


def main(weights: str, sha256: str, threads: str) -> None:
    """Nothing that the library prints gets between the lines, and Ctrl-C is meant for whoever started this."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    tell = Voice(out)
    lines: Queue[str] = Queue()
    threading.Thread(target=_listen, args=(lines,), daemon=True).start()
    try:
        _read(Path(weights), sha256, lambda part: tell.say(loading=round(part, 2)))
        host = Host(_model(weights, int(threads)), tell)
    except (OSError, ValueError, RuntimeError, ImportError) as error:
        tell.say(broken=str(error))
        return
    tell.say(ready=True)
    pool = ThreadPoolExecutor(SLOTS)
    while True:
        asked = json.loads(lines.get())
        if asked.get("stop"):
            host.stop(asked["id"])
        else:
            host.expect(asked["id"])
            pool.submit(host.answer, asked)


def _listen(lines: Queue[str]) -> None:
    for line in sys.stdin:
        lines.put(line)
    os._exit(0)  # nobody is left: whatever is being loaded or said, is so for nobody


def _read(weights: Path, sha256: str, told: Callable[[float], None]) -> None:
    """Once through the file, so that it is known to be whole, and is in memory when the library maps it."""
    size, done, digest = weights.stat().st_size, 0, hashlib.sha256()
    with weights.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
            done += len(chunk)
            told(done / size)
    if digest.hexdigest() != sha256:
        raise ValueError(f"{weights} is damaged: delete it, and `retinue models pull` brings it anew")


def _model(weights: str, threads: int) -> Any:
    """The library insists on a server of its own: its socket is gone before anybody could find it."""
    library = importlib.import_module("xllamacpp")
    params = library.CommonParams()
    params.model.path = weights
    params.n_ctx = CONTEXT
    params.n_parallel = SLOTS
    params.kv_unified = True
    params.n_batch = params.n_ubatch = BATCH
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
