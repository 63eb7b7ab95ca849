"""Branches: a second timeline with its own agents, from a prompt of the first."""

import asyncio
import os
from collections.abc import AsyncGenerator
from itertools import count
from pathlib import Path

import pytest

from retinue.domain.session import NewSession, Session
from retinue.domain.transcript import Message, ToolCall, ToolResult
from retinue.domain.workspace import Workspace
from retinue.errors import NotFound, Refused, SessionLocked, UsageError
from retinue.sessions import branches, folder
from retinue.sessions.store import FileStore
from retinue.storage import strict_yaml
from retinue.testing.fixed_clock import fixed_clock
from retinue.worker.clock import system_clock

TALK = (
    Message(id="u1", role="user", text="Erste Frage é\n"),
    Message(id="a1", role="agent", text="An answer", tool_call_count=1),
    ToolCall(id="c1", tool="ls", args="{}"),
    ToolResult(call_id="c1", text="<!-- user id=u2 -->"),
    Message(id="u2", role="user", text="second"),
    Message(id="a2", role="agent", text="More."),
)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncGenerator[FileStore]:
    found = FileStore(tmp_path / "sessions", fixed_clock())
    yield found
    found.close()


def new(agent: str, parent: Session | None = None, description: str = "") -> NewSession:
    return NewSession(
        agent=agent,
        preset_text="---\nname: x\n---\nYou.\n",
        preset_hash="h",
        workspace=Workspace(root="/w"),
        parent=parent,
        description=description,
        aliases=(f"alias:{agent}",),
    )


@pytest.fixture
async def session(store: FileStore) -> Session:
    session = await store.create(new("general"))
    child = await store.create(new("explorer", session, "look"))
    await store.create(new("scout", child, "deep"))
    for each, talk in ((session, TALK), (child, TALK[:2])):
        async with store.open(each) as conversation:
            for entry in talk:
                await conversation.append(entry)
            await conversation.write_idle_prompt()
    return session


@pytest.mark.parametrize(
    ("at", "include", "kept"),
    [("u2", True, 5), ("u2", False, 4), ("u1", True, 1), ("u1", False, 0), (None, True, 6)],
)
async def test_a_branch_holds_the_history_up_to_its_prompt(
    store: FileStore, session: Session, at: str | None, include: bool, kept: int
):
    """Shows: A082."""
    before = (Path(session.path) / "session.md").read_bytes()
    branch = await store.branch(session, prompt_id=at, include=include, name="Try Again")
    assert branch.branch == "20261115184207-try-again"
    assert (await store.read_entries(branch)) == ([*TALK[:kept]], [])
    assert (Path(session.path) / "session.md").read_bytes() == before
    top = Path(session.path).parent.parent
    assert os.fspath((top / "current").readlink()) == f"branches/{branch.branch}"
    path = Path(branch.path) / "branch-metadata.yml"
    facts = strict_yaml.load_yaml(path.read_text(), str(path))
    assert sorted(facts) == ["branch_point_position", "created", "parent_branch"]
    assert facts["parent_branch"] == "main"
    assert (Path(branch.path) / "preset.md").read_bytes() == (Path(session.path) / "preset.md").read_bytes()
    async with store.open(branch) as conversation:
        await conversation.append(Message(id="b1", role="agent", text="on the branch"))
    first = (Path(branch.path) / "session.md").read_text().partition("\n")[0]
    assert first == f"<!-- retinue 1 session={session.slug} id={branch.id} branch={branch.branch} -->"


async def test_agents_are_copied_with_new_ids_and_live_apart(store: FileStore, session: Session):
    """Shows: A082, A083."""
    old = {each.path: each for each in await store.sessions() if not each.is_top_level}
    branch = await store.branch(session, name="apart")
    copies = [each for each in await store.sessions() if each.path.startswith(f"{branch.path}/agents/")]
    assert sorted(each.slug for each in copies) == sorted(each.slug for each in old.values())
    ids = [each.id for each in await store.sessions()]
    assert len(set(ids)) == len(ids) == 6
    child = next(each for each in copies if each.agent == "explorer")
    grandchild = next(each for each in copies if each.agent == "scout")
    assert (child.parent_id, grandchild.parent_id) == (branch.id, child.id)
    assert (child.aliases, branch.aliases) == ((), ())
    assert (await store.read_entries(child))[0] == [*TALK[:2]]
    originals = {path: (Path(path) / "session.md").read_bytes() for path in old}
    async with store.open(child) as conversation:
        await conversation.append(Message(id="n", role="user", text="only here"))
    assert {path: (Path(path) / "session.md").read_bytes() for path in old} == originals


async def test_a_name_means_the_current_branch_and_a_full_name_any(store: FileStore, session: Session):
    """Shows: A017, A082."""
    branch = await store.branch(session, name="two")
    assert (await store.find(session.slug)).id == branch.id
    assert (await store.find(session.slug[:9])).id == branch.id
    assert (await store.find(f"{session.slug}/main")).id == session.id
    assert (await store.find(f"{session.slug}/{branch.branch}")).id == branch.id
    assert (await store.find(session.id)).id == session.id
    child = await store.create(new("late", await store.find(session.slug), "x"))
    assert child.path.startswith(f"{branch.path}/agents/")
    explorer = next(each for each in await store.sessions(agent="explorer") if each.parent_id == branch.id)
    assert (await store.find(explorer.slug)).id == explorer.id
    again = await store.branch(session, name="two")
    assert again.branch == f"{branch.branch}-2"


async def test_a_lost_link_means_main(store: FileStore, session: Session):
    await store.branch(session, name="two")
    (Path(session.path).parent.parent / "current").unlink()
    assert (await store.find(session.slug)).id == session.id


async def test_only_top_level_sessions_branch_and_only_at_prompts(store: FileStore, session: Session):
    """Shows: A082."""
    [child] = await store.sessions(agent="explorer")
    with pytest.raises(Refused, match="only top-level sessions have branches"):
        await store.branch(child, name="x")
    with pytest.raises(NotFound, match="no user prompt 'zz'"):
        await store.branch(session, prompt_id="zz", name="x")
    with pytest.raises(UsageError, match="is a reply"):
        await store.branch(session, prompt_id="a1", name="x")
    assert [path.name for path in Path(session.path).parent.iterdir()] == ["main"]


async def test_branches_made_at_once_get_a_name_each(session: Session):
    def made() -> str:
        return branches.create_branch(
            session, fixed_clock(seed=next(seeds)), prompt_id="u1", include=True, name="same"
        )

    seeds = count(1)
    paths = await asyncio.gather(*(asyncio.to_thread(made) for _ in range(24)))
    assert len(set(paths)) == len(paths)
    assert all(folder.load_session(each).session.branch == Path(each).name for each in paths)
    assert not [each for each in Path(session.path).parent.iterdir() if each.name.startswith(".")]


async def test_what_others_deleted_meanwhile_is_gone_and_no_fault_of_the_disk(
    store: FileStore, session: Session
):
    await store.delete(session)
    for deed in (
        store.delete(session),
        store.branch(session, name="late"),
        store.update(session, name="late"),
        store.clear(session),
    ):
        with pytest.raises(NotFound):
            await deed


async def test_a_session_is_deleted_once_however_many_ask_for_it(tmp_path: Path, session: Session):
    stores = [FileStore(tmp_path / "sessions", system_clock()) for _ in range(2)]
    came = await asyncio.gather(*(each.delete(session) for each in stores * 8), return_exceptions=True)
    assert len([each for each in came if isinstance(each, str)]) == 1
    assert all(isinstance(each, str | NotFound | SessionLocked) for each in came)
    for each in stores:
        each.close()
