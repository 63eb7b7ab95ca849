"""Types of queries and request bodies; unknown fields are rejected."""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

Ref = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,199}$",
        description="An id, slug or alias, or an unambiguous prefix.",
    ),
]
ResultLimit = Annotated[int, Meta(ge=1, le=1000)]
MessageText = Annotated[str, Meta(min_length=1, max_length=1_000_000)]


class RequestModel(Struct, kw_only=True, forbid_unknown_fields=True):
    """Base of queries and bodies: unknown fields are rejected."""


class AgentsQuery(RequestModel):
    all: Annotated[bool, Meta(description="Include hidden agents.")] = False
    workspace: Annotated[
        str | None, Meta(description="An absolute folder. Agents of a trusted project there are included.")
    ] = None


class AgentQuery(RequestModel):
    workspace: Annotated[str | None, Meta(description="The absolute path of its workspace.")] = None


class SessionsQuery(RequestModel):
    agent: Annotated[str | None, Meta(description="Only sessions of this agent.")] = None
    children: Annotated[bool, Meta(description="Include child sessions.")] = True
    q: Annotated[
        str, Meta(max_length=1000, description="Text to find in the name, slug, agent or last message.")
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
    live: Annotated[bool, Meta(description="Only live runs.")] = False
    session: Ref | None = None
    root: Annotated[Ref | None, Meta(description="A run: return all runs of its tree.")] = None
    limit: ResultLimit = 50


class InboxQuery(RequestModel):
    session: Ref | None = None


class ApprovalsQuery(RequestModel):
    all: Annotated[bool, Meta(description="Include answered, used and expired approvals.")] = False


class NewSessionBody(RequestModel):
    agent: Annotated[str, Meta(examples=["general"])]
    name: Annotated[str | None, Meta(description="One line, unique among sessions.")] = None
    workspace: Annotated[
        str | None,
        Meta(
            description="Absolute path of the workspace (default: the folder in which the daemon was started, or the "
            "user's home if that is the root)."
        ),
    ] = None


class SessionPatch(RequestModel):
    """Changes to a session; fields that are not given stay."""

    name: Annotated[str | UnsetType | None, Meta(description="null removes the name.")] = UNSET
    pinned: bool | UnsetType = UNSET
    attributes: Annotated[
        dict[str, Any] | UnsetType,
        Meta(description="Merged into the existing attributes; null removes one. At most 64 KiB in total."),
    ] = UNSET


class BranchBody(RequestModel):
    at: Annotated[
        Annotated[str, Meta(max_length=400)] | None,
        Meta(description="A user entry (default: the end of the conversation)."),
    ] = None
    include: Annotated[bool, Meta(description="Whether the branch includes that entry.")] = True
    name: Annotated[str, Meta(max_length=200)] = ""


class DraftBody(RequestModel):
    content: Annotated[
        str, Meta(max_length=1_000_000, description="The whole draft; an empty text clears it.")
    ]


class MessageBody(RequestModel):
    content: MessageText
    mode: Annotated[
        Literal["sync", "async"], Meta(description="sync waits for the response, async returns at once.")
    ] = "sync"
    timeout: Annotated[
        float,
        Meta(
            ge=0,
            le=86_400,
            description="Seconds that sync waits; 0 is the maximum. The run continues afterwards.",
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
        Meta(description="Absolute path of the workspace of a new session, as in POST /api/sessions."),
    ] = None


class DrainBody(RequestModel):
    session: Ref | None = None


class ApprovalAnswerBody(RequestModel):
    answer: Annotated[
        Literal["allow", "deny", "add"],
        Meta(description="add: grant the requested permissions from now on (only for touch = more)."),
    ]
