"""Session folders: complete or absent, recognised by their content, listed, and found by every name."""

import asyncio
import json
import os
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from new_session import new_session

from retinue.domain.agent import Agent, PathPatterns, preset_hash
from retinue.domain.ceiling import Ceiling
from retinue.domain.session import NewSession, Session
from retinue.domain.transcript import Message
from retinue.domain.workspace import Isolation, Workspace
from retinue.errors import BadDefinition, Conflict, Failed, NotFound, SessionLocked, UsageError
from retinue.sessions.store import FileStore
from retinue.storage import strict_yaml
from retinue.testing.fixed_clock import fixed_clock
from retinue.worker.clock import system_clock

PRESET = '---\nname: explorer\ntools: [read]\npaths:\n  read:\n    - "/w/**"\n---\nYou explore.\n'


def describe_session(agent: str = "general", **fields: Any) -> NewSession:
    return new_session(
        agent,
        preset_text=PRESET,
        preset_hash=preset_hash(PRESET),
        workspace=Workspace(root="/w"),
        **fields,
    )


async def append_message(store: FileStore, session: Session, text: str) -> None:
    async with store.open(session) as conversation:
        await conversation.append(Message(id=f"id-{text}", role="user", text=text))


def read_scope_plan(session: Session) -> dict[str, str]:
    path = Path(session.path) / "scope-plan.yml"
    return strict_yaml.load_yaml(path.read_text(), str(path))


def file_modes(top: Path) -> set[tuple[str, str]]:
    return {("d" if path.is_dir() else "f", oct(path.stat().st_mode & 0o777)) for path in top.rglob("*")}


async def test_a_top_level_session_is_a_folder_with_a_main_branch_and_a_link_to_it(
    store: FileStore, tmp_path: Path
):
    """Shows: A073, A074, A075."""
    session = await store.create(describe_session())
    top = tmp_path / "sessions" / "general-20261115184207"
    assert sorted(str(path.relative_to(top)) for path in top.rglob("*")) == [
        "branches",
        "branches/main",
        "branches/main/preset.md",
        "branches/main/scope-plan.yml",
        "branches/main/session.json",
        "branches/main/session.md",
        "current",
    ]
    assert (top / "current").readlink() == Path("branches/main")
    assert session.path == str(top / "branches" / "main")
    assert file_modes(top) == {("d", "0o700"), ("f", "0o600")}
    assert (await store.sessions()) == [session]


async def test_a_child_session_folder_is_in_the_parents_branch_and_has_no_branches(store: FileStore):
    """Shows: A017, A018, A019, A020, A021, A022, A030."""
    parent = await store.create(describe_session())
    child = await store.create(describe_session("explorer", parent=parent, description="Find Module!"))
    assert child.slug == "explorer-20261115184207-find-module-"
    assert child.path == f"{parent.path}/agents/{child.slug}"
    assert sorted(path.name for path in Path(child.path).iterdir()) == [
        "preset.md",
        "scope-plan.yml",
        "session.json",
        "session.md",
    ]
    assert (Path(child.path) / "session.md").stat().st_size == 0
    assert (Path(child.path) / "preset.md").read_text() == PRESET
    assert (child.type, child.parent_id, child.parent_slug, child.depth) == (
        "agent",
        parent.id,
        parent.slug,
        1,
    )
    assert child.key == f"{child.slug}/main"


async def test_a_scope_plan_has_seven_keys_for_a_child_and_six_for_a_top_level_session(store: FileStore):
    """Shows: A028, A029, A084."""
    parent = await store.create(describe_session())
    child = await store.create(describe_session("explorer", parent=parent, description="x"))
    assert read_scope_plan(child) == {
        "version": "3.0",
        "session_id": child.slug,
        "created": "2026-11-15T18:42:07Z",
        "updated": "2026-11-15T18:42:07Z",
        "type": "agent",
        "parent_session_id": parent.slug,
        "preset": "explorer",
    }
    assert sorted(read_scope_plan(parent)) == [
        "created",
        "preset",
        "session_id",
        "type",
        "updated",
        "version",
    ]
    assert read_scope_plan(parent)["type"] == "branch"


