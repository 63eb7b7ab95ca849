"""What tests start from a warm process is what a shell would start: it cannot tell, and neither can they."""

import asyncio
import gc
import os
import pty
import signal
import subprocess
import sys
from asyncio.subprocess import Process
from pathlib import Path

import pytest
from commands import RETINUE, STARTER, WarmProcess, run_process, start_process

PROGRAMS = {
    "its words": "import sys; print(sys.argv, sys.orig_argv[1:], sys.path, sys.flags, sys.executable)",
    "its streams": "import sys; print(sys.stdin, sys.stdout, sys.stderr, sys.stdin.read(), sys.stdout.line_buffering)",
    "its environment": "import os, time; print(sorted(os.environ.items()), os.getcwd(), time.tzname)",
    "its open files": "import os; print(sorted(os.listdir('/proc/self/fd')))",
    "its place": "import os; print(os.getppid(), os.getpgid(0), os.getsid(0), os.umask(0o77), os.nice(0))",
    "its limits": "print(open('/proc/self/limits').read())",
    "its signals": "import signal; print([signal.getsignal(each) for each in range(1, 32)], signal.pthread_sigmask(0, []))",
    "its threads": "import os; print(len(os.listdir('/proc/self/task')))",
    "its name": "print(__name__, __file__ if '__file__' in vars() else None)",
    "a module of its own": "import own; print(own.__file__)",
    "a code": "raise SystemExit(7)",
    "a code that is too large": "raise SystemExit(300)",
    "a word": "raise SystemExit('no')",
    "a fault": "def f(): raise ValueError(1)\nf()",
    "an interrupt": "import os, signal; os.kill(os.getpid(), signal.SIGINT)",
    "a signal": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "a signal of another thread's": "import signal, threading\nmain = threading.main_thread().ident\n"
    "threading.Thread(target=signal.pthread_kill, args=(main, 15)).start()\nsignal.pause()",
    "an abort": "import os; os.abort()",
    "last words": "import atexit, threading; atexit.register(print, 'last')\n"
    "def late(): threading.main_thread().join(); print('late')\nthreading.Thread(target=late).start(); print('first')",
    "a stream that was closed": "import os, sys; sys.stdout.write('x'); os.close(1)",
}


@pytest.mark.parametrize("what", PROGRAMS)
def test_a_program_finds_and_leaves_what_it_would_find_and_leave_elsewhere(
    isolated_env: dict[str, str], tmp_path: Path, what: str
):
    (tmp_path / "own.py").touch()
    env = isolated_env | {"PYTHONPATH": f"{tmp_path}:{tmp_path}/more", "TZ": "Asia/Tokyo", "ODD": "\udcff"}
    assert STARTER.can_start(env)
    words = ["-c", PROGRAMS[what], "one", "ü"]
    warm = run_process(words, stdin=b"in", env=env, cwd=tmp_path, timeout=60)
    cold = subprocess.run(
        [sys.executable, *words], input=b"in", capture_output=True, env=env, cwd=tmp_path, check=False
    )
    assert (warm.returncode, warm.stdout, warm.stderr) == (cold.returncode, cold.stdout, cold.stderr)


def test_no_two_draw_the_same_numbers(isolated_env: dict[str, str]):
    words = ["-c", "import random; print(random.random())"]
    drawn = [run_process(words, env=isolated_env, timeout=60).stdout for _ in range(2)]
    assert drawn[0] != drawn[1]


def test_a_terminal_is_its_own(isolated_env: dict[str, str]):
    ours, theirs = pty.openpty()
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), theirs)
    # Whoever runs all this in the background may have it ignore Ctrl-C, which is inherited.
    heeds = "import os, signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    shows = "print(os.getsid(0) == os.getpid(), os.ttyname(0) == os.ttyname(2)); os.read(0, 1)"
    words = ["-c", f"{heeds}; {shows}"]
    with WarmProcess(words, terminal=True, env=isolated_env, **streams) as process:
        os.close(theirs)
        assert os.read(ours, 100) == b"True True\r\n"
        os.write(ours, b"\x03")
        assert process.wait(60) == -signal.SIGINT
    os.close(ours)


async def test_a_kill_reaches_the_process_itself(isolated_env: dict[str, str]):
    process = await start_process(
        ["-c", "print(1, flush=True); input()"], stdin=-1, stdout=-1, env=isolated_env
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"1\n"
    process.kill()
    await process.communicate()
    assert process.returncode == -signal.SIGKILL


def test_what_is_left_of_a_command_ends_with_the_loop(isolated_env: dict[str, str]):
    async def leaves() -> Process:
        return await start_process(["-c", "input()"], stdin=-1, stdout=-1, env=isolated_env)

    assert asyncio.run(leaves()).returncode == -signal.SIGKILL
    gc.collect()  # whatever is not closed would be complained of here


def test_an_interpreter_with_other_settings_is_started_anew(isolated_env: dict[str, str]):
    env = isolated_env | {"PYTHONUTF8": "0", "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}
    assert (
        run_process(["-c", "import sys; print(sys.stdout.encoding)"], env=env, timeout=60).stdout
        == b"ascii\n"
    )
    assert run_process([*RETINUE, "--version"], env=env, timeout=60).stdout.startswith(b"retinue ")
