"""The engine: it claims what it may, owns its tasks, and survives whatever a run does."""

import asyncio
import gc
from collections.abc import Awaitable, Callable, Generator
from typing import Any

import pytest

from retinue.domain.session import CreatedRun
from retinue.errors import Cancelled, DiskError
from retinue.worker.worker import POLL_INTERVAL_S, LocalWorker, SchedulerCallbacks


class Told:
    """Orders that are kept, with runs that end when they are told to."""

    def __init__(self, **more: Any) -> None:
        self.worked: list[str] = []
        self.broken: list[tuple[str, BaseException]] = []
        self.released = 0
        self.over: set[str] = set()
        self.gate = asyncio.Event()
        self.more = more

    def engine(self) -> LocalWorker:
        engine = LocalWorker()
        orders: dict[str, Any] = {
            "claim_run": self._claim,
            "execute_run": self._work,
            "fail_run": self._broken,
            "has_ended": self._ended,
            "find_cancel_requests": self._unwanted,
            "deliver_interrupts": self._interrupted,
            "find_resumable_runs": self._woken,
            "release_dead_claims": self._release,
        }
        engine.start(SchedulerCallbacks(**(orders | self.more)))
        return engine

    async def _claim(self, run_id: str) -> str:
        return "taken"

    async def _work(self, run_id: str, born: CreatedRun | None) -> bool:
        self.worked.append(run_id)
        await self.gate.wait()
        self.over.add(run_id)
        return False

    async def _woken(self) -> list[str]:
        return []

    async def _broken(self, run_id: str, error: BaseException) -> None:
        self.broken.append((run_id, error))
        self.over.add(run_id)

    async def _ended(self, run_id: str) -> bool:
        return run_id in self.over

    async def _unwanted(self) -> list[str]:
        return []

    async def _interrupted(self) -> None:
        pass

    async def _release(self) -> None:
        self.released += 1


def in_turn(*answers: str | Exception) -> Callable[[str], Awaitable[str]]:
    left = list(answers)

    async def claim(run_id: str) -> str:
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    return claim


async def test_a_run_is_worked_and_waited_for():
    told = Told()
    engine = told.engine()
    engine.submit("a")
    told.gate.set()
    await engine.wait("a")
    assert (told.worked, told.broken) == (["a"], [])
    await engine.close()


async def test_a_run_that_finds_no_slot_is_tried_again_when_dead_ones_were_looked_for():
    told = Told(claim_run=in_turn("full", "taken"))
    engine = told.engine()
    told.gate.set()
    engine.submit("a")
    await asyncio.wait_for(engine.wait("a"), 5)
    assert told.worked == ["a"]
    assert told.released >= 1
    await engine.close()


async def test_a_busy_session_lets_others_pass():
    async def claim(run_id: str) -> str:
        return "busy" if run_id == "a" and not told.worked else "taken"

    told = Told(claim_run=claim)
    told.gate.set()
    engine = told.engine()
    engine.submit("a")
    engine.submit("b")
    await asyncio.wait_for(engine.wait("a"), 5)
    assert told.worked == ["b", "a"]
    await engine.close()


async def test_a_claim_that_fails_is_made_again_and_the_run_is_not_forgotten():
    told = Told(claim_run=in_turn(DiskError("the disk is full"), "taken"))
    told.gate.set()
    engine = told.engine()
    engine.submit("a")
    await asyncio.wait_for(engine.wait("a"), 5)
    assert told.worked == ["a"]
    await engine.close()


async def test_a_claim_that_outlasts_a_tick_does_not_end_the_claiming():
    answers = ["full", "slow", "taken"]

    async def claim(run_id: str) -> str:
        answer = answers.pop(0)
        if answer == "slow":
            await asyncio.sleep(2 * POLL_INTERVAL_S)
            return "full"
        return answer

    told = Told(claim_run=claim)
    told.gate.set()
    engine = told.engine()
    engine.submit("a")
    await asyncio.wait_for(engine.wait("a"), 10)
    assert (told.worked, answers) == (["a"], [])
    await engine.close()


async def test_a_queued_run_that_is_cancelled_is_waited_for_no_longer():
    told = Told(claim_run=in_turn(*["full"] * 100))
    engine = told.engine()
    for name in ("a", "b"):
        engine.submit(name)
    waiting = asyncio.create_task(engine.wait("b"))
    await asyncio.sleep(0.01)
    assert engine.cancel("b")
    await asyncio.wait_for(waiting, 10)
    assert told.worked == []
    await engine.close()


async def test_a_run_cancelled_twice_is_struck_once():
    told = Told()
    engine = told.engine()
    engine.submit("a", claimed=True)
    await asyncio.sleep(0)
    assert engine.cancel("a")
    assert engine.cancel("a")
    assert engine.is_cancelled("a")
    await engine.wait("a")
    assert [(run, type(error)) for run, error in told.broken] == [("a", Cancelled)]
    assert not engine.cancel("a")
    await engine.close()


async def test_what_somebody_elsewhere_wants_stopped_is_stopped():
    async def unwanted() -> list[str]:
        return ["a"]

    told = Told(find_cancel_requests=unwanted)
    engine = told.engine()
    engine.submit("a", claimed=True)
    await asyncio.wait_for(engine.wait("a"), 5)
    assert [run for run, _ in told.broken] == ["a"]
    await engine.close()


