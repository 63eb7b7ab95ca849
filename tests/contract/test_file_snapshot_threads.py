"""Records of running commands, started by several threads at once in a fresh process."""

import subprocess
import sys
from pathlib import Path

from retinue.domain.permissions.scope import Scope
from retinue.sandbox import file_snapshot
from retinue.sandbox.cleanup import FileSnapshot
from retinue.sandbox.files.closed_path_scan import PathKind

START_RECORDS = """
import sys, threading, time
from retinue.domain.permissions.scope import Scope
from retinue.sandbox import file_snapshot
from retinue.sandbox.cleanup import FileSnapshot

def slow_down_enums(frame, event, arg):
    if frame.f_code.co_filename.endswith("enum.py"):
        time.sleep(0.02)

def start_record():
    file_snapshot.start_record(sys.argv[1], FileSnapshot(scope=Scope(), writable=(), closed_paths={}, links={}))
    print("started\\n", end="", flush=True)

threading.settrace(slow_down_enums)
threads = [threading.Thread(target=start_record) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""
"""Program whose threads sleep in enum code, so that they switch while classes are first initialised."""


def test_commands_that_start_together_in_a_fresh_process_do_not_crash_it(tmp_path: Path):
    snapshot = FileSnapshot(scope=Scope(), writable=(), closed_paths={"/nowhere": PathKind.FOLDER}, links={})
    record = file_snapshot.start_record(str(tmp_path), snapshot)
    process = subprocess.run(
        [sys.executable, "-c", START_RECORDS, str(tmp_path)], capture_output=True, text=True, check=False
    )
    record.clean_up()
    assert (process.returncode, process.stdout.split()) == (0, ["started"] * 4), process.stderr
