"""Where a request comes from: pages of other sites, names that others made point here, and look-alikes."""

import re

import pytest
from commands import RETINUE, run_process
from daemon_fixture import DaemonClient, MakeDaemon

EVIL = "http://evil.example"
JSON = "Content-Type: application/json"


@pytest.fixture(scope="module")
def cookie(client: DaemonClient) -> str:
    """A browser's cookie, as a link turned into it."""
    link = client.request_as_owner("POST", "/api/links").json["url"]
    answer = client.request("GET", link.removeprefix(client.url))
    return "Cookie: " + answer.headers["set-cookie"].partition(";")[0]


def look_alikes(port: int) -> list[str]:
    return [
        "null",
        "",
        EVIL,
        f"http://localhost:{port}.evil.example",
        f"http://127.0.0.1:{port}.evil.example",
        f"http://127.0.0.1:{port}@evil.example",
        f"http://127.0.0.1:{port}/",
        f"http://127.0.0.1:{port} {EVIL}",
        f"http://127.0.0.1:{port + 1}",
        f"http://localhost:{port + 1}",
        f"http://localhost:{port}",
        "http://127.0.0.1",
        f"https://127.0.0.1:{port}",
        f"HTTP://127.0.0.1:{port}",
        f"http://127.0.0.1.:{port}",
        f"http://127.1:{port}",
        f"http://2130706433:{port}",
        f"http://0.0.0.0:{port}",
        f"http://[::1]:{port}",
        f"http://[::ffff:127.0.0.1]:{port}",
        "file://",
        "chrome-extension://abcdef",
    ]


def test_only_the_pages_own_origin_is_let_in(client: DaemonClient, cookie: str):
    """Shows: A06."""
    for key in (f"Authorization: Bearer {client.token}", cookie):
        assert client.request("GET", "/api/health", key, f"Origin: {client.url}").status == 200
        for origin in look_alikes(client.port):
            for method, path in (
                ("GET", "/api/health"),
                ("POST", "/api/wake"),
                ("GET", "/"),
                ("GET", "/app.js"),
            ):
                answer = client.request(method, path, key, f"Origin: {origin}", JSON)
                assert (answer.status, answer.code) == (403, "forbidden"), origin


def test_a_form_of_another_page_changes_nothing(client: DaemonClient, cookie: str):
    """A simple POST needs no leave of the browser's: it is refused here.

    Shows: A03.
    """
    plain, form = "Content-Type: text/plain", "Content-Type: application/x-www-form-urlencoded"
    for key in (cookie, f"Authorization: Bearer {client.token}"):
        for kind in (plain, form, JSON):
            foreign = client.request("POST", "/api/wake", key, kind, f"Origin: {EVIL}", body=b"{}")
            assert foreign.status == 403
            for site in ("cross-site", "same-site", "none", "anything"):
                answer = client.request("POST", "/api/wake", key, kind, f"Sec-Fetch-Site: {site}", body=b"{}")
                assert (answer.status, answer.code) == (403, "forbidden"), site
        for kind in (
            plain,
            form,
            "Content-Type: multipart/form-data; boundary=x",
            "Content-Type: application/jsonp",
        ):
            answer = client.request("POST", "/api/wake", key, kind, f"Origin: {client.url}", body=b"{}")
            assert (answer.status, answer.code) == (415, "unsupported_media_type")
    assert client.request("POST", "/api/wake", cookie, JSON, body=b"{}").status == 403
    assert (
        client.request("POST", "/api/wake", cookie, JSON, f"Origin: {client.url}", body=b"{}").status == 200
    )


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:{port}",
        "127.0.0.1",
        "127.0.0.1:1",
        "127.0.0.1:{port}.evil.example",
        "127.0.0.1:{port}@evil.example",
        "evil.example@127.0.0.1:{port}",
        "localhost.evil.example:{port}",
        "127.0.0.1.:{port}",
        "0.0.0.0:{port}",
        "[::1]:{port}",
        "2130706433:{port}",
        "127.0.0.1:0{port}",
        "127.0.0.1:+{port}",
        " ",
        "",
    ],
)
def test_a_name_that_others_made_point_here_is_not_answered_to(client: DaemonClient, host: str):
    """Shows: A04."""
    said = host.format(port=client.port)
    for path in ("/api/health", "/", "/enter/x"):
        answer = client.request_as_owner("GET", path, host=said)
        assert (answer.status, answer.code) == (421, "misdirected_request")
    twice = client.request_as_owner("GET", "/api/health", "Host: evil.example")
    assert twice.status == 400


