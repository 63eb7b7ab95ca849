"""Shell commands as real processes, at every sandbox level that this machine supports."""

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from live_processes import open_descriptor_count, processes_with, unique_duration

from retinue.app.doctor import sandbox_findings
from retinue.domain.io_results import CommandResult
from retinue.domain.permissions.scope import Scope
from retinue.domain.sandbox_level import SandboxLevel
from retinue.errors import Failed
from retinue.sandbox import cgroup
from retinue.sandbox.landlock import abi_version
from retinue.sandbox.output_capture import HEAD_BYTES, MAX_FILE_BYTES, TAIL_BYTES
from retinue.sandbox.probe import ProbeResult, SandboxProbe
from retinue.sandbox.shell import make_shell_factory

TIMEOUT_S = 30.0
LEVELS = [level for level in SandboxLevel if level is not SandboxLevel.LANDLOCK or abi_version()]
"""Levels to test. Bubblewrap must be installed, but Landlock is tested only if the kernel has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellFixture:
    """A shell at one sandbox level, in a workspace of its own."""

    level: SandboxLevel
    scope: Scope
    probe: SandboxProbe

    @property
    def root(self) -> Path:
        return Path(self.scope.root)

    async def __call__(self, command: str, seconds: float = TIMEOUT_S) -> CommandResult:
        probed = await self.probe.result()
        missing = [
            f"{level.reason}: {level.remedy}" for level in probed.missing_levels if level.level is self.level
        ]
        assert probed.level is self.level, f"{self.level} cannot be tested here: {missing}"
        return await make_shell_factory(self.probe, os.environ)(self.scope)(command, seconds)


@pytest.fixture(params=LEVELS)
def shell(request: pytest.FixtureRequest, tmp_path: Path) -> ShellFixture:
    home = tmp_path.resolve()
    (home / "ws").mkdir()
    trees = (f"{home}/ws/**", "/tmp/**")
    scope = Scope(root=f"{home}/ws", read=trees, write=trees, tmp_folder=f"{home}/own")
    return ShellFixture(level=request.param, scope=scope, probe=SandboxProbe(max_level=request.param))


def child_pids() -> set[str]:
    """Return the pids of all children that this process has not waited for."""
    tasks = Path("/proc/self/task").iterdir()
    return {child for task in tasks for child in (task / "children").read_text().split()}


async def wait_until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not condition():  # noqa: ASYNC110  (other processes: nothing to wait on)
            await asyncio.sleep(0.01)


def stubborn_command(duration: str) -> str:
    """Make a command with four background processes that try to outlive it, and one in the foreground."""
    return f"""
        (trap '' TERM HUP INT; setsid sleep {duration}) &
        nohup sleep {duration} >/dev/null 2>&1 &
        ( ( setsid nohup sleep {duration} >/dev/null 2>&1 & ) & )
        setsid bash -c 'trap "" TERM; sleep {duration}; sleep {duration}' &
        while [ $(ls -d . | wc -l) != 1 ]; do :; done
        touch ready
        sleep {duration}
    """


async def test_a_command_returns_both_streams_in_order_and_the_exit_code(shell: ShellFixture):
    result = await shell("echo one; echo two >&2; echo three; exit 7")
    assert (result.exit_code, result.output, result.sandbox_level, result.timed_out) == (
        7,
        "one\ntwo\nthree\n",
        shell.level,
        False,
    )


async def test_a_command_runs_in_its_workspace(shell: ShellFixture):
    result = await shell("pwd; echo words > made; cat made; echo $((6 * 7))")
    assert result.output == f"{shell.root}\nwords\n42\n"
    assert (shell.root / "made").read_text() == "words\n"


@pytest.mark.parametrize("command", ["-i", "--help", "-c 'echo x'", "--"])
async def test_a_command_that_looks_like_an_option_is_run_as_a_command(shell: ShellFixture, command: str):
    result = await shell(command)
    assert result.exit_code == 127 or "command not found" in result.output


async def test_a_command_reaches_the_shell_as_one_argument_without_expansion(shell: ShellFixture):
    """Shows: S25."""
    (shell.root / "$(touch hit)").write_text("found\n")
    result = await shell("cat '$(touch hit)'; printf '%s' \"a'b\" 'c\"d' '\\n;'")
    assert result.output == "found\na'bc\"d\\n;"
    assert not (shell.root / "hit").exists()


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("", "empty"),
        (" \n", "empty"),
        ("a\0b", "NUL"),
        ("echo \ud800", "surrogates"),
        ("x" * 130_000, "file"),
    ],
)
async def test_an_invalid_command_is_refused_with_a_reason(shell: ShellFixture, command: str, reason: str):
    with pytest.raises(Failed, match=reason):
        await shell(command)


async def test_a_command_has_empty_standard_input_and_no_terminal(shell: ShellFixture):
    """Shows: K09."""
    result = await shell('read line; echo "read: $?"; (echo x > /dev/tty) 2>/dev/null || echo no tty; tty')
    assert result.output.splitlines()[:2] == ["read: 1", "no tty"]
    assert "not a tty" in result.output


async def test_a_command_that_times_out_is_killed_with_all_its_processes(shell: ShellFixture):
    """Shows: K10, K04."""
    duration = unique_duration()
    result = await shell(stubborn_command(duration), seconds=3)
    assert (result.exit_code, result.timed_out) == (None, True)
    assert (shell.root / "ready").exists()
    assert processes_with(duration) == []


async def test_background_processes_of_a_command_end_with_it(shell: ShellFixture):
    """Shows: K04."""
    duration = unique_duration()
    result = await shell(
        stubborn_command(duration).replace(f"\n        sleep {duration}\n", "\n        echo over\n")
    )
    assert (result.exit_code, result.output) == (0, "over\n")
    assert processes_with(duration) == []


async def test_a_cancelled_call_kills_the_whole_process_tree_before_it_returns(shell: ShellFixture):
    """Shows: K02."""
    duration = unique_duration()
    task = asyncio.ensure_future(shell(stubborn_command(duration)))
    await wait_until(lambda: (shell.root / "ready").exists() and len(processes_with(duration)) >= 4)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert processes_with(duration) == []


async def test_a_second_cancellation_leaves_no_process_running(shell: ShellFixture):
    duration = unique_duration()
    task = asyncio.ensure_future(shell(f"touch ready; sleep {duration}"))
    await wait_until((shell.root / "ready").exists)
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert processes_with(duration) == []


async def test_a_call_cancelled_at_any_moment_leaves_no_process_and_no_open_descriptor(shell: ShellFixture):
    """Shows: K02, K13."""
    duration = unique_duration()
    await shell("true")
    before = open_descriptor_count()
    for delay_ms in range(40):
        task = asyncio.ensure_future(shell(f"sleep {duration}"))
        await asyncio.sleep(delay_ms / 1000)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert processes_with(duration) == []
    await wait_until(lambda: open_descriptor_count() == before)


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
    before = peak_memory_kb()
    result = await make_shell_factory(SandboxProbe(max_level=SandboxLevel(level)), os.environ)(scope)(command, 100)
    dumpable = ctypes.CDLL(None).prctl(3, 0, 0, 0, 0)
    print(result.sandbox_level, result.exit_code, len(result.output), peak_memory_kb() - before, result.full_output_path, dumpable, sep="|")

def peak_memory_kb():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))

asyncio.run(main())
"""


