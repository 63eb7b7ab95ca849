"""Sessions over HTTP: begun, found, changed, cleared, branched, deleted and brought back."""

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
"""What other programs rely on."""
COARSE = 5
"""Linux's own number of the clock by which it stamps files: Python has no name for it."""
TICK_SECONDS = 0.02
"""The kernel stamps files by a clock that ticks a few hundred times a second: changes within one tick have one time."""


def counting(asked: CapturedRequest) -> FakeResponse:
    return text_reply(f"You said {len(asked.messages) - 1} things.")


def numbered(asked: CapturedRequest) -> FakeResponse:
    return text_reply(f"Answer {asked.reply_count + 1}.")


async def test_a_session_is_made_without_a_run_and_shown_as_the_command_line_shows_it(api: OpenApi):
    """Shows: C011, C088."""
    async with api() as client:
        made = await client.create_session(name="Timetable")
        assert made.keys() >= FIELDS
        assert (made["agent"], made["name"], made["status"], made["entries"]) == (
            "general",
            "Timetable",
            "idle",
            0,
        )
        assert (made["pinned_at"], made["workspace"]["root"]) == (None, str(client.workspace))
        assert Path(made["path"]).is_file()
        for ref in (made["session_id"], made["slug"], made["session_id"][:20]):
            assert (await client.get(f"/api/sessions/{ref}")).json == made
        assert (await client.get("/api/runs")).json == []


async def test_a_session_needs_an_agent_that_is_there_and_a_folder_that_is_one(api: OpenApi):
    """Shows: C012."""
    async with api(settings='[deny]\nagents = ["planner"]\n') as client:
        work = str(client.workspace)
        for body, status, word in (
            ({}, 400, "agent"),
            ({"agent": None}, 400, "agent"),
            ({"agent": ""}, 404, "not found"),
            ({"agent": "nobody"}, 404, "nobody"),
            ({"agent": "../general"}, 404, "not found"),
            ({"agent": "planner"}, 403, "deny.agents"),
            ({"agent": "general", "workspace": "work"}, 400, "absolute"),
            ({"agent": "general", "workspace": f"{work}/none"}, 400, "not a folder"),
            ({"agent": "general", "workspace": f"{work}\0"}, 400, "workspace"),
            ({"agent": "general", "name": "a\nb"}, 400, "one line"),
            ({"agent": "general", "colour": "red"}, 400, "colour"),
        ):
            refused = await client.post("/api/sessions", body)
            assert (refused.status, word in refused.message) == (status, True), (body, refused.raw)
        assert (await client.get("/api/sessions")).json == []


async def test_attributes_are_merged_read_back_and_taken_away_by_null(api: OpenApi):
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


async def test_lists_show_the_start_of_the_last_words_until_the_session_is_cleared(api: OpenApi):
    """Shows: C014, C021."""
    async with api(counting) as client:
        made = await client.create_session(name="Short")
        await client.send_message(made["slug"], "First")
        row = (await client.get("/api/sessions")).json[0]
        assert (row["last_snippet"], row["status"]) == ("You said 1 things.", "idle")
        cleared = await client.post(f"/api/sessions/{made['slug']}/clear")
        kept = ("session_id", "slug", "name", "agent", "created_at")
        assert [cleared.json[each] for each in kept] == [made[each] for each in kept]
        assert (cleared.json["entries"], cleared.json["last_snippet"]) == (0, "")
        assert (await client.get(f"/api/sessions/{made['slug']}/entries")).json == []
        again = await client.send_message(made["slug"], "Second")
        assert again.json["response"] == "You said 1 things."


async def test_messages_and_every_change_move_updated_at_and_nothing_only_touches(api: OpenApi):
    """Shows: C018."""
    async with api() as client:
        made = await client.create_session()
        path = f"/api/sessions/{made['session_id']}"
        times = [made["updated_at"]]
        changes = ({"name": "Other"}, {"pinned": True}, {"pinned": False}, {"attributes": {"a": 1}})
        for change in changes:
            await asyncio.sleep(TICK_SECONDS)
            times.append((await client.patch(path, change)).json["updated_at"])
        await asyncio.sleep(TICK_SECONDS)
        await client.send_message(made["session_id"], "Hello")
        times.append((await client.get(path)).json["updated_at"])
        assert times == sorted(set(times))
        assert (await client.patch(path, {})).json["updated_at"] == times[-1]
        assert (await client.post(f"{path}/touch")).status == 404


async def a_tick_later() -> None:
    """Until the clock by which the kernel stamps files has moved on."""
    now = time.clock_gettime_ns(COARSE)
    while time.clock_gettime_ns(COARSE) == now:  # noqa: ASYNC110  (a clock tells nobody)
        await asyncio.sleep(0.001)


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
        await a_tick_later()
        await client.patch(f"/api/sessions/{ids['a']}", {"pinned": False})
        assert [row["name"] for row in (await client.get("/api/sessions", limit=3)).json] == ["b", "a", "c"]


