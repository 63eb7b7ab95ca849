"""A session.md that is no file: nothing waits for a pipe or a device, and the error is one sentence."""

import os
import socket
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

import pytest

from retinue.domain.session import NewSession, Session
from retinue.domain.transcript import Message
from retinue.domain.workspace import Workspace
from retinue.errors import Failed
from retinue.sessions.store import FileStore
from retinue.testing.fixed_clock import fixed_clock


@pytest.fixture
async def store(tmp_path: Path) -> AsyncGenerator[FileStore]:
    found = FileStore(tmp_path / "sessions", fixed_clock())
    yield found
    found.close()


@pytest.fixture
async def session(store: FileStore) -> Session:
    made = await store.create(
        NewSession(
            agent="general", preset_text="---\n---\nP\n", preset_hash="", workspace=Workspace(root="/")
        )
    )
    async with store.open(made) as talk:
        await talk.append(Message(id="u", role="user", text="Hello."))
    return made


def a_socket(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # a socket's path is short
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


STRANGE: dict[str, Callable[[Path], None]] = {
    "pipe": os.mkfifo,
    "socket": a_socket,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "terminal": lambda path: path.symlink_to("/dev/tty"),
}


@pytest.mark.parametrize("kind", STRANGE)
async def test_nothing_waits_for_a_conversation_that_is_no_file(
    store: FileStore, session: Session, kind: str
):
    """Shows: P31."""
    path = Path(session.path) / "session.md"
    path.unlink()
    STRANGE[kind](path)
    with pytest.raises(Failed, match=r"session\.md cannot be read: "):
        async with store.open(session):
            pass
    entries, problems = await store.read_entries(session)
    assert entries == []
    assert "session.md cannot be read: " in problems[0]
    assert (await store.scan(session)).problems == tuple(problems)
    with pytest.raises(Failed, match="cannot be read"):
        await store.branch(session, name="two")
    for other in (store, FileStore(store.root, fixed_clock())):
        assert [each.id for each in await other.sessions()] == [session.id]


async def test_a_conversation_that_becomes_a_pipe_while_it_is_open_is_an_error(
    store: FileStore, session: Session
):
    path = Path(session.path) / "session.md"
    async with store.open(session) as talk:
        path.unlink()
        os.mkfifo(path)
        with pytest.raises(Failed, match=r"session\.md cannot be read: Not a regular file"):
            await talk.append(Message(id="a", role="agent", text="Good day."))


async def test_a_conversation_behind_a_link_is_read_and_added_to(
    store: FileStore, session: Session, tmp_path: Path
):
    path = Path(session.path) / "session.md"
    path.rename(tmp_path / "elsewhere.md")
    path.symlink_to(tmp_path / "elsewhere.md")
    async with store.open(session) as talk:
        await talk.append(Message(id="a", role="agent", text="Good day."))
    assert [each.id for each in (await store.read_entries(session))[0]] == ["u", "a"]
    assert path.is_symlink()
