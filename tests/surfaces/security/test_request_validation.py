"""Validation of requests: malformed names, and bodies that are too large, too deep or not what they claim to be."""

import gzip
import json
from pathlib import Path

import pytest
from daemon_fixture import DaemonClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from retinue.errors import UsageError
from retinue.server.request_parsing import decode_body
from retinue.server.route_table import ROUTES
from retinue.server.routes.messages import MessageBody
from retinue.server.routing import Route

JSON = "Content-Type: application/json"
ROUTES_WITH_NAME = [route for route in ROUTES if "{ref}" in route.path]
ROUTES_WITH_BODY = [
    route for route in ROUTES if route.method not in ("GET", "DELETE") and route.path != "/api/stop"
]
INVALID_NAMES = (
    "..", "%2e%2e", "..%2f", "..%2f..%2fetc%2fpasswd", "%2e%2e%2f%2e%2e%2ftoken", "%2fetc%2fpasswd", "x%2f..%2f..",
    "%00", "x%00.md", "x%0a", "x%0d%0aset-cookie:a=b", "%5c..%5c", ".hidden", "-rf", "_x", "~root", "x%20y", "%20",
    "%c3%a9", "%e2%80%ae", "%f0%9f%92%a9", "%ff%fe", "%c0%af", "%u002e", "%", "%zz", "*", "x*", "x'--", "x%22", "x;y",
    "$(id)", "`id`", "{ref}", "a" * 201, "a" * 7_000, "%61" * 2_000,
)  # fmt: skip
"""Names that no session, run or agent can have."""


def route_path(route: Route, ref: str = "nothing-of-this-name") -> str:
    return route.path.replace("{ref}", ref)


def route_id(route: Route) -> str:
    return f"{route.method} {route.path}"


def session_files(home: Path) -> set[str]:
    return {str(path.relative_to(home)) for path in (home / "sessions").rglob("*")}


@pytest.mark.parametrize("route", ROUTES_WITH_NAME, ids=route_id)
def test_a_malformed_name_in_the_path_is_refused_and_creates_no_file(client: DaemonClient, route: Route):
    """Shows: A09."""
    before = session_files(client.home)
    body = None if route.method == "GET" else b"{}"
    with client.connect("socket") as connection:
        for name in INVALID_NAMES:
            response = client.request(
                route.method, route_path(route, name), JSON, body=body, connection=connection
            )
            assert response.status in (400, 404), (name, response.body)
            assert response.code in ("usage", "not_found")
            assert b"Traceback" not in response.body
            if response.headers.get("connection") == "close":
                connection.close()
                connection = client.connect("socket")  # noqa: PLW2901  (the daemon ended this one)
        connection.close()
    assert session_files(client.home) == before


def test_an_encoded_slash_does_not_reach_another_route(client: DaemonClient):
    """Shows: A09."""
    assert client.request_as_owner("GET", "/api%2fhealth").status == 404
    assert client.request_as_owner("GET", "/api/health%2f").status == 404
    assert client.request_as_owner("GET", "/api/../api/health").status == 404
    assert client.request_as_owner("GET", "/api//health").status == 404
    assert client.request_as_owner("GET", "/api/health/").status == 404
    assert client.request_as_owner("GET", "/api/%68ealth").status == 200


def test_a_body_of_five_megabytes_is_refused_with_content_length_and_with_chunks(client: DaemonClient):
    """Shows: A10."""
    large = json.dumps({"content": "x" * 5_000_000}).encode()
    announced = client.request_as_owner("POST", "/api/wake", JSON, body=large)
    assert (announced.status, announced.code, announced.headers["connection"]) == (413, "too_large", "close")
    authorization = f"Authorization: Bearer {client.token}"
    head = f"POST /api/wake HTTP/1.1\r\nHost: {client.host}\r\n{authorization}\r\n{JSON}\r\n"
    chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
    chunked = client.send_raw(
        f"{head}Transfer-Encoding: chunked\r\n\r\n".encode(), *[chunk] * 100, b"0\r\n\r\n"
    )
    assert chunked.startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize("length", ["5000000000", "9" * 18, "9" * 30])
def test_a_body_of_five_gigabytes_is_refused_before_its_first_byte(client: DaemonClient, length: str):
    """The daemon neither waits for the body nor sends 100 Continue: the announced length is enough.

    Shows: A10.
    """
    authorization = f"Authorization: Bearer {client.token}"
    for expect in ("", "Expect: 100-continue\r\n"):
        head = f"POST /api/wake HTTP/1.1\r\nHost: {client.host}\r\n{authorization}\r\n{JSON}\r\n{expect}Content-Length: {length}\r\n\r\n"
        response = client.send_raw(head.encode())
        assert response.startswith((b"HTTP/1.1 413 ", b"HTTP/1.1 400 ")), response
        assert b"100 Continue" not in response


def test_a_body_is_not_read_without_a_token(client: DaemonClient):
    """Shows: A10."""
    head = f"POST /api/wake HTTP/1.1\r\nHost: {client.host}\r\n{JSON}\r\nContent-Length: 5000000000\r\n\r\n"
    assert client.send_raw(head.encode(), b"x" * 1_000_000).startswith(b"HTTP/1.1 401 ")


@pytest.mark.parametrize("coding", ["gzip", "br", "deflate", "zstd", "gzip, gzip", "x-anything"])
def test_a_compressed_body_is_refused_and_never_decompressed(client: DaemonClient, coding: str):
    """Shows: A10."""
    bomb = gzip.compress(b"{" + b" " * 50_000_000 + b"}")
    response = client.request_as_owner("POST", "/api/wake", JSON, f"Content-Encoding: {coding}", body=bomb)
    assert (response.status, response.code) == (415, "unsupported_media_type")


