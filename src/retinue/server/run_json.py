"""Accounts of runs: the shapes in which they are answered."""

from typing import Annotated, Literal

from msgspec import Meta

from retinue.server.response_schemas import QuestionAsked, Shape, Time, Tokens


class DeliveryShown(Shape):
    state: str | None
    attempts: int


class Evidence(Shape):
    tool_calls: int
    no_work: bool


class Effect(Shape):
    call: str
    tool: str
    arguments_hash: str
    state: Literal["started", "ended", "unknown"]
    ok: bool | None
    started_at: Time
    ended_at: Time | None


class RunRow(Shape):
    """As `runs show --json`."""

    run_id: str
    session_id: str
    slug: str
    key: str
    agent: str
    status: Literal["queued", "running", "waiting", "done", "failed", "cancelled", "timed_out", "lost"]
    waiting_for: str | None
    reason: str | None
    approvals: Annotated[list[str], Meta(description="What it waits for a person with.")]
    text: Annotated[str, Meta(description="The last word.")]
    error: str | None
    turns: int
    tool_calls: int
    usage: Tokens
    started_at: Time | None
    ended_at: Time | None
    duration_ms: int | None
    path: str
    children: list[str]
    requester: str
    parent: str | None
    root: str
    depth: int
    label: str | None
    task: str | None
    model: str | None
    thinking: str | None
    source: str
    door: str
    role: str
    trigger: str
    keep: bool
    timeout_seconds: float | None
    created_at: Time
    deadline_at: Time | None
    delivery: DeliveryShown
    attempts: int
    workspace: str | None
    scope_hash: str | None
    exit: str | None
    evidence: Evidence
    effects: list[Effect]
    call: Annotated[str | None, Meta(description="The entry of the call that asked for it.")]
    cached_tokens: Annotated[int, Meta(description="Of the input, what came from the provider's cache.")]
    cost: Annotated[
        float | None, Meta(description="US dollars, by the setting prices; null: its model has none.")
    ]


class Tally(Shape):
    """What a run and all below it came to."""

    runs: int
    usage: Tokens
    cached_tokens: int
    cost: Annotated[float | None, Meta(description="Of those whose model has a price; null: none has.")]
    unpriced: Annotated[int, Meta(description="How many spoke with a model that has none.")]


class RunShown(RunRow):
    tree: Tally
    sandbox: Annotated[
        str | None, Meta(description="How tightly its commands were held at the least; null: it ran none.")
    ]
    questions: Annotated[
        list[QuestionAsked], Meta(description="What it, and those it asked, want to know of a person.")
    ]
