"""Runs, the inbox, approvals, agents and the status of the daemon over HTTP."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from api_fixture import OpenApi
from msgspec.structs import replace

from retinue.domain.run import Run, RunRequest, Status
from retinue.interfaces import Transaction
from retinue.testing.fake_model_server import CapturedRequest
from retinue.testing.replies import FakeResponse, http_error, text_reply, tool_call_reply

AUTO = 'approvals = "auto"\n'
WORKER = "---\ndescription: Works.\n---\nYou are a worker.\n"
DELEGATE_CALL = ("PersistentAgent", {"preset": "worker", "description": "find it", "prompt": "Find x."})
DOCUMENTED_FIELDS = {
    "run_id", "session_id", "slug", "key", "agent", "status", "waiting_for", "reason", "approvals", "text", "error",
    "turns", "tool_calls", "usage", "started_at", "ended_at", "duration_ms", "path", "children", "requester", "parent",
    "depth", "label", "task", "model", "thinking", "source", "deadline_at", "delivery", "attempts", "workspace",
    "scope_hash", "effects", "call",
}  # fmt: skip
"""Fields that other programs rely on."""


def child_is_running(rows: list[dict[str, Any]]) -> bool:
    """The worker's run has started, and its parent waits for it."""
    return len(rows) == 2 and rows[1]["waiting_for"] == "child"


def some(rows: list[dict[str, Any]]) -> bool:
    return bool(rows)


def parent_continued(run: dict[str, Any]) -> bool:
    return run["text"] == "Continuing."


def is_delivered(rows: list[dict[str, Any]]) -> bool:
    return bool(rows) and rows[0]["delivery"] == "delivered"


class GatedModel:
    """A model: the main agent gives its replies in order, and workers reply once the test opens the gate."""

    def __init__(self, *main: FakeResponse, worker: str = "Found.") -> None:
        self.main = main
        self.worker = worker
        self.may_answer = asyncio.Event()
        self.worker_started = asyncio.Event()

    async def __call__(self, request: CapturedRequest) -> FakeResponse:
        if "You are a worker." in request.messages[0]["content"]:
            self.worker_started.set()
            await self.may_answer.wait()
            return text_reply(self.worker)
        return self.main[min(request.reply_count, len(self.main) - 1)]


async def test_runs_are_listed_newest_first_and_filtered_by_the_query(api: OpenApi):
    model = GatedModel(tool_call_reply(DELEGATE_CALL), text_reply("It is x."))
    async with api(model, agents={"worker": WORKER}, settings=AUTO) as client:
        session, other_session = await client.create_session(), await client.create_session()
        model.may_answer.set()
        await client.send_message(other_session["slug"], "Before")
        model.may_answer.clear()
        model.worker_started.clear()
        top = (await client.send_message(session["slug"], "Go", mode="async")).json["responseId"]
        await model.worker_started.wait()
        child = (await client.wait_until("/api/runs?live=true", child_is_running))[0]
        assert child.keys() >= DOCUMENTED_FIELDS
        entry = (await client.get(f"/api/sessions/{session['slug']}/entries")).json[2]
        assert (child["parent"], child["root"], child["call"]) == (top, top, entry["id"])
        row = next(
            item for item in (await client.get("/api/sessions")).json if item["slug"] == session["slug"]
        )
        assert (row["status"], row["waiting_for"], row["run"]) == ("waiting", "child", top)
        all_runs = (await client.get("/api/runs")).json
        assert len(all_runs) == 4
        assert [item["created_at"] for item in all_runs] == sorted(
            (item["created_at"] for item in all_runs), reverse=True
        )
        for query, expected in (
            ({"session": session["slug"]}, [top]),
            ({"root": child["run_id"]}, [child["run_id"], top]),
            ({"live": True, "session": other_session["slug"]}, []),
            ({"limit": 1}, [child["run_id"]]),
        ):
            assert [item["run_id"] for item in (await client.get("/api/runs", **query)).json] == expected
        assert (await client.get("/api/runs", session="nobody")).status == 404
        assert (await client.get("/api/runs", root="nobody")).status == 404
        model.may_answer.set()
        ended = await client.wait_for_run(top)
        assert (ended["status"], ended["children"], ended["sandbox"]) == ("done", [child["run_id"]], None)
        assert (await client.get(f"/api/runs/{top[:24]}")).json == ended
        assert (await client.get("/api/runs/nothing")).status == 404


