"""The worker: claims queued runs, owns their tasks, and survives whatever a run does."""

import asyncio
import gc
from collections.abc import Awaitable, Callable, Generator
from typing import Any

import pytest

from retinue.domain.run import ClaimResult
from retinue.domain.session import CreatedRun
from retinue.errors import Cancelled, DiskError
from retinue.worker.worker import POLL_INTERVAL_S, LocalWorker, SchedulerCallbacks


class FakeScheduler:
    """Scheduler callbacks that record their calls, with runs that end when the gate opens."""

    def __init__(self, **overrides: Any) -> None:
        self.executed: list[str] = []
        self.failures: list[tuple[str, BaseException]] = []
        self.released = 0
        self.ended: set[str] = set()
        self.gate = asyncio.Event()
        self.overrides = overrides

    def start_worker(self) -> LocalWorker:
        worker = LocalWorker()
        callbacks: dict[str, Any] = {
            "claim_run": self._claim_run,
            "execute_run": self._execute_run,
            "fail_run": self._fail_run,
            "has_ended": self._has_ended,
            "find_cancel_requests": self._find_cancel_requests,
            "deliver_interrupts": self._deliver_interrupts,
            "find_resumable_runs": self._find_resumable_runs,
            "requeue_runs_of_dead_processes": self._requeue_runs_of_dead_processes,
        }
        worker.start(SchedulerCallbacks(**(callbacks | self.overrides)))
        return worker

    async def execute(self, *runs: str, timeout_s: float = 5) -> None:
        """Submit runs that end at once, wait for the end of the first one, and close the worker."""
        self.gate.set()
        worker = self.start_worker()
        for run in runs:
            worker.submit(run)
        await asyncio.wait_for(worker.wait(runs[0]), timeout_s)
        await worker.close()

    async def _claim_run(self, run_id: str) -> ClaimResult:
        return ClaimResult.CLAIMED

    async def _execute_run(self, run_id: str, created: CreatedRun | None) -> bool:
        self.executed.append(run_id)
        await self.gate.wait()
        self.ended.add(run_id)
        return False

    async def _find_resumable_runs(self) -> list[str]:
        return []

    async def _fail_run(self, run_id: str, error: BaseException) -> None:
        self.failures.append((run_id, error))
        self.ended.add(run_id)

    async def _has_ended(self, run_id: str) -> bool:
        return run_id in self.ended

    async def _find_cancel_requests(self) -> list[str]:
        return []

    async def _deliver_interrupts(self) -> None:
        pass

    async def _requeue_runs_of_dead_processes(self) -> None:
        self.released += 1


def claim_results(*results: ClaimResult | Exception) -> Callable[[str], Awaitable[ClaimResult]]:
    remaining = list(results)

    async def claim(run_id: str) -> ClaimResult:
        result = remaining.pop(0) if len(remaining) > 1 else remaining[0]
        if isinstance(result, Exception):
            raise result
        return result

    return claim


async def test_a_submitted_run_is_executed_and_can_be_waited_for():
    fake = FakeScheduler()
    worker = fake.start_worker()
    worker.submit("a")
    fake.gate.set()
    await worker.wait("a")
    assert (fake.executed, fake.failures) == (["a"], [])
    await worker.close()


async def test_a_run_without_a_free_slot_is_claimed_again_after_dead_claims_are_released():
    fake = FakeScheduler(claim_run=claim_results(ClaimResult.NO_FREE_SLOT, ClaimResult.CLAIMED))
    await fake.execute("a")
    assert fake.executed == ["a"]
    assert fake.released >= 1


async def test_a_run_of_a_busy_session_lets_other_runs_pass():
    async def claim(run_id: str) -> ClaimResult:
        return ClaimResult.SESSION_BUSY if run_id == "a" and not fake.executed else ClaimResult.CLAIMED

    fake = FakeScheduler(claim_run=claim)
    await fake.execute("a", "b")
    assert fake.executed == ["b", "a"]