async def test_child_sessions_with_the_same_name_and_second_get_different_folders(store: FileStore):
    """Shows: A022."""
    parent = await store.create(describe_session())
    children = await asyncio.gather(
        *(store.create(describe_session("explorer", parent=parent, description="same")) for _ in range(5))
    )
    base = "explorer-20261115184207-same"
    assert sorted(each.slug for each in children) == [
        base,
        f"{base}-2",
        f"{base}-3",
        f"{base}-4",
        f"{base}-5",
    ]
    for child in children:
        assert read_scope_plan(child)["session_id"] == child.slug
        assert (await store.find(child.id)).slug == child.slug


async def test_a_session_without_an_agent_is_refused(store: FileStore, tmp_path: Path):
    """Shows: C012."""
    with pytest.raises(UsageError, match="needs an agent"):
        await store.create(describe_session(""))
    assert list((tmp_path / "sessions").iterdir()) == []


async def test_a_session_that_cannot_be_created_leaves_no_folder(store: FileStore):
    """Shows: P07, P32."""
    parent = await store.create(describe_session())
    with pytest.raises(UsageError, match="cannot be stored"):
        await store.create(describe_session("explorer", parent=parent, attributes={"x": object()}))
    assert list((Path(parent.path) / "agents").iterdir()) == []
    (Path(parent.path) / "agents").rmdir()
    (Path(parent.path) / "agents").write_text("in the way")
    with pytest.raises(Failed, match="agents: Not a directory"):
        await store.create(describe_session("explorer", parent=parent))
    with pytest.raises(NotFound, match="parent session is gone"):
        await store.create(describe_session("explorer", parent=await create_moved_session(store)))


async def test_a_path_that_is_too_long_for_a_session_folder_is_an_error(tmp_path: Path):
    """The paths of the files below would exceed the maximum path length.

    Shows: P07.
    """
    root = tmp_path
    while len(str(root)) < 3_800:
        root /= "d" * 200
    root /= "d" * (4_090 - len(str(root)))
    store = FileStore(root, fixed_clock())
    with pytest.raises(Failed, match="File name too long"):
        await store.create(describe_session())
    store.close()


async def create_moved_session(store: FileStore) -> Session:
    session = await store.create(describe_session())
    Path(session.path).rename(f"{session.path}-lost")
    return session


async def test_a_list_skips_other_folders_and_finds_grandchildren(store: FileStore, tmp_path: Path):
    """Shows: A078."""
    parent = await store.create(describe_session())
    child = await store.create(describe_session("explorer", parent=parent, description="a"))
    grandchild = await store.create(describe_session("explorer", parent=child, description="b"))
    root = tmp_path / "sessions"
    (root / ".hidden" / "branches" / "main").mkdir(parents=True)
    (root / ".hidden" / "branches" / "main" / "session.md").touch()
    (root / "no-branches").mkdir()
    (root / "no-branches" / "session.md").touch()
    (root / "empty" / "branches" / "main").mkdir(parents=True)
    (root / "a-file").touch()
    (root / "link").symlink_to(Path(parent.path).parent.parent)
    listed = await store.sessions()
    assert {each.id for each in listed} == {parent.id, child.id, grandchild.id}
    assert [each.id for each in await store.sessions(children=False)] == [parent.id]
    assert {each.id for each in await store.sessions(agent="explorer")} == {child.id, grandchild.id}
    assert grandchild.depth == 2


async def test_sessions_are_listed_by_last_change_and_pinning_is_a_change(store: FileStore):
    """Shows: C015, C017, C018, C019."""
    older, newer = await store.create(describe_session()), await store.create(describe_session())
    await append_message(store, newer, "one")
    await asyncio.sleep(0.02)  # the file system's clock ticks in steps of some milliseconds
    await append_message(store, older, "two")
    assert [each.id for each in await store.sessions()] == [older.id, newer.id]
    before = (await store.find(newer.id)).updated_at
    pinned = await store.update(newer, pinned_at=datetime(2026, 1, 1, tzinfo=UTC))
    assert pinned.pinned_at == datetime(2026, 1, 1, tzinfo=UTC)
    assert pinned.updated_at > before
    assert [each.id for each in await store.sessions()] == [newer.id, older.id]


