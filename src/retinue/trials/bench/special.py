"""The measurements with ways of their own: starts, sleepers, those who wait, the prompt's prefix, small costs."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp

from retinue.trials.bench.ours import SMALL, settings
from retinue.trials.bench.rounds import Ground, on_stage
from retinue.trials.bench.samples import Sample, facts_of
from retinue.trials.bench.scenes import ANSWER, HELLO, NOTE, SEEN
from retinue.trials.bench.system import PEERS, QUIET, RETINUE, Failure, Subject, System, started
from retinue.trials.bench.work import past

CEILING_SECONDS = 1.0
WAITING, IDLE, MANY_IDLE, WAKES = 1_000, 1_000, 5_000, 200
REST_SECONDS = 5
DRIVERS = ("openai", "anthropic")


async def ceiling(ground: Ground) -> None:
    """How many requests a second the server answers when a client does nothing else."""
    if ground.samples.of("server", "ceiling", "server"):
        return
    ground.told("what the model server can do")
    port = int(ground.url.rpartition(":")[2])
    body = b'{"model":"bench","stream":true,"messages":[{"role":"user","content":"Read the note."}]}'
    head = b"POST /turn/0/v1/chat/completions HTTP/1.1\r\nHost: bench\r\nContent-Length: %d\r\n\r\n" % len(
        body
    )
    clients = [_Client(head + body) for _ in range(16)]
    loop = asyncio.get_running_loop()
    for client in clients:
        await loop.create_connection(lambda client=client: client, "127.0.0.1", port)
    before, began = sum(each.answers for each in clients), time.perf_counter()
    await asyncio.sleep(CEILING_SECONDS)
    count = sum(each.answers for each in clients) - before
    rate = count / (time.perf_counter() - began)
    for client in clients:
        client.stop()
    ground.samples.add(Sample(row="server", variant="ceiling", system="server", facts={"rate": rate}))


class _Client(asyncio.Protocol):
    """Asks again as soon as it has been answered, and reads nothing of the answer but its end."""

    def __init__(self, request: bytes) -> None:
        self.answers = 0
        self._request = request
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if isinstance(transport, asyncio.Transport):
            self._transport = transport
            transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if data.endswith(b"0\r\n\r\n") and self._transport is not None:
            self.answers += 1
            self._transport.write(self._request)

    def stop(self) -> None:
        if self._transport is not None:
            self._transport.abort()


async def start(ground: Ground) -> None:
    """From the command to the first answer, in turn; the help; and the first answer where much is there already."""
    rounds = ground.rounds(5)
    for number in range(rounds):
        for system in ground.systems:
            if len(ground.samples.of("start", "cold", system.name)) <= number:
                ground.told(f"a cold start: {system.name}, round {number + 1}")
                await _cold(ground, system)
        if len(ground.samples.of("start", "help", "retinue")) <= number:
            command = [sys.executable, "-m", "retinue", "--help"]
            facts = await asyncio.to_thread(_process, command, {}, "COMMAND")
            ground.samples.add(Sample(row="start", variant="help", system="retinue", facts=facts))


async def _cold(ground: Ground, system: System) -> None:
    async with on_stage(ground, system) as subject:
        url = ground.address("talk")
        command = [system.python, str(PEERS / "stage.py"), system.module, url, str(subject.place)]
        env: Mapping[str, str] = QUIET
        if system.name == RETINUE.name:
            command = [sys.executable, "-m", "retinue", "run", "Hello"]
            env = settings(url, str(subject.place))
        facts = await asyncio.to_thread(_process, command, env, HELLO, subject.place)
    problem = "" if facts else "it gave no answer"
    ground.samples.add(Sample(row="start", variant="cold", system=system.name, facts=facts, problem=problem))


def _process(
    command: list[str], env: Mapping[str, str], expect: str, place: Path | None = None
) -> dict[str, float]:
    """Milliseconds until the words were read, and of CPU to the process's end. Empty: they never came."""
    began = time.perf_counter()
    with subprocess.Popen(  # noqa: S603  (our own command)
        command,
        env={**os.environ, **env},
        cwd=place,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        text, wall = "", 0.0
        for line in process.stdout or ():
            text += line.decode("utf-8", "replace")
            if expect in text and not wall:
                wall = time.perf_counter() - began
        used = os.wait4(process.pid, 0)[2]
        process.returncode = 0
    return {"wall": wall * 1000, "cpu": (used.ru_utime + used.ru_stime) * 1000} if wall else {}


async def starts_grown(ground: Ground) -> None:
    """A cold start where many agents are, and in a conversation that is long."""
    grounds: Sequence[tuple[str, tuple[str, dict[str, Any]], bool]] = (
        ("start-20", ("sessions", {"count": 20}), False),
        ("start-1000", ("sessions", {"count": 1_000}), False),
        *((f"start-at-{size}", _order(past(size)), True) for size in (10, 1_000, 10_000)),
    )
    for variant, (do, order), inside in grounds:
        if ground.samples.of("growth", variant, "retinue"):
            continue
        ground.told(f"a cold start: {variant}")
        async with on_stage(ground, RETINUE) as subject:
            url = ground.address("talk")
            await subject.opened(url)
            await subject.told(do, seconds=300, **order)
            session = (await subject.told("newest"))["value"]
            await subject.told("close")
            words = ["send", session, "Hello"] if inside else ["run", "Hello"]
            for _ in range(ground.rounds(5)):
                command = [sys.executable, "-m", "retinue", *words]
                env = settings(url, str(subject.place))
                facts = await asyncio.to_thread(_process, command, env, HELLO, subject.place)
                ground.samples.add(
                    Sample(
                        row="growth",
                        variant=variant,
                        system="retinue",
                        facts=facts,
                        problem="" if facts else "it gave no answer",
                    )
                )


def _order(order: tuple[str, Mapping[str, Any]]) -> tuple[str, dict[str, Any]]:
    return order[0], dict(order[1])


async def idle(ground: Ground) -> None:
    """Agents that have answered once and are not at work: what they take of memory, and how soon they answer again."""
    for count in (IDLE, MANY_IDLE):
        for system in ground.systems:
            if count > IDLE and (system.peer or ground.quick):
                continue
            rounds = 3 if count == IDLE and not system.peer else 1

            async def slept(subject: Subject, count: int = count) -> dict[str, float]:
                return await _idle(subject, count)

            await _kept(ground, "idle", str(count), system, slept, rounds=ground.rounds(rounds))
    await _kept(ground, "idle", "held", RETINUE, lambda subject: _held(ground, subject))


async def _idle(subject: Subject, count: int) -> dict[str, float]:
    await subject.told("first", number=0)
    before = (await subject.told("resident"))["rss"]
    after = (await subject.told("idle", count=count, seconds=150 if subject.system.peer else 600))["rss"]
    step = max(1, count // WAKES)
    numbers = list(range(0, count, step))
    woken = await subject.told("measure", what="wake", numbers=numbers, expect=ANSWER, each=True, seconds=200)
    facts = facts_of(woken)
    return {
        "memory": (after - before) / 2**20,
        "each": (after - before) / 1024 / count,
        "whole": after / 2**20,
        "p95": facts["p95"],
        "wall": facts["wall"],
        "cpu": facts["cpu"],
    }


async def _held(ground: Ground, maker: Subject) -> dict[str, float]:
    """Conversations held open all at once, as those of agents at work are: by another process than made them, in whose
    memory nothing is left over that could be used again."""
    await maker.told("sessions", count=IDLE, seconds=200)
    await maker.told("close", seconds=60)
    async with started(RETINUE, ground.place / "held.log", maker.place) as subject:
        await subject.opened(ground.address("turn"))
        before = (await subject.told("adopt"))["rss"]
        after = (await subject.told("hold", count=IDLE, seconds=200))["rss"]
    return {"each": (after - before) / 1024 / IDLE, "memory": (after - before) / 2**20}


async def waiting(ground: Ground) -> None:
    """Agents that wait: for a person's yes, and for a model that takes its time."""
    await _kept(ground, "waiting", "approval", RETINUE, _waiting_for_yes, scene="wish")
    await _kept(ground, "waiting", "model", RETINUE, _waiting_for_model, scene="talk", latency=90_000)


async def _waiting_for_yes(subject: Subject) -> dict[str, float]:
    found = (await subject.told("wait", count=WAITING, seconds=200))["value"]
    if found < WAITING:
        raise Failure(f"only {found} of {WAITING} came to wait")
    rested = await subject.told("rest", seconds=REST_SECONDS + 10, for_seconds=REST_SECONDS)
    return {"cores": rested["cpu"] / rested["wall"]}


async def _waiting_for_model(subject: Subject) -> dict[str, float]:
    await subject.told("begin", count=WAITING, seconds=200)
    rested = await subject.told("rest", seconds=REST_SECONDS + 10, for_seconds=REST_SECONDS)
    return {"cores": rested["cpu"] / rested["wall"]}


async def prefix(ground: Ground) -> None:
    """Over a run of twenty turns with tools: how much of each request is the beginning of the next."""
    for driver in DRIVERS:

        async def shares(subject: Subject) -> dict[str, float]:
            await subject.told("measure", what="look", numbers=[1], expect=SEEN)
            async with aiohttp.ClientSession() as http, http.get(f"{ground.url}/seen/look") as response:
                found: list[float] = (await response.json())["shares"]
            return {"least": min(found) * 100, "mean": sum(found) / len(found) * 100, "count": len(found)}

        await _kept(ground, "prefix", driver, RETINUE, shares, scene="look", driver=driver)


async def small(ground: Ground) -> None:
    """What one of each costs by itself."""
    for variant, count, expect in (
        ("entry", SMALL, ""), ("step", SMALL, ""), ("guarded", SMALL, NOTE), ("command", 1, "0"),
    ):  # fmt: skip

        async def once(
            subject: Subject, variant: str = variant, count: int = count, expect: str = expect
        ) -> dict[str, float]:
            await subject.told("sessions", count=1)
            await subject.told("measure", what=variant, numbers=[0], expect=expect)
            told = await subject.told("measure", what=variant, numbers=list(range(1, 6)), expect=expect)
            facts = facts_of(told)
            return {"cpu": facts["cpu"] / count, "wall": facts["wall"] / count}

        await _kept(ground, "small", variant, RETINUE, once, rounds=3)


async def _kept(  # noqa: PLR0913  (where, what, who, how)
    ground: Ground,
    row: str,
    variant: str,
    system: System,
    work: Callable[[Subject], Awaitable[Mapping[str, float]]],
    *,
    scene: str = "turn",
    latency: int = 0,
    rounds: int = 1,
    **opening: str,
) -> None:
    """One process of one system, and its sample or why there is none; nothing is measured twice."""
    found = ground.samples.of(row, variant, system.name)
    if any(each.problem for each in found) or system not in ground.systems:
        return
    for number in range(len(found), rounds):
        ground.told(f"{row} {variant}: {system.name}, round {number + 1}")
        try:
            async with on_stage(ground, system) as subject:
                url = ground.address(scene, latency)
                url = url.removesuffix("/v1") if opening.get("driver") == "anthropic" else url
                await subject.opened(url, **opening)
                sample = Sample(row=row, variant=variant, system=system.name, facts=await work(subject))
        except Failure as failure:
            sample = Sample(
                row=row, variant=variant, system=system.name, problem=str(failure), able=failure.able
            )
        ground.samples.add(sample)
        if sample.problem:
            return


SPECIAL: Mapping[str, Sequence[Callable[[Ground], Awaitable[None]]]] = {
    "start": (start,),
    "idle": (idle,),
    "waiting": (waiting,),
    "prefix": (prefix,),
    "small": (small,),
    "growth": (starts_grown,),
}
"""Row → how it is measured."""
