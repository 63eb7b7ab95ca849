"""A process that tests fork from a warm interpreter behaves like one started by a shell."""

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
    "arguments": "import sys; print(sys.argv, sys.orig_argv[1:], sys.path, sys.flags, sys.executable)",
    "streams": "import sys; print(sys.stdin, sys.stdout, sys.stderr, sys.stdin.read(), sys.stdout.line_buffering)",
    "environment": "import os, time; print(sorted(os.environ.items()), os.getcwd(), time.tzname)",
    "open files": "import os; print(sorted(os.listdir('/proc/self/fd')))",
    "process group": "import os; print(os.getppid(), os.getpgid(0), os.getsid(0), os.umask(0o77), os.nice(0))",
    "limits": "print(open('/proc/self/limits').read())",
    "signals": "import signal; print([signal.getsignal(each) for each in range(1, 32)], signal.pthread_sigmask(0, []))",
    "threads": "import os; print(len(os.listdir('/proc/self/task')))",
    "module name": "print(__name__, __file__ if '__file__' in vars() else None)",
    "own module": "import own; print(own.__file__)",
    "exit code": "raise SystemExit(7)",
    "too large exit code": "raise SystemExit(300)",
    "exit message": "raise SystemExit('no')",
    "exception": "def f(): raise ValueError(1)\nf()",
    "an interrupt": "import os, signal; os.kill(os.getpid(), signal.SIGINT)",
    "a signal": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "a signal of another thread": "import signal, threading\nmain = threading.main_thread().ident\n"
    "threading.Thread(target=signal.pthread_kill, args=(main, 15)).start()\nsignal.pause()",
    "an abort": "import os; os.abort()",
    "output at exit": "import atexit, threading; atexit.register(print, 'last')\n"
    "def late(): threading.main_thread().join(); print('late')\nthreading.Thread(target=late).start(); print('first')",
    "closed stream": "import os, sys; sys.stdout.write('x'); os.close(1)",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_behaves_the_same_in_a_warm_and_a_cold_start(
    isolated_env: dict[str, str], tmp_path: Path, name: str
):
    (tmp_path / "own.py").touch()
    env = isolated_env | {"PYTHONPATH": f"{tmp_path}:{tmp_path}/more", "TZ": "Asia/Tokyo", "ODD": "\udcff"}
    assert STARTER.can_start(env)
    arguments = ["-c", PROGRAMS[name], "one", "ü"]
    warm = run_process(arguments, stdin=b"in", env=env, cwd=tmp_path, timeout=60)
    cold = subprocess.run(
        [sys.executable, *arguments], input=b"in", capture_output=True, env=env, cwd=tmp_path, check=False
    )
    assert (warm.returncode, warm.stdout, warm.stderr) == (cold.returncode, cold.stdout, cold.stderr)


def test_two_warm_processes_draw_different_random_numbers(isolated_env: dict[str, str]):
    arguments = ["-c", "import random; print(random.random())"]
    outputs = [run_process(arguments, env=isolated_env, timeout=60).stdout for _ in range(2)]
    assert outputs[0] != outputs[1]


def test_a_warm_process_has_its_own_controlling_terminal(isolated_env: dict[str, str]):
    controller, terminal = pty.openpty()
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), terminal)
    # A background job of a shell ignores Ctrl-C, and its children inherit that.
    enable_ctrl_c = "import os, signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    print_checks = "print(os.getsid(0) == os.getpid(), os.ttyname(0) == os.ttyname(2)); os.read(0, 1)"
    arguments = ["-c", f"{enable_ctrl_c}; {print_checks}"]
    with WarmProcess(arguments, terminal=True, env=isolated_env, **streams) as process:
        os.close(terminal)
        assert os.read(controller, 100) == b"True True\r\n"
        os.write(controller, b"\x03")
        assert process.wait(60) == -signal.SIGINT
    os.close(controller)


async def test_a_kill_reaches_the_process_itself(isolated_env: dict[str, str]):
    process = await start_process(
        ["-c", "print(1, flush=True); input()"], stdin=-1, stdout=-1, env=isolated_env
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"1\n"
    process.kill()
    await process.communicate()
    assert process.returncode == -signal.SIGKILL


def test_an_abandoned_process_is_killed_when_the_event_loop_ends(isolated_env: dict[str, str]):
    async def start_and_abandon() -> Process:
        return await start_process(["-c", "input()"], stdin=-1, stdout=-1, env=isolated_env)

    assert asyncio.run(start_and_abandon()).returncode == -signal.SIGKILL
    gc.collect()  # warns about what was not closed


def test_other_interpreter_settings_need_a_cold_start(isolated_env: dict[str, str]):
    env = isolated_env | {"PYTHONUTF8": "0", "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}
    assert (
        run_process(["-c", "import sys; print(sys.stdout.encoding)"], env=env, timeout=60).stdout
        == b"ascii\n"
    )
    assert run_process([*RETINUE, "--version"], env=env, timeout=60).stdout.startswith(b"retinue ")
