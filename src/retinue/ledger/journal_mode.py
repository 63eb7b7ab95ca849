"""Mount: what kind of disk a folder is on, and which journal is safe there.

The write-ahead log is read through memory that all processes share. Where another machine or another program stands
behind the files, what one process sees there is not what another has written, and a ledger would be torn.
"""

import os
from pathlib import Path

WAL = "wal"
DELETE = "delete"

_MOUNTS = Path("/proc/self/mountinfo")
_SHARED = frozenset(
    {
        "9p",
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "coda",
        "drvfs",
        "gfs2",
        "glusterfs",
        "gpfs",
        "lustre",
        "ncpfs",
        "nfs",
        "nfs4",
        "ocfs2",
        "orangefs",
        "panfs",
        "prl_fs",
        "pvfs2",
        "smb3",
        "smbfs",
        "vboxsf",
        "virtiofs",
        "vmhgfs",
    }
)


def is_shared(kind: str) -> bool:
    """Whether another machine, or a program of its own, may stand behind files of this kind."""
    return kind in _SHARED or kind.partition(".")[0] in ("fuse", "fuseblk")


def journal(kind: str) -> str:
    """How a ledger on such a disk keeps what it may have to take back."""
    return DELETE if is_shared(kind) else WAL


def kind_of(folder: Path, mounts: Path = _MOUNTS) -> str:
    """The kind of file system a folder is on, by the kernel's list of them; empty where there is no such list."""
    try:
        lines = mounts.read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return ""
    place, best, kind = os.path.realpath(folder), "", ""
    for line in lines:
        before, _, after = line.partition(" - ")
        point = _named(before.split(" ")[4]) if before.count(" ") >= 5 else ""  # noqa: PLR2004  (the fifth word)
        # Of two at the same place the later one lies over the other.
        if point and len(point) >= len(best) and _holds(point, place):
            best, kind = point, after.split(" ")[0]
    return kind


def _holds(point: str, place: str) -> bool:
    return point in ("/", place) or place.startswith(f"{point}/")


def _named(word: str) -> str:
    """Blanks and the like stand there as three octal digits."""
    for digits, letter in (("040", " "), ("011", "\t"), ("012", "\n"), ("134", "\\")):
        word = word.replace(f"\\{digits}", letter)
    return word