async def test_a_failed_claim_is_retried():
    fake = FakeScheduler(claim_run=claim_results(DiskError("the disk is full"), ClaimResult.CLAIMED))
    await fake.execute("a")
    assert fake.executed == ["a"]


async def test_a_claim_longer_than_a_poll_interval_does_not_stop_later_claims():
    results = [ClaimResult.NO_FREE_SLOT, None, ClaimResult.CLAIMED]

    async def claim(run_id: str) -> ClaimResult:
        result = results.pop(0)
        if result is None:
            await asyncio.sleep(2 * POLL_INTERVAL_S)
            return ClaimResult.NO_FREE_SLOT
        return result

    fake = FakeScheduler(claim_run=claim)
    await fake.execute("a", timeout_s=10)
    assert (fake.executed, results) == (["a"], [])


async def test_a_cancelled_queued_run_is_no_longer_waited_for():
    fake = FakeScheduler(claim_run=claim_results(*[ClaimResult.NO_FREE_SLOT] * 100))
    worker = fake.start_worker()
    for name in ("a", "b"):
        worker.submit(name)
    waiting = asyncio.create_task(worker.wait("b"))
    await asyncio.sleep(0.01)
    assert worker.cancel("b")
    await asyncio.wait_for(waiting, 10)
    assert fake.executed == []
    await worker.close()


async def test_a_run_cancelled_twice_fails_once():
    fake = FakeScheduler()
    worker = fake.start_worker()
    worker.submit("a", claimed=True)
    await asyncio.sleep(0)
    assert worker.cancel("a")
    assert worker.cancel("a")
    assert worker.is_cancelled("a")
    await worker.wait("a")
    assert [(run, type(error)) for run, error in fake.failures] == [("a", Cancelled)]
    assert not worker.cancel("a")
    await worker.close()


async def test_a_run_whose_cancellation_another_process_requested_is_cancelled():
    async def find_cancel_requests() -> list[str]:
        return ["a"]

    fake = FakeScheduler(find_cancel_requests=find_cancel_requests)
    worker = fake.start_worker()
    worker.submit("a", claimed=True)
    await asyncio.wait_for(worker.wait("a"), 5)
    assert [run for run, _ in fake.failures] == ["a"]
    await worker.close()


async def test_closing_the_worker_leaves_running_runs_to_the_next_start():
    fake = FakeScheduler()
    worker = fake.start_worker()
    worker.submit("a", claimed=True)
    await asyncio.sleep(0)
    await worker.close()
    assert (fake.executed, fake.failures, fake.ended) == (["a"], [], set())


async def test_a_run_submitted_again_while_it_is_claimed_is_executed_once_and_can_be_cancelled():
    claiming, claimed = asyncio.Event(), asyncio.Event()
    claims: list[str] = []

    async def claim(run_id: str) -> ClaimResult:
        claims.append(run_id)
        claiming.set()
        await claimed.wait()
        return ClaimResult.CLAIMED if claims == [run_id] else ClaimResult.NOT_QUEUED

    fake = FakeScheduler(claim_run=claim)
    worker = fake.start_worker()
    worker.submit("a")
    await claiming.wait()
    worker.submit("a", at_front=True)
    claimed.set()
    for _ in range(20):
        await asyncio.sleep(0)
    assert worker.cancel("a")
    await worker.wait("a")
    assert (fake.executed, [run for run, _ in fake.failures]) == (["a"], ["a"])
    await worker.close()