def test_the_machines_own_name_for_itself_is_answered_to(client: DaemonClient):
    local = f"localhost:{client.port}"
    assert client.request_as_owner("GET", "/api/health", f"Origin: http://{local}", host=local).status == 200
    assert client.request_as_owner("GET", "/api/health", f"Origin: {client.url}", host=local).status == 403


def test_an_address_in_the_request_line_does_not_stand_for_the_host(client: DaemonClient):
    """Shows: A04."""
    assert client.request_as_owner("GET", f"{EVIL}/api/health").status == 400
    assert client.request_as_owner("GET", f"{client.url}/api/health").status == 400
    assert client.request_as_owner("GET", "//evil.example/api/health").status == 404
    assert client.request_as_owner("GET", "//evil.example/%2e%2e").status == 404


def test_no_stream_and_no_socket_is_opened_for_another_origin(client: DaemonClient, cookie: str):
    """Shows: A05."""
    upgrade = (
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: eDEyMw==",
    )
    assert (
        client.request("GET", "/api/events", cookie).headers["content-type"].startswith("text/event-stream")
    )
    for key in (cookie, f"Authorization: Bearer {client.token}"):
        assert client.request("GET", "/api/events", key, f"Origin: {EVIL}").status == 403
        assert client.request("GET", "/api/events", key, "Sec-Fetch-Site: cross-site").status == 403
        assert client.request("GET", "/api/events", key, *upgrade, f"Origin: {EVIL}").status == 403
        assert client.request("GET", "/api/health", key, *upgrade, f"Origin: {client.url}").status == 200
    assert client.request("GET", "/api/events", *upgrade, f"Origin: {client.url}").status == 401


@pytest.mark.parametrize(
    ("site", "mode", "status"),
    [
        ("same-origin", "cors", 200),
        ("same-origin", "no-cors", 200),
        ("none", "navigate", 200),
        ("none", "cors", 403),
        ("none", "no-cors", 403),
        ("same-site", "navigate", 403),
        ("same-site", "cors", 403),
        ("cross-site", "navigate", 403),
        ("cross-site", "no-cors", 403),
        ("", "navigate", 403),
    ],
)
def test_what_a_browser_says_of_a_request_is_believed(
    client: DaemonClient, cookie: str, site: str, mode: str, status: int
):
    """Shows: A03."""
    said = (f"Sec-Fetch-Site: {site}", f"Sec-Fetch-Mode: {mode}")
    assert client.request("GET", "/api/health", cookie, *said).status == status


def test_nobody_is_told_what_another_origin_might_do(client: DaemonClient):
    """A question before a request is answered like any other request, and permits nothing."""
    asks = ("Access-Control-Request-Method: POST", "Access-Control-Request-Headers: authorization")
    answer = client.request_as_owner("OPTIONS", "/api/wake", *asks, f"Origin: {EVIL}")
    assert answer.status == 403
    own = client.request_as_owner("OPTIONS", "/api/wake", *asks)
    assert (own.status, own.code, own.headers["allow"]) == (405, "method_not_allowed", "POST")


def test_other_machines_are_let_in_only_by_two_words_and_a_token(make_daemon: MakeDaemon):
    """Shows: A13."""
    daemon = make_daemon("--host", "0.0.0.0", "--allow-remote")
    words = [*RETINUE, "serve", "--host", "0.0.0.0", "--port", "0"]
    refused = run_process(words, env=daemon.env, timeout=60)
    assert refused.returncode == 2
    assert b"--allow-remote" in refused.stderr
    assert not (daemon.home / "daemon.sock").exists()
    daemon.start()
    try:
        door = daemon.client
        assert re.match(r"http://127\.0\.0\.1:\d+/enter/", daemon.link)
        assert door.request("GET", "/api/health").status == 401
        assert door.request("GET", "/api/health", token="x" * 43).status == 401
        assert door.request_as_owner("GET", "/api/health").status == 200
        assert door.request_as_owner("GET", "/api/health", host=f"192.0.2.7:{door.port}").status == 200
        for host in (
            f"evil.example:{door.port}",
            "192.0.2.7:1",
            f"192.0.2.7.evil.example:{door.port}",
            f"::1:{door.port}",
        ):
            assert door.request_as_owner("GET", "/api/health", host=host).status == 421
    finally:
        daemon.stop()
