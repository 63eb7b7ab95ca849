"""A refusal: what is answered where a request comes no further, in the shape of every error, behind every shield."""

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

Header = tuple[bytes, bytes]

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "font-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
SHIELD: tuple[Header, ...] = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
"""On every answer, whoever gives it. Nothing here ever lets another origin in."""
UNKEPT: Header = (b"cache-control", b"no-store")

CODES: Mapping[int, str] = {
    400: "usage",
    401: "unauthenticated",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    408: "too_slow",
    413: "too_large",
    414: "too_large",
    415: "not_json",
    421: "wrong_host",
    429: "throttled",
    431: "too_large",
    500: "defect",
    503: "busy",
}
"""The code of what the daemon itself says no to; errors of the product bring their own."""

DEFECT = "this is a defect of Retinue: the log in its home has the details"


class Turned(Exception):
    """A request is turned away: the status, a sentence for a person, and facts for a program."""

    def __init__(
        self, status: int, message: str, *, headers: Mapping[str, str] | None = None, **details: Any
    ) -> None:
        super().__init__(message)
        self.status = status
        self.headers = dict(headers or {})
        self.details = details

    @property
    def code(self) -> str:
        return CODES[self.status]

    def body(self) -> bytes:
        return shaped(self.code, str(self), self.details)

    def raw(self) -> bytes:
        """The whole answer, for where no application is asked any more; the connection ends with it."""
        body = self.body()
        lines = [
            f"HTTP/1.1 {self.status} {HTTPStatus(self.status).phrase}",
            "content-type: application/json",
            f"content-length: {len(body)}",
            *(f"{name}: {value}" for name, value in self.headers.items()),
            *(f"{name.decode()}: {value.decode()}" for name, value in (*SHIELD, UNKEPT)),
            "connection: close",
        ]
        return "\r\n".join([*lines, "", ""]).encode() + body


def shaped(code: str, message: str, details: Mapping[str, Any]) -> bytes:
    return json.dumps({"error": {"code": code, "message": message, "details": dict(details)}}).encode()
