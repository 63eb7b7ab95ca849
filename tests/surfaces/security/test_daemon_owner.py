"""Whose daemon it is: one user, by the modes of files and by the kernel's word, and no key is ever written elsewhere."""

import os
import re
import resource
import shutil
import signal
import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from daemon_fixture import DaemonClient, DaemonProcess, MakeDaemon

from retinue.server.auth import Authenticator

SOMEBODY = 65534


@pytest.fixture
def reached() -> Iterator[Path]:
    """A folder that anybody can come to: pytest's own are only for who runs it."""
    place = Path(tempfile.mkdtemp(dir="/var/tmp"))
    place.chmod(0o755)
    yield place
    shutil.rmtree(place)


def asked_as(uid: int, place: Path) -> bytes:
    """What the socket answers to a process of this user; the name of the error where it is not reached."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if uid != os.geteuid():
                os.setgroups([])
                os.setresgid(uid, uid, uid)
                os.setresuid(uid, uid, uid)
            line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            line.connect(os.fspath(place))
            line.sendall(b"GET /api/health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            os.write(writing, b"heard " + line.recv(64))
        except OSError as error:
            os.write(writing, type(error).__name__.encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        found = file.read()
    os.waitpid(child, 0)
    return found


def test_another_user_is_not_heard_by_the_socket(make_daemon: MakeDaemon, reached: Path):
    """Neither as its mode stands, nor when somebody has opened the mode: the kernel says who is at the other end. As an
    ordinary user a test cannot become another one; the mode is looked at then, and the own user is heard.

    Shows: A17.
    """
    daemon = make_daemon()
    daemon.env["RETINUE_HOME"] = str(reached / "home")
    daemon.start()
    try:
        place = daemon.home / "daemon.sock"
        assert stat.S_IMODE(place.stat().st_mode) == 0o600
        assert asked_as(os.geteuid(), place).startswith(b"heard HTTP/1.1 200 ")
        if os.geteuid() == 0:
            assert asked_as(SOMEBODY, place) == b"PermissionError"
            daemon.home.chmod(0o755)
            assert asked_as(SOMEBODY, place) == b"PermissionError"
            place.chmod(0o666)
            assert asked_as(SOMEBODY, place) in (b"heard ", b"ConnectionResetError", b"BrokenPipeError")
            assert asked_as(os.geteuid(), place).startswith(b"heard HTTP/1.1 200 ")
    finally:
        daemon.stop()


def test_all_that_the_daemon_keeps_is_for_its_owner_only(daemon: DaemonProcess, client: DaemonClient):
    """Shows: A16."""
    daemon.run_command("tokens", "add", "modes", "--rights", "read")
    made = client.request_as_owner(
        "POST", "/api/sessions", "Content-Type: application/json", body=b'{"agent": "general"}'
    )
    assert made.status == 201
    assert Path(made.json["path"]).is_relative_to(daemon.home)
    kept = [path for path in (daemon.home, *daemon.home.rglob("*")) if not path.is_symlink()]
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in kept}
    assert {path: oct(mode) for path, mode in modes.items() if mode & 0o077} == {}
    names = {path.name for path in modes}
    assert {"token", "tokens.json", "daemon.sock", "ledger.db", "session.md"} <= names


def test_a_key_that_others_may_read_is_named_by_the_doctor(make_daemon: MakeDaemon):
    daemon = make_daemon()
    daemon.start()
    daemon.stop()
    token = daemon.home / "token"
    well = daemon.run_command("doctor")
    assert not [row for row in well if str(token) in row["message"]]
    token.chmod(0o644)
    told = [row for row in daemon.run_command("doctor") if str(token) in row["message"]]
    assert [(row["level"], f"chmod 600 {token}" in row["advice"]) for row in told] == [("bad", True)]
    daemon.stderr_text = ""
    daemon.start()
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    daemon.stop()


def test_a_token_that_is_replaced_or_removed_opens_nothing_from_then_on(make_daemon: MakeDaemon):
    daemon = make_daemon()
    daemon.start()
    try:
        door, old = daemon.client, daemon.client.token
        entered = door.request("GET", daemon.link.removeprefix(door.url))
        cookie = "Cookie: " + entered.headers["set-cookie"].partition(";")[0]
        assert door.request("GET", "/api/health", cookie).status == 200
        (daemon.home / "token").unlink()
        assert door.request("GET", "/api/health", token=old).status == 401
        assert door.request("GET", "/api/health", cookie).status == 401
        assert door.token != old
        assert stat.S_IMODE((daemon.home / "token").stat().st_mode) == 0o600
        assert door.request_as_owner("GET", "/api/health").status == 200
        (daemon.home / "token").write_text("short\n")
        assert door.request("GET", "/api/health", token="short").status == 401
        assert door.request("GET", "/api/health", token="").status == 401
        (daemon.home / "tokens.json").write_text("{")
        assert door.request("GET", "/api/health", token="x" * 43).status == 401
        assert door.request("GET", "/api/health", transport="socket").status == 200
    finally:
        daemon.stop()


def test_no_key_is_ever_written_down(make_daemon: MakeDaemon):
    """Not in the log of a daemon in the background, not in what it says, not for wrong requests either.

    Shows: A07.
    """
    daemon = make_daemon()
    started = daemon.run_command("serve", "--detach", "--port", "0")
    found = re.search(r":(\d+)/enter/", started["url"])
    assert found
    door = daemon.client_at(int(found[1]))
    try:
        link = started["url"].removeprefix(door.url)
        entered = door.request("GET", link)
        cookie = entered.headers["set-cookie"].partition(";")[0]
        narrow = daemon.run_command("tokens", "add", "ci", "--rights", "read")["token"]
        for key in (door.token, narrow, "wrong-" + door.token):
            door.request("GET", f"/api/health?token={key}", token=key)
            door.request("GET", f"/{key}", f"Referer: {door.url}/?token={key}", token=key)
            door.request(
                "POST",
                "/api/wake",
                "Content-Type: application/json",
                token=key,
                body=f'{{"{key}": 1}}'.encode(),
            )
            door.send_raw(f"GET /{key} nonsense {key}\r\n\r\n".encode())
        door.request("GET", "/api/health", f"Cookie: {cookie}")
        door.request("GET", link)
        other = daemon.run_command("serve", "--link")["url"]
        keys = [
            door.token,
            narrow,
            cookie.partition("=")[2],
            link.removeprefix("/enter/"),
            other.rpartition("/")[2],
        ]
    finally:
        daemon.run_command("serve", "--stop")
    kept = [path for path in daemon.home.rglob("*") if path.is_file() and path.name != "token"]
    assert daemon.home / "logs" / "daemon.log" in kept
    said = {path: path.read_bytes() for path in kept}
    assert [(path, key) for path, data in said.items() for key in keys if key.encode() in data] == []


def test_what_it_tells_a_person_who_started_it_is_the_link_and_no_token(make_daemon: MakeDaemon):
    """Shows: A07."""
    daemon = make_daemon()
    daemon.start()
    token = daemon.client.token
    daemon.client.request("GET", "/api/health", token=token)
    daemon.client.request("GET", f"/api/health?token={token}", token="x" * 43)
    daemon.client.send_raw(b"nonsense " + token.encode() + b"\r\n\r\n")
    told = daemon.stop()
    assert token not in told
    assert told.count("/enter/") == 1
    assert len(told.splitlines()) == 2, told


def test_a_second_daemon_takes_nobodys_socket(daemon: DaemonProcess):
    """Whoever finds the home taken leaves, and what is there goes on."""
    second = daemon.run_command("serve", "--port", "0")
    assert second["error"]["code"] == "refused"
    assert daemon.client.request("GET", "/api/health", transport="socket").status == 200
    assert daemon.process is not None
    assert daemon.process.poll() is None


def test_a_token_that_there_is_no_room_for_leaves_nothing_behind(tmp_path: Path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            Authenticator(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert list(tmp_path.iterdir()) == []
