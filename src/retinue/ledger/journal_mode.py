"""The file system type of a folder, and the SQLite journal mode that is safe on it.

The index of the write-ahead log is memory shared by all processes. On file systems backed by another machine
or another program, a process may not see there what another has written, and the ledger would be corrupted.
"""

import os
from pathlib import Path

WAL = "wal"
DELETE = "delete"

_MOUNTINFO = Path("/proc/self/mountinfo")
_SHARED_FILESYSTEMS = frozenset(
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


def is_shared_filesystem(filesystem_type: str) -> bool:
    """Return whether another machine or a user-space program may serve this file system."""
    return filesystem_type in _SHARED_FILESYSTEMS or filesystem_type.partition(".")[0] in ("fuse", "fuseblk")


def journal_mode_for(filesystem_type: str) -> str:
    """Return the SQLite journal mode for a file system type."""
    return DELETE if is_shared_filesystem(filesystem_type) else WAL


def detect_filesystem_type(folder: Path, mountinfo: Path = _MOUNTINFO) -> str:
    """Return the file system type of a folder from the kernel's mount list; "" without such a list."""
    try:
        lines = mountinfo.read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return ""
    real_path, best_mount, filesystem_type = os.path.realpath(folder), "", ""
    for line in lines:
        before, _, after = line.partition(" - ")
        mount_path = _unescape_mount_path(before.split(" ")[4]) if before.count(" ") >= 5 else ""  # noqa: PLR2004  (the mount point is the fifth field)
        # Of two mounts at the same path, the later one hides the earlier.
        if mount_path and len(mount_path) >= len(best_mount) and _contains_path(mount_path, real_path):
            best_mount, filesystem_type = mount_path, after.split(" ")[0]
    return filesystem_type


def _contains_path(mount_path: str, real_path: str) -> bool:
    return mount_path in ("/", real_path) or real_path.startswith(f"{mount_path}/")


def _unescape_mount_path(escaped: str) -> str:
    """Decode the octal escapes that the kernel writes for blanks and backslashes."""
    for digits, character in (("040", " "), ("011", "\t"), ("012", "\n"), ("134", "\\")):
        escaped = escaped.replace(f"\\{digits}", character)
    return escaped
