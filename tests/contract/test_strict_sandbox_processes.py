"""Processes in the strict sandbox: what they inherit, their resource limits, and that none survives the command."""

import asyncio
import fcntl
import json
import os
import platform
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from strict_sandbox import RunInSandbox

from retinue.domain.permissions.scope import Scope
from retinue.sandbox import cgroup, devices, process
from retinue.sandbox.bubblewrap import COMMAND_ENVIRONMENT, bubblewrap_command, find_bwrap
from retinue.sandbox.file_snapshot import clean_up_killed_commands

SYS_EXIT = {"x86_64": 60, "aarch64": 93}
"""The call that ends only the thread that makes it."""

HOLD_LOCK = """
import fcntl, os, signal, sys
lock = open("lock", "w")
fcntl.flock(lock, fcntl.LOCK_EX)
"""


def test_a_command_gets_only_the_fixed_environment(
    scope: Scope, run_in_sandbox: RunInSandbox, monkeypatch: pytest.MonkeyPatch
):
    """Shows: S02, S24."""
    injected = {
        "OPENAI_API_KEY": "sk-SECRET", "LD_PRELOAD": "/tmp/SECRET.so", "BASH_ENV": "/tmp/SECRET", "ENV": "/tmp/SECRET",
        "GIT_SSH_COMMAND": "SECRET", "PYTHONSTARTUP": "SECRET", "NODE_OPTIONS": "SECRET", "PATH": "/SECRET",
    }  # fmt: skip
    for name, value in injected.items():
        monkeypatch.setenv(name, value)
    result = run_in_sandbox(scope, "env; cat /proc/[0-9]*/environ | tr '\\0' '\\n'")
    assert "SECRET" not in result.output
    set_by_shell = {"PWD", "OLDPWD", "SHLVL", "_"}
    variables = dict(line.split("=", 1) for line in result.output.splitlines() if "=" in line)
    assert {
        name: value for name, value in variables.items() if name not in set_by_shell
    } == COMMAND_ENVIRONMENT


def test_a_command_inherits_only_the_three_standard_streams(
    scope: Scope, workspace: Path, run_in_sandbox: RunInSandbox
):
    """The descriptors that set up the sandbox are closed too.

    Shows: S26.
    """
    with (workspace.parent / "outside/secret").open() as secret:
        os.set_inheritable(secret.fileno(), True)
        result = run_in_sandbox(
            scope,
            "import os\nfor pid in ('self', '1'):\n"
            "    print(sorted(os.readlink(f'/proc/{pid}/fd/{n}').split(':')[0] for n in os.listdir(f'/proc/{pid}/fd')"
            " if os.path.lexists(f'/proc/{pid}/fd/{n}')))",
            python=True,
        )
    assert str(workspace.parent) not in result.output
    assert "memfd" not in result.output
    command_fds, init_fds = result.output.splitlines()
    assert "pipe" in command_fds
    assert "pipe" in init_fds


def test_a_command_is_not_run_when_it_would_inherit_an_open_folder(scope: Scope):
    """The command could leave the sandbox through an open folder.

    Shows: S26.
    """
    sandboxed = bubblewrap_command(scope, "echo ran", bwrap=str(find_bwrap()))
    leak = os.open("/", os.O_PATH | os.O_DIRECTORY)
    process = subprocess.run(
        sandboxed.argv, env={}, pass_fds=(*sandboxed.fds, leak), capture_output=True, text=True, check=False
    )
    for fd in (*sandboxed.fds, leak):
        os.close(fd)
    sandboxed.clean_up()
    assert (process.returncode, process.stdout) == (126, "")
    assert "cannot be used" in process.stderr


def test_a_command_runs_as_an_unprivileged_user_without_capabilities(
    scope: Scope, run_in_sandbox: RunInSandbox
):
    """This holds for every user who runs Retinue, including root.

    Shows: S18.
    """
    result = run_in_sandbox(
        scope,
        "id -u; grep -E 'Cap(Eff|Prm|Bnd|Amb)|NoNewPrivs|^Seccomp:' /proc/self/status; hostname; whoami",
    )
    uid, *lines, host, user = result.output.split("\n")[:-1]
    assert (uid, host, user) == ("1000", "cell", "agent")
    assert [line.split()[1] for line in lines] == ["0" * 16] * 4 + ["1", "2"]


