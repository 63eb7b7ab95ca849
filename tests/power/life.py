"""A life on the disk: a tree of agents works once while it is listened to, and then in every state that a failure left."""

import asyncio
import json
import re
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from commands import RETINUE, start_process
from disk import State
from promise import Promises, place_asked, promises
from record import STRACE, Log, Word, add_trace

from retinue.testing.fake_model_server import CapturedRequest, FakeModelServer
from retinue.testing.replies import FakeResponse
from retinue.torture.counted_tools import EFFECTS_FILE
from retinue.torture.environment import TortureEnvironment
from retinue.torture.fake_model import FakeModel, ModelRequest
from retinue.torture.invariants import Invariant, InvariantReport, Statistic, check_invariants
from retinue.torture.scenario import task_text

TASK = ("run", "--agent", "lead", "--json", task_text("pair/lead"))
"""A parent that starts a child in the background, which does something that must not happen twice, and hears of it."""
MORE = ("run", "--json", "And then?", "--session")
"""What the person says to the parent afterwards."""
HARMLESS = re.compile(r"it is cut off when the session is opened$|scope-plan\.yml cannot be read")
"""What doctor tells of a session that nobody has opened again: its tail was never acknowledged, and what its plan says is
known from session.json. Both are put in order when it goes on."""
RESUME = ("runs", "resume", "--json")


class Home(TortureEnvironment):
    """A ground whose commands are begun by a process that has loaded everything before."""

    async def start_command(self, *words: str, wrapper: tuple[str, ...] = ()) -> asyncio.subprocess.Process:
        if wrapper:
            return await super().start_command(*words, wrapper=wrapper)
        number = len(self.processes)
        with (
            (self.output_dir / f"{number:03}.out").open("wb") as out,
            (self.output_dir / f"{number:03}.err").open("wb") as err,
        ):
            process = await start_process(
                [*RETINUE, *words],
                stdin=asyncio.subprocess.DEVNULL, stdout=out, stderr=err, env=self.env, cwd=self.work_dir,
            )  # fmt: skip
        self.processes.append(process)
        return process

    async def run_json(self, *words: str) -> tuple[int, Any]:
        """Run a command and return its exit code and its JSON output."""
        number = len(self.processes)
        code = await self.run_command(*words)
        return code, json.loads((self.output_dir / f"{number:03}.out").read_text() or "null")


class Remembering(FakeModel):
    """A model that was asked before."""

    def __init__(self, asked: Sequence[ModelRequest] = ()) -> None:
        super().__init__(0, max_delay_s=0)
        self.requests += asked
        self._attempts = Counter((each.position, each.turn) for each in asked)


@dataclass(slots=True)
class Life:
    """A home, what was heard of its first life, and the model that it asks."""

    root: Path
    model: Remembering = field(default_factory=Remembering)
    log: Log = field(init=False)
    asked: list[ModelRequest] = field(default_factory=list[ModelRequest])
    promised: Promises = field(default_factory=Promises)
    home: Home = field(init=False)
    server: FakeModelServer = field(init=False)

    def __post_init__(self) -> None:
        self.log = Log(root=str(self.root))
        self.server = FakeModelServer(self._reply_to)

    def _reply_to(self, asked: CapturedRequest) -> FakeResponse:
        return self.model(asked)

    async def run_once(self) -> None:
        """Run the tree once without a failure, traced by strace."""
        self.home = Home(self.root, self.server.url)
        self.home.home.rmdir()
        first = await self._run_traced(*TASK)
        await self._run_traced(*MORE, first["slug"])
        self.asked = self.model.requests
        self.promised = promises(self.log)

    async def _run_traced(self, *words: str) -> Any:
        trace = self.root / "trace"
        process = await self.home.start_command(*words, wrapper=(*STRACE, "-o", str(trace)))
        code = await self.home.wait_for_exit(process)
        said = sorted(self.home.output_dir.iterdir())[-2:]
        assert code == 0, f"{words} ended with code {code}: {[each.read_text() for each in said]}"
        add_trace(self.log, trace, str(self.home.work_dir / EFFECTS_FILE))
        return json.loads(said[1].read_text())

    async def resume_from(self, state: State) -> list[str]:
        """The program opens what is left, and everything comes to its end. Says what is not as it should be."""
        shutil.rmtree(self.home.home)
        shutil.rmtree(self.home.output_dir)
        self.home = Home(self.root, self.server.url)
        self.home.home.rmdir()
        state.write_to(self.root)
        words = [each for each in self.log.changes[: state.point] if isinstance(each, Word)]
        (self.home.work_dir / EFFECTS_FILE).write_bytes(
            b"".join(each.text for each in words if each.kind == "effect")
        )
        before = {place_asked(each) for each in words if each.kind == "asked"}
        self.model = Remembering([each for each in self.asked if (each.position, each.turn) in before])
        broken = self.promised.violations(state)
        findings = (await self.home.run_json("doctor", "--json"))[1]
        bad = (each["message"] for each in findings if each["level"] == "bad")
        broken += [what for what in bad if not HARMLESS.search(what)]
        broken += await self._run_to_end(state)
        return [each for each in broken if not any(slug in each for slug in self._unfinished_sessions(state))]

    def _unfinished_sessions(self, state: State) -> list[str]:
        """Sessions that the power failed in the midst of making: nobody had been told of them."""
        known = self.promised.acknowledged_texts(state.point)
        blank = [
            Path(path).parent
            for path, data in state.files.items()
            if path.endswith("/session.json") and not data.strip(b"\0")
        ]
        return [
            folder.parents[1].name if folder.parent.name == "branches" else folder.name
            for folder in blank
            if f"{folder}/session.md" not in known
        ]

    async def _run_to_end(self, state: State) -> list[str]:
        runs, _ = await self.home.read_ledger()
        code, _ = await self.home.run_json(*(RESUME if runs else TASK))
        broken = [f"the command that goes on ended with code {code}"] if code else []
        for path, text in self.promised.acknowledged_texts(state.point).items():
            file = self.root / path
            if not file.exists() or not file.read_bytes().startswith(text):
                broken.append(f"{path} lost acknowledged entries when it was opened again")
        return broken + _describe_violations(await check_invariants(self.home, self.model.requests, faults=1))


def _describe_violations(tally: InvariantReport) -> list[str]:
    """The person spoke to the lead twice, so two runs of it are as they should be."""
    broken = [
        f"{law}: {sentence}"
        for law, sentences in tally.violations.items()
        for sentence in sentences
        if not HARMLESS.search(sentence)
        and not (law is Invariant.CHILDREN_DUPLICATED and sentence == "2 runs do the part of pair/lead")
    ]
    if tally.counts[Statistic.RUNS_NOT_DONE]:
        broken.append(f"{tally.counts[Statistic.RUNS_NOT_DONE]} runs did not come to a good end")
    return broken
