"""The strict cell's processes: what they inherit, what they may use up, and that none of them stays."""

import fcntl
import os
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

HOLD = """
import fcntl, os, signal, sys
lock = open("lock", "w")
fcntl.flock(lock, fcntl.LOCK_EX)
"""


def test_a_command_has_a_small_environment_and_no_other(
    scope: Scope, run_in_sandbox: RunInSandbox, monkeypatch: pytest.MonkeyPatch
):
    """Shows: S02, S24."""
    injected = {
        "OPENAI_API_KEY": "sk-SECRET", "LD_PRELOAD": "/tmp/SECRET.so", "BASH_ENV": "/tmp/SECRET", "ENV": "/tmp/SECRET",
        "GIT_SSH_COMMAND": "SECRET", "PYTHONSTARTUP": "SECRET", "NODE_OPTIONS": "SECRET", "PATH": "/SECRET",
    }  # fmt: skip
    for name, value in injected.items():
        monkeypatch.setenv(name, value)
    came = run_in_sandbox(scope, "env; cat /proc/[0-9]*/environ | tr '\\0' '\\n'")
    assert "SECRET" not in came.text
    own = {"PWD", "OLDPWD", "SHLVL", "_"}
    said = dict(line.split("=", 1) for line in came.text.splitlines() if "=" in line)
    assert {name: value for name, value in said.items() if name not in own} == COMMAND_ENVIRONMENT


def test_nothing_open_is_inherited_but_the_three_streams(
    scope: Scope, workspace: Path, run_in_sandbox: RunInSandbox
):
    """Not even what the cell was built with.

    Shows: S26.
    """
    with (workspace.parent / "outside/secret").open() as secret:
        os.set_inheritable(secret.fileno(), True)
        came = run_in_sandbox(
            scope,
            "import os\nfor pid in ('self', '1'):\n"
            "    print(sorted(os.readlink(f'/proc/{pid}/fd/{n}').split(':')[0] for n in os.listdir(f'/proc/{pid}/fd')"
            " if os.path.lexists(f'/proc/{pid}/fd/{n}')))",
            python=True,
        )
    assert str(workspace.parent) not in came.text
    assert "memfd" not in came.text
    own, first = came.text.splitlines()
    assert "pipe" in own
    assert "pipe" in first


def test_a_folder_that_is_open_by_mistake_keeps_the_command_from_running(scope: Scope):
    """Through it the command could walk out.

    Shows: S26.
    """
    cell = bubblewrap_command(scope, "echo ran", bwrap=str(find_bwrap()))
    leak = os.open("/", os.O_PATH | os.O_DIRECTORY)
    done = subprocess.run(
        cell.argv, env={}, pass_fds=(*cell.fds, leak), capture_output=True, text=True, check=False
    )
    for fd in (*cell.fds, leak):
        os.close(fd)
    cell.clean_up()
    assert (done.returncode, done.stdout) == (126, "")
    assert "cannot be used" in done.stderr


def test_a_command_is_nobody_and_can_become_no_one_else(scope: Scope, run_in_sandbox: RunInSandbox):
    """Whoever runs Retinue, root included.

    Shows: S18.
    """
    came = run_in_sandbox(
        scope,
        "id -u; grep -E 'Cap(Eff|Prm|Bnd|Amb)|NoNewPrivs|^Seccomp:' /proc/self/status; hostname; whoami",
    )
    uid, *lines, host, who = came.text.split("\n")[:-1]
    assert (uid, host, who) == ("1000", "cell", "agent")
    assert [line.split()[1] for line in lines] == ["0" * 16] * 4 + ["1", "2"]


def test_only_its_own_processes_are_seen_and_can_be_ended(scope: Scope, run_in_sandbox: RunInSandbox):
    outside = subprocess.Popen(["sleep", "1000"])
    try:
        came = run_in_sandbox(scope, f"ls /proc | grep -c '^[0-9]'; kill -9 {outside.pid}; kill -9 -1; true")
        assert int(came.text.splitlines()[0]) < 10
        assert outside.poll() is None
    finally:
        outside.kill()
        outside.wait()


def test_it_reads_nothing_and_has_no_terminal(scope: Scope, run_in_sandbox: RunInSandbox):
    """Shows: K09."""
    came = run_in_sandbox(
        scope, "cat; wc -c; (: < /dev/tty) 2>&1; ps -o tty= -p $$ 2>/dev/null || echo '?'; echo end"
    )
    assert came.text.startswith("0\n")
    assert "No such device or address" in came.text
    assert came.text.endswith("end\n")


