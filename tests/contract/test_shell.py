"""Commands that are run: real processes at every level this machine has, judged by what is left of them outside."""

import asyncio
import os
import random
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from retinue.domain.io_results import CommandResult
from retinue.domain.permissions.scope import Scope
from retinue.domain.sandbox_level import SandboxLevel
from retinue.errors import Failed
from retinue.sandbox.landlock import abi_version
from retinue.sandbox.output_capture import HEAD_BYTES, MAX_FILE_BYTES, TAIL_BYTES
from retinue.sandbox.probe import ProbeResult, SandboxProbe
from retinue.sandbox.shell import make_shell_factory

PATIENCE = 30.0
LEVELS = [level for level in SandboxLevel if level is not SandboxLevel.LANDLOCK or abi_version()]
"""Bubblewrap can be installed, and where it is not these tests say so; Landlock is in the kernel or is not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A shell at one level, in a workspace of this test's own."""

    level: SandboxLevel
    scope: Scope
    probe: SandboxProbe

    @property
    def root(self) -> Path:
        return Path(self.scope.root)

    async def __call__(self, command: str, seconds: float = PATIENCE) -> CommandResult:
        found = await self.probe.result()
        lacks = [f"{each.reason}: {each.remedy}" for each in found.missing_levels if each.level is self.level]
        assert found.level is self.level, f"{self.level} cannot be tested here: {lacks}"
        return await make_shell_factory(self.probe, os.environ)(self.scope)(command, seconds)


@pytest.fixture(params=LEVELS)
def held(request: pytest.FixtureRequest, tmp_path: Path) -> Held:
    home = tmp_path.resolve()
    (home / "ws").mkdir()
    trees = (f"{home}/ws/**", "/tmp/**")
    scope = Scope(root=f"{home}/ws", read=trees, write=trees, tmp_folder=f"{home}/own")
    return Held(level=request.param, scope=scope, probe=SandboxProbe(max_level=request.param))


def token() -> str:
    """A number of seconds that no other process sleeps for."""
    return f"1000.{random.randrange(10**9)}"


