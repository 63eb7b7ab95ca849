"""Sessions over HTTP: create, list, change, clear, branch, delete and restore."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from api_fixture import OpenApi

from retinue.app.run_options import RunOptions
from retinue.testing.fake_model_server import CapturedRequest
from retinue.testing.replies import FakeResponse, text_reply

FIELDS = {
    "session_id", "key", "agent", "name", "branch", "parent_session_id", "type", "depth", "path", "created_at",
    "updated_at", "pinned_at", "last_snippet", "attributes", "status", "entries", "announcements",
}  # fmt: skip
"""Fields that other programs rely on."""
CLOCK_REALTIME_COARSE = 5
"""The clock of Linux for file timestamps; Python has no name for it."""
TICK_SECONDS = 0.02
"""Longer than one tick of the clock of file timestamps: changes within one tick have the same time."""


def count_messages(request: CapturedRequest) -> FakeResponse:
    return text_reply(f"You said {len(request.messages) - 1} things.")


def number_reply(request: CapturedRequest) -> FakeResponse:
    return text_reply(f"Answer {request.reply_count + 1}.")


async def test_a_new_session_has_no_run_and_all_documented_fields(api: OpenApi):
    """Shows: C011, C088."""
    async with api() as client:
        session = await client.create_session(name="Timetable")
        assert session.keys() >= FIELDS
        assert (session["agent"], session["name"], session["status"], session["entries"]) == (
            "general",
            "Timetable",
            "idle",
            0,
        )
        assert (session["pinned_at"], session["workspace"]["root"]) == (None, str(client.workspace))
        assert Path(session["path"]).is_file()
        for ref in (session["session_id"], session["slug"], session["session_id"][:20]):
            assert (await client.get(f"/api/sessions/{ref}")).json == session
        assert (await client.get("/api/runs")).json == []


async def test_a_session_needs_an_existing_agent_and_an_existing_folder(api: OpenApi):
    """Shows: C012."""
    async with api(settings='[deny]\nagents = ["planner"]\n') as client:
        workspace = str(client.workspace)
        for body, status, message_part in (
            ({}, 400, "agent"),
            ({"agent": None}, 400, "agent"),
            ({"agent": ""}, 404, "not found"),
            ({"agent": "nobody"}, 404, "nobody"),
            ({"agent": "../general"}, 404, "not found"),
            ({"agent": "planner"}, 403, "deny.agents"),
            ({"agent": "general", "workspace": "work"}, 400, "absolute"),
            ({"agent": "general", "workspace": f"{workspace}/none"}, 400, "not a folder"),
            ({"agent": "general", "workspace": f"{workspace}\0"}, 400, "workspace"),
            ({"agent": "general", "name": "a\nb"}, 400, "one line"),
            ({"agent": "general", "colour": "red"}, 400, "colour"),
        ):
            response = await client.post("/api/sessions", body)
            assert (response.status, message_part in response.message) == (status, True), (body, response.raw)
        assert (await client.get("/api/sessions")).json == []


async def test_attributes_are_merged_and_null_removes_one(api: OpenApi):
    """Shows: C013."""
    async with api() as client:
        path = f"/api/sessions/{(await client.create_session())['session_id']}"
        first = {"panel": {"open": True, "rows": [1, 2.5, None, "x"]}, "colour": "blue"}
        assert (await client.patch(path, {"attributes": first})).json["attributes"] == first
        merged = await client.patch(path, {"attributes": {"colour": None, "size": 3}})
        assert merged.json["attributes"] == {"panel": first["panel"], "size": 3}
        assert (await client.get(path)).json["attributes"] == {"panel": first["panel"], "size": 3}
        assert (await client.patch(path, {"attributes": {"leaf": False}})).status == 403
        assert (await client.patch(path, {"attributes": {"big": "x" * 70_000}})).status == 400
        assert (await client.patch(path, {"attributes": None})).status == 400
        assert (await client.get(path)).json["attributes"] == {"panel": first["panel"], "size": 3}


async def test_lists_show_the_latest_text_of_a_session_until_it_is_cleared(api: OpenApi):
    """Shows: C014, C021."""
    async with api(count_messages) as client:
        session = await client.create_session(name="Short")
        await client.send_message(session["slug"], "First")
        row = (await client.get("/api/sessions")).json[0]
        assert (row["last_snippet"], row["status"]) == ("You said 1 things.", "idle")
        cleared = await client.post(f"/api/sessions/{session['slug']}/clear")
        kept_fields = ("session_id", "slug", "name", "agent", "created_at")
        assert [cleared.json[field] for field in kept_fields] == [session[field] for field in kept_fields]
        assert (cleared.json["entries"], cleared.json["last_snippet"]) == (0, "")
        assert (await client.get(f"/api/sessions/{session['slug']}/entries")).json == []
        next_reply = await client.send_message(session["slug"], "Second")
        assert next_reply.json["response"] == "You said 1 things."


async def test_messages_and_changes_move_updated_at_and_an_empty_change_does_not(api: OpenApi):
    """Shows: C018."""
    async with api() as client:
        session = await client.create_session()
        path = f"/api/sessions/{session['session_id']}"
        times = [session["updated_at"]]
        changes = ({"name": "Other"}, {"pinned": True}, {"pinned": False}, {"attributes": {"a": 1}})
        for change in changes:
            await asyncio.sleep(TICK_SECONDS)
            times.append((await client.patch(path, change)).json["updated_at"])
        await asyncio.sleep(TICK_SECONDS)
        await client.send_message(session["session_id"], "Hello")
        times.append((await client.get(path)).json["updated_at"])
        assert times == sorted(set(times))
        assert (await client.patch(path, {})).json["updated_at"] == times[-1]
        assert (await client.post(f"{path}/touch")).status == 404


async def wait_for_clock_tick() -> None:
    """Wait until the clock of file timestamps has moved on."""
    now = time.clock_gettime_ns(CLOCK_REALTIME_COARSE)
    while time.clock_gettime_ns(CLOCK_REALTIME_COARSE) == now:  # noqa: ASYNC110  (a clock cannot be waited for)
        await asyncio.sleep(0.001)


async def wait_for_idle_file(path: Path) -> None:
    """Wait until the file ends with the open line for the next message, which is written after the answer."""
    while not path.read_text().rstrip().endswith("-->"):  # noqa: ASYNC110  (the file of another process)
        await asyncio.sleep(0.005)


async def test_pinned_sessions_come_first_and_the_last_pinned_before_the_others(api: OpenApi):
    """Shows: C019."""
    async with api() as client:
        names = ["a", "b", "c", "d"]
        ids = {name: (await client.create_session(name=name))["session_id"] for name in names}
        for name in ("b", "a"):
            pinned = (await client.patch(f"/api/sessions/{ids[name]}", {"pinned": True})).json
            assert pinned["pinned_at"] is not None
        await client.send_message(ids["c"], "Hello")
        assert [row["name"] for row in (await client.get("/api/sessions")).json] == ["a", "b", "c", "d"]
        await wait_for_idle_file(Path((await client.get(f"/api/sessions/{ids['c']}")).json["path"]))
        await wait_for_clock_tick()
        await client.patch(f"/api/sessions/{ids['a']}", {"pinned": False})
        assert [row["name"] for row in (await client.get("/api/sessions", limit=3)).json] == ["b", "a", "c"]


async def test_pinning_does_not_change_which_session_is_the_latest(api: OpenApi):
    """Shows: C015, C017."""
    async with api() as client:
        older, newer = (
            (await client.create_session())["session_id"],
            (await client.create_session())["session_id"],
        )
        await client.patch(f"/api/sessions/{newer}", {"name": "newer"})
        await client.send_message(older, "Touched by a message")
        await client.patch(f"/api/sessions/{older}", {"pinned": True})
        await client.send_message(newer, "And later this one")
        assert (
            await client.app.runs.start("Whom?", RunOptions(agent="general", session="latest"))
        ).session_id == newer


async def test_a_session_pinned_in_the_old_format_stays_pinned(api: OpenApi):
    """Shows: C020."""
    async with api() as client:
        session = await client.create_session()
        metadata = Path(session["path"]).with_name("session.json")
        text = metadata.read_text()
        metadata.write_text(text[: text.rindex("}")].rstrip() + ', "pinned": true}')
        assert (await client.get(f"/api/sessions/{session['session_id']}")).json["pinned_at"] is not None


async def test_a_deleted_session_is_not_found_until_it_is_restored(api: OpenApi):
    """Shows: C022."""
    async with api() as client:
        session = await client.create_session(name="Going")
        await client.send_message(session["slug"], "Hello")
        before = (await client.get(f"/api/sessions/{session['slug']}")).json
        deleted = await client.delete(f"/api/sessions/{session['slug']}")
        assert (deleted.status, deleted.json["deleted"], deleted.json["restore_id"]) == (
            200,
            True,
            session["session_id"],
        )
        assert not Path(session["path"]).exists()
        assert (await client.get("/api/sessions")).json == []
        for method, suffix in (("GET", ""), ("DELETE", ""), ("POST", "/clear"), ("GET", "/entries")):
            assert (
                await client.request(method, f"/api/sessions/{session['session_id']}{suffix}")
            ).status == 404
        assert (await client.send_message(session["session_id"], "Anybody?")).status == 404
        restored = await client.post(f"/api/sessions/{deleted.json['restore_id']}/restore")
        assert restored.json | {"updated_at": ""} == before | {"updated_at": ""}
        assert await client.message_texts(session["slug"]) == ["Hello", "ok"]
        assert (await client.post(f"/api/sessions/{deleted.json['restore_id']}/restore")).status == 404


async def test_a_session_cannot_be_restored_while_another_one_has_its_name(api: OpenApi):
    async with api() as client:
        session, other = await client.create_session(name="One"), await client.create_session()
        await client.delete(f"/api/sessions/{session['slug']}")
        assert (await client.patch(f"/api/sessions/{other['slug']}", {"name": "ONE"})).status == 200
        conflict = await client.post(f"/api/sessions/{session['session_id']}/restore")
        assert (conflict.status, "already in use" in conflict.message) == (409, True)
        await client.patch(f"/api/sessions/{other['slug']}", {"name": "Two"})
        assert (await client.post(f"/api/sessions/{session['session_id']}/restore")).json["name"] == "One"


async def test_a_session_name_is_unique_regardless_of_case_and_can_be_removed(api: OpenApi):
    """Shows: C023."""
    async with api() as client:
        first, second = await client.create_session(name="Cron"), await client.create_session()
        conflict = await client.patch(f"/api/sessions/{second['slug']}", {"name": "CRON"})
        assert (conflict.status, 'Session name "CRON" is already in use' in conflict.message) == (409, True)
        body = {"agent": "general", "name": "cron", "workspace": str(client.workspace)}
        assert (await client.post("/api/sessions", body)).status == 409
        assert (await client.patch(f"/api/sessions/{first['slug']}", {"name": "cron"})).json["name"] == "cron"
        assert (await client.patch(f"/api/sessions/{first['slug']}", {"name": None})).json["name"] is None
        assert (await client.patch(f"/api/sessions/{second['slug']}", {"name": "Cron"})).json[
            "name"
        ] == "Cron"
        assert {row["name"] for row in (await client.get("/api/sessions")).json} == {None, "Cron"}


async def test_rows_name_the_agent_for_people_too(api: OpenApi):
    journal = "---\ndisplay_name: Personal Journal\nui_visible: false\n---\nYou write.\n"
    async with api(agents={"journal": journal, "plain": "---\ndescription: x\n---\nHi.\n"}) as client:
        session, plain = await client.create_session("journal"), await client.create_session("plain")
        assert (session["agent_display_name"], plain["agent_display_name"]) == ("Personal Journal", None)
        rows = {row["agent"]: row["agent_display_name"] for row in (await client.get("/api/sessions")).json}
        assert rows == {"journal": "Personal Journal", "plain": None}
        run = (await client.send_message(session["slug"], "Hello")).json["responseId"]
        assert (await client.get(f"/api/runs/{run}")).json["agent_display_name"] == "Personal Journal"
        assert (await client.get("/api/runs")).json[0]["agent_display_name"] == "Personal Journal"
        assert "journal" not in [each["name"] for each in (await client.get("/api/agents")).json]


async def test_sessions_are_filtered_by_agent_text_and_children(api: OpenApi):
    async with api(agents={"scout": "---\ndescription: Looks around.\n---\nYou look around.\n"}) as client:
        await client.create_session(name="Alpha Road")
        scout = await client.create_session("scout", name="Beta")
        await client.send_message(scout["slug"], "Hello")

        async def find_names(**query: Any) -> list[str]:
            return [row["name"] for row in (await client.get("/api/sessions", **query)).json]

        assert await find_names(agent="scout") == ["Beta"]
        assert await find_names(q="road ALPHA") == ["Alpha Road"]
        assert await find_names(q="ok") == ["Beta"]
        assert await find_names(q="nothing like it") == []
        assert await find_names(children=False) == ["Beta", "Alpha Road"]
        assert await find_names(limit=1) == ["Beta"]
        for query in ({"limit": 0}, {"limit": "x"}, {"children": "maybe"}, {"colour": "red"}):
            assert (await client.get("/api/sessions", **query)).status == 400


async def test_a_branch_continues_from_an_earlier_message(api: OpenApi):
    async with api(number_reply) as client:
        session = await client.create_session()
        for text in ("One", "Two"):
            await client.send_message(session["slug"], text)
        second = (await client.get(f"/api/sessions/{session['slug']}/entries")).json[2]
        path = f"/api/sessions/{session['session_id']}/branch"
        branch = await client.post(path, {"at": second["id"], "include": False, "name": "other"})
        assert (branch.status, branch.json["branch"].endswith("-other")) == (201, True)
        assert await client.message_texts(branch.json["session_id"]) == ["One", "Answer 1."]
        full_branch = await client.post(path)
        assert await client.message_texts(full_branch.json["session_id"]) == [
            "One",
            "Answer 1.",
            "Two",
            "Answer 2.",
        ]
        assert (await client.post(path, {"at": "nothing"})).status == 404
        assert (
            await client.post(
                path,
                {"at": (await client.get(f"/api/sessions/{session['session_id']}/entries")).json[1]["id"]},
            )
        ).status == 400


async def test_a_draft_is_stored_in_the_session_file_and_not_sent_twice(api: OpenApi):
    """Shows: A080."""
    async with api() as client:
        session = await client.create_session()
        path = f"/api/sessions/{session['slug']}"
        for text in ("W", "Where is", "Where is it\n\n<!-- user id=x -->\nhidden?"):
            assert (await client.put(f"{path}/draft", {"content": text})).json == {"saved": True}
            assert (await client.get(path)).json["draft"] == text
        assert "Where is it" in Path(session["path"]).read_text()
        assert (await client.get(f"{path}/entries")).json == []
        await client.put(f"{path}/draft", {"content": "Where is"})
        assert (await client.send_message(session["slug"], "Where is it?")).json["status"] == "complete"
        assert await client.message_texts(session["slug"]) == ["Where is it?", "ok"]
        assert (await client.get(path)).json["draft"] == ""
        await client.put(f"{path}/draft", {"content": "More"})
        await client.put(f"{path}/draft", {"content": ""})
        assert (await client.get(path)).json["draft"] == ""


async def test_text_typed_into_the_file_is_sent_before_the_next_message(api: OpenApi):
    async with api() as client:
        session = await client.create_session()
        await client.send_message(session["slug"], "Hello")
        file = Path(session["path"])
        file.write_text(f"{file.read_text()}By hand\n")
        assert (await client.get(f"/api/sessions/{session['slug']}")).json["draft"] == "By hand"
        await client.send_message(session["slug"], "Something else")
        assert await client.message_texts(session["slug"]) == [
            "Hello",
            "ok",
            "By hand",
            "Something else",
            "ok",
        ]


@pytest.mark.parametrize("ref", ["..", "%2e%2e%2fhome", "a%00b", "x" * 300, "caf%C3%A9", "-x", "a b"])
async def test_an_invalid_session_reference_finds_nothing(api: OpenApi, ref: str):
    async with api() as client:
        await client.create_session()
        for method, suffix in (("GET", ""), ("DELETE", ""), ("POST", "/restore")):
            assert (await client.request(method, f"/api/sessions/{ref}{suffix}")).status in (400, 404)
        assert len((await client.get("/api/sessions")).json) == 1


async def test_a_session_reference_never_means_a_folder_in_the_daemons_working_directory(
    api: OpenApi, monkeypatch: pytest.MonkeyPatch
):
    async with api() as client:
        session = await client.create_session()
        decoy = client.workspace / "decoy"
        decoy.mkdir()
        (decoy / "session.md").write_bytes(
            Path(session["path"]).read_bytes() or b"<!-- retinue 1 session=x -->\n"
        )
        (decoy / "session.json").write_bytes(Path(session["path"]).with_name("session.json").read_bytes())
        monkeypatch.chdir(client.workspace)
        assert (await client.get("/api/sessions/decoy")).status == 404


async def test_a_session_reference_is_an_id_or_a_slug_and_never_a_name(api: OpenApi):
    async with api() as client:
        session, other = await client.create_session(), await client.create_session(name="Kept")
        for name in (
            session["session_id"],
            session["session_id"].upper(),
            session["slug"],
            f"{session['slug']}-9",
        ):
            for refused in (
                await client.patch(f"/api/sessions/{other['session_id']}", {"name": name}),
                await client.post("/api/sessions", {"agent": "general", "name": name}),
            ):
                assert (refused.status, "looks like an id or slug" in refused.message) == (400, True)
        assert (await client.get("/api/sessions/Kept")).status == 404
        assert (await client.get("/api/sessions/Kept/events")).status == 404
        assert (await client.delete(f"/api/sessions/{session['slug']}")).status == 200
        assert (await client.delete(f"/api/sessions/{session['slug']}")).status == 404
        assert (await client.get(f"/api/sessions/{other['session_id']}")).json["name"] == "Kept"


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("latest", 400),
        ("Latest-or-create", 400),
        ("create", 400),
        ("kept", 409),
        (" Kept ", 409),
        ("the latest", 200),
    ],
)
async def test_a_session_gets_no_name_that_means_another_session(api: OpenApi, name: str, status: int):
    async with api() as client:
        await client.create_session(name="Kept")
        other = await client.create_session()
        assert (await client.patch(f"/api/sessions/{other['session_id']}", {"name": name})).status == status
        created = await client.post("/api/sessions", {"agent": "general", "name": name})
        assert created.status == (status if status != 200 else 409)


async def test_a_whole_slug_never_means_another_session_created_in_the_same_second(api: OpenApi):
    async with api() as client:
        second = ""
        while not second.endswith("-2"):
            second = (await client.create_session())["slug"]
        first = second.removesuffix("-2")
        assert (await client.delete(f"/api/sessions/{first}")).status == 200
        assert (await client.delete(f"/api/sessions/{first}")).status == 404
        assert (await client.get(f"/api/sessions/{second}")).status == 200
