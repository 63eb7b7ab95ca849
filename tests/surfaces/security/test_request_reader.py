"""RequestReader passes complete request heads and bodies on to the HTTP server, in a normal form."""

import pytest
from daemon_fixture import DaemonClient

from retinue.server.connection_limits import ConnectionLimits
from retinue.server.error_responses import HttpError
from retinue.server.request_reader import RequestReader

HEAD = b"POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.fixture
def reader() -> RequestReader:
    return RequestReader(ConnectionLimits())


def test_a_head_is_passed_on_once_it_is_complete(reader: RequestReader):
    head = b"GET /a?b=c HTTP/1.0\r\nHost: x\r\nEmpty: \r\n\r\n"
    assert [reader.read(bytes([byte])) for byte in head[:-1]] == [b""] * (len(head) - 1)
    assert reader.read(head[-1:]) == head
    assert reader.is_responding


def test_blank_lines_and_spaces_before_values_are_dropped(reader: RequestReader):
    head = b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n"
    assert reader.read(b"\r\n\r\n" + head.replace(b": ", b":    ")) == head


def test_a_body_is_passed_on_as_it_arrives(reader: RequestReader):
    head = b"PUT /a HTTP/1.1\r\nContent-Length: 4\r\n\r\n"
    assert reader.read(head + b"ab") == head + b"ab"
    assert reader.is_request_incomplete
    assert reader.read(b"cd") == b"cd"
    assert not reader.is_request_incomplete


def test_chunks_are_rewritten_without_extensions_and_trailers(reader: RequestReader):
    assert reader.read(HEAD) == HEAD
    assert reader.read(b"3;name=value\r\nabc\r\n0\r\nAuthorization: x\r\n\r\n") == b"3\r\nabc\r\n0\r\n\r\n"


def test_trailers_count_as_headers(reader: RequestReader):
    reader.read(HEAD + b"0\r\n")
    with pytest.raises(HttpError) as caught:
        reader.read(b"x: y\r\n" * 100 + b"\r\n")
    assert caught.value.status == 431


@pytest.mark.parametrize("rest", [b"GET /b HTTP/1.1\r\n\r\n", b"nonsense", b"\x16\x03\x01"])
def test_what_follows_a_request_is_not_passed_on_before_its_response(reader: RequestReader, rest: bytes):
    assert reader.read(HEAD + b"0\r\n\r\n" + rest) == HEAD + b"0\r\n\r\n"
    assert reader.is_stopped


def test_a_request_with_an_invalid_body_is_not_passed_on(reader: RequestReader):
    with pytest.raises(HttpError):
        reader.read(HEAD + b"nonsense")


def test_the_next_request_is_read_after_the_response(reader: RequestReader):
    request = b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n"
    for _ in range(2):
        assert reader.read(request) == request
        reader.is_responding = False
    assert not reader.is_stopped


def test_an_upgrade_is_answered_as_plain_http_and_ends_the_connection(client: DaemonClient):
    head = f"GET /api/health HTTP/1.1\r\nHost: {client.host}\r\nAuthorization: Bearer {client.token}\r\n"
    response = client.send_raw(
        f"{head}Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n".encode(), b"\x81\x05hello"
    )
    assert response.startswith(b"HTTP/1.1 200 ")
    assert response.count(b"connection: close") == 1