def alive(token: str) -> list[str]:
    """Every process of the machine that was started with this word, inside whatever sandbox."""
    found: list[str] = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
            state = (process / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if token.encode() in b" ".join(words) and state != "Z":
            found.append(process.name)
    return found


def children() -> set[str]:
    """Every process that this one has begun and not waited for, whether it has ended or not."""
    tasks = Path("/proc/self/task").iterdir()
    return {child for task in tasks for child in (task / "children").read_text().split()}


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


async def until(question: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not question():  # noqa: ASYNC110  (other processes: nothing to wait on)
            await asyncio.sleep(0.01)


def stubborn(token: str) -> str:
    """Four ways to outlive one's parent, and one process that stays."""
    return f"""
        (trap '' TERM HUP INT; setsid sleep {token}) &
        nohup sleep {token} >/dev/null 2>&1 &
        ( ( setsid nohup sleep {token} >/dev/null 2>&1 & ) & )
        setsid bash -c 'trap "" TERM; sleep {token}; sleep {token}' &
        while [ $(ls -d . | wc -l) != 1 ]; do :; done
        touch ready
        sleep {token}
    """


async def test_both_streams_come_in_order_with_the_exit_code(held: Held):
    ran = await held("echo one; echo two >&2; echo three; exit 7")
    assert (ran.exit_code, ran.output, ran.sandbox_level, ran.timed_out) == (
        7,
        "one\ntwo\nthree\n",
        held.level,
        False,
    )


async def test_a_command_works_in_its_workspace(held: Held):
    ran = await held("pwd; echo words > made; cat made; echo $((6 * 7))")
    assert ran.output == f"{held.root}\nwords\n42\n"
    assert (held.root / "made").read_text() == "words\n"


@pytest.mark.parametrize("command", ["-i", "--help", "-c 'echo x'", "--"])
async def test_a_command_is_never_taken_for_an_option(held: Held, command: str):
    ran = await held(command)
    assert ran.exit_code == 127 or "command not found" in ran.output


async def test_the_command_is_one_word_whatever_is_in_it(held: Held):
    """Shows: S25."""
    (held.root / "$(touch hit)").write_text("found\n")
    ran = await held("cat '$(touch hit)'; printf '%s' \"a'b\" 'c\"d' '\\n;'")
    assert ran.output == "found\na'bc\"d\\n;"
    assert not (held.root / "hit").exists()


@pytest.mark.parametrize(
    ("command", "word"),
    [
        ("", "blank"),
        (" \n", "blank"),
        ("a\0b", "NUL"),
        ("echo \ud800", "surrogates"),
        ("x" * 130_000, "file"),
    ],
)
async def test_what_no_command_can_be_is_refused_with_a_sentence(held: Held, command: str, word: str):
    with pytest.raises(Failed, match=word):
        await held(command)


async def test_nobody_is_asked_for_input(held: Held):
    """Standard input is empty and there is no terminal to open.

    Shows: K09.
    """
    ran = await held('read line; echo "read: $?"; (echo x > /dev/tty) 2>/dev/null || echo no tty; tty')
    assert ran.output.splitlines()[:2] == ["read: 1", "no tty"]
    assert "not a tty" in ran.output


async def test_a_command_that_never_ends_is_ended_with_all_that_it_started(held: Held):
    """Shows: K10, K04."""
    mark = token()
    ran = await held(stubborn(mark), seconds=3)
    assert (ran.exit_code, ran.timed_out) == (None, True)
    assert (held.root / "ready").exists()
    assert alive(mark) == []


async def test_what_a_command_leaves_running_ends_with_it(held: Held):
    """Shows: K04."""
    mark = token()
    ran = await held(stubborn(mark).replace(f"\n        sleep {mark}\n", "\n        echo over\n"))
    assert (ran.exit_code, ran.output) == (0, "over\n")
    assert alive(mark) == []


async def test_a_cancelled_call_has_ended_the_whole_tree_before_it_returns(held: Held):
    """Shows: K02."""
    mark = token()
    task = asyncio.ensure_future(held(stubborn(mark)))
    await until(lambda: (held.root / "ready").exists() and len(alive(mark)) >= 4)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert alive(mark) == []


async def test_a_second_cancellation_does_not_leave_anything_behind(held: Held):
    mark = token()
    task = asyncio.ensure_future(held(f"touch ready; sleep {mark}"))
    await until((held.root / "ready").exists)
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert alive(mark) == []


async def test_a_call_that_is_cancelled_at_any_moment_leaves_nothing_open(held: Held):
    """Shows: K02, K13."""
    mark = token()
    await held("true")
    before = open_files()
    for turn in range(40):
        task = asyncio.ensure_future(held(f"sleep {mark}"))
        await asyncio.sleep(turn / 1000)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert alive(mark) == []
    await until(lambda: open_files() == before)


PROGRAM = """
import asyncio, ctypes, os, sys
from retinue.domain.sandbox_level import SandboxLevel
from retinue.domain.permissions.scope import Scope
from retinue.sandbox.probe import SandboxProbe
from retinue.sandbox.shell import make_shell_factory

async def main():
    level, root, tmp, command = sys.argv[1:]
    trees = (root + "/**", "/tmp/**")
    scope = Scope(root=root, read=trees, write=trees, tmp_folder=tmp)
    before = peak()
    ran = await make_shell_factory(SandboxProbe(max_level=SandboxLevel(level)), os.environ)(scope)(command, 100)
    dumpable = ctypes.CDLL(None).prctl(3, 0, 0, 0, 0)
    print(ran.sandbox_level, ran.exit_code, len(ran.output), peak() - before, ran.full_output_path, dumpable, sep="|")

def peak():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))

asyncio.run(main())
"""


def program(held: Held, command: str) -> "subprocess.Popen[str]":
    """A process of its own that runs one command."""
    argv = [sys.executable, "-c", PROGRAM, held.level, held.scope.root, held.scope.tmp_folder, command]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)


async def test_commands_die_with_the_process_that_runs_them(held: Held):
    """Shows: K03."""
    mark = token()
    process = program(held, stubborn(mark))
    await until(lambda: (held.root / "ready").exists() and len(alive(mark)) >= 4)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    await until(lambda: not alive(mark))


@pytest.mark.parametrize(
    ("held", "command", "size"),
    [
        (SandboxLevel.STRICT, "yes | head -c 1000000000", 10**9),
        *((level, "head -c 157000000 /dev/zero | tr '\\0' x", 157_000_000) for level in LEVELS),
    ],
    indirect=["held"],
)
async def test_a_flood_of_output_costs_little_memory(held: Held, command: str, size: int):
    """Shows: K08."""
    out, _ = program(held, command).communicate()
    level, code, length, grown, kept, _ = out.strip().split("|")
    assert (level, code) == (held.level, "0")
    assert int(length) <= HEAD_BYTES + TAIL_BYTES + 100
    assert int(grown) < 50_000
    whole = Path(held.scope.tmp_folder, kept.removeprefix("/tmp/"))
    assert whole.stat().st_size == min(size, MAX_FILE_BYTES)


async def test_the_middle_of_a_long_output_is_left_out_and_the_whole_is_in_a_file(held: Held):
    ran = await held("seq 1 50000; echo last")
    numbers = "".join(f"{number}\n" for number in range(1, 50001)) + "last\n"
    assert ran.output.startswith("1\n2\n3\n")
    assert ran.output.endswith("50000\nlast\n")
    assert "bytes left out" in ran.output
    kept = Path(held.scope.tmp_folder, ran.full_output_path.removeprefix("/tmp/"))
    assert kept.read_text() == numbers
    assert kept.stat().st_mode & 0o777 == 0o600
    again = await held('cd "${TMPDIR:-/tmp}" && tail -n 1 output-*.txt')
    assert again.output.endswith("last\n") or held.level is SandboxLevel.NONE


async def test_without_a_folder_of_its_own_the_rest_is_dropped(held: Held):
    shell = make_shell_factory(held.probe, os.environ)(
        Scope(root=held.scope.root, read=held.scope.read[:1], write=held.scope.write[:1])
    )
    ran = await shell("seq 1 50000", PATIENCE)
    assert (ran.exit_code, ran.full_output_path) == (0, "")
    assert ran.output.endswith("50000\n")


async def test_bytes_that_are_no_text_are_replaced(held: Held):
    ran = await held("printf 'a\\377b\\n'")
    assert ran.output == "a\ufffdb\n"


async def test_many_commands_leave_no_zombies_and_no_open_files(held: Held):
    """Shows: K05."""
    await held("true")
    before = (open_files(), children())
    for _ in range(5):
        assert {
            ran.exit_code for ran in await asyncio.gather(*(held("(true &) ; true") for _ in range(5)))
        } == {0}
    assert (open_files(), children()) == before


async def test_nothing_that_is_open_here_is_open_there(held: Held, tmp_path: Path):
    """Shows: S26."""
    (tmp_path / "secret").write_text("SECRET")
    with (tmp_path / "secret").open() as file:
        fd = file.fileno()
        os.set_inheritable(fd, True)
        control = subprocess.run(  # noqa: ASYNC221
            ["/bin/bash", "-c", f"cat <&{fd}"], close_fds=False, capture_output=True, check=True
        )
        file.seek(0)
        ran = await held(f"cat <&{fd}; cat /proc/self/fd/{fd}; ls /proc/self/fd | wc -l")
    assert control.stdout == b"SECRET"
    assert "SECRET" not in ran.output


async def test_the_environment_is_a_short_list(held: Held, monkeypatch: pytest.MonkeyPatch):
    """Shows: S24."""
    bad = (
        "OPENAI_API_KEY",
        "LD_PRELOAD",
        "NODE_OPTIONS",
        "GIT_SSH_COMMAND",
        "PYTHONSTARTUP",
        "BASH_ENV",
        "ENV",
    )
    for name in bad:
        monkeypatch.setenv(name, "/nonexistent-injected")
    ran = await held("env; cat /proc/1/environ /proc/$PPID/environ 2>/dev/null | tr '\\0' '\\n'; true")
    names = {line.partition("=")[0] for line in ran.output.splitlines() if "=" in line}
    assert not names & set(bad)
    if held.level is not SandboxLevel.NONE:
        assert "injected" not in ran.output


async def test_where_nothing_holds_a_command_our_own_memory_is_closed_to_it(held: Held):
    """The kernel lets no other program of the same user read a process that says so.

    Shows: X10.
    """
    out, _ = program(held, "true").communicate()
    assert out.strip().rpartition("|")[2] == ("0" if held.level is SandboxLevel.NONE else "1")


async def test_programs_are_not_looked_for_in_the_workspace(held: Held, monkeypatch: pytest.MonkeyPatch):
    """Shows: S23."""
    monkeypatch.setenv("PATH", f".::{held.root}:{os.environ['PATH']}")
    for name in ("ls", "date"):
        (held.root / name).write_text("#!/bin/sh\necho HIJACKED\n")
        (held.root / name).chmod(0o755)
    ran = await held("ls >/dev/null; date >/dev/null; type -P ls date; ls")
    assert "HIJACKED" not in ran.output
    assert str(held.root) not in ran.output


async def test_a_sandbox_that_cannot_be_made_is_an_error_and_never_a_weaker_level(held: Held, tmp_path: Path):
    """Shows: S16."""
    fake = tmp_path / "bwrap"
    able = 'if [ "$1" = --help ]; then exec echo --bind-fd; fi\n'
    fake.write_text(f"#!/bin/sh\n{able}echo 'bwrap: setting up uid map: Permission denied' >&2\nexit 1\n")
    fake.chmod(0o755)

    class Broken(SandboxProbe):
        async def result(self) -> ProbeResult:
            return ProbeResult(level=SandboxLevel.STRICT, bwrap_path=str(fake))

    with pytest.raises(Failed, match=r"was not run: the sandbox .level strict. could not be made.*uid map"):
        await make_shell_factory(Broken(), os.environ)(held.scope)("touch hit", PATIENCE)
    assert not (held.root / "hit").exists()


async def test_what_lies_outside_is_out_of_reach(held: Held, tmp_path: Path):
    """The positive control is level none, where nothing holds a command."""
    (tmp_path / "outside").write_text("SECRET")
    ran = await held(f"cat {tmp_path}/outside; echo x > {tmp_path}/new; echo inside > made; cat made")
    open_to_it = held.level is SandboxLevel.NONE
    assert ("SECRET" in ran.output, (tmp_path / "new").exists()) == (open_to_it, open_to_it)
    assert ran.output.endswith("inside\n")


async def test_there_is_no_network(held: Held):
    code = "import socket; socket.socket(socket.AF_INET); print('open')"
    ran = await held(f'/usr/bin/python3 -c "{code}"')
    assert ("open" in ran.output) == (held.level is SandboxLevel.NONE)


FORMS = textwrap.dedent("""\
    git status; touch {out}
    git status && touch {out}
    false || touch {out}
    git status | tee {out}
    git status & touch {out}
    git log $(touch {out})
    git log `touch {out}`
    git log <(touch {out})
    git status > {out}
    git status >> {out}
    git status &> {out}
    git status 2> {out}
    {{ touch {out}; }}
    ( touch {out} )
    if true; then touch {out}; fi
    for i in 1; do touch {out}; done
    while touch {out}; do break; done
    case x in x) touch {out};; esac
    f() {{ touch {out}; }}; f
    eval touch {out}
    exec touch {out}
    command touch {out}
    builtin eval touch {out}
    env touch {out}
    env -S 'touch {out}'
    time touch {out}
    nice touch {out}
    nohup touch {out}
    timeout 5 touch {out}
    xargs touch <<< {out}
    echo {out} | xargs touch
    find . -maxdepth 0 -exec touch {out} ;
    sed -n 'w {out}' /etc/passwd
    awk 'BEGIN {{ system("touch {out}") }}'
    git -c alias.x='!touch {out}' x
    git -c core.pager='touch {out}' log
    bash -c 'touch {out}'
    sh -c 'touch {out}'
    python3 -c 'open("{out}", "w")'
    perl -e 'open(F, ">", "{out}")'
    t=touch; $t {out}
    \\touch {out}
    'tou'ch {out}
    trap 'touch {out}' EXIT
    coproc touch {out}
    cat > {out} <<< x
    ln -s {out} l; echo x > l
    cp /etc/hostname {out}
    dd if=/dev/zero of={out} count=1
    tar cf {out} .
    """).splitlines()


@pytest.mark.parametrize("held", [level for level in LEVELS if level is not SandboxLevel.NONE], indirect=True)
async def test_no_form_of_words_leads_out(held: Held, tmp_path: Path):
    """Whatever the text looks like, the sandbox holds it; inside, the same forms work.

    Shows: S20, S21, S22.
    """
    forms = [*FORMS, " && ".join(["true"] * 51 + ["touch {out}"])]
    outside = tmp_path.resolve() / "outside"
    inside = held.root / "inside"
    worked = 0
    for form in forms:
        await held(form.format(out=outside))
        assert not outside.exists(), form
        await held(form.format(out=inside))
        worked += inside.exists()
        inside.unlink(missing_ok=True)
        (held.root / "l").unlink(missing_ok=True)
    assert worked > len(forms) * 3 // 4