async def test_a_session_reference_finds_no_run_and_a_run_id_finds_no_session(api: OpenApi):
    """A program that repeats a request for a deleted thing must never get another one."""
    async with api([text_reply("Hi.")]) as client:
        session = await client.create_session()
        run = (await client.send_message(session["slug"], "Hi")).json["responseId"]
        for path in (
            f"runs/{session['session_id']}",
            f"runs/{session['slug']}",
            f"sessions/{run}",
            f"sessions/{run[:12]}",
        ):
            assert (await client.get(f"/api/{path}")).status == 404, path
        for verb in ("cancel", "interrupt", "detach", "resume"):
            assert (await client.post(f"/api/runs/{session['slug']}/{verb}")).status == 404, verb
        assert (await client.get("/api/runs", root=session["slug"])).status == 404


async def test_a_run_reports_its_own_usage_and_cost_and_those_of_its_tree(api: OpenApi):
    """Duration, tokens, calls, parents and errors of each run, and its cost at the current prices.

    Shows: D057.
    """
    prices = '[prices."openai:gpt-5.6-terra"]\ninput = 1.0\noutput = 10.0\ncache_read = 0.1\n'
    usage = {"input": 100, "output": 50, "cached": 40}

    def model(request: CapturedRequest) -> FakeResponse:
        if "You are a worker." in request.messages[0]["content"]:
            return http_error(400, "no such model")
        return replace(
            tool_call_reply(DELEGATE_CALL) if not request.reply_count else text_reply("It failed."),
            usage=usage,
        )

    agents = {"worker": "---\ndescription: Works.\nmodel: openai:unpriced\n---\nYou are a worker.\n"}
    async with api(model, agents=agents, settings=AUTO + prices) as client:
        session = await client.create_session()
        await client.send_message(session["slug"], "Find it")
        (top,) = (await client.get("/api/runs", session=session["slug"])).json
        (child,) = [
            each for each in (await client.get("/api/runs", root=top["run_id"])).json if each["parent"]
        ]
        assert (top["children"], child["parent"], child["root"]) == (
            [child["run_id"]],
            top["run_id"],
            top["run_id"],
        )
        assert (child["status"], child["reason"], child["cost"]) == ("failed", "provider", None)
        assert isinstance(top["duration_ms"], int)
        assert (top["turns"], top["tool_calls"], top["cached_tokens"]) == (2, 1, 80)
        assert top["usage"] == {"input": 200, "output": 100}
        assert top["cost"] == pytest.approx((120 * 1.0 + 80 * 0.1 + 100 * 10.0) / 1e6)
        tree = (await client.get(f"/api/runs/{top['run_id']}")).json["tree"]
        assert tree == {
            "runs": 2,
            "usage": {"input": 200, "output": 100},
            "cached_tokens": 80,
            "cache_write_tokens": 0,
            "cost": top["cost"],
            "unpriced": 0,
        }
        (Path(client.app.config.config_dir) / "config.toml").write_text(AUTO)
        repriced = (await client.get(f"/api/runs/{top['run_id']}")).json
        own_price = pytest.approx((120 * 2.0 + 80 * 0.2 + 100 * 12.0) / 1e6, abs=1e-6)
        assert (repriced["cost"], repriced["tree"]["cost"], repriced["tree"]["unpriced"]) == (
            own_price,
            own_price,
            0,
        )


