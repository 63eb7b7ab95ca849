"""Security middleware: authentication, origin checks and security headers for every request."""

import asyncio
import re
from collections.abc import MutableMapping
from functools import partial
from typing import Any, NoReturn

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from retinue.server.allowed_hosts import AllowedHosts
from retinue.server.auth import OWNER, ApiCaller
from retinue.server.connection_limits import Listener
from retinue.server.context import ServerContext
from retinue.server.error_responses import INTERNAL_ERROR_MESSAGE, HttpError
from retinue.server.event_queue import AUTHORIZED_STATE_KEY
from retinue.server.response_headers import COMMON_RESPONSE_HEADERS

PATH_PATTERN = re.compile(r"/|(/[A-Za-z0-9_-][A-Za-z0-9_.:-]{0,199})+")
"""Form of every valid path: no parent folders, no hidden names, no excessive length."""
PUBLIC_PATH_PATTERN = re.compile(r"/|/enter/[A-Za-z0-9_-]{1,200}")
"""Paths that need no key: the page that explains how to get one, and the one-time link."""
SAFE_METHODS = ("GET", "HEAD")
SINGLE_HEADERS = (b"host", b"origin", b"authorization", b"cookie", b"content-type", b"content-length", b"content-encoding",
        b"sec-fetch-site", b"sec-fetch-mode", b"idempotency-key", b"last-event-id")  # fmt: skip
"""Headers that influence a decision and therefore must not be repeated."""
KEY_HELP = "To open the page, use the link printed by `retinue serve --link`. Programs send the token in <home>/token."


class SecurityMiddleware:
    """ASGI middleware that authenticates requests, and turns errors into responses."""

    def __init__(self, context: ServerContext, app: ASGIApp) -> None:
        self._context = context
        self._app = app
        self._allowed_hosts = AllowedHosts(context.page_url, context.bound_address)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = _HttpExchange(scope, receive, send)
        try:
            scope["state"]["caller"] = self._authenticate(scope)
            await self._app(scope, exchange.receive, exchange.send)
        except HttpError as http_error:
            await exchange.respond(http_error_response(http_error))
        except ClientDisconnect:
            pass  # the client is gone
        except asyncio.CancelledError:  # the daemon is shutting down
            await exchange.respond(
                http_error_response(HttpError(503, "The daemon is stopping. Try again when it is running."))
            )
        except Exception as error:  # noqa: BLE001  (a bug in one request must not stop the daemon)
            self._context.app.log_internal_error(error, request=f"{scope['method']} {_route_path(scope)}")
            await exchange.respond(http_error_response(HttpError(500, INTERNAL_ERROR_MESSAGE)))

    def _authenticate(self, scope: Scope) -> ApiCaller | None:
        """Authenticate the caller; None for a request without a key to a public path."""
        headers = _read_headers(scope)
        path: str = scope["path"]
        if scope["state"].get("listener") is Listener.UNIX_SOCKET:
            caller: ApiCaller | None = OWNER
        else:
            self._check_origin(headers, scope["method"])
            caller = self._find_caller(headers, scope)
            scope["state"][AUTHORIZED_STATE_KEY] = partial(self._is_still_authorized, headers)
        if caller is None and not (scope["method"] in SAFE_METHODS and PUBLIC_PATH_PATTERN.fullmatch(path)):
            raise HttpError(
                401, f"No credential. {KEY_HELP}", headers={"www-authenticate": 'Bearer realm="retinue"'}
            )
        if not PATH_PATTERN.fullmatch(path) or scope["raw_path"].count(b"/") != path.count("/"):
            raise HttpError(404, "Path not found. GET /api/openapi.json lists all paths.")
        return caller

    def _check_origin(self, headers: dict[str, str], method: str) -> None:
        """Reject requests of other sites.

        Browsers send these headers themselves, and scripts of other pages cannot forge them.
        """
        host = headers.get("host", "")
        if host not in self._allowed_hosts:
            raise HttpError(421, f"Unknown host name. This server is {self._context.page_url}.")
        origin = headers.get("origin")
        if origin is not None and origin != f"http://{host}":
            raise HttpError(
                403, "Request from a page of another origin. Only the daemon's own page can send requests."
            )
        fetch_site = headers.get("sec-fetch-site")
        is_navigation = headers.get("sec-fetch-mode") == "navigate" and method in SAFE_METHODS
        if fetch_site not in (None, "same-origin") and not (fetch_site == "none" and is_navigation):
            raise HttpError(403, "Request from another site. Type or paste the page's address to open it.")

    def _find_caller(self, headers: dict[str, str], scope: Scope) -> ApiCaller | None:
        authenticator = self._context.authenticator
        if (authorization := headers.get("authorization")) is not None:
            scheme, _, token = authorization.partition(" ")
            caller = authenticator.authenticate_bearer(token.strip()) if scheme.lower() == "bearer" else None
            return caller or self._reject_key(scope, "Unknown token")
        if not (cookie_values := _cookie_values(headers.get("cookie", ""), authenticator.cookie_name)):
            return None
        caller = next(filter(None, map(authenticator.authenticate_cookie, cookie_values)), None)
        if caller is None:
            return (
                None
                if PUBLIC_PATH_PATTERN.fullmatch(scope["path"])
                else self._reject_key(scope, "The page's cookie has expired")
            )
        if (
            scope["method"] not in SAFE_METHODS
            and "origin" not in headers
            and "sec-fetch-site" not in headers
        ):
            raise HttpError(403, "A request with a cookie must have an Origin header, as browsers send it")
        return caller

    def _is_still_authorized(self, headers: dict[str, str]) -> bool:
        """Return whether the key of a request in progress is still valid."""
        authenticator = self._context.authenticator
        if (authorization := headers.get("authorization")) is not None:
            return authenticator.authenticate_bearer(authorization.partition(" ")[2].strip()) is not None
        return any(
            map(
                authenticator.authenticate_cookie,
                _cookie_values(headers.get("cookie", ""), authenticator.cookie_name),
            )
        )

    def _reject_key(self, scope: Scope, reason: str) -> NoReturn:
        if wait_s := self._context.authenticator.throttle.record_failure(client_address(scope)):
            raise HttpError(
                429,
                f"Too many wrong credentials. Try again in {wait_s} s.",
                headers={"retry-after": str(wait_s)},
                seconds=wait_s,
            )
        raise HttpError(401, f"{reason}. {KEY_HELP}", headers={"www-authenticate": 'Bearer realm="retinue"'})


