"""Turning a user's function into a tool, and strict parsing of its arguments."""

import asyncio
import functools
import json
import threading
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from inline_snapshot import snapshot
from tool_calls import CALLED_AT, make_call, use_tool

from retinue.domain.limits import MAX_ARGUMENT_BYTES, MAX_ARGUMENT_DEPTH
from retinue.domain.permissions.scope import Scope
from retinue.domain.tool import Effect
from retinue.errors import UsageError
from retinue.interfaces import Call, Tool
from retinue.tools.arguments import check_json_limits
from retinue.tools.define import tool

CALL = make_call(Path("/ws"), Scope(root="/ws"))


async def run(defined: Tool, **arguments: Any) -> str:
    return await use_tool(defined, CALL, **arguments)


@tool(effect="once", capabilities=["mail.write"])
async def send_mail(call: Call, to: Annotated[str, "Whom it goes to."], body: str, copies: int = 1) -> str:
    """Send a mail.

    It cannot be taken back."""
    return f"{call.id}: {to} {body} {copies}"


async def test_a_function_becomes_a_tool_by_its_signature_and_docstring():
    assert send_mail.spec.name == "send_mail"
    assert send_mail.spec.description == "Send a mail.\n\nIt cannot be taken back."
    assert send_mail.spec.schema == snapshot(
        {
            "type": "object",
            "properties": {
                "to": {"description": "Whom it goes to.", "type": "string"},
                "body": {"type": "string"},
                "copies": {"type": "integer", "default": 1},
            },
            "required": ["to", "body"],
            "additionalProperties": False,
        }
    )
    assert (send_mail.effect, send_mail.capabilities, send_mail.is_delegation) == (
        Effect.ONCE,
        ("mail.write",),
        False,
    )
    assert await run(send_mail, to="ann", body="hi") == "c1: ann hi 1"


async def test_a_tool_without_options_has_the_effect_once():
    @tool
    async def ping() -> str:
        """Answer pong."""
        return "pong"

    assert ping.effect is Effect.ONCE
    assert ping.spec.schema == {
        "type": "object",
        "properties": {},
        "required": [],
        "additionalProperties": False,
    }
    assert await run(ping) == "pong"
    assert ping.parse_arguments(b"") == ping.parse_arguments(b" {} ") == {}


async def test_a_function_that_is_not_async_runs_in_a_thread():
    @tool
    def where(n: int, call: Call) -> str:
        """Tell the thread."""
        return f"{n} {call.id} {threading.current_thread() is threading.main_thread()}"

    assert await run(where, n=3) == "3 c1 False"


async def test_blocking_functions_do_not_delay_other_tools():
    """There are more of them than a pool has threads."""
    release = threading.Event()

    @tool
    def hang() -> str:
        """Wait."""
        release.wait()
        return "over"

    @tool
    def quick() -> str:
        """Come back."""
        return "here"

    hanging = [asyncio.create_task(run(hang)) for _ in range(40)]
    await asyncio.sleep(0)
    try:
        assert await run(quick) == "here"
    finally:
        release.set()
    assert set(await asyncio.gather(*hanging)) == {"over"}


async def test_a_function_that_raises_stop_iteration_fails_instead_of_hanging():
    @tool
    def first() -> str:
        """Take the first of nothing."""
        return next(iter(list[str]()))

    with pytest.raises(RuntimeError, match="StopIteration"):
        await run(first)


async def test_a_function_that_returns_after_its_call_was_cancelled_causes_no_error():
    started, release = threading.Event(), threading.Event()

    @tool
    def late() -> str:
        """Come back late."""
        started.set()
        release.wait()
        return "late"

    task = asyncio.create_task(run(late))
    while not started.is_set():  # noqa: ASYNC110  (a thread sets it)
        await asyncio.sleep(0.001)
    task.cancel()
    release.set()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_an_awaitable_returned_by_a_plain_function_is_awaited():
    async def later(n: int) -> int:
        return n + 1

    @tool
    def soon(n: int) -> Any:
        """Count on."""
        return later(n)

    assert await run(soon, n=1) == "2"


async def test_a_result_that_is_not_text_is_json():
    @tool
    async def facts(what: Literal["list", "none", "time"]) -> Any:
        """Tell facts."""
        return {"list": [1, {"a": True}], "none": None, "time": CALLED_AT}[what]

    assert await run(facts, what="list") == '[1,{"a":true}]'
    assert await run(facts, what="none") == "null"
    assert await run(facts, what="time") == '"2026-11-15T00:00:00Z"'


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Place:
    city: str
    zip: int | None = None


class Size(TypedDict):
    width: int


class Tree(msgspec.Struct):
    name: str
    below: list["Tree"] = []


@tool(name="shop.order", description="Order things.", category="shop", is_delegation=True)
async def order(
    place: Place,
    sizes: list[Size],
    colour: Colour = Colour.RED,
    tags: Annotated[list[str], msgspec.Meta(description="Words.", max_length=2)] = [],  # noqa: B006  (a default as users write it)
    note: Annotated[str | None, "Anything."] = None,
    extra: dict[str, int] | None = None,
) -> Any:
    return [place.city, place.zip, sizes, colour, tags, note, extra]


