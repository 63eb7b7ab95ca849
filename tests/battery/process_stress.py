"""Run many commands that try to leave a process behind, and count the processes that survive the answer.

Each command is started by the real sandbox, and ended by itself, by its time limit or by a cancellation, often
while its sandbox is still being built. The evidence is taken from /proc, outside the sandbox.
"""

# ruff: noqa: T201

import argparse
import asyncio
import json
import os
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from retinue.domain.permissions.scope import Scope
from retinue.domain.rules import subtree_pattern
from retinue.errors import Failed
from retinue.sandbox import process
from retinue.sandbox.bubblewrap import bubblewrap_command, find_bwrap

ATTACKS = {
    "a session of its own": "setsid sh -c ': @mark@; while :; do sleep 1; done' >/dev/null 2>&1 & exit 0",
    "a stopped and killed parent": "setsid sh -c ': @mark@; sleep 100; :' & kill -STOP $PPID; kill -KILL $PPID; sleep 100",
    "everything stopped": "sh -c ': @mark@; sleep 100; :' & setsid sh -c ': @mark@; kill -STOP -1; kill -STOP $$' & sleep 100",
    "forked twice, ignoring signals": "trap '' TERM HUP INT; (setsid sh -c 'trap \"\" TERM HUP INT; : @mark@; sleep 100; :' &) & exit 0",
    "closed streams": "(setsid sh -c ': @mark@; sleep 100; :' <&- >&- 2>&- &) & exec >&- 2>&-; sleep 100",
    "many processes": "for i in $(seq 40); do setsid sh -c ': @mark@; sleep 100; :' & done; exit 0",
    "busy forking": "f() { while :; do (: ) & done; }; f & f & : @mark@; sleep 100",
    "stopped in the foreground": ": @mark@; kill -STOP $$; sleep 100",
    "killing everything": "setsid sh -c ': @mark@; sleep 100; :' & kill -KILL -1; : ",
    "nothing": ": @mark@",
}
MAX_DELAY_S = 0.15
COMMAND_TIMEOUT_S = 60.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/process_stress", description=__doc__)
    parser.add_argument("--count", type=int, default=2000, help="number of commands")
    parser.add_argument("--parallel", type=int, default=8, help="number of commands at the same time")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    report = asyncio.run(run_stress(args.count, args.parallel, args.seed))
    print(json.dumps(report, indent=2))
    return 1 if report["survivors"] else 0


async def run_stress(count: int, parallel: int, seed: int) -> dict[str, object]:
    top = Path(tempfile.mkdtemp(prefix="retinue-stress-", dir="/var/tmp")).resolve()
    try:
        return await _run_commands(top, count, parallel, seed)
    finally:
        shutil.rmtree(top, ignore_errors=True)


async def _run_commands(top: Path, count: int, parallel: int, seed: int) -> dict[str, object]:
    numbers = iter(range(count))
    survivors: list[str] = []
    endings = Counter[str]()

    async def run_some(worker: int) -> None:
        choices = random.Random(f"{seed}/{worker}")
        workspace = top / f"ws{worker}"
        workspace.mkdir()
        for number in numbers:
            name = choices.choice(list(ATTACKS))
            mark = f"stress-{os.getpid()}-{number}-end"
            ending = await _run_attack(workspace, ATTACKS[name].replace("@mark@", mark), choices)
            endings[ending] += 1
            survivors.extend(f"{name}, {ending}: {each}" for each in running_processes(mark))

    await asyncio.gather(*map(run_some, range(parallel)))
    return {
        "commands": count,
        "user": "root" if os.geteuid() == 0 else "user",
        "endings": dict(endings),
        "survivors": survivors,
    }


async def _run_attack(workspace: Path, command: str, choices: random.Random) -> str:
    """Run one command and return how it ended."""
    tree = subtree_pattern(str(workspace))
    scope = Scope(read=(tree,), write=(tree,), root=str(workspace))
    sandboxed = await asyncio.to_thread(bubblewrap_command, scope, command, bwrap=str(find_bwrap()))
    delay_s = choices.random() * MAX_DELAY_S
    if choices.random() < 0.5:
        result = await process.run_command(sandboxed, delay_s)
        return "timed out" if result.timed_out else "ended"
    running = asyncio.ensure_future(process.run_command(sandboxed, COMMAND_TIMEOUT_S))
    await asyncio.wait({running}, timeout=delay_s)
    if running.done():
        return "ended"
    running.cancel()
    with suppress(asyncio.CancelledError, Failed):
        await running
    return "cancelled"


def running_processes(mark: str) -> Iterator[str]:
    """Yield the living processes whose arguments contain a mark."""
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdecimal():
            with suppress(OSError):
                arguments = Path(f"/proc/{name}/cmdline").read_bytes()
                state = Path(f"/proc/{name}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
                wait = Path(f"/proc/{name}/wchan").read_text(errors="replace")
                if mark.encode() in arguments and state != "Z":
                    yield f"process {name}, state {state}, {wait}"


if __name__ == "__main__":
    sys.exit(main())
