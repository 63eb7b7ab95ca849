"""Fast parsing of marker lines exactly as Retinue writes them; other lines are left to the tolerant parser."""

import re
from collections.abc import Callable, Mapping

from retinue.domain.transcript import Entry
from retinue.sessions.markdown.compiler import compile_constructor
from retinue.sessions.markdown.grammar import COMMENT_CLOSE, ENTRY_KINDS, LENGTH, MarkerKind

FastParser = tuple[re.Pattern[str], Callable[[re.Match[str], str], Entry]]
"""The pattern of a marker line after its `<!-- `, and the function that creates an entry from match and body.

The last group of the pattern is the body's length.
"""


def compile_fast_parser(kind: MarkerKind) -> FastParser:
    attributes = [attribute for attribute in kind.attributes if attribute.is_fast]
    pattern = "".join(attribute.pattern_source() for attribute in (*attributes, LENGTH))
    groups = {attribute: f"group_{index}" for index, attribute in enumerate(attributes)}
    build = compile_constructor(
        kind,
        f"build_{kind.name}(match, body)",
        f"[{', '.join((*groups.values(), 'length'))}] = match.groups('')",
        values={attribute: attribute.match_source(group) for attribute, group in groups.items()},
        present=groups,
    )
    return re.compile(f"{kind.name}{pattern}{COMMENT_CLOSE}\n"), build


FAST_PARSERS: Mapping[str, FastParser] = {
    kind.name[:2]: compile_fast_parser(kind) for kind in ENTRY_KINDS if not kind.is_rare
}
"""Parsers by the first two letters of the marker's kind."""