def test_what_a_command_leaves_in_the_background_ends_with_it(
    scope: Scope, workspace: Path, run_in_sandbox: RunInSandbox
):
    """Also in a session of its own, twice forked, deaf to signals.

    Shows: K04.
    """
    came = run_in_sandbox(
        scope,
        HOLD
        + """
ready, said = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for each in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(each, signal.SIG_IGN)
        for fd in (0, 1, 2):
            os.close(fd)
        os.write(said, b"x")
        signal.pause()
    os._exit(0)
os.read(ready, 1)
os._exit(0)
""",
        python=True,
    )
    assert came.exit == 0
    with (workspace / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # waits for the last holder's end; the test's own limit is the guard


def test_a_command_dies_with_the_process_that_started_it(scope: Scope, workspace: Path):
    """Shows: K03."""
    bwrap = find_bwrap()
    assert bwrap is not None
    command = f"exec {os.path.realpath(sys.executable)} -I -c '{HOLD}\nprint(1, flush=True)\nsignal.pause()'"
    cell = bubblewrap_command(scope, command, bwrap=bwrap)
    argv = repr([*cell.argv])
    starter = subprocess.Popen(
        [sys.executable, "-c", f"import subprocess\nsubprocess.run({argv}, env={{}}, pass_fds={cell.fds!r})"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        pass_fds=cell.fds,
    )
    for fd in cell.fds:
        os.close(fd)
    assert starter.stdout is not None
    assert starter.stdout.readline() == b"1\n"
    starter.send_signal(signal.SIGKILL)
    starter.wait()
    with (workspace / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
    starter.stdout.close()
    cell.clean_up()


def test_orphans_are_reaped_inside(scope: Scope, run_in_sandbox: RunInSandbox):
    """Shows: K05."""
    came = run_in_sandbox(
        scope,
        "for i in $(seq 200); do (true & ) ; done; wait\n"
        "until ! grep -qs '^State:.Z' /proc/[0-9]*/status; do :; done; echo none",
    )
    assert came.text == "none\n"


def test_a_fork_bomb_meets_a_limit(scope: Scope, run_in_sandbox: RunInSandbox):
    """Root is bound by a group of processes, where the machine has them.

    Shows: K06.
    """
    came = run_in_sandbox(
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
    group = cgroup.create_group()
    cgroup.remove_group(group)
    bound = os.geteuid() != 0 or bool(group)
    assert (int(came.text) < cgroup.MAX_PROCESSES) is bound


def test_memory_files_and_passing_room_have_an_end(
    scope: Scope, workspace: Path, run_in_sandbox: RunInSandbox
):
    """Shows: K07."""
    came = run_in_sandbox(
        scope,
        """
import errno, os, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
def tried(do):
    try:
        do()
    except OSError as error:
        return errno.errorcode[error.errno]
    except MemoryError:
        return "no memory"
    return "ok"
def filled():
    with open("/dev/shm/x", "wb") as file:
        for _ in range(100):
            file.write(bytes(1_000_000))
def grown():
    with open("big", "wb") as file:
        file.truncate(2_000_000_000)
print(tried(lambda: bytearray(5_000_000_000)), tried(grown), tried(filled), sep="\\n")
import resource
print(resource.getrlimit(resource.RLIMIT_CORE))
""",
        python=True,
    )
    assert came.text.splitlines() == ["no memory", "EFBIG", "ENOSPC", "(0, 0)"]
    assert (workspace / "big").stat().st_size == 0


def test_the_command_is_one_word_however_it_is_written(
    scope: Scope, workspace: Path, run_in_sandbox: RunInSandbox
):
    came = run_in_sandbox(scope, "printf '%s|' \"$0\" 'a  b' $'c\\nd' --; echo \"${#}\"; # 'unclosed")
    assert came.text == "/bin/bash|a  b|c\nd|--|0\n" or came.text.startswith("/bin/sh|")
    assert run_in_sandbox(scope, "exit 37").exit == 37
    assert run_in_sandbox(scope, "--help").exit == 127


def groups(pid: int) -> list[Path]:
    return [
        *Path("/sys/fs/cgroup").glob(f"retinue-{pid}-*"),
        *Path("/sys/fs/cgroup/pids").glob(f"retinue-{pid}-*"),
    ]


async def test_no_group_of_processes_is_left_behind(scope: Scope):
    before = set(groups(os.getpid()))
    for command, seconds in (("true", 60.0), ("setsid sleep 100 & sleep 100", 0.2)):
        await process.run_command(bubblewrap_command(scope, command, bwrap=str(find_bwrap())), seconds)
    assert set(groups(os.getpid())) == before


def test_groups_go_when_their_maker_was_killed_and_stay_while_it_lives(scope: Scope, workspace: Path):
    """The next process that finds its record takes them away; a process that got the same number is not their maker."""
    records = workspace.parent / "cells"
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        cell = bubblewrap_command(scope, "true", bwrap=str(find_bwrap()), records_folder=str(records))
        os.write(writing, b"." if cell.argv else b"")
        signal.pause()
    os.read(reading, 1)
    made = groups(pid)
    assert bool(made) is bool(groups_can_be_made())
    cgroup.remove_stale_groups()
    assert groups(pid) == made
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    clean_up_killed_commands(str(records))
    assert groups(pid) == []
    if made:
        reborn = made[0].with_name(f"retinue-{os.getpid()}-1-{made[0].name[-8:]}")
        reborn.mkdir()
        cgroup.remove_stale_groups()
        assert not reborn.exists()


def groups_can_be_made() -> str:
    group = cgroup.create_group()
    cgroup.remove_group(group)
    return group


def test_devices_go_with_the_last_command_that_uses_them(tmp_path: Path):
    """An ordinary user is lent none: the machine's own are not theirs to change."""
    place = tmp_path / "lent"
    one, other = devices.acquire_devices(str(place)), devices.acquire_devices(str(place))
    root = os.geteuid() == 0
    assert sorted(one.paths) == sorted(devices.DEVICE_NAMES if root else ())
    one.release()
    assert all(Path(each).is_char_device() for each in other.paths.values())
    assert place.exists() is root
    other.release()
    assert not place.exists()
    again = devices.acquire_devices(str(place))
    assert again.paths == one.paths
    again.release()
