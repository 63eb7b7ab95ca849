"""Children that a program starts over HTTP: their results reach the transcript of the parent session."""

import asyncio

from api_fixture import ApiClient, OpenApi

from retinue.testing.fake_model_server import CapturedRequest
from retinue.testing.replies import FakeResponse, text_reply

AGENTS = {"helper": "---\nname: helper\n---\nYou help.\n"}
RESULT = "The lock is missing."


def is_for_helper(request: CapturedRequest) -> bool:
    return "You help." in request.messages[0]["content"]


def answer(request: CapturedRequest) -> FakeResponse:
    return text_reply(RESULT if is_for_helper(request) else "Hello.")


async def announcements(client: ApiClient, session: str) -> list[str]:
    entries = (await client.get(f"/api/sessions/{session}/entries")).json
    return [entry["text"] for entry in entries if entry["kind"] == "notice"]


async def start_child(client: ApiClient, session: str) -> str:
    body = {"agent": "helper", "content": "Find it."}
    return (await client.post(f"/api/sessions/{session}/children", body)).json["run_id"]


async def wait_for_announcement(client: ApiClient, session: str) -> None:
    def has_notice(entries: list[dict[str, str]]) -> bool:
        return any(entry["kind"] == "notice" for entry in entries)

    await client.wait_until(f"/api/sessions/{session}/entries", has_notice)


async def test_the_result_of_a_child_started_over_http_is_added_to_the_parents_transcript_once(api: OpenApi):
    async with api(answer, agents=AGENTS) as client:
        session = (await client.create_session())["slug"]
        await client.send_message(session, "Begin.")
        requests_before = len(client.server.requests)
        await client.wait_for_run(await start_child(client, session))
        await wait_for_announcement(client, session)
        assert [text.count(RESULT) for text in await announcements(client, session)] == [1]
        assert (
            len(client.server.requests) == requests_before + 1
        )  # the child's own; the parent's model was not asked
        (row,) = (await client.get("/api/inbox", session=session)).json
        assert (row["delivery"], row["recipient"]) == ("delivered", session)
        await client.send_message(session, "What was found?")
        assert str(client.server.requests[-1].messages).count(RESULT) == 1
        assert len(await announcements(client, session)) == 1


async def test_a_parent_whose_child_has_ended_can_be_deleted_without_a_further_run(api: OpenApi):
    async with api(answer, agents=AGENTS) as client:
        session = (await client.create_session())["slug"]
        await client.wait_for_run(await start_child(client, session))
        await wait_for_announcement(client, session)
        assert (await client.delete(f"/api/sessions/{session}")).status == 200


async def test_a_result_that_arrives_while_the_parent_works_is_added_when_its_run_is_cancelled(api: OpenApi):
    gate = asyncio.Event()

    async def answer_when_open(request: CapturedRequest) -> FakeResponse:
        if not is_for_helper(request):
            await gate.wait()
        return answer(request)

    async with api(answer_when_open, agents=AGENTS) as client:
        session = (await client.create_session())["slug"]
        await client.send_message(session, "Begin.", mode="async")
        (parent,) = (await client.get("/api/runs", session=session)).json
        await client.wait_for_run(await start_child(client, session))
        assert await announcements(client, session) == []
        await client.post(f"/api/runs/{parent['run_id']}/cancel")
        await wait_for_announcement(client, session)
        assert [text.count(RESULT) for text in await announcements(client, session)] == [1]
        gate.set()
