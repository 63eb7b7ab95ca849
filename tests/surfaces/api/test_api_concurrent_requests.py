"""Concurrent requests for one session: one comes first, the other sees its effect, and nothing is half done."""

import asyncio
import random
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from api_fixture import ApiClient, OpenApi

from retinue.domain.run import Run, RunRequest, Status
from retinue.interfaces import Transaction
from retinue.testing.fake_model_server import CapturedRequest
from retinue.testing.replies import FakeResponse, text_reply

PAIRS = 1000
EXPECTED_STATUSES = (200, 404, 409)


@pytest.mark.parametrize("quarter", range(4))
async def test_a_thousand_pairs_of_concurrent_requests_leave_no_half_done_change(api: OpenApi, quarter: int):
    """Shows: A14."""
    rng = random.Random(quarter)
    async with api() as client:
        for _ in range(PAIRS // 4 // 50):
            await asyncio.gather(*(send_pair(client, rng) for _ in range(50)))
        live = (await client.get("/api/runs", live=True)).json
        assert live == []


async def send_pair(client: ApiClient, rng: random.Random) -> None:
    kind = rng.choice(("cancel+message", "delete+message", "delete+resume", "delete+cancel", "clear+message"))
    session = (await client.create_session())["session_id"]
    first, second = kind.split("+")
    run = (
        await add_interrupted_run(client, session)
        if second == "resume"
        else await start_run(client, session, rng)
    )
    requests = [
        send_request(client, first, session, run, rng),
        send_request(client, second, session, run, rng),
    ]
    rng.shuffle(requests)
    responses = await asyncio.gather(*requests)
    assert all(
        response.status in EXPECTED_STATUSES or response.code == "agent_message_failed"
        for response in responses
    ), [response.raw for response in responses]
    await check_final_state(client, session, responses)


async def start_run(client: ApiClient, session: str, rng: random.Random) -> str:
    return (await client.send_message(session, "First", mode=rng.choice(("sync", "async")))).json[
        "responseId"
    ]


async def add_interrupted_run(client: ApiClient, session: str) -> str:
    """Add a run that a dead process left behind."""
    session_row = await client.app.sessions.find(session)
    run_id = client.app.context.clock.new_entry_id()
    run = Run(
        id=run_id,
        request=RunRequest(key=run_id, agent="general", task="First", session=session),
        session_id=session,
        slug=session_row.slug,
        session_key=session_row.key,
        agent="general",
        transcript_path=f"{session_row.path}/session.md",
        root_id=run_id,
        status=Status.WAITING,
        owner_id="dead",
        created_at=datetime.now(UTC),
    )

    def step(tx: Transaction) -> None:
        tx.add_run(run)

    await client.app.context.ledger.write(step)
    return run_id


async def send_request(client: ApiClient, action: str, session: str, run: str, rng: random.Random) -> Any:
    await asyncio.sleep(rng.choice((0, 0, 0.001, 0.01)))
    if action == "message":
        return await client.send_message(session, "Second", mode=rng.choice(("sync", "async")))
    if action == "delete":
        return await client.delete(f"/api/sessions/{session}")
    if action == "clear":
        return await client.post(f"/api/sessions/{session}/clear")
    return await client.post(f"/api/runs/{run}/{action}")


async def check_final_state(client: ApiClient, session: str, responses: list[Any]) -> None:
    """A deleted session has no live run; another one has all of a run's transcript or none of it."""
    runs = await client.app.runs.list_json(session=session)
    ended = [await client.wait_for_run(item["run_id"]) for item in runs]
    current = await client.get(f"/api/sessions/{session}")
    was_deleted = any(response.status == 200 and b'"deleted":true' in response.raw for response in responses)
    assert (current.status == 404) == was_deleted
    if was_deleted:
        return
    assert (current.json["status"], current.json["problems"]) == ("idle", [])
    replied_runs = [
        item["run"]
        for item in (await client.get(f"/api/sessions/{session}/entries")).json
        if item["role"] == "agent"
    ]
    done_runs = {item["run_id"] for item in ended if item["status"] == "done"}
    assert len(replied_runs) == len(set(replied_runs))
    assert set(replied_runs) <= done_runs | {
        item["run_id"] for item in ended if item["status"] == "cancelled"
    }
    assert (await client.delete(f"/api/sessions/{session}")).status == 200


async def test_a_session_with_a_live_run_can_be_renamed_but_not_deleted_cleared_or_drafted(api: OpenApi):
    gate = asyncio.Event()

    async def answer_when_open(_request: CapturedRequest) -> FakeResponse:
        await gate.wait()
        return text_reply("ok")

    async with api(answer_when_open) as client:
        session = await client.create_session()
        run = (await client.send_message(session["slug"], "Slow", mode="async")).json["responseId"]
        path = f"/api/sessions/{session['slug']}"
        for refused in (
            await client.delete(path),
            await client.post(f"{path}/clear"),
            await client.put(f"{path}/draft", {"content": "More"}),
        ):
            assert (refused.status, refused.code in ("conflict", "held")) == (409, True), refused.raw
        assert (await client.patch(path, {"name": "Busy"})).json["name"] == "Busy"
        gate.set()
        await client.wait_for_run(run)
        assert (await client.put(f"{path}/draft", {"content": "More"})).status == 200


@pytest.mark.parametrize("action", ["delete", "restore"])
async def test_exactly_one_of_several_identical_requests_succeeds(api: OpenApi, action: str):
    async with api() as client:
        session = await client.create_session()
        path = f"/api/sessions/{session['session_id']}"
        if action == "restore":
            await client.delete(path)
        send = client.delete if action == "delete" else client.post
        url = path if action == "delete" else f"{path}/restore"
        responses = await asyncio.gather(*(send(url) for _ in range(8)))
        assert sorted({response.status for response in responses}) in (
            [200, 404],
            [200, 404, 409],
            [200, 409],
        )
        assert [response.status for response in responses].count(200) == 1
        assert Path(session["path"]).exists() == (action == "restore")


async def test_concurrent_changes_of_attributes_are_all_saved(api: OpenApi):
    async with api() as client:
        session = await client.create_session()
        path = f"/api/sessions/{session['slug']}"
        await asyncio.gather(
            *(client.patch(path, {"attributes": {f"a{number}": number}}) for number in range(20))
        )
        assert len((await client.get(path)).json["attributes"]) == 20
