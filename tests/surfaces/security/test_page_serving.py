"""The page as it is served: by a link that works once, to a browser that is known, and nothing but its own files."""

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
    "strange.py": b"print('not of the page')\n",
}
TYPES = {
    "index.html": "text/html; charset=utf-8",
    "app.js": "text/javascript; charset=utf-8",
    "app.css": "text/css; charset=utf-8",
    "licences.txt": "text/plain; charset=utf-8",
}


@pytest.fixture
def static(tmp_path: Path) -> Path:
    folder = tmp_path / "static"
    folder.mkdir()
    for name, data in FILES.items():
        (folder / name).write_bytes(data)
    (folder / "app.js.gz").write_bytes(gzip.compress(FILES["app.js"]))
    (tmp_path / "outside.txt").write_text("outside")
    (folder / "link.txt").symlink_to(tmp_path / "outside.txt")
    (folder / "folder.txt").mkdir()
    return folder


def entered(door: DaemonClient, link: str) -> str:
    answer = door.request("GET", link.removeprefix(door.url))
    assert (answer.status, answer.headers["location"]) == (303, "/")
    return "Cookie: " + answer.headers["set-cookie"].partition(";")[0]


def test_a_link_opens_the_page_once_and_leaves_a_cookie_that_only_the_browser_sees(client: DaemonClient):
    """Shows: A07."""
    link = client.request_as_owner("POST", "/api/links").json["url"]
    assert re.fullmatch(re.escape(client.url) + r"/enter/[A-Za-z0-9_-]{43}", link)
    path = link.removeprefix(client.url)
    assert client.request("HEAD", path).status == 200, "looking at it does not use it up"
    answer = client.request("GET", path, "Sec-Fetch-Site: none", "Sec-Fetch-Mode: navigate")
    assert (answer.status, answer.headers["location"], answer.body) == (303, "/", b"")
    cookie, *facts = [each.strip().lower() for each in answer.headers["set-cookie"].split(";")]
    assert {"httponly", "samesite=strict", "path=/"} <= set(facts)
    assert not [each for each in facts if each.startswith("domain")]
    assert client.token not in answer.headers["set-cookie"]
    assert client.token.lower() not in cookie
    again = client.request("GET", path)
    assert again.status in (404, 429)
    assert "set-cookie" not in again.headers
    known = client.request("GET", path, "Cookie: " + answer.headers["set-cookie"].partition(";")[0])
    assert (known.status, "set-cookie" in known.headers) == (303, False), "who is known already just goes on"


def test_the_link_that_it_printed_is_such_a_link(daemon: DaemonProcess, client: DaemonClient):
    cookie = entered(client, daemon.link)
    assert client.request("GET", "/api/health", cookie).status == 200
    other = daemon.run_command("serve", "--link")["url"]
    assert other != daemon.link
    assert entered(client, other) != cookie


def test_a_cookie_reads_runs_and_approves_and_is_no_admin(client: DaemonClient):
    """Shows: A18."""
    assert {ApiPermission.READ, ApiPermission.RUN, ApiPermission.APPROVE} == WEB_USER_PERMISSIONS
    cookie = entered(client, client.request_as_owner("POST", "/api/links").json["url"])
    own = f"Origin: {client.url}"
    assert client.request("GET", "/api/health", cookie).status == 200
    assert client.request("POST", "/api/wake", cookie, own).status == 200
    for path in ("/api/links", "/api/stop"):
        answer = client.request("POST", path, cookie, own)
        assert (answer.status, answer.json["error"]["details"]) == (403, {"right": "admin"})


def test_one_browsers_visit_is_ended_and_no_others(daemon: DaemonProcess, client: DaemonClient):
    before = {row["name"] for row in daemon.run_command("tokens", "list")}
    one, two = (entered(client, client.request_as_owner("POST", "/api/links").json["url"]) for _ in range(2))
    rows = [row for row in daemon.run_command("tokens", "list") if row["name"] not in before]
    assert [sorted(row["rights"]) for row in rows] == [["approve", "read", "run"]] * 2
    assert all(row["name"].startswith("page-") and row["browser"] and row["expires_at"] for row in rows)
    kept = (daemon.home / "tokens.json").read_text()
    for cookie in (one, two):
        value = cookie.partition("=")[2]
        assert value not in kept
        assert client.request("GET", "/api/health", token=value).status in (401, 429), "a cookie is no token"
    mark = hashlib.sha256(one.partition("=")[2].encode()).hexdigest()
    (name,) = [row["name"] for row in rows if mark.startswith(row["name"].removeprefix("page-"))]
    daemon.run_command("tokens", "remove", name)
    assert client.request("GET", "/api/health", one).status in (401, 429)
    assert client.request("GET", "/api/health", two).status == 200
    assert daemon.run_command("tokens", "add", name, "--rights", "read")["error"]["code"] == "usage"


