"""Origin, Host and fetch metadata checks against other sites, DNS rebinding and similar-looking names."""

import re

import pytest
from commands import RETINUE, run_process
from daemon_fixture import DaemonClient, MakeDaemon

EVIL = "http://evil.example"
JSON = "Content-Type: application/json"


@pytest.fixture(scope="module")
def cookie(client: DaemonClient) -> str:
    """The cookie of a browser that entered by a login link."""
    link = client.request_as_owner("POST", "/api/links").json["url"]
    response = client.request("GET", link.removeprefix(client.url))
    return "Cookie: " + response.headers["set-cookie"].partition(";")[0]


def similar_origins(port: int) -> list[str]:
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


def test_only_the_origin_of_the_page_is_accepted(client: DaemonClient, cookie: str):
    """Shows: A06."""
    for credential in (f"Authorization: Bearer {client.token}", cookie):
        assert client.request("GET", "/api/health", credential, f"Origin: {client.url}").status == 200
        for origin in similar_origins(client.port):
            for method, path in (
                ("GET", "/api/health"),
                ("POST", "/api/wake"),
                ("GET", "/"),
                ("GET", "/app.js"),
            ):
                response = client.request(method, path, credential, f"Origin: {origin}", JSON)
                assert (response.status, response.code) == (403, "forbidden"), origin


def test_a_cross_site_form_or_a_body_that_is_not_json_changes_nothing(client: DaemonClient, cookie: str):
    """A browser sends a simple POST without a preflight request, so the daemon has to refuse it.

    Shows: A03.
    """
    text_type, form_type = "Content-Type: text/plain", "Content-Type: application/x-www-form-urlencoded"
    for credential in (cookie, f"Authorization: Bearer {client.token}"):
        for content_type in (text_type, form_type, JSON):
            foreign = client.request(
                "POST", "/api/wake", credential, content_type, f"Origin: {EVIL}", body=b"{}"
            )
            assert foreign.status == 403
            for site in ("cross-site", "same-site", "none", "anything"):
                response = client.request(
                    "POST", "/api/wake", credential, content_type, f"Sec-Fetch-Site: {site}", body=b"{}"
                )
                assert (response.status, response.code) == (403, "forbidden"), site
        for content_type in (
            text_type,
            form_type,
            "Content-Type: multipart/form-data; boundary=x",
            "Content-Type: application/jsonp",
        ):
            response = client.request(
                "POST", "/api/wake", credential, content_type, f"Origin: {client.url}", body=b"{}"
            )
            assert (response.status, response.code) == (415, "unsupported_media_type")
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
def test_a_request_with_a_foreign_host_header_is_misdirected(client: DaemonClient, host: str):
    """Shows: A04."""
    host_header = host.format(port=client.port)
    for path in ("/api/health", "/", "/enter/x"):
        response = client.request_as_owner("GET", path, host=host_header)
        assert (response.status, response.code) == (421, "misdirected_request")
    duplicate = client.request_as_owner("GET", "/api/health", "Host: evil.example")
    assert duplicate.status == 400


def test_localhost_is_accepted_as_host_but_is_an_origin_of_its_own(client: DaemonClient):
    localhost = f"localhost:{client.port}"
    assert (
        client.request_as_owner("GET", "/api/health", f"Origin: http://{localhost}", host=localhost).status
        == 200
    )
    assert (
        client.request_as_owner("GET", "/api/health", f"Origin: {client.url}", host=localhost).status == 403
    )


def test_a_url_in_the_request_line_does_not_replace_the_host_header(client: DaemonClient):
    """Shows: A04."""
    assert client.request_as_owner("GET", f"{EVIL}/api/health").status == 400
    assert client.request_as_owner("GET", f"{client.url}/api/health").status == 400
    assert client.request_as_owner("GET", "//evil.example/api/health").status == 404
    assert client.request_as_owner("GET", "//evil.example/%2e%2e").status == 404


def test_another_origin_can_open_neither_an_event_stream_nor_a_websocket(client: DaemonClient, cookie: str):
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
    for credential in (cookie, f"Authorization: Bearer {client.token}"):
        assert client.request("GET", "/api/events", credential, f"Origin: {EVIL}").status == 403
        assert client.request("GET", "/api/events", credential, "Sec-Fetch-Site: cross-site").status == 403
        assert client.request("GET", "/api/events", credential, *upgrade, f"Origin: {EVIL}").status == 403
        assert (
            client.request("GET", "/api/health", credential, *upgrade, f"Origin: {client.url}").status == 200
        )
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
def test_fetch_metadata_headers_decide_whether_a_browser_request_is_accepted(
    client: DaemonClient, cookie: str, site: str, mode: str, status: int
):
    """Shows: A03."""
    headers = (f"Sec-Fetch-Site: {site}", f"Sec-Fetch-Mode: {mode}")
    assert client.request("GET", "/api/health", cookie, *headers).status == status


def test_a_cors_preflight_request_grants_nothing(client: DaemonClient):
    headers = ("Access-Control-Request-Method: POST", "Access-Control-Request-Headers: authorization")
    response = client.request_as_owner("OPTIONS", "/api/wake", *headers, f"Origin: {EVIL}")
    assert response.status == 403
    own = client.request_as_owner("OPTIONS", "/api/wake", *headers)
    assert (own.status, own.code, own.headers["allow"]) == (405, "method_not_allowed", "POST")


def test_serving_other_machines_needs_both_options_and_a_token(make_daemon: MakeDaemon):
    """Shows: A13."""
    daemon = make_daemon("--host", "0.0.0.0", "--allow-remote")
    command = [*RETINUE, "serve", "--host", "0.0.0.0", "--port", "0"]
    refused = run_process(command, env=daemon.env, timeout=60)
    assert refused.returncode == 2
    assert b"--allow-remote" in refused.stderr
    assert not (daemon.home / "daemon.sock").exists()
    daemon.start()
    try:
        client = daemon.client
        assert re.match(r"http://127\.0\.0\.1:\d+/enter/", daemon.link)
        assert client.request("GET", "/api/health").status == 401
        assert client.request("GET", "/api/health", token="x" * 43).status == 401
        assert client.request_as_owner("GET", "/api/health").status == 200
        assert client.request_as_owner("GET", "/api/health", host=f"192.0.2.7:{client.port}").status == 200
        for host in (
            f"evil.example:{client.port}",
            "192.0.2.7:1",
            f"192.0.2.7.evil.example:{client.port}",
            f"::1:{client.port}",
        ):
            assert client.request_as_owner("GET", "/api/health", host=host).status == 421
    finally:
        daemon.stop()