async def test_pinning_changes_nothing_about_which_session_is_the_latest(api: OpenApi):
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


async def test_a_record_that_was_pinned_by_a_flag_stays_pinned(api: OpenApi):
    """Shows: C020."""
    async with api() as client:
        made = await client.create_session()
        facts = Path(made["path"]).with_name("session.json")
        text = facts.read_text()
        facts.write_text(text[: text.rindex("}")].rstrip() + ', "pinned": true}')
        assert (await client.get(f"/api/sessions/{made['session_id']}")).json["pinned_at"] is not None


async def test_a_deleted_session_is_gone_for_everybody_until_it_is_restored(api: OpenApi):
    """Shows: C022."""
    async with api() as client:
        made = await client.create_session(name="Going")
        await client.send_message(made["slug"], "Hello")
        before = (await client.get(f"/api/sessions/{made['slug']}")).json
        gone = await client.delete(f"/api/sessions/{made['slug']}")
        assert (gone.status, gone.json["deleted"], gone.json["restore_id"]) == (200, True, made["session_id"])
        assert not Path(made["path"]).exists()
        assert (await client.get("/api/sessions")).json == []
        for method, rest in (("GET", ""), ("DELETE", ""), ("POST", "/clear"), ("GET", "/entries")):
            assert (await client.request(method, f"/api/sessions/{made['session_id']}{rest}")).status == 404
        assert (await client.send_message(made["session_id"], "Anybody?")).status == 404
        back = await client.post(f"/api/sessions/{gone.json['undo']}/restore")
        assert back.json | {"updated_at": ""} == before | {"updated_at": ""}
        assert await client.message_texts(made["slug"]) == ["Hello", "ok"]
        assert (await client.post(f"/api/sessions/{gone.json['undo']}/restore")).status == 404


async def test_a_session_does_not_come_back_under_a_name_that_is_taken_meanwhile(api: OpenApi):
    async with api() as client:
        made, other = await client.create_session(name="One"), await client.create_session()
        await client.delete(f"/api/sessions/{made['slug']}")
        assert (await client.patch(f"/api/sessions/{other['slug']}", {"name": "ONE"})).status == 200
        taken = await client.post(f"/api/sessions/{made['session_id']}/restore")
        assert (taken.status, "already in use" in taken.message) == (409, True)
        await client.patch(f"/api/sessions/{other['slug']}", {"name": "Two"})
        assert (await client.post(f"/api/sessions/{made['session_id']}/restore")).json["name"] == "One"


async def test_a_name_is_unique_whatever_its_case_and_can_be_taken_away(api: OpenApi):
    """Shows: C023."""
    async with api() as client:
        one, two = await client.create_session(name="Cron"), await client.create_session()
        taken = await client.patch(f"/api/sessions/{two['slug']}", {"name": "CRON"})
        assert (taken.status, 'Session name "CRON" is already in use' in taken.message) == (400, True)
        assert (await client.patch(f"/api/sessions/{one['slug']}", {"name": "cron"})).json["name"] == "cron"
        assert (await client.patch(f"/api/sessions/{one['slug']}", {"name": None})).json["name"] is None
        assert (await client.patch(f"/api/sessions/{two['slug']}", {"name": "Cron"})).json["name"] == "Cron"
        assert {row["name"] for row in (await client.get("/api/sessions")).json} == {None, "Cron"}


async def test_sessions_are_found_by_agent_by_words_and_without_children(api: OpenApi):
    async with api(agents={"scout": "---\ndescription: Looks around.\n---\nYou look around.\n"}) as client:
        await client.create_session(name="Alpha Road")
        scout = await client.create_session("scout", name="Beta")
        await client.send_message(scout["slug"], "Hello")

        async def names(**query: Any) -> list[str]:
            return [row["name"] for row in (await client.get("/api/sessions", **query)).json]

        assert await names(agent="scout") == ["Beta"]
        assert await names(q="road ALPHA") == ["Alpha Road"]
        assert await names(q="ok") == ["Beta"]
        assert await names(q="nothing like it") == []
        assert await names(children=False) == ["Beta", "Alpha Road"]
        assert await names(limit=1) == ["Beta"]
        for wrong in ({"limit": 0}, {"limit": "x"}, {"children": "maybe"}, {"colour": "red"}):
            assert (await client.get("/api/sessions", **wrong)).status == 400


