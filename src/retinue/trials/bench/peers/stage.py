"""Where a system does its work: told by lines of JSON on standard input, measured here, in its own process.

    python stage.py MODULE
    python stage.py MODULE URL PLACE        one answer, from nothing

MODULE has a class `Subject`; every system is measured by this very file, with nothing but the standard library. What
costs the system nothing, such as making a history to begin with, is prepared before the clock runs. Whatever a system
prints goes to standard error; only answers to orders go to where standard output was.
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


async def main() -> None:
    said = os.dup(1)
    os.dup2(2, 1)
    module = importlib.import_module(sys.argv[1])
    subject = module.Subject()
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        order = json.loads(line)
        try:
            told = await obeyed(subject, order)
        except Exception as error:  # noqa: BLE001  (whatever a system does is a fact about it)
            traceback.print_exc()
            told = {"failed": f"{type(error).__name__}: {error}"[:300]}
        os.write(said, json.dumps(told).encode() + b"\n")


async def cold(module, url, place):
    """All that a program needs for its first answer."""
    subject = importlib.import_module(module).Subject()
    await subject.open(url=url, place=place)
    print(await subject.first(0), flush=True)
    await subject.close()


async def obeyed(subject, order):
    do = order.pop("do")
    if do == "measure":
        return await measured(subject, **order)
    if do == "rest":
        return await rested(**order)
    if do == "resident":
        gc.collect()
        return {"rss": resident()}
    work = getattr(subject, do, None)
    if work is None:
        return {"cannot": getattr(subject, "cannot", {}).get(do, "it has nothing for this")}
    value = work(**order)
    value = await value if inspect.isawaitable(value) else value
    gc.collect()
    return {"value": value, "rss": resident(), "peak": peak()}


async def measured(subject, *, what, numbers, expect, each=False, profile=""):
    """The work once for each number. With `each` the time of every single one is told as well; a profile goes to its
    file, and makes the figures worthless."""
    work = getattr(subject, what, None)
    if work is None:
        return {"cannot": getattr(subject, "cannot", {}).get(what, "it has nothing for this")}
    gc.collect()
    afresh()
    times = []
    wrong = None
    profiler = cProfile.Profile(time.process_time) if profile else None
    if profiler is not None:
        profiler.enable()
    before, began, written = cpu(), time.perf_counter(), wrote()
    for number in numbers:
        at = time.perf_counter()
        text = await work(number)
        times.append(time.perf_counter() - at)
        if text != expect and wrong is None:
            wrong = str(text)[:200]
    facts = {"cpu": cpu() - before, "wall": time.perf_counter() - began, "written": wrote() - written}
    facts |= {"count": len(numbers), "peak": peak(), "rss": resident()}
    if profiler is not None:
        profiler.disable()
        with open(profile, "a") as file:  # noqa: PTH123
            pstats.Stats(profiler, stream=file).sort_stats("tottime").print_stats(45)
    if each:
        facts["times"] = times
    return facts if wrong is None else {"failed": f"it answered {wrong!r}"}


async def rested(for_seconds):
    """What it costs to do nothing."""
    await asyncio.sleep(1)
    before, began = cpu(), time.perf_counter()
    await asyncio.sleep(for_seconds)
    return {"cpu": cpu() - before, "wall": time.perf_counter() - began, "count": 1, "rss": resident()}


def cpu():
    """Of this process, all its threads, and the children it waited for."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def wrote():
    """Bytes handed to write(2) and its kin; what goes to a socket is sent, not written."""
    with open("/proc/self/io") as file:  # noqa: PTH123  (as plain as can be)
        return next(int(line.split()[1]) for line in file if line.startswith("wchar"))


def afresh():
    """The peak of memory is counted from now on."""
    try:
        with open("/proc/self/clear_refs", "w") as file:  # noqa: PTH123
            file.write("5")
    except OSError:
        return


def peak():
    return status("VmHWM")


def resident():
    return status("VmRSS")


def status(name):
    with open("/proc/self/status") as file:  # noqa: PTH123
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(name))


if __name__ == "__main__":
    asyncio.run(cold(*sys.argv[1:]) if len(sys.argv) > 2 else main())  # noqa: PLR2004
