"""What a request says: names that are none, bodies that are too large, too deep, or not what they say they are."""

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
NAMING = [route for route in ROUTES if "{ref}" in route.path]
TAKING = [route for route in ROUTES if route.method not in ("GET", "DELETE") and route.path != "/api/stop"]
NO_NAMES = (
    "..", "%2e%2e", "..%2f", "..%2f..%2fetc%2fpasswd", "%2e%2e%2f%2e%2e%2ftoken", "%2fetc%2fpasswd", "x%2f..%2f..",
    "%00", "x%00.md", "x%0a", "x%0d%0aset-cookie:a=b", "%5c..%5c", ".hidden", "-rf", "_x", "~root", "x%20y", "%20",
    "%c3%a9", "%e2%80%ae", "%f0%9f%92%a9", "%ff%fe", "%c0%af", "%u002e", "%", "%zz", "*", "x*", "x'--", "x%22", "x;y",
    "$(id)", "`id`", "{ref}", "a" * 201, "a" * 7_000, "%61" * 2_000,
)  # fmt: skip
"""None of them is how anything here is written."""


def path_of(route: Route, ref: str = "nothing-of-this-name") -> str:
    return route.path.replace("{ref}", ref)


def id_of(route: Route) -> str:
    return f"{route.method} {route.path}"


def files(home: Path) -> set[str]:
    return {str(path.relative_to(home)) for path in (home / "sessions").rglob("*")}


@pytest.mark.parametrize("route", NAMING, ids=id_of)
def test_a_name_that_cannot_be_one_is_not_looked_for(client: DaemonClient, route: Route):
    """Shows: A09."""
    before = files(client.home)
    sent = None if route.method == "GET" else b"{}"
    with client.connect("socket") as line:
        for name in NO_NAMES:
            answer = client.request(route.method, path_of(route, name), JSON, body=sent, connection=line)
            assert answer.status in (400, 404), (name, answer.body)
            assert answer.code in ("usage", "not_found")
            assert b"Traceback" not in answer.body
            if answer.headers.get("connection") == "close":
                line.close()
                line = client.connect("socket")  # noqa: PLW2901  (the daemon ended this one)
        line.close()
    assert files(client.home) == before


def test_a_slash_that_is_hidden_makes_no_other_address(client: DaemonClient):
    """Shows: A09."""
    assert client.request_as_owner("GET", "/api%2fhealth").status == 404
    assert client.request_as_owner("GET", "/api/health%2f").status == 404
    assert client.request_as_owner("GET", "/api/../api/health").status == 404
    assert client.request_as_owner("GET", "/api//health").status == 404
    assert client.request_as_owner("GET", "/api/health/").status == 404
    assert client.request_as_owner("GET", "/api/%68ealth").status == 200


def test_five_megabytes_are_too_many_however_they_are_announced(client: DaemonClient):
    """Shows: A10."""
    large = json.dumps({"content": "x" * 5_000_000}).encode()
    told = client.request_as_owner("POST", "/api/wake", JSON, body=large)
    assert (told.status, told.code, told.headers["connection"]) == (413, "too_large", "close")
    key = f"Authorization: Bearer {client.token}"
    head = f"POST /api/look HTTP/1.1\r\nHost: {client.host}\r\n{key}\r\n{JSON}\r\n"
    chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
    chunked = client.send_raw(
        f"{head}Transfer-Encoding: chunked\r\n\r\n".encode(), *[chunk] * 100, b"0\r\n\r\n"
    )
    assert chunked.startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize("length", ["5000000000", "9" * 18, "9" * 30])
def test_five_gigabytes_are_refused_before_the_first_byte_of_them(client: DaemonClient, length: str):
    """Nobody waits for them either: what was announced is enough, and no leave to go on is given.

    Shows: A10.
    """
    key = f"Authorization: Bearer {client.token}"
    for more in ("", "Expect: 100-continue\r\n"):
        said = f"POST /api/look HTTP/1.1\r\nHost: {client.host}\r\n{key}\r\n{JSON}\r\n{more}Content-Length: {length}\r\n\r\n"
        answer = client.send_raw(said.encode())
        assert answer.startswith((b"HTTP/1.1 413 ", b"HTTP/1.1 400 ")), answer
        assert b"100 Continue" not in answer


def test_somebody_without_a_key_cannot_make_it_read(client: DaemonClient):
    """Shows: A10."""
    said = f"POST /api/look HTTP/1.1\r\nHost: {client.host}\r\n{JSON}\r\nContent-Length: 5000000000\r\n\r\n"
    assert client.send_raw(said.encode(), b"x" * 1_000_000).startswith(b"HTTP/1.1 401 ")


