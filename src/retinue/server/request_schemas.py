"""Types of queries and request bodies; unknown fields are rejected."""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

Ref = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,199}$",
        description="An id, slug or alias, or an unambiguous beginning of one.",
    ),
]
ResultLimit = Annotated[int, Meta(ge=1, le=1000)]
MessageText = Annotated[str, Meta(min_length=1, max_length=1_000_000)]


class RequestModel(Struct, kw_only=True, forbid_unknown_fields=True):
    """Base of queries and bodies: unknown fields are rejected."""


class AgentsQuery(RequestModel):
    all: Annotated[bool, Meta(description="Also those that people are not shown.")] = False
    workspace: Annotated[
        str | None, Meta(description="An absolute folder: the agents of a trusted project there count too.")
    ] = None


class AgentQuery(RequestModel):
    workspace: Annotated[str | None, Meta(description="The absolute folder it would work in.")] = None


class SessionsQuery(RequestModel):
    agent: Annotated[str | None, Meta(description="Only this agent's.")] = None
    children: Annotated[bool, Meta(description="With the sessions that other sessions began.")] = True
    q: Annotated[
        str, Meta(max_length=1000, description="Words that its name, slug, agent or last words hold.")
    ] = ""
    limit: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None


class EntriesQuery(RequestModel):
    """Select entries before, after or around an entry; at most one of the three may be given.

    Without a limit all matching entries are returned; with one, those nearest to the named entry, or the
    newest.
    """

    limit: ResultLimit | None = None
    before: Annotated[str, Meta(max_length=400)] = ""
    after: Annotated[str, Meta(max_length=400)] = ""
    around: Annotated[str, Meta(max_length=400)] = ""


class RunsQuery(RequestModel):
    live: Annotated[bool, Meta(description="Only those that have not ended.")] = False
    session: Ref | None = None
    root: Annotated[Ref | None, Meta(description="A run: all of its tree.")] = None
    limit: ResultLimit = 50


class InboxQuery(RequestModel):
    session: Ref | None = None


class ApprovalsQuery(RequestModel):
    all: Annotated[bool, Meta(description="Also those that were answered, used up or expired.")] = False


class NewSessionBody(RequestModel):
    agent: Annotated[str, Meta(examples=["general"])]
    name: Annotated[str | None, Meta(description="One line for people; no two sessions have the same.")] = (
        None
    )
    workspace: Annotated[
        str | None,
        Meta(
            description="The absolute folder it works in. Without one: where the daemon was started, or the "
            "person's home where that is the root."
        ),
    ] = None


class SessionPatch(RequestModel):
    """Changes to a session; fields that are not given stay."""

    name: Annotated[str | UnsetType | None, Meta(description="null takes the name away.")] = UNSET
    pinned: bool | UnsetType = UNSET
    attributes: Annotated[
        dict[str, Any] | UnsetType,
        Meta(description="Added to those that are there; one that is null goes. At most 64 KiB in all."),
    ] = UNSET


class BranchBody(RequestModel):
    at: Annotated[
        Annotated[str, Meta(max_length=400)] | None,
        Meta(description="A user's entry; without one, all that was said."),
    ] = None
    include: Annotated[bool, Meta(description="Whether that entry is in the branch.")] = True
    name: Annotated[str, Meta(max_length=200)] = ""


class DraftBody(RequestModel):
    content: Annotated[str, Meta(max_length=1_000_000, description="All that is typed; empty clears it.")]


class MessageBody(RequestModel):
    content: MessageText
    mode: Annotated[
        Literal["sync", "async"], Meta(description="sync waits for the response, async returns at once.")
    ] = "sync"
    timeout: Annotated[
        float,
        Meta(
            ge=0, le=86_400, description="Seconds that sync waits; 0 is the longest. The run goes on after."
        ),
    ] = 300


class AgentMessageBody(MessageBody):
    session: Annotated[
        Ref,
        Meta(
            description="latest, create, latest-or-create, or a session of this agent.",
            examples=["latest-or-create"],
        ),
    ] = "latest-or-create"
    workspace: Annotated[
        str | None,
        Meta(description="The absolute folder that a new session works in, as of POST /api/sessions."),
    ] = None


class DrainBody(RequestModel):
    session: Ref | None = None


class ApprovalAnswerBody(RequestModel):
    answer: Annotated[
        Literal["allow", "deny", "add"],
        Meta(description="add: of a wish for more scope (touch more), from now on."),
    ]