async def test_cancelling_a_run_cancels_its_children_for_good(api: OpenApi):
    model = GatedModel(tool_call_reply(DELEGATE_CALL), text_reply("It is x."))
    async with api(model, agents={"worker": WORKER}, settings=AUTO) as client:
        session = await client.create_session()
        message_task = asyncio.create_task(client.send_message(session["slug"], "Go"))
        await model.worker_started.wait()
        top = (await client.wait_until("/api/runs", child_is_running))[1]["run_id"]
        cancelled = await client.post(f"/api/runs/{top}/cancel")
        assert (cancelled.status, cancelled.json["status"], cancelled.json["reason"]) == (
            200,
            "cancelled",
            "user_cancel",
        )
        assert {item["status"] for item in (await client.get("/api/runs")).json} == {"cancelled"}
        response = await message_task
        assert (response.status, response.code) == (409, "agent_message_failed")
        assert (await client.post(f"/api/runs/{top}/cancel")).json == cancelled.json
        for verb in ("detach", "resume"):
            assert (await client.post(f"/api/runs/{top}/{verb}")).status == 409
        assert (await client.post("/api/runs/nothing/cancel")).status == 404


async def test_an_interrupted_run_ends_with_a_summary(api: OpenApi):
    summary = text_reply("So far: nothing.")
    model = GatedModel(tool_call_reply(DELEGATE_CALL), summary, worker="I had begun.")
    async with api(model, agents={"worker": WORKER}, settings=AUTO) as client:
        session = await client.create_session()
        top = (await client.send_message(session["slug"], "Go", mode="async")).json["responseId"]
        await model.worker_started.wait()
        await client.wait_until("/api/runs", child_is_running)
        interrupted = await client.post(f"/api/runs/{top}/interrupt")
        assert (interrupted.status, interrupted.json["reason"]) == (200, "interrupted")
        model.may_answer.set()
        ended = await client.wait_for_run(top)
        assert (ended["status"], ended["reason"], ended["text"]) == (
            "cancelled",
            "interrupted",
            "So far: nothing.",
        )


async def test_a_detached_child_run_continues_in_the_background_and_delivers_to_the_inbox(
    api: OpenApi,
):
    model = GatedModel(tool_call_reply(DELEGATE_CALL), text_reply("Continuing."), text_reply("Received."))
    async with api(model, agents={"worker": WORKER}, settings=AUTO) as client:
        session = await client.create_session()
        top = (await client.send_message(session["slug"], "Go", mode="async")).json["responseId"]
        await model.worker_started.wait()
        child = (await client.wait_until("/api/runs", child_is_running))[0]
        row = (await client.get("/api/inbox")).json[0]
        assert (row["runId"], row["status"], row["recipient"]) == (
            child["run_id"],
            "running",
            session["slug"],
        )
        assert (await client.post(f"/api/runs/{child['run_id']}/detach")).status == 200
        await client.wait_until(f"/api/runs/{top}", parent_continued)
        model.may_answer.set()
        await client.wait_for_run(top)
        await client.wait_for_run(child["run_id"])
        inbox = await client.wait_until("/api/inbox", is_delivered)
        assert (inbox[0]["status"], inbox[0]["summary"]) == ("complete", "Found.")
        assert (await client.get("/api/inbox", session=session["slug"])).json == inbox
        assert (await client.get("/api/inbox", session="nobody")).status == 404
        promoted = await client.post(f"/api/inbox/{child['run_id']}/promote")
        repeated = await client.post(f"/api/inbox/{child['run_id']}/promote")
        assert (promoted.json["already_promoted"], repeated.json["already_promoted"]) == (False, True)
        assert (await client.get("/api/health")).json["counts"]["inbox"] == 0
        assert (await client.post("/api/inbox/drain")).json == []
        assert (await client.post("/api/inbox/drain", {"session": session["slug"]})).json == []
        assert (await client.post("/api/inbox/nothing/promote")).status == 404


