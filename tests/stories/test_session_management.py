"""Managing sessions: location, names, pins, `latest`, branches, clearing, deleting and the run history."""

import asyncio
import json
import sqlite3
from pathlib import Path

import pytest
from msgspec.structs import replace
from user_machine import UserMachine, spawn_and_wait

from retinue.app.run_options import SpawnOptions
from retinue.domain.transcript import Message
from retinue.errors import Conflict, NotFound, Refused
from retinue.storage import strict_yaml
from retinue.testing.fake_model_server import CapturedRequest
from retinue.testing.replies import FakeResponse, http_error, stalled_stream, text_reply, tool_call_reply


async def test_all_files_are_created_below_the_home_given_by_the_option(machine: UserMachine):
    """Shows: A073, A074, A075."""
    home = machine.folder.parent / "another home"
    async with machine.serve_models([text_reply("Hi.")]):
        ran = await machine("run", "--json", "--home", str(home), "Hi")
        listed = await machine("sessions", "list", "--json", "--home", str(home))
    slug = ran.json["slug"]
    top = home / "sessions" / slug
    assert str(top / "branches" / "main" / "session.md") == ran.json["path"]
    assert (top / "current").readlink() == Path("branches/main")
    assert {path.name for path in top.iterdir()} == {"branches", "current"}
    inside = {path.name for path in (top / "branches" / "main").iterdir()}
    assert inside >= {"session.md", "preset.md", "scope-plan.yml"}
    assert slug.startswith("general-20")
    assert [row["slug"] for row in listed.json] == [slug]
    assert list(machine.home.iterdir()) == []
    assert home.stat().st_mode & 0o777 == 0o700


async def test_renaming_and_pinning_keep_a_sessions_id_and_path(machine: UserMachine):
    """Shows: A076, C011, C013, C018, C023."""
    async with (
        machine.serve_models([text_reply("a"), text_reply("b"), text_reply("c")]),
        machine.open() as app,
    ):
        run = await app.run("Hi", workspace=machine.folder)
        other = await app.run("Hi", workspace=machine.folder)
        times = [(await app.sessions.find(run.slug)).updated_at]

        async def record_time() -> None:
            times.append((await app.sessions.find(run.slug)).updated_at)
            await asyncio.sleep(0.01)

        await app.sessions.rename(run.slug, "Project X")
        await record_time()
        await app.sessions.pin(run.slug)
        await record_time()
        await app.context.store.update(
            await app.sessions.find(run.slug), attributes={"panel": {"open": True}}
        )
        await record_time()
        await app.run("More", session=run.slug)
        await record_time()
        assert times == sorted(set(times))
        shown = await app.sessions.to_json("Project X")
        assert (shown["session_id"], shown["slug"], shown["name"]) == (run.session_id, run.slug, "Project X")
        assert shown["path"] == run.transcript_path
        assert shown["attributes"] == {"panel": {"open": True}}
        with pytest.raises(Conflict, match=r'^Session name "project x" is already in use$'):
            await app.sessions.rename(other.slug, "project x")


async def test_latest_is_the_most_recently_used_session_regardless_of_pins(machine: UserMachine):
    """Shows: C015, C016, C017."""
    async with machine.serve_models([text_reply(str(n)) for n in range(9)]), machine.open() as app:
        with pytest.raises(NotFound, match="No existing session for agent general"):
            await app.run("Hi", session="latest")
        older = await app.run("Hi", session="latest-or-create", workspace=machine.folder)
        await asyncio.sleep(0.02)
        newer = await app.run("Hi", session="create", workspace=machine.folder)
        assert (await app.run("To the newer", session="latest")).session_id == newer.session_id
        await asyncio.sleep(0.02)
        await app.run("To the older", session=older.slug)
        assert (await app.run("Again", session="latest")).session_id == older.session_id
        await app.sessions.pin(newer.slug)
        await asyncio.sleep(0.02)
        await app.run("To the older", session=older.slug)
        assert (await app.run("Again", session="latest")).session_id == older.session_id
        await app.sessions.delete(older.slug)
        assert (await app.run("Left over", session="latest")).session_id == newer.session_id


