"""Shapes of answers: types that describe what each route gives, and that tests hold every answer against."""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

Time = Annotated[str, Meta(description="ISO 8601, UTC.", examples=["2026-11-16T09:30:00.000Z"])]
Facts = dict[str, Any]


class Shape(Struct, kw_only=True, forbid_unknown_fields=True):
    """Nothing but what is named."""


class Failure(Shape):
    code: Annotated[str, Meta(examples=["not_found"])]
    message: Annotated[str, Meta(description="One sentence that says what to do.")]
    details: Facts


class Failed(Shape):
    error: Failure


class Counts(Shape):
    sessions: int
    queued: int
    running: int
    waiting: int
    approvals: int
    inbox: Annotated[int, Meta(description="Results that nobody has heard of.")]


class Health(Shape):
    version: str
    pid: int
    owner: str
    settings: str
    url: str
    started_at: Time
    sandbox: Annotated[str, Meta(description="How tightly commands are held: strict, landlock or none.")]
    model: Annotated[str | None, Meta(description="The default model, as driver:model.")]
    demonstration: Annotated[
        bool, Meta(description="The default model is one that only shows how things work.")
    ]
    seq: Annotated[int, Meta(description="The number of the newest durable event.")]
    counts: Counts


class Looking(Shape):
    looking: Annotated[bool, Meta(description="False: it is about to leave, and takes nothing more.")]
    version: str
    pid: int
    owner: str
    settings: str
    seq: Annotated[int, Meta(description="The number of the newest durable event.")]


class Link(Shape):
    url: str


class Stopping(Shape):
    pid: int
    owner: str
    version: str


class Triggers(Shape):
    slash: list[str]
    hotkeys: list[str]


class AgentRow(Shape):
    name: str
    display_name: str | None
    description: str
    type: str
    roles: list[str]
    model: str | None
    triggers: Triggers
    ui_visible: bool
    visible: bool
    source: Annotated[str, Meta(description="Where its name was said: built in, inline, or a file's path.")]


class AgentShown(Struct, kw_only=True):
    """Every field of the definition, as `agents show --json` prints it; a few of them stand here."""

    name: str
    description: str
    prompt: str
    roles: list[str]
    ui_visible: bool
    sources: Annotated[dict[str, str], Meta(description="Field → where it was said.")]
    clipped: Annotated[list[str], Meta(description="What the operator's ceiling took away.")]
    offered: Annotated[list[str], Meta(description="Tools that it gets.")]
    withheld: Annotated[dict[str, str], Meta(description="Tool → the rule that keeps it away.")]
    skills: Annotated[list[str], Meta(description="Skills that it has.")]
    skills_withheld: Annotated[dict[str, str], Meta(description="Skill → the rule that keeps it away.")]


class WorkspaceShown(Shape):
    root: str
    isolation: str
    writable: bool
    label: str
    source: str | None
    project: str | None


class SessionRow(Shape):
    """As a row of `sessions list --json`, with what is going on in it."""

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
    path: Annotated[str, Meta(description="Of session.md.")]
    created_at: Time
    updated_at: Time
    pinned_at: Time | None
    last_snippet: str
    attributes: Facts
    workspace: WorkspaceShown
    status: Literal["idle", "queued", "running", "waiting"]
    waiting_for: str | None
    run: Annotated[str | None, Meta(description="The run that is going on.")]


class Announced(Shape):
    type: str
    summary: str
    createdAt: Time  # noqa: N815  (names that programs know)
    childSessionId: str  # noqa: N815
    metadata: Facts


class ApprovalRow(Shape):
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
    files: list[Facts]
    chain: Annotated[list[str], Meta(description="Who asked for whom, outermost first.")]
    add: Annotated[
        str | None, Meta(description="What the answer add would come to; null: nothing can be added.")
    ]
    digest: str
    state: Literal["pending", "allowed", "denied", "expired", "void", "used"]
    asked_at: Time
    expires_at: Time
    answered_at: Time | None
    answered_by: str | None
    answer: Literal["allow", "deny", "add"] | None


class ApprovalAsked(ApprovalRow):
    slug: Annotated[str, Meta(description="Of the session that asks.")]


