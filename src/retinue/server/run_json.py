"""Response types for runs."""

from typing import Annotated, Literal

from msgspec import Meta

from retinue.server.response_schemas import QuestionRow, ResponseModel, Timestamp, TokenUsage


class DeliveryInfo(ResponseModel):
    state: str | None
    attempts: int


class WorkEvidence(ResponseModel):
    tool_calls: int
    no_work: bool


class SideEffectRow(ResponseModel):
    call: str
    tool: str
    arguments_hash: str
    state: Literal["started", "ended", "unknown"]
    ok: bool | None
    started_at: Timestamp
    ended_at: Timestamp | None


class RunRow(ResponseModel):
    """A run, with the fields of `runs show --json`."""

    run_id: str
    session_id: str
    slug: str
    key: str
    agent: str
    status: Literal["queued", "running", "waiting", "done", "failed", "cancelled", "timed_out", "lost"]
    waiting_for: str | None
    reason: str | None
    approvals: Annotated[list[str], Meta(description="Ids of pending approvals.")]
    text: Annotated[str, Meta(description="The result: the last message.")]
    error: str | None
    turns: int
    tool_calls: int
    usage: TokenUsage
    started_at: Timestamp | None
    ended_at: Timestamp | None
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
    created_at: Timestamp
    deadline_at: Timestamp | None
    delivery: DeliveryInfo
    attempts: int
    workspace: str | None
    scope_hash: str | None
    exit: str | None
    evidence: WorkEvidence
    effects: list[SideEffectRow]
    call: Annotated[str | None, Meta(description="Id of the tool call that requested the run.")]
    cached_tokens: Annotated[int, Meta(description="Input tokens that came from the provider's cache.")]
    cost: Annotated[
        float | None, Meta(description="US dollars, from the setting prices; null: its model has no price.")
    ]


class TreeTotals(ResponseModel):
    """Totals of a run and all of its descendants."""

    runs: int
    usage: TokenUsage
    cached_tokens: int
    cost: Annotated[
        float | None, Meta(description="Cost of the runs whose model has a price; null: none has.")
    ]
    unpriced: Annotated[int, Meta(description="Number of runs whose model has no price.")]


class RunDetails(RunRow):
    tree: TreeTotals
    sandbox: Annotated[
        str | None, Meta(description="The least strict sandbox level of its commands; null: it ran none.")
    ]
    questions: Annotated[list[QuestionRow], Meta(description="Open questions of the run and its sub-agents.")]
