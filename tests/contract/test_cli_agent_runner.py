"""Programs that are run: real processes in real cells, judged by what they could reach and by what is left of them."""

import asyncio
import os
import random
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from retinue.domain.cli_agent import CliAgentCommand, ProcessExit
from retinue.domain.permissions.scope import Scope
from retinue.domain.sandbox_level import SandboxLevel
from retinue.errors import Failed
from retinue.sandbox.cli_agents.runner import MAX_STDERR_BYTES, CliAgentRunner
from retinue.sandbox.probe import SandboxProbe

pytestmark = pytest.mark.anyio

PATIENCE = 30.0
LEVELS = (SandboxLevel.STRICT, SandboxLevel.NONE)


@dataclass(slots=True, kw_only=True)
class Stage:
    """A machine with a workspace, programs on a PATH, and somebody who listens."""

    folder: Path
    level: SandboxLevel
    hosting: CliAgentRunner
    said: list[bytes] = field(default_factory=list[bytes])

    @property
    def scope(self) -> Scope:
        root = f"{self.folder}/ws"
        return Scope(
            root=root,
            read=(f"{root}/**",),
            write=(f"{root}/mine/**",),
            retinue_paths=(f"{self.folder}/home/**",),
        )

    def program(self, text: str, name: str = "claude", by: str = "/bin/sh") -> None:
        path = self.folder / "bin" / name
        path.write_text(f"#!{by}\n{text}\n")
        path.chmod(0o755)

    async def run(self, *argv: str, session: str = "one", **more: object) -> ProcessExit:
        program = CliAgentCommand(binary="claude", args=argv, install="npm install -g it", **more)  # pyright: ignore[reportArgumentType]  (facts of a program)
        seat = await self.hosting.prepare_home(session)
        assert seat.level is self.level
        return await self.hosting.run(
            program, session=session, scope=self.scope, agent_sandbox=seat, on_output=self.said.append
        )

    @property
    def text(self) -> str:
        return b"".join(self.said).decode()

    async def until(self, word: str) -> None:
        async with asyncio.timeout(PATIENCE):
            while word not in self.text:  # noqa: ASYNC110  (another process writes: nothing to wait on)
                await asyncio.sleep(0.01)


def staged(folder: Path, level: SandboxLevel) -> Stage:
    for name in ("ws", "ws/mine", "bin", "home", "user"):
        (folder / name).mkdir()
    (folder / "user" / "secret").write_text("nobody's business")
    env = {"PATH": f"{folder}/bin:/usr/bin:/bin", "HOME": f"{folder}/user", "ANTHROPIC_API_KEY": "not for it"}
    hosting = CliAgentRunner(
        SandboxProbe(max_level=level),
        env,
        homes_folder=f"{folder}/home/programs",
        records_folder=f"{folder}/home/cells",
    )
    return Stage(folder=folder, level=level, hosting=hosting)


@pytest.fixture(params=LEVELS)
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Stage:
    return staged(tmp_path.resolve(), request.param)


@pytest.fixture
def strict(tmp_path: Path) -> Stage:
    return staged(tmp_path.resolve(), SandboxLevel.STRICT)


def token() -> str:
    """A number of seconds that no other process sleeps for."""
    return f"1000.{random.randrange(10**9)}"


def alive(word: str) -> list[str]:
    """Processes of this machine whose command line holds a word."""
    found: list[str] = []
    for each in Path("/proc").iterdir():
        with suppress(OSError):
            if each.name.isdigit() and word in (line := (each / "cmdline").read_text(errors="replace")):
                found.append(line)
    return found


async def until_alive(count: int, word: str) -> None:
    async with asyncio.timeout(PATIENCE):
        while len(alive(word)) < count:  # noqa: ASYNC110  (other processes begin: nothing to wait on)
            await asyncio.sleep(0.01)


async def test_a_program_has_a_home_of_its_own_and_nothing_of_ours(stage: Stage):
    stage.program(
        'echo "$1|$KEY|$ANTHROPIC_API_KEY|$(cat "$HOME/.claude/CLAUDE.md")"; pwd; echo kept >"$HOME/kept"; exit 3'
    )
    files = {".claude/CLAUDE.md": "Be good."}
    gone = await stage.run("two words", env={"KEY": "its key"}, files=files)
    assert gone.exit_code == 3
    assert stage.text.splitlines() == ["two words|its key||Be good.", f"{stage.folder}/ws"]
    (kept,) = (stage.folder / "home" / "programs" / "one").rglob("kept")
    assert kept.read_text() == "kept\n"
    stage.program('cat "$HOME/kept"')
    await stage.run()
    assert stage.text.endswith("kept\n")