async def test_a_pin_in_the_old_metadata_format_still_counts(machine: UserMachine):
    """Shows: C019, C020."""
    async with machine.serve_models([text_reply(str(n)) for n in range(3)]), machine.open() as app:
        runs = [await app.run("Hi", workspace=machine.folder) for _ in range(3)]
        metadata_file = Path(runs[0].transcript_path).parent / "session.json"
        metadata = json.loads(metadata_file.read_text())
        del metadata["pinned_at"]
        metadata_file.write_text(json.dumps(metadata | {"pinned": True}))
        assert (await app.sessions.find(runs[0].slug)).pinned_at is not None
        await app.sessions.pin(runs[1].slug)
    listed = (await machine("sessions", "list", "--json")).json
    assert [row["slug"] for row in listed] == [runs[1].slug, runs[0].slug, runs[2].slug]


async def test_a_pin_in_the_old_metadata_format_is_listed_first(machine: UserMachine):
    """Shows: C020."""
    async with machine.serve_models([text_reply("One."), text_reply("Two.")]):
        older = (await machine("run", "Hi", "--json")).json["slug"]
        newer = (await machine("run", "Hi", "--json", "--session", "create")).json["slug"]
    (metadata_file,) = machine.sessions.glob(f"{older}/branches/main/session.json")
    metadata = json.loads(metadata_file.read_text())
    del metadata["pinned_at"]
    metadata_file.write_text(json.dumps(metadata | {"pinned": True}))
    listed = (await machine("sessions", "list", "--json")).json
    assert [row["slug"] for row in listed] == [older, newer]
    assert (listed[0]["pinned_at"] is not None, listed[1]["pinned_at"]) == (True, None)


async def test_clearing_removes_the_messages_and_deleting_removes_the_session(machine: UserMachine):
    """Shows: C014, C021, C022."""
    async with (
        machine.serve_models([text_reply("The first words."), text_reply("b")]) as server,
        machine.open() as app,
    ):
        run = await app.run("Hi", workspace=machine.folder)
        await app.sessions.rename(run.slug, "Kept")
        assert (await app.sessions.find(run.slug)).last_snippet == "The first words."
        cleared = await app.sessions.clear(run.slug)
        assert (cleared.id, cleared.name, cleared.agent, cleared.last_snippet) == (
            run.session_id, "Kept", "general", "",
        )  # fmt: skip
        await app.run("Anew", session=run.slug)
        assert machine.request_texts(server.requests[1]) == ["Anew"]
        await app.sessions.delete(run.slug)
        assert await app.sessions.list() == []
        assert not (machine.sessions / run.slug).exists()
        for ref in (run.slug, run.session_id, "Kept"):
            with pytest.raises(NotFound):
                await app.sessions.find(ref)


async def test_a_session_belongs_to_one_agent(machine: UserMachine):
    """Shows: C012."""
    machine.write_agent("brief", "model: openai:x\n")
    async with machine.serve_models([text_reply("a")]), machine.open() as app:
        run = await app.run("Hi", agent="brief", workspace=machine.folder)
        assert (await app.sessions.find(run.slug)).agent == "brief"
        with pytest.raises(Refused, match="Session does not belong to this agent"):
            await app.run("Hi", agent="general", session=run.slug)
        with pytest.raises(NotFound):
            await app.run("Hi", agent="", session="create", workspace=machine.folder)
        assert len(await app.sessions.list()) == 1


async def test_edited_session_metadata_takes_effect_at_once(machine: UserMachine):
    """Shows: A077, A079."""
    async with machine.serve_models([text_reply("a"), text_reply("b")]), machine.open() as app:
        parent = await app.run("Hi", workspace=machine.folder)
        child = await spawn_and_wait(app, parent.slug, "explorer")
        plan = Path(child.transcript_path).parent / "scope-plan.yml"
        plan.write_text(plan.read_text().replace(parent.slug, "main-20200101000000"))
        assert (await app.sessions.to_json(child.slug))["parent_session_id"] == "main-20200101000000"
        plan.write_text(plan.read_text().replace("preset:", "agent_type:"))
        assert (await app.sessions.find(child.slug)).agent == "explorer"


