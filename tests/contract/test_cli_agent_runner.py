"""CLI agents as real processes, with and without the sandbox: what they can reach, and what remains after them."""

import asyncio
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from live_processes import processes_with, unique_duration

from retinue.domain.cli_agent import CliAgentCommand, ProcessExit
from retinue.domain.permissions.scope import Scope
from retinue.domain.sandbox_level import SandboxLevel
from retinue.errors import Failed
from retinue.sandbox.cli_agents.runner import MAX_STDERR_BYTES, CliAgentRunner
from retinue.sandbox.netns_helper import INOTIFY_LIMITS
from retinue.sandbox.probe import SandboxProbe

pytestmark = pytest.mark.anyio

TIMEOUT_S = 30.0
LEVELS = (SandboxLevel.STRICT, SandboxLevel.NONE)


@dataclass(slots=True, kw_only=True)
class RunnerFixture:
    """A runner for CLI agents with a workspace, a folder of programs on the PATH, and the captured output."""

    folder: Path
    level: SandboxLevel
    cli_agents: CliAgentRunner
    output_chunks: list[bytes] = field(default_factory=list[bytes])

    @property
    def scope(self) -> Scope:
        root = f"{self.folder}/ws"
        return Scope(
            root=root,
            read=(f"{root}/**",),
            write=(f"{root}/mine/**",),
            retinue_paths=(f"{self.folder}/home/**",),
        )

    def install_script(self, text: str, name: str = "claude", interpreter: str = "/bin/sh") -> None:
        path = self.folder / "bin" / name
        path.write_text(f"#!{interpreter}\n{text}\n")
        path.chmod(0o755)

    async def run(self, *argv: str, session: str = "one", **options: object) -> ProcessExit:
        command = CliAgentCommand(binary="claude", args=argv, install="npm install -g it", **options)  # pyright: ignore[reportArgumentType]  (fields of the command)
        sandbox = await self.cli_agents.prepare_home(session)
        assert sandbox.level is self.level
        return await self.cli_agents.run(
            command,
            session=session,
            scope=self.scope,
            agent_sandbox=sandbox,
            on_output=self.output_chunks.append,
        )

    @property
    def output(self) -> str:
        return b"".join(self.output_chunks).decode()

    async def wait_for_output(self, text: str) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while text not in self.output:  # noqa: ASYNC110  (another process writes: nothing to wait on)
                await asyncio.sleep(0.01)


def make_runner(folder: Path, level: SandboxLevel) -> RunnerFixture:
    for name in ("ws", "ws/mine", "bin", "home", "user"):
        (folder / name).mkdir()
    (folder / "user" / "secret").write_text("nobody's business")
    env = {"PATH": f"{folder}/bin:/usr/bin:/bin", "HOME": f"{folder}/user", "ANTHROPIC_API_KEY": "not for it"}
    cli_agents = CliAgentRunner(
        SandboxProbe(max_level=level),
        env,
        homes_folder=f"{folder}/home/programs",
        records_folder=f"{folder}/home/cells",
    )
    return RunnerFixture(folder=folder, level=level, cli_agents=cli_agents)


@pytest.fixture(params=LEVELS)
def runner(request: pytest.FixtureRequest, tmp_path: Path) -> RunnerFixture:
    return make_runner(tmp_path.resolve(), request.param)


@pytest.fixture
def strict_runner(tmp_path: Path) -> RunnerFixture:
    return make_runner(tmp_path.resolve(), SandboxLevel.STRICT)


async def wait_for_processes(count: int, argument: str) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while len(processes_with(argument)) < count:  # noqa: ASYNC110  (other processes start: nothing to wait on)
            await asyncio.sleep(0.01)


async def test_a_cli_agent_has_a_persistent_home_and_only_its_own_environment(runner: RunnerFixture):
    runner.install_script(
        'echo "$1|$KEY|$ANTHROPIC_API_KEY|$(cat "$HOME/.claude/CLAUDE.md")"; pwd; echo kept >"$HOME/kept"; exit 3'
    )
    files = {".claude/CLAUDE.md": "Be good."}
    exited = await runner.run("two words", env={"KEY": "its key"}, files=files)
    assert exited.exit_code == 3
    assert runner.output.splitlines() == ["two words|its key||Be good.", f"{runner.folder}/ws"]
    (kept_file,) = (runner.folder / "home" / "programs" / "one").rglob("kept")
    assert kept_file.read_text() == "kept\n"
    runner.install_script('cat "$HOME/kept"')
    await runner.run()
    assert runner.output.endswith("kept\n")


async def test_a_link_in_the_agents_home_is_replaced_when_a_file_is_written(runner: RunnerFixture):
    """The agent can write in its home, so it could leave a link to a file of the user there."""
    victim = runner.folder / "user" / "victim"
    victim.write_text("untouched")
    runner.install_script(f'rm -rf "$HOME/.claude"; ln -s {victim.parent} "$HOME/.claude"')
    await runner.run()
    runner.install_script('cat "$HOME/.claude/victim"')
    await runner.run(files={".claude/victim": "ours"})
    assert runner.output == "ours"
    assert victim.read_text() == "untouched"


