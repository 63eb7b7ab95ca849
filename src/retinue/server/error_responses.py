"""HTTP errors in the API's error format."""

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from retinue.errors import BUG_MESSAGE
from retinue.server.response_headers import COMMON_RESPONSE_HEADERS

ERROR_CODES: Mapping[int, str] = {
    400: "usage",
    401: "unauthenticated",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    408: "request_timeout",
    413: "too_large",
    414: "too_large",
    415: "unsupported_media_type",
    421: "misdirected_request",
    429: "rate_limited",
    431: "too_large",
    500: "internal_error",
    503: "busy",
}
"""Error code of each status sent by the server; application errors have their own codes."""

INTERNAL_ERROR_MESSAGE = f"{BUG_MESSAGE}. The log in its home has the details."


class HttpError(Exception):
    """A rejected request: status, a sentence for people, and details for programs."""

    def __init__(
        self, status: int, message: str, *, headers: Mapping[str, str] | None = None, **details: Any
    ) -> None:
        super().__init__(message)
        self.status = status
        self.headers = dict(headers or {})
        self.details = details

    @property
    def code(self) -> str:
        return ERROR_CODES[self.status]

    def body(self) -> bytes:
        return error_body(self.code, str(self), self.details)

    def raw_response(self) -> bytes:
        """Return the complete response, for use outside the application. It closes the connection."""
        body = self.body()
        lines = [
            f"HTTP/1.1 {self.status} {HTTPStatus(self.status).phrase}",
            "content-type: application/json",
            f"content-length: {len(body)}",
            *(f"{name}: {value}" for name, value in self.headers.items()),
            *(f"{name.decode()}: {value.decode()}" for name, value in COMMON_RESPONSE_HEADERS),
            "connection: close",
        ]
        return "\r\n".join([*lines, "", ""]).encode() + body


def error_body(code: str, message: str, details: Mapping[str, Any]) -> bytes:
    return json.dumps({"error": {"code": code, "message": message, "details": dict(details)}}).encode()
