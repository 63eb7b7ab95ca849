"""The examples and the pages about the API say what its types say."""

import re
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec
import pytest

from retinue.server.route_table import ROUTES
from retinue.server.routing import NoFields, Route

PAGE = Path(__file__).resolve().parents[3] / "docs/reference/api.md"
BY_ROUTE = pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")


@BY_ROUTE
def test_every_example_is_of_its_type(route: Route):
    if route.body is not NoFields:
        msgspec.convert(route.request_example, route.body)
    if not route.is_stream and route.path != "/api/openapi.json":
        msgspec.convert(route.response_example, route.response)


@BY_ROUTE
def test_a_handler_takes_the_query_and_the_body_that_its_route_declares(route: Route):
    """What is declared is checked by pyright; this finds a handler whose route declares nothing."""
    request_type = list(get_type_hints(route.handler).values())[1]
    for taken, declared in zip(get_args(request_type), (route.query, route.body), strict=True):
        assert taken in (declared, Any) or (taken is type(None) and declared is NoFields)


def test_the_list_of_routes_is_complete_with_their_rights():
    text = PAGE.read_text(encoding="utf-8")
    rows = [f"| `{route.method} {route.path.replace('{ref}', '{id}')}` | {route.right} |" for route in ROUTES]
    assert [row for row in rows if row not in text] == []
    listed = re.findall(r"^\| `([A-Z]+ /api/\S+)` \|", text, re.MULTILINE)
    assert len(listed) == len(ROUTES)
