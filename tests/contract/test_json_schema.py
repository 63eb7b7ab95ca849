"""JSON Schemas of answers: which values are schemas, and which texts match them."""

from pathlib import Path
from typing import Any

import pytest

from retinue.errors import UsageError
from retinue.storage.json_schema import find_output_error, find_schema_error, read_schema_file

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name"],
}


def deep_schema(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {"properties": {"a": schema}}
    return schema


@pytest.mark.parametrize(
    ("value", "part"),
    [
        ([], "is not a JSON object"),
        (True, "is not a JSON object"),
        ({"type": "objekt"}, 'type: "objekt"'),
        ({"properties": 5}, "properties: 5"),
        ({"pattern": "("}, "pattern:"),
        ({"$ref": "#/$defs/missing"}, "/$defs/missing"),
        ({"$ref": "https://example.com/schema.json"}, "it refers to https://example.com/schema.json"),
        ({"$ref": "file:///etc/passwd"}, "a schema can only refer to itself"),
        ({"$schema": "https://example.com/draft"}, "meta-schema"),
        (deep_schema(5_000), "not a valid JSON Schema"),
    ],
)
def test_a_value_that_is_no_schema_is_named_with_its_place(value: Any, part: str):
    assert part in find_schema_error(value)


@pytest.mark.parametrize(
    "schema",
    [{}, PERSON, {"$schema": "http://json-schema.org/draft-07/schema#"}, {"type": "array"}, {"const": None}],
)
def test_schemas_of_all_drafts_are_accepted(schema: dict[str, Any]):
    assert find_schema_error(schema) == ""


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "the answer is empty"),
        (" \n", "the answer is empty"),
        ("The name is Ada.", "not one JSON value"),
        ('{"name": "Ada"} trailing', "not one JSON value"),
        ('{"name": NaN}', "not one JSON value"),
        ('{"name": "\ud800"}', "not one JSON value"),
        ("[" * 100_000, "not one JSON value"),
        ("[]", 'is not of type "object"'),
        ("{}", '"name" is a required property'),
        ('{"name": 5, "age": -1}', "name: 5 is not of type"),
        ('{"name": "Ada", "age": -1}', "age: -1 is less than the minimum of 0"),
    ],
)
def test_a_text_that_does_not_match_is_refused_with_the_reason(text: str, part: str):
    assert part in find_output_error(PERSON, text)


@pytest.mark.parametrize("text", ['{"name": "Ada"}', '\n {"name": "Ada", "age": 36, "more": [1]}\n'])
def test_a_text_that_matches_is_accepted(text: str):
    assert find_output_error(PERSON, text) == ""


def test_a_number_of_any_size_is_judged_without_an_exception():
    assert isinstance(find_output_error({"type": "integer"}, "1" + "0" * 400), str)
    assert "minimum" in find_output_error({"minimum": 0}, "-" + "9" * 30)


def test_a_pattern_that_backtracks_forever_ends():
    assert find_output_error({"pattern": "^(?:(a+)+)\\1$"}, f'"{"a" * 60}b"')


def test_at_most_five_errors_are_reported():
    schema = {"items": {"type": "string"}}
    assert find_output_error(schema, "[1,2,3,4,5,6,7,8]").count("is not of type") == 5


def test_a_file_that_is_no_schema_is_refused_in_one_sentence(tmp_path: Path):
    cases = {
        "missing.json": None,
        "text.json": b"type: object",
        "list.json": b"[1]",
        "binary.json": b"\xff\xfe",
        "twice.json": b'{"type": "object", "type": "array"}',
        "wrong.json": b'{"type": "objekt"}',
        "large.json": b'{"title": "' + b"x" * 300_000 + b'"}',
    }
    for name, data in cases.items():
        path = tmp_path / name
        if data is not None:
            path.write_bytes(data)
        with pytest.raises(UsageError) as caught:
            read_schema_file(path)
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)
    with pytest.raises(UsageError, match="cannot be read"):
        read_schema_file(tmp_path)


def test_a_schema_is_read_from_a_file(tmp_path: Path):
    path = tmp_path / "person.json"
    path.write_text('\ufeff{"type": "object"}')
    assert read_schema_file(path) == {"type": "object"}