async def test_a_session_pinned_in_the_old_record_format_stays_pinned(store: FileStore):
    """Shows: C020."""
    session = await store.create(describe_session())
    path = Path(session.path) / "session.json"
    record = json.loads(path.read_text())
    del record["pinned_at"]
    path.write_text(json.dumps(record | {"pinned": True, "from_the_future": 1}))
    assert (await store.find(session.id)).pinned_at == session.created_at


async def test_name_and_attributes_can_be_updated_but_not_the_slug(store: FileStore):
    """Shows: A076, C011, C013, C023, P04."""
    session = await store.create(describe_session())
    renamed = await store.update(session, name="My work", attributes={"panel": {"open": True}})
    assert (renamed.id, renamed.slug, renamed.path) == (session.id, session.slug, session.path)
    assert (renamed.name, renamed.attributes) == ("My work", {"panel": {"open": True}})
    assert await store.find("my WORK") == renamed
    assert [path.name for path in Path(session.path).iterdir() if path.name.startswith(".")] == []
    fixed_field: Any = {"slug": "other"}
    with pytest.raises(UsageError, match="slug cannot be changed"):
        await store.update(session, **fixed_field)
    other = await store.create(describe_session())
    with pytest.raises(Conflict, match=r'^Session name "my work" is already in use$'):
        await store.update(other, name="my work")
    with pytest.raises(Conflict, match="already in use"):
        await store.create(describe_session(name="MY WORK"))
    assert (await store.update(session, name="My Work")).name == "My Work"
    assert (await store.update(session, name=None)).name is None


async def test_another_store_reads_every_field_of_a_session(store: FileStore, tmp_path: Path):
    """Shows: A077."""
    workspace = Workspace(root="/w", isolation=Isolation.SANDBOX, writable=False, label="x")
    session = await store.create(
        NewSession(
            agent="general",
            preset_text=PRESET,
            preset_hash="h",
            workspace=workspace,
            name="N",
            aliases=("agent:general:subagent:1",),
            ceilings=(Ceiling(set_by="above", tools=("read",), read=("/w/**",)),),
            user_grants=PathPatterns(read=("/x",)),
            attributes={"a": 1},
        )
    )
    other_store = FileStore(tmp_path / "sessions", fixed_clock(seed=1))
    assert await other_store.find("agent:general:subagent:1") == session
    assert await other_store.sessions() == [session]
    other_store.close()


async def test_a_manual_edit_of_the_scope_plan_takes_effect_at_once(store: FileStore):
    """Shows: A057, A077."""
    parent = await store.create(describe_session())
    child = await store.create(describe_session("explorer", parent=parent))
    path = Path(child.path) / "scope-plan.yml"
    path.write_text(
        "created: 2020-02-02T02:02:02Z\ntype: agent # by hand\nparent_session_id: someone\npreset: scout\n"
    )
    changed = await store.find(child.id)
    assert changed.created_at == datetime(2020, 2, 2, 2, 2, 2, tzinfo=UTC)
    assert (changed.type, changed.parent_slug, changed.agent) == ("agent", "someone", "scout")


async def test_the_old_key_agent_type_is_accepted(store: FileStore):
    """Shows: A079."""
    session = await store.create(describe_session())
    path = Path(session.path) / "scope-plan.yml"
    path.write_text(path.read_text().replace("preset:", "agent_type:").replace('"general"', '"scout"'))
    assert (await store.find(session.id)).agent == "scout"


@pytest.mark.parametrize("text", ["", "version: [", "- a\n- b\n", "\x00", "type: whatever\n"])
async def test_a_damaged_scope_plan_is_reported_and_the_session_is_still_listed(store: FileStore, text: str):
    """Shows: P13."""
    session = await store.create(describe_session())
    (Path(session.path) / "scope-plan.yml").write_text(text)
    [reloaded] = await store.sessions()
    assert (reloaded.id, reloaded.agent, reloaded.type) == (session.id, "general", "branch")
    assert any("scope-plan.yml" in each or "whatever" in each for each in await store.problems(reloaded))


@pytest.mark.parametrize("blank", [b"", bytes(160)])
async def test_a_scope_plan_lost_in_a_power_failure_is_rewritten_when_the_session_continues(
    store: FileStore, blank: bytes
):
    session = await store.create(describe_session())
    plan = Path(session.path) / "scope-plan.yml"
    whole = plan.read_bytes()
    plan.write_bytes(blank)
    other = FileStore(store.root, system_clock())
    reloaded = await other.find(session.id)
    assert (reloaded.slug, reloaded.agent, reloaded.created_at) == (
        session.slug,
        session.agent,
        session.created_at,
    )
    await append_message(other, reloaded, "on")
    assert plan.read_bytes() == whole
    assert await other.problems(await other.find(session.id)) == ()
    other.close()


