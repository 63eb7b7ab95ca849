"""The limit on a run's turns: the run waits for a person, who can grant as many turns again."""

import json

from runtime_fixture import RuntimeFixture

from retinue.domain.limits import Limits
from retinue.domain.run import Reason, Status, WaitReason
from retinue.domain.transcript import unanswered_calls
from retinue.runtime import run_control
from retinue.testing.scripted_provider import ScriptedStep, text_reply, tool_call_reply


def numbered_reads(count: int) -> list[ScriptedStep]:
    return [tool_call_reply(("todo", json.dumps({"items": [str(number)]}))) for number in range(count)]


async def test_a_run_that_used_its_turns_waits_for_a_person_and_resuming_grants_as_many_again(
    runtime: RuntimeFixture,
):
    script = [*numbered_reads(6), text_reply("Finished at last.")]
    async with runtime.open(*script, limits=Limits(max_turns=3)) as process:
        run = await process.run_until_suspended("Work.")
        for turns in (3, 6):
            suspended = await process.reload(run)
            assert (suspended.status, suspended.waiting_for) == (Status.WAITING, WaitReason.PERSON)
            assert (suspended.reason, suspended.turns) == (Reason.TURN_LIMIT, turns)
            assert f"the run used {turns} turns (limits.max_turns)" in suspended.error
            assert f"retinue runs resume {run.id}` grants 3 more" in suspended.error
            assert unanswered_calls(await process.entries(run)) == ()
            assert len(process.provider.requests) == turns
            await run_control.resume_waiting_run(run.id, process.context)
            await process.wait(run)
        ended = await process.reload(run)
        assert (ended.status, ended.reason, ended.error) == (Status.DONE, None, "")
        assert (ended.text, ended.turns) == ("Finished at last.", 7)


async def test_a_message_to_a_run_at_its_turn_limit_continues_it(runtime: RuntimeFixture):
    async with runtime.open(
        *numbered_reads(2), text_reply("As you say, done."), limits=Limits(max_turns=2)
    ) as process:
        run = await process.run_until_suspended("Work.")
        session = await process.store.find(run.session_id)
        await run_control.answer_waiting_run(session, "Finish now.", process.context)
        ended = await process.wait(run)
        assert (ended.status, ended.text) == (Status.DONE, "As you say, done.")
        texts = [getattr(entry, "text", "") for entry in process.request_entries(2)]
        assert "Finish now." in texts


async def test_a_reply_without_calls_at_the_limit_ends_the_run(runtime: RuntimeFixture):
    async with runtime.open(
        *numbered_reads(1), text_reply("Done in time."), limits=Limits(max_turns=2)
    ) as process:
        run = await process.run("Work.")
        assert (run.status, run.turns) == (Status.DONE, 2)


async def test_the_grant_of_turns_survives_a_restart(runtime: RuntimeFixture):
    async with runtime.open(*numbered_reads(3), limits=Limits(max_turns=3)) as process:
        run = await process.run_until_suspended("Work.")
    async with runtime.open(*numbered_reads(3), limits=Limits(max_turns=3)) as process:
        await run_control.resume_waiting_run(run.id, process.context)
        suspended = await process.wait(run)
        assert (suspended.status, suspended.turns, len(process.provider.requests)) == (Status.WAITING, 6, 3)


async def test_a_parent_waits_while_its_child_is_at_its_turn_limit(runtime: RuntimeFixture):
    runtime.write_agent("helper", "limits: {max_turns: 2}\n")
    runtime.write_agent("main")
    spawn = tool_call_reply(("agent", json.dumps({"agent_name": "helper", "task_prompt": "Look."})))
    by_agent = {
        "main": [spawn, text_reply("All done.")],
        "helper": [*numbered_reads(2), text_reply("Found it, as you can see.")],
    }
    async with runtime.open(by_agent=by_agent) as process:
        run = await process.submit("Go.", agent="main")
        await process.wait_until_idle()
        (child,) = [each for each in await process.all_runs() if each.agent == "helper"]
        await process.wait_until_waiting(child, WaitReason.PERSON)
        parent = await process.reload(run)
        assert (parent.status, parent.waiting_for, parent.deadline_at) == (
            Status.WAITING,
            WaitReason.CHILD,
            None,
        )
        await run_control.resume_waiting_run(child.id, process.context)
        ended = await process.wait_until_ended(run)
        assert (ended.status, ended.text) == (Status.DONE, "All done.")
