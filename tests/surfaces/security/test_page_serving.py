"""How the page is served: by a login link that works once, then by cookie, and only the page's own files."""

import asyncio
import gzip
import hashlib
import re
from pathlib import Path

import pytest
from daemon_fixture import DaemonClient, DaemonProcess, OpenServer

from retinue.domain.api_permission import WEB_USER_PERMISSIONS, ApiPermission

FILES = {
    "index.html": b"<!doctype html><title>x</title>",
    "app.js": b"export const x = 1;\n" * 50,
    "app.css": b"body { margin: 0 }\n",
    "licences.txt": b"None.\n",
    "strange.py": b"print('no file of the page')\n",
}
TYPES = {
    "index.html": "text/html; charset=utf-8",
    "app.js": "text/javascript; charset=utf-8",
    "app.css": "text/css; charset=utf-8",
    "licences.txt": "text/plain; charset=utf-8",
}


@pytest.fixture
def static_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "static"
    folder.mkdir()
    for name, data in FILES.items():
        (folder / name).write_bytes(data)
    (folder / "app.js.gz").write_bytes(gzip.compress(FILES["app.js"]))
    (tmp_path / "outside.txt").write_text("outside")
    (folder / "link.txt").symlink_to(tmp_path / "outside.txt")
    (folder / "folder.txt").mkdir()
    return folder


def open_link(client: DaemonClient, link: str) -> str:
    response = client.request("GET", link.removeprefix(client.url))
    assert (response.status, response.headers["location"]) == (303, "/")
    return "Cookie: " + response.headers["set-cookie"].partition(";")[0]


def test_a_login_link_works_once_and_sets_an_http_only_cookie(client: DaemonClient):
    """Shows: A07."""
    link = client.request_as_owner("POST", "/api/links").json["url"]
    assert re.fullmatch(re.escape(client.url) + r"/enter/[A-Za-z0-9_-]{43}", link)
    path = link.removeprefix(client.url)
    assert client.request("HEAD", path).status == 200, "a HEAD request must not use up the link"
    response = client.request("GET", path, "Sec-Fetch-Site: none", "Sec-Fetch-Mode: navigate")
    assert (response.status, response.headers["location"], response.body) == (303, "/", b"")
    cookie, *attributes = [each.strip().lower() for each in response.headers["set-cookie"].split(";")]
    assert {"httponly", "samesite=strict", "path=/"} <= set(attributes)
    assert not [each for each in attributes if each.startswith("domain")]
    assert client.token not in response.headers["set-cookie"]
    assert client.token.lower() not in cookie
    second = client.request("GET", path)
    assert second.status in (404, 429)
    assert "set-cookie" not in second.headers
    with_cookie = client.request("GET", path, "Cookie: " + response.headers["set-cookie"].partition(";")[0])
    assert (with_cookie.status, "set-cookie" in with_cookie.headers) == (303, False), (
        "a browser with a cookie is redirected without a new one"
    )


def test_the_printed_link_and_a_requested_link_each_open_their_own_page_session(
    daemon: DaemonProcess, client: DaemonClient
):
    cookie = open_link(client, daemon.link)
    assert client.request("GET", "/api/health", cookie).status == 200
    second_link = daemon.run_command("serve", "--link")["url"]
    assert second_link != daemon.link
    assert open_link(client, second_link) != cookie


def test_a_cookie_allows_read_run_and_approve_but_not_admin(client: DaemonClient):
    """Shows: A18."""
    assert {ApiPermission.READ, ApiPermission.RUN, ApiPermission.APPROVE} == WEB_USER_PERMISSIONS
    cookie = open_link(client, client.request_as_owner("POST", "/api/links").json["url"])
    origin = f"Origin: {client.url}"
    assert client.request("GET", "/api/health", cookie).status == 200
    assert client.request("POST", "/api/wake", cookie, origin).status == 200
    for path in ("/api/links", "/api/stop"):
        response = client.request("POST", path, cookie, origin)
        assert (response.status, response.json["error"]["details"]) == (403, {"right": "admin"})


def test_removing_the_token_of_one_page_session_leaves_the_others_logged_in(
    daemon: DaemonProcess, client: DaemonClient
):
    before = {row["name"] for row in daemon.run_command("tokens", "list")}
    first, second = (
        open_link(client, client.request_as_owner("POST", "/api/links").json["url"]) for _ in range(2)
    )
    rows = [row for row in daemon.run_command("tokens", "list") if row["name"] not in before]
    assert [sorted(row["rights"]) for row in rows] == [["approve", "read", "run"]] * 2
    assert all(row["name"].startswith("page-") and row["browser"] and row["expires_at"] for row in rows)
    stored = (daemon.home / "tokens.json").read_text()
    for cookie in (first, second):
        value = cookie.partition("=")[2]
        assert value not in stored
        assert client.request("GET", "/api/health", token=value).status in (401, 429), "a cookie is no token"
    digest = hashlib.sha256(first.partition("=")[2].encode()).hexdigest()
    (name,) = [row["name"] for row in rows if digest.startswith(row["name"].removeprefix("page-"))]
    daemon.run_command("tokens", "remove", name)
    assert client.request("GET", "/api/health", first).status in (401, 429)
    assert client.request("GET", "/api/health", second).status == 200
    assert daemon.run_command("tokens", "add", name, "--rights", "read")["error"]["code"] == "usage"


