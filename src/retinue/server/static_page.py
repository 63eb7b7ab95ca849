"""The page as it is served: its few files, the link that opens it once, and what it says to somebody without a key."""

import hashlib
import html
from collections.abc import Mapping
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from retinue.domain.value import value
from retinue.server.auth import COOKIE_SECONDS
from retinue.server.context import House
from retinue.server.error_responses import Turned
from retinue.server.middleware import peer_of

STATIC = Path(__file__).parent / "static"
INDEX = "index.html"
TYPES: Mapping[str, str] = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".woff2": "font/woff2",
    ".txt": "text/plain; charset=utf-8",
    ".webmanifest": "application/manifest+json",
}
PACKED: Mapping[str, str] = {"br": ".br", "gzip": ".gz"}
"""Coding → how the name of a file goes on that was packed so beforehand; the first that a browser takes is sent."""

NO_KEY = (
    "This page needs a link",
    "On the machine where Retinue runs, type <code>retinue serve --link</code> and open the link it prints.",
)
NO_LINK = (
    "This link was used before, or is too old",
    "Type <code>retinue serve --link</code> on the machine where Retinue runs, and open the new link it prints.",
)
NO_PAGE = (
    "The page is not built",
    "Run <code>scripts/page</code> in the folder of Retinue's sources, then load this again.",
)


def routes(house: House, static: Path) -> list[Route]:
    async def front(request: Request) -> Response:
        if request.state.caller is None:
            return _told(401, NO_KEY)
        return _served(request, INDEX, static) or _told(503, NO_PAGE)

    async def enter(request: Request) -> Response:
        if request.method == "HEAD":  # whoever only looks does not use it up
            return Response(media_type=TYPES[".html"])
        value = house.keys.entered(request.path_params["code"], request.headers.get("user-agent", ""))
        if value is None and request.state.caller is None:
            if seconds := house.keys.throttle.wrong(peer_of(request.scope)):
                raise Turned(
                    429, f"too many wrong links: wait {seconds} s", headers={"retry-after": str(seconds)}
                )
            return _told(404, NO_LINK)
        response = Response(status_code=303, headers={"location": "/"})
        if value is not None:
            response.set_cookie(
                house.keys.cookie, value, max_age=COOKIE_SECONDS, path="/", httponly=True, samesite="strict"
            )
        return response

    async def file(request: Request) -> Response:
        found = _served(request, request.path_params["name"], static)
        if found is None:
            raise Turned(404, "there is no such file: / is the page, and /api/openapi.json lists the API")
        return found

    return [Route("/", front), Route("/enter/{code}", enter), Route("/{name}", file)]


@value
class _Found:
    data: bytes
    coding: str


def _served(request: Request, name: str, static: Path) -> Response | None:
    """A file that the folder lists under just this name: what was asked for is compared, and never opened."""
    there = {each.name: each for each in static.iterdir() if _plain(each)} if static.is_dir() else {}
    if name not in there or (kind := TYPES.get(Path(name).suffix)) is None:
        return None
    found = _packed(request, name, there)
    mark = f'"{hashlib.sha256(found.data).hexdigest()[:32]}"'
    headers = {"etag": mark, "cache-control": "no-cache", "vary": "accept-encoding"}
    if mark in [each.strip() for each in request.headers.get("if-none-match", "").split(",")]:
        return Response(status_code=304, headers=headers)
    if found.coding:
        headers["content-encoding"] = found.coding
    return Response(found.data, headers=headers, media_type=kind)


def _plain(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def _packed(request: Request, name: str, there: Mapping[str, Path]) -> _Found:
    taken = {
        each.partition(";")[0].strip()
        for each in request.headers.get("accept-encoding", "").lower().split(",")
        if "q=0" not in each.replace(" ", "").split(";")[1:]
    }
    for coding, ending in PACKED.items():
        if coding in taken and name + ending in there:
            return _Found(data=there[name + ending].read_bytes(), coding=coding)
    return _Found(data=there[name].read_bytes(), coding="")


def _told(status: int, words: tuple[str, str]) -> Response:
    title, text = words
    body = (
        "<!doctype html><html lang=en><meta charset=utf-8>"
        "<meta name=viewport content='width=device-width'>"
        f"<title>Retinue: {html.escape(title)}</title><h1>{html.escape(title)}</h1><p>{text}</p>"
    )
    return Response(body.encode(), status, media_type=TYPES[".html"])