async def test_without_a_valid_session_json_the_identity_comes_from_the_head_of_session_md(store: FileStore):
    """Shows: L001."""
    parent = await store.create(describe_session())
    child = await store.create(describe_session("explorer", parent=parent, description="x"))
    await append_message(store, child, "hello")
    for damage in (b"{", None):
        record = Path(child.path) / "session.json"
        record.unlink() if damage is None else record.write_bytes(damage)
        reloaded = await store.find(child.path)
        assert (reloaded.id, reloaded.slug, reloaded.parent_slug, reloaded.type) == (
            child.id,
            child.slug,
            parent.slug,
            "agent",
        )
        assert reloaded.workspace.writable is False
        assert any("session.json" in each for each in await store.problems(reloaded))


async def test_a_moved_child_session_keeps_its_identity(store: FileStore, tmp_path: Path):
    """Shows: L001, A061."""
    parent = await store.create(describe_session())
    child = await store.create(describe_session("explorer", parent=parent, description="x"))
    await append_message(store, child, "hello")
    Path(child.path).rename(tmp_path / "moved")
    for ref in (tmp_path / "moved", tmp_path / "moved" / "session.md"):
        reloaded = await store.find(str(ref))
        assert (reloaded.id, reloaded.slug, reloaded.parent_id, reloaded.type) == (
            child.id,
            child.slug,
            parent.id,
            "agent",
        )
        assert reloaded.workspace == child.workspace
        await append_message(store, reloaded, f"at {ref.name}")
    assert len((await store.read_entries(reloaded))[0]) == 3


async def test_a_session_folder_created_by_hand_gets_its_slug_from_the_folder_name(
    store: FileStore, tmp_path: Path
):
    """Shows: L001."""
    folder = tmp_path / "my-agent-20260101120000"
    folder.mkdir()
    (folder / "session.md").touch()
    (folder / "preset.md").write_text("---\n---\nYou help.\n")
    reloaded = await store.find(str(folder))
    assert (reloaded.slug, reloaded.agent, reloaded.branch) == ("my-agent-20260101120000", "my-agent", "main")
    assert reloaded.created_at == datetime(2026, 1, 1, 12, tzinfo=UTC)
    assert reloaded.id == (await store.find(str(folder))).id
    assert (await store.read_preset(reloaded))[0].name == "my-agent"


async def test_a_session_is_found_by_id_slug_alias_name_path_and_prefix(store: FileStore):
    """Shows: A059, A021."""
    parent = await store.create(describe_session(aliases=("cron:nightly",), name="Night"))
    child = await store.create(describe_session("explorer", parent=parent, description="find module"))
    top = str(Path(parent.path).parent.parent)
    for ref in (
        parent.id,
        parent.slug,
        f"{parent.slug}/main",
        "cron:nightly",
        "night",
        parent.path,
        f"{parent.path}/session.md",
        top,
        "gener",
        "cron:n",
    ):
        assert (await store.find(ref)).id == parent.id, ref
    for ref in (
        child.id,
        child.slug,
        f"{child.slug}/main",
        child.path,
        f"{child.path}/session.md",
        "explorer-2",
    ):
        assert (await store.find(ref)).id == child.id, ref


async def test_an_ambiguous_prefix_lists_the_candidates_and_an_unknown_name_suggests_the_nearest(
    store: FileStore,
):
    first, second = await store.create(describe_session()), await store.create(describe_session())
    with pytest.raises(UsageError, match="matches 2 sessions") as caught:
        await store.find("gener")
    assert first.id in str(caught.value)
    assert second.id in str(caught.value)
    with pytest.raises(NotFound, match=f"did you mean '{first.slug}'"):
        await store.find(f"{first.slug[:-1]}9x")
    with pytest.raises(NotFound, match="Session 'nobody' not found"):
        await store.find("nobody")
    with pytest.raises(NotFound, match="no file or folder"):
        await store.find("/nowhere/at/all")
    with pytest.raises(UsageError, match="Name a session"):
        await store.find(" ")


