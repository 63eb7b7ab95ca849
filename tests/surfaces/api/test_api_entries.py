"""A conversation over HTTP, in pages: any length, from any entry, nothing twice and nothing missing."""

import os
from pathlib import Path

import pytest
from api_fixture import OpenApi
from hypothesis import given, settings
from hypothesis import strategies as st
from planted_secret import PlantedSecret

from retinue.domain.session import NewSession, Session
from retinue.domain.transcript import Entry, Message, Notice, ToolCall, ToolResult, public_entry_id
from retinue.domain.workspace import Workspace
from retinue.errors import NotFound
from retinue.sessions.pagination import PageRequest
from retinue.sessions.store import FileStore
from retinue.worker.clock import system_clock


def exchange(number: int, size: int) -> list[Entry]:
    return [
        Message(id=f"u{number}", role="user", text="x" * size + f"\n<!-- user id=u{number + 1} -->\n"),
        Message(id=f"a{number}", role="agent", text="", tool_call_count=1),
        ToolCall(id=f"c{number}", tool="ls", args="{}"),
        ToolResult(call_id=f"c{number}", text="y" * size),
        Notice(id=f"n{number}", topic="report", text="z"),
    ]


async def grown(store: FileStore, sizes: list[int], root: Path) -> Session:
    new = NewSession(agent="general", preset_text="x", preset_hash="", workspace=Workspace(root=str(root)))
    session = await store.create(new)
    async with store.open(session) as talk:
        for number, size in enumerate(sizes):
            await talk.append(*exchange(number, size))
        await talk.write_idle_prompt()
    return session


async def test_pages_of_a_conversation_are_its_entries_in_order(api: OpenApi):
    async with api() as client:
        made = await client.create_session()
        async with client.app.context.store.open(await client.app.sessions.find(made["session_id"])) as talk:
            for number in range(40):
                await talk.append(*exchange(number, 3000))
            await talk.write_idle_prompt()
        path = f"/api/sessions/{made['slug']}/entries"
        whole = (await client.get(path)).json
        ids = [each["id"] for each in whole]
        assert (len(whole), len(set(ids)), ids[:5]) == (200, 200, ["u0", "a0", "c0", "c0:result", "n0"])
        assert (await client.get(path, limit=7)).json == whole[-7:]
        seen = (await client.get(path, limit=30)).json
        while page := (await client.get(path, limit=30, before=seen[0]["id"])).json:
            seen = page + seen
        assert seen == whole
        seen = []
        while page := (
            await client.get(path, limit=30, **({"after": seen[-1]["id"]} if seen else {"around": "u0"}))
        ).json:
            seen += page
        assert seen == whole
        at = ids.index("c20:result")
        assert (await client.get(path, around="c20:result", limit=11)).json == whole[at - 5 : at + 6]
        assert (await client.get(path, after=ids[150])).json == whole[151:]
        assert (await client.get(path, before=ids[3])).json == whole[:3]
        assert (await client.get(path, after="n39")).json == []
        assert (await client.get(path, around="c20")).json == whole[at - 51 : at + 49]


async def test_an_entry_that_is_not_there_and_a_question_that_is_none_are_told(api: OpenApi):
    async with api() as client:
        made = await client.create_session()
        await client.send_message(made["slug"], "Hello")
        path = f"/api/sessions/{made['slug']}/entries"
        for query in ({"before": "nothing"}, {"after": "x", "limit": 3}, {"around": "line-77"}):
            assert (await client.get(path, **query)).status == 404
        for query in ({"before": "a", "after": "b"}, {"limit": 0}, {"limit": 1001}, {"limit": "many"}):
            assert (await client.get(path, **query)).status == 400


