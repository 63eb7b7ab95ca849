"""Listening sockets and a terminal, as programs of the user have them: each counts its visitors."""

import os
import selectors
import socket
import threading
from collections import Counter
from contextlib import suppress
from pathlib import Path

STREAM, DATAGRAM = socket.SOCK_STREAM, socket.SOCK_DGRAM


class Listeners:
    """Listeners that answer nothing, and a terminal without input."""

    def __init__(self, top: Path, abstract: str) -> None:
        self.came: Counter[str] = Counter()
        self.facts: dict[str, str | int] = {
            "abstract": abstract,
            "door": str(top / "door"),
            "post": str(top / "post"),
        }
        self._selector = selectors.DefaultSelector()
        self._sockets: list[socket.socket] = []
        self._lock = threading.Lock()
        self.facts["tcp"] = self._open("tcp", socket.AF_INET, STREAM, ("127.0.0.1", 0))
        self.facts["udp"] = self._open("udp", socket.AF_INET, DATAGRAM, ("127.0.0.1", 0))
        with suppress(OSError):
            self.facts["tcp6"] = self._open("tcp6", socket.AF_INET6, STREAM, ("::1", 0))
        self.facts.setdefault("tcp6", 9)
        self._open("door", socket.AF_UNIX, STREAM, str(top / "door"))
        self._open("post", socket.AF_UNIX, DATAGRAM, str(top / "post"))
        self._open("abstract", socket.AF_UNIX, STREAM, "\0" + abstract)
        self._open("abstract post", socket.AF_UNIX, DATAGRAM, "\0" + abstract + "-post")
        self.master, self._slave = os.openpty()
        self.pts = os.ttyname(self._slave)
        os.set_blocking(self.master, False)
        os.set_blocking(self._slave, False)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def in_workspace(self, ws: Path) -> None:
        """A program of the person's listens in the very workspace."""
        self._open("door in the workspace", socket.AF_UNIX, STREAM, str(ws / "door"))
        self._open("post in the workspace", socket.AF_UNIX, DATAGRAM, str(ws / "post"))

    def _open(self, name: str, family: int, kind: int, address: object) -> int:
        made = socket.socket(family, kind)
        made.bind(address)  # pyright: ignore[reportArgumentType]
        if kind == STREAM:
            made.listen(64)
        made.setblocking(False)
        self._selector.register(made, selectors.EVENT_READ, (name, kind))
        self._sockets.append(made)
        return made.getsockname()[1] if family != socket.AF_UNIX else 0

    def _serve(self) -> None:
        while not self._over.is_set():
            for key, _ in self._selector.select(0.02):
                self._answer(key)

    def _answer(self, key: selectors.SelectorKey) -> None:
        name, kind = key.data
        listener = key.fileobj
        assert isinstance(listener, socket.socket)
        with suppress(OSError):
            if kind == STREAM:
                listener.accept()[0].close()
            else:
                listener.recv(4096)
            with self._lock:
                self.came[name] += 1

    def visitors(self) -> list[str]:
        """Who came, and what was typed or written at the terminal. Whoever knocked has been let in when this returns."""
        for key in list(self._selector.get_map().values()):
            self._answer(key)
        found = [f"{name} was opened {count} times" for name, count in self.came.items()]
        for fd, what in ((self.master, "written to"), (self._slave, "typed into")):
            with suppress(OSError):
                if os.read(fd, 4096):
                    found.append(f"the terminal was {what}")
        return found

    def forget(self) -> None:
        self.visitors()
        with self._lock:
            self.came.clear()

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        for each in self._sockets:
            each.close()
        self._selector.close()
        os.close(self.master)
        os.close(self._slave)
