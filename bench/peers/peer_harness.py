"""Run a measured system: execute commands from standard input and return their cost.

    python peer_harness.py MODULE
    python peer_harness.py MODULE URL PLACE        one reply from a cold start

MODULE has a class `Subject`. Commands and results are JSON lines. Every system is measured by this file, which
needs only the standard library. Preparation, such as writing a history, is not measured. Output of the system goes to
standard error, so that standard output has only the results.
"""

import asyncio
import cProfile
import gc
import importlib
import inspect
import json
import os
import pstats
import resource
import sys
import time
import traceback


async def run_commands() -> None:
    output_fd = os.dup(1)
    os.dup2(2, 1)
    module = importlib.import_module(sys.argv[1])
    subject = module.Subject()
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        command = json.loads(line)
        try:
            result = await execute_command(subject, command)
        except Exception as error:  # noqa: BLE001  (any failure of a system is a result)
            traceback.print_exc()
            result = {"failed": f"{type(error).__name__}: {error}"[:300]}
        os.write(output_fd, json.dumps(result).encode() + b"\n")


async def run_cold_start(module, url, place):
    """Start the system, print its first reply and close it."""
    subject = importlib.import_module(module).Subject()
    await subject.open(url=url, place=place)
    print(await subject.run_new_session(0), flush=True)
    await subject.close()


async def execute_command(subject, arguments):
    command = arguments.pop("do")
    if command == "measure":
        return await measure_calls(subject, **arguments)
    if command == "measure_idle":
        return await measure_idle(**arguments)
    if command == "report_memory":
        gc.collect()
        return {"rss": resident_memory()}
    method = getattr(subject, command, None)
    if method is None:
        return {"cannot": getattr(subject, "cannot", {}).get(command, "not supported")}
    value = method(**arguments)
    value = await value if inspect.isawaitable(value) else value
    gc.collect()
    return {"value": value, "rss": resident_memory(), "peak": peak_memory()}


async def measure_calls(subject, *, what, numbers, expect, each=False, profile=""):
    """Run the method once per number and return the cost.

    With `each`, the time of each call is returned as well. With `profile`, a profile is appended to that file; the
    measured cost is then invalid.
    """
    method = getattr(subject, what, None)
    if method is None:
        return {"cannot": getattr(subject, "cannot", {}).get(what, "not supported")}
    gc.collect()
    reset_peak_memory()
    times = []
    wrong_reply = None
    profiler = cProfile.Profile(time.process_time) if profile else None
    if profiler is not None:
        profiler.enable()
    cpu_before, started_at, written_before = cpu_seconds(), time.perf_counter(), bytes_written()
    for number in numbers:
        call_started_at = time.perf_counter()
        reply = await method(number)
        times.append(time.perf_counter() - call_started_at)
        if reply != expect and wrong_reply is None:
            wrong_reply = str(reply)[:200]
    cost = {
        "cpu": cpu_seconds() - cpu_before,
        "wall": time.perf_counter() - started_at,
        "written": bytes_written() - written_before,
    }
    cost |= {"count": len(numbers), "peak": peak_memory(), "rss": resident_memory()}
    if profiler is not None:
        profiler.disable()
        with open(profile, "a") as file:  # noqa: PTH123
            pstats.Stats(profiler, stream=file).sort_stats("tottime").print_stats(45)
    if each:
        cost["times"] = times
    return cost if wrong_reply is None else {"failed": f"unexpected reply {wrong_reply!r}"}


async def measure_idle(for_seconds):
    """Return the cost of an idle process."""
    await asyncio.sleep(1)
    cpu_before, started_at = cpu_seconds(), time.perf_counter()
    await asyncio.sleep(for_seconds)
    return {
        "cpu": cpu_seconds() - cpu_before,
        "wall": time.perf_counter() - started_at,
        "count": 1,
        "rss": resident_memory(),
    }


def cpu_seconds():
    """Return CPU seconds of this process, its threads, and children it waited for."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def bytes_written():
    """Return the bytes passed to write(2) and similar; socket sends do not count."""
    with open("/proc/self/io") as file:  # noqa: PTH123
        return next(int(line.split()[1]) for line in file if line.startswith("wchar"))


def reset_peak_memory():
    """Reset the peak memory counter."""
    try:
        with open("/proc/self/clear_refs", "w") as file:  # noqa: PTH123
            file.write("5")
    except OSError:
        return


def peak_memory():
    return read_status_bytes("VmHWM")


def resident_memory():
    return read_status_bytes("VmRSS")


def read_status_bytes(name):
    with open("/proc/self/status") as file:  # noqa: PTH123
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(name))


if __name__ == "__main__":
    asyncio.run(run_cold_start(*sys.argv[1:]) if len(sys.argv) > 2 else run_commands())  # noqa: PLR2004
