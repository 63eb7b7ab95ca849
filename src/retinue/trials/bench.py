"""What a turn, a run and a conversation cost here, beside the bare HTTP calls, in one go on one machine."""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from retinue.app import App
from retinue.app import open as open_app
from retinue.config import load
from retinue.domain.session import Session
from retinue.domain.transcript import Entry, Said
from retinue.domain.turn import Delta, Model, Request
from retinue.drivers.gateway import Gateway
from retinue.drivers.openai_chat import OpenAIChat
from retinue.engine.chance import system_chance
from retinue.store.files import FileStore


def _reads(count: int) -> list[dict[str, Any]]:
    """Replies that each read another part of the note."""
    return [
        {"tools": [{"name": "read", "args": {"path": "note.txt", "offset": at + 1}}]} for at in range(count)
    ]


LONG = 40
TOOL_TURN: dict[str, Any] = {
    "parts": [
        {
            "when": "Read it all.",
            "by": "history",
            "loop": True,
            "replies": [*_reads(LONG), "That is all of it."],
        },
        {"by": "history", "loop": True, "replies": [*_reads(1), "That is what the file says."]},
    ]
}
TOKENS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measured number, and the most it should be."""

    what: str
    value: float
    unit: str
    most: float | None = None

    def as_json(self) -> dict[str, Any]:
        return {"what": self.what, "value": round(self.value, 3), "unit": self.unit, "most": self.most}


async def measured(told: Callable[[str], None], *, runs: int = 200, children: int = 1000) -> list[Row]:
    """Every measurement, one after the other; `told` hears which is going on."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="retinue-bench-") as folder:
        place = Path(folder)
        (place / "note.txt").write_text("A note of one line.\n" * 5)
        for name, part in PARTS.items():
            told(name)
            rows += await part(place, runs if part is turns else children)
    return rows