async def test_what_is_in_the_way_of_a_file_of_ours_is_not_followed(stage: Stage):
    """The home is the program's: it may leave a link there that leads to a person's file."""
    victim = stage.folder / "user" / "victim"
    victim.write_text("untouched")
    stage.program(f'rm -rf "$HOME/.claude"; ln -s {victim.parent} "$HOME/.claude"')
    await stage.run()
    stage.program('cat "$HOME/.claude/victim"')
    await stage.run(files={".claude/victim": "ours"})
    assert stage.text == "ours"
    assert victim.read_text() == "untouched"


async def test_a_held_program_reads_and_writes_what_the_scope_says(strict: Stage):
    strict.program(
        "echo yes >mine/a; echo no >b; cat ../user/secret; ls ../home ../bin; ls /proc/1/cwd/; id -u; "
        'for fd in /proc/self/fd/*; do [ -d "$fd" ] && echo "open $fd"; done; true'
    )
    gone = await strict.run()
    assert (strict.folder / "ws" / "mine" / "a").read_text() == "yes\n"
    assert not (strict.folder / "ws" / "b").exists()
    assert strict.text.splitlines()[-1] == "1000"
    assert "nobody's business" not in strict.text
    assert gone.stderr_tail.count("No such file") >= 2
    with pytest.raises(
        Failed, match=r"cannot work in .*/user \(nothing allows read\): mend chat.config.workdir"
    ):
        await strict.run(workdir="../user")


