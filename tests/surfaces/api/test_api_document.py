"""The examples and the pages about the API say what its types say."""

import re
from pathlib import Path

import msgspec
import pytest

from retinue.server.openapi_examples import REQUEST_EXAMPLES, RESPONSE_EXAMPLES
from retinue.server.route_table import ROUTES
from retinue.server.routing import NoFields, Route

PAGE = Path(__file__).resolve().parents[3] / "docs/reference/api.md"
BY_ROUTE = pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")


@BY_ROUTE
def test_every_example_is_of_its_type(route: Route):
    key = (route.method, route.path)
    if route.body is not NoFields:
        msgspec.convert(REQUEST_EXAMPLES[key], route.body)
    if not route.is_stream and route.path != "/api/openapi.json":
        msgspec.convert(RESPONSE_EXAMPLES[key], route.response)


def test_the_list_of_routes_is_complete_with_their_rights():
    text = PAGE.read_text(encoding="utf-8")
    rows = [f"| `{route.method} {route.path.replace('{ref}', '{id}')}` | {route.right} |" for route in ROUTES]
    assert [row for row in rows if row not in text] == []
    listed = re.findall(r"^\| `([A-Z]+ /api/\S+)` \|", text, re.MULTILINE)
    assert len(listed) == len(ROUTES)