def start_program(shell: ShellFixture, command: str) -> "subprocess.Popen[str]":
    """Start a Python process that runs one command."""
    argv = [sys.executable, "-c", PROGRAM, shell.level, shell.scope.root, shell.scope.tmp_folder, command]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)


async def test_a_command_dies_with_the_process_that_runs_it(shell: ShellFixture):
    """Shows: K03."""
    duration = unique_duration()
    process = start_program(shell, stubborn_command(duration))
    await wait_until(lambda: (shell.root / "ready").exists() and len(processes_with(duration)) >= 4)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    await wait_until(lambda: not processes_with(duration))


@pytest.mark.parametrize(
    ("shell", "command", "size"),
    [
        (SandboxLevel.STRICT, "yes | head -c 1000000000", 10**9),
        *((level, "head -c 157000000 /dev/zero | tr '\\0' x", 157_000_000) for level in LEVELS),
    ],
    indirect=["shell"],
)
async def test_a_very_large_output_uses_little_memory(shell: ShellFixture, command: str, size: int):
    """Shows: K08."""
    output, _ = start_program(shell, command).communicate()
    level, code, length, memory_growth_kb, output_path, _ = output.strip().split("|")
    assert (level, code) == (shell.level, "0")
    assert int(length) <= HEAD_BYTES + TAIL_BYTES + 100
    assert int(memory_growth_kb) < 50_000
    output_file = Path(shell.scope.tmp_folder, output_path.removeprefix("/tmp/"))
    assert output_file.stat().st_size == min(size, MAX_FILE_BYTES)