async def test_a_sandboxed_cli_agent_reads_and_writes_only_inside_its_scope(strict_runner: RunnerFixture):
    strict_runner.install_script(
        "echo yes >mine/a; echo no >b; cat ../user/secret; ls ../home ../bin; ls /proc/1/cwd/; id -u; "
        'for fd in /proc/self/fd/*; do [ -d "$fd" ] && echo "open $fd"; done; true'
    )
    exited = await strict_runner.run()
    assert (strict_runner.folder / "ws" / "mine" / "a").read_text() == "yes\n"
    assert not (strict_runner.folder / "ws" / "b").exists()
    assert strict_runner.output.splitlines()[-1] == "1000"
    assert "nobody's business" not in strict_runner.output
    assert exited.stderr_tail.count("No such file") >= 2
    with pytest.raises(
        Failed, match=r"cannot work in .*/user \(nothing allows read\)\. Change chat\.config\.workdir"
    ):
        await strict_runner.run(workdir="../user")


async def start_server(answer: bytes) -> tuple[asyncio.Server, int]:
    async def handle_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(handle_connection, "127.0.0.1", 0)
    return server, server.sockets[0].getsockname()[1]


CONNECT_SCRIPT = """\
import os, socket, sys
def send(port, data):
    with socket.create_connection(("127.0.0.1", port), 10) as connection:
        connection.sendall(data)
        response = b""
        while piece := connection.recv(9999):
            response += piece
            if response.endswith(b"established\\r\\n\\r\\n"):
                connection.sendall(b"hello\\n")
        return " ".join(response.decode().split())
proxy = int(os.environ["HTTPS_PROXY"].rpartition(":")[2])
allowed, other, forwarded = map(int, sys.argv[1:])
print(send(proxy, b"CONNECT localhost:%d HTTP/1.1\\r\\n\\r\\n" % allowed))
print(send(proxy, b"POST http://localhost:%d/v1 HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n" % allowed))
print(send(proxy, b"CONNECT localhost:%d HTTP/1.1\\r\\n\\r\\n" % other))
print(send(proxy, b"CONNECT gone.invalid:443 HTTP/1.1\\r\\n\\r\\n"))
print(send(forwarded, b"hello\\n"))
for family, kind, address in ((2, 1, ("127.0.0.1", other)), (2, 2, None), (1, 1, None), (16, 3, None)):
    try:
        connection = socket.socket(family, kind)
        print("created", connection.connect(address) if address else "")
    except OSError as error:
        print(error.strerror)
"""


async def test_a_sandboxed_cli_agent_reaches_only_its_allowed_hosts(strict_runner: RunnerFixture):
    """Its network namespace contains only the egress proxy, so other hosts are unreachable with every kind of socket."""
    (allowed, allowed_port), (other, other_port), (forwarded, forwarded_port) = [
        await start_server(name) for name in (b"named", b"other", b"own")
    ]
    async with allowed, other, forwarded:
        strict_runner.install_script(CONNECT_SCRIPT, interpreter=f"{os.path.realpath(sys.executable)} -IS")
        hosts = (f"localhost:{allowed_port}", "gone.invalid:443")
        ports = map(str, (allowed_port, other_port, forwarded_port))
        await strict_runner.run(*ports, hosts=hosts, forwards=(forwarded_port,))
    assert strict_runner.output.splitlines() == [
        "HTTP/1.1 200 Connection established named",
        "named",
        "HTTP/1.1 403 Forbidden Content-Length: 0 Connection: close",
        "HTTP/1.1 502 Bad Gateway Content-Length: 0 Connection: close",
        "own",
        "Connection refused",
        *["Operation not permitted"] * 3,
    ]


async def test_cancelling_kills_the_whole_process_group_including_processes_that_ignore_sigterm(
    runner: RunnerFixture,
):
    """SIGTERM is sent to every process, and SIGKILL two seconds later to those that are left.

    Shows: C051."""
    duration = unique_duration()
    runner.install_script(
        f"trap 'echo asked; exit 0' TERM\n(trap '' TERM; sleep {duration}) &\nsetsid sh -c 'trap \"\" TERM; sleep {duration}' &\n"
        "echo ready\nwait"
    )
    task = asyncio.ensure_future(runner.run())
    await runner.wait_for_output("ready")
    await wait_for_processes(2, f"sleep {duration}")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert "asked" in runner.output
    assert processes_with(duration) == []
    assert processes_with(str(runner.folder / "bin" / "claude")) == []


