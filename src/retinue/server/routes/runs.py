"""Routes for runs: list, get, cancel, interrupt, detach and resume."""

from typing import Annotated, Any, Literal

from msgspec import Meta

from retinue.domain.api_permission import ApiPermission
from retinue.server.context import ServerContext
from retinue.server.example_values import RUN_ID, SESSION_ID, SLUG, TIMESTAMP, TRANSCRIPT_PATH, WORKSPACE_PATH
from retinue.server.routing import ApiRequest, EmptyFields, route
from retinue.server.schemas import Ref, RequestModel, ResponseModel, ResultLimit, Timestamp, TokenUsage


class RunsQuery(RequestModel):
    live: Annotated[bool, Meta(description="Only live runs.")] = False
    session: Ref | None = None
    root: Annotated[Ref | None, Meta(description="Run id: return all runs of that run's tree.")] = None
    limit: ResultLimit = 50


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
    output: Annotated[
        Any, Meta(description="The answer that matches the run's output schema; null if there is none.")
    ]
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
    fallback_models: Annotated[
        list[str], Meta(description="Fallbacks that answered, because the models before them failed.")
    ]
    thinking: str | None
    continues: Annotated[str | None, Meta(description="Id of the ended run that this run continues.")]
    source: str
    entry_point: str
    role: str
    trigger: str
    keep_session: bool
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
    pruned: Annotated[bool, Meta(description="Only a tombstone is left: its texts and counts were removed.")]
    result_hash: Annotated[
        str | None, Meta(description="SHA-256 of the last message of a pruned run; null otherwise.")
    ]
    call: Annotated[str | None, Meta(description="Id of the tool call that requested the run.")]
    cached_tokens: Annotated[int, Meta(description="Input tokens that came from the provider's cache.")]
    cache_write_tokens: Annotated[
        int, Meta(description="Input tokens that the provider stored in its cache.")
    ]
    cost: Annotated[float | None, Meta(description="US dollars; null if the model has no price.")]
    agent_display_name: Annotated[
        str | None, Meta(description="The agent's display name; null if its definition has none.")
    ]


class TreeTotals(ResponseModel):
    """Totals of a run and all of its descendants."""

    runs: int
    usage: TokenUsage
    cached_tokens: int
    cache_write_tokens: int
    cost: Annotated[
        float | None, Meta(description="Cost of the runs whose model has a price; null if none has a price.")
    ]
    unpriced: Annotated[int, Meta(description="Number of runs whose model has no price.")]


class RunDetails(RunRow):
    tree: TreeTotals
    sandbox: Annotated[
        str | None,
        Meta(
            description="The least strict sandbox level of the run's commands; null if the run executed no commands."
        ),
    ]
    questions: Annotated[list[QuestionRow], Meta(description="Open questions of the run and its sub-agents.")]


RUN_ROW_EXAMPLE: dict[str, Any] = {
    "run_id": RUN_ID,
    "session_id": SESSION_ID,
    "slug": SLUG,
    "key": f"{SLUG}/main",
    "agent": "general",
    "agent_display_name": "General",
    "status": "done",
    "waiting_for": None,
    "reason": None,
    "approvals": [],
    "text": "It is src/timetable.py.",
    "output": None,
    "error": None,
    "turns": 1,
    "tool_calls": 0,
    "usage": {"input": 1310, "output": 9},
    "started_at": TIMESTAMP,
    "ended_at": TIMESTAMP,
    "duration_ms": 812,
    "path": TRANSCRIPT_PATH,
    "children": [],
    "requester": "person",
    "parent": None,
    "root": RUN_ID,
    "depth": 0,
    "label": None,
    "task": "Where is the timetable?",
    "model": "openai:gpt-5.6-terra",
    "fallback_models": [],
    "thinking": None,
    "continues": None,
    "source": "person",
    "entry_point": "http",
    "role": "primary",
    "trigger": "command",
    "keep_session": True,
    "timeout_seconds": None,
    "created_at": TIMESTAMP,
    "deadline_at": TIMESTAMP,
    "delivery": {"state": None, "attempts": 0},
    "attempts": 1,
    "workspace": WORKSPACE_PATH,
    "scope_hash": "fec6620007877347",
    "exit": None,
    "evidence": {"tool_calls": 0, "no_work": True},
    "effects": [],
    "pruned": False,
    "result_hash": None,
    "call": None,
    "cached_tokens": 0,
    "cache_write_tokens": 0,
    "cost": 0.000477,
}
RUN_DETAILS_EXAMPLE: dict[str, Any] = RUN_ROW_EXAMPLE | {
    "sandbox": None,
    "questions": [],
    "tree": {
        "runs": 1,
        "usage": {"input": 1204, "output": 88},
        "cached_tokens": 0,
        "cache_write_tokens": 0,
        "cost": 0.000477,
        "unpriced": 0,
    },
}