class QuestionAsked(Shape):
    """What an agent wants to know of a person: the next message to its session answers it."""

    question: str
    options: Annotated[
        list[str], Meta(description="Answers to choose from, also by number; any other may be given.")
    ]
    agent: str
    run_id: str
    call: Annotated[str, Meta(description="The entry of the call that asks.")]


class SessionShown(SessionRow):
    """As `sessions show --json`."""

    entries: int
    draft: Annotated[str, Meta(description="What is typed below the file's open user line.")]
    announcements: list[Announced]
    approvals: list[ApprovalAsked]
    questions: list[QuestionAsked]
    preset: Literal["live", "edited", "own", "unreadable"]
    permissions: Facts | None
    problems: list[str]


class Deleted(Shape):
    session_id: str
    slug: str
    deleted: bool
    path: Annotated[str, Meta(description="Where its folder is now.")]
    undo: Annotated[str, Meta(description="The id for POST /api/sessions/{id}/restore.")]


class Saved(Shape):
    saved: bool


class Tokens(Shape):
    input: int
    output: int


class Spent(Tokens):
    cached: Annotated[int, Meta(description="Of the input, what came from the provider's cache.")]


class SaidEntry(Shape, tag_field="kind", tag="said"):
    id: str
    by: Literal["user", "agent"]
    text: str
    at: str
    origin: Annotated[str, Meta(description="Of a user's entry: empty for a person, else who speaks.")]
    run: str
    model: str
    usage: Spent
    stop: str
    calls: int


class CalledEntry(Shape, tag_field="kind", tag="called"):
    id: str
    tool: str
    args: Annotated[str, Meta(description="JSON text, as the model wrote it.")]
    at: str
    run: str
    broken: str


class ReturnedEntry(Shape, tag_field="kind", tag="returned"):
    id: str
    of: Annotated[str, Meta(description="The id of the call.")]
    text: str
    ok: bool
    ms: int
    at: str
    run: str


class NoticeEntry(Shape, tag_field="kind", tag="notice"):
    id: str
    about: str
    text: str
    at: str
    run: str


EntryShown = SaidEntry | CalledEntry | ReturnedEntry | NoticeEntry


class ToolCalled(Shape):
    name: str
    durationMs: int  # noqa: N815  (names that programs know)


class Response(Shape):
    """What became of a message, in the shape of `agents_message`."""

    mode: Literal["sync", "async"]
    status: Annotated[
        Literal["complete", "timeout", "started", "queued", "waiting"],
        Meta(
            description="waiting: the agent needs words of a person, and the next message goes on with its run."
        ),
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
    toolCalls: list[ToolCalled] | UnsetType = UNSET  # noqa: N815
    timeoutSeconds: float | UnsetType = UNSET  # noqa: N815
    message: str | UnsetType = UNSET


class Stats(Shape):
    turns: int
    toolCalls: int  # noqa: N815  (names that programs know)
    inputTokens: int  # noqa: N815
    outputTokens: int  # noqa: N815
    durationMs: int | None  # noqa: N815


class InboxRow(Shape, rename={"for_": "for"}):
    """As `inbox --json`."""

    id: Annotated[str | None, Meta(description="Of the delivery; null while it works.")]
    sessionId: str  # noqa: N815  (names that programs know)
    sessionKey: str  # noqa: N815
    runId: str  # noqa: N815
    agentId: str  # noqa: N815
    capability: str
    label: str | None
    status: Literal["pending", "running", "waiting", "complete", "error"]
    summary: str | None
    error: str | None
    timestamp: Time | None
    stats: Stats
    delivery: str | None
    transcript: str
    for_: Annotated[str | None, Meta(description="The slug of the conversation that hears of it.")]
    kind: Annotated[
        Literal["result", "interjection"], Meta(description="What a run came to, or what a watcher says.")
    ]
    severity: Annotated[
        Literal["info", "warning", "interrupt"] | None, Meta(description="Of an interjection, as all below.")
    ]
    reason: str | None
    suggestion: Annotated[str | None, Meta(description="What to do instead.")]
    interrupts: Annotated[str | None, Meta(description="The run whose turn it has ended.")]


class Promoted(InboxRow):
    entry: Annotated[str, Meta(description="Where it stands in that conversation.")]
    already: bool