def test_a_cookie_that_was_changed_is_none(client: DaemonClient):
    """Shows: A08."""
    cookie = entered(client, client.request_as_owner("POST", "/api/links").json["url"])
    name, _, value = cookie.removeprefix("Cookie: ").partition("=")
    until, salt, seal = value.split(".")
    for forged in (
        f"{int(until) + 1}.{salt}.{seal}",
        f"{until}.{salt}x.{seal}",
        f"{until}.{salt}.{seal[:-1]}",
        f"{until}.{salt}.",
        f".{salt}.{seal}",
        "",
        ".",
        "..",
        seal,
        client.token,
        "9" * 400,
    ):
        assert client.request("GET", "/api/health", f"Cookie: {name}={forged}").status in (401, 429), forged
    assert client.request("GET", "/api/health", f"Cookie: a=b; {name}=x; {name}={value}; c=d").status == 200
    assert client.request("GET", "/api/health", f"Cookie: other-{name}={value}").status == 401


def test_somebody_without_a_key_is_told_how_to_get_one(client: DaemonClient):
    front = client.request("GET", "/")
    assert (front.status, front.headers["content-type"]) == (401, "text/html; charset=utf-8")
    assert b"retinue serve --link" in front.body
    used = client.request("GET", "/enter/" + "x" * 43)
    assert used.status in (404, 429)
    if used.status == 404:
        assert b"retinue serve --link" in used.body
        assert used.headers["content-type"] == "text/html; charset=utf-8"
    for page in (front, used):
        assert b"<script" not in page.body
        assert b"style=" not in page.body


async def test_files_are_served_with_their_types_and_sent_once(open_server: OpenServer, static: Path):
    async with open_server(static=static) as door:
        for name, kind in TYPES.items():
            path = "/" if name == "index.html" else f"/{name}"
            answer = await asyncio.to_thread(door.request_as_owner, "GET", path)
            assert (answer.status, answer.headers["content-type"], answer.body) == (200, kind, FILES[name])
            mark = answer.headers["etag"]
            assert answer.headers["cache-control"] == "no-cache"
            head = await asyncio.to_thread(door.request_as_owner, "HEAD", path)
            assert (head.status, head.headers["etag"], head.body) == (200, mark, b"")
            again = await asyncio.to_thread(door.request_as_owner, "GET", path, f"If-None-Match: {mark}")
            assert (again.status, again.body) == (304, b"")
            assert "frame-ancestors 'none'" in again.headers["content-security-policy"]
            assert (await asyncio.to_thread(door.request, "GET", path)).status == 401
            assert (await asyncio.to_thread(door.request_as_owner, "POST", path)).status == 405
        (static / "app.css").write_bytes(b"p {}")
        assert (await asyncio.to_thread(door.request_as_owner, "GET", "/app.css")).body == b"p {}"


async def test_a_file_that_was_packed_beforehand_is_sent_packed_to_who_takes_it(
    open_server: OpenServer, static: Path
):
    async with open_server(static=static) as door:
        packed = await asyncio.to_thread(
            door.request_as_owner, "GET", "/app.js", "Accept-Encoding: br, gzip;q=0.5"
        )
        assert (packed.headers["content-encoding"], packed.headers["vary"]) == ("gzip", "accept-encoding")
        assert gzip.decompress(packed.body) == FILES["app.js"]
        assert packed.headers["content-type"] == TYPES["app.js"]
        for said in ("identity", "gzip;q=0", "br"):
            plain = await asyncio.to_thread(
                door.request_as_owner, "GET", "/app.js", f"Accept-Encoding: {said}"
            )
            assert plain.body == FILES["app.js"]
            assert plain.headers["etag"] != packed.headers["etag"]


@pytest.mark.parametrize(
    "name",
    [
        "../outside.txt", "..%2foutside.txt", "%2e%2e/outside.txt", "%2e%2e%2foutside.txt", "..%5coutside.txt",
        "static/../outside.txt", "./app.js", "app.js/", "app.js%00", "app.js%00.txt", "App.js", "app.js.gz", "link.txt",
        "folder.txt", "strange.py", "index.html%20", "//app.js", "%2fetc%2fpasswd", "/etc/passwd", "C:%5cx", "keys.py",
    ],
)  # fmt: skip
async def test_nothing_but_the_pages_own_files_is_served(open_server: OpenServer, static: Path, name: str):
    """Shows: A09."""
    async with open_server(static=static) as door:
        answer = await asyncio.to_thread(door.request_as_owner, "GET", f"/{name}")
        assert (answer.status, answer.code) == (404, "not_found")


async def test_a_page_that_was_not_built_says_how_to_build_it(open_server: OpenServer, tmp_path: Path):
    async with open_server(static=tmp_path / "nothing") as door:
        answer = await asyncio.to_thread(door.request_as_owner, "GET", "/")
        assert (answer.status, b"scripts/page" in answer.body) == (503, True)
        assert (await asyncio.to_thread(door.request_as_owner, "GET", "/app.js")).status == 404


def test_the_page_that_is_built_asks_for_nothing_that_its_policy_forbids(client: DaemonClient):
    """No script and no style stands in the page itself, and nothing comes from elsewhere."""
    page = client.request_as_owner("GET", "/")
    assert page.status == 200
    text = page.body.decode()
    assert re.findall(r"<script(?![^>]*\bsrc=)", text) == []
    assert re.findall(r"<style|\bstyle=|\bon[a-z]+=", text) == []
    for place in re.findall(r"""(?:src|href)=["']?([^"'\s>]+)""", text):
        assert not re.match(r"[a-z]+:|//", place) or place.startswith("data:image/"), place
        if not place.startswith("data:"):
            assert client.request_as_owner("GET", f"/{place.lstrip('./')}").status == 200