async def test_a_long_output_is_truncated_in_the_middle_and_saved_whole_in_a_file(shell: ShellFixture):
    result = await shell("seq 1 50000; echo last")
    numbers = "".join(f"{number}\n" for number in range(1, 50001)) + "last\n"
    assert result.output.startswith("1\n2\n3\n")
    assert result.output.endswith("50000\nlast\n")
    assert "bytes left out" in result.output
    output_file = Path(shell.scope.tmp_folder, result.full_output_path.removeprefix("/tmp/"))
    assert output_file.read_text() == numbers
    assert output_file.stat().st_mode & 0o777 == 0o600
    from_file = await shell('cd "${TMPDIR:-/tmp}" && tail -n 1 output-*.txt')
    assert from_file.output.endswith("last\n") or shell.level is SandboxLevel.NONE


async def test_without_a_tmp_folder_the_truncated_output_is_not_saved(shell: ShellFixture):
    run_command = make_shell_factory(shell.probe, os.environ)(
        Scope(root=shell.scope.root, read=shell.scope.read[:1], write=shell.scope.write[:1])
    )
    result = await run_command("seq 1 50000", TIMEOUT_S)
    assert (result.exit_code, result.full_output_path) == (0, "")
    assert result.output.endswith("50000\n")


async def test_bytes_that_are_not_utf_8_are_replaced(shell: ShellFixture):
    result = await shell("printf 'a\\377b\\n'")
    assert result.output == "a\ufffdb\n"


async def test_many_commands_leave_no_zombies_and_no_open_descriptors(shell: ShellFixture):
    """Shows: K05."""
    await shell("true")
    before = (open_descriptor_count(), child_pids())
    for _ in range(5):
        assert {
            result.exit_code for result in await asyncio.gather(*(shell("(true &) ; true") for _ in range(5)))
        } == {0}
    assert (open_descriptor_count(), child_pids()) == before


async def test_a_command_does_not_inherit_open_files(shell: ShellFixture, tmp_path: Path):
    """Shows: S26."""
    (tmp_path / "secret").write_text("SECRET")
    with (tmp_path / "secret").open() as file:
        fd = file.fileno()
        os.set_inheritable(fd, True)
        control = subprocess.run(  # noqa: ASYNC221
            ["/bin/bash", "-c", f"cat <&{fd}"], close_fds=False, capture_output=True, check=True
        )
        file.seek(0)
        result = await shell(f"cat <&{fd}; cat /proc/self/fd/{fd}; ls /proc/self/fd | wc -l")
    assert control.stdout == b"SECRET"
    assert "SECRET" not in result.output


async def test_dangerous_environment_variables_do_not_reach_a_command(
    shell: ShellFixture, monkeypatch: pytest.MonkeyPatch
):
    """Shows: S24."""
    dangerous = (
        "OPENAI_API_KEY",
        "LD_PRELOAD",
        "NODE_OPTIONS",
        "GIT_SSH_COMMAND",
        "PYTHONSTARTUP",
        "BASH_ENV",
        "ENV",
    )
    for name in dangerous:
        monkeypatch.setenv(name, "/nonexistent-injected")
    result = await shell("env; cat /proc/1/environ /proc/$PPID/environ 2>/dev/null | tr '\\0' '\\n'; true")
    names = {line.partition("=")[0] for line in result.output.splitlines() if "=" in line}
    assert not names & set(dangerous)
    if shell.level is not SandboxLevel.NONE:
        assert "injected" not in result.output


async def test_without_a_sandbox_commands_cannot_read_retinues_memory(shell: ShellFixture):
    """The kernel protects the memory of a process that is not dumpable from other processes of the user.

    Shows: X10.
    """
    output, _ = start_program(shell, "true").communicate()
    assert output.strip().rpartition("|")[2] == ("0" if shell.level is SandboxLevel.NONE else "1")


async def test_programs_in_the_workspace_do_not_shadow_system_programs(
    shell: ShellFixture, monkeypatch: pytest.MonkeyPatch
):
    """Shows: S23."""
    monkeypatch.setenv("PATH", f".::{shell.root}:{os.environ['PATH']}")
    for name in ("ls", "date"):
        (shell.root / name).write_text("#!/bin/sh\necho HIJACKED\n")
        (shell.root / name).chmod(0o755)
    result = await shell("ls >/dev/null; date >/dev/null; type -P ls date; ls")
    assert "HIJACKED" not in result.output
    assert str(shell.root) not in result.output


async def test_a_sandbox_that_cannot_be_set_up_is_an_error_and_not_a_weaker_level(
    shell: ShellFixture, tmp_path: Path
):
    """Shows: S16."""
    fake_bwrap = tmp_path / "bwrap"
    version_check = 'if [ "$1" = --help ]; then exec echo --bind-fd; fi\n'
    fake_bwrap.write_text(
        f"#!/bin/sh\n{version_check}echo 'bwrap: setting up uid map: Permission denied' >&2\nexit 1\n"
    )
    fake_bwrap.chmod(0o755)

    class FakeBwrapProbe(SandboxProbe):
        async def result(self) -> ProbeResult:
            return ProbeResult(level=SandboxLevel.STRICT, bwrap_path=str(fake_bwrap))

    with pytest.raises(
        Failed, match=r"was not run: the sandbox .level strict. could not be created.*uid map"
    ):
        await make_shell_factory(FakeBwrapProbe(), os.environ)(shell.scope)("touch hit", TIMEOUT_S)
    assert not (shell.root / "hit").exists()


