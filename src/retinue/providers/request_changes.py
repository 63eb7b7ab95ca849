"""Changes to requests: what one server refused for one model, and what is sent instead."""

from collections.abc import Iterator, Mapping
from typing import Any, cast

from msgspec import Struct
from msgspec.structs import replace

DROP = "drop"
"""Leave the field out."""
_RENAME = "rename to "
_VALUE = "send "
_LIMIT = "at most "

WIRE = "api"
"""The change whose treatment is the name of another API of the same server."""
THINKING = "thinking"
"""How thinking is requested: `adaptive`, `enabled`, or not at all."""
CALL_IDS = "call ids"
"""`short`: every call has nine letters and digits as its id, also one that the server issued."""
FOREIGN_CALLS = "calls of other models"
"""`as text`: the tool calls of other servers are sent as text, because this one wants data back that only it issues."""
SIGNATURES = "thought signatures"
"""`placeholder`: calls of other servers have a placeholder instead of a signature."""
REPLAY = "data of earlier replies"
"""`drop`: nothing is sent back beside texts and calls."""
SCHEMA = "schema"
"""`as a tool`: the output schema is sent as a tool; with the fingerprint of a schema, only that one is."""
BINDING = "binding of thinking"
"""`drop_block`: the server is asked to drop thinking blocks that do not belong to the conversation any more."""


class RequestChange(Struct, frozen=True, kw_only=True):
    """A field, or another part of a request, and its treatment."""

    name: str
    """A field, with a path for a nested one, as in `reasoning.summary`; or one of the names in this module."""
    treatment: str
    reason: str = ""
    """What the server said."""
    is_remembered: bool = True
    """False if the change is due to this conversation, not to the server."""

    def with_reason(self, reason: str) -> "RequestChange":
        return replace(self, reason=reason)

    def describe(self) -> str:
        if self.treatment == DROP:
            return f"{self.name} is not sent"
        if self.treatment.startswith(_RENAME):
            return f"{self.name} is sent as {self.treatment.removeprefix(_RENAME)}"
        return f"{self.name}: {self.treatment}"


def drop_field(name: str) -> RequestChange:
    return RequestChange(name=name, treatment=DROP)


def rename_field(name: str, new_name: str) -> RequestChange:
    return RequestChange(name=name, treatment=_RENAME + new_name)


def replace_value(name: str, value: str, new_value: str | None) -> RequestChange:
    """Send another value instead of one, or nothing; other values of the field are sent as they are."""
    return RequestChange(name=f"{name}={value}", treatment=DROP if new_value is None else _VALUE + new_value)


def limit_value(name: str, limit: int) -> RequestChange:
    return RequestChange(name=name, treatment=f"{_LIMIT}{limit}")


class RequestChanges(Struct, frozen=True, kw_only=True):
    """All changes for one server and model, by name."""

    treatments: Mapping[str, str] = {}

    def add(self, change: RequestChange) -> "RequestChanges":
        return RequestChanges(treatments={**self.treatments, change.name: change.treatment})

    def treatment_of(self, name: str) -> str:
        return self.treatments.get(name, "")

    def is_dropped(self, name: str) -> bool:
        return self.treatments.get(name) == DROP

    @property
    def key(self) -> str:
        return ", ".join(f"{name}={treatment}" for name, treatment in sorted(self.treatments.items()))

    def apply(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of a request with the changes to fields made; other changes are the API's own."""
        changed = dict(fields)
        for condition, treatment in self.treatments.items():
            name, _, only_value = condition.partition("=")
            value = field_value(changed, name)
            if value is None or (only_value and value != only_value):
                continue
            if treatment == DROP:
                changed = _without(changed, name.split("."))
            elif treatment.startswith(_RENAME):
                changed[treatment.removeprefix(_RENAME)] = changed.pop(name)
            elif treatment.startswith(_VALUE):
                changed = _with_value(changed, name.split("."), treatment.removeprefix(_VALUE))
            elif treatment.startswith(_LIMIT):
                changed = _with_value(
                    changed, name.split("."), min(value, int(treatment.removeprefix(_LIMIT)))
                )
        return changed


NO_CHANGES = RequestChanges()


def field_value(fields: Mapping[str, Any], name: str) -> Any:
    """Return the value of a field, by its path; None if it is not there."""
    value: Any = fields
    for step in name.split("."):
        if not isinstance(value, Mapping):
            return None
        value = cast("Mapping[str, Any]", value).get(step)
    return value


def field_names(fields: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the paths of all fields, the nested ones first."""
    for name, value in fields.items():
        if isinstance(value, Mapping):
            yield from field_names(cast("Mapping[str, Any]", value), f"{prefix}{name}.")
        if value is not None:
            yield f"{prefix}{name}"


def _without(fields: Mapping[str, Any], path: list[str]) -> dict[str, Any]:
    """Return the fields without one; an object that would be empty is left out, too."""
    head, *rest = path
    others = {name: value for name, value in fields.items() if name != head}
    if not rest:
        return others
    inner = _without(fields[head], rest)
    return {name: inner if name == head else value for name, value in fields.items()} if inner else others


def _with_value(fields: Mapping[str, Any], path: list[str], value: Any) -> dict[str, Any]:
    head, *rest = path
    return {**fields, head: _with_value(fields[head], rest, value) if rest else value}
