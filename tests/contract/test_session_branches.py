"""Session branches: a copy of the history up to a prompt, with its own child sessions."""

import asyncio
import os
from itertools import count
from pathlib import Path

import pytest
from new_session import new_session

from retinue.domain.session import Session
from retinue.domain.transcript import Message, ToolCall, ToolResult
from retinue.errors import NotFound, Refused, SessionLocked, UsageError
from retinue.sessions import branches, folder
from retinue.sessions.store import FileStore
from retinue.storage import strict_yaml
from retinue.testing.fixed_clock import fixed_clock
from retinue.worker.clock import system_clock

ENTRIES = (
    Message(id="u1", role="user", text="Erste Frage é\n"),
    Message(id="a1", role="agent", text="An answer", tool_call_count=1),
    ToolCall(id="c1", tool="ls", args="{}"),
    ToolResult(call_id="c1", text="<!-- user id=u2 -->"),
    Message(id="u2", role="user", text="second"),
    Message(id="a2", role="agent", text="More."),
)


@pytest.fixture
async def session(store: FileStore) -> Session:
    """A session with a conversation, a child and a grandchild."""
    session = await store.create(new_session("general", aliases=("alias:general",)))
    child = await store.create(
        new_session("explorer", parent=session, description="look", aliases=("alias:explorer",))
    )
    await store.create(new_session("scout", parent=child, description="deep", aliases=("alias:scout",)))
    for each, entries in ((session, ENTRIES), (child, ENTRIES[:2])):
        async with store.open(each) as conversation:
            for entry in entries:
                await conversation.append(entry)
            await conversation.write_idle_prompt()
    return session


@pytest.mark.parametrize(
    ("at", "include", "entry_count"),
    [("u2", True, 5), ("u2", False, 4), ("u1", True, 1), ("u1", False, 0), (None, True, 6)],
)
async def test_a_branch_has_the_history_up_to_its_prompt(
    store: FileStore, session: Session, at: str | None, include: bool, entry_count: int
):
    """Shows: A082."""
    before = (Path(session.path) / "session.md").read_bytes()
    branch = await store.branch(session, prompt_id=at, include=include, name="Try Again")
    assert branch.branch == "20261115184207-try-again"
    assert (await store.read_entries(branch)) == ([*ENTRIES[:entry_count]], [])
    assert (Path(session.path) / "session.md").read_bytes() == before
    top = Path(session.path).parent.parent
    assert os.fspath((top / "current").readlink()) == f"branches/{branch.branch}"
    path = Path(branch.path) / "branch-metadata.yml"
    metadata = strict_yaml.load_yaml(path.read_text(), str(path))
    assert sorted(metadata) == ["branch_point_position", "created", "parent_branch"]
    assert metadata["parent_branch"] == "main"
    assert (Path(branch.path) / "preset.md").read_bytes() == (Path(session.path) / "preset.md").read_bytes()
    async with store.open(branch) as conversation:
        await conversation.append(Message(id="b1", role="agent", text="on the branch"))
    first = (Path(branch.path) / "session.md").read_text().partition("\n")[0]
    assert first == f"<!-- retinue 1 session={session.slug} id={branch.id} branch={branch.branch} -->"


async def test_child_sessions_are_copied_into_a_branch_with_new_ids(store: FileStore, session: Session):
    """Shows: A082, A083."""
    originals_by_path = {each.path: each for each in await store.sessions() if not each.is_top_level}
    branch = await store.branch(session, name="apart")
    copies = [each for each in await store.sessions() if each.path.startswith(f"{branch.path}/agents/")]
    assert sorted(each.slug for each in copies) == sorted(each.slug for each in originals_by_path.values())
    ids = [each.id for each in await store.sessions()]
    assert len(set(ids)) == len(ids) == 6
    child = next(each for each in copies if each.agent == "explorer")
    grandchild = next(each for each in copies if each.agent == "scout")
    assert (child.parent_id, grandchild.parent_id) == (branch.id, child.id)
    assert (child.aliases, branch.aliases) == ((), ())
    assert (await store.read_entries(child))[0] == [*ENTRIES[:2]]
    originals = {path: (Path(path) / "session.md").read_bytes() for path in originals_by_path}
    async with store.open(child) as conversation:
        await conversation.append(Message(id="n", role="user", text="only here"))
    assert {path: (Path(path) / "session.md").read_bytes() for path in originals_by_path} == originals


async def test_a_session_name_finds_the_current_branch_and_a_full_name_any_branch(
    store: FileStore, session: Session
):
    """Shows: A017, A082."""
    branch = await store.branch(session, name="two")
    assert (await store.find(session.slug)).id == branch.id
    assert (await store.find(session.slug[:9])).id == branch.id
    assert (await store.find(f"{session.slug}/main")).id == session.id
    assert (await store.find(f"{session.slug}/{branch.branch}")).id == branch.id
    assert (await store.find(session.id)).id == session.id
    child = await store.create(new_session("late", parent=await store.find(session.slug), description="x"))
    assert child.path.startswith(f"{branch.path}/agents/")
    explorer = next(each for each in await store.sessions(agent="explorer") if each.parent_id == branch.id)
    assert (await store.find(explorer.slug)).id == explorer.id
    again = await store.branch(session, name="two")
    assert again.branch == f"{branch.branch}-2"


async def test_without_the_current_link_the_main_branch_is_current(store: FileStore, session: Session):
    await store.branch(session, name="two")
    (Path(session.path).parent.parent / "current").unlink()
    assert (await store.find(session.slug)).id == session.id


async def test_only_top_level_sessions_can_branch_and_only_at_user_prompts(
    store: FileStore, session: Session
):
    """Shows: A082."""
    [child] = await store.sessions(agent="explorer")
    with pytest.raises(Refused, match="only top-level sessions have branches"):
        await store.branch(child, name="x")
    with pytest.raises(NotFound, match="no user prompt 'zz'"):
        await store.branch(session, prompt_id="zz", name="x")
    with pytest.raises(UsageError, match="is a reply"):
        await store.branch(session, prompt_id="a1", name="x")
    assert [path.name for path in Path(session.path).parent.iterdir()] == ["main"]


async def test_branches_created_concurrently_get_unique_names(session: Session):
    def create_branch() -> str:
        return branches.create_branch(
            session, fixed_clock(seed=next(seeds)), prompt_id="u1", include=True, name="same"
        )

    seeds = count(1)
    paths = await asyncio.gather(*(asyncio.to_thread(create_branch) for _ in range(24)))
    assert len(set(paths)) == len(paths)
    assert all(folder.load_session(each).session.branch == Path(each).name for each in paths)
    assert not [each for each in Path(session.path).parent.iterdir() if each.name.startswith(".")]


async def test_operations_on_a_deleted_session_fail_with_not_found(store: FileStore, session: Session):
    await store.delete(session)
    for operation in (
        store.delete(session),
        store.branch(session, name="late"),
        store.update(session, name="late"),
        store.clear(session),
    ):
        with pytest.raises(NotFound):
            await operation


async def test_concurrent_deletions_delete_a_session_once(tmp_path: Path, session: Session):
    stores = [FileStore(tmp_path / "sessions", system_clock()) for _ in range(2)]
    results = await asyncio.gather(*(each.delete(session) for each in stores * 8), return_exceptions=True)
    assert len([each for each in results if isinstance(each, str)]) == 1
    assert all(isinstance(each, str | NotFound | SessionLocked) for each in results)
    for each in stores:
        each.close()
