"""The grammar of session.md: each kind of marker line, with its attributes in the order they are written.

The writer, the tolerant parser and the fast parser are compiled from this table. To add an attribute to an
entry or a kind of entry, add a row here.
"""

from collections.abc import Mapping

from msgspec import Struct

from retinue.domain.transcript import Entry, Message, Notice, ToolCall, ToolResult

FORMAT_VERSION = "1"
COMMENT_OPEN = "<!-- "
COMMENT_CLOSE = " -->"
_VALUE = r'([^\s>"%]+)'
"""A value that needs no decoding; the fast parser leaves all others to the tolerant one."""
_NUMBER = "[0-9]{1,18}"
"""Longer numbers cannot be real counts; the tolerant parser reports them."""


class Encoding(Struct, frozen=True, kw_only=True):
    """How a value is written and read: source templates from which writer and parsers are compiled.

    `$name` stands for the attribute's name and `$value` for the expression that holds the value.
    """

    write: str
    """Part of an f-string."""
    pattern: str = ""
    """Regular expression for what is written; empty if only the tolerant parser reads the attribute."""
    from_match: str = ""
    """Expression for the value; `$value` is the text of the pattern's group, empty if it did not match."""
    from_attrs: str = ""
    """Expression for the value in `attrs`, a marker's values by name; empty if the entry has no such field."""
    bare_words: tuple[str, ...] = ()
    """Words that the marker may contain without a name."""


REQUIRED = Encoding(
    write=" $name={quote_value($value)}",
    pattern=f" $name={_VALUE}",
    from_match="$value",
    from_attrs="attrs['$name']",
)
ALWAYS_WRITTEN = Encoding(write=REQUIRED.write, from_attrs="attrs.get('$name', '')")
ENTRY_ID = Encoding(
    write=REQUIRED.write,
    pattern=REQUIRED.pattern,
    from_match=REQUIRED.from_match,
    from_attrs="attrs.get('$name') or line_id()",
)
"""An id that a person may leave out; then the number of the line identifies the entry."""
TEXT = Encoding(
    write="{f' $name={quote_value($value)}' if $value else ''}",
    pattern=f"(?: $name={_VALUE})?",
    from_match="$value",
    from_attrs="attrs.get('$name', '')",
)
COUNT = Encoding(
    write="{f' $name={$value}' if $value else ''}",
    pattern=f"(?: $name=({_NUMBER}))?",
    from_match="int($value or 0)",
    from_attrs="(parse_count(attrs['$name']) if '$name' in attrs else 0)",
)
OUTCOME = Encoding(
    write=" {'ok' if $value else 'failed'}",
    pattern=" (ok|failed)",
    from_match="$value == 'ok'",
    from_attrs="attrs.get('word') != 'failed'",
    bare_words=("ok", "failed"),
)
FLAG = Encoding(write="{' $name=1' if $value else ''}")
BODY_BYTES = Encoding(write=" $name={$value}", pattern=f" $name=({_NUMBER})")
VERSION = Encoding(write=f" {FORMAT_VERSION}", bare_words=(FORMAT_VERSION,))


class Attribute(Struct, frozen=True, kw_only=True):
    """A value in a marker line."""

    name: str = ""
    """The name in the file; empty for a bare word."""
    field: str = ""
    """The field that holds the value, as in `usage.input`; empty if the marker line itself determines it."""
    encoding: Encoding = TEXT
    is_rare: bool = False
    """True if the fast parser leaves marker lines with this attribute to the tolerant one."""

    @property
    def is_fast(self) -> bool:
        return bool(self.encoding.pattern) and not self.is_rare

    def write_source(self, value: str) -> str:
        return self._fill(self.encoding.write, value)

    def pattern_source(self) -> str:
        return self._fill(self.encoding.pattern)

    def match_source(self, value: str) -> str:
        return self._fill(self.encoding.from_match, value)

    def attrs_source(self) -> str:
        return self._fill(self.encoding.from_attrs)

    def _fill(self, template: str, value: str = "") -> str:
        return template.replace("$name", self.name).replace("$value", value)


class SessionHead(Struct, frozen=True, kw_only=True):
    """The session identity in a file's first line."""

    slug: str
    id: str = ""
    branch: str = ""
    parent: str = ""