async def test_nested_types_are_inlined_in_the_schema():
    assert (order.spec.name, order.spec.description, order.category, order.is_delegation) == (
        "shop.order",
        "Order things.",
        "shop",
        True,
    )
    assert order.spec.schema == snapshot(
        {
            "type": "object",
            "properties": {
                "place": {
                    "type": "object",
                    "properties": {
                        "city": {"type": "string"},
                        "zip": {"type": "integer"},
                    },
                    "required": ["city"],
                    "additionalProperties": False,
                },
                "sizes": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "properties": {"width": {"type": "integer"}},
                        "required": ["width"],
                        "additionalProperties": False,
                    },
                },
                "colour": {"type": "string", "enum": ["blue", "red"], "default": "red"},
                "tags": {
                    "type": "array",
                    "description": "Words.",
                    "items": {"type": "string"},
                    "maxItems": 2,
                },
                "note": {"type": "string", "description": "Anything."},
                "extra": {"type": "object", "additionalProperties": {"type": "integer"}},
            },
            "required": ["place", "sizes"],
            "additionalProperties": False,
        }
    )
    result = await run(order, place={"city": "Ulm"}, sizes=[{"width": 2}], colour="blue", extra={"any": 1})
    assert json.loads(result) == ["Ulm", None, [{"width": 2}], "blue", [], None, {"any": 1}]


async def test_calls_do_not_share_a_mutable_default():
    first = order.parse_arguments(b'{"place": {"city": "Ulm"}, "sizes": []}')
    first["tags"].append("kept")
    assert order.parse_arguments(b'{"place": {"city": "Ulm"}, "sizes": []}')["tags"] == []


async def test_a_recursive_type_is_a_reference_in_the_schema():
    @tool
    async def plant(tree: Tree) -> str:
        """Plant it."""
        return tree.below[0].name

    assert plant.spec.schema["properties"]["tree"] == {"$ref": "#/$defs/Tree"}
    assert plant.spec.schema["$defs"]["Tree"]["properties"]["below"]["items"] == {"$ref": "#/$defs/Tree"}
    assert await run(plant, tree={"name": "a", "below": [{"name": "b"}]}) == "b"
    with pytest.raises(ValueError, match=r"unknown argument `tree\.below\[0\]\.nme`"):
        plant.parse_arguments(b'{"tree": {"name": "a", "below": [{"name": "b", "nme": 1}]}}')


INVALID_ARGUMENTS = {
    b'{"to": 3, "body": "x"}': "the argument `to` must be str, not int",
    b'{"to": "a", "body": "x", "copies": "3"}': "the argument `copies` must be int, not str",
    b'{"to": "a", "body": "x", "copies": true}': "the argument `copies` must be int, not bool",
    b'{"to": "a"}': "the argument `body` is missing",
    b'{"to": "a", "body": "x", "cc": "y"}': "unknown argument `cc`; valid arguments: `body`, `copies`, `to`",
    b'{"to": "a", "body": "x", "call": {}}': "unknown argument `call`; valid arguments: `body`, `copies`, `to`",
    b'{"to": "a", "to": "b", "body": "x"}': "the key `to` is given twice",
    b'{"to": "a", "t\\u006f": "b", "body": "x"}': "the key `to` is given twice",
    b'{"to": "\xff", "body": "x"}': "the arguments are not valid UTF-8",
    b"[]": "the arguments must be object, not array",
    b'"to"': "the arguments must be object, not str",
    b'{"to": "a", "body": "x"': "the arguments cannot be parsed: Input data was truncated",
    b'{"to": "a", "body": "x"} {}': "the arguments cannot be parsed: JSON is malformed",
    b'{"to": "a", "body": "\\ud800"}': "the arguments cannot be parsed",
    b"NaN": "the arguments cannot be parsed",
}


@pytest.mark.parametrize("raw", INVALID_ARGUMENTS)
def test_invalid_arguments_are_refused_with_a_message_that_names_the_key(raw: bytes):
    """Shows: M13."""
    with pytest.raises(ValueError, match=r".") as error:
        send_mail.parse_arguments(raw)
    assert str(error.value).startswith(INVALID_ARGUMENTS[raw])


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b'{"place": {"city": "Ulm", "street": 1}, "sizes": []}', "unknown argument `place.street`"),
        (b'{"place": {"city": "Ulm"}, "sizes": [{"width": 1, "w": 2}]}', "unknown argument `sizes[0].w`"),
        (b'{"place": {"city": 1}, "sizes": []}', "the argument `place.city` must be str, not int"),
        (b'{"place": {}, "sizes": []}', "the argument `city` is missing in `place`"),
        (b'{"place": {"city": "U", "city": "V"}, "sizes": []}', "the key `city` is given twice"),
        (
            b'{"place": {"city": "U"}, "sizes": [], "tags": ["a", "b", "c"]}',
            "the argument `tags` is invalid",
        ),
    ],
)
def test_nested_arguments_are_checked_as_strictly(raw: bytes, message: str):
    """Shows: M13."""
    with pytest.raises(ValueError, match=r".") as error:
        order.parse_arguments(raw)
    assert str(error.value).startswith(message)