async def served(answer: bytes) -> tuple[asyncio.Server, int]:
    async def came(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(came, "127.0.0.1", 0)
    return server, server.sockets[0].getsockname()[1]


ASK = """\
import os, socket, sys
def said(port, words):
    with socket.create_connection(("127.0.0.1", port), 10) as it:
        it.sendall(words)
        got = b""
        while piece := it.recv(9999):
            got += piece
            if got.endswith(b"established\\r\\n\\r\\n"):
                it.sendall(b"hello\\n")
        return " ".join(got.decode().split())
proxy = int(os.environ["HTTPS_PROXY"].rpartition(":")[2])
named, other, own = map(int, sys.argv[1:])
print(said(proxy, b"CONNECT localhost:%d HTTP/1.1\\r\\n\\r\\n" % named))
print(said(proxy, b"POST http://localhost:%d/v1 HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n" % named))
print(said(proxy, b"CONNECT localhost:%d HTTP/1.1\\r\\n\\r\\n" % other))
print(said(proxy, b"CONNECT gone.invalid:443 HTTP/1.1\\r\\n\\r\\n"))
print(said(own, b"hello\\n"))
for family, kind, at in ((2, 1, ("127.0.0.1", other)), (2, 2, None), (1, 1, None), (16, 3, None)):
    try:
        made = socket.socket(family, kind)
        print("made", made.connect(at) if at else "it")
    except OSError as error:
        print(error.strerror)
"""


async def test_a_held_program_reaches_the_hosts_it_was_given_and_no_other(strict: Stage):
    """Its network holds nothing but the hatch: what is not named is not there, whatever kind of socket is tried."""
    (named, one), (other, two), (own, three) = [await served(word) for word in (b"named", b"other", b"own")]
    async with named, other, own:
        strict.program(ASK, by=f"{os.path.realpath(sys.executable)} -IS")
        hosts = (f"localhost:{one}", "gone.invalid:443")
        await strict.run(*map(str, (one, two, three)), hosts=hosts, forwards=(three,))
    assert strict.text.splitlines() == [
        "HTTP/1.1 200 Connection established named",
        "named",
        "HTTP/1.1 403 Forbidden Content-Length: 0 Connection: close",
        "HTTP/1.1 502 Bad Gateway Content-Length: 0 Connection: close",
        "own",
        "Connection refused",
        *["Operation not permitted"] * 3,
    ]


async def test_cancelling_ends_the_whole_group_also_what_will_not_hear(stage: Stage):
    """SIGTERM reaches every process of it, and SIGKILL whoever is still there two seconds later.

    Shows: C051."""
    word = token()
    stage.program(
        f"trap 'echo asked; exit 0' TERM\n(trap '' TERM; sleep {word}) &\nsetsid sh -c 'trap \"\" TERM; sleep {word}' &\n"
        "echo ready\nwait"
    )
    task = asyncio.ensure_future(stage.run())
    await stage.until("ready")
    await until_alive(2, f"sleep\0{word}")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert "asked" in stage.text
    assert alive(word) == []
    assert alive(str(stage.folder / "bin" / "claude")) == []


async def test_one_that_hangs_and_floods_is_drained_and_ended_and_its_last_words_are_kept(stage: Stage):
    """It hears no signal, and complains without end: nothing of it is left, and nobody holds more than its last words.

    Shows: K12."""
    word = token()
    stage.program(f"trap '' TERM\nyes complaint >&2 &\necho ready\nsleep {word}\nsleep {word}\nsleep {word}")
    task = asyncio.ensure_future(stage.run())
    await stage.until("ready")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert alive(word) == []
    stage.program(
        f"setsid sleep {word} >/dev/null 2>&1 &\nhead -c 3000000 /dev/zero | tr '\\0' x >&2\n"
        "echo the end >&2; echo done; exit 1"
    )
    gone = await stage.run()
    assert (gone.exit_code, alive(word)) == (1, [])
    assert stage.text.endswith("done\n")
    assert len(gone.stderr_tail) < MAX_STDERR_BYTES
    assert gone.stderr_tail.endswith("xthe end")


async def test_a_session_has_one_live_process_and_a_new_one_ends_the_old(stage: Stage):
    word = token()
    stage.program(f'echo "$1"; [ "$1" = new ] || sleep {word}')
    old = asyncio.ensure_future(stage.run("old"))
    await stage.until("old")
    gone = await stage.run("new")
    assert gone.exit_code == 0
    assert alive(word) == []
    with pytest.raises(Failed, match="another turn of its conversation began"):
        await old


async def test_a_program_that_is_not_there_is_told_with_what_to_do(stage: Stage):
    with pytest.raises(
        Failed, match=r"claude is not installed or not on the PATH. Install it with `npm install -g it`."
    ):
        await stage.run()
    stage.program("true")
    with pytest.raises(Failed, match=r"/no/such/wrapper is not installed or not on the PATH\..*whole path"):
        await stage.run(wrapper="/no/such/wrapper")


async def test_a_wrapper_starts_the_program_by_its_name(stage: Stage):
    stage.program('echo "program $*"')
    stage.program('echo "wrapper $*"; exec "$@"', name="wrap")
    gone = await stage.run("a", "b c", wrapper=f"{stage.folder}/bin/wrap")
    assert gone.exit_code == 0
    assert stage.text.splitlines() == ["wrapper claude a b c", "program a b c"]


Install = Callable[[Stage], None]


def modules(stage: Stage) -> None:
    """As npm lays it: a link to a script in a folder of modules, run by an interpreter that lies elsewhere."""
    place = stage.folder / "lib" / "node_modules" / "it"
    (stage.folder / "engine").mkdir()
    place.mkdir(parents=True)
    (place / "word").write_text("from the modules\n")
    (stage.folder / "engine" / "node").write_text('#!/bin/sh\ncat "${1%/*}/word"\n')
    (stage.folder / "engine" / "node").chmod(0o755)
    (place / "cli.js").write_text("#!/usr/bin/env node\n")
    (place / "cli.js").chmod(0o755)
    (stage.folder / "bin" / "claude").symlink_to(place / "cli.js")
    (stage.folder / "bin" / "node").symlink_to(stage.folder / "engine" / "node")


def prefix(stage: Stage) -> None:
    """As installers lay it: a folder with programs and libraries."""
    place = stage.folder / "opt" / "it"
    for name in ("bin", "lib"):
        (place / name).mkdir(parents=True)
    (place / "lib" / "word").write_text("from the modules\n")
    (place / "bin" / "claude").write_text('#!/bin/sh\ncat "${0%/*}/../lib/word"\n')
    (place / "bin" / "claude").chmod(0o755)
    (stage.folder / "bin" / "claude").symlink_to(place / "bin" / "claude")


@pytest.mark.parametrize("install", [modules, prefix])
async def test_a_program_is_found_however_it_was_installed(strict: Stage, install: Install):
    install(strict)
    gone = await strict.run()
    assert (strict.text, gone.exit_code) == ("from the modules\n", 0), gone.stderr_tail