async def test_a_branch_is_an_independent_copy_of_the_session(machine: UserMachine):
    """Shows: A082, A083."""
    async with machine.serve_models([text_reply(f"r{n}") for n in range(9)]) as server, machine.open() as app:
        parent = await app.run("First", workspace=machine.folder)
        child = await spawn_and_wait(app, parent.slug, "explorer")
        await app.run("Second", session=parent.slug)
        entries = await app.sessions.entries(parent.slug)
        second = next(each.id for each in entries if isinstance(each, Message) and each.text == "Second")
        branched = await app.sessions.branch(parent.slug, at=second, include=False, name="Other Way")
        folder = Path(branched.path)
        assert folder.parent == machine.sessions / parent.slug / "branches"
        assert folder.name.endswith("-other-way")
        assert (machine.sessions / parent.slug / "current").readlink() == Path("branches", folder.name)
        metadata = strict_yaml.load_yaml((folder / "branch-metadata.yml").read_text(), "metadata")
        assert (metadata["parent_branch"], set(metadata)) == (
            "main",
            {"parent_branch", "created", "branch_point_position"},
        )
        assert (folder / "preset.md").read_bytes() == (
            Path(parent.transcript_path).parent / "preset.md"
        ).read_bytes()
        copy = folder / "agents" / child.slug / "session.md"
        original = Path(child.transcript_path).read_bytes()
        await app.run("Only here", session=str(copy))
        assert machine.request_texts(server.requests[-1]) == ["Go", "r1", "Only here"]
        assert Path(child.transcript_path).read_bytes() == original
        await app.run("Onward", session=parent.slug)
        texts = machine.request_texts(server.requests[-1])
        assert [each for each in texts if not each.startswith("[notice")] == ["First", "r0", "Onward"]
        await app.run("Back", session=f"{parent.slug}/main")
        texts = machine.request_texts(server.requests[-1])
        assert [each for each in texts if not each.startswith("[notice")] == [
            "First",
            "r0",
            "Second",
            "r2",
            "Back",
        ]


async def test_the_session_of_a_queued_run_exists_with_an_empty_transcript(machine: UserMachine):
    """Shows: A030."""
    machine.write_config(limits={"max_live": 1})
    async with machine.serve_models([stalled_stream(), text_reply("Late.")]):
        first = await machine.start("run", "Take the only place")
        await machine.wait_for_requests(1)
        second = await machine.start("run", "Wait for a place", "--session", "create")
        await machine.wait_for_live_runs("running", "queued")
        files = list(machine.sessions.glob("*/branches/main/session.md"))
        sizes = sorted(path.stat().st_size for path in files)
        assert sizes[0] == 0 < sizes[1]
        rows = (await machine("runs", "list", "--json")).json
        assert sorted(row["status"] for row in rows) == ["queued", "running"]
        await machine.kill(first)
        await machine.kill(second)


async def test_the_run_history_is_a_documented_sqlite_table(machine: UserMachine):
    """Shows: E022, E023."""
    late = text_reply("late", delay=30)
    answers = {
        "Begin": text_reply("Ready."),
        "Works": text_reply("Fine."),
        "Fails": http_error(400, "no"),
        "Too slow": late,
        "Goes on": tool_call_reply(("ls", {})),
    }
    second_turn = asyncio.Event()

    def script(asked: CapturedRequest) -> FakeResponse:
        if asked.reply_count:
            second_turn.set()
            return late
        return answers[machine.request_texts(asked)[0]]

    async with machine.serve_models(script), machine.open() as app:
        parent = (await app.run("Begin", workspace=machine.folder)).slug
        child = SpawnOptions(parent=parent, agent="general")
        works = await app.runs.spawn("Works", replace(child, label="one"))
        fails = await app.runs.spawn("Fails", child)
        slow = await app.runs.spawn("Too slow", replace(child, timeout_s=0.3))
        for each in (works, fails, slow):
            await app.runs.wait(each.id)
        live = await app.runs.spawn("Goes on", child)
        await second_turn.wait()
        with sqlite3.connect(machine.home / "ledger.db") as db:
            db.row_factory = sqlite3.Row
            rows = db.execute("SELECT * FROM subagent_runs ORDER BY started_at").fetchall()
        db.close()
        await app.runs.cancel(live.id)
    columns = (
        "id session_key requester_key task label model status result error started_at finished_at duration_ms"
    )
    assert rows[0].keys() == columns.split()
    assert [row["status"] for row in rows] == ["completed", "failed", "timeout", "running"]
    assert (rows[0]["task"], rows[0]["label"], rows[0]["result"]) == ("Works", "one", "Fine.")
    assert rows[1]["error"]
