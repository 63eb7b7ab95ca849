"""A session.md that is a pipe, socket or device: opening it fails at once instead of blocking."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from new_session import new_session

from retinue.domain.session import Session
from retinue.domain.transcript import Message
from retinue.errors import Failed
from retinue.sessions.store import FileStore
from retinue.testing.fixed_clock import fixed_clock


@pytest.fixture
async def session(store: FileStore) -> Session:
    session = await store.create(new_session())
    async with store.open(session) as conversation:
        await conversation.append(Message(id="u", role="user", text="Hello."))
    return session


def create_socket(path: Path) -> None:
    working_dir = Path.cwd()
    os.chdir(path.parent)  # the path of a socket must be short
    try:
        with socket.socket(socket.AF_UNIX) as server_socket:
            server_socket.bind(path.name)
    finally:
        os.chdir(working_dir)


SPECIAL_FILES: dict[str, Callable[[Path], None]] = {
    "pipe": os.mkfifo,
    "socket": create_socket,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "terminal": lambda path: path.symlink_to("/dev/tty"),
}


@pytest.mark.parametrize("kind", SPECIAL_FILES)
async def test_a_special_file_as_session_md_is_an_error_and_never_blocks(
    store: FileStore, session: Session, kind: str
):
    """Shows: P31."""
    path = Path(session.path) / "session.md"
    path.unlink()
    SPECIAL_FILES[kind](path)
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


async def test_appending_to_a_session_md_that_became_a_pipe_is_an_error(store: FileStore, session: Session):
    path = Path(session.path) / "session.md"
    async with store.open(session) as conversation:
        path.unlink()
        os.mkfifo(path)
        with pytest.raises(Failed, match=r"session\.md cannot be read: Not a regular file"):
            await conversation.append(Message(id="a", role="agent", text="Good day."))


async def test_a_session_md_that_is_a_symbolic_link_is_read_and_appended_to(
    store: FileStore, session: Session, tmp_path: Path
):
    path = Path(session.path) / "session.md"
    path.rename(tmp_path / "elsewhere.md")
    path.symlink_to(tmp_path / "elsewhere.md")
    async with store.open(session) as conversation:
        await conversation.append(Message(id="a", role="agent", text="Good day."))
    assert [each.id for each in (await store.read_entries(session))[0]] == ["u", "a"]
    assert path.is_symlink()
