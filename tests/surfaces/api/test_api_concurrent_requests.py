"""Two requests about one session at the same moment: one comes first, the other sees it, and nothing is half done."""

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
CLEAR = (200, 404, 409)


@pytest.mark.parametrize("quarter", range(4))
async def test_a_thousand_pairs_of_requests_leave_nothing_half_done(api: OpenApi, quarter: int):
    """Shows: A14."""
    chance = random.Random(quarter)
    async with api() as client:
        for _ in range(PAIRS // 4 // 50):
            await asyncio.gather(*(pair(client, chance) for _ in range(50)))
        live = (await client.get("/api/runs", live=True)).json
        assert live == []


async def pair(client: ApiClient, chance: random.Random) -> None:
    kind = chance.choice(
        ("cancel+message", "delete+message", "delete+resume", "delete+cancel", "clear+message")
    )
    session = (await client.create_session())["session_id"]
    first, second = kind.split("+")
    run = await interrupted(client, session) if second == "resume" else await begun(client, session, chance)
    wishes = [deed(client, first, session, run, chance), deed(client, second, session, run, chance)]
    chance.shuffle(wishes)
    answers = await asyncio.gather(*wishes)
    assert all(each.status in CLEAR or each.code == "agent_message_failed" for each in answers), [
        each.raw for each in answers
    ]
    await settled(client, session, answers)


async def begun(client: ApiClient, session: str, chance: random.Random) -> str:
    return (await client.send_message(session, "First", mode=chance.choice(("sync", "async")))).json[
        "responseId"
    ]


async def interrupted(client: ApiClient, session: str) -> str:
    """A run that a dead process left."""
    found = await client.app.sessions.find(session)
    run_id = client.app.context.clock.new_entry_id()
    left = Run(
        id=run_id,
        request=RunRequest(key=run_id, agent="general", task="First", session=session),
        session_id=session,
        slug=found.slug,
        session_key=found.key,
        agent="general",
        transcript_path=f"{found.path}/session.md",
        root_id=run_id,
        status=Status.WAITING,
        owner_id="dead",
        created_at=datetime.now(UTC),
    )

    def step(tx: Transaction) -> None:
        tx.add_run(left)

    await client.app.context.ledger.write(step)
    return run_id


async def deed(client: ApiClient, what: str, session: str, run: str, chance: random.Random) -> Any:
    await asyncio.sleep(chance.choice((0, 0, 0.001, 0.01)))
    if what == "message":
        return await client.send_message(session, "Second", mode=chance.choice(("sync", "async")))
    if what == "delete":
        return await client.delete(f"/api/sessions/{session}")
    if what == "clear":
        return await client.post(f"/api/sessions/{session}/clear")
    return await client.post(f"/api/runs/{run}/{what}")


async def settled(client: ApiClient, session: str, answers: list[Any]) -> None:
    """A session that is gone has nothing going on; one that is there holds all of every run, or nothing of it."""
    mine = await client.app.runs.list_json(session=session)
    ended = [await client.wait_for_run(each["run_id"]) for each in mine]
    shown = await client.get(f"/api/sessions/{session}")
    gone = any(each.status == 200 and b'"deleted":true' in each.raw for each in answers)
    assert (shown.status == 404) == gone
    if gone:
        return
    assert (shown.json["status"], shown.json["problems"]) == ("idle", [])
    said = [
        each["run"]
        for each in (await client.get(f"/api/sessions/{session}/entries")).json
        if each["role"] == "agent"
    ]
    done = {each["run_id"] for each in ended if each["status"] == "done"}
    assert len(said) == len(set(said))
    assert set(said) <= done | {each["run_id"] for each in ended if each["status"] == "cancelled"}
    assert (await client.delete(f"/api/sessions/{session}")).status == 200


async def test_a_session_at_work_is_neither_deleted_nor_cleared_nor_typed_into(api: OpenApi):
    gate = asyncio.Event()

    async def script(_asked: CapturedRequest) -> FakeResponse:
        await gate.wait()
        return text_reply("ok")

    async with api(script) as client:
        made = await client.create_session()
        run = (await client.send_message(made["slug"], "Slow", mode="async")).json["responseId"]
        path = f"/api/sessions/{made['slug']}"
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


@pytest.mark.parametrize("deed", ["delete", "restore"])
async def test_of_many_who_want_the_same_at_once_one_does_it(api: OpenApi, deed: str):
    async with api() as client:
        made = await client.create_session()
        path = f"/api/sessions/{made['session_id']}"
        if deed == "restore":
            await client.delete(path)
        wish = client.delete if deed == "delete" else client.post
        address = path if deed == "delete" else f"{path}/restore"
        answers = await asyncio.gather(*(wish(address) for _ in range(8)))
        assert sorted({each.status for each in answers}) in ([200, 404], [200, 404, 409], [200, 409])
        assert [each.status for each in answers].count(200) == 1
        assert Path(made["path"]).exists() == (deed == "restore")


async def test_changes_of_attributes_at_once_are_all_kept(api: OpenApi):
    async with api() as client:
        made = await client.create_session()
        path = f"/api/sessions/{made['slug']}"
        await asyncio.gather(*(client.patch(path, {"attributes": {f"a{each}": each}}) for each in range(20)))
        assert len((await client.get(path)).json["attributes"]) == 20
