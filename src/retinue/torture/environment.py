"""The ground of a trial: a home that is thrown away, its configuration, and the commands that work there."""

import asyncio
import json
import os
import signal
import sys
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from retinue import daemon_client
from retinue.app import open as open_app
from retinue.domain.approval import Approval, State
from retinue.domain.run import Run
from retinue.ledger.ledger import SqliteLedger
from retinue.torture.counted_tools import FILE, LINE
from retinue.torture.scenario import agents, task

FOREIGN = ("RETINUE_", "OPENAI_", "ANTHROPIC_")
TOOLS = "retinue.torture.counted_tools"
PATIENCE = 90.0
"""Seconds after which whatever has not ended counts as not ending."""
GLANCE = 0.02


@dataclass(slots=True)
class Ground:
    """A home of its own below `root`, and beside it what no agent's runtime owns: the effects and the outputs."""

    root: Path
    url: str
    live: int = 64
    processes: list[asyncio.subprocess.Process] = field(default_factory=list[asyncio.subprocess.Process])

    groups: set[int] = field(default_factory=set[int])
    """Processes with somebody in front of them: they go together."""

    def __post_init__(self) -> None:
        for folder in (self.root, self.home, self.config, self.work, self.said):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        settings = {
            "agents": agents(),
            "tools": [f"{TOOLS}:mark", f"{TOOLS}:sign"],
            "limits": {"max_depth": 4, "max_live": self.live, "max_live_per_requester": self.live},
        }
        (self.config / "config.json").write_text(json.dumps(settings), encoding="utf-8")

    @property
    def home(self) -> Path:
        return self.root / "home"

    @property
    def config(self) -> Path:
        return self.root / "config"

    @property
    def work(self) -> Path:
        return self.root / "work"

    @property
    def said(self) -> Path:
        return self.root / "said"

    @property
    def env(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
        return kept | {
            "HOME": str(self.root),
            "RETINUE_HOME": str(self.home),
            "RETINUE_CONFIG": str(self.config),
            "RETINUE_MODEL": "openai:torture",
            "OPENAI_BASE_URL": self.url,
            "OPENAI_API_KEY": "torture-key-000",
        }

    async def started(self, *words: str, before: tuple[str, ...] = ()) -> asyncio.subprocess.Process:
        """A command of ours at work here; what it says is kept in files. `before` stands in front of it."""
        number = len(self.processes)
        with (
            (self.said / f"{number:03}.out").open("wb") as out,
            (self.said / f"{number:03}.err").open("wb") as err,
        ):
            process = await asyncio.create_subprocess_exec(
                *before, sys.executable, "-m", "retinue", *words,
                stdin=asyncio.subprocess.DEVNULL, stdout=out, stderr=err, env=self.env, cwd=self.work,
                start_new_session=bool(before),
            )  # fmt: skip
            if before:
                self.groups.add(process.pid)
        self.processes.append(process)
        return process

    async def ended(self, *words: str) -> int:
        """The same, to its end."""
        process = await self.started(*words)
        return await self.over(process)

    async def over(self, process: asyncio.subprocess.Process) -> int:
        """Its exit code; what does not end in all that time is killed, and shows as not ended by itself."""
        try:
            return await asyncio.wait_for(process.wait(), PATIENCE)
        except TimeoutError:
            await self.killed(process)
            return -1

    async def killed(self, process: asyncio.subprocess.Process) -> bool:
        """Whether it was still there to be killed."""
        there = process.returncode is None
        with suppress(ProcessLookupError):
            if there and process.pid in self.groups:
                os.killpg(process.pid, signal.SIGKILL)
            else:
                process.kill()
        await process.wait()
        return there and (process.returncode or 0) < 0

    async def close(self) -> None:
        for process in self.processes:
            if process.returncode is None:
                await self.killed(process)

    async def begin(self, *trees: str) -> None:
        """The first run of each tree, left to the daemon that is at work here."""
        while (daemon := await daemon_client.hello(self.home)) is None:  # noqa: ASYNC110  (another process begins)
            await asyncio.sleep(GLANCE)
        async with open_app(env=self.env) as app:
            for tree in trees:
                await app.start(
                    task(f"{tree}/lead"), agent="lead", workspace=self.work, owner=daemon["owner"]
                )
        await daemon_client.hello(self.home)

    async def rows(self) -> tuple[list[Run], list[Approval]]:
        """All runs, and what waits for a person. The ledger is let go of at once: it is not ours."""
        if not (self.home / "ledger.db").exists():
            return [], []
        ledger = SqliteLedger(self.home / "ledger.db")
        try:
            return await ledger.look(lambda tx: (tx.runs(), tx.approvals(state=[State.PENDING])))
        finally:
            await ledger.close()

    def effects(self) -> Counter[str]:
        """How often each call happened, by the file that nobody but the tools writes to."""
        try:
            lines = (self.work / FILE).read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return Counter()
        return Counter(line.split()[-1] for line in lines if line)

    def done(self) -> int:
        """How much was done so far, by the size of that file."""
        try:
            return (self.work / FILE).stat().st_size // LINE
        except FileNotFoundError:
            return 0

    def defects(self) -> list[str]:
        """Commands that ended with a defect of ours instead of a sentence."""
        told = sorted(self.said.glob("*.err"))
        return [
            path.name
            for path in told
            if any(word in path.read_text("utf-8", "replace") for word in ("Traceback", "this is a defect"))
        ]
