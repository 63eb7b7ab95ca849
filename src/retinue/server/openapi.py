"""The document: the table of routes and their types, as OpenAPI 3.1 tells them."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec

from retinue import __version__
from retinue.server.openapi_examples import GIVEN, SAID
from retinue.server.response_schemas import Failed
from retinue.server.routing import Nothing, Route

ERRORS: Mapping[int, str] = {
    400: "It cannot be understood; the message says what is wrong.",
    401: "No key, or a wrong one.",
    403: "The key has not the right, the request comes from another origin, or a rule says no.",
    408: "The body came too slowly.",
    413: "The body is too large.",
    414: "The address is too long.",
    415: "The body is not JSON.",
    421: "Another host is meant.",
    429: "Too many wrong keys came from there; Retry-After says when to try again.",
    431: "The headers are too many, or too long.",
    500: "A defect of Retinue: the log in its home has the details.",
    503: "There is no room: on the disk, or for one more connection.",
}
"""What every route may answer; a route says itself what else it may mean by one of them."""
MISSING = "There is nothing of that name."
BODIED = (408, 413, 415)
NAME = {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._:-]{0,199}$"}
KEY = {"type": "string", "pattern": "^[\\x21-\\x7e]{1,200}$"}
ABOUT = (
    "Everything the daemon of a home can be asked. Over the unix socket in the home no key is needed; over TCP the "
    "token in `<home>/token`, or one of `retinue tokens`. Errors have one shape. Lists are arrays, times ISO 8601 UTC."
)

Facts = dict[str, Any]


def document(routes: Sequence[Route]) -> Facts:
    """The whole document."""
    types = [Failed, *(each.gives for each in routes if each.gives is not None)]
    types += [each.takes for each in routes if each.takes is not Nothing]
    shown, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    schemas = {id(kind): schema for kind, schema in zip(types, shown, strict=True)}
    paths: dict[str, Facts] = {}
    for each in routes:
        paths.setdefault(each.path.replace("{ref}", "{id}"), {})[each.method.lower()] = _operation(
            each, schemas
        )
    return {
        "openapi": "3.1.0",
        "info": {"title": "Retinue", "version": __version__, "description": ABOUT},
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


def _operation(route: Route, schemas: Mapping[int, Facts]) -> Facts:
    found: Facts = {
        "operationId": _name(route),
        "summary": route.says,
        "description": f"{route.says} Needs the right `{route.right}`.",
        "tags": [route.path.split("/")[2]],
        "x-right": str(route.right),
        "parameters": _parameters(route),
        "responses": {str(route.status): _answer(route, schemas)} | _errors(route, schemas),
    }
    if route.takes is not Nothing:
        content = _content(schemas[id(route.takes)], SAID.get((route.method, route.path)))
        found["requestBody"] = {"required": bool(_required(route.takes)), "content": content}
    return found


def _name(route: Route) -> str:
    words = [each.strip("{}").replace(".", "_") for each in route.path.split("/")[2:]]
    return "_".join([route.method.lower(), *(each for each in words if each != "ref")]) + (
        "_one" if route.path.endswith("{ref}") else ""
    )


def _parameters(route: Route) -> list[Facts]:
    found: list[Facts] = []
    if "{ref}" in route.path:
        what = f"Names it: an id, or an unambiguous beginning of one{_also(route)}."
        found.append({"name": "id", "in": "path", "required": True, "schema": NAME, "description": what})
    if route.keyed:
        what = "The same request with the same key is done once; with another content it is a conflict."
        found.append({"name": "Idempotency-Key", "in": "header", "schema": KEY, "description": what})
    if route.streams:
        what = "The number of the last event that was heard: the stream goes on after it."
        found.append(
            {"name": "Last-Event-ID", "in": "header", "schema": {"type": "integer"}, "description": what}
        )
    return [*found, *_query(route)]


def _also(route: Route) -> str:
    return ", a slug or an alias" if route.path.startswith("/api/sessions") else ""


def _query(route: Route) -> list[Facts]:
    if route.query is Nothing:
        return []
    _, components = msgspec.json.schema_components([route.query], ref_template="{name}")
    fields = cast("Mapping[str, Facts]", components[route.query.__name__]["properties"])
    return [_parameter(name, schema, _required(route.query)) for name, schema in fields.items()]


def _parameter(name: str, schema: Facts, required: Sequence[str]) -> Facts:
    """Nothing in an address is null: what is not said is left out."""
    rest = {key: value for key, value in schema.items() if key not in ("anyOf", "description", "default")}
    chosen = [each for each in schema.get("anyOf", []) if each.get("type") != "null"]
    default = {} if schema.get("default") in (None, "") else {"default": schema["default"]}
    facts: Facts = {"name": name, "in": "query", "required": name in required}
    if words := schema.get("description"):
        facts["description"] = words
    return facts | {"schema": {**(chosen[0] if chosen else {}), **rest, **default}}


def _required(kind: type[msgspec.Struct]) -> list[str]:
    return [each.encode_name for each in msgspec.structs.fields(kind) if each.required]


def _answer(route: Route, schemas: Mapping[int, Facts]) -> Facts:
    if route.streams:
        return {
            "description": "Server-sent events.",
            "content": {"text/event-stream": {"schema": {"type": "string"}}},
        }
    schema = {} if route.gives is None else schemas[id(route.gives)]
    return {"description": route.says, "content": _content(schema, GIVEN.get((route.method, route.path)))}


def _errors(route: Route, schemas: Mapping[int, Facts]) -> Facts:
    bodied = route.method in ("POST", "PUT", "PATCH")
    words = {status: text for status, text in ERRORS.items() if bodied or status not in BODIED}
    if "{ref}" in route.path:
        words[404] = MISSING
    for status, text in route.errors.items():
        words[status] = f"{words[status]} {text}" if status in words else text
    content = _content(schemas[id(Failed)], None)
    return {str(status): {"description": words[status], "content": content} for status in sorted(words)}


def _content(schema: Facts, example: object) -> Facts:
    return {"application/json": {"schema": schema} | ({} if example is None else {"example": example})}