async def test_files_outside_the_workspace_are_accessible_only_without_a_sandbox(
    shell: ShellFixture, tmp_path: Path
):
    """The level `none` is the control."""
    (tmp_path / "outside").write_text("SECRET")
    result = await shell(f"cat {tmp_path}/outside; echo x > {tmp_path}/new; echo inside > made; cat made")
    is_accessible = shell.level is SandboxLevel.NONE
    assert ("SECRET" in result.output, (tmp_path / "new").exists()) == (is_accessible, is_accessible)
    assert result.output.endswith("inside\n")


async def test_a_command_has_network_access_only_without_a_sandbox(shell: ShellFixture):
    code = "import socket; socket.socket(socket.AF_INET); print('open')"
    result = await shell(f'/usr/bin/python3 -c "{code}"')
    assert ("open" in result.output) == (shell.level is SandboxLevel.NONE)


SHELL_FORMS = textwrap.dedent("""\
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


@pytest.mark.parametrize(
    "shell", [level for level in LEVELS if level is not SandboxLevel.NONE], indirect=True
)
async def test_no_shell_syntax_writes_outside_the_workspace(shell: ShellFixture, tmp_path: Path):
    """Each form of command fails outside the workspace, and most of them work inside.

    Shows: S20, S21, S22.
    """
    forms = [*SHELL_FORMS, " && ".join(["true"] * 51 + ["touch {out}"])]
    outside = tmp_path.resolve() / "outside"
    inside = shell.root / "inside"
    worked_inside = 0
    for form in forms:
        await shell(form.format(out=outside))
        assert not outside.exists(), form
        await shell(form.format(out=inside))
        worked_inside += inside.exists()
        inside.unlink(missing_ok=True)
        (shell.root / "l").unlink(missing_ok=True)
    assert worked_inside > len(forms) * 3 // 4


async def test_a_sandboxed_command_cannot_remove_or_create_ipc_objects_of_the_machine(shell: ShellFixture):
    """A message queue has no file: at level landlock only the system calls can be refused."""
    libc = ctypes.CDLL(None, use_errno=True)
    key = 0x52000000 + os.getpid()
    queue = libc.msgget(key, 0o1000 | 0o600)
    assert queue >= 0
    before = Path("/proc/sysvipc/msg").read_text().splitlines()
    try:
        result = await shell(f"ipcrm -Q {key}; ipcrm -q {queue}; ipcmk -Q")
        after = Path("/proc/sysvipc/msg").read_text().splitlines()
    finally:
        libc.msgctl(queue, 0, None)
    is_there = any(line.split()[0] == str(key) for line in after)
    assert is_there is (shell.level is not SandboxLevel.NONE), result.output
    if shell.level is SandboxLevel.NONE:
        for line in set(after) - set(before):
            libc.msgctl(int(line.split()[1]), 0, None)
    else:
        assert after == before, result.output


HOLD_MEMORY = """
    for i in 1 2 3 4 5 6; do
        ( ( head -c 900000000 /dev/zero; touch done$i; read go <gate ) | tail -c 900000000 | wc -c ) &
    done
    until [ "$(echo done?)" = "done1 done2 done3 done4 done5 done6" ]; do :; done
    exec 3<>gate
    for i in 1 2 3 4 5 6; do echo >&3; done
    wait
"""
"""Six processes that each hold 900 MB at the same time, and then print how much they had."""


async def test_the_memory_of_all_processes_of_a_sandboxed_command_is_limited_together(shell: ShellFixture):
    if shell.level is SandboxLevel.NONE:
        return
    findings = sandbox_findings(shell.level, (), SandboxLevel.NONE)
    is_limited = cgroup.can_limit_memory()
    assert (
        any("memory of a command: at most 4 GB in total" in each.message for each in findings) is is_limited
    )
    assert any("for each of its processes" in each.message for each in findings) is not is_limited
    if is_limited:
        os.mkfifo(shell.root / "gate")
        result = await shell(HOLD_MEMORY, seconds=100)
        sizes = [int(line) for line in result.output.split() if line.isdecimal()]
        assert len(sizes) == 6, result.output
        assert 0 < sizes.count(900_000_000) < 5, result.output
