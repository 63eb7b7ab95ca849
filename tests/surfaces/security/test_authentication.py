"""Authentication and authorization: every request needs a token, and a token grants only its rights."""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from daemon_fixture import DaemonClient, DaemonProcess

from retinue import errors
from retinue.domain.api_permission import ApiPermission
from retinue.errors import RetinueError
from retinue.server.asgi_app import HTTP_STATUSES
from retinue.server.auth_throttle import MAX_FAILURES
from retinue.server.error_responses import ERROR_CODES
from retinue.server.response_headers import CONTENT_SECURITY_POLICY
from retinue.server.route_table import ROUTES
from retinue.server.routing import Route

UNKNOWN_PATHS = (
    "/api",
    "/api/",
    "/api/nothing",
    "/docs",
    "/openapi.json",
    "/app.js",
    "/index.html",
    "/favicon.ico",
    "/x/y",
)
SECURITY_HEADERS = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


def route_path(route: Route) -> str:
    return route.path.replace("{ref}", "nothing-of-this-name")


def all_requests() -> Sequence[tuple[str, str]]:
    """Every route with each of its methods, HEAD wherever there is GET, and paths that do not exist."""
    requests = [(route.method, route_path(route)) for route in ROUTES]
    requests += [("HEAD", path) for method, path in requests if method == "GET"]
    return [*requests, *(("GET", path) for path in UNKNOWN_PATHS), ("POST", "/"), ("OPTIONS", "/api/health")]


@pytest.mark.parametrize(("method", "path"), all_requests())
def test_every_request_without_a_token_is_unauthenticated(client: DaemonClient, method: str, path: str):
    """Shows: A01."""
    response = client.request(method, path, body=b"" if method not in ("GET", "HEAD", "OPTIONS") else None)
    assert response.status == 401
    assert method == "HEAD" or response.code == "unauthenticated"
    assert response.headers["www-authenticate"].startswith("Bearer")


def test_the_route_table_contains_the_sensitive_routes():
    """The tests over all routes prove something only if the table has the streams, the status and the stop."""
    assert {"/api/health", "/api/events", "/api/links", "/api/stop"} <= {route.path for route in ROUTES}


@pytest.mark.parametrize(("method", "path"), all_requests())
def test_every_response_carries_the_security_headers_and_no_cors_header(
    client: DaemonClient, method: str, path: str
):
    """Shows: U08."""
    body = b"" if method not in ("GET", "HEAD", "OPTIONS") else None
    can_succeed = path != "/api/stop"
    for response in (
        client.request(method, path, body=body),
        client.request(method, path, body=body, host="evil.example"),
        *([client.request_as_owner(method, path, f"Origin: {client.url}", body=body)] if can_succeed else []),
    ):
        assert {name: response.headers.get(name) for name in SECURITY_HEADERS} == SECURITY_HEADERS
        assert "frame-ancestors 'none'" in response.headers["content-security-policy"]
        assert not [name for name in response.headers if name.startswith("access-control-")]
        assert "server" not in response.headers
        if path.startswith("/api"):
            assert "no-store" in response.headers["cache-control"]


def test_only_the_exact_token_authenticates(client: DaemonClient):
    """Shows: A02."""
    token = client.token
    assert client.request("GET", "/api/health", token=token).status == 200
    other = "A" if token[0] != "A" else "B"
    for wrong_token in (
        other + token[1:],
        token[:-1] + ("A" if token[-1] != "A" else "B"),
        token[:-1],
        token + "A",
        token.swapcase(),
        token[0],
        "",
        "*",
        "null",
        "é" * len(token),
    ):
        assert client.request("GET", "/api/health", token=wrong_token).status in (401, 429), wrong_token
    for authorization in (
        f"Basic {token}",
        token,
        f"Bearer{token}",
        f"Token {token}",
        f"Bearer {token} {token}",
    ):
        assert client.request("GET", "/api/health", f"Authorization: {authorization}").status in (401, 429), (
            authorization
        )
    duplicate = client.request("GET", "/api/health", "Authorization: Bearer x", token=token)
    assert (duplicate.status, duplicate.code) == (400, "usage")


@pytest.mark.parametrize(
    "path",
    ["/api/health?token={}", "/api/health?access_token={}", "/api/health?key={}", "/{}", "/api/health/{}"],
)
def test_a_token_in_the_url_or_another_header_does_not_authenticate(client: DaemonClient, path: str):
    """Shows: A07."""
    assert client.request("GET", path.format(client.token)).status == 401
    assert client.request("GET", "/api/health", f"Cookie: token={client.token}").status == 401
    assert client.request("GET", "/api/health", f"X-Api-Key: {client.token}").status == 401


def test_ten_thousand_wrong_tokens_are_throttled_and_the_right_token_still_works(client: DaemonClient):
    """A token has 256 random bits, and the throttle also applies to clients on this machine.

    Shows: A12.
    """
    assert re.fullmatch(r"[A-Za-z0-9_-]{43}", client.token)
    status_counts: dict[int, int] = {}
    with client.connect() as connection:
        for number in range(10_000):
            response = client.request("GET", "/api/health", token=f"{number:043}", connection=connection)
            status_counts[response.status] = status_counts.get(response.status, 0) + 1
            if response.status == 429:
                assert response.code == "rate_limited"
                assert 0 < int(response.headers["retry-after"]) <= 60
            if number % 1_000 == 999:
                assert client.request_as_owner("GET", "/api/health", connection=connection).status == 200
    assert set(status_counts) <= {401, 429}
    assert status_counts[429] >= 10_000 - 20 * MAX_FAILURES


