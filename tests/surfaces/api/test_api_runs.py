"""Runs, the inbox, approvals, agents and the daemon itself over HTTP."""

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
HAND_ON = ("PersistentAgent", {"preset": "worker", "description": "find it", "prompt": "Find x."})
SHOWN = {
    "run_id", "session_id", "slug", "key", "agent", "status", "waiting_for", "reason", "approvals", "text", "error",
    "turns", "tool_calls", "usage", "started_at", "ended_at", "duration_ms", "path", "children", "requester", "parent",
    "depth", "label", "task", "model", "thinking", "source", "deadline_at", "delivery", "attempts", "workspace",
    "scope_hash", "effects", "call",
}  # fmt: skip
"""What other programs rely on."""


def handed_on(rows: list[dict[str, Any]]) -> bool:
    """The worker is at it, and whoever asked it waits."""
    return len(rows) == 2 and rows[1]["waiting_for"] == "child"


def some(rows: list[dict[str, Any]]) -> bool:
    return bool(rows)


def goes_on(run: dict[str, Any]) -> bool:
    return run["text"] == "Going on."


def delivered(rows: list[dict[str, Any]]) -> bool:
    return bool(rows) and rows[0]["delivery"] == "delivered"


class Stage:
    """The main agent plays its replies in order; its workers wait until they are let."""

    def __init__(self, *main: FakeResponse, worker: str = "Found.") -> None:
        self.main = main
        self.worker = worker
        self.open = asyncio.Event()
        self.at_work = asyncio.Event()

    async def __call__(self, asked: CapturedRequest) -> FakeResponse:
        if "You are a worker." in asked.messages[0]["content"]:
            self.at_work.set()
            await self.open.wait()
            return text_reply(self.worker)
        return self.main[min(asked.reply_count, len(self.main) - 1)]


async def test_runs_are_listed_newest_first_and_by_what_is_asked_for(api: OpenApi):
    stage = Stage(tool_call_reply(HAND_ON), text_reply("It is x."))
    async with api(stage, agents={"worker": WORKER}, settings=AUTO) as client:
        made, other = await client.create_session(), await client.create_session()
        stage.open.set()
        await client.send_message(other["slug"], "Before")
        stage.open.clear()
        stage.at_work.clear()
        top = (await client.send_message(made["slug"], "Go", mode="async")).json["responseId"]
        await stage.at_work.wait()
        child = (await client.wait_until("/api/runs?live=true", handed_on))[0]
        assert child.keys() >= SHOWN
        called = (await client.get(f"/api/sessions/{made['slug']}/entries")).json[2]
        assert (child["parent"], child["root"], child["call"]) == (top, top, called["id"])
        row = next(each for each in (await client.get("/api/sessions")).json if each["slug"] == made["slug"])
        assert (row["status"], row["waiting_for"], row["run"]) == ("waiting", "child", top)
        everything = (await client.get("/api/runs")).json
        assert len(everything) == 4
        assert [each["created_at"] for each in everything] == sorted(
            (each["created_at"] for each in everything), reverse=True
        )
        for query, wanted in (
            ({"session": made["slug"]}, [top]),
            ({"root": child["run_id"]}, [child["run_id"], top]),
            ({"live": True, "session": other["slug"]}, []),
            ({"limit": 1}, [child["run_id"]]),
        ):
            assert [each["run_id"] for each in (await client.get("/api/runs", **query)).json] == wanted
        assert (await client.get("/api/runs", session="nobody")).status == 404
        assert (await client.get("/api/runs", root="nobody")).status == 404
        stage.open.set()
        ended = await client.wait_for_run(top)
        assert (ended["status"], ended["children"], ended["sandbox"]) == ("done", [child["run_id"]], None)
        assert (await client.get(f"/api/runs/{top[:24]}")).json == ended
        assert (await client.get("/api/runs/nothing")).status == 404


async def test_a_run_is_no_session_and_a_session_no_run_to_programs_that_are_far_away(api: OpenApi):
    """Who asks again for what is gone must never get another."""
    async with api([text_reply("Hi.")]) as client:
        made = await client.create_session()
        run = (await client.send_message(made["slug"], "Hi")).json["responseId"]
        for path in (
            f"runs/{made['session_id']}",
            f"runs/{made['slug']}",
            f"sessions/{run}",
            f"sessions/{run[:12]}",
        ):
            assert (await client.get(f"/api/{path}")).status == 404, path
        for verb in ("cancel", "interrupt", "detach", "resume"):
            assert (await client.post(f"/api/runs/{made['slug']}/{verb}")).status == 404, verb
        assert (await client.get("/api/runs", root=made["slug"])).status == 404