@pytest.mark.parametrize("coding", ["gzip", "br", "deflate", "zstd", "gzip, gzip", "x-anything"])
def test_nothing_is_unpacked(client: DaemonClient, coding: str):
    """A bomb stays what it is: a few bytes that nobody opens.

    Shows: A10.
    """
    bomb = gzip.compress(b"{" + b" " * 50_000_000 + b"}")
    answer = client.request_as_owner("POST", "/api/wake", JSON, f"Content-Encoding: {coding}", body=bomb)
    assert (answer.status, answer.code) == (415, "unsupported_media_type")


NO_JSON = {
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


@pytest.mark.parametrize("what", NO_JSON)
def test_json_that_two_readers_could_understand_differently_is_understood_by_none(
    client: DaemonClient, what: str
):
    """Shows: A11."""
    for route in TAKING:
        answer = client.request(route.method, path_of(route), JSON, body=NO_JSON[what], transport="socket")
        assert (answer.status, answer.code) == (400, route.error_codes.get("usage", "usage")), answer.body
        assert len(answer.body) < 2_000


OUR_WORDS = {
    b'{"content": "a", "content": "b"}': "In the body, 'content' is said twice; keep one of the two",
    b'{"content": "a", "timeout": NaN}': "In the body, NaN is not a number that can be used",
    b'{"content": "a", "timeout": '
    + b"9" * 5_000
    + b"}": "In the body, a number has 5,000 digits; 1000 are the most",
    b'{"content": "a", "timeout": 1e999}': "The body contains a number that is too large - at `$.timeout`",
    b'{"content": "\\ud800"}': "The body contains a lone surrogate (\\ud800 to \\udfff)",
    b'{"content": "\\ude00"}': "The body contains a lone surrogate (\\ud800 to \\udfff)",
    b'{"content": "\xff"}': "The body is not UTF-8 at byte 13. Send it as UTF-8.",
    b"{}{}": "The body is not JSON: Extra data at column 3 (line 1)",
}


@pytest.mark.parametrize("body", OUR_WORDS)
def test_what_is_wrong_with_a_body_is_said_in_our_words(body: bytes):
    with pytest.raises(UsageError) as refused:
        decode_body(body, MessageBody)
    assert str(refused.value) == OUR_WORDS[body]


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
def test_no_body_is_a_defect(client: DaemonClient, body: bytes):
    """Shows: A11."""
    answer = client.request("POST", "/api/wake", JSON, body=body, transport="socket")
    assert answer.status in (200, 400), answer.body


@pytest.mark.parametrize("query", ["a=1&a=1", "x=%00", "x=%0a", "nothing=known", "%ff=1", "rights=admin"])
def test_a_query_that_says_what_nobody_asked_is_refused(client: DaemonClient, query: str):
    answer = client.request_as_owner("GET", f"/api/health?{query}")
    assert (answer.status, answer.code) == (400, "usage")


@pytest.mark.parametrize("key", ["", "a b", "x" * 201, "\x01", "é"])
def test_an_idempotency_key_is_something_that_can_be_seen(client: DaemonClient, key: str):
    answer = client.request_as_owner("POST", "/api/wake", f"Idempotency-Key: {key}")
    assert (answer.status, answer.code) == (400, "usage")


@pytest.mark.parametrize(
    "kind", ["application/json", "application/json; charset=utf-8", 'Application/JSON;charset="UTF-8"']
)
def test_json_may_say_that_it_is_utf_8(client: DaemonClient, kind: str):
    assert client.request_as_owner("POST", "/api/wake", f"Content-Type: {kind}", body=b"{}").status == 200
    assert client.request_as_owner("POST", "/api/wake", body=b"{}").status == 415
    assert client.request_as_owner("POST", "/api/wake", body=b"").status == 200


def test_an_address_says_how_it_can_be_asked_for(client: DaemonClient):
    for path in {route.path for route in ROUTES}:
        methods = {route.method for route in ROUTES if route.path == path}
        allowed = ", ".join(sorted(methods | ({"HEAD"} if "GET" in methods else set())))
        for method in ("GET", "POST", "PUT", "PATCH", "DELETE", "TRACE", "PROPFIND"):
            if method not in methods:
                answer = client.request(method, path.replace("{ref}", "x"), transport="socket")
                assert (answer.status, answer.code) == (405, "method_not_allowed")
                assert answer.headers["allow"] == allowed


def test_head_is_where_get_is_and_says_no_words(client: DaemonClient):
    for route in ROUTES:
        if route.method == "GET":
            answer = client.request("HEAD", path_of(route), transport="socket")
            assert answer.status in (200, 404)
            assert answer.body == b""
