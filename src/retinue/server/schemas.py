"""Types shared by the schemas of several routes."""

from typing import Annotated, Any

from msgspec import Meta, Struct

Ref = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,199}$",
        description="An id, slug or alias, or an unambiguous prefix.",
    ),
]
ResultLimit = Annotated[int, Meta(ge=1, le=1000)]
MessageText = Annotated[str, Meta(min_length=1, max_length=1_000_000)]
Timestamp = Annotated[str, Meta(description="ISO 8601, UTC.", examples=["2026-11-16T09:30:00.000Z"])]
JsonObject = dict[str, Any]


class RequestModel(Struct, kw_only=True, forbid_unknown_fields=True):
    """Base of queries and bodies: unknown fields are rejected."""


class ResponseModel(Struct, kw_only=True, forbid_unknown_fields=True):
    """Base of response types: unknown fields are errors."""


class ErrorInfo(ResponseModel):
    code: Annotated[str, Meta(examples=["not_found"])]
    message: Annotated[str, Meta(description="What happened and what to do.")]
    details: JsonObject


class ErrorResponse(ResponseModel):
    error: ErrorInfo


class TokenUsage(ResponseModel):
    input: int
    output: int