class MarkerKind(Struct, frozen=True, kw_only=True):
    """A kind of marker line."""

    name: str
    type: type[Entry | SessionHead]
    role: str = ""
    """The role of a message."""
    body: str = ""
    """The field that holds the text below the marker line."""
    attributes: tuple[Attribute, ...]
    """In the order they are written; the first one of an entry is its id."""
    is_rare: bool = False
    """True if the fast parser leaves these entries to the tolerant one."""

    @property
    def bare_words(self) -> tuple[str, ...]:
        return tuple(word for attribute in self.attributes for word in attribute.encoding.bare_words)


_ID = Attribute(name="id", field="id", encoding=ENTRY_ID)
_AT = Attribute(name="at", field="at")
_RUN = Attribute(name="run", field="run")
_FROM = Attribute(name="from", field="origin")
_RARE_FROM = Attribute(name="from", field="origin", is_rare=True)
CALLS = Attribute(name="calls", field="tool_call_count", encoding=COUNT)
PROVIDER_DATA = Attribute(name="thoughts", field="provider_data", encoding=FLAG)
"""Set if the provider wants data back with the entry, which is in the sidecar file."""
_REPLY = (
    Attribute(name="model", field="model"),
    Attribute(name="in", field="usage.input", encoding=COUNT),
    Attribute(name="out", field="usage.output", encoding=COUNT),
    Attribute(name="cached", field="usage.cached", encoding=COUNT),
    Attribute(name="wrote", field="usage.cache_write", encoding=COUNT),
    Attribute(name="stop", field="stop_reason", is_rare=True),
    CALLS,
    PROVIDER_DATA,
)
_RARE_REPLY = tuple(
    Attribute(name=each.name, field=each.field, encoding=each.encoding, is_rare=True) for each in _REPLY
)

ESCAPED = Attribute(name="esc", encoding=FLAG)
"""Set if unsafe characters of the body are escaped. Written after the attributes of any entry."""
LENGTH = Attribute(name="n", encoding=BODY_BYTES)
"""Bytes of the body. Ends the marker line of each entry; the open user line has none."""

HEAD = MarkerKind(
    name="retinue",
    type=SessionHead,
    attributes=(
        Attribute(encoding=VERSION),
        Attribute(name="session", field="slug", encoding=REQUIRED),
        Attribute(name="id", field="id", encoding=ALWAYS_WRITTEN),
        Attribute(name="branch", field="branch", encoding=ALWAYS_WRITTEN),
        Attribute(name="parent", field="parent"),
    ),
)
USER = MarkerKind(
    name="user",
    type=Message,
    role="user",
    body="text",
    attributes=(_ID, _AT, _FROM, _RUN, *_RARE_REPLY),
)
AGENT = MarkerKind(
    name="agent",
    type=Message,
    role="agent",
    body="text",
    attributes=(_ID, _AT, _RARE_FROM, *_REPLY, _RUN),
)
CALL = MarkerKind(
    name="call",
    type=ToolCall,
    body="args",
    attributes=(
        Attribute(name="id", field="id", encoding=REQUIRED),
        Attribute(name="tool", field="tool", encoding=REQUIRED),
        _AT,
        _RUN,
        Attribute(name="as", field="vendor_id"),
        Attribute(name="broken", field="invalid_reason", is_rare=True),
    ),
)
RESULT = MarkerKind(
    name="result",
    type=ToolResult,
    body="text",
    attributes=(
        Attribute(name="of", field="call_id", encoding=REQUIRED),
        Attribute(field="ok", encoding=OUTCOME),
        Attribute(name="ms", field="duration_ms", encoding=COUNT),
        _AT,
        _RUN,
    ),
)
NOTICE = MarkerKind(
    name="notice",
    type=Notice,
    body="text",
    attributes=(_ID, Attribute(name="kind", field="topic"), _AT, _RUN),
    is_rare=True,
)
ENTRY_KINDS = (USER, AGENT, CALL, RESULT, NOTICE)
MARKER_KINDS = tuple(kind.name for kind in (HEAD, *ENTRY_KINDS))
ANY_KIND = "|".join(MARKER_KINDS)
"""Regular expression for the name of any kind."""
ID_NAMES: Mapping[str, str] = {kind.name: kind.attributes[0].name for kind in ENTRY_KINDS}
"""Name of the attribute that identifies an entry, by kind. A result is identified by its call's id."""