async def test_a_cli_agent_that_hangs_and_floods_stderr_is_killed_and_the_end_of_stderr_is_kept(
    runner: RunnerFixture,
):
    """The agent ignores SIGTERM and writes to stderr without end. No process is left, and only the tail is kept.

    Shows: K12."""
    duration = unique_duration()
    runner.install_script(
        f"trap '' TERM\nyes complaint >&2 &\necho ready\nsleep {duration}\nsleep {duration}\nsleep {duration}"
    )
    task = asyncio.ensure_future(runner.run())
    await runner.wait_for_output("ready")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert processes_with(duration) == []
    runner.install_script(
        f"setsid sleep {duration} >/dev/null 2>&1 &\nhead -c 3000000 /dev/zero | tr '\\0' x >&2\n"
        "echo the end >&2; echo done; exit 1"
    )
    exited = await runner.run()
    assert (exited.exit_code, processes_with(duration)) == (1, [])
    assert runner.output.endswith("done\n")
    assert len(exited.stderr_tail) < MAX_STDERR_BYTES
    assert exited.stderr_tail.endswith("xthe end")


async def test_a_new_turn_of_a_session_kills_the_process_of_the_old_turn(runner: RunnerFixture):
    duration = unique_duration()
    runner.install_script(f'echo "$1"; [ "$1" = new ] || sleep {duration}')
    old_turn = asyncio.ensure_future(runner.run("old"))
    await runner.wait_for_output("old")
    exited = await runner.run("new")
    assert exited.exit_code == 0
    assert processes_with(duration) == []
    with pytest.raises(Failed, match="another turn of its conversation started"):
        await old_turn


async def test_the_error_for_a_missing_program_reports_how_to_install_it(runner: RunnerFixture):
    with pytest.raises(
        Failed, match=r"claude is not installed or not on the PATH. Install it with `npm install -g it`."
    ):
        await runner.run()
    runner.install_script("true")
    with pytest.raises(
        Failed, match=r"/no/such/wrapper is not installed or not on the PATH\..*absolute path"
    ):
        await runner.run(wrapper="/no/such/wrapper")


async def test_a_wrapper_gets_the_command_line_of_the_cli_agent(runner: RunnerFixture):
    runner.install_script('echo "program $*"')
    runner.install_script('echo "wrapper $*"; exec "$@"', name="wrap")
    exited = await runner.run("a", "b c", wrapper=f"{runner.folder}/bin/wrap")
    assert exited.exit_code == 0
    assert runner.output.splitlines() == ["wrapper claude a b c", "program a b c"]


Install = Callable[[RunnerFixture], None]


def install_as_npm_module(runner: RunnerFixture) -> None:
    """Install a link to a script in a module folder, with the interpreter in another folder."""
    package = runner.folder / "lib" / "node_modules" / "it"
    (runner.folder / "engine").mkdir()
    package.mkdir(parents=True)
    (package / "word").write_text("from the modules\n")
    (runner.folder / "engine" / "node").write_text('#!/bin/sh\ncat "${1%/*}/word"\n')
    (runner.folder / "engine" / "node").chmod(0o755)
    (package / "cli.js").write_text("#!/usr/bin/env node\n")
    (package / "cli.js").chmod(0o755)
    (runner.folder / "bin" / "claude").symlink_to(package / "cli.js")
    (runner.folder / "bin" / "node").symlink_to(runner.folder / "engine" / "node")


def install_in_prefix(runner: RunnerFixture) -> None:
    """Install a link to a program in a folder that also has its libraries."""
    installation = runner.folder / "opt" / "it"
    for name in ("bin", "lib"):
        (installation / name).mkdir(parents=True)
    (installation / "lib" / "word").write_text("from the modules\n")
    (installation / "bin" / "claude").write_text('#!/bin/sh\ncat "${0%/*}/../lib/word"\n')
    (installation / "bin" / "claude").chmod(0o755)
    (runner.folder / "bin" / "claude").symlink_to(installation / "bin" / "claude")


@pytest.mark.parametrize("install", [install_as_npm_module, install_in_prefix])
async def test_a_cli_agent_can_read_its_own_installation(strict_runner: RunnerFixture, install: Install):
    install(strict_runner)
    exited = await strict_runner.run()
    assert (strict_runner.output, exited.exit_code) == ("from the modules\n", 0), exited.stderr_tail


async def test_a_sandboxed_cli_agent_can_watch_files_but_not_take_all_instances_of_the_user(
    strict_runner: RunnerFixture,
):
    """The limit is that of its own user namespace; the machine's is larger."""
    strict_runner.install_script(
        "import ctypes\nlibc = ctypes.CDLL(None)\ncount = 0\n"
        "while libc.inotify_init1(0) >= 0 and count < 1000: count += 1\nprint(count)",
        interpreter="/usr/bin/python3 -I"
        if os.access("/usr/bin/python3", os.X_OK)
        else f"{sys.executable} -I",
    )
    ended = await strict_runner.run()
    assert ended.exit_code == 0
    assert int(strict_runner.output) == INOTIFY_LIMITS["max_inotify_instances"]