async def test_what_a_person_changes_in_the_file_is_what_the_next_page_shows(api: OpenApi):
    async with api() as client:
        made = await client.create_session()
        for words in ("One", "Two"):
            await client.send_message(made["slug"], words)
        path = f"/api/sessions/{made['slug']}/entries"
        last = (await client.get(path, limit=2)).json
        file = Path(made["path"])
        file.write_text(file.read_text().replace("One", "One, and much more than there was"))
        assert (await client.get(path, limit=1, before=last[0]["id"])).json[0]["text"] == "ok"
        assert (await client.get(path, limit=2, before=last[0]["id"])).json[0][
            "text"
        ] == "One, and much more than there was"
        file.write_text("Typed by hand\n\n" + file.read_text().partition("\n")[2])
        found = (await client.get(path, limit=9)).json
        assert (found[0]["id"], found[0]["text"]) == ("line-1", "Typed by hand")
        assert (await client.get(path, after="line-1", limit=9)).json == found[1:]
        assert (await client.get(path, before="line-1", limit=9)).json == []


async def test_keys_are_not_shown_to_whoever_reads_over_http(
    api: OpenApi, planted_secrets: dict[str, PlantedSecret]
):
    async with api() as client:
        made = await client.create_session()
        await client.send_message(made["slug"], "Hello")
        file = Path(made["path"])
        secret = planted_secrets["github person"].secret
        file.write_text(file.read_text().replace("Hello", f"Hello {secret}"))
        for query in ({}, {"limit": 5}):
            found = await client.get(f"/api/sessions/{made['slug']}/entries", **query)
            assert (b"Hello" in found.raw, secret.encode() in found.raw) == (True, False)


@settings(max_examples=25)
@given(
    sizes=st.lists(st.sampled_from([0, 1, 50, 5_000, 70_000, 200_000]), min_size=1, max_size=8),
    limit=st.integers(1, 12),
)
def test_pages_join_to_the_whole_wherever_they_are_cut(
    sizes: list[int], limit: int, tmp_path_factory: pytest.TempPathFactory
):
    import asyncio

    async def played() -> None:
        root = tmp_path_factory.mktemp("pages")
        store = FileStore(root, system_clock())
        session = await grown(store, sizes, root)
        whole, _ = await store.read_entries(session)
        back = await store.read_page(session, PageRequest(limit=limit))
        while page := await store.read_page(
            session, PageRequest(limit=limit, before=public_entry_id(back[0]))
        ):
            back = [*page, *back]
        forth = await store.read_page(session, PageRequest(limit=1, around="u0"))
        while page := await store.read_page(
            session, PageRequest(limit=limit, after=public_entry_id(forth[-1]))
        ):
            forth += page
        store.close()
        assert back == forth == whole

    asyncio.run(played())


async def test_the_newest_of_a_very_long_file_are_found_without_reading_it(tmp_path: Path):
    """The file is a gigabyte with a hole in it: whoever reads it from its beginning finds the hole."""
    store = FileStore(tmp_path, system_clock())
    session = await grown(store, [10] * 50, tmp_path)
    whole, _ = await store.read_entries(session)
    file = Path(session.path) / "session.md"
    tail = file.read_bytes().partition(b"<!-- user id=u1 ")
    with file.open("r+b") as out:
        out.truncate(1 << 30)
        out.seek(0, os.SEEK_END)
        out.write(b"\n\n" + tail[1] + tail[2])
    newest = await store.read_page(session, PageRequest(limit=100))
    assert newest == whole[-100:]
    assert (
        await store.read_page(session, PageRequest(limit=100, before=public_entry_id(newest[0])))
        == whole[-200:-100]
    )
    assert await store.read_draft(session) == ""
    store.close()


async def test_an_entry_is_looked_for_as_far_as_is_said(tmp_path: Path):
    store = FileStore(tmp_path, system_clock())
    session = await grown(store, [40_000] * 8, tmp_path)
    assert (await store.read_page(session, PageRequest(limit=1, around="u0")))[0].id == "u0"
    fresh = FileStore(tmp_path, system_clock())
    assert (await fresh.read_page(session, PageRequest(limit=1, around="u7", within_bytes=100_000)))[
        0
    ].id == "u7"
    with pytest.raises(NotFound):
        await fresh.read_page(session, PageRequest(limit=1, around="u0", within_bytes=100_000))
    store.close()
    fresh.close()
