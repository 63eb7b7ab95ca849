"""Response types of the API; tests check every response against them."""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

Timestamp = Annotated[str, Meta(description="ISO 8601, UTC.", examples=["2026-11-16T09:30:00.000Z"])]
JsonObject = dict[str, Any]


class ResponseModel(Struct, kw_only=True, forbid_unknown_fields=True):
    """Base of response types: unknown fields are errors."""


class ErrorInfo(ResponseModel):
    code: Annotated[str, Meta(examples=["not_found"])]
    message: Annotated[str, Meta(description="What happened and what to do.")]
    details: JsonObject


class ErrorResponse(ResponseModel):
    error: ErrorInfo


class Counts(ResponseModel):
    sessions: int
    queued: int
    running: int
    waiting: int
    approvals: int
    inbox: Annotated[int, Meta(description="Results that are not delivered yet.")]


class Health(ResponseModel):
    version: str
    pid: int
    owner: str
    settings: str
    url: str
    started_at: Timestamp
    sandbox: Annotated[str, Meta(description="Sandbox level: strict, landlock or none.")]
    model: Annotated[str | None, Meta(description="The default model, as driver:model.")]
    demonstration: Annotated[bool, Meta(description="True if the default model is only for demonstrations.")]
    seq: Annotated[int, Meta(description="The number of the newest durable event.")]
    counts: Counts


class DaemonInfo(ResponseModel):
    looking: Annotated[bool, Meta(description="False: the daemon is stopping and accepts no more runs.")]
    version: str
    pid: int
    owner: str
    settings: str
    seq: Annotated[int, Meta(description="The number of the newest durable event.")]


class PageLink(ResponseModel):
    url: str


class StoppedDaemon(ResponseModel):
    pid: int
    owner: str
    version: str


class Triggers(ResponseModel):
    slash: list[str]
    hotkeys: list[str]


class AgentRow(ResponseModel):
    name: str
    display_name: str | None
    description: str
    type: str
    roles: list[str]
    model: str | None
    triggers: Triggers
    ui_visible: bool
    visible: bool
    source: Annotated[
        str, Meta(description="Where the agent is defined: built in, inline, or a file's path.")
    ]


class AgentDetails(Struct, kw_only=True):
    """An agent definition, as in `agents show --json`; only some of its fields are declared."""

    name: str
    description: str
    prompt: str
    roles: list[str]
    ui_visible: bool
    sources: Annotated[dict[str, str], Meta(description="Field → where its value comes from.")]
    clipped: Annotated[list[str], Meta(description="Permissions removed by the configuration's ceiling.")]
    offered: Annotated[list[str], Meta(description="Tools available to the agent.")]
    withheld: Annotated[dict[str, str], Meta(description="Tool → the rule that withholds it.")]
    skills: Annotated[list[str], Meta(description="Skills available to the agent.")]
    skills_withheld: Annotated[dict[str, str], Meta(description="Skill → the rule that withholds it.")]


class WorkspaceInfo(ResponseModel):
    root: str
    isolation: str
    writable: bool
    label: str
    source: str | None
    project: str | None


class SessionRow(ResponseModel):
    """A session, with the fields of `sessions list --json` and its current activity."""

    session_id: Annotated[str, Meta(description="The UUID.")]
    slug: str
    key: str
    agent: str
    name: str | None
    branch: str
    parent_session_id: Annotated[str | None, Meta(description="The parent's slug.")]
    parent: Annotated[str | None, Meta(description="The parent's session_id.")]
    type: Literal["branch", "agent"]
    depth: int
    path: Annotated[str, Meta(description="Path of session.md.")]
    created_at: Timestamp
    updated_at: Timestamp
    pinned_at: Timestamp | None
    last_snippet: str
    attributes: JsonObject
    workspace: WorkspaceInfo
    status: Literal["idle", "queued", "running", "waiting"]
    waiting_for: str | None
    run: Annotated[str | None, Meta(description="The active run.")]


class AnnouncementRow(ResponseModel):
    type: str
    summary: str
    createdAt: Timestamp  # noqa: N815  (names that programs know)
    childSessionId: str  # noqa: N815
    metadata: JsonObject


class ApprovalRow(ResponseModel):
    id: str
    run_id: str
    session_id: str
    agent: str
    call: str
    tool: str
    touch: Literal["read", "write", "run", "tool", "more"]
    resource: str
    args: Annotated[str, Meta(description="The exact arguments, as JSON text.")]
    reason: str | None
    workspace: str | None
    sandbox: str | None
    files: list[JsonObject]
    chain: Annotated[list[str], Meta(description="The chain of requesters, outermost first.")]
    add: Annotated[
        str | None, Meta(description="The effect of the answer `add`; null: nothing can be added.")
    ]
    digest: str
    state: Literal["pending", "allowed", "denied", "expired", "void", "used"]
    asked_at: Timestamp
    expires_at: Timestamp
    answered_at: Timestamp | None
    answered_by: str | None
    answer: Literal["allow", "deny", "add"] | None


class SessionApprovalRow(ApprovalRow):
    slug: Annotated[str, Meta(description="Slug of the session that requests the approval.")]


