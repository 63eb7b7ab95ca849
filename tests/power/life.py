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

from commands import RETINUE, begun
from disk import State
from promise import Promises, place_asked, promises
from record import STRACE, Log, Word, heard

from retinue.testing.fake_model_server import Captured, ModelServer
from retinue.testing.replies import Answer
from retinue.torture.counted_tools import FILE
from retinue.torture.environment import Ground
from retinue.torture.fake_model import Asked, Model
from retinue.torture.invariants import Count, Law, Tally, judged
from retinue.torture.scenario import task

TASK = ("run", "--agent", "lead", "--json", task("pair/lead"))
"""A parent that starts a child in the background, which does something that must not happen twice, and hears of it."""
MORE = ("run", "--json", "And then?", "--session")
"""What the person says to the parent afterwards."""
HARMLESS = re.compile(r"it is cut off when the session is opened$|scope-plan\.yml cannot be read")
"""What doctor tells of a session that nobody has opened again: its tail was never acknowledged, and what its plan says is
known from session.json. Both are put in order when it goes on."""
RESUME = ("runs", "resume", "--json")


class Home(Ground):
    """A ground whose commands are begun by a process that has loaded everything before."""

    async def started(self, *words: str, before: tuple[str, ...] = ()) -> asyncio.subprocess.Process:
        if before:
            return await super().started(*words, before=before)
        number = len(self.processes)
        with (
            (self.said / f"{number:03}.out").open("wb") as out,
            (self.said / f"{number:03}.err").open("wb") as err,
        ):
            process = await begun(
                [*RETINUE, *words],
                stdin=asyncio.subprocess.DEVNULL, stdout=out, stderr=err, env=self.env, cwd=self.work,
            )  # fmt: skip
        self.processes.append(process)
        return process

    async def told(self, *words: str) -> tuple[int, Any]:
        """A command to its end: its code, and what it said."""
        number = len(self.processes)
        code = await self.ended(*words)
        return code, json.loads((self.said / f"{number:03}.out").read_text() or "null")


class Remembering(Model):
    """A model that was asked before."""

    def __init__(self, asked: Sequence[Asked] = ()) -> None:
        super().__init__(0, slowest=0)
        self.asked += asked
        self._times = Counter((each.place, each.turn) for each in asked)


@dataclass(slots=True)
class Life:
    """A home, what was heard of its first life, and the model that it asks."""

    root: Path
    model: Remembering = field(default_factory=Remembering)
    log: Log = field(init=False)
    asked: list[Asked] = field(default_factory=list[Asked])
    promised: Promises = field(default_factory=Promises)
    home: Home = field(init=False)
    server: ModelServer = field(init=False)

    def __post_init__(self) -> None:
        self.log = Log(root=str(self.root))
        self.server = ModelServer(self._answered)

    def _answered(self, asked: Captured) -> Answer:
        return self.model(asked)

    async def lived(self) -> None:
        """The first life: nothing fails, and strace listens."""
        self.home = Home(self.root, self.server.url)
        self.home.home.rmdir()
        first = await self._heard(*TASK)
        await self._heard(*MORE, first["slug"])
        self.asked = self.model.asked
        self.promised = promises(self.log)

    async def _heard(self, *words: str) -> Any:
        trace = self.root / "trace"
        process = await self.home.started(*words, before=(*STRACE, "-o", str(trace)))
        code = await self.home.over(process)
        said = sorted(self.home.said.iterdir())[-2:]
        assert code == 0, f"{words} ended with code {code}: {[each.read_text() for each in said]}"
        heard(self.log, trace, str(self.home.work / FILE))
        return json.loads(said[1].read_text())

    async def resumed(self, state: State) -> list[str]:
        """The program opens what is left, and everything comes to its end. Says what is not as it should be."""
        shutil.rmtree(self.home.home)
        shutil.rmtree(self.home.said)
        self.home = Home(self.root, self.server.url)
        self.home.home.rmdir()
        state.written(self.root)
        words = [each for each in self.log.changes[: state.point] if isinstance(each, Word)]
        (self.home.work / FILE).write_bytes(b"".join(each.text for each in words if each.kind == "effect"))
        before = {place_asked(each) for each in words if each.kind == "asked"}
        self.model = Remembering([each for each in self.asked if (each.place, each.turn) in before])
        broken = self.promised.broken(state)
        findings = (await self.home.told("doctor", "--json"))[1]
        bad = (each["what"] for each in findings if each["level"] == "bad")
        broken += [what for what in bad if not HARMLESS.search(what)]
        broken += await self._worked(state)
        return [each for each in broken if not any(slug in each for slug in self._unborn(state))]

    def _unborn(self, state: State) -> list[str]:
        """Sessions that the power failed in the midst of making: nobody had been told of them."""
        known = self.promised.acknowledged(state.point)
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

    async def _worked(self, state: State) -> list[str]:
        runs, _ = await self.home.rows()
        code, _ = await self.home.told(*(RESUME if runs else TASK))
        broken = [f"the command that goes on ended with code {code}"] if code else []
        for path, text in self.promised.acknowledged(state.point).items():
            file = self.root / path
            if not file.exists() or not file.read_bytes().startswith(text):
                broken.append(f"{path} lost acknowledged entries when it was opened again")
        return broken + _told(await judged(self.home, self.model.asked, faults=1))


def _told(tally: Tally) -> list[str]:
    """The person spoke to the lead twice, so two runs of it are as they should be."""
    broken = [
        f"{law}: {sentence}"
        for law, sentences in tally.breaches.items()
        for sentence in sentences
        if not HARMLESS.search(sentence)
        and not (law is Law.TWICE and sentence == "2 runs do the part of pair/lead")
    ]
    if tally.counts[Count.FAILED]:
        broken.append(f"{tally.counts[Count.FAILED]} runs did not come to a good end")
    return broken
