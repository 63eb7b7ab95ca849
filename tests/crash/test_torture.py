"""The torture in its short form, and that its laws notice what they are for."""

import asyncio
import json
import random
import re
import shutil
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from retinue.domain.run import Run, Status
from retinue.interfaces import Transaction
from retinue.ledger.ledger import SqliteLedger
from retinue.testing.fake_model_server import FakeModelServer
from retinue.torture.counted_tools import EFFECTS_FILE
from retinue.torture.environment import TortureEnvironment
from retinue.torture.fake_model import FakeModel, ModelRequest
from retinue.torture.invariants import Invariant, InvariantReport, check_invariants
from retinue.torture.scenario import task_text
from retinue.torture.syscall_faults import (
    FAULTS,
    SYSCALLS,
    FaultPoint,
    add_second_kills,
    fault_points,
    sample_points,
)


async def tortured(env: dict[str, str], *words: str) -> tuple[int, Any, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "retinue", "torture", *words,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env=env,
    )  # fmt: skip
    out, err = await process.communicate()
    return process.returncode or 0, json.loads(out or b"null"), err.decode()


@pytest.mark.timeout(600)
async def test_whatever_is_killed_nothing_is_lost_asked_done_or_told_twice(isolated_env: dict[str, str]):
    """Shows: P01, P10, P11, P12, P21, P32."""
    code, told, err = await tortured(
        isolated_env, "--kills", "6", "--points", "2", "--running", "60", "--seed", "11", "--json"
    )
    assert code == 0, err
    calls, kills, many = told["parts"]
    assert [sum(part["invariants"].values()) for part in told["parts"]] == [0, 0, 0], err
    assert calls["faults"] + calls["missed"] == 6
    assert calls["faults"] > 2
    assert (kills["faults"], many["faults"], many["part"]) == (6, 1, "60 running")
    assert kills["resume_worst_s"] >= kills["resume_median_s"] > 0
    assert many["all_ended_s"] > 0


async def test_without_strace_it_says_so_and_goes_on(isolated_env: dict[str, str], tmp_path: Path):
    code, told, err = await tortured(
        isolated_env | {"PATH": str(tmp_path)}, "--kills", "0", "--points", "3", "--running", "2", "--json"
    )
    assert (code, told["violations"]) == (0, 0)
    assert "strace is not installed" in err
    assert [(part["part"], part["faults"]) for part in told["parts"]] == [
        ("system calls", 0),
        ("2 running", 1),
    ]


@dataclass(slots=True)
class Home:
    """A home in which a tree came to its end in peace, to be spoilt."""

    ground: TortureEnvironment
    asked: list[ModelRequest]

    async def judged(self) -> InvariantReport:
        return await check_invariants(self.ground, self.asked, faults=0)

    @property
    def effects(self) -> Path:
        return self.ground.work_dir / EFFECTS_FILE

    def file(self, agent: str, name: str = "session.md") -> Path:
        """Of a child; of the agent at the top when nobody is named."""
        below = f"**/{agent}-*/" if agent else ""
        (found,) = self.ground.home.glob(f"sessions/*/branches/main/{below}{name}")
        return found

    async def changed(self, step: Callable[[Transaction], None]) -> None:
        ledger = SqliteLedger(self.ground.home / "ledger.db")
        await ledger.write(step)
        await ledger.close()


@pytest.fixture(scope="module")
async def done(tmp_path_factory: pytest.TempPathFactory) -> Home:
    model = FakeModel(1, max_delay_s=0)
    async with FakeModelServer(model) as server:
        ground = TortureEnvironment(tmp_path_factory.mktemp("done"), server.url)
        code = await ground.run_command("run", "--agent", "lead", "--json", task_text("chain/lead"))
        assert code == 0, (ground.output_dir / "000.err").read_text()
    return Home(ground, model.requests)


@pytest.fixture
def home(done: Home, tmp_path: Path) -> Home:
    root = tmp_path / "ground"
    shutil.copytree(done.ground.root, root, symlinks=True)
    return Home(TortureEnvironment(root, done.ground.url), list(done.asked))


async def test_a_tree_that_nothing_happened_to_breaks_no_law(home: Home):
    tally = await home.judged()
    assert tally.violations == {}
    assert not any(tally.counts.values())


async def effect_twice(home: Home) -> None:
    lines = home.effects.read_text().splitlines(keepends=True)
    home.effects.write_text("".join([*lines, lines[0]]))


async def effect_missing(home: Home) -> None:
    home.effects.write_text("".join(home.effects.read_text().splitlines(keepends=True)[1:]))


async def effect_of_nobody(home: Home) -> None:
    with home.effects.open("a") as file:
        file.write("run call\n")


async def words_gone(home: Home) -> None:
    path = home.file("four")
    path.write_text(re.sub(r"word\(\S+#1\.1\)", "nothing", path.read_text()))