@route(
    "GET",
    "/api/runs",
    right=ApiPermission.READ,
    summary="List runs, newest first.",
    query=RunsQuery,
    response=list[RunRow],
    response_example=[RUN_ROW_EXAMPLE],
    extra_errors={404: "Session or run not found."},
)
async def list_runs(
    context: ServerContext, request: ApiRequest[RunsQuery, EmptyFields]
) -> list[dict[str, Any]]:
    app, query = context.app, request.query
    session = None if query.session is None else (await app.sessions.find_for_api(query.session)).id
    root = None if query.root is None else (await app.runs.find_by_id(query.root)).root_id
    return await app.runs.list_json(live=query.live, session=session, root=root, limit=query.limit)


@route(
    "GET",
    "/api/runs/{ref}",
    right=ApiPermission.READ,
    summary="Get all fields of one run.",
    response=RunDetails,
    response_example=RUN_DETAILS_EXAMPLE,
)
async def get_run(context: ServerContext, request: ApiRequest[EmptyFields, EmptyFields]) -> dict[str, Any]:
    return await context.app.runs.to_json(await _run_id(context, request))


async def _run_id(context: ServerContext, request: ApiRequest[EmptyFields, Any]) -> str:
    return (await context.app.runs.find_by_id(request.ref)).id


class ResumeBody(RequestModel):
    model: Annotated[str | None, Meta(description="Model to continue with, as provider:name.")] = None


@route(
    "POST",
    "/api/runs/{ref}/cancel",
    right=ApiPermission.RUN,
    summary="Cancel a run and its sub-agents. Saved text is kept. A run that has ended stays as it is.",
    response=RunDetails,
    response_example=RUN_DETAILS_EXAMPLE | {"status": "cancelled", "reason": "user_cancel"},
)
async def cancel_run(context: ServerContext, request: ApiRequest[EmptyFields, EmptyFields]) -> dict[str, Any]:
    return await context.app.runs.to_json((await context.app.runs.cancel(await _run_id(context, request))).id)


@route(
    "POST",
    "/api/runs/{ref}/interrupt",
    right=ApiPermission.RUN,
    summary="Interrupt a run: it ends with a summary of its progress. Returns immediately.",
    response=RunDetails,
    response_example=RUN_DETAILS_EXAMPLE | {"status": "running", "reason": "interrupted"},
)
async def interrupt_run(
    context: ServerContext, request: ApiRequest[EmptyFields, EmptyFields]
) -> dict[str, Any]:
    return await context.app.runs.to_json(
        (await context.app.runs.interrupt(await _run_id(context, request))).id
    )


@route(
    "POST",
    "/api/runs/{ref}/detach",
    right=ApiPermission.RUN,
    summary="Detach a run: the tool call that waits for it returns, and the run continues in the background.",
    response=RunDetails,
    response_example=RUN_DETAILS_EXAMPLE | {"status": "running"},
    extra_errors={409: "The run has ended, or no tool call is waiting for it."},
)
async def detach_run(context: ServerContext, request: ApiRequest[EmptyFields, EmptyFields]) -> dict[str, Any]:
    return await context.app.runs.to_json((await context.app.runs.detach(await _run_id(context, request))).id)


@route(
    "POST",
    "/api/runs/{ref}/resume",
    right=ApiPermission.RUN,
    summary="Resume a run whose process has died, that waits for a model's server, or that failed or timed out.",
    body=ResumeBody,
    request_example={},
    response=RunDetails,
    response_example=RUN_DETAILS_EXAMPLE | {"status": "queued"},
    extra_errors={409: "The run is done or cancelled, or a process is executing it."},
)
async def resume_run(context: ServerContext, request: ApiRequest[EmptyFields, ResumeBody]) -> dict[str, Any]:
    return await context.app.runs.to_json(
        (
            await context.app.runs.resume(
                await _run_id(context, request), by_person=True, model=request.body.model
            )
        )[0].id
    )
