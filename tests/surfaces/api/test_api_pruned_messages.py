"""A message that is repeated with its Idempotency-Key after its run was pruned."""

from pathlib import Path

from api_fixture import ApiClient, OpenApi

from retinue.testing.replies import text_reply, tool_call_reply

PRUNE_AT_ONCE = "[retention]\nruns_days = 0.000000001\n"
READ = ("ls", {"path": "."})


async def send_and_prune(client: ApiClient, session: str) -> dict[str, object]:
    """Send a message with the key `order-7`, prune its run, and return the response to it."""
    first = await client.send_message(session, "Pay", key="order-7")
    assert first.status == 200
    assert (await client.app.retention.prune()).runs == 1
    return first.json


async def test_a_repeated_message_of_a_pruned_run_gets_the_same_response(api: OpenApi):
    async with api([tool_call_reply(READ), text_reply("Paid.")], settings=PRUNE_AT_ONCE) as client:
        session = (await client.create_session())["slug"]
        first = await send_and_prune(client, session)
        again = await client.send_message(session, "Pay", key="order-7")
        assert again.status == 200
        unchanged = ("status", "response", "responseId", "sessionId", "toolCallCount")
        assert {name: again.json[name] for name in unchanged} == {name: first[name] for name in unchanged}
        assert again.json["response"] == "Paid."
        assert len(client.server.requests) == 2


async def test_another_message_with_the_key_of_a_pruned_run_is_a_conflict(api: OpenApi):
    async with api([text_reply("Paid.")], settings=PRUNE_AT_ONCE) as client:
        session = (await client.create_session())["slug"]
        await send_and_prune(client, session)
        other = await client.send_message(session, "Pay twice", key="order-7")
        assert (other.status, other.code) == (409, "agent_session_error")
        assert len(client.server.requests) == 1


async def test_a_repeated_message_whose_response_is_gone_says_that_retention_removed_it(api: OpenApi):
    async with api([text_reply("Paid.")], settings=PRUNE_AT_ONCE) as client:
        session = await client.create_session()
        first = await send_and_prune(client, session["slug"])
        transcript = Path(session["path"])
        transcript.write_text(transcript.read_text().replace("Paid.", "Paid nothing."))
        gone = await client.send_message(session["slug"], "Pay", key="order-7")
        assert (gone.status, gone.code) == (410, "response_pruned")
        assert (await client.send_message(session["slug"], "Pay again", key="order-7")).status == 409
        assert (await client.post(f"/api/sessions/{session['slug']}/clear")).status == 200
        gone = await client.send_message(session["slug"], "Pay", key="order-7")
        assert (gone.status, gone.code) == (410, "response_pruned")
        assert "pruned by retention" in gone.message
        details = gone.json["error"]["details"]
        assert (details["responseId"], details["runStatus"], details["sessionId"]) == (
            first["responseId"],
            "done",
            session["session_id"],
        )
        accepted = await client.send_message(session["slug"], "Pay", key="order-7", mode="async")
        assert (accepted.status, accepted.json["responseId"]) == (200, first["responseId"])
        assert len(client.server.requests) == 1
