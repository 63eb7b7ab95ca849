"""Opens hatches in the network of a cell: started as a program of its own, it goes into that network, begins to listen
there, and hands what it listens with to whoever started it. Imports nothing of ours, so that it can run by itself."""

import ctypes
import fcntl
import os
import socket
import sys

NEW_USER, NEW_NET = 0x10000000, 0x40000000
GET_OWNER = 0xB701
"""The request of the kernel for the user namespace that a namespace belongs to."""
WAITING = 64


def main() -> int:
    """`PID PORT…`: a process of the cell, and the ports of its loopback. Descriptors go out by standard output."""
    libc = ctypes.CDLL(None, use_errno=True)
    net = os.open(f"/proc/{int(sys.argv[1])}/ns/net", os.O_RDONLY)
    for fd, kind in ((fcntl.ioctl(net, GET_OWNER), NEW_USER), (net, NEW_NET)):
        if libc.setns(fd, kind) != 0:
            os.write(2, os.strerror(ctypes.get_errno()).encode())
            return 1
    hatches: list[socket.socket] = []
    for port in sys.argv[2:]:
        hatch = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        hatch.bind(("127.0.0.1", int(port)))
        hatch.listen(WAITING)
        hatches.append(hatch)
    with socket.socket(fileno=1) as out:
        socket.send_fds(out, [b"hatches"], [hatch.fileno() for hatch in hatches])
    return 0


if __name__ == "__main__":
    sys.exit(main())
