"""Records of running commands are read by several threads at once, from the first moment on."""

import subprocess
import sys
from pathlib import Path

from retinue.domain.permissions.scope import Scope
from retinue.sandbox import file_snapshot
from retinue.sandbox.cleanup import FileSnapshot
from retinue.sandbox.files.closed_path_scan import PathKind

READ = """
import sys, threading, time
from retinue.domain.permissions.scope import Scope
from retinue.sandbox import file_snapshot
from retinue.sandbox.cleanup import FileSnapshot

def slowly(frame, event, arg):
    if frame.f_code.co_filename.endswith("enum.py"):
        time.sleep(0.02)

def begin():
    file_snapshot.start_record(sys.argv[1], FileSnapshot(scope=Scope(), writable=(), sight={}, links={}))
    print("begun\\n", end="", flush=True)

threading.settrace(slowly)
threads = [threading.Thread(target=begin) for _ in range(4)]
for each in threads:
    each.start()
for each in threads:
    each.join()
"""
"""A fresh process, whose threads give way to each other wherever the first look at a class takes them through Python."""


def test_commands_that_begin_together_in_a_fresh_process_do_not_crash_it(tmp_path: Path):
    before = FileSnapshot(scope=Scope(), writable=(), sight={"/nowhere": PathKind.FOLDER}, links={})
    other = file_snapshot.start_record(str(tmp_path), before)
    done = subprocess.run(
        [sys.executable, "-c", READ, str(tmp_path)], capture_output=True, text=True, check=False
    )
    other.clean_up()
    assert (done.returncode, done.stdout.split()) == (0, ["begun"] * 4), done.stderr
