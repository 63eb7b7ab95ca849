"""Measurements with a special procedure: cold starts, idle agents, waiting agents, prompt prefix, operations."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp

from bench.runner import BenchEnvironment, open_subject
from bench.samples import Sample, per_call_measures
from bench.scenarios import HELLO, LOOK_REPLY, NOTE_REPLY, NOTE_TEXT
from bench.subject_process import (
    HARNESS,
    RETINUE,
    SubjectError,
    SubjectProcess,
    System,
    start_subject,
    subject_environment,
)
from bench.subject_retinue import SMALL_REPEATS, isolated_environment
from bench.workloads import history_command

CEILING_SECONDS = 1.0
WAITING_AGENTS, IDLE_AGENTS, MANY_IDLE_AGENTS, WAKE_SAMPLES = 1_000, 1_000, 5_000, 200
IDLE_SECONDS = 5
PROVIDERS = ("openai", "anthropic")


async def measure_server_ceiling(environment: BenchEnvironment) -> None:
    """Measure how many requests per second the server can answer at most."""
    if environment.samples.select("server", "ceiling", "server"):
        return
    environment.on_progress("model server")
    port = int(environment.server_url.rpartition(":")[2])
    body = b'{"model":"bench","stream":true,"messages":[{"role":"user","content":"Read the note."}]}'
    head = b"POST /turn/0/v1/chat/completions HTTP/1.1\r\nHost: bench\r\nContent-Length: %d\r\n\r\n" % len(
        body
    )
    clients = [_LoadClient(head + body) for _ in range(16)]
    loop = asyncio.get_running_loop()
    for client in clients:
        await loop.create_connection(lambda client=client: client, "127.0.0.1", port)
    answers_before, started_at = sum(each.answer_count for each in clients), time.perf_counter()
    await asyncio.sleep(CEILING_SECONDS)
    count = sum(each.answer_count for each in clients) - answers_before
    rate = count / (time.perf_counter() - started_at)
    for client in clients:
        client.abort()
    environment.samples.add(Sample(row="server", variant="ceiling", system="server", facts={"rate": rate}))


class _LoadClient(asyncio.Protocol):
    """A client that sends the next request when a response ends, and reads only its end."""

    def __init__(self, request: bytes) -> None:
        self.answer_count = 0
        self._request = request
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if isinstance(transport, asyncio.Transport):
            self._transport = transport
            transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if data.endswith(b"0\r\n\r\n") and self._transport is not None:
            self.answer_count += 1
            self._transport.write(self._request)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


async def measure_cold_starts(environment: BenchEnvironment) -> None:
    """Measure the time from the command to the first reply for each system, and `--help`."""
    rounds = environment.round_count(5)
    for number in range(rounds):
        for system in environment.systems:
            if len(environment.samples.select("start", "cold", system.name)) <= number:
                environment.on_progress(f"a cold start: {system.name}, round {number + 1}")
                await _measure_cold_start(environment, system)
        if len(environment.samples.select("start", "help", "retinue")) <= number:
            command = [sys.executable, "-m", "retinue", "--help"]
            facts = await asyncio.to_thread(_time_process, command, {}, "COMMAND")
            environment.samples.add(Sample(row="start", variant="help", system="retinue", facts=facts))


async def _measure_cold_start(environment: BenchEnvironment, system: System) -> None:
    async with open_subject(environment, system) as subject:
        url = environment.scenario_url("talk")
        command = [system.python, str(HARNESS), system.module, url, str(subject.folder)]
        env = subject_environment(system)
        if system.name == RETINUE.name:
            command = [sys.executable, "-m", "retinue", "run", "Hello"]
            env = isolated_environment(url, str(subject.folder))
        facts = await asyncio.to_thread(_time_process, command, env, HELLO, subject.folder)
    problem = "" if facts else "no reply"
    environment.samples.add(
        Sample(row="start", variant="cold", system=system.name, facts=facts, problem=problem)
    )


def _time_process(
    command: list[str], env: Mapping[str, str], expected_text: str, folder: Path | None = None
) -> dict[str, float]:
    """Return milliseconds until the expected text was read, and CPU milliseconds of the process.

    Empty if the text was not printed.
    """
    started_at = time.perf_counter()
    with subprocess.Popen(  # noqa: S603  (our own command)
        command,
        env={**os.environ, **env},
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        text, wall_s = "", 0.0
        for line in process.stdout or ():
            text += line.decode("utf-8", "replace")
            if expected_text in text and not wall_s:
                wall_s = time.perf_counter() - started_at
        usage = os.wait4(process.pid, 0)[2]
        process.returncode = 0
    return {"wall": wall_s * 1000, "cpu": (usage.ru_utime + usage.ru_stime) * 1000} if wall_s else {}


async def measure_grown_starts(environment: BenchEnvironment) -> None:
    """Measure cold starts with many agents, and in a long conversation."""
    cases: Sequence[tuple[str, tuple[str, dict[str, Any]], bool]] = (
        ("start-20", ("create_sessions", {"count": 20}), False),
        ("start-1000", ("create_sessions", {"count": 1_000}), False),
        *(
            (f"start-at-{size}", _with_dict_arguments(history_command(size)), True)
            for size in (10, 1_000, 10_000)
        ),
    )
    for variant, (subject_command, command_arguments), in_session in cases:
        if environment.samples.select("growth", variant, "retinue"):
            continue
        environment.on_progress(f"a cold start: {variant}")
        async with open_subject(environment, RETINUE) as subject:
            url = environment.scenario_url("talk")
            await subject.open(url)
            await subject.send_command(subject_command, timeout_s=300, **command_arguments)
            session = (await subject.send_command("newest_session_id"))["value"]
            await subject.send_command("close")
            arguments = ["send", session, "Hello"] if in_session else ["run", "Hello"]
            for _ in range(environment.round_count(5)):
                command = [sys.executable, "-m", "retinue", *arguments]
                env = isolated_environment(url, str(subject.folder))
                facts = await asyncio.to_thread(_time_process, command, env, HELLO, subject.folder)
                environment.samples.add(
                    Sample(
                        row="growth",
                        variant=variant,
                        system="retinue",
                        facts=facts,
                        problem="" if facts else "no reply",
                    )
                )


def _with_dict_arguments(command: tuple[str, Mapping[str, Any]]) -> tuple[str, dict[str, Any]]:
    return command[0], dict(command[1])


async def measure_idle_agents(environment: BenchEnvironment) -> None:
    """Measure the memory of idle agents that have answered once, and how soon they answer again."""
    for count in (IDLE_AGENTS, MANY_IDLE_AGENTS):
        for system in environment.systems:
            if count > IDLE_AGENTS and (system.is_peer or environment.quick):
                continue
            rounds = 3 if count == IDLE_AGENTS and not system.is_peer else 1

            async def measure(subject: SubjectProcess, count: int = count) -> dict[str, float]:
                return await _measure_idle(subject, count)

            await _measure_in_subject(
                environment, "idle", str(count), system, measure, rounds=environment.round_count(rounds)
            )
    await _measure_in_subject(
        environment,
        "idle",
        "held",
        RETINUE,
        lambda subject: _measure_open_conversations(environment, subject),
    )


async def _measure_idle(subject: SubjectProcess, count: int) -> dict[str, float]:
    await subject.send_command("run_new_session", number=0)
    before_bytes = (await subject.send_command("report_memory"))["rss"]
    after_bytes = (
        await subject.send_command(
            "create_idle_agents", count=count, timeout_s=150 if subject.system.is_peer else 600
        )
    )["rss"]
    step = max(1, count // WAKE_SAMPLES)
    numbers = list(range(0, count, step))
    wake_result = await subject.send_command(
        "measure", what="wake_agent", numbers=numbers, expect=NOTE_REPLY, each=True, timeout_s=200
    )
    facts = per_call_measures(wake_result)
    return {
        "memory": (after_bytes - before_bytes) / 2**20,
        "each": (after_bytes - before_bytes) / 1024 / count,
        "whole": after_bytes / 2**20,
        "p95": facts["p95"],
        "wall": facts["wall"],
        "cpu": facts["cpu"],
    }


async def _measure_open_conversations(
    environment: BenchEnvironment, creator: SubjectProcess
) -> dict[str, float]:
    """Measure many conversations that are open at once, like those of running agents.

    The measured process did not create them, so its memory has no leftovers to reuse.
    """
    await creator.send_command("create_sessions", count=IDLE_AGENTS, timeout_s=200)
    await creator.send_command("close", timeout_s=60)
    async with start_subject(RETINUE, environment.work_dir / "held.log", creator.folder) as subject:
        await subject.open(environment.scenario_url("turn"))
        before_bytes = (await subject.send_command("adopt_sessions"))["rss"]
        after_bytes = (await subject.send_command("open_conversations", count=IDLE_AGENTS, timeout_s=200))[
            "rss"
        ]
    return {
        "each": (after_bytes - before_bytes) / 1024 / IDLE_AGENTS,
        "memory": (after_bytes - before_bytes) / 2**20,
    }


async def measure_waiting_agents(environment: BenchEnvironment) -> None:
    """Measure agents that wait for an approval, and agents that wait for a slow model."""
    await _measure_in_subject(
        environment, "waiting", "approval", RETINUE, _measure_waiting_for_approval, scenario="write"
    )
    await _measure_in_subject(
        environment,
        "waiting",
        "model",
        RETINUE,
        _measure_waiting_for_model,
        scenario="talk",
        latency_ms=90_000,
    )


async def _measure_waiting_for_approval(subject: SubjectProcess) -> dict[str, float]:
    waiting_count = (
        await subject.send_command("start_waiting_for_approval", count=WAITING_AGENTS, timeout_s=200)
    )["value"]
    if waiting_count < WAITING_AGENTS:
        raise SubjectError(f"only {waiting_count} of {WAITING_AGENTS} runs are waiting")
    idle_usage = await subject.send_command(
        "measure_idle", timeout_s=IDLE_SECONDS + 10, for_seconds=IDLE_SECONDS
    )
    return {"cores": idle_usage["cpu"] / idle_usage["wall"]}


async def _measure_waiting_for_model(subject: SubjectProcess) -> dict[str, float]:
    await subject.send_command("start_waiting_for_model", count=WAITING_AGENTS, timeout_s=200)
    idle_usage = await subject.send_command(
        "measure_idle", timeout_s=IDLE_SECONDS + 10, for_seconds=IDLE_SECONDS
    )
    return {"cores": idle_usage["cpu"] / idle_usage["wall"]}


async def measure_prompt_prefix(environment: BenchEnvironment) -> None:
    """Measure, over a run of twenty turns with tools, how much of each request is a prefix of the next."""
    for provider in PROVIDERS:

        async def measure_shares(subject: SubjectProcess) -> dict[str, float]:
            await subject.send_command("measure", what="run_long", numbers=[1], expect=LOOK_REPLY)
            async with (
                aiohttp.ClientSession() as http,
                http.get(f"{environment.server_url}/stats/look") as response,
            ):
                shares: list[float] = (await response.json())["shares"]
            return {
                "least": min(shares) * 100,
                "mean": sum(shares) / len(shares) * 100,
                "count": len(shares),
            }

        await _measure_in_subject(
            environment, "prefix", provider, RETINUE, measure_shares, scenario="look", driver=provider
        )


async def measure_small_operations(environment: BenchEnvironment) -> None:
    """Measure single operations."""
    for variant, command, count, expect in (
        ("entry", "append_entries", SMALL_REPEATS, ""),
        ("step", "write_steps", SMALL_REPEATS, ""),
        ("guarded", "read_guarded_file", SMALL_REPEATS, NOTE_TEXT),
        ("command", "run_command", 1, "0"),
    ):

        async def measure_operation(
            subject: SubjectProcess, command: str = command, count: int = count, expect: str = expect
        ) -> dict[str, float]:
            await subject.send_command("create_sessions", count=1)
            await subject.send_command("measure", what=command, numbers=[0], expect=expect)
            result = await subject.send_command(
                "measure", what=command, numbers=list(range(1, 6)), expect=expect
            )
            facts = per_call_measures(result)
            return {"cpu": facts["cpu"] / count, "wall": facts["wall"] / count}

        await _measure_in_subject(environment, "small", variant, RETINUE, measure_operation, rounds=3)


async def _measure_in_subject(  # noqa: PLR0913  (environment, names, system and procedure)
    environment: BenchEnvironment,
    row: str,
    variant: str,
    system: System,
    take_sample: Callable[[SubjectProcess], Awaitable[Mapping[str, float]]],
    *,
    scenario: str = "turn",
    latency_ms: int = 0,
    rounds: int = 1,
    **open_options: str,
) -> None:
    """Measure one system in a separate process and record a sample or the problem.

    Existing samples are not taken again.
    """
    existing = environment.samples.select(row, variant, system.name)
    if any(each.problem for each in existing) or system not in environment.systems:
        return
    for number in range(len(existing), rounds):
        environment.on_progress(f"{row} {variant}: {system.name}, round {number + 1}")
        try:
            async with open_subject(environment, system) as subject:
                url = environment.scenario_url(scenario, latency_ms)
                url = url.removesuffix("/v1") if open_options.get("driver") == "anthropic" else url
                await subject.open(url, **open_options)
                sample = Sample(
                    row=row, variant=variant, system=system.name, facts=await take_sample(subject)
                )
        except SubjectError as failure:
            sample = Sample(
                row=row, variant=variant, system=system.name, problem=str(failure), able=failure.is_supported
            )
        environment.samples.add(sample)
        if sample.problem:
            return


SPECIAL_MEASUREMENTS: Mapping[str, Sequence[Callable[[BenchEnvironment], Awaitable[None]]]] = {
    "start": (measure_cold_starts,),
    "idle": (measure_idle_agents,),
    "waiting": (measure_waiting_agents,),
    "prefix": (measure_prompt_prefix,),
    "small": (measure_small_operations,),
    "growth": (measure_grown_starts,),
}
"""The measurements of each row."""
