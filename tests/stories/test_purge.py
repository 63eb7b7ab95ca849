"""Purging a session: no byte of its messages is left in any file of the home."""

import asyncio
import json
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
from user_machine import UserMachine

import retinue
from retinue import daemon_client
from retinue.domain.watch import Interjection, Severity, Watch
from retinue.ledger.purge import PURGED_TABLES
from retinue.testing.fake_model_server import CapturedRequest
from retinue.testing.replies import FakeResponse, http_error, text_reply, tool_call_reply

WORD = "zanzibarquux"
NOW = datetime(2026, 11, 19, tzinfo=UTC)


def reply_with_the_word(request: CapturedRequest) -> FakeResponse:
    last = UserMachine.request_texts(request)[-1]
    if "READ" in last:
        return tool_call_reply(("read", {"path": f"{WORD}.txt"}))
    if "BASH" in last:
        return tool_call_reply(("bash", {"command": f"echo {WORD}"}))
    if "DELEGATE" in last:
        return tool_call_reply(("sessions_spawn", {"task": f"Look for {WORD}", "label": f"Label {WORD}"}))
    if "FAIL" in last:
        return http_error(400, message=f"Bad request: {WORD}")
    return text_reply(f"I know {WORD}.")


async def plant_word_everywhere(machine: UserMachine) -> str:
    """Store the word in every place that a session and its children write, and return the session's id."""
    machine.write_agent("main", "tools: [read, bash, sessions_spawn]\n")
    machine.write_agent("helper", "tools: [read]\n")
    (machine.folder / f"{WORD}.txt").write_text(f"{WORD} in a file")
    async with machine.serve_models(reply_with_the_word):
        ran = await machine("run", f"READ {WORD}", "--agent", "main", "--label", WORD, "--json")
        assert ran.json["status"] == "done", ran
        session = str(ran.json["session_id"])
        await machine("sessions", "clear", session)
        waiting = await machine("run", "BASH", "--session", session, "--json")
        assert waiting.code == 6, waiting
        await machine("approvals", "answer", waiting.json["approvals"][0], "allow")
        assert (await machine("run", "DELEGATE", "--session", session, "--json")).json["status"] == "done"
        assert (await machine("run", "FAIL", "--session", session, "--json")).json["status"] == "failed"
        arguments = ("--parent", session, "--agent", "helper", "--description", f"find {WORD}", "--json")
        await machine("spawn", *arguments, f"READ {WORD}")
        deleted = await machine("spawn", *arguments, f"Think of {WORD}")
        await machine("sessions", "delete", deleted.json["session_id"])
        await machine("inbox", session, "--drain")
        async with machine.open() as app:
            await app.run(f"Again {WORD}", session=session, key=f"key-{WORD}")
            await app.sessions.update(session, name=f"Name {WORD}", attributes={"note": WORD})
            await plant_word_in_other_places(app, session)
    return session


async def plant_word_in_other_places(app: retinue.App, session: str) -> None:
    """Plant the word where only a crash, a watcher or a CLI agent leaves it."""
    found = await app.sessions.find(session)
    [run, *_] = await app.runs.list(live=False)
    watch = Watch(
        id="w",
        session=session,
        slug=WORD,
        watcher=session,
        agent="main",
        on=False,
        last_update_at=NOW,
        created_at=NOW,
    )
    interjection = Interjection(
        id="i", call="c", run=run.id, watch="w", session=session, slug=WORD, watcher=session, agent="main",
        severity=Severity.INFO, reason=WORD, open=False, created_at=NOW,
    )  # fmt: skip
    await app.context.ledger.write(lambda tx: (tx.save_watch(watch), tx.save_interjection(interjection)))
    await app.sessions.save_draft(session, f"Draft {WORD}")
    home = app.config.home
    for folder in (home / "tmp" / session, home / "programs" / session):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{WORD}.txt").write_text(WORD)
    Path(found.path, "session.md.torn-20261119000000").write_text(WORD)
    (home / "sessions" / ".staging" / app.context.clock.new_uuid()).write_text(f"a list cache with {WORD}")
    with (home / "logs" / "retinue.jsonl").open("a") as log:
        log.write(json.dumps({"level": "error", "run": run.id, "error": f"Traceback {WORD}"}) + "\n")
    (home / "logs" / "internal-error-20261119000000-1.txt").write_text(WORD)


