"""The wall: stands before every route, lets in who has a key and came from here, and puts a shield on every answer."""

import asyncio
import re
from collections.abc import MutableMapping
from functools import partial
from typing import Any, NoReturn

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from retinue.server.allowed_hosts import Hosts
from retinue.server.auth import OWNER, Caller
from retinue.server.connection_limits import Way
from retinue.server.context import House
from retinue.server.error_responses import DEFECT, SHIELD, UNKEPT, Turned
from retinue.server.event_stream import STILL

PATH = re.compile(r"/|(/[A-Za-z0-9_-][A-Za-z0-9_.:-]{0,199})+")
"""Every address there is, before anybody asks which: nothing climbs, nothing is hidden, nothing is long."""
OPEN = re.compile(r"/|/enter/[A-Za-z0-9_-]{1,200}")
"""What may be asked for without a key: how to get one, and the use of a link."""
SAFE = ("GET", "HEAD")
ONCE = (b"host", b"origin", b"authorization", b"cookie", b"content-type", b"content-length", b"content-encoding",
        b"sec-fetch-site", b"sec-fetch-mode", b"idempotency-key", b"last-event-id")  # fmt: skip
"""Headers that are believed: said twice, nobody could say which one counts."""
LINK = "`retinue serve --link` prints a link to the page; programs send the token in <home>/token"


class Wall:
    """An application around the application."""

    def __init__(self, house: House, inner: ASGIApp) -> None:
        self._house = house
        self._inner = inner
        self._hosts = Hosts(house.url, house.bound)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = _Exchange(scope, receive, send)
        try:
            scope["state"]["caller"] = self._caller(scope)
            await self._inner(scope, exchange.receive, exchange.send)
        except Turned as no:
            await exchange.answer(turned_away(no))
        except ClientDisconnect:
            pass  # nobody is there to be told
        except asyncio.CancelledError:  # the daemon ends, and this task with it
            await exchange.answer(turned_away(Turned(503, "the daemon is ending: ask again when it is back")))
        except Exception as error:  # noqa: BLE001  (one request's defect is not the daemon's end)
            self._house.app.defect(error, asked=f"{scope['method']} {_named(scope)}")
            await exchange.answer(turned_away(Turned(500, DEFECT)))

    def _caller(self, scope: Scope) -> Caller | None:
        """Who asks; None: somebody without a key, at one of the few places where nobody needs one."""
        head = _head(scope)
        path: str = scope["path"]
        if scope["state"].get("way") is Way.SOCKET:
            caller: Caller | None = OWNER
        else:
            self._came_from_here(head, scope["method"])
            caller = self._known(head, scope)
            scope["state"][STILL] = partial(self._still, head)
        if caller is None and not (scope["method"] in SAFE and OPEN.fullmatch(path)):
            raise Turned(
                401, f"this needs a key: {LINK}", headers={"www-authenticate": 'Bearer realm="retinue"'}
            )
        if not PATH.fullmatch(path) or scope["raw_path"].count(b"/") != path.count("/"):
            raise Turned(404, "there is no such address: GET /api/openapi.json lists those there are")
        return caller

    def _came_from_here(self, head: dict[str, str], method: str) -> None:
        """Browsers say where a request comes from, and scripts of other pages cannot make them lie."""
        host = head.get("host", "")
        if host not in self._hosts:
            raise Turned(421, f"this is {self._house.url}, and it answers to no other name")
        origin = head.get("origin")
        if origin is not None and origin != f"http://{host}":
            raise Turned(403, "a page of another origin asks: only the daemon's own page may")
        site = head.get("sec-fetch-site")
        navigates = head.get("sec-fetch-mode") == "navigate" and method in SAFE
        if site not in (None, "same-origin") and not (site == "none" and navigates):
            raise Turned(403, "another site asks: open the page by its own address, typed or pasted")

    def _known(self, head: dict[str, str], scope: Scope) -> Caller | None:
        keys = self._house.keys
        if (said := head.get("authorization")) is not None:
            scheme, _, token = said.partition(" ")
            caller = keys.bearer(token.strip()) if scheme.lower() == "bearer" else None
            return caller or self._wrong(scope, "this token opens nothing here")
        if not (cookies := _cookies(head.get("cookie", ""), keys.cookie)):
            return None
        caller = next(filter(None, map(keys.visitor, cookies)), None)
        if caller is None:
            return (
                None if OPEN.fullmatch(scope["path"]) else self._wrong(scope, "the page's cookie is too old")
            )
        if scope["method"] not in SAFE and "origin" not in head and "sec-fetch-site" not in head:
            raise Turned(403, "a cookie alone changes nothing: a browser would say where this comes from")
        return caller

    def _still(self, head: dict[str, str]) -> bool:
        """Whether the key of a request that goes on is one now."""
        keys = self._house.keys
        if (said := head.get("authorization")) is not None:
            return keys.bearer(said.partition(" ")[2].strip()) is not None
        return any(map(keys.visitor, _cookies(head.get("cookie", ""), keys.cookie)))

    def _wrong(self, scope: Scope, why: str) -> NoReturn:
        if seconds := self._house.keys.throttle.wrong(peer_of(scope)):
            raise Turned(
                429,
                f"too many wrong keys: try again in {seconds} s",
                headers={"retry-after": str(seconds)},
                seconds=seconds,
            )
        raise Turned(401, f"{why}: {LINK}", headers={"www-authenticate": 'Bearer realm="retinue"'})


class _Exchange:
    """One request and its answer: the shield is put on whatever starts to answer, and that only once."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self._started = False
        self._heard = not any(
            name == b"transfer-encoding" or (name == b"content-length" and value != b"0")
            for name, value in scope["headers"]
        )

    async def receive(self) -> Message:
        message = await self._receive()
        if not message.get("more_body", False):
            self._heard = True
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._started = True
            headers = list(message.get("headers", ()))
            said = {name.lower() for name, _ in headers}
            headers += [each for each in (*SHIELD, UNKEPT) if each[0] not in said]
            if not self._heard:  # the rest of the body is wanted by nobody
                headers.append((b"connection", b"close"))
            message = {**message, "headers": headers}
        await self._send(message)

    async def answer(self, response: Response) -> None:
        if not self._started:
            await response(self._scope, self.receive, self.send)


def turned_away(no: Turned) -> Response:
    return Response(no.body(), no.status, headers=no.headers, media_type="application/json")


def peer_of(scope: MutableMapping[str, Any]) -> str:
    client = scope.get("client")
    return client[0] if client else "socket"


def _head(scope: Scope) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in scope["headers"]:
        if name in ONCE:
            if name.decode() in found:
                raise Turned(400, f"the header {name.decode()} is said twice: say it once")
            found[name.decode()] = value.decode("latin-1")
    return found


def _cookies(said: str, name: str) -> list[str]:
    pairs = (each.strip().partition("=") for each in said.split(";"))
    return [value for key, _, value in pairs if key == name][:4]


def _named(scope: Scope) -> str:
    """The route, not what was asked for: that may be a code."""
    route = scope.get("route")
    return getattr(route, "path", "") or "an address"
