"""Entries of a session in pages: any length, from any entry, without duplicates or gaps."""

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


def make_exchange(number: int, size: int) -> list[Entry]:
    return [
        Message(id=f"u{number}", role="user", text="x" * size + f"\n<!-- user id=u{number + 1} -->\n"),
        Message(id=f"a{number}", role="agent", text="", tool_call_count=1),
        ToolCall(id=f"c{number}", tool="ls", args="{}"),
        ToolResult(call_id=f"c{number}", text="y" * size),
        Notice(id=f"n{number}", topic="report", text="z"),
    ]


async def create_long_session(store: FileStore, sizes: list[int], root: Path) -> Session:
    new = NewSession(agent="general", preset_text="x", preset_hash="", workspace=Workspace(root=str(root)))
    session = await store.create(new)
    async with store.open(session) as conversation:
        for number, size in enumerate(sizes):
            await conversation.append(*make_exchange(number, size))
        await conversation.write_idle_prompt()
    return session


async def test_pages_join_to_all_entries_in_order(api: OpenApi):
    async with api() as client:
        created = await client.create_session()
        async with client.app.context.store.open(
            await client.app.sessions.find(created["session_id"])
        ) as conversation:
            for number in range(40):
                await conversation.append(*make_exchange(number, 3000))
            await conversation.write_idle_prompt()
        path = f"/api/sessions/{created['slug']}/entries"
        all_entries = (await client.get(path)).json
        ids = [entry["id"] for entry in all_entries]
        assert (len(all_entries), len(set(ids)), ids[:5]) == (200, 200, ["u0", "a0", "c0", "c0:result", "n0"])
        assert (await client.get(path, limit=7)).json == all_entries[-7:]
        entries = (await client.get(path, limit=30)).json
        while page := (await client.get(path, limit=30, before=entries[0]["id"])).json:
            entries = page + entries
        assert entries == all_entries
        entries = []
        while page := (
            await client.get(
                path, limit=30, **({"after": entries[-1]["id"]} if entries else {"around": "u0"})
            )
        ).json:
            entries += page
        assert entries == all_entries
        index = ids.index("c20:result")
        assert (await client.get(path, around="c20:result", limit=11)).json == all_entries[
            index - 5 : index + 6
        ]
        assert (await client.get(path, after=ids[150])).json == all_entries[151:]
        assert (await client.get(path, before=ids[3])).json == all_entries[:3]
        assert (await client.get(path, after="n39")).json == []
        assert (await client.get(path, around="c20")).json == all_entries[index - 51 : index + 49]


async def test_an_unknown_entry_is_not_found_and_an_invalid_query_is_refused(api: OpenApi):
    async with api() as client:
        created = await client.create_session()
        await client.send_message(created["slug"], "Hello")
        path = f"/api/sessions/{created['slug']}/entries"
        for query in ({"before": "nothing"}, {"after": "x", "limit": 3}, {"around": "line-77"}):
            assert (await client.get(path, **query)).status == 404
        for query in ({"before": "a", "after": "b"}, {"limit": 0}, {"limit": 1001}, {"limit": "many"}):
            assert (await client.get(path, **query)).status == 400


async def test_the_next_page_shows_what_a_person_edited_in_the_file(api: OpenApi):
    async with api() as client:
        created = await client.create_session()
        for text in ("One", "Two"):
            await client.send_message(created["slug"], text)
        path = f"/api/sessions/{created['slug']}/entries"
        last = (await client.get(path, limit=2)).json
        file = Path(created["path"])
        file.write_text(file.read_text().replace("One", "One, and much more than there was"))
        assert (await client.get(path, limit=1, before=last[0]["id"])).json[0]["text"] == "ok"
        assert (await client.get(path, limit=2, before=last[0]["id"])).json[0][
            "text"
        ] == "One, and much more than there was"
        file.write_text("Typed by hand\n\n" + file.read_text().partition("\n")[2])
        entries = (await client.get(path, limit=9)).json
        assert (entries[0]["id"], entries[0]["text"]) == ("line-1", "Typed by hand")
        assert (await client.get(path, after="line-1", limit=9)).json == entries[1:]
        assert (await client.get(path, before="line-1", limit=9)).json == []


async def test_secrets_in_a_session_file_are_redacted_over_http(
    api: OpenApi, planted_secrets: dict[str, PlantedSecret]
):
    async with api() as client:
        created = await client.create_session()
        await client.send_message(created["slug"], "Hello")
        file = Path(created["path"])
        secret = planted_secrets["github person"].secret
        file.write_text(file.read_text().replace("Hello", f"Hello {secret}"))
        for query in ({}, {"limit": 5}):
            response = await client.get(f"/api/sessions/{created['slug']}/entries", **query)
            assert (b"Hello" in response.raw, secret.encode() in response.raw) == (True, False)


@settings(max_examples=25)
@given(
    sizes=st.lists(st.sampled_from([0, 1, 50, 5_000, 70_000, 200_000]), min_size=1, max_size=8),
    limit=st.integers(1, 12),
)
def test_pages_of_any_size_join_to_the_whole_session(
    sizes: list[int], limit: int, tmp_path_factory: pytest.TempPathFactory
):
    import asyncio

    async def read_all_pages() -> None:
        root = tmp_path_factory.mktemp("pages")
        store = FileStore(root, system_clock())
        session = await create_long_session(store, sizes, root)
        all_entries, _ = await store.read_entries(session)
        backward = await store.read_page(session, PageRequest(limit=limit))
        while page := await store.read_page(
            session, PageRequest(limit=limit, before=public_entry_id(backward[0]))
        ):
            backward = [*page, *backward]
        forward = await store.read_page(session, PageRequest(limit=1, around="u0"))
        while page := await store.read_page(
            session, PageRequest(limit=limit, after=public_entry_id(forward[-1]))
        ):
            forward += page
        store.close()
        assert backward == forward == all_entries

    asyncio.run(read_all_pages())


async def test_the_newest_entries_of_a_huge_file_are_read_from_its_end(tmp_path: Path):
    """The file is a gigabyte with a hole in it: reading from the beginning would find the hole."""
    store = FileStore(tmp_path, system_clock())
    session = await create_long_session(store, [10] * 50, tmp_path)
    all_entries, _ = await store.read_entries(session)
    file = Path(session.path) / "session.md"
    tail = file.read_bytes().partition(b"<!-- user id=u1 ")
    with file.open("r+b") as output:
        output.truncate(1 << 30)
        output.seek(0, os.SEEK_END)
        output.write(b"\n\n" + tail[1] + tail[2])
    newest = await store.read_page(session, PageRequest(limit=100))
    assert newest == all_entries[-100:]
    assert (
        await store.read_page(session, PageRequest(limit=100, before=public_entry_id(newest[0])))
        == all_entries[-200:-100]
    )
    assert await store.read_draft(session) == ""
    store.close()


async def test_the_search_for_an_entry_stops_after_the_given_number_of_bytes(tmp_path: Path):
    store = FileStore(tmp_path, system_clock())
    session = await create_long_session(store, [40_000] * 8, tmp_path)
    assert (await store.read_page(session, PageRequest(limit=1, around="u0")))[0].id == "u0"
    fresh = FileStore(tmp_path, system_clock())
    assert (await fresh.read_page(session, PageRequest(limit=1, around="u7", within_bytes=100_000)))[
        0
    ].id == "u7"
    with pytest.raises(NotFound):
        await fresh.read_page(session, PageRequest(limit=1, around="u0", within_bytes=100_000))
    store.close()
    fresh.close()