class _HttpExchange:
    """A request and its response: adds security headers to the response, and sends only one."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self._response_started = False
        self._body_received = not any(
            name == b"transfer-encoding" or (name == b"content-length" and value != b"0")
            for name, value in scope["headers"]
        )

    async def receive(self) -> Message:
        message = await self._receive()
        if not message.get("more_body", False):
            self._body_received = True
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._response_started = True
            headers = list(message.get("headers", ()))
            present = {name.lower() for name, _ in headers}
            headers += [each for each in COMMON_RESPONSE_HEADERS if each[0] not in present]
            if not self._body_received:  # the rest of the body is not needed
                headers.append((b"connection", b"close"))
            message = {**message, "headers": headers}
        await self._send(message)

    async def respond(self, response: Response) -> None:
        if not self._response_started:
            await response(self._scope, self.receive, self.send)


def http_error_response(error: HttpError) -> Response:
    return Response(error.body(), error.status, headers=error.headers, media_type="application/json")


def client_address(scope: MutableMapping[str, Any]) -> str:
    client = scope.get("client")
    return client[0] if client else "socket"


def _read_headers(scope: Scope) -> dict[str, str]:
    headers: dict[str, str] = {}
    for name, value in scope["headers"]:
        if name in SINGLE_HEADERS:
            if name.decode() in headers:
                raise HttpError(400, f"The header {name.decode()} is repeated. Send it once.")
            headers[name.decode()] = value.decode("latin-1")
    return headers


def _cookie_values(cookie_header: str, name: str) -> list[str]:
    pairs = (each.strip().partition("=") for each in cookie_header.split(";"))
    return [value for key, _, value in pairs if key == name][:4]


def _route_path(scope: Scope) -> str:
    """Return the path pattern of the route; the requested path may contain a one-time code."""
    route = scope.get("route")
    return getattr(route, "path", "") or "an address"