@pytest.mark.parametrize(
    "text",
    [
        "# Notes\n",
        "Look:\n<!-- retinue 1 session=x id=y branch=main -->\n",
        "> <!-- retinue 1 session=x -->\n",
        " <!-- retinue 1 session=x -->\n",
        "<!-- retinue 1 session= -->\n",
        "<!-- retinue 9 session=x -->\n",
        "",
    ],
)
async def test_a_file_that_is_no_session_is_refused_and_left_unchanged(
    store: FileStore, tmp_path: Path, text: str
):
    """Shows: A081, L002."""
    folder = tmp_path / "notes"
    folder.mkdir()
    for name in ("session.md", "notes.md"):
        (folder / name).write_text(text)
        with pytest.raises(UsageError, match="is not a session"):
            await store.find(str(folder / name))
    with pytest.raises(UsageError, match="is not a session folder"):
        await store.find(str(folder))
    assert sorted(path.name for path in folder.iterdir()) == ["notes.md", "session.md"]
    assert (folder / "session.md").read_text() == text
    assert await store.sessions() == []


async def test_the_snippet_is_the_start_of_the_last_message_however_long_the_file(store: FileStore):
    """Shows: C014."""
    session = await store.create(describe_session())
    assert session.last_snippet == ""
    await append_message(store, session, "first " * 40_000)
    await append_message(store, session, "The last\nwords of it")
    reloaded = await store.find(session.id)
    assert reloaded.last_snippet == "The last words of it"
    async with store.open(reloaded) as conversation:
        await conversation.write_idle_prompt()
    with (Path(session.path) / "session.md").open("a") as file:
        file.write("not yet said")
    assert (await store.find(session.id)).last_snippet == "The last words of it"


async def test_clearing_a_session_moves_its_history_to_another_file_and_keeps_its_identity(store: FileStore):
    """Shows: C021, C014."""
    session = await store.create(describe_session(name="Kept"))
    await append_message(store, session, "secret")
    async with store.open(session):
        with pytest.raises(SessionLocked):
            await store.clear(session)
    cleared = await store.clear(session)
    assert (cleared.id, cleared.name, cleared.agent) == (session.id, "Kept", "general")
    assert cleared.last_snippet == ""
    assert (Path(session.path) / "session.md").stat().st_size == 0
    assert await store.read_entries(cleared) == ([], [])
    [cleared_file] = Path(session.path).glob("session.md.cleared-*")
    assert "secret" in cleared_file.read_text()
    await append_message(store, cleared, "anew")
    assert [each.id for each in (await store.read_entries(cleared))[0]] == ["id-anew"]


async def test_a_deleted_session_is_neither_listed_nor_found(store: FileStore, tmp_path: Path):
    """Shows: C022, C016."""
    parent = await store.create(describe_session())
    child = await store.create(describe_session("explorer", parent=parent, description="x"))
    async with store.open(child):
        with pytest.raises(SessionLocked):
            await store.delete(parent)
    await store.delete(child)
    assert [each.id for each in await store.sessions()] == [parent.id]
    await store.delete(parent)
    assert await store.sessions() == []
    for ref in (parent.id, parent.slug, child.id, child.slug, parent.slug[:6]):
        with pytest.raises(NotFound):
            await store.find(ref)
    [deleted] = [each for each in (tmp_path / "sessions").iterdir() if not each.name.startswith(".")]
    assert deleted.name == f"{parent.slug}.deleted.20261115184207"


async def test_the_preset_is_read_from_the_sessions_own_file(store: FileStore):
    """Shows: A023, A038."""
    session = await store.create(describe_session("explorer"))
    agent, current_hash = await store.read_preset(session)
    assert (agent.name, agent.prompt, agent.tool_allow) == ("explorer", "You explore.", ("read",))
    assert current_hash == session.preset_hash
    path = Path(session.path) / "preset.md"
    path.write_text(PRESET.replace("You explore.", "You rest."))
    agent, current_hash = await store.read_preset(session)
    assert agent.prompt == "You rest."
    assert current_hash != session.preset_hash