def test_the_same_key_in_two_objects_is_allowed():
    assert order.parse_arguments(b'{"place": {"city": "U"}, "sizes": [{"width": 1}, {"width": 1}]}')["sizes"]
    assert send_mail.parse_arguments(b'{"to": "to", "body": "{\\"to\\": 1, \\"to\\": 2}"}')["to"] == "to"


@pytest.mark.parametrize(
    "raw",
    [
        b"[" * 10_000,
        b'{"to":' * 10_000,
        b'{"to": ' + b"[" * (MAX_ARGUMENT_DEPTH + 1) + b"]" * (MAX_ARGUMENT_DEPTH + 1) + b"}",
        b'{"to": "' + b"x" * 10_000_000 + b'"}',
        b'"' + b'\\"' * 400_000,
        b'{"a' + b" " * 900_000,
        b'{"' + b"\\" * 900_001,
        b"]" * 900_000,
    ],
    ids=["lists", "objects", "one too deep", "10 MB", "open string", "blanks", "backslashes", "closed"],
)
def test_arguments_that_are_too_large_or_too_deep_are_refused_before_they_are_decoded(raw: bytes):
    """Shows: M13."""
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="arguments"):
            send_mail.parse_arguments(raw)
        assert tracemalloc.get_traced_memory()[1] < 4 * MAX_ARGUMENT_BYTES
    finally:
        tracemalloc.stop()


def test_arguments_exactly_at_the_limits_are_accepted():
    check_json_limits(b"[" * MAX_ARGUMENT_DEPTH + b"]" * MAX_ARGUMENT_DEPTH)
    check_json_limits(b'"' + b"x" * (MAX_ARGUMENT_BYTES - 2) + b'"')


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=12,
)


@given(JSON_VALUES, st.booleans())
def test_all_json_within_the_limits_is_accepted(value: object, ascii_only: bool):
    check_json_limits(json.dumps(value, ensure_ascii=ascii_only).encode(errors="surrogatepass"))


@given(st.binary(max_size=200))
def test_arbitrary_bytes_cause_only_an_argument_error(raw: bytes):
    """Shows: M13."""
    for defined in (send_mail, order):
        with pytest.raises(ValueError, match="argument") as error:
            defined.parse_arguments(raw)
        assert not isinstance(error.value, UnicodeError)


async def tool_without_docstring() -> str:
    return ""


async def tool_with_docstring() -> str:
    """Do it."""
    return ""


async def tool_with_varargs(*values: int) -> str:
    """Do it."""
    return ""


async def tool_with_callable(value: Callable[[], int]) -> str:
    """Do it."""
    return ""


def with_annotation(annotation: object) -> Callable[..., Any]:
    """Make a tool function whose only parameter has this annotation."""

    async def mistaken(value: Any) -> str:
        """Do it."""
        return str(value)

    mistaken.__annotations__ = {"value": annotation} if annotation else {}
    return mistaken


unknown_access: Any = ("wirte", "path")


def tool_with_path(path: str) -> str:
    """Use a path."""
    return path


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: tool(name="system_reset")(tool_with_docstring),
            "names that start with system_ are reserved",
        ),
        (lambda: tool(name="1st")(tool_with_docstring), "Invalid tool name '1st'"),
        (lambda: tool(name="a b")(tool_with_docstring), "Invalid tool name 'a b'"),
        (lambda: tool(name="x" * 65)(tool_with_docstring), "Invalid tool name"),
        (
            lambda: tool(effect="twice")(tool_with_docstring),
            "unknown effect 'twice'. Use one of read, idempotent, once",
        ),
        (
            lambda: tool(access=unknown_access)(tool_with_path),
            "Tool tool_with_path: unknown access 'wirte'. Use one of read, write, run, scope",
        ),
        (
            lambda: tool(access=("write", "file"))(tool_with_path),
            "Tool tool_with_path: access names the argument 'file', which it does not have",
        ),
        (
            lambda: tool(with_annotation(None)),
            "Tool mistaken: the parameter value must be a named parameter with a type",
        ),
        (lambda: tool(tool_with_varargs), "Tool tool_with_varargs: the parameter values"),
        (lambda: tool(functools.partial(tool_with_docstring)), "Invalid tool name ''"),
        (
            lambda: tool(name="part")(functools.partial(tool_with_docstring)),
            "Tool part has an annotation that cannot",
        ),
        (lambda: tool(tool_with_callable), "Tool tool_with_callable: no JSON Schema for its arguments"),
        (
            lambda: tool(with_annotation("Nowhere")),
            "Tool mistaken has an annotation that cannot be resolved",
        ),
    ],
)
def test_an_invalid_tool_function_is_refused_when_it_is_defined(make: Callable[[], Tool], message: str):
    """Shows: T02."""
    with pytest.raises(UsageError, match=message):
        make()


def test_a_function_without_a_docstring_is_described_by_the_words_of_its_name():
    assert tool(tool_without_docstring).spec.description == "Tool without docstring."
