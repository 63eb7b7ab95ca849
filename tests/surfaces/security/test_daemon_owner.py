"""One user owns the daemon: file modes and the kernel enforce it, and no token is written anywhere else."""

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

OTHER_USER = 65534


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A folder that any user can enter; pytest's own folders are for the user who runs it."""
    folder = Path(tempfile.mkdtemp(dir="/var/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def request_as_user(uid: int, socket_path: Path) -> bytes:
    """Return what the socket sends to a process of this user, or the name of the error if it cannot connect."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if uid != os.geteuid():
                os.setgroups([])
                os.setresgid(uid, uid, uid)
                os.setresuid(uid, uid, uid)
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connection.connect(os.fspath(socket_path))
            connection.sendall(b"GET /api/health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            os.write(writing, b"received " + connection.recv(64))
        except OSError as error:
            os.write(writing, type(error).__name__.encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        output = file.read()
    os.waitpid(child, 0)
    return output


def test_the_socket_refuses_another_user_even_if_its_mode_was_opened(
    make_daemon: MakeDaemon, public_folder: Path
):
    """With an opened mode, the kernel's peer credentials decide. Without root a test cannot become another user;
    then only the mode and the own user are tested.

    Shows: A17.
    """
    daemon = make_daemon()
    daemon.env["RETINUE_HOME"] = str(public_folder / "home")
    daemon.start()
    try:
        socket_path = daemon.home / "daemon.sock"
        assert stat.S_IMODE(socket_path.stat().st_mode) == 0o600
        assert request_as_user(os.geteuid(), socket_path).startswith(b"received HTTP/1.1 200 ")
        if os.geteuid() == 0:
            assert request_as_user(OTHER_USER, socket_path) == b"PermissionError"
            daemon.home.chmod(0o755)
            assert request_as_user(OTHER_USER, socket_path) == b"PermissionError"
            socket_path.chmod(0o666)
            assert request_as_user(OTHER_USER, socket_path) in (
                b"received ",
                b"ConnectionResetError",
                b"BrokenPipeError",
            )
            assert request_as_user(os.geteuid(), socket_path).startswith(b"received HTTP/1.1 200 ")
    finally:
        daemon.stop()


def test_all_files_of_the_daemon_are_readable_by_their_owner_only(
    daemon: DaemonProcess, client: DaemonClient
):
    """Shows: A16."""
    daemon.run_command("tokens", "add", "modes", "--rights", "read")
    created = client.request_as_owner(
        "POST", "/api/sessions", "Content-Type: application/json", body=b'{"agent": "general"}'
    )
    assert created.status == 201
    assert Path(created.json["path"]).is_relative_to(daemon.home)
    paths = [path for path in (daemon.home, *daemon.home.rglob("*")) if not path.is_symlink()]
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in paths}
    assert {path: oct(mode) for path, mode in modes.items() if mode & 0o077} == {}
    names = {path.name for path in modes}
    assert {"token", "tokens.json", "daemon.sock", "ledger.db", "session.md"} <= names


def test_the_doctor_reports_a_token_file_that_others_can_read_and_a_start_repairs_it(make_daemon: MakeDaemon):
    daemon = make_daemon()
    daemon.start()
    daemon.stop()
    token = daemon.home / "token"
    findings = daemon.run_command("doctor")
    assert not [row for row in findings if str(token) in row["message"]]
    token.chmod(0o644)
    about_token = [row for row in daemon.run_command("doctor") if str(token) in row["message"]]
    assert [(row["level"], f"chmod 600 {token}" in row["advice"]) for row in about_token] == [("bad", True)]
    daemon.stderr_text = ""
    daemon.start()
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    daemon.stop()


def test_a_token_that_was_replaced_or_removed_no_longer_works(make_daemon: MakeDaemon):
    daemon = make_daemon()
    daemon.start()
    try:
        client, old = daemon.client, daemon.client.token
        response = client.request("GET", daemon.link.removeprefix(client.url))
        cookie = "Cookie: " + response.headers["set-cookie"].partition(";")[0]
        assert client.request("GET", "/api/health", cookie).status == 200
        (daemon.home / "token").unlink()
        assert client.request("GET", "/api/health", token=old).status == 401
        assert client.request("GET", "/api/health", cookie).status == 401
        assert client.token != old
        assert stat.S_IMODE((daemon.home / "token").stat().st_mode) == 0o600
        assert client.request_as_owner("GET", "/api/health").status == 200
        (daemon.home / "token").write_text("short\n")
        assert client.request("GET", "/api/health", token="short").status == 401
        assert client.request("GET", "/api/health", token="").status == 401
        (daemon.home / "tokens.json").write_text("{")
        assert client.request("GET", "/api/health", token="x" * 43).status == 401
        assert client.request("GET", "/api/health", transport="socket").status == 200
    finally:
        daemon.stop()


def test_no_token_appears_in_logs_or_other_files(make_daemon: MakeDaemon):
    """Not in the log of a background daemon, not in its output, and not for wrong requests either.

    Shows: A07.
    """
    daemon = make_daemon()
    started = daemon.run_command("serve", "--detach", "--port", "0")
    match = re.search(r":(\d+)/enter/", started["url"])
    assert match
    client = daemon.set_port(int(match[1]))
    try:
        link = started["url"].removeprefix(client.url)
        response = client.request("GET", link)
        cookie = response.headers["set-cookie"].partition(";")[0]
        limited = daemon.run_command("tokens", "add", "ci", "--rights", "read")["token"]
        for secret in (client.token, limited, "wrong-" + client.token):
            client.request("GET", f"/api/health?token={secret}", token=secret)
            client.request("GET", f"/{secret}", f"Referer: {client.url}/?token={secret}", token=secret)
            client.request(
                "POST",
                "/api/wake",
                "Content-Type: application/json",
                token=secret,
                body=f'{{"{secret}": 1}}'.encode(),
            )
            client.send_raw(f"GET /{secret} nonsense {secret}\r\n\r\n".encode())
        client.request("GET", "/api/health", f"Cookie: {cookie}")
        client.request("GET", link)
        second_link = daemon.run_command("serve", "--link")["url"]
        secrets = [
            client.token,
            limited,
            cookie.partition("=")[2],
            link.removeprefix("/enter/"),
            second_link.rpartition("/")[2],
        ]
    finally:
        daemon.run_command("serve", "--stop")
    files = [path for path in daemon.home.rglob("*") if path.is_file() and path.name != "token"]
    assert daemon.home / "logs" / "daemon.log" in files
    contents = {path: path.read_bytes() for path in files}
    assert [
        (path, secret) for path, data in contents.items() for secret in secrets if secret.encode() in data
    ] == []


def test_the_daemon_prints_the_login_link_and_no_token(make_daemon: MakeDaemon):
    """Shows: A07."""
    daemon = make_daemon()
    daemon.start()
    token = daemon.client.token
    daemon.client.request("GET", "/api/health", token=token)
    daemon.client.request("GET", f"/api/health?token={token}", token="x" * 43)
    daemon.client.send_raw(b"nonsense " + token.encode() + b"\r\n\r\n")
    output = daemon.stop()
    assert token not in output
    assert output.count("/enter/") == 1
    assert len(output.splitlines()) == 2, output


def test_a_second_daemon_of_the_same_home_is_refused_and_the_first_keeps_working(daemon: DaemonProcess):
    second = daemon.run_command("serve", "--port", "0")
    assert second["error"]["code"] == "refused"
    assert daemon.client.request("GET", "/api/health", transport="socket").status == 200
    assert daemon.process is not None
    assert daemon.process.poll() is None


def test_a_token_that_does_not_fit_on_the_disk_leaves_no_file(tmp_path: Path):
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