async def test_a_branch_goes_on_from_an_earlier_message(api: OpenApi):
    async with api(numbered) as client:
        made = await client.create_session()
        for words in ("One", "Two"):
            await client.send_message(made["slug"], words)
        second = (await client.get(f"/api/sessions/{made['slug']}/entries")).json[2]
        path = f"/api/sessions/{made['session_id']}/branch"
        branch = await client.post(path, {"at": second["id"], "include": False, "name": "other"})
        assert (branch.status, branch.json["branch"].endswith("-other")) == (201, True)
        assert await client.message_texts(branch.json["session_id"]) == ["One", "Answer 1."]
        whole = await client.post(path)
        assert await client.message_texts(whole.json["session_id"]) == [
            "One",
            "Answer 1.",
            "Two",
            "Answer 2.",
        ]
        assert (await client.post(path, {"at": "nothing"})).status == 404
        assert (
            await client.post(
                path, {"at": (await client.get(f"/api/sessions/{made['session_id']}/entries")).json[1]["id"]}
            )
        ).status == 400


async def test_what_is_typed_is_kept_in_the_file_shown_again_and_not_said_twice(api: OpenApi):
    """Shows: A080."""
    async with api() as client:
        made = await client.create_session()
        path = f"/api/sessions/{made['slug']}"
        for words in ("W", "Where is", "Where is it\n\n<!-- user id=x -->\nhidden?"):
            assert (await client.put(f"{path}/draft", {"content": words})).json == {"saved": True}
            assert (await client.get(path)).json["draft"] == words
        assert "Where is it" in Path(made["path"]).read_text()
        assert (await client.get(f"{path}/entries")).json == []
        await client.put(f"{path}/draft", {"content": "Where is"})
        assert (await client.send_message(made["slug"], "Where is it?")).json["status"] == "complete"
        assert await client.message_texts(made["slug"]) == ["Where is it?", "ok"]
        assert (await client.get(path)).json["draft"] == ""
        await client.put(f"{path}/draft", {"content": "More"})
        await client.put(f"{path}/draft", {"content": ""})
        assert (await client.get(path)).json["draft"] == ""


async def test_what_a_person_typed_into_the_file_is_said_before_a_message(api: OpenApi):
    async with api() as client:
        made = await client.create_session()
        await client.send_message(made["slug"], "Hello")
        file = Path(made["path"])
        file.write_text(f"{file.read_text()}By hand\n")
        assert (await client.get(f"/api/sessions/{made['slug']}")).json["draft"] == "By hand"
        await client.send_message(made["slug"], "Something else")
        assert await client.message_texts(made["slug"]) == ["Hello", "ok", "By hand", "Something else", "ok"]


@pytest.mark.parametrize("ref", ["..", "%2e%2e%2fhome", "a%00b", "x" * 300, "caf%C3%A9", "-x", "a b"])
async def test_a_name_that_is_none_finds_nothing(api: OpenApi, ref: str):
    async with api() as client:
        await client.create_session()
        for method, rest in (("GET", ""), ("DELETE", ""), ("POST", "/restore")):
            assert (await client.request(method, f"/api/sessions/{ref}{rest}")).status in (400, 404)
        assert len((await client.get("/api/sessions")).json) == 1


async def test_a_session_is_never_found_by_a_folder_that_lies_where_the_daemon_works(
    api: OpenApi, monkeypatch: pytest.MonkeyPatch
):
    async with api() as client:
        made = await client.create_session()
        elsewhere = client.workspace / "decoy"
        elsewhere.mkdir()
        (elsewhere / "session.md").write_bytes(
            Path(made["path"]).read_bytes() or b"<!-- retinue 1 session=x -->\n"
        )
        (elsewhere / "session.json").write_bytes(Path(made["path"]).with_name("session.json").read_bytes())
        monkeypatch.chdir(client.workspace)
        assert (await client.get("/api/sessions/decoy")).status == 404


async def test_an_address_means_a_session_itself_and_never_another_that_is_called_so(api: OpenApi):
    async with api() as client:
        made, other = await client.create_session(), await client.create_session(name="Kept")
        for name in (made["session_id"], made["session_id"].upper(), made["slug"], f"{made['slug']}-9"):
            for refused in (
                await client.patch(f"/api/sessions/{other['session_id']}", {"name": name}),
                await client.post("/api/sessions", {"agent": "general", "name": name}),
            ):
                assert (refused.status, "ids and slugs look so" in refused.message) == (400, True)
        assert (await client.get("/api/sessions/Kept")).status == 404
        assert (await client.get("/api/sessions/Kept/events")).status == 404
        assert (await client.delete(f"/api/sessions/{made['slug']}")).status == 200
        assert (await client.delete(f"/api/sessions/{made['slug']}")).status == 404
        assert (await client.get(f"/api/sessions/{other['session_id']}")).json["name"] == "Kept"


async def test_a_whole_slug_never_means_a_session_that_was_begun_in_the_same_second(api: OpenApi):
    async with api() as client:
        second = ""
        while not second.endswith("-2"):
            second = (await client.create_session())["slug"]
        first = second.removesuffix("-2")
        assert (await client.delete(f"/api/sessions/{first}")).status == 200
        assert (await client.delete(f"/api/sessions/{first}")).status == 404
        assert (await client.get(f"/api/sessions/{second}")).status == 200