def test_wrong_login_links_are_throttled_like_wrong_tokens(client: DaemonClient):
    """Shows: A12."""
    statuses = [client.request("GET", f"/enter/{number:043}").status for number in range(MAX_FAILURES + 2)]
    assert set(statuses) <= {404, 429}
    assert statuses[-1] == 429


def test_requests_over_the_unix_socket_need_no_token(client: DaemonClient):
    for host in ("daemon", "evil.example", ""):
        assert client.request("GET", "/api/health", transport="socket", host=host).status == 200
    foreign = client.request("GET", "/api/health", "Origin: http://evil.example", transport="socket")
    assert foreign.status == 200


def test_no_header_makes_a_tcp_request_count_as_a_socket_request(client: DaemonClient):
    """Shows: A08."""
    for header in (
        "X-Way: socket",
        "Way: socket",
        "X-Forwarded-For: 127.0.0.1",
        "Forwarded: for=unix:",
        "State: way=socket",
    ):
        assert client.request("GET", "/api/health", header).status == 401


@pytest.fixture(scope="module")
def single_right_tokens(daemon: DaemonProcess) -> dict[ApiPermission, str]:
    """One token for each right, with only that right."""
    return {
        right: daemon.run_command("tokens", "add", f"only-{right}", "--rights", right)["token"]
        for right in ApiPermission
    }


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_a_token_without_the_right_of_a_route_is_refused_and_the_error_names_the_right(
    client: DaemonClient, single_right_tokens: dict[ApiPermission, str], route: Route
):
    """Changing the daemon itself needs admin, which neither the page nor a limited token has.

    Shows: A18.
    """
    for right, token in single_right_tokens.items():
        if right is not route.right:
            body = None if route.method == "GET" else b"{}"
            response = client.request(
                route.method, route_path(route), "Content-Type: application/json", body=body, token=token
            )
            assert (response.status, response.code) == (403, "forbidden")
            assert response.json["error"]["details"] == {"right": route.right}
    if route.method == "GET":
        assert client.request("GET", route_path(route), token=single_right_tokens[route.right]).status in (
            200,
            404,
        )


def test_routes_that_start_programs_or_stop_the_daemon_need_admin():
    """Shows: A18."""
    rights = {(route.method, route.path): route.right for route in ROUTES}
    assert rights["POST", "/api/stop"] is rights["POST", "/api/links"] is ApiPermission.ADMIN
    changing = [route for route in ROUTES if route.method != "GET"]
    assert [route.path for route in changing if route.right is ApiPermission.READ] == []
    assert [route.path for route in ROUTES if "config" in route.path or "tools" in route.path] == []


@pytest.mark.parametrize(
    "claim",
    ["X-Rights: admin", "Rights: read, run, approve, admin", "X-Role: admin", "X-Scopes: *", "X-User: root"],
)
def test_rights_claimed_in_headers_query_or_body_are_ignored(
    client: DaemonClient, single_right_tokens: dict[ApiPermission, str], claim: str
):
    """Shows: A08."""
    token = single_right_tokens[ApiPermission.READ]
    assert client.request("POST", "/api/links", claim, token=token).status == 403
    assert client.request("POST", "/api/links?rights=admin", claim, token=token).status == 403
    body = b'{"rights": ["admin"], "scopes": ["admin"]}'
    assert (
        client.request("POST", "/api/links", "Content-Type: application/json", token=token, body=body).status
        == 403
    )


def test_a_token_works_from_its_creation_until_its_removal(daemon: DaemonProcess, client: DaemonClient):
    created = daemon.run_command("tokens", "add", "ci", "--rights", "read,run")
    assert created["rights"] == ["read", "run"]
    assert client.request("GET", "/api/health", token=created["token"]).status == 200
    assert client.request("POST", "/api/wake", token=created["token"]).status == 200
    stored = (daemon.home / "tokens.json").read_text()
    assert created["token"] not in stored
    rights_by_name = {row["name"]: row["rights"] for row in daemon.run_command("tokens", "list")}
    assert rights_by_name["ci"] == ["read", "run"]
    assert daemon.run_command("tokens", "remove", "ci") == {"name": "ci", "removed": True}
    assert client.request("GET", "/api/health", token=created["token"]).status in (401, 429)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("add", "x", "--rights", "everything"), "usage"),
        (("add", "x", "--rights", ","), "usage"),
        (("add", "x"), "usage"),
        (("add", "X/../y", "--rights", "read"), "usage"),
        (("remove", "nobody"), "not_found"),
    ],
)
def test_invalid_token_commands_are_refused(daemon: DaemonProcess, arguments: tuple[str, ...], code: str):
    assert daemon.run_command("tokens", *arguments)["error"]["code"] == code


def test_the_reference_lists_every_http_error():
    """Each status that the daemon returns by itself or for an error class, with its code."""
    reference = (Path(__file__).parents[3] / "docs/reference/errors.md").read_text()
    documented: set[tuple[int, str]] = set()
    for row in reference.partition("## Over HTTP")[2].splitlines():
        if match := re.match(r"\| ([\d, ]+) \| ([^|]+) \|", row):
            codes = re.findall(r"`(\w+)`", match[2])
            documented |= {(int(status), code) for status in match[1].split(",") for code in codes}
    error_classes = [
        error_class
        for error_class in vars(errors).values()
        if isinstance(error_class, type) and issubclass(error_class, RetinueError)
    ]
    used = {
        (http_status_of(error_class), error_class.code)
        for error_class in error_classes
        if error_class is not RetinueError
    }
    assert (used | set(ERROR_CODES.items())) - documented == set()


def http_status_of(error_class: type[RetinueError]) -> int:
    return next((status for parent, status in HTTP_STATUSES if issubclass(error_class, parent)), 500)
