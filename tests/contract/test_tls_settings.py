"""Which certificates are trusted and shown, against TLS servers on loopback with certificates of openssl."""

import os
import socket
import ssl
import subprocess
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from retinue.errors import BadConfig
from retinue.http.client import HttpClient
from retinue.http.connect import Unreachable, UntrustedCertificate
from retinue.http.network import NetworkSettings, network_settings


def openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificates:
    """A CA, and a server's and a client's certificate that it issued."""

    folder: Path

    def file(self, name: str) -> str:
        return str(self.folder / name)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    folder = tmp_path_factory.mktemp("certificates")
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-days", "3650")
    openssl(
        folder, "req", "-x509", *key, "-nodes", "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=Test CA"
    )
    for name in ("server", "client"):
        san = "subjectAltName=DNS:localhost,IP:127.0.0.1"
        openssl(
            folder, "req", "-x509", *key, "-nodes", "-CA", "ca.pem", "-CAkey", "ca.key", "-keyout", f"{name}.key",
            "-out", f"{name}.pem", "-subj", f"/CN={name}", "-addext", san, "-addext", "basicConstraints=CA:FALSE",
        )  # fmt: skip
    openssl(folder, "ec", "-in", "client.key", "-aes256", "-passout", "pass:open-it", "-out", "locked.key")
    (folder / "both.pem").write_text(
        (folder / "client.pem").read_text() + (folder / "client.key").read_text()
    )
    (folder / "hashed").mkdir()
    (folder / "hashed" / "ca.pem").write_text((folder / "ca.pem").read_text())
    openssl(folder, "rehash", "hashed")
    (folder / "empty.pem").write_text("nothing\n")
    return Certificates(folder=folder)