def places_with_word(home: Path) -> set[str]:
    """Return the top-level places of the home in which a file's name or content has the word."""
    word = WORD.encode()
    files = (each for each in home.rglob("*") if each.is_file() or each.is_symlink())
    return {
        each.relative_to(home).parts[0]
        for each in files
        if word in str(each.relative_to(home)).encode() or (each.is_file() and word in each.read_bytes())
    }


def tables_with_word(home: Path) -> set[str]:
    with closing(sqlite3.connect(home / "ledger.db")) as ledger:
        names = [name for (name,) in ledger.execute("SELECT name FROM sqlite_master WHERE type='table'")]
        return {name for name in names if WORD in repr(ledger.execute(f"SELECT * FROM {name}").fetchall())}


async def test_a_purged_session_leaves_no_byte_of_what_was_said(machine: UserMachine):
    session = await plant_word_everywhere(machine)
    assert tables_with_word(machine.home) == PURGED_TABLES
    assert places_with_word(machine.home) - {"ledger.db-wal"} == {
        "ledger.db",
        "logs",
        "programs",
        "sessions",
        "tmp",
    }
    purged = await machine("sessions", "delete", session, "--purge", "--json")
    assert (purged.code, purged.json["purged"], purged.json["path"]) == (0, True, None), purged
    assert places_with_word(machine.home) == set()
    assert (await machine("sessions", "list", "--json")).json == []
    assert (await machine("runs", "history", "--json")).json == []


@pytest.mark.parametrize("with_daemon", [False, True])
async def test_clearing_with_purge_keeps_only_the_session_itself(machine: UserMachine, with_daemon: bool):
    session = await plant_word_everywhere(machine)
    await machine("sessions", "rename", session, "Plain")
    async with machine.open() as app:
        await app.sessions.update(session, attributes={"note": None})
    if with_daemon:
        async with machine.daemon():
            cleared = await machine("sessions", "clear", session, "--purge", "--json")
    else:
        cleared = await machine("sessions", "clear", session, "--purge", "--json")
    assert cleared.code == 0, cleared
    assert (cleared.code, cleared.json["entries"], cleared.json["name"]) == (0, 0, "Plain"), cleared
    assert places_with_word(machine.home) == set()
    assert [each["session_id"] for each in (await machine("sessions", "list", "--json")).json] == [session]


async def test_what_remains_of_a_purged_run_is_its_status_times_and_hash(machine: UserMachine):
    async with machine.serve_models([text_reply(WORD)] * 2):
        ran = await machine("run", WORD, "--json")
        await machine("sessions", "delete", ran.json["session_id"], "--purge")
        shown = await machine("runs", "show", ran.json["run_id"], "--json")
    kept = {name: shown.json[name] for name in ("run_id", "session_id", "status", "ended_at", "pruned")}
    assert kept == {name: ran.json[name] for name in ("run_id", "session_id", "status", "ended_at")} | {
        "pruned": True
    }
    assert len(shown.json["result_hash"]) == 64
    assert WORD not in shown.out
    with closing(sqlite3.connect(machine.home / "ledger.db")) as ledger:
        [usage] = ledger.execute("SELECT runs, input_tokens, output_tokens FROM daily_usage").fetchall()
    assert usage == (1, 10, 5)


async def test_a_live_session_is_not_purged(machine: UserMachine):
    async with machine.serve_models(reply_with_the_word):
        machine.write_agent("main", "tools: [bash]\n")
        waiting = await machine("run", "BASH", "--agent", "main", "--json")
        refused = await machine("sessions", "delete", waiting.json["session_id"], "--purge")
        assert (refused.code, "runs cancel" in refused.err) == (3, True), refused
        refused = await machine("sessions", "clear", waiting.json["session_id"], "--purge")
        assert (refused.code, "runs cancel" in refused.err) == (3, True), refused
        shown = await machine("sessions", "show", waiting.json["session_id"], "--json")
    assert shown.json["entries"] > 0


async def test_a_session_in_the_trash_can_be_purged(machine: UserMachine):
    """So a temporary child (`persist: false`) can be purged too: its session is in the trash after its result."""
    async with machine.serve_models([text_reply(WORD)]):
        ran = await machine("run", WORD, "--json")
        await machine("sessions", "delete", ran.json["session_id"])
        assert "sessions" in places_with_word(machine.home)
        purged = await machine("sessions", "delete", ran.json["run_id"], "--purge")
    assert purged.code == 0, purged
    assert places_with_word(machine.home) == set()