async def test_a_tree_of_runs_tells_what_each_did_and_cost(api: OpenApi):
    """How long, how many tokens and calls, who asked whom, what failed: and what it cost where there is a price, at what
    the prices are when it is asked.

    Shows: D057."""
    prices = '[prices."openai:gpt-5-mini"]\ninput = 1.0\noutput = 10.0\ncache_read = 0.1\n'
    tokens = {"input": 100, "output": 50, "cached": 40}

    def model(asked: CapturedRequest) -> FakeResponse:
        if "You are a worker." in asked.messages[0]["content"]:
            return http_error(400, "no such model")
        return replace(
            tool_call_reply(HAND_ON) if not asked.reply_count else text_reply("It failed."), usage=tokens
        )

    agents = {"worker": "---\ndescription: Works.\nmodel: openai:unpriced\n---\nYou are a worker.\n"}
    async with api(model, agents=agents, settings=AUTO + prices) as client:
        made = await client.create_session()
        await client.send_message(made["slug"], "Find it")
        (top,) = (await client.get("/api/runs", session=made["slug"])).json
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
        shown = (await client.get(f"/api/runs/{top['run_id']}")).json["tree"]
        assert shown == {
            "runs": 2,
            "usage": {"input": 200, "output": 100},
            "cached_tokens": 80,
            "cost": top["cost"],
            "unpriced": 0,
        }
        (Path(client.app.config.config_dir) / "config.toml").write_text(AUTO)
        again = (await client.get(f"/api/runs/{top['run_id']}")).json
        assert (again["cost"], again["tree"]["cost"], again["tree"]["unpriced"]) == (None, None, 1)


async def test_a_run_is_cancelled_with_those_it_asked_and_stays_so(api: OpenApi):
    stage = Stage(tool_call_reply(HAND_ON), text_reply("It is x."))
    async with api(stage, agents={"worker": WORKER}, settings=AUTO) as client:
        made = await client.create_session()
        waiting = asyncio.create_task(client.send_message(made["slug"], "Go"))
        await stage.at_work.wait()
        top = (await client.wait_until("/api/runs", handed_on))[1]["run_id"]
        stopped = await client.post(f"/api/runs/{top}/cancel")
        assert (stopped.status, stopped.json["status"], stopped.json["reason"]) == (
            200,
            "cancelled",
            "user_cancel",
        )
        assert {each["status"] for each in (await client.get("/api/runs")).json} == {"cancelled"}
        said = await waiting
        assert (said.status, said.code) == (409, "agent_message_failed")
        assert (await client.post(f"/api/runs/{top}/cancel")).json == stopped.json
        for deed in ("detach", "resume"):
            assert (await client.post(f"/api/runs/{top}/{deed}")).status == 409
        assert (await client.post("/api/runs/nothing/cancel")).status == 404


async def test_a_run_is_interrupted_and_sums_up(api: OpenApi):
    summary = text_reply("So far: nothing.")
    stage = Stage(tool_call_reply(HAND_ON), summary, worker="I had begun.")
    async with api(stage, agents={"worker": WORKER}, settings=AUTO) as client:
        made = await client.create_session()
        top = (await client.send_message(made["slug"], "Go", mode="async")).json["responseId"]
        await stage.at_work.wait()
        await client.wait_until("/api/runs", handed_on)
        told = await client.post(f"/api/runs/{top}/interrupt")
        assert (told.status, told.json["reason"]) == (200, "interrupted")
        stage.open.set()
        ended = await client.wait_for_run(top)
        assert (ended["status"], ended["reason"], ended["text"]) == (
            "cancelled",
            "interrupted",
            "So far: nothing.",
        )


async def test_a_run_that_is_waited_for_is_sent_into_the_background_and_its_result_into_the_inbox(
    api: OpenApi,
):
    stage = Stage(tool_call_reply(HAND_ON), text_reply("Going on."), text_reply("Heard."))
    async with api(stage, agents={"worker": WORKER}, settings=AUTO) as client:
        made = await client.create_session()
        top = (await client.send_message(made["slug"], "Go", mode="async")).json["responseId"]
        await stage.at_work.wait()
        child = (await client.wait_until("/api/runs", handed_on))[0]
        row = (await client.get("/api/inbox")).json[0]
        assert (row["runId"], row["status"], row["recipient"]) == (child["run_id"], "running", made["slug"])
        assert (await client.post(f"/api/runs/{child['run_id']}/detach")).status == 200
        await client.wait_until(f"/api/runs/{top}", goes_on)
        stage.open.set()
        await client.wait_for_run(top)
        await client.wait_for_run(child["run_id"])
        heard = await client.wait_until("/api/inbox", delivered)
        assert (heard[0]["status"], heard[0]["summary"]) == ("complete", "Found.")
        assert (await client.get("/api/inbox", session=made["slug"])).json == heard
        assert (await client.get("/api/inbox", session="nobody")).status == 404
        passed = await client.post(f"/api/inbox/{child['run_id']}/promote")
        again = await client.post(f"/api/inbox/{child['run_id']}/promote")
        assert (passed.json["already_promoted"], again.json["already_promoted"]) == (False, True)
        assert (await client.get("/api/health")).json["counts"]["inbox"] == 0
        assert (await client.post("/api/inbox/drain")).json == []
        assert (await client.post("/api/inbox/drain", {"session": made["slug"]})).json == []
        assert (await client.post("/api/inbox/nothing/promote")).status == 404


