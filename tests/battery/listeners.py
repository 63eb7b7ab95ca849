"""Sockets of the user's own programs, on loopback and as files, that count connections."""

import os
import selectors
import socket
import threading
from collections import Counter
from contextlib import suppress
from pathlib import Path

STREAM, DATAGRAM = socket.SOCK_STREAM, socket.SOCK_DGRAM


class Listeners:
    """Sockets that send nothing, and a terminal that nobody uses."""

    def __init__(self, top: Path, abstract: str) -> None:
        self.connection_counts: Counter[str] = Counter()
        self.placeholders: dict[str, str | int] = {
            "abstract": abstract,
            "stream_socket": str(top / "stream.sock"),
            "datagram_socket": str(top / "datagram.sock"),
        }
        self._selector = selectors.DefaultSelector()
        self._sockets: list[socket.socket] = []
        self._lock = threading.Lock()
        self.placeholders["tcp"] = self._open("tcp", socket.AF_INET, STREAM, ("127.0.0.1", 0))
        self.placeholders["udp"] = self._open("udp", socket.AF_INET, DATAGRAM, ("127.0.0.1", 0))
        with suppress(OSError):
            self.placeholders["tcp6"] = self._open("tcp6", socket.AF_INET6, STREAM, ("::1", 0))
        self.placeholders.setdefault("tcp6", 9)
        self._open("stream socket", socket.AF_UNIX, STREAM, str(top / "stream.sock"))
        self._open("datagram socket", socket.AF_UNIX, DATAGRAM, str(top / "datagram.sock"))
        self._open("abstract stream socket", socket.AF_UNIX, STREAM, "\0" + abstract)
        self._open("abstract datagram socket", socket.AF_UNIX, DATAGRAM, "\0" + abstract + "-post")
        self.master, self._slave = os.openpty()
        self.pts = os.ttyname(self._slave)
        os.set_blocking(self.master, False)
        os.set_blocking(self._slave, False)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def listen_in_workspace(self, ws: Path) -> None:
        """Listen on sockets in the workspace, as a program of the user could."""
        self._open("stream socket in the workspace", socket.AF_UNIX, STREAM, str(ws / "stream.sock"))
        self._open("datagram socket in the workspace", socket.AF_UNIX, DATAGRAM, str(ws / "datagram.sock"))

    def _open(self, name: str, family: int, kind: int, address: object) -> int:
        listener = socket.socket(family, kind)
        listener.bind(address)  # pyright: ignore[reportArgumentType]
        if kind == STREAM:
            listener.listen(64)
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ, (name, kind))
        self._sockets.append(listener)
        return listener.getsockname()[1] if family != socket.AF_UNIX else 0

    def _serve(self) -> None:
        while not self._stopped.is_set():
            for key, _ in self._selector.select(0.02):
                self._accept(key)

    def _accept(self, key: selectors.SelectorKey) -> None:
        name, kind = key.data
        listener = key.fileobj
        assert isinstance(listener, socket.socket)
        with suppress(OSError):
            if kind == STREAM:
                listener.accept()[0].close()
            else:
                listener.recv(4096)
            with self._lock:
                self.connection_counts[name] += 1

    def activity(self) -> list[str]:
        """Return the connections so far, including pending ones, and any use of the terminal."""
        for key in list(self._selector.get_map().values()):
            self._accept(key)
        found = [f"{name}: {count} connections" for name, count in self.connection_counts.items()]
        for fd, what in ((self.master, "written to"), (self._slave, "typed into")):
            with suppress(OSError):
                if os.read(fd, 4096):
                    found.append(f"the terminal was {what}")
        return found

    def reset(self) -> None:
        self.activity()
        with self._lock:
            self.connection_counts.clear()

    def close(self) -> None:
        self._stopped.set()
        self._thread.join()
        for each in self._sockets:
            each.close()
        self._selector.close()
        os.close(self.master)
        os.close(self._slave)