def test_a_command_sees_and_signals_only_its_own_processes(scope: Scope, run_in_sandbox: RunInSandbox):
    outside = subprocess.Popen(["sleep", "1000"])
    try:
        result = run_in_sandbox(
            scope, f"ls /proc | grep -c '^[0-9]'; kill -9 {outside.pid}; kill -9 -1; true"
        )
        assert int(result.output.splitlines()[0]) < 10
        assert outside.poll() is None
    finally:
        outside.kill()
        outside.wait()


def test_a_command_has_empty_standard_input_and_no_terminal(scope: Scope, run_in_sandbox: RunInSandbox):
    """Shows: K09."""
    result = run_in_sandbox(
        scope, "cat; wc -c; (: < /dev/tty) 2>&1; ps -o tty= -p $$ 2>/dev/null || echo '?'; echo end"
    )
    assert result.output.startswith("0\n")
    assert "No such device or address" in result.output
    assert result.output.endswith("end\n")


def test_background_processes_of_a_command_end_with_it(
    scope: Scope, workspace: Path, run_in_sandbox: RunInSandbox
):
    """The process here has a session of its own, was forked twice and ignores signals.

    Shows: K04.
    """
    result = run_in_sandbox(
        scope,
        HOLD_LOCK
        + """
reading, writing = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        for fd in (0, 1, 2):
            os.close(fd)
        os.write(writing, b"x")
        signal.pause()
    os._exit(0)
os.read(reading, 1)
os._exit(0)
""",
        python=True,
    )
    assert result.exit_code == 0
    with (workspace / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # returns when the last process that holds the lock has ended


def test_no_process_survives_the_answer():
    """Each of these commands tries to leave one behind; most are ended while their sandbox is being built.

    `scripts/process_stress` does it thousands of times.

    Shows: K04.
    """
    stress = Path(__file__).resolve().parents[1] / "battery/process_stress.py"
    ended = subprocess.run(
        [sys.executable, "-B", stress, "--count", "60"], capture_output=True, text=True, check=False
    )
    report = json.loads(ended.stdout)
    assert report["survivors"] == []
    assert report["commands"] == 60


async def test_no_process_survives_a_launcher_that_is_killed_from_outside(scope: Scope, workspace: Path):
    """The answer comes when the kernel has ended the whole namespace."""
    command = (
        f"{os.path.realpath(sys.executable)} -I -c '{HOLD_LOCK}\nfor _ in range(60): os.fork() or signal.pause()\n"
        'open("begun", "w").close()\nsignal.pause()\''
    )
    running = asyncio.ensure_future(
        process.run_command(bubblewrap_command(scope, command, bwrap=str(find_bwrap())), 60.0)
    )
    while not (workspace / "begun").exists():  # noqa: ASYNC110  (another process creates it)
        await asyncio.sleep(0.01)
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    launcher = next(
        pid for pid in children if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"/usr/bin/bwrap")
    )
    os.kill(int(launcher), signal.SIGKILL)
    result = await running
    assert result.killed
    with (workspace / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_command_dies_with_the_process_that_started_it(scope: Scope, workspace: Path):
    """Shows: K03."""
    bwrap = find_bwrap()
    assert bwrap is not None
    command = (
        f"exec {os.path.realpath(sys.executable)} -I -c '{HOLD_LOCK}\nprint(1, flush=True)\nsignal.pause()'"
    )
    sandboxed = bubblewrap_command(scope, command, bwrap=bwrap)
    argv = repr([*sandboxed.argv])
    starter = subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"import subprocess\nsubprocess.run({argv}, env={{}}, pass_fds={sandboxed.fds!r})",
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        pass_fds=sandboxed.fds,
    )
    for fd in sandboxed.fds:
        os.close(fd)
    os.write(sandboxed.go_fd, b"\n")
    assert starter.stdout is not None
    assert starter.stdout.readline() == b"1\n"
    starter.send_signal(signal.SIGKILL)
    starter.wait()
    with (workspace / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
    starter.stdout.close()
    sandboxed.clean_up()


@pytest.mark.parametrize(("is_killed", "output"), [(True, ""), (False, "ran\n")])
def test_a_command_does_not_begin_after_the_process_that_started_it_has_died(is_killed: bool, output: str):
    """That process may die while the sandbox is being built, before the sandbox is bound to its life."""
    program = f"""
import os, signal, time
from retinue.domain.permissions.scope import Scope
from retinue.sandbox.bubblewrap import bubblewrap_command, find_bwrap
command = bubblewrap_command(Scope(root='/'), 'echo ran', bwrap=find_bwrap())
starter = os.getpid()
if os.fork() == 0:
    while {is_killed} and os.getppid() == starter:
        time.sleep(0.01)
    for fd in command.fds:
        os.set_inheritable(fd, True)
    os.execve(command.argv[0], command.argv, {{}})
if {is_killed}:
    os.kill(starter, signal.SIGKILL)
os.write(command.go_fd, b'x\\n')
os.wait()
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ended.stdout == output
    if not is_killed:  # otherwise bubblewrap may find that the devices of the dead process are gone
        assert ended.stderr == ""


def test_a_command_does_not_begin_when_only_the_thread_that_started_it_has_died(workspace: Path):
    """When a process is killed, its other threads hold its pipes open until they are gone too.

    Here the main thread starts the sandbox and ends at once: the kernel ends nothing together with it. The other
    thread ends the process when the sandbox is complete.
    """
    program = f"""
import ctypes, os, select, subprocess, threading
from retinue.domain.permissions.scope import Scope
from retinue.sandbox.bubblewrap import bubblewrap_command, find_bwrap
tree = ('{workspace}/**',)
command = bubblewrap_command(Scope(root='{workspace}', read=tree, write=tree), 'echo > ran', bwrap=find_bwrap())
is_started = threading.Event()
def end_when_complete():
    is_started.wait()
    for fd in command.fds:
        os.close(fd)
    os.write(1, os.read(command.ready_fd, 1))
    os._exit(0)
threading.Thread(target=end_when_complete).start()
subprocess.Popen(command.argv, env={{}}, pass_fds=command.fds, stderr=1)
is_started.set()
ctypes.CDLL(None).syscall({SYS_EXIT[platform.machine()]}, 0)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (ended.stdout, ended.stderr) == ("\n", "")
    assert not (workspace / "ran").exists()


def test_a_sandbox_that_was_never_completed_is_ended_by_the_next_process(scope: Scope, tmp_path: Path):
    """Bubblewrap's second process waits forever when its first one is killed too early."""
    records = tmp_path / "records"
    program = (
        "import os, subprocess, sys\nfrom pathlib import Path\n"
        "from retinue.domain.permissions.scope import Scope\n"
        "from retinue.sandbox.bubblewrap import bubblewrap_command, find_bwrap\n"
        f"command = bubblewrap_command(Scope(root='/'), 'true', bwrap=find_bwrap(), records_folder={str(records)!r})\n"
        "waiting = subprocess.Popen(['/bin/sh', '-c', 'sleep 1000; :', '--json-status-fd', *command.argv], stdout=subprocess.DEVNULL)\n"
        "print(waiting.pid, flush=True)\nos.kill(os.getpid(), 9)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=False)
    pidfd = os.pidfd_open(int(ended.stdout))
    try:
        clean_up_killed_commands(str(records))
        assert select.select([pidfd], [], [], 30.0)[0] == [pidfd]
    finally:
        os.close(pidfd)
    assert list(records.iterdir()) == []


def test_orphaned_processes_are_reaped_inside_the_sandbox(scope: Scope, run_in_sandbox: RunInSandbox):
    """Shows: K05."""
    result = run_in_sandbox(
        scope,
        "for i in $(seq 200); do (true & ) ; done; wait\n"
        "until ! grep -qs '^State:.Z' /proc/[0-9]*/status; do :; done; echo none",
    )
    assert result.output == "none\n"


def test_a_fork_bomb_reaches_the_process_limit(scope: Scope, run_in_sandbox: RunInSandbox):
    """For root the limit is enforced by a control group, on machines that have them.

    Shows: K06.
    """
    result = run_in_sandbox(
        scope,
        """
import os, signal
count = 0
try:
    while count < 2000:
        if os.fork() == 0:
            signal.pause()
        count += 1
except BlockingIOError:
    pass
print(count)
os.kill(-1, signal.SIGKILL)
""",
        python=True,
    )
    is_limited = os.geteuid() != 0 or can_create_groups()
    assert (int(result.output) < cgroup.MAX_PROCESSES) is is_limited


def test_memory_file_size_and_shared_memory_are_limited(
    scope: Scope, workspace: Path, run_in_sandbox: RunInSandbox
):
    """Shows: K07."""
    result = run_in_sandbox(
        scope,
        """
import errno, os, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
def outcome_of(function):
    try:
        function()
    except OSError as error:
        return errno.errorcode[error.errno]
    except MemoryError:
        return "no memory"
    return "ok"
def fill_shared_memory():
    with open("/dev/shm/x", "wb") as file:
        for _ in range(100):
            file.write(bytes(1_000_000))
def make_large_file():
    with open("big", "wb") as file:
        file.truncate(2_000_000_000)
print(outcome_of(lambda: bytearray(5_000_000_000)), outcome_of(make_large_file), outcome_of(fill_shared_memory), sep="\\n")
import resource
print(resource.getrlimit(resource.RLIMIT_CORE))
""",
        python=True,
    )
    assert result.output.splitlines() == ["no memory", "EFBIG", "ENOSPC", "(0, 0)"]
    assert (workspace / "big").stat().st_size == 0


def test_a_command_reaches_the_shell_unchanged_as_one_argument(
    scope: Scope, workspace: Path, run_in_sandbox: RunInSandbox
):
    result = run_in_sandbox(scope, "printf '%s|' \"$0\" 'a  b' $'c\\nd' --; echo \"${#}\"; # 'unclosed")
    assert result.output == "/bin/bash|a  b|c\nd|--|0\n" or result.output.startswith("/bin/sh|")
    assert run_in_sandbox(scope, "exit 37").exit_code == 37
    assert run_in_sandbox(scope, "--help").exit_code == 127


def control_groups(pid: int) -> list[Path]:
    return sorted(Path("/sys/fs/cgroup").rglob(f"retinue-{pid}-*"))


async def test_no_control_group_remains_after_a_command(scope: Scope):
    before = set(control_groups(os.getpid()))
    for command, seconds in (("true", 60.0), ("setsid sleep 100 & sleep 100", 0.2)):
        await process.run_command(bubblewrap_command(scope, command, bwrap=str(find_bwrap())), seconds)
    assert set(control_groups(os.getpid())) == before


def test_control_groups_are_removed_only_when_their_creator_has_ended(scope: Scope, workspace: Path):
    """The next process that finds the record removes them. A process that reuses the pid is not their creator."""
    records = workspace.parent / "cells"
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        sandboxed = bubblewrap_command(scope, "true", bwrap=str(find_bwrap()), records_folder=str(records))
        os.write(writing, b"." if sandboxed.argv else b"")
        signal.pause()
    os.read(reading, 1)
    created = control_groups(pid)
    assert bool(created) is can_create_groups()
    cgroup.remove_stale_groups()
    assert control_groups(pid) == created
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    clean_up_killed_commands(str(records))
    assert control_groups(pid) == []
    if created:
        reused = created[0].with_name(f"retinue-{os.getpid()}-1-{created[0].name[-8:]}")
        reused.mkdir()
        cgroup.remove_stale_groups()
        assert not reused.exists()


def test_control_groups_are_created_where_they_may_be_and_below_the_limits_of_this_process(tmp_path: Path):
    v1 = "5:memory:/box/one\n4:pids:/\n1:name=systemd:/\n0::/\n"
    assert cgroup.candidate_parents(tmp_path, v1) == [
        [tmp_path / "memory" / "box/one", tmp_path / "memory"], [tmp_path / "pids", tmp_path / "pids"],
    ]  # fmt: skip
    (tmp_path / "cgroup.controllers").write_text("memory pids")
    service = tmp_path / "user.slice/user-1000.slice/user@1000.service/app.slice"
    own = f"0::/{service.relative_to(tmp_path)}/retinue.service\n"
    assert cgroup.candidate_parents(tmp_path, own) == [[service, tmp_path]]
    assert cgroup.candidate_parents(tmp_path, "0::/\n") == [[tmp_path]]


def can_create_groups() -> bool:
    groups = cgroup.create_groups()
    cgroup.remove_groups(groups)
    return bool(groups)


def test_device_nodes_are_removed_with_the_last_command_that_uses_them(tmp_path: Path):
    """Only root gets private device nodes: an ordinary user cannot change those of the machine."""
    folder = tmp_path / "devices"
    first, second = devices.acquire_devices(str(folder)), devices.acquire_devices(str(folder))
    is_root = os.geteuid() == 0
    assert sorted(first.paths) == sorted(devices.DEVICE_NAMES if is_root else ())
    first.release()
    assert all(Path(path).is_char_device() for path in second.paths.values())
    assert folder.exists() is is_root
    second.release()
    assert not folder.exists()
    third = devices.acquire_devices(str(folder))
    assert third.paths == first.paths
    third.release()
