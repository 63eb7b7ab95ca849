"""Open listening sockets in the network namespace of a sandbox, pass them to the parent, and limit inotify.

Runs as a separate program and imports no Retinue modules, so that it can run by itself.
"""

import ctypes
import fcntl
import os
import socket
import sys

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
NS_GET_USERNS = 0xB701
"""The ioctl that returns the user namespace which owns a namespace."""
LISTEN_BACKLOG = 64
INOTIFY_LIMITS = {"max_inotify_instances": 64, "max_inotify_watches": 32_768}
"""Limits of the sandbox's user namespace, so that the program cannot use up those of the user."""


def main() -> int:
    """Run `PID PORT…`: a process of the sandbox, and the ports of its loopback.

    The descriptors are sent over standard output.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    net_fd = os.open(f"/proc/{int(sys.argv[1])}/ns/net", os.O_RDONLY)
    for fd, kind in ((fcntl.ioctl(net_fd, NS_GET_USERNS), CLONE_NEWUSER), (net_fd, CLONE_NEWNET)):
        if libc.setns(fd, kind) != 0:
            os.write(2, os.strerror(ctypes.get_errno()).encode())
            return 1
        if kind == CLONE_NEWUSER:
            _limit_inotify()
    listeners: list[socket.socket] = []
    for port in sys.argv[2:]:
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.bind(("127.0.0.1", int(port)))
        listener.listen(LISTEN_BACKLOG)
        listeners.append(listener)
    with socket.socket(fileno=1) as out:
        socket.send_fds(out, [b"listeners"], [listener.fileno() for listener in listeners])
    return 0


def _limit_inotify() -> None:
    """Set the limits of the current user namespace."""
    for name, limit in INOTIFY_LIMITS.items():
        with open(f"/proc/sys/user/{name}", "w", encoding="ascii") as file:  # noqa: PTH123
            file.write(str(limit))


if __name__ == "__main__":
    sys.exit(main())