async def turns(place: Path, runs: int) -> list[Row]:
    """One turn with one tool is what a run of 40 such turns costs more than a run of one, divided by the difference;
    the bare yardstick makes one request and syncs two lines per turn."""
    async with _served(place, TOOL_TURN) as url:
        bare = await _bare(place, url, runs) / 2
        async with _app(place, url) as app:
            await _times(10, lambda: app.run("Read the note.", workspace=place))
            short = await _times(runs, lambda: app.run("Read the note.", workspace=place))
            long = await _times(max(2, runs // 20), lambda: app.run("Read it all.", workspace=place))
            again = await _again(app, place, runs)
    turn = (long - short) / (LONG - 1)
    return [
        Row(what="bare: one HTTP call, two lines synced", value=bare, unit="ms CPU"),
        Row(what="one turn with one tool, persisted", value=turn, unit="ms CPU", most=1.5),
        Row(what="a turn over the bare call", value=turn / bare, unit="times"),
        Row(what="a run of two turns in a session that is there", value=again, unit="ms CPU"),
        Row(what="a run of two turns in a session of its own", value=short, unit="ms CPU"),
    ]


async def _again(app: App, place: Path, runs: int) -> float:
    """Short sessions, each used once more."""
    made = [(await app.run("Read the note.", workspace=place)).session_id for _ in range(max(2, runs // 4))]
    began = time.process_time()
    for session in made:
        await app.run("Once more.", session=session)
    return (time.process_time() - began) * 1000 / len(made)


async def crowd(place: Path, children: int) -> list[Row]:
    """Many at once, each in a session of its own."""
    async with _served(place, TOOL_TURN) as url, _app(place, url, live=children) as app:
        await app.run("Read the note.", workspace=place)
        began, cpu = time.perf_counter(), time.process_time()
        ended = await asyncio.gather(*(app.run("Read the note.", workspace=place) for _ in range(children)))
        seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    return [
        Row(what=f"{children:,} runs at once", value=seconds, unit="s", most=2.5 * children / 1000),
        Row(what="of it, CPU of this process", value=cpu, unit="s CPU"),
        Row(what="of which not done", value=sum(run.status != "done" for run in ended), unit="runs", most=0),
    ]


async def history(place: Path, _: int) -> list[Row]:
    """A long conversation: loading it, and one more turn in it."""
    rows: list[Row] = []
    async with _served(place, TOOL_TURN) as url, _app(place, url) as app:
        for entries, most in ((10, None), (1_000, 3.0), (10_000, 25.0)):
            session = await _long(app, place, entries)
            if entries == 10_000:  # noqa: PLR2004  (the size the claim is made for)
                load = await _load(app, session)
                rows.append(Row(what="load 10,000 entries", value=load, unit="ms CPU", most=60))
            rows.append(
                Row(
                    what=f"a turn at {entries:,} entries",
                    value=await _late_turn(app, session, url),
                    unit="ms CPU",
                    most=most,
                )
            )
            grown = await _grown(app, session)
            rows.append(
                Row(what=f"bytes a turn adds at {entries:,} entries", value=grown, unit="B", most=8_192)
            )
    return rows


async def stream(place: Path, _: int) -> list[Row]:
    """A reply of 200 tokens, piece by piece: what it costs beside a reply of one word, and over the bare stream."""
    words = " ".join(["token"] * TOKENS)
    script = {
        "parts": [
            {"when": "Say it all.", "loop": True, "replies": [words]},
            {"loop": True, "replies": ["It."]},
        ]
    }
    async with _served(place, script) as url, _app(place, url) as app:
        session = (await app.run("Say it.", workspace=place)).session_id
        short = await _times(20, lambda: app.run("Say it.", session=session))
        other = (await app.run("Say it all.", workspace=place)).session_id
        long = await _times(20, lambda: app.run("Say it all.", session=other))
    return [Row(what=f"{TOKENS} tokens streamed instead of one", value=long - short, unit="ms CPU", most=5)]


async def start(place: Path, _: int) -> list[Row]:
    """From the command to the first answer, and the help."""
    async with _served(place, {"replies": ["Hello."], "loop": True}) as url:
        env = os.environ | {
            "OPENAI_BASE_URL": url,
            "OPENAI_API_KEY": "bench-key-000",
            "RETINUE_MODEL": "openai:bench",
            "RETINUE_HOME": str(place / "cold"),
            "RETINUE_CONFIG": str(place / "cold-config"),
        }
        answer = await asyncio.to_thread(_best, [sys.executable, "-m", "retinue", "run", "Hello"], env)
        help_ = await asyncio.to_thread(_best, [sys.executable, "-m", "retinue", "--help"], env)
    return [
        Row(what="cold start to the answer", value=answer, unit="s", most=0.5),
        Row(what="retinue --help", value=help_, unit="s", most=0.15),
    ]


PARTS: dict[str, Callable[[Path, int], Awaitable[list[Row]]]] = {
    "one turn with one tool": turns,
    "many runs at once": crowd,
    "a long conversation": history,
    "a streamed reply": stream,
    "a cold start": start,
}


def main(arguments: Sequence[str] = ()) -> int:
    """`--json` prints rows for programs; `--quick` measures less often."""
    quick = "--quick" in arguments
    rows = asyncio.run(
        measured(
            lambda name: print(f"measuring {name} …", file=sys.stderr),
            runs=40 if quick else 200,
            children=100 if quick else 1000,
        )
    )
    if "--json" in arguments:
        print(json.dumps([row.as_json() for row in rows]))
        return 0
    for row in rows:
        most = "" if row.most is None else f"at most {row.most:g}"
        print(f"{row.what:<48}{row.value:>12.2f} {row.unit:<8}{most}".rstrip())
    return 0


@asynccontextmanager
async def _served(place: Path, script: dict[str, Any]) -> AsyncGenerator[str]:
    """The model server in a process of its own, so that its cost is not ours."""
    file = place / f"script-{time.monotonic_ns()}.json"
    file.write_text(json.dumps(script))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "retinue.testing.model_server", "--script", str(file), stdout=subprocess.PIPE
    )
    try:
        if process.stdout is None:
            raise RuntimeError("the model server has no output")
        yield (await process.stdout.readline()).decode().split()[-1]
    finally:
        process.terminate()
        await process.wait()


@asynccontextmanager
async def _app(place: Path, url: str, *, live: int = 16) -> AsyncGenerator[App]:
    env = {
        "OPENAI_BASE_URL": url,
        "OPENAI_API_KEY": "bench-key-000",
        "RETINUE_MODEL": "openai:bench",
        "RETINUE_HOME": tempfile.mkdtemp(dir=place),
        "RETINUE_CONFIG": str(place / "config"),
    }
    config = load(env)
    async with open_app(config=replace(config, limits=replace(config.limits, max_live=live))) as app:
        yield app


async def _times(count: int, once: Callable[[], Awaitable[object]]) -> float:
    """Milliseconds of this process's CPU for one."""
    began = time.process_time()
    for _ in range(count):
        await once()
    return (time.process_time() - began) * 1000 / count


async def _bare(place: Path, url: str, runs: int) -> float:
    """What nobody can save: two streamed requests, and four lines appended and synced."""
    import aiohttp  # noqa: PLC0415  (the yardstick, not the product)

    tools = [{"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}]
    fd = os.open(place / "journal", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    async def once(session: aiohttp.ClientSession) -> None:
        messages: list[dict[str, Any]] = [{"role": "user", "content": "Read the note."}]
        for _ in range(2):
            os.write(fd, json.dumps(messages[-1]).encode() + b"\n")
            os.fsync(fd)
            body = {"model": "bench", "stream": True, "tools": tools, "messages": messages}
            async with session.post(f"{url}/chat/completions", json=body) as response:
                text = await response.text()
            messages.append({"role": "assistant", "content": text[:100]})
            os.write(fd, json.dumps(messages[-1]).encode() + b"\n")
            os.fsync(fd)

    async with aiohttp.ClientSession() as session:
        await _times(20, lambda: once(session))
        value = await _times(runs, lambda: once(session))
    os.close(fd)
    return value


async def _long(app: App, place: Path, entries: int) -> str:
    """A session with a past of ordinary length."""
    run = await app.run("Read the note.", workspace=place)
    past = [
        Said(id=f"past{number}", by="user" if number % 2 else "agent", text=f"Line {number}. " + "word " * 30)
        for number in range(entries)
    ]
    async with app.store.open(await app.session(run.session_id)) as talk:
        await talk.append(*past)
        await talk.rest()
    return run.session_id


async def _load(app: App, session: str) -> float:
    """The best of three, each by a store that has nothing kept of the conversation."""
    found = await app.session(session)
    loads: list[float] = []
    for _ in range(3):
        store = FileStore(app.store.root, system_chance())
        loads.append(await _times(1, lambda store=store: _opened(store, found)))
        store.close()
    return min(loads)


async def _opened(store: FileStore, session: Session) -> None:
    async with store.open(session):
        pass


async def _late_turn(app: App, session: str, url: str) -> float:
    """One request over the whole past and one entry more, the conversation staying resident."""
    gateway = Gateway({"openai": lambda _: OpenAIChat(url, "bench-key-000")}, system_chance())
    chance = system_chance()
    model = Model(driver="openai", name="bench")
    async with app.store.open(await app.session(session)) as talk:

        async def once() -> None:
            entry: Entry = Said(id=chance.entry_id(), by="user", text="And now?")
            await talk.append(entry)
            request = Request(
                model=model, agent="general", system="s", tools=(), entries=talk.entries, memo=talk.memo
            )
            await gateway.turn(request, _unheard)

        await once()
        value = await _times(10, once)
    await gateway.close()
    return value


async def _grown(app: App, session: str) -> float:
    """What one more run writes, by the files and not by the calls: the conversation grows, and nothing is rewritten."""
    path = Path((await app.session(session)).path) / "session.md"
    before = _written()
    size = path.stat().st_size
    await app.run("Read it all.", session=session)
    long = _written() - before
    before = _written()
    await app.run("Read the note.", session=session)
    short = _written() - before
    told = path.stat().st_size - size
    return max(told / (LONG + 3), (long - short) / (LONG - 1))


def _unheard(_: Delta) -> None:
    return


def _written() -> int:
    """Bytes this process has handed to write(2) and its kin so far."""
    for line in Path("/proc/self/io").read_text().splitlines():
        if line.startswith("wchar"):
            return int(line.split()[1])
    return 0


def _best(command: list[str], env: dict[str, str]) -> float:
    """The best of five: what it can take, not what the neighbours make of it."""
    times: list[float] = []
    for _ in range(5):
        began = time.perf_counter()
        subprocess.run(command, env=env, check=True, capture_output=True)  # noqa: S603  (our own command)
        times.append(time.perf_counter() - began)
    return min(times)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
