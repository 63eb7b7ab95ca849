"""A turn: what a driver is asked, and what it brings back."""

from collections.abc import Sequence
from dataclasses import field
from enum import StrEnum
from typing import Any

from retinue.domain.permissions.scope import Scope
from retinue.domain.run import Usage
from retinue.domain.tool import ToolSpec
from retinue.domain.transcript import Entry
from retinue.domain.value import value


@value
class Model:
    """Which model answers, and how it is set. `driver` picks the adapter."""

    driver: str
    name: str
    temperature: float | None = None
    max_tokens: int | None = None
    thinking: str | None = None
    settings: dict[str, Any] = field(default_factory=dict[str, Any])
    """A definition's own driver settings (base URL of an openai-compatible server, extra arguments)."""

    @property
    def full(self) -> str:
        return f"{self.driver}:{self.name}"


@value
class Request:
    """One turn to take. Between turns of a run only `entries` grows, and only at its end."""

    model: Model
    agent: str
    system: str
    tools: tuple[ToolSpec, ...]
    entries: Sequence[Entry]
    memo: dict[str, Any]
    """The driver's own scratch, kept with the resident conversation: what it encoded once it finds here again.
    A conversation that was read anew comes with an empty one."""
    session: str = ""
    """Whose turn it is: the session's id, for a driver that keeps something of its own for each."""
    scope: Scope | None = None
    """What a driver that acts by itself is held to."""


class Stop(StrEnum):
    END = "end"
    TOOLS = "tools"
    LENGTH = "length"
    REFUSED = "refused"


@value
class Wish:
    """A call the model wishes for. The provider's id is not kept: ours is minted when it is written down."""

    tool: str
    args: str
    broken: str = ""
    """Why it must not run: arguments cut or no JSON object."""


@value
class Act:
    """A call that whoever answers made by itself. It has happened: nothing here makes it, or makes it again."""

    id: str
    tool: str
    args: str
    """A JSON object."""
    text: str = ""
    """What came of it."""
    ok: bool = False
    ms: int = 0
    over: bool = False


@value
class Step:
    """Words on the way to a reply, and the calls that followed them."""

    text: str
    acts: tuple[Act, ...]


@value
class Reply:
    """A finished reply. A stream that stopped without saying why never becomes one."""

    text: str
    wishes: tuple[Wish, ...] = ()
    model: str = ""
    """The model that really answered, as the provider named it."""
    usage: Usage = Usage()
    stop: Stop = Stop.END
    thoughts: tuple[str, ...] = ()
    cut: str = ""
    """Said when something was left out, such as an answer over the size cap."""
    steps: tuple[Step, ...] = ()
    """What a driver that acts by itself did before it came to these words."""


@value
class Delta:
    """A piece of a reply as it is heard. `discarded`: forget what was heard, the turn is asked again."""

    text: str = ""
    thinking: str = ""
    calling: str = ""
    """A piece of a call's arguments. It shows that the model works, and goes no further than the gateway."""
    act: Act | None = None
    """A call that whoever answers makes by itself has begun, or is over."""
    discarded: bool = False
    waiting: str = ""
    """Why nothing comes: `rate limited, again in 3 s`, `model unreachable`."""