async def test_only_one_of_several_answers_to_an_approval_counts_and_its_run_continues(api: OpenApi):
    write_call = tool_call_reply(("write", {"path": "a.txt", "content": "x"}))
    async with api([write_call, text_reply("Written.")]) as client:
        session = await client.create_session()
        first = (await client.send_message(session["slug"], "Write", timeout=0)).json
        approval = (await client.get("/api/approvals")).json[0]
        assert (first["status"], f"POST /api/approvals/{approval['id']}" in first["message"]) == (
            "timeout",
            True,
        )
        assert (approval["tool"], approval["access"], approval["state"]) == ("write", "write", "pending")
        assert (await client.get(f"/api/approvals/{approval['id'][:20]}")).json == approval
        current = (await client.get(f"/api/sessions/{session['slug']}")).json
        assert (current["status"], current["waiting_for"], current["approvals"][0]["id"]) == (
            "waiting",
            "approval",
            approval["id"],
        )
        run = (await client.get("/api/runs", live=True)).json[0]
        assert run["approvals"] == [approval["id"]]
        assert (await client.get("/api/health")).json["counts"]["approvals"] == 1
        path = f"/api/approvals/{approval['id']}"
        assert (await client.post(path, {"answer": "maybe"})).status == 400
        assert (await client.post(path, {"answer": "add"})).status == 403
        responses = await asyncio.gather(
            *(client.post(path, {"answer": answer}) for answer in ("allow", "deny") * 3)
        )
        assert sorted(response.status for response in responses) == [200] + [409] * 5
        assert (await client.get("/api/approvals")).json == []
        assert (await client.get("/api/approvals", all=True)).json[0]["id"] == approval["id"]
        ended = await client.wait_for_run(first["responseId"])
        winner = next(response.json for response in responses if response.status == 200)
        assert (ended["text"], Path(client.workspace / "a.txt").exists()) == (
            "Written.",
            winner["answer"] == "allow",
        )
        assert (await client.post("/api/approvals/nothing", {"answer": "allow"})).status == 404


async def test_visible_agents_are_listed_and_shown_with_their_tools(api: OpenApi):
    hidden = "---\ndescription: Hides.\nui_visible: false\n---\nYou hide.\n"
    with_slash_command = "---\ndescription: Works.\ntriggers: {slash: [/work]}\n---\nYou work.\n"
    async with api(agents={"hidden": hidden, "worker": with_slash_command}) as client:
        rows = {row["name"]: row for row in (await client.get("/api/agents")).json}
        assert (rows["worker"]["triggers"]["slash"], rows["worker"]["visible"]) == (["/work"], True)
        assert ("general" in rows, "hidden" in rows) == (True, False)
        assert "hidden" in [row["name"] for row in (await client.get("/api/agents", all=True)).json]
        shown = (await client.get("/api/agents/worker")).json
        assert (shown["prompt"], "read" in shown["available_tools"]) == ("You work.", True)
        for name in ("nobody", "Worker", "a.b"):
            assert (await client.get(f"/api/agents/{name}")).status == 404
        assert (await client.get("/api/agents", workspace="relative")).status == 400


async def test_health_reports_counts_the_model_and_the_url(api: OpenApi):
    model = GatedModel(text_reply("ok"))
    async with api(model, agents={"worker": WORKER}, settings=AUTO) as client:
        first = (await client.get("/api/health")).json
        assert (first["counts"]["sessions"], first["demonstration"], first["seq"]) == (0, False, 0)
        worker = await client.create_session("worker")
        await client.send_message(worker["slug"], "Go", mode="async")
        await model.worker_started.wait()
        later = (await client.get("/api/health")).json
        assert (later["counts"]["sessions"], later["counts"]["running"]) == (1, 1)
        assert (later["seq"] > 0, later["model"], later["url"].startswith("http://127.0.0.1:")) == (
            True,
            "openai:gpt-5.6-terra",
            True,
        )
        model.may_answer.set()


async def test_a_run_of_a_dead_process_is_resumed(api: OpenApi):
    async with api() as client:
        created = await client.create_session()
        session = await client.app.sessions.find(created["session_id"])
        now = datetime.now(UTC)
        run = Run(
            id="01M0000000000000000000DEAD",
            request=RunRequest(key="dead", agent="general", task="Go on", session=session.id),
            session_id=session.id,
            slug=session.slug,
            session_key=session.key,
            agent="general",
            transcript_path=created["path"],
            root_id="01M0000000000000000000DEAD",
            status=Status.WAITING,
            owner_id="nobody",
            created_at=now,
        )

        def step(tx: Transaction) -> None:
            tx.add_run(run)

        await client.app.context.ledger.write(step)
        resumed = await client.post(f"/api/runs/{run.id}/resume")
        assert resumed.status == 200, resumed.raw
        assert (await client.wait_for_run(run.id))["text"] == "ok"
        assert await client.message_texts(created["slug"]) == ["Go on", "ok"]
