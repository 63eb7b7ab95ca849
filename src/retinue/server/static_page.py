"""The static page: its files, the one-time link, and the messages shown without a key."""

import hashlib
import html
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from retinue.server.auth import COOKIE_LIFETIME_SECONDS
from retinue.server.context import ServerContext
from retinue.server.error_responses import HttpError
from retinue.server.middleware import client_address

STATIC_FOLDER = Path(__file__).parent / "static"
INDEX_FILE = "index.html"
MEDIA_TYPES: Mapping[str, str] = {
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
COMPRESSED_SUFFIXES: Mapping[str, str] = {"br": ".br", "gzip": ".gz"}
"""Suffix of the precompressed variant for each content encoding, in order of preference."""

NO_KEY_MESSAGE = (
    "This page needs a link",
    "On the machine where Retinue runs, type <code>retinue serve --link</code> and open the link it prints.",
)
INVALID_LINK_MESSAGE = (
    "This link was already used or has expired",
    "Type <code>retinue serve --link</code> on the machine where Retinue runs, and open the new link it prints.",
)
NOT_BUILT_MESSAGE = (
    "The page is not built",
    "Run <code>scripts/page</code> in the source folder of Retinue, then reload this page.",
)


def page_routes(context: ServerContext, static: Path) -> list[Route]:
    async def serve_index(request: Request) -> Response:
        if request.state.caller is None:
            return _message_response(401, NO_KEY_MESSAGE)
        return _file_response(request, INDEX_FILE, static) or _message_response(503, NOT_BUILT_MESSAGE)

    async def redeem_link(request: Request) -> Response:
        if request.method == "HEAD":  # HEAD does not use up the link
            return Response(media_type=MEDIA_TYPES[".html"])
        cookie = context.authenticator.redeem_link(
            request.path_params["code"], request.headers.get("user-agent", "")
        )
        if cookie is None and request.state.caller is None:
            if wait_s := context.authenticator.throttle.record_failure(client_address(request.scope)):
                raise HttpError(
                    429, f"Too many wrong links. Wait {wait_s} s.", headers={"retry-after": str(wait_s)}
                )
            return _message_response(404, INVALID_LINK_MESSAGE)
        response = Response(status_code=303, headers={"location": "/"})
        if cookie is not None:
            response.set_cookie(
                context.authenticator.cookie_name,
                cookie,
                max_age=COOKIE_LIFETIME_SECONDS,
                path="/",
                httponly=True,
                samesite="strict",
            )
        return response

    async def serve_file(request: Request) -> Response:
        response = _file_response(request, request.path_params["name"], static)
        if response is None:
            raise HttpError(404, "File not found. The page is at /; /api/openapi.json lists the API.")
        return response

    return [Route("/", serve_index), Route("/enter/{code}", redeem_link), Route("/{name}", serve_file)]


class _StaticFile(Struct, frozen=True, kw_only=True):
    data: bytes
    content_encoding: str


def _file_response(request: Request, name: str, static: Path) -> Response | None:
    """Return a static file that is listed under exactly this name, or None.

    The requested name is only compared with the listing, never opened as a path.
    """
    files = (
        {each.name: each for each in static.iterdir() if _is_regular_file(each)} if static.is_dir() else {}
    )
    if name not in files or (media_type := MEDIA_TYPES.get(Path(name).suffix)) is None:
        return None
    static_file = _read_static_file(request, name, files)
    etag = f'"{hashlib.sha256(static_file.data).hexdigest()[:32]}"'
    headers = {"etag": etag, "cache-control": "no-cache", "vary": "accept-encoding"}
    if etag in [each.strip() for each in request.headers.get("if-none-match", "").split(",")]:
        return Response(status_code=304, headers=headers)
    if static_file.content_encoding:
        headers["content-encoding"] = static_file.content_encoding
    return Response(static_file.data, headers=headers, media_type=media_type)


def _is_regular_file(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def _read_static_file(request: Request, name: str, files: Mapping[str, Path]) -> _StaticFile:
    accepted = {
        each.partition(";")[0].strip()
        for each in request.headers.get("accept-encoding", "").lower().split(",")
        if "q=0" not in each.replace(" ", "").split(";")[1:]
    }
    for encoding, suffix in COMPRESSED_SUFFIXES.items():
        if encoding in accepted and name + suffix in files:
            return _StaticFile(data=files[name + suffix].read_bytes(), content_encoding=encoding)
    return _StaticFile(data=files[name].read_bytes(), content_encoding="")


def _message_response(status: int, message: tuple[str, str]) -> Response:
    title, body_html = message
    document = (
        "<!doctype html><html lang=en><meta charset=utf-8>"
        "<meta name=viewport content='width=device-width'>"
        f"<title>Retinue: {html.escape(title)}</title><h1>{html.escape(title)}</h1><p>{body_html}</p>"
    )
    return Response(document.encode(), status, media_type=MEDIA_TYPES[".html"])