async def test_an_approval_is_shown_answered_once_and_the_run_goes_on(api: OpenApi):
    writes = tool_call_reply(("write", {"path": "a.txt", "content": "x"}))
    async with api([writes, text_reply("Written.")]) as client:
        made = await client.create_session()
        told = (await client.send_message(made["slug"], "Write", timeout=0)).json
        asked = (await client.get("/api/approvals")).json[0]
        assert (told["status"], f"POST /api/approvals/{asked['id']}" in told["message"]) == ("timeout", True)
        assert (asked["tool"], asked["access"], asked["state"]) == ("write", "write", "pending")
        assert (await client.get(f"/api/approvals/{asked['id'][:20]}")).json == asked
        shown = (await client.get(f"/api/sessions/{made['slug']}")).json
        assert (shown["status"], shown["waiting_for"], shown["approvals"][0]["id"]) == (
            "waiting",
            "approval",
            asked["id"],
        )
        run = (await client.get("/api/runs", live=True)).json[0]
        assert run["approvals"] == [asked["id"]]
        assert (await client.get("/api/health")).json["counts"]["approvals"] == 1
        path = f"/api/approvals/{asked['id']}"
        assert (await client.post(path, {"answer": "maybe"})).status == 400
        assert (await client.post(path, {"answer": "add"})).status == 403
        answers = await asyncio.gather(
            *(client.post(path, {"answer": each}) for each in ("allow", "deny") * 3)
        )
        assert sorted(each.status for each in answers) == [200] + [409] * 5
        assert (await client.get("/api/approvals")).json == []
        assert (await client.get("/api/approvals", all=True)).json[0]["id"] == asked["id"]
        said = await client.wait_for_run(told["responseId"])
        won = next(each.json for each in answers if each.status == 200)
        assert (said["text"], Path(client.workspace / "a.txt").exists()) == (
            "Written.",
            won["answer"] == "allow",
        )
        assert (await client.post("/api/approvals/nothing", {"answer": "allow"})).status == 404


async def test_agents_are_listed_and_shown(api: OpenApi):
    hidden = "---\ndescription: Hides.\nui_visible: false\n---\nYou hide.\n"
    slash = "---\ndescription: Works.\ntriggers: {slash: [/work]}\n---\nYou work.\n"
    async with api(agents={"hidden": hidden, "worker": slash}) as client:
        rows = {each["name"]: each for each in (await client.get("/api/agents")).json}
        assert (rows["worker"]["triggers"]["slash"], rows["worker"]["visible"]) == (["/work"], True)
        assert ("general" in rows, "hidden" in rows) == (True, False)
        assert "hidden" in [each["name"] for each in (await client.get("/api/agents", all=True)).json]
        shown = (await client.get("/api/agents/worker")).json
        assert (shown["prompt"], "read" in shown["available_tools"]) == ("You work.", True)
        for name in ("nobody", "Worker", "a.b"):
            assert (await client.get(f"/api/agents/{name}")).status == 404
        assert (await client.get("/api/agents", workspace="relative")).status == 400


async def test_health_counts_what_is_there(api: OpenApi):
    stage = Stage(text_reply("ok"))
    async with api(stage, agents={"worker": WORKER}, settings=AUTO) as client:
        first = (await client.get("/api/health")).json
        assert (first["counts"]["sessions"], first["demonstration"], first["seq"]) == (0, False, 0)
        worker = await client.create_session("worker")
        await client.send_message(worker["slug"], "Go", mode="async")
        await stage.at_work.wait()
        now = (await client.get("/api/health")).json
        assert (now["counts"]["sessions"], now["counts"]["running"]) == (1, 1)
        assert (now["seq"] > 0, now["model"], now["url"].startswith("http://127.0.0.1:")) == (
            True,
            "openai:gpt-5-mini",
            True,
        )
        stage.open.set()


async def test_a_run_whose_process_died_is_resumed(api: OpenApi):
    async with api() as client:
        made = await client.create_session()
        session = await client.app.sessions.find(made["session_id"])
        now = datetime.now(UTC)
        left = Run(
            id="01M0000000000000000000DEAD",
            request=RunRequest(key="dead", agent="general", task="Go on", session=session.id),
            session_id=session.id,
            slug=session.slug,
            session_key=session.key,
            agent="general",
            transcript_path=made["path"],
            root_id="01M0000000000000000000DEAD",
            status=Status.WAITING,
            owner_id="nobody",
            created_at=now,
        )

        def step(tx: Transaction) -> None:
            tx.add_run(left)

        await client.app.context.ledger.write(step)
        resumed = await client.post(f"/api/runs/{left.id}/resume")
        assert resumed.status == 200, resumed.raw
        assert (await client.wait_for_run(left.id))["text"] == "ok"
        assert await client.message_texts(made["slug"]) == ["Go on", "ok"]
