"""What a person sees of births, overrides, pins and definitions who has only the command and the files."""

import asyncio
import ctypes
import json
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from commands import require_pipe
from user_machine import UserMachine

from retinue.testing.replies import stalled_stream, text_reply

IN_OPEN = 0x20


class Openings:
    """How often a file was opened by anybody, as the kernel tells it."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def since(self) -> int:
        """Openings since the last time this was asked."""
        try:
            # Events about one file have no name and are 16 bytes each; equal neighbours are told once.
            return len(os.read(self._handle, 65536)) // 16
        except BlockingIOError:
            return 0


@contextmanager
def watched(path: Path) -> Generator[Openings]:
    libc = ctypes.CDLL(None, use_errno=True)
    handle: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    assert libc.inotify_add_watch(handle, os.fsencode(path), IN_OPEN) > 0
    try:
        yield Openings(handle)
    finally:
        os.close(handle)


async def heard(process: asyncio.subprocess.Process, words: str) -> None:
    """Waits until a command has said this."""
    assert process.stdout is not None
    seen = b""
    async with asyncio.timeout(45):
        while words.encode() not in seen:
            piece = await process.stdout.read(4096)
            assert piece, f"it left before saying {words!r}"
            seen += piece


async def test_a_running_chat_reads_a_definition_again_only_when_it_changed(machine: UserMachine):
    """Shows: B043, B044."""
    file = machine.write_agent("brief", "model: openai:x\n", "Speak of ONE.")
    os.utime(file, (1e9, 1e9))
    async with machine.serve_models(
        [text_reply("first."), text_reply("second."), text_reply("third.")]
    ) as server:
        with watched(file) as openings:
            chat = await machine.start("chat", "--agent", "brief")
            for said, answer in ((b"a\n", "first."), (b"b\n", "second.")):
                require_pipe(chat.stdin).write(said)
                await heard(chat, answer)
                assert (openings.since() > 0) == (answer == "first.")
        file.write_text(file.read_text().replace("ONE", "TWO"))
        with watched(file) as openings:
            require_pipe(chat.stdin).write(b"c\n")
            await heard(chat, "third.")
            assert openings.since() > 0
        require_pipe(chat.stdin).close()
        assert await chat.wait() == 0
    assert ["TWO" in machine.system_prompt(request) for request in server.requests] == [False, False, True]


async def test_another_model_for_one_message_is_not_handed_to_a_child(machine: UserMachine):
    """Shows: A036."""
    machine.write_agent("main", "model: openai:gpt-parent\n", "You lead.")
    machine.write_agent("scout", "model: openai:gpt-scout\n", "You look.")
    async with machine.serve_models(
        [text_reply("Hi."), text_reply("Now other."), text_reply("Seen.")]
    ) as server:
        session = (await machine("run", "--agent", "main", "Begin", "--json")).json["slug"]
        assert (await machine("send", session, "Go on", "--model", "openai:gpt-override")).code == 0
        spawned = await machine("spawn", "--parent", session, "--agent", "scout", "Look around")
        assert (spawned.code, "Seen." in spawned.out) == (0, True)
    assert [request.body["model"] for request in server.requests] == [
        "gpt-parent",
        "gpt-override",
        "gpt-scout",
    ]


async def test_a_session_pinned_in_older_days_is_listed_as_pinned(machine: UserMachine):
    """Shows: C020."""
    async with machine.serve_models([text_reply("One."), text_reply("Two.")]):
        older = (await machine("run", "Hi", "--json")).json["slug"]
        newer = (await machine("run", "Hi", "--json", "--session", "create")).json["slug"]
    (facts,) = machine.sessions.glob(f"{older}/branches/main/session.json")
    record = json.loads(facts.read_text())
    del record["pinned_at"]
    facts.write_text(json.dumps(record | {"pinned": True}))
    listed = (await machine("sessions", "list", "--json")).json
    assert [row["slug"] for row in listed] == [older, newer]
    assert (listed[0]["pinned_at"] is not None, listed[1]["pinned_at"]) == (True, None)


async def statuses(machine: UserMachine) -> list[str]:
    return sorted(row["status"] for row in (await machine("runs", "list", "--json")).json)


async def test_a_session_is_born_with_an_empty_file(machine: UserMachine):
    """A run that waits for a place has its session already, and nothing was said in it.

    Shows: A030.
    """
    machine.write_config(limits={"max_live": 1})
    async with machine.serve_models([stalled_stream(), text_reply("Late.")]):
        first = await machine.start("run", "Take the only place")
        await machine.wait_for_requests(1)
        second = await machine.start("run", "Wait for a place", "--session", "create")
        async with asyncio.timeout(45):
            while "queued" not in (found := await statuses(machine)):
                assert len(found) <= 2
        born = list(machine.sessions.glob("*/branches/main/session.md"))
        sizes = sorted(path.stat().st_size for path in born)
        assert sizes[0] == 0 < sizes[1]
        assert await statuses(machine) == ["queued", "running"]
        await machine.kill(first)
        await machine.kill(second)