@contextmanager
def open_server(
    certificates: Certificates, *, needs_client: bool = False
) -> Generator[tuple[str, list[str]]]:
    """Serve "ok" over TLS; yield the URL and the names of the clients.

    The server runs in a thread, because servers of asyncio do not tell a client why its certificate is refused.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.file("server.pem"), certificates.file("server.key"))
    if needs_client:
        context.load_verify_locations(certificates.file("ca.pem"))
        context.verify_mode = ssl.CERT_REQUIRED
    names: list[str] = []

    def serve() -> None:
        while True:
            accepted, _ = listener.accept()
            with accepted, accepted.dup() as raw_socket:
                if stopping.is_set():
                    return
                with suppress(OSError), context.wrap_socket(accepted, server_side=True) as connection:
                    while b"\r\n\r\n" not in connection.recv(65_536):
                        pass
                    peer = cast("dict[str, Any]", connection.getpeercert() or {})
                    names.append(peer["subject"][0][0][1] if peer else "")
                    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
                # Closing earlier would reset the connection, and the client might not receive the alert.
                with suppress(OSError):
                    while raw_socket.recv(65_536):
                        pass

    stopping = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"https://localhost:{listener.getsockname()[1]}/", names
        finally:
            stopping.set()
            socket.create_connection(listener.getsockname()).close()
            thread.join()


async def get(url: str, network: NetworkSettings) -> bytes:
    client = HttpClient(url, {}, connect_timeout_s=10, network=network)
    try:
        connection = await client.request("GET", {})
        return await connection.read()
    finally:
        await client.close()


@pytest.mark.parametrize(
    ("env", "is_trusted"),
    [
        ({}, False),
        ({"SSL_CERT_FILE": "ca.pem"}, True),
        ({"SSL_CERT_FILE": "server.pem"}, True),
        ({"SSL_CERT_DIR": "hashed"}, True),
        ({"REQUESTS_CA_BUNDLE": "ca.pem"}, True),
        ({"REQUESTS_CA_BUNDLE": "hashed"}, True),
        ({"SSL_CERT_FILE": "client.pem"}, False),
        ({"SSL_CERT_FILE": "client.pem", "REQUESTS_CA_BUNDLE": "ca.pem"}, False),
        ({"SSL_CERT_FILE": "client.pem", "SSL_CERT_DIR": "hashed"}, True),
    ],
)
async def test_the_variables_decide_which_servers_are_trusted(
    certificates: Certificates, env: Mapping[str, str], is_trusted: bool
):
    network = network_settings({name: certificates.file(value) for name, value in env.items()})
    with open_server(certificates) as (url, _):
        if is_trusted:
            assert await get(url, network) == b"ok"
            return
        with pytest.raises(UntrustedCertificate, match="its certificate is not trusted"):
            await get(url, network)


def test_a_requests_bundle_replaces_the_certificates_of_the_system(certificates: Certificates):
    own = network_settings({"REQUESTS_CA_BUNDLE": certificates.file("ca.pem")})
    assert own.tls.ca_bundle == certificates.file("ca.pem")
    several = network_settings(
        {"SSL_CERT_DIR": os.pathsep.join((certificates.file("hashed"), str(certificates.folder)))}
    )
    several.check("https://x.example")


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"SSL_CERT_FILE": "none.pem"}, "SSL_CERT_FILE: .*none.pem does not exist"),
        ({"SSL_CERT_DIR": "none"}, "SSL_CERT_DIR: .*none does not exist"),
        ({"REQUESTS_CA_BUNDLE": "none.pem"}, "REQUESTS_CA_BUNDLE: .*none.pem does not exist"),
        ({"SSL_CERT_FILE": "empty.pem"}, "empty.pem has no certificates that can be read"),
        ({"RETINUE_CLIENT_CERT": "none.pem"}, "RETINUE_CLIENT_CERT: .*none.pem is not a file"),
        ({"RETINUE_CLIENT_CERT": "client.pem", "RETINUE_CLIENT_KEY": "none"}, "RETINUE_CLIENT_KEY: .*none is not a file"),
        ({"RETINUE_CLIENT_KEY": "client.key"}, "RETINUE_CLIENT_KEY is set, but RETINUE_CLIENT_CERT is not"),
        ({"RETINUE_CLIENT_CERT": "client.pem"}, "client.pem cannot be used with its key"),
        ({"RETINUE_CLIENT_CERT": "client.pem", "RETINUE_CLIENT_KEY": "server.key"}, "cannot be used with its key"),
        ({"RETINUE_CLIENT_CERT": "client.pem", "RETINUE_CLIENT_KEY": "locked.key"}, "cannot be used with its key"),
    ],
)  # fmt: skip
def test_files_that_cannot_be_used_are_named_before_anything_is_requested(
    certificates: Certificates, env: Mapping[str, str], message: str
):
    network = network_settings({name: certificates.file(value) for name, value in env.items()})
    with pytest.raises(BadConfig, match=message):
        network.check("https://x.example")
    network.check("http://x.example")


@pytest.mark.parametrize(
    ("certificate", "key", "password"),
    [("client.pem", "client.key", ""), ("both.pem", "", ""), ("client.pem", "locked.key", "open-it")],
)
async def test_a_client_certificate_is_shown_to_a_server_that_asks_for_one(
    certificates: Certificates, certificate: str, key: str, password: str
):
    env = {
        "SSL_CERT_FILE": certificates.file("ca.pem"),
        "RETINUE_CLIENT_CERT": certificates.file(certificate),
    }
    env |= {"RETINUE_CLIENT_KEY": certificates.file(key)} if key else {}
    env |= {"RETINUE_CLIENT_KEY_PASSWORD": password} if password else {}
    network = network_settings(env)
    assert "open-it" not in repr(network)
    with open_server(certificates, needs_client=True) as (url, names):
        assert await get(url, network) == b"ok"
        assert names == ["client"]
        with pytest.raises(UntrustedCertificate, match=r"requires one \(RETINUE_CLIENT_CERT\)"):
            await get(url, network.without_client_certificate())


async def test_a_server_that_requires_a_client_certificate_says_so(certificates: Certificates):
    with open_server(certificates, needs_client=True) as (url, names):
        with pytest.raises(Unreachable, match=r"requires one \(RETINUE_CLIENT_CERT\)"):
            await get(url, network_settings({"SSL_CERT_FILE": certificates.file("ca.pem")}))
        assert names == []