@pytest.mark.parametrize(
    "damage", [None, b"---\nname: x\n", b"\xff\xfe", b"---\nunknown_key: 1\n---\n", b"---\na: [\n---\n"]
)
async def test_a_missing_or_invalid_preset_is_an_error_that_names_the_folder(
    store: FileStore, damage: bytes | None
):
    """Shows: A038, P13."""
    session = await store.create(describe_session("explorer"))
    path = Path(session.path) / "preset.md"
    path.unlink() if damage is None else path.write_bytes(damage)
    with pytest.raises(Failed, match=f"^Failed to load preset from {session.path}$"):
        await store.read_preset(session)
    [problem] = await store.problems(session)
    assert problem.startswith(f"{path}: ")


async def test_a_preset_truncated_at_any_byte_is_an_error_or_has_the_same_permissions(store: FileStore):
    """Shows: P13."""
    session = await store.create(describe_session("explorer"))
    whole, _ = await store.read_preset(session)
    path = Path(session.path) / "preset.md"
    data = path.read_bytes()
    readable = [
        cut for cut in range(len(data)) if await has_same_permissions(store, session, data[:cut], whole)
    ]
    assert readable
    assert min(readable) >= data.index(b"---\nYou")


async def has_same_permissions(store: FileStore, session: Session, data: bytes, whole: Agent) -> bool:
    (Path(session.path) / "preset.md").write_bytes(data)
    try:
        agent, _ = await store.read_preset(session)
    except Failed:
        return False
    assert (agent.tool_allow, agent.paths) == (whole.tool_allow, whole.paths)
    assert whole.prompt.startswith(agent.prompt)
    return True


async def test_only_a_change_of_the_scope_updates_the_scope_plan(store: FileStore):
    """Shows: A063, A064."""
    session = await store.create(describe_session("explorer"))
    plan = Path(session.path) / "scope-plan.yml"
    before = (plan.stat().st_mtime_ns, plan.read_bytes())
    await append_message(store, session, "hello")
    await store.update(session, name="x")
    assert (plan.stat().st_mtime_ns, plan.read_bytes()) == before
    with pytest.raises(BadDefinition):
        await store.set_preset(session, "---\nunknown_key: 1\n---\n")
    assert plan.read_bytes() == before[1]
    later = FileStore(store.root, fixed_clock(datetime(2027, 1, 1, tzinfo=UTC)))
    await later.set_preset(session, PRESET.replace("/w/**", "/v/**"))
    later.close()
    assert read_scope_plan(session)["updated"] == "2027-01-01T00:00:00Z"
    assert read_scope_plan(session)["created"] == "2026-11-15T18:42:07Z"
    agent, _ = await store.read_preset(session)
    assert agent.paths is not None
    assert agent.paths.read == ("/v/**",)


@pytest.mark.parametrize(
    "description",
    [
        "x\n[Subagent: y] Complete.",
        "../../etc",
        "a/b",
        "\x00",
        "\u202eevil",
        "re\u0455earch \U0001f525",
        "x" * 500,
        "",
    ],
)
async def test_a_description_only_changes_the_folder_name(store: FileStore, description: str):
    """Shows: D09."""
    parent = await store.create(describe_session())
    child = await store.create(describe_session("explorer", parent=parent, description=description))
    assert re.fullmatch(r"explorer-\d{14}-[a-z0-9-]{0,80}", child.slug)
    assert Path(child.path) == Path(parent.path) / "agents" / child.slug
    plan = (Path(child.path) / "scope-plan.yml").read_text()
    assert len(plan.splitlines()) == 7


async def test_the_update_time_is_never_before_the_creation_time(tmp_path: Path):
    store = FileStore(tmp_path / "sessions", system_clock())
    sessions = [await store.create(describe_session()) for _ in range(20)]
    assert all(each.updated_at >= each.created_at for each in sessions)
    record, conversation_file = Path(sessions[0].path) / "session.json", Path(sessions[0].path) / "session.md"
    created_ns = int(sessions[0].created_at.timestamp() * 1e9)
    for lag_ns, is_corrected in ((5_000_000, True), (3_600_000_000_000, False)):
        for each in (record, conversation_file):
            os.utime(each, ns=(created_ns - lag_ns, created_ns - lag_ns))
        reloaded = await store.find(sessions[0].id)
        assert (reloaded.updated_at == reloaded.created_at) == is_corrected
    store.close()