INVALID_BODIES = {
    "deep": b"[" * 100_000 + b"]" * 100_000,
    "deep maps": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "deep and broken": b"[" * 1_000_000,
    "twice": b'{"content": "a", "content": "b"}',
    "twice, written differently": b'{"content": "a", "c\\u006fntent": "b"}',
    "twice below": b'{"attributes": {"a": 1, "a": 2}}',
    "NaN": b'{"timeout": NaN}',
    "Infinity": b'{"timeout": Infinity}',
    "-Infinity": b'{"timeout": -Infinity}',
    "too large a number": b'{"timeout": 1e999}',
    "too long a number": b'{"timeout": ' + b"9" * 5_000 + b"}",
    "half a pair": b'{"content": "\\ud800"}',
    "no UTF-8": b'{"content": "\xff"}',
    "UTF-16": '{"content": "a"}'.encode("utf-16"),
    "a mark in front": b'\xef\xbb\xbf{"content": "a"}',
    "a NUL": b'{"content": "\x00"}',
    "a comment": b'{"content": "a"} // b',
    "two values": b"{}{}",
    "a list": b"[]",
    "a word": b'"content"',
    "nothing known": b'{"rights": ["admin"]}',
    "a stray comma": b'{"content": "a",}',
    "single quotes": b"{'content': 'a'}",
    "null": b"null",
    "blank": b"  ",
}


@pytest.mark.parametrize("body_name", INVALID_BODIES)
def test_ambiguous_or_invalid_json_is_refused_by_every_route(client: DaemonClient, body_name: str):
    """Shows: A11."""
    for route in ROUTES_WITH_BODY:
        response = client.request(
            route.method, route_path(route), JSON, body=INVALID_BODIES[body_name], transport="socket"
        )
        assert (response.status, response.code) == (400, route.error_codes.get("usage", "usage")), (
            response.body
        )
        assert len(response.body) < 2_000


ERROR_MESSAGES = {
    b'{"content": "a", "content": "b"}': "In the body, 'content' occurs twice; remove one of the two",
    b'{"content": "a", "timeout": NaN}': "In the body, NaN is not a valid number",
    b'{"content": "a", "timeout": '
    + b"9" * 5_000
    + b"}": "In the body, a number has 5,000 digits; the maximum is 1000",
    b'{"content": "a", "timeout": 1e999}': "The body contains a number that is too large - at `$.timeout`",
    b'{"content": "\\ud800"}': "The body contains a lone surrogate (\\ud800 to \\udfff)",
    b'{"content": "\\ude00"}': "The body contains a lone surrogate (\\ud800 to \\udfff)",
    b'{"content": "\xff"}': "The body is not UTF-8 at byte 13. Send it as UTF-8.",
    b"{}{}": "The body is not valid JSON: Extra data at column 3 (line 1)",
}


@pytest.mark.parametrize("body", ERROR_MESSAGES)
def test_the_error_names_what_is_wrong_with_a_body(body: bytes):
    with pytest.raises(UsageError) as caught:
        decode_body(body, MessageBody)
    assert str(caught.value) == ERROR_MESSAGES[body]


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    body=st.one_of(
        st.binary(max_size=200),
        st.text(alphabet='{}[]",:\\u0de-.+ntf', max_size=60).map(str.encode),
        st.recursive(
            st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
            lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        ).map(lambda value: json.dumps(value).encode("utf-8", "surrogatepass")),
    )
)
def test_no_body_causes_an_internal_error(client: DaemonClient, body: bytes):
    """Shows: A11."""
    response = client.request("POST", "/api/wake", JSON, body=body, transport="socket")
    assert response.status in (200, 400), response.body


@pytest.mark.parametrize("query", ["a=1&a=1", "x=%00", "x=%0a", "nothing=known", "%ff=1", "rights=admin"])
def test_an_unknown_or_malformed_query_parameter_is_refused(client: DaemonClient, query: str):
    response = client.request_as_owner("GET", f"/api/health?{query}")
    assert (response.status, response.code) == (400, "usage")


@pytest.mark.parametrize("key", ["", "a b", "x" * 201, "\x01", "é"])
def test_an_idempotency_key_must_be_short_and_printable(client: DaemonClient, key: str):
    response = client.request_as_owner("POST", "/api/wake", f"Idempotency-Key: {key}")
    assert (response.status, response.code) == (400, "usage")


@pytest.mark.parametrize(
    "kind", ["application/json", "application/json; charset=utf-8", 'Application/JSON;charset="UTF-8"']
)
def test_a_json_content_type_may_name_the_utf_8_charset(client: DaemonClient, kind: str):
    assert client.request_as_owner("POST", "/api/wake", f"Content-Type: {kind}", body=b"{}").status == 200
    assert client.request_as_owner("POST", "/api/wake", body=b"{}").status == 415
    assert client.request_as_owner("POST", "/api/wake", body=b"").status == 200


def test_a_wrong_method_is_refused_and_the_allowed_methods_are_named(client: DaemonClient):
    for path in {route.path for route in ROUTES}:
        methods = {route.method for route in ROUTES if route.path == path}
        allowed = ", ".join(sorted(methods | ({"HEAD"} if "GET" in methods else set())))
        for method in ("GET", "POST", "PUT", "PATCH", "DELETE", "TRACE", "PROPFIND"):
            if method not in methods:
                response = client.request(method, path.replace("{ref}", "x"), transport="socket")
                assert (response.status, response.code) == (405, "method_not_allowed")
                assert response.headers["allow"] == allowed


def test_every_get_route_answers_head_without_a_body(client: DaemonClient):
    for route in ROUTES:
        if route.method == "GET":
            response = client.request("HEAD", route_path(route), transport="socket")
            assert response.status in (200, 404)
            assert response.body == b""