async def test_draining_finishes_the_run_being_claimed_and_claims_no_further_run():
    claiming, claimed = asyncio.Event(), asyncio.Event()

    async def claim(run_id: str) -> ClaimResult:
        claiming.set()
        await claimed.wait()
        return ClaimResult.CLAIMED

    fake = FakeScheduler(claim_run=claim)
    worker = fake.start_worker()
    worker.submit("a")
    worker.submit("b")
    await claiming.wait()
    draining = asyncio.create_task(worker.drain(60))
    await asyncio.sleep(0)
    claimed.set()
    while not fake.executed:  # noqa: ASYNC110  (a list cannot notify)
        await asyncio.sleep(0)
    assert not draining.done()
    fake.gate.set()
    await draining
    assert (fake.executed, fake.failures) == (["a"], [])
    await worker.close()


async def test_a_run_whose_failure_cannot_be_saved_does_not_affect_other_runs():
    async def fail_run(run_id: str, error: BaseException) -> None:
        raise DiskError("the disk is full")

    async def execute_run(run_id: str, _created: CreatedRun | None) -> None:
        if run_id == "bad":
            raise RuntimeError("a defect")

    fake = FakeScheduler(execute_run=execute_run, fail_run=fail_run)
    worker = fake.start_worker()
    fake.ended.add("good")
    worker.submit("bad", claimed=True)
    worker.submit("good", claimed=True)
    await worker.wait("good")
    for _ in range(2):
        with pytest.raises(DiskError, match="the disk is full"):
            await worker.wait("bad")
    await worker.close()


async def test_a_bug_in_a_claim_fails_that_run():
    fake = FakeScheduler(claim_run=claim_results(ZeroDivisionError("a defect"), ClaimResult.CLAIMED))
    await fake.execute("a")
    assert [(run, type(error)) for run, error in fake.failures] == [("a", ZeroDivisionError)]


async def test_a_failed_ledger_query_is_repeated():
    queries: list[int] = []

    async def find_cancel_requests() -> list[str]:
        queries.append(1)
        if len(queries) == 1:
            raise DiskError("the disk is full")
        return ["a"]

    fake = FakeScheduler(
        find_cancel_requests=find_cancel_requests, requeue_runs_of_dead_processes=find_cancel_requests
    )
    worker = fake.start_worker()
    worker.submit("a", claimed=True)
    await asyncio.wait_for(worker.wait("a"), 5)
    assert len(queries) == 2
    await worker.close()


async def test_a_run_that_another_process_executes_can_be_waited_for():
    fake = FakeScheduler()
    worker = fake.start_worker()
    waiting = asyncio.create_task(worker.wait("theirs"))
    await asyncio.sleep(0)
    fake.ended.add("theirs")
    await asyncio.wait_for(waiting, 5)
    await worker.close()


@pytest.fixture
def restore_gc_threshold() -> Generator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


@pytest.mark.usefixtures("restore_gc_threshold")
@pytest.mark.parametrize("thresholds", [(0, 10, 10), (700, 10, 10), (50_000, 5, 5)])
async def test_the_garbage_collector_settings_of_the_host_program_are_unchanged(
    thresholds: tuple[int, int, int],
):
    fake = FakeScheduler()
    worker = fake.start_worker()
    gc.set_threshold(*thresholds)
    worker.submit("a", claimed=True)
    assert gc.get_threshold() == thresholds
    fake.gate.set()
    await worker.wait("a")
    await worker.close()
    assert gc.get_threshold() == thresholds


async def test_cancelling_a_run_while_its_failure_is_saved_does_not_interrupt_the_save():
    """Shows: K01."""
    saved, saving = asyncio.Event(), asyncio.Event()

    async def fail_run(_run_id: str, _error: BaseException) -> None:
        saving.set()
        for _ in range(5):
            await asyncio.sleep(0)
        saved.set()

    async def execute_run(_run_id: str, _created: CreatedRun | None) -> bool:
        raise Cancelled("another process wants it stopped")

    worker = FakeScheduler(execute_run=execute_run, fail_run=fail_run).start_worker()
    worker.submit("r", claimed=True)
    await saving.wait()
    assert worker.cancel("r")
    await asyncio.wait_for(saved.wait(), 10)
    await worker.close()