def test_a_forged_cookie_is_rejected(client: DaemonClient):
    """Shows: A08."""
    cookie = open_link(client, client.request_as_owner("POST", "/api/links").json["url"])
    name, _, value = cookie.removeprefix("Cookie: ").partition("=")
    expiry, salt, signature = value.split(".")
    for forged in (
        f"{int(expiry) + 1}.{salt}.{signature}",
        f"{expiry}.{salt}x.{signature}",
        f"{expiry}.{salt}.{signature[:-1]}",
        f"{expiry}.{salt}.",
        f".{salt}.{signature}",
        "",
        ".",
        "..",
        signature,
        client.token,
        "9" * 400,
    ):
        assert client.request("GET", "/api/health", f"Cookie: {name}={forged}").status in (401, 429), forged
    assert client.request("GET", "/api/health", f"Cookie: a=b; {name}=x; {name}={value}; c=d").status == 200
    assert client.request("GET", "/api/health", f"Cookie: other-{name}={value}").status == 401


def test_a_browser_without_a_cookie_is_shown_how_to_get_a_link(client: DaemonClient):
    no_cookie = client.request("GET", "/")
    assert (no_cookie.status, no_cookie.headers["content-type"]) == (401, "text/html; charset=utf-8")
    assert b"retinue serve --link" in no_cookie.body
    used_link = client.request("GET", "/enter/" + "x" * 43)
    assert used_link.status in (404, 429)
    if used_link.status == 404:
        assert b"retinue serve --link" in used_link.body
        assert used_link.headers["content-type"] == "text/html; charset=utf-8"
    for page in (no_cookie, used_link):
        assert b"<script" not in page.body
        assert b"style=" not in page.body


async def test_static_files_have_their_content_type_and_are_revalidated_by_etag(
    open_server: OpenServer, static_folder: Path
):
    async with open_server(static=static_folder) as client:
        for name, content_type in TYPES.items():
            path = "/" if name == "index.html" else f"/{name}"
            response = await asyncio.to_thread(client.request_as_owner, "GET", path)
            assert (response.status, response.headers["content-type"], response.body) == (
                200,
                content_type,
                FILES[name],
            )
            etag = response.headers["etag"]
            assert response.headers["cache-control"] == "no-cache"
            head = await asyncio.to_thread(client.request_as_owner, "HEAD", path)
            assert (head.status, head.headers["etag"], head.body) == (200, etag, b"")
            revalidated = await asyncio.to_thread(
                client.request_as_owner, "GET", path, f"If-None-Match: {etag}"
            )
            assert (revalidated.status, revalidated.body) == (304, b"")
            assert "frame-ancestors 'none'" in revalidated.headers["content-security-policy"]
            assert (await asyncio.to_thread(client.request, "GET", path)).status == 401
            assert (await asyncio.to_thread(client.request_as_owner, "POST", path)).status == 405
        (static_folder / "app.css").write_bytes(b"p {}")
        assert (await asyncio.to_thread(client.request_as_owner, "GET", "/app.css")).body == b"p {}"


async def test_a_compressed_file_is_sent_to_clients_that_accept_gzip(
    open_server: OpenServer, static_folder: Path
):
    async with open_server(static=static_folder) as client:
        compressed = await asyncio.to_thread(
            client.request_as_owner, "GET", "/app.js", "Accept-Encoding: br, gzip;q=0.5"
        )
        assert (compressed.headers["content-encoding"], compressed.headers["vary"]) == (
            "gzip",
            "accept-encoding",
        )
        assert gzip.decompress(compressed.body) == FILES["app.js"]
        assert compressed.headers["content-type"] == TYPES["app.js"]
        for encoding in ("identity", "gzip;q=0", "br"):
            plain = await asyncio.to_thread(
                client.request_as_owner, "GET", "/app.js", f"Accept-Encoding: {encoding}"
            )
            assert plain.body == FILES["app.js"]
            assert plain.headers["etag"] != compressed.headers["etag"]


@pytest.mark.parametrize(
    "name",
    [
        "../outside.txt", "..%2foutside.txt", "%2e%2e/outside.txt", "%2e%2e%2foutside.txt", "..%5coutside.txt",
        "static/../outside.txt", "./app.js", "app.js/", "app.js%00", "app.js%00.txt", "App.js", "app.js.gz", "link.txt",
        "folder.txt", "strange.py", "index.html%20", "//app.js", "%2fetc%2fpasswd", "/etc/passwd", "C:%5cx", "keys.py",
    ],
)  # fmt: skip
async def test_only_the_files_of_the_page_are_served(open_server: OpenServer, static_folder: Path, name: str):
    """Shows: A09."""
    async with open_server(static=static_folder) as client:
        response = await asyncio.to_thread(client.request_as_owner, "GET", f"/{name}")
        assert (response.status, response.code) == (404, "not_found")


async def test_a_page_that_was_not_built_reports_how_to_build_it(open_server: OpenServer, tmp_path: Path):
    async with open_server(static=tmp_path / "nothing") as client:
        response = await asyncio.to_thread(client.request_as_owner, "GET", "/")
        assert (response.status, b"scripts/page" in response.body) == (503, True)
        assert (await asyncio.to_thread(client.request_as_owner, "GET", "/app.js")).status == 404


def test_the_built_page_contains_nothing_that_its_content_security_policy_forbids(client: DaemonClient):
    """The page has no inline script or style, and loads nothing from other servers."""
    page = client.request_as_owner("GET", "/")
    assert page.status == 200
    html = page.body.decode()
    assert re.findall(r"<script(?![^>]*\bsrc=)", html) == []
    assert re.findall(r"<style|\bstyle=|\bon[a-z]+=", html) == []
    for url in re.findall(r"""(?:src|href)=["']?([^"'\s>]+)""", html):
        assert not re.match(r"[a-z]+:|//", url) or url.startswith("data:image/"), url
        if not url.startswith("data:"):
            assert client.request_as_owner("GET", f"/{url.lstrip('./')}").status == 200