async def another_past(home: Home) -> None:
    last = home.asked[-1]
    home.asked[-1] = replace(last, message_digests=("other", *last.message_digests[1:]))


async def asked_again(home: Home) -> None:
    home.asked.append(replace(home.asked[0], attempt=2))


async def announcement_gone(home: Home) -> None:
    path = home.file("")
    text = path.read_text()
    start = text.index("<!-- notice")
    path.write_text(text[:start] + text[text.index("<!-- ", start + 5) :])


async def result_never_taken(home: Home) -> None:
    def step(tx: Transaction) -> None:
        first = tx.find_deliveries()[0]
        tx.update_delivery(replace(first, state=first.state.PENDING, taken_by=""))

    await home.changed(step)


async def child_twice(home: Home) -> None:
    def step(tx: Transaction) -> None:
        run = next(run for run in tx.find_runs() if run.agent == "four")
        tx.add_run(replace(run, id="01ZZZZZZZZZZZZZZZZZZZZZZZZ", request=replace(run.request, key="other")))

    await home.changed(step)


async def run_going_on(home: Home) -> None:
    def step(tx: Transaction) -> None:
        def going_on(run: Run) -> Run:
            return replace(run, status=Status.RUNNING, owner_id="nobody", ended_at=None)

        tx.update_run(going_on(next(run for run in tx.find_runs() if run.agent == "one")))

    await home.changed(step)


async def file_garbled(home: Home) -> None:
    path = home.file("two")
    path.write_text(path.read_text().replace("<!-- agent id=", "<!-- agent id=a id=b ", 1))


async def reply_gone(home: Home) -> None:
    """What was a reply is now part of what somebody else said."""
    path = home.file("two")
    path.write_text(path.read_text().replace("<!-- agent", "<!-- agnt", 1))


async def folder_half(home: Home) -> None:
    home.file("three", "preset.md").unlink()


async def defect_told(home: Home) -> None:
    (home.ground.output_dir / "001.err").write_text("Traceback (most recent call last):\n")


SPOILT: list[tuple[Callable[[Home], Awaitable[None]], Invariant]] = [
    (effect_twice, Invariant.EFFECTS_REPEATED),
    (effect_missing, Invariant.EFFECTS_MISREPORTED),
    (effect_of_nobody, Invariant.EFFECTS_MISREPORTED),
    (words_gone, Invariant.ENTRIES_LOST),
    (reply_gone, Invariant.ENTRIES_LOST),
    (another_past, Invariant.ENTRIES_LOST),
    (asked_again, Invariant.TURNS_REPEATED),
    (announcement_gone, Invariant.ANNOUNCEMENTS_WRONG),
    (result_never_taken, Invariant.ANNOUNCEMENTS_WRONG),
    (child_twice, Invariant.CHILDREN_DUPLICATED),
    (run_going_on, Invariant.RUNS_NOT_TERMINAL),
    (file_garbled, Invariant.SESSIONS_UNREADABLE),
    (folder_half, Invariant.FOLDERS_INCOMPLETE),
    (defect_told, Invariant.COMMAND_DEFECTS),
]


@pytest.mark.parametrize(("spoil", "law"), SPOILT, ids=[spoil.__name__ for spoil, _ in SPOILT])
async def test_every_law_notices_its_breach(
    home: Home, spoil: Callable[[Home], Awaitable[None]], law: Invariant
):
    await spoil(home)
    assert law in (await home.judged()).violations


def test_every_law_is_tried():
    assert {law for _, law in SPOILT} == set(Invariant)


def test_points_are_taken_from_every_kind_of_call_and_every_fault():
    used = {"write": [5, 6, 9], "fsync": list(range(1, 100)), "rename": [2]}
    every = fault_points({"write": [3, 5, 6, 9], "fsync": used["fsync"], "mkdir": [1]}, used)
    assert len(every) == len(FAULTS) * (4 + 99 + 1 + 1)
    assert FaultPoint(fault="EIO", syscall="write", number=3, fresh_home=True) in every
    assert FaultPoint(fault="EIO", syscall="write", number=5, fresh_home=False) in every
    some = sample_points(every, 6, random.Random(1))
    for fault in FAULTS:
        mine = [point.syscall for point in some if point.fault == fault]
        assert len(mine) == 6
        assert set(mine) == {"write", "fsync", "rename", "mkdir"}
    assert {point.syscall for point in every} <= set(SYSCALLS)
    doubled = add_second_kills(every, used, random.Random(1))
    assert {point.fault for point in doubled if point.second_number} == {"SIGKILL"}
    assert all(point.second_number in used[point.syscall] for point in doubled if point.second_number)
    assert sample_points(every, None, random.Random(1)) == every