class QuestionRow(ResponseModel):
    """A question that an agent asks the user; the next message to its session answers it."""

    question: str
    options: Annotated[
        list[str],
        Meta(description="Suggested answers, which can be given by number. Any other answer is valid too."),
    ]
    agent: str
    run_id: str
    call: Annotated[str, Meta(description="Id of the call that asks.")]


class SessionDetails(SessionRow):
    """A session, with the fields of `sessions show --json`."""

    entries: int
    draft: Annotated[str, Meta(description="Unsent text below the file's open user line.")]
    announcements: list[AnnouncementRow]
    approvals: list[SessionApprovalRow]
    questions: list[QuestionRow]
    preset: Literal["live", "edited", "own", "unreadable"]
    permissions: JsonObject | None
    problems: list[str]


class DeletedSession(ResponseModel):
    session_id: str
    slug: str
    deleted: bool
    path: Annotated[str, Meta(description="Where its folder is now.")]
    undo: Annotated[str, Meta(description="The id for POST /api/sessions/{id}/restore.")]


class SavedDraft(ResponseModel):
    saved: bool


class TokenUsage(ResponseModel):
    input: int
    output: int


class EntryTokenUsage(TokenUsage):
    cached: Annotated[int, Meta(description="Input tokens that came from the provider's cache.")]


class MessageEntry(ResponseModel, tag_field="kind", tag="said"):
    id: str
    by: Literal["user", "agent"]
    text: str
    at: str
    origin: Annotated[str, Meta(description="Author of a user entry; empty for a person.")]
    run: str
    model: str
    usage: EntryTokenUsage
    stop: str
    calls: int


class ToolCallEntry(ResponseModel, tag_field="kind", tag="called"):
    id: str
    tool: str
    args: Annotated[str, Meta(description="JSON text, as the model wrote it.")]
    at: str
    run: str
    broken: str


class ToolResultEntry(ResponseModel, tag_field="kind", tag="returned"):
    id: str
    of: Annotated[str, Meta(description="The id of the call.")]
    text: str
    ok: bool
    ms: int
    at: str
    run: str


class NoticeEntry(ResponseModel, tag_field="kind", tag="notice"):
    id: str
    about: str
    text: str
    at: str
    run: str


TranscriptEntry = MessageEntry | ToolCallEntry | ToolResultEntry | NoticeEntry


class ToolCallSummary(ResponseModel):
    name: str
    durationMs: int  # noqa: N815  (names that programs know)


class MessageResponse(ResponseModel):
    """The outcome of a message, in the format of `agents_message`."""

    mode: Literal["sync", "async"]
    status: Annotated[
        Literal["complete", "timeout", "started", "queued", "waiting"],
        Meta(description="waiting: the agent needs a message; the next one continues its run."),
    ]
    agentId: str  # noqa: N815  (names that programs know)
    sessionId: str  # noqa: N815
    sessionName: str  # noqa: N815
    created: bool
    responseId: Annotated[str, Meta(description="The run's id.")]  # noqa: N815
    messageId: str | UnsetType = UNSET  # noqa: N815
    response: str | UnsetType = UNSET
    truncated: bool | UnsetType = UNSET
    durationMs: int | UnsetType | None = UNSET  # noqa: N815
    toolCallCount: int | UnsetType = UNSET  # noqa: N815
    toolCalls: list[ToolCallSummary] | UnsetType = UNSET  # noqa: N815
    timeoutSeconds: float | UnsetType = UNSET  # noqa: N815
    message: str | UnsetType = UNSET


class RunStats(ResponseModel):
    turns: int
    toolCalls: int  # noqa: N815  (names that programs know)
    inputTokens: int  # noqa: N815
    outputTokens: int  # noqa: N815
    durationMs: int | None  # noqa: N815


class InboxRow(ResponseModel, rename={"for_": "for"}):
    """An inbox item, with the fields of `inbox --json`."""

    id: Annotated[str | None, Meta(description="State of the delivery; null while the run is live.")]
    sessionId: str  # noqa: N815  (names that programs know)
    sessionKey: str  # noqa: N815
    runId: str  # noqa: N815
    agentId: str  # noqa: N815
    capability: str
    label: str | None
    status: Literal["pending", "running", "waiting", "complete", "error"]
    summary: str | None
    error: str | None
    timestamp: Timestamp | None
    stats: RunStats
    delivery: str | None
    transcript: str
    for_: Annotated[str | None, Meta(description="Slug of the conversation that receives it.")]
    kind: Annotated[
        Literal["result", "interjection"], Meta(description="The result of a run, or a watcher's comment.")
    ]
    severity: Annotated[
        Literal["info", "warning", "interrupt"] | None,
        Meta(
            description="Severity of a watcher's comment. Only comments have this field and the following ones."
        ),
    ]
    reason: str | None
    suggestion: Annotated[str | None, Meta(description="What to do instead.")]
    interrupts: Annotated[str | None, Meta(description="The run whose turn the comment ended.")]


class PromotedRow(InboxRow):
    entry: Annotated[str, Meta(description="Id of the entry in that conversation.")]
    already: bool
