"""Model turns: the request sent to a provider, and the reply."""

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from retinue.domain.permissions.scope import Scope
from retinue.domain.run import Usage
from retinue.domain.tool import ToolSpec
from retinue.domain.transcript import Entry


class Model(Struct, frozen=True, kw_only=True):
    """The model to use and its settings; `provider` selects the adapter."""

    provider: str
    name: str
    temperature: float | None = None
    max_tokens: int | None = None
    thinking: str | None = None
    settings: dict[str, Any] = field(default_factory=dict[str, Any])
    """Provider settings of the agent definition (base URL of an OpenAI-compatible server, extra arguments).
    """
    fallbacks: "tuple[Model, ...]" = ()
    """Models to ask, in this order, if this one fails. They have no fallbacks themselves."""

    @property
    def full_name(self) -> str:
        return f"{self.provider}:{self.name}"

    @property
    def candidates(self) -> "tuple[Model, ...]":
        """Return the model and its fallbacks, in the order in which they are asked."""
        return (replace(self, fallbacks=()), *self.fallbacks) if self.fallbacks else (self,)

    def begin_with(self, full_name: str) -> "Model":
        """Return the candidates in an order that begins with this one of them; the earlier ones come last."""
        candidates = self.candidates
        at = next((at for at, each in enumerate(candidates) if each.full_name == full_name), 0)
        return replace(candidates[at], fallbacks=(*candidates[at + 1 :], *candidates[:at])) if at else self

    def with_thinking(self, level: str) -> "Model":
        fallbacks = tuple(replace(each, thinking=level) for each in self.fallbacks)
        return replace(self, thinking=level, fallbacks=fallbacks)


class ModelRequest(Struct, frozen=True, kw_only=True):
    """A request for one model turn.

    Between the turns of a run only `entries` changes, and only by growing at its end.
    """

    model: Model
    agent_name: str
    system: str
    tools: tuple[ToolSpec, ...]
    entries: Sequence[Entry]
    provider_cache: dict[str, Any]
    """Scratch space of the provider, kept with the conversation in memory, for entries it has already
    encoded.

    A conversation that was read from disk again starts with an empty one.
    """
    output_schema: Mapping[str, Any] | None = None
    """JSON Schema of the final answer."""
    session_id: str = ""
    """Id of the session, for a provider that keeps state per session."""
    scope: Scope | None = None
    """Rights that bind a provider that executes tools itself."""
    is_probe: bool = False
    """The model's server was down: a single failed attempt shows that it still is."""
    on_pause: Callable[[], Awaitable[None]] | None = None
    """Called before each pause between two attempts."""
    max_retry_s: float = math.inf
    """Longest time for which a failed request is tried again, if it is shorter than the provider's own."""


class StopReason(StrEnum):
    END = "end"
    TOOLS = "tools"
    LENGTH = "length"
    REFUSED = "refused"


class UnsavedToolCall(Struct, frozen=True, kw_only=True):
    """A tool call in a reply that is not saved yet; its id is created when it is saved."""

    tool: str
    arguments: str
    invalid_reason: str = ""
    """Why it must not run: its arguments were cut off or are not a JSON object."""
    vendor_id: str = ""
    """The id that the server gave the call, as `server.id`."""


class ProviderToolCall(Struct, frozen=True, kw_only=True):
    """A tool call that the provider executed itself. It has happened, so it is never executed here."""

    id: str
    tool: str
    arguments: str
    """A JSON object."""
    result: str = ""
    """The result of the call."""
    ok: bool = False
    duration_ms: int = 0
    is_finished: bool = False


class ReplyStep(Struct, frozen=True, kw_only=True):
    """Text that preceded the final reply, and the tool calls that followed it."""

    text: str
    tool_calls: tuple[ProviderToolCall, ...]


class ModelReply(Struct, frozen=True, kw_only=True):
    """A complete reply. A stream that ends without a stop reason is an error instead."""

    text: str
    tool_calls: tuple[UnsavedToolCall, ...] = ()
    model: str = ""
    """The model that answered, as the provider named it."""
    usage: Usage = Usage()
    stop_reason: StopReason = StopReason.END
    provider_data: tuple[str, ...] = ()
    """What the provider wants back with this reply, unchanged, each as JSON text."""
    truncation_notice: str = ""
    """A notice to append when something was left out, such as text above the size limit."""
    steps: tuple[ReplyStep, ...] = ()
    """Steps of a provider that executes tools itself, before the final text."""


class ReplyDelta(Struct, frozen=True, kw_only=True):
    """A piece of a streamed reply.

    `is_discarded` means that the text so far is void because the turn is requested again.
    """

    text: str = ""
    thinking: str = ""
    tool_arguments: str = ""
    """A piece of a tool call's arguments. It only shows that the model is active, and is not passed on."""
    provider_tool_call: ProviderToolCall | None = None
    """A tool call executed by the provider itself has started or finished."""
    is_discarded: bool = False
    wait_reason: str = ""
    """Why nothing arrives: `rate limited, retrying in 3 s`, `cannot reach …, retrying in 3 s`."""
    notice: str = ""
    """What is not sent because the server refused it: `temperature is not sent: … does not accept it`."""
    fallback_model: str = ""
    """The fallback that is asked from now on, because the models before it failed; `notice` says why."""
