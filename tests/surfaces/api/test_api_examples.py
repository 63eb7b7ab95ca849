"""The examples and the reference of the API agree with the declared types."""

import re
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec
import pytest

from retinue.server.route_table import ROUTES
from retinue.server.routing import EmptyFields, Route

PAGE = Path(__file__).resolve().parents[3] / "docs/reference/api.md"
BY_ROUTE = pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")


@BY_ROUTE
def test_every_example_has_the_type_that_its_route_declares(route: Route):
    if route.body is not EmptyFields:
        msgspec.convert(route.request_example, route.body)
    if not route.is_stream and route.path != "/api/openapi.json":
        msgspec.convert(route.response_example, route.response)


@BY_ROUTE
def test_a_handler_accepts_the_query_and_the_body_that_its_route_declares(route: Route):
    """Pyright checks what a route declares; this finds a handler whose route declares nothing."""
    request_type = list(get_type_hints(route.handler).values())[1]
    for accepted, declared in zip(get_args(request_type), (route.query, route.body), strict=True):
        assert accepted in (declared, Any) or (accepted is type(None) and declared is EmptyFields)


def test_the_reference_lists_every_route_with_its_right():
    text = PAGE.read_text(encoding="utf-8")
    rows = [f"| `{route.method} {route.path.replace('{ref}', '{id}')}` | {route.right} |" for route in ROUTES]
    assert [row for row in rows if row not in text] == []
    documented = re.findall(r"^\| `([A-Z]+ /api/\S+)` \|", text, re.MULTILINE)
    assert len(documented) == len(ROUTES)