async def test_closing_leaves_running_work_to_the_next_start():
    told = Told()
    engine = told.engine()
    engine.submit("a", claimed=True)
    await asyncio.sleep(0)
    await engine.close()
    assert (told.worked, told.broken, told.over) == (["a"], [], set())


async def test_a_run_that_is_submitted_twice_while_it_is_claimed_is_worked_once_and_can_be_stopped():
    claiming, claimed = asyncio.Event(), asyncio.Event()
    claims: list[str] = []

    async def claim(run_id: str) -> str:
        claims.append(run_id)
        claiming.set()
        await claimed.wait()
        return "taken" if claims == [run_id] else "gone"

    told = Told(claim_run=claim)
    engine = told.engine()
    engine.submit("a")
    await claiming.wait()
    engine.submit("a", at_front=True)
    claimed.set()
    for _ in range(20):
        await asyncio.sleep(0)
    assert engine.cancel("a")
    await engine.wait("a")
    assert (told.worked, [run for run, _ in told.broken]) == (["a"], ["a"])
    await engine.close()


async def test_what_is_being_claimed_when_nothing_more_is_to_be_may_end_and_the_next_is_not_claimed():
    claiming, claimed = asyncio.Event(), asyncio.Event()

    async def claim(run_id: str) -> str:
        claiming.set()
        await claimed.wait()
        return "taken"

    told = Told(claim_run=claim)
    engine = told.engine()
    engine.submit("a")
    engine.submit("b")
    await claiming.wait()
    draining = asyncio.create_task(engine.drain(60))
    await asyncio.sleep(0)
    claimed.set()
    while not told.worked:  # noqa: ASYNC110  (a list does not call)
        await asyncio.sleep(0)
    assert not draining.done()
    told.gate.set()
    await draining
    assert (told.worked, told.broken) == (["a"], [])
    await engine.close()


async def test_an_end_that_cannot_be_written_down_harms_nobody_else():
    async def broken(run_id: str, error: BaseException) -> None:
        raise DiskError("the disk is full")

    async def work(run_id: str, _born: CreatedRun | None) -> None:
        if run_id == "bad":
            raise RuntimeError("a defect")

    told = Told(execute_run=work, fail_run=broken)
    engine = told.engine()
    told.over.add("good")
    engine.submit("bad", claimed=True)
    engine.submit("good", claimed=True)
    await engine.wait("good")
    for _ in range(2):
        with pytest.raises(DiskError, match="the disk is full"):
            await engine.wait("bad")
    await engine.close()


async def test_a_defect_in_a_claim_is_that_runs_end():
    told = Told(claim_run=in_turn(ZeroDivisionError("a defect"), "taken"))
    told.gate.set()
    engine = told.engine()
    engine.submit("a")
    await asyncio.wait_for(engine.wait("a"), 5)
    assert [(run, type(error)) for run, error in told.broken] == [("a", ZeroDivisionError)]
    await engine.close()


async def test_a_ledger_that_cannot_answer_now_is_asked_again():
    asked: list[int] = []

    async def unwanted() -> list[str]:
        asked.append(1)
        if len(asked) == 1:
            raise DiskError("the disk is full")
        return ["a"]

    told = Told(find_cancel_requests=unwanted, release_dead_claims=unwanted)
    engine = told.engine()
    engine.submit("a", claimed=True)
    await asyncio.wait_for(engine.wait("a"), 5)
    assert len(asked) == 2
    await engine.close()


async def test_a_run_that_another_process_works_is_waited_for():
    told = Told()
    engine = told.engine()
    waiting = asyncio.create_task(engine.wait("theirs"))
    await asyncio.sleep(0)
    told.over.add("theirs")
    await asyncio.wait_for(waiting, 5)
    await engine.close()


@pytest.fixture
def own_threshold() -> Generator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


@pytest.mark.usefixtures("own_threshold")
@pytest.mark.parametrize("chosen", [(0, 10, 10), (700, 10, 10), (50_000, 5, 5)])
async def test_the_garbage_collector_of_the_host_program_is_left_alone(chosen: tuple[int, int, int]):
    told = Told()
    engine = told.engine()
    gc.set_threshold(*chosen)
    engine.submit("a", claimed=True)
    assert gc.get_threshold() == chosen
    told.gate.set()
    await engine.wait("a")
    await engine.close()
    assert gc.get_threshold() == chosen


async def test_whoever_is_stopped_while_its_end_is_written_down_still_ends():
    """Shows: K01."""
    written, writing = asyncio.Event(), asyncio.Event()

    async def broken(_run_id: str, _error: BaseException) -> None:
        writing.set()
        for _ in range(5):
            await asyncio.sleep(0)
        written.set()

    async def work(_run_id: str, _born: CreatedRun | None) -> bool:
        raise Cancelled("another process wants it stopped")

    engine = Told(execute_run=work, fail_run=broken).engine()
    engine.submit("r", claimed=True)
    await writing.wait()
    assert engine.cancel("r")
    await asyncio.wait_for(written.wait(), 10)
    await engine.close()