async def test_a_purged_child_leaves_its_parent_what_that_received(machine: UserMachine):
    machine.write_agent("helper", "tools: [read]\n")
    async with machine.serve_models([text_reply("Hello."), text_reply(f"Found {WORD}.")]):
        parent = await machine("run", "Hi", "--json")
        child = await machine(
            "spawn", "--parent", parent.json["session_id"], "--agent", "helper", "--json", "Go"
        )
        await machine("inbox", parent.json["session_id"], "--drain")
        purged = await machine("sessions", "delete", child.json["session_id"], "--purge")
    assert purged.code == 0, purged
    assert tables_with_word(machine.home) == set()
    assert not list((machine.home / "sessions").rglob("agents/*"))


async def test_the_purge_of_a_session_can_be_repeated_after_a_crash(machine: UserMachine):
    session = await plant_word_everywhere(machine)
    async with machine.open() as app:
        deleted = await app.sessions.delete(session)
        store = app.context.store
        target = store.purge_target(deleted, deleted.path)

        def crash() -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            await asyncio.to_thread(app.sessions._purge, target, crash)  # pyright: ignore[reportPrivateUsage]
    assert places_with_word(machine.home) == {"sessions"}
    assert (await machine("sessions", "delete", session, "--purge")).code == 0
    assert places_with_word(machine.home) == set()


async def test_a_program_purges_over_http_while_the_daemon_runs(machine: UserMachine):
    async with machine.serve_models([text_reply(WORD)] * 3), machine.daemon():
        deleted = await machine("run", WORD, "--json")
        path = f"/api/sessions/{deleted.json['session_id']}"
        answer = await daemon_client.request_json(machine.home, "DELETE", f"{path}?purge=true")
        assert answer is not None
        assert (answer["purged"], answer["path"], answer["restore_id"]) == (True, None, None)
        assert await daemon_client.request_json(machine.home, "GET", path) is None
        cleared = await machine("run", WORD, "--json")
        session = cleared.json["session_id"]
        answer = await daemon_client.request_json(
            machine.home, "POST", f"/api/sessions/{session}/clear?purge=true"
        )
        assert answer is not None
        assert (answer["entries"], answer["last_snippet"]) == (0, "")
        assert places_with_word(machine.home) == set()
        again = await machine("run", "Hi", "--session", session, "--json")
    assert again.json["status"] == "done"


async def test_clearing_with_purge_names_the_branches_that_have_copies(machine: UserMachine):
    async with machine.serve_models([text_reply(WORD)]):
        ran = await machine("run", WORD, "--json")
    branched = (await machine("sessions", "branch", ran.json["session_id"], "--json")).json
    cleared = await machine("sessions", "clear", ran.json["session_id"], "--purge")
    assert (cleared.code, branched["key"] in cleared.err) == (1, True), cleared
    assert places_with_word(machine.home) == {"sessions"}
    assert (await machine("sessions", "clear", branched["session_id"], "--purge")).code == 0
    assert places_with_word(machine.home) == set()


async def test_a_purge_names_the_log_of_a_damaged_ledger_that_mentions_the_session(machine: UserMachine):
    async with machine.serve_models([text_reply(WORD)]):
        ran = await machine("run", WORD, "--json")
    copy = machine.home / "ledger.db.damaged-20261119T000000000000Z"
    copy.write_text("no session")
    log = copy.with_name(f"{copy.name}-wal")
    log.write_text(f"{ran.json['session_id']} {WORD}")
    purged = await machine("sessions", "delete", ran.json["session_id"], "--purge")
    assert (purged.code, str(log) in purged.err) == (1, True), purged


@pytest.mark.parametrize("command", ["clear", "delete"])
async def test_a_purge_leaves_the_log_lines_of_other_sessions(machine: UserMachine, command: str):
    async with machine.serve_models([text_reply("One."), text_reply("Two.")]):
        purged = await machine("run", "1", "--json")
        other = await machine("run", "2", "--json")
    log = machine.home / "logs" / "retinue.jsonl"
    with log.open("a") as file:
        file.write(
            json.dumps({"session": other.json["session_id"], "slug": f"{purged.json['slug']}-2"}) + "\n"
        )
    lines = [line for line in log.read_text().splitlines() if other.json["session_id"] in line]
    assert len(lines) > 2
    assert (await machine("sessions", command, purged.json["session_id"], "--purge")).code == 0
    remaining = log.read_text()
    assert [line for line in remaining.splitlines() if other.json["session_id"] in line] == lines
    assert purged.json["run_id"] not in remaining
