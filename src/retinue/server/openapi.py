"""The OpenAPI 3.1 document, generated from the routes and their types."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec

from retinue import __version__
from retinue.server.routing import EmptyFields, Route
from retinue.server.schemas import ErrorResponse

COMMON_ERRORS: Mapping[int, str] = {
    400: "Invalid request; the message names the problem.",
    401: "Missing or wrong credential.",
    403: "The credential lacks the permission, the request comes from another origin, or a rule forbids it.",
    408: "The body took too long.",
    413: "The body is too large.",
    414: "The URL is too long.",
    415: "The body is not JSON.",
    421: "The Host header names another server.",
    429: "Too many wrong credentials from this client; retry after the time in Retry-After.",
    431: "Too many headers, or headers too long.",
    500: "A bug in Retinue; the log in its home has the details.",
    503: "The disk is full, or there are too many connections.",
}
"""Errors that every route may answer with; a route adds its own meanings."""
NOT_FOUND_TEXT = "Not found."
BODY_ERRORS = (408, 413, 415)
NAME_SCHEMA = {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._:-]{0,199}$"}
IDEMPOTENCY_KEY_SCHEMA = {"type": "string", "pattern": "^[\\x21-\\x7e]{1,200}$"}
API_DESCRIPTION = (
    "The HTTP API of the daemon. The unix socket in the home needs no credential; TCP needs the "
    "token in `<home>/token`, or one created with `retinue tokens`. All errors have one format. Lists are arrays; times are ISO 8601 in UTC."
)

JsonObject = dict[str, Any]


def build_openapi_document(routes: Sequence[Route]) -> JsonObject:
    """Build the OpenAPI document of these routes."""
    types = [ErrorResponse, *(item.response for item in routes if item.response is not None)]
    types += [item.body for item in routes if item.body is not EmptyFields]
    type_schemas, components = msgspec.json.schema_components(
        types, ref_template="#/components/schemas/{name}"
    )
    schemas = {id(kind): schema for kind, schema in zip(types, type_schemas, strict=True)}
    paths: dict[str, JsonObject] = {}
    for item in routes:
        paths.setdefault(item.path.replace("{ref}", "{id}"), {})[item.method.lower()] = _operation_object(
            item, schemas
        )
    return {
        "openapi": "3.1.0",
        "info": {"title": "Retinue", "version": __version__, "description": API_DESCRIPTION},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "page": {"type": "apiKey", "in": "cookie", "name": "retinue"},
            },
        },
        "security": [{"token": []}, {"page": []}],
    }


def _operation_object(route: Route, schemas: Mapping[int, JsonObject]) -> JsonObject:
    operation: JsonObject = {
        "operationId": _operation_id(route),
        "summary": route.summary,
        "description": f"{route.summary} Requires the permission `{route.right}`.",
        "tags": [route.path.split("/")[2]],
        "x-right": str(route.right),
        "parameters": _parameter_objects(route),
        "responses": {str(route.success_status): _success_response(route, schemas)}
        | _error_responses(route, schemas),
    }
    if route.body is not EmptyFields:
        content = _json_content(schemas[id(route.body)], route.request_example)
        operation["requestBody"] = {"required": bool(_required_fields(route.body)), "content": content}
    return operation


def _operation_id(route: Route) -> str:
    words = [item.strip("{}").replace(".", "_") for item in route.path.split("/")[2:]]
    return "_".join([route.method.lower(), *(item for item in words if item != "ref")]) + (
        "_one" if route.path.endswith("{ref}") else ""
    )


def _parameter_objects(route: Route) -> list[JsonObject]:
    parameters: list[JsonObject] = []
    if "{ref}" in route.path:
        description = f"An id, or an unambiguous prefix of one{_extra_names_text(route)}."
        parameters.append(
            {"name": "id", "in": "path", "required": True, "schema": NAME_SCHEMA, "description": description}
        )
    if route.is_idempotent:
        description = "A repeated request with the same key is executed once. The same key with different content is a conflict."
        parameters.append(
            {
                "name": "Idempotency-Key",
                "in": "header",
                "schema": IDEMPOTENCY_KEY_SCHEMA,
                "description": description,
            }
        )
    if route.is_stream:
        description = "Number of the last event received. The stream continues after it."
        parameters.append(
            {
                "name": "Last-Event-ID",
                "in": "header",
                "schema": {"type": "integer"},
                "description": description,
            }
        )
    return [*parameters, *_query_parameters(route)]


def _extra_names_text(route: Route) -> str:
    return ", a slug or an alias" if route.path.startswith("/api/sessions") else ""


def _query_parameters(route: Route) -> list[JsonObject]:
    if route.query is EmptyFields:
        return []
    _, components = msgspec.json.schema_components([route.query], ref_template="{name}")
    fields = cast("Mapping[str, JsonObject]", components[route.query.__name__]["properties"])
    return [_query_parameter(name, schema, _required_fields(route.query)) for name, schema in fields.items()]


def _query_parameter(name: str, schema: JsonObject, required: Sequence[str]) -> JsonObject:
    """Return a query parameter. Null alternatives are dropped: an absent value is simply left out."""
    rest = {key: value for key, value in schema.items() if key not in ("anyOf", "description", "default")}
    alternatives = [item for item in schema.get("anyOf", []) if item.get("type") != "null"]
    default = {} if schema.get("default") in (None, "") else {"default": schema["default"]}
    parameter: JsonObject = {"name": name, "in": "query", "required": name in required}
    if description := schema.get("description"):
        parameter["description"] = description
    return parameter | {"schema": {**(alternatives[0] if alternatives else {}), **rest, **default}}


def _required_fields(kind: type[msgspec.Struct]) -> list[str]:
    return [item.encode_name for item in msgspec.structs.fields(kind) if item.required]


def _success_response(route: Route, schemas: Mapping[int, JsonObject]) -> JsonObject:
    if route.is_stream:
        return {
            "description": "Server-sent events.",
            "content": {"text/event-stream": {"schema": {"type": "string"}}},
        }
    schema = {} if route.response is None else schemas[id(route.response)]
    return {
        "description": route.summary,
        "content": _json_content(schema, route.response_example),
    }


def _error_responses(route: Route, schemas: Mapping[int, JsonObject]) -> JsonObject:
    has_body = route.method in ("POST", "PUT", "PATCH")
    descriptions = {
        status: text for status, text in COMMON_ERRORS.items() if has_body or status not in BODY_ERRORS
    }
    if "{ref}" in route.path:
        descriptions[404] = NOT_FOUND_TEXT
    for status, text in route.extra_errors.items():
        descriptions[status] = f"{descriptions[status]} {text}" if status in descriptions else text
    content = _json_content(schemas[id(ErrorResponse)], None)
    return {
        str(status): {"description": descriptions[status], "content": content}
        for status in sorted(descriptions)
    }


def _json_content(schema: JsonObject, example: object) -> JsonObject:
    return {"application/json": {"schema": schema} | ({} if example is None else {"example": example})}
