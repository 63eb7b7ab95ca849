"""The fast lane of reading: marker lines exactly as we write them, each by one pattern; the rest goes the long way."""

import re
from collections.abc import Callable, Mapping

from retinue.domain.run import Usage
from retinue.domain.transcript import Called, Entry, Returned, Said

_VALUE = r'([^\s>"%]+)'
_NUMBER = "([0-9]{1,18})"
"""A longer one counts nothing that exists: the long way says so."""
_END = r" n=[0-9]{1,18} -->\n"
_NO_USAGE = Usage()


def _optional(*names: str) -> str:
    return "".join(f"(?: {name}={_VALUE})?" for name in names)


def _user(found: re.Match[str], body: str) -> Entry:
    entry_id, at, origin, run = found.groups("")
    return Said(id=entry_id, by="user", text=body, at=at, origin=origin, run=run)


def _agent(found: re.Match[str], body: str) -> Entry:
    entry_id, at, model, read, written, kept, calls, run = found.groups("")
    counts = Usage(input=int(read or 0), output=int(written or 0), cached=int(kept or 0))
    usage = counts if read or written or kept else _NO_USAGE
    return Said(
        id=entry_id, by="agent", text=body, at=at, model=model, usage=usage, calls=int(calls or 0), run=run
    )


def _called(found: re.Match[str], body: str) -> Entry:
    entry_id, tool, at, run = found.groups("")
    return Called(id=entry_id, tool=tool, args=body, at=at, run=run)


def _returned(found: re.Match[str], body: str) -> Entry:
    of, word, took, at, run = found.groups("")
    return Returned(of=of, text=body, ok=word == "ok", ms=int(took or 0), at=at, run=run)


LANES: Mapping[str, tuple[re.Pattern[str], Callable[[re.Match[str], str], Entry]]] = {
    "us": (re.compile(f"user id={_VALUE}{_optional('at', 'from', 'run')}{_END}"), _user),
    "ag": (
        re.compile(
            f"agent id={_VALUE}{_optional('at', 'model')}(?: in={_NUMBER})?(?: out={_NUMBER})?"
            f"(?: cached={_NUMBER})?(?: calls={_NUMBER})?{_optional('run')}{_END}"
        ),
        _agent,
    ),
    "ca": (re.compile(f"call id={_VALUE} tool={_VALUE}{_optional('at', 'run')}{_END}"), _called),
    "re": (
        re.compile(f"result of={_VALUE} (ok|failed)(?: ms={_NUMBER})?{_optional('at', 'run')}{_END}"),
        _returned,
    ),
}
"""By the first two letters of the kind."""
