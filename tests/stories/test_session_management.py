"""Sessions are kept in order: where they lie, what they are called, which one is meant."""

import asyncio
import json
import sqlite3
from pathlib import Path

import pytest
from user_machine import UserMachine

from retinue.app.run_options import RunOptions, SpawnOptions
from retinue.errors import NotFound, Refused, UsageError
from retinue.storage import strict_yaml
from retinue.testing.fake_model_server import CapturedRequest
from retinue.testing.replies import FakeResponse, http_error, text_reply, tool_call_reply


async def test_everything_lands_below_the_home_that_was_named(machine: UserMachine):
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


async def test_what_a_session_is_called_never_changes_what_it_is(machine: UserMachine):
    """Shows: A076, C011, C013, C018, C023."""
    async with (
        machine.serve_models([text_reply("a"), text_reply("b"), text_reply("c")]),
        machine.open() as app,
    ):
        run = await app.run("Hi", workspace=machine.folder)
        other = await app.run("Hi", workspace=machine.folder)
        times = [(await app.sessions.find(run.slug)).updated_at]

        async def moved() -> None:
            times.append((await app.sessions.find(run.slug)).updated_at)
            await asyncio.sleep(0.01)

        await app.sessions.rename(run.slug, "Project X")
        await moved()
        await app.sessions.pin(run.slug)
        await moved()
        await app.context.store.update(
            await app.sessions.find(run.slug), attributes={"panel": {"open": True}}
        )
        await moved()
        await app.run("More", session=run.slug)
        await moved()
        assert times == sorted(set(times))
        shown = await app.sessions.to_json("Project X")
        assert (shown["session_id"], shown["slug"], shown["name"]) == (run.session_id, run.slug, "Project X")
        assert shown["path"] == run.transcript_path
        assert shown["attributes"] == {"panel": {"open": True}}
        with pytest.raises(UsageError, match=r'^Session name "project x" is already in use$'):
            await app.sessions.rename(other.slug, "project x")


async def test_a_run_goes_where_was_spoken_last_and_pins_do_not_matter(machine: UserMachine):
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


async def test_a_pin_of_older_days_is_still_a_pin(machine: UserMachine):
    """Shows: C019, C020."""
    async with machine.serve_models([text_reply(str(n)) for n in range(3)]), machine.open() as app:
        runs = [await app.run("Hi", workspace=machine.folder) for _ in range(3)]
        facts = Path(runs[0].transcript_path).parent / "session.json"
        old = json.loads(facts.read_text())
        del old["pinned_at"]
        facts.write_text(json.dumps(old | {"pinned": True}))
        assert (await app.sessions.find(runs[0].slug)).pinned_at is not None
        await app.sessions.pin(runs[1].slug)
    listed = (await machine("sessions", "list", "--json")).json
    assert [row["slug"] for row in listed] == [runs[1].slug, runs[0].slug, runs[2].slug]


async def test_clearing_forgets_the_words_and_deleting_forgets_the_session(machine: UserMachine):
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


async def test_a_session_belongs_to_an_agent(machine: UserMachine):
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


async def test_what_the_files_say_is_read_anew_each_time(machine: UserMachine):
    """Shows: A077, A079."""
    async with machine.serve_models([text_reply("a"), text_reply("b")]), machine.open() as app:
        parent = await app.run("Hi", workspace=machine.folder)
        child = await app.runs.wait(
            (await app.runs.spawn("Go", SpawnOptions(parent=parent.slug, agent="explorer"))).id
        )
        plan = Path(child.transcript_path).parent / "scope-plan.yml"
        plan.write_text(plan.read_text().replace(parent.slug, "main-20200101000000"))
        assert (await app.sessions.to_json(child.slug))["parent_session_id"] == "main-20200101000000"
        plan.write_text(plan.read_text().replace("preset:", "agent_type:"))
        assert (await app.sessions.find(child.slug)).agent == "explorer"


async def test_a_branch_is_a_copy_that_lives_on_its_own(machine: UserMachine):
    """Shows: A082, A083."""
    async with machine.serve_models([text_reply(f"r{n}") for n in range(9)]) as server, machine.open() as app:
        parent = await app.run("First", workspace=machine.folder)
        child = await app.runs.wait(
            (await app.runs.spawn("Go", SpawnOptions(parent=parent.slug, agent="explorer"))).id
        )
        await app.run("Second", session=parent.slug)
        entries = await app.sessions.entries(parent.slug)
        branched = await app.sessions.branch(parent.slug, at=entries[2].id, include=False, name="Other Way")
        folder = Path(branched.path)
        assert folder.parent == machine.sessions / parent.slug / "branches"
        assert folder.name.endswith("-other-way")
        assert (machine.sessions / parent.slug / "current").readlink() == Path("branches", folder.name)
        facts = strict_yaml.load_yaml((folder / "branch-metadata.yml").read_text(), "facts")
        assert (facts["parent_branch"], set(facts)) == (
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
        assert machine.request_texts(server.requests[-1]) == ["First", "r0", "Onward"]
        await app.run("Back", session=f"{parent.slug}/main")
        assert machine.request_texts(server.requests[-1]) == ["First", "r0", "Second", "r2", "Back"]


async def test_the_history_of_runs_is_a_table_that_others_can_read(machine: UserMachine):
    """Shows: E022, E023."""
    slow = text_reply("late", delay=30)
    answers = {
        "Works": text_reply("Fine."),
        "Fails": http_error(400, "no"),
        "Too slow": slow,
        "Goes on": tool_call_reply(("ls", {})),
    }
    gone_on = asyncio.Event()

    def script(asked: CapturedRequest) -> FakeResponse:
        if asked.reply_count:
            gone_on.set()
            return slow
        return answers[machine.request_texts(asked)[0]]

    async with machine.serve_models(script), machine.open() as app:
        await app.run("Works", workspace=machine.folder, label="one")
        await app.run("Fails", workspace=machine.folder)
        await app.run("Too slow", workspace=machine.folder, timeout=0.3)
        going = await app.runs.start("Goes on", RunOptions(workspace=machine.folder))
        await gone_on.wait()
        with sqlite3.connect(machine.home / "ledger.db") as db:
            db.row_factory = sqlite3.Row
            rows = db.execute("SELECT * FROM subagent_runs ORDER BY started_at").fetchall()
        db.close()
        await app.runs.cancel(going.id)
    columns = (
        "id session_key requester_key task label model status result error started_at finished_at duration_ms"
    )
    assert rows[0].keys() == columns.split()
    assert [row["status"] for row in rows] == ["completed", "failed", "timeout", "running"]
    assert (rows[0]["task"], rows[0]["label"], rows[0]["result"]) == ("Works", "one", "Fine.")
    assert rows[1]["error"]
