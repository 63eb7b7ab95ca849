"""Who comes in: without a key nobody, with a narrow one nobody further than it reaches."""

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
from retinue.server.error_responses import CONTENT_SECURITY_POLICY, ERROR_CODES
from retinue.server.route_table import ROUTES
from retinue.server.routing import Route

BESIDES = (
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
ON_EVERYTHING = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


def named(route: Route) -> str:
    return route.path.replace("{ref}", "nothing-of-this-name")


def everything() -> Sequence[tuple[str, str]]:
    """Every route with every method that it has, HEAD where GET is, and addresses that are none."""
    asked = [(route.method, named(route)) for route in ROUTES]
    asked += [("HEAD", path) for method, path in asked if method == "GET"]
    return [*asked, *(("GET", path) for path in BESIDES), ("POST", "/"), ("OPTIONS", "/api/health")]


@pytest.mark.parametrize(("method", "path"), everything())
def test_nothing_is_answered_without_a_key(client: DaemonClient, method: str, path: str):
    """Shows: A01."""
    answer = client.request(method, path, body=b"" if method not in ("GET", "HEAD", "OPTIONS") else None)
    assert answer.status == 401
    assert method == "HEAD" or answer.code == "unauthenticated"
    assert answer.headers["www-authenticate"].startswith("Bearer")


def test_the_table_has_all_that_was_promised():
    """The walk above is worth as much as the table: it has the streams, the state and the end of the daemon."""
    assert {"/api/health", "/api/events", "/api/links", "/api/stop"} <= {route.path for route in ROUTES}


@pytest.mark.parametrize(("method", "path"), everything())
def test_every_answer_carries_the_shield_and_none_lets_another_origin_in(
    client: DaemonClient, method: str, path: str
):
    """Shows: U08."""
    sent = b"" if method not in ("GET", "HEAD", "OPTIONS") else None
    harmless = path != "/api/stop"
    for answer in (
        client.request(method, path, body=sent),
        client.request(method, path, body=sent, host="evil.example"),
        *([client.request_as_owner(method, path, f"Origin: {client.url}", body=sent)] if harmless else []),
    ):
        assert {name: answer.headers.get(name) for name in ON_EVERYTHING} == ON_EVERYTHING
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
        assert not [name for name in answer.headers if name.startswith("access-control-")]
        assert "server" not in answer.headers
        if path.startswith("/api"):
            assert "no-store" in answer.headers["cache-control"]


def test_only_the_token_itself_is_the_token(client: DaemonClient):
    """Shows: A02."""
    right = client.token
    assert client.request("GET", "/api/health", token=right).status == 200
    other = "A" if right[0] != "A" else "B"
    for wrong in (
        other + right[1:],
        right[:-1] + ("A" if right[-1] != "A" else "B"),
        right[:-1],
        right + "A",
        right.swapcase(),
        right[0],
        "",
        "*",
        "null",
        "é" * len(right),
    ):
        assert client.request("GET", "/api/health", token=wrong).status in (401, 429), wrong
    for said in (f"Basic {right}", right, f"Bearer{right}", f"Token {right}", f"Bearer {right} {right}"):
        assert client.request("GET", "/api/health", f"Authorization: {said}").status in (401, 429), said
    twice = client.request("GET", "/api/health", "Authorization: Bearer x", token=right)
    assert (twice.status, twice.code) == (400, "usage")


@pytest.mark.parametrize(
    "place",
    ["/api/health?token={}", "/api/health?access_token={}", "/api/health?key={}", "/{}", "/api/health/{}"],
)
def test_a_token_in_an_address_opens_nothing(client: DaemonClient, place: str):
    """Shows: A07."""
    assert client.request("GET", place.format(client.token)).status == 401
    assert client.request("GET", "/api/health", f"Cookie: token={client.token}").status == 401
    assert client.request("GET", "/api/health", f"X-Api-Key: {client.token}").status == 401


def test_ten_thousand_wrong_tokens_open_nothing_and_the_right_one_still_works(client: DaemonClient):
    """256 bits, and a throttle that holds this machine's own programs too.

    Shows: A12.
    """
    assert re.fullmatch(r"[A-Za-z0-9_-]{43}", client.token)
    seen: dict[int, int] = {}
    with client.connect() as line:
        for number in range(10_000):
            answer = client.request("GET", "/api/health", token=f"{number:043}", connection=line)
            seen[answer.status] = seen.get(answer.status, 0) + 1
            if answer.status == 429:
                assert answer.code == "rate_limited"
                assert 0 < int(answer.headers["retry-after"]) <= 60
            if number % 1_000 == 999:
                assert client.request_as_owner("GET", "/api/health", connection=line).status == 200
    assert set(seen) <= {401, 429}
    assert seen[429] >= 10_000 - 20 * MAX_FAILURES


def test_wrong_links_are_throttled_like_wrong_tokens(client: DaemonClient):
    """Shows: A12."""
    answers = [client.request("GET", f"/enter/{number:043}").status for number in range(MAX_FAILURES + 2)]
    assert set(answers) <= {404, 429}
    assert answers[-1] == 429


def test_over_the_socket_the_kernel_vouches_and_no_key_is_asked_for(client: DaemonClient):
    for host in ("daemon", "evil.example", ""):
        assert client.request("GET", "/api/health", transport="socket", host=host).status == 200
    foreign = client.request("GET", "/api/health", "Origin: http://evil.example", transport="socket")
    assert foreign.status == 200


def test_no_header_says_by_which_way_a_request_came(client: DaemonClient):
    """Shows: A08."""
    for said in (
        "X-Way: socket",
        "Way: socket",
        "X-Forwarded-For: 127.0.0.1",
        "Forwarded: for=unix:",
        "State: way=socket",
    ):
        assert client.request("GET", "/api/health", said).status == 401


@pytest.fixture(scope="module")
def narrow(daemon: DaemonProcess) -> dict[ApiPermission, str]:
    """A token for each right alone."""
    return {
        right: daemon.run_command("tokens", "add", f"only-{right}", "--rights", right)["token"]
        for right in ApiPermission
    }


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_a_key_without_the_right_is_refused_and_told_which_it_lacks(
    client: DaemonClient, narrow: dict[ApiPermission, str], route: Route
):
    """What changes the daemon itself needs admin, which neither the page nor a narrower token has.

    Shows: A18.
    """
    for right, token in narrow.items():
        if right is not route.right:
            sent = None if route.method == "GET" else b"{}"
            answer = client.request(
                route.method, named(route), "Content-Type: application/json", body=sent, token=token
            )
            assert (answer.status, answer.code) == (403, "forbidden")
            assert answer.json["error"]["details"] == {"right": route.right}
    if route.method == "GET":
        assert client.request("GET", named(route), token=narrow[route.right]).status in (200, 404)


def test_what_runs_programs_or_ends_the_daemon_needs_admin():
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
def test_rights_that_a_request_claims_count_for_nothing(
    client: DaemonClient, narrow: dict[ApiPermission, str], claim: str
):
    """Shows: A08."""
    token = narrow[ApiPermission.READ]
    assert client.request("POST", "/api/links", claim, token=token).status == 403
    assert client.request("POST", "/api/links?rights=admin", claim, token=token).status == 403
    body = b'{"rights": ["admin"], "scopes": ["admin"]}'
    assert (
        client.request("POST", "/api/links", "Content-Type: application/json", token=token, body=body).status
        == 403
    )


def test_tokens_count_from_the_moment_they_are_made_until_they_are_taken_back(
    daemon: DaemonProcess, client: DaemonClient
):
    made = daemon.run_command("tokens", "add", "ci", "--rights", "read,run")
    assert made["rights"] == ["read", "run"]
    assert client.request("GET", "/api/health", token=made["token"]).status == 200
    assert client.request("POST", "/api/wake", token=made["token"]).status == 200
    kept = (daemon.home / "tokens.json").read_text()
    assert made["token"] not in kept
    listed = {row["name"]: row["rights"] for row in daemon.run_command("tokens", "list")}
    assert listed["ci"] == ["read", "run"]
    assert daemon.run_command("tokens", "remove", "ci") == {"name": "ci", "removed": True}
    assert client.request("GET", "/api/health", token=made["token"]).status in (401, 429)


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
def test_tokens_that_cannot_be_are_not_made(daemon: DaemonProcess, arguments: tuple[str, ...], code: str):
    assert daemon.run_command("tokens", *arguments)["error"]["code"] == code


def test_the_list_of_errors_over_http_is_complete():
    """Every status that the daemon gives of itself or to an error of the product, with its code."""
    page = (Path(__file__).parents[3] / "docs/reference/errors.md").read_text()
    listed: set[tuple[int, str]] = set()
    for row in page.partition("## Over HTTP")[2].splitlines():
        if found := re.match(r"\| ([\d, ]+) \| ([^|]+) \|", row):
            codes = re.findall(r"`(\w+)`", found[2])
            listed |= {(int(status), code) for status in found[1].split(",") for code in codes}
    kinds = [
        kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, RetinueError)
    ]
    given = {(status_of(kind), kind.code) for kind in kinds if kind is not RetinueError}
    assert (given | set(ERROR_CODES.items())) - listed == set()


def status_of(kind: type[RetinueError]) -> int:
    return next((status for known, status in HTTP_STATUSES if issubclass(kind, known)), 500)
