"""Source code that the programs of crash tests begin with."""

from collections.abc import Collection

FILL_DISK = '''
import errno

def fill_disk(filler):
    """Fill the disk to its last byte by a file of this name."""
    with open(filler, "wb", buffering=0) as file:
        for piece in (65536, 4096, 1):
            try:
                while True:
                    file.write(bytes(piece))
            except OSError as error:
                assert error.errno == errno.ENOSPC
'''


def kill_at_step(events: Collection[str]) -> str:
    """Return code that kills the process at the audit event of these kinds that counts `steps_left` down to 0.

    Nothing is counted while `steps_left` is 0, as at the start.
    """
    return f"""
import os, signal, sys

steps_left = 0

def step(event, args):
    global steps_left
    if event in {tuple(events)!r} and steps_left:
        steps_left -= 1
        if not steps_left:
            os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(step)
"""
