"""Routes for runs: list, get, cancel, interrupt, detach and resume."""

from typing import Any

from retinue.domain.api_permission import ApiPermission
from retinue.server.context import ServerContext
from retinue.server.request_schemas import RunsQuery
from retinue.server.routing import ApiRequest, NoFields, Route
from retinue.server.run_json import RunDetails, RunRow


async def list_runs(context: ServerContext, request: ApiRequest[RunsQuery, NoFields]) -> list[dict[str, Any]]:
    app, query = context.app, request.query
    session = None if query.session is None else (await app.find_session_for_api(query.session)).id
    root = None if query.root is None else (await app.find_run_by_id(query.root)).root_id
    return await app.runs_json(live=query.live, session=session, root=root, limit=query.limit)


async def get_run(context: ServerContext, request: ApiRequest[NoFields, NoFields]) -> dict[str, Any]:
    return await context.app.run_json(await _run_id(context, request))


async def _run_id(context: ServerContext, request: ApiRequest[NoFields, NoFields]) -> str:
    return (await context.app.find_run_by_id(request.ref)).id


async def cancel_run(context: ServerContext, request: ApiRequest[NoFields, NoFields]) -> dict[str, Any]:
    return await context.app.run_json((await context.app.cancel(await _run_id(context, request))).id)


async def interrupt_run(context: ServerContext, request: ApiRequest[NoFields, NoFields]) -> dict[str, Any]:
    return await context.app.run_json((await context.app.interrupt(await _run_id(context, request))).id)


async def detach_run(context: ServerContext, request: ApiRequest[NoFields, NoFields]) -> dict[str, Any]:
    return await context.app.run_json((await context.app.detach(await _run_id(context, request))).id)


async def resume_run(context: ServerContext, request: ApiRequest[NoFields, NoFields]) -> dict[str, Any]:
    return await context.app.run_json((await context.app.resume(await _run_id(context, request)))[0].id)


ROUTES = (
    Route(
        method="GET",
        path="/api/runs",
        right=ApiPermission.READ,
        handler=list_runs,
        summary="List runs, newest first.",
        query=RunsQuery,
        response=list[RunRow],
        extra_errors={404: "Session or run not found."},
    ),
    Route(
        method="GET",
        path="/api/runs/{ref}",
        right=ApiPermission.READ,
        handler=get_run,
        summary="Get all fields of one run.",
        response=RunDetails,
    ),
    Route(
        method="POST",
        path="/api/runs/{ref}/cancel",
        right=ApiPermission.RUN,
        handler=cancel_run,
        summary="Cancel a run and its sub-agents. Saved text is kept. A run that has ended stays as it is.",
        response=RunDetails,
    ),
    Route(
        method="POST",
        path="/api/runs/{ref}/interrupt",
        right=ApiPermission.RUN,
        handler=interrupt_run,
        summary="Interrupt a run: it ends with a summary of its progress. Returns immediately.",
        response=RunDetails,
    ),
    Route(
        method="POST",
        path="/api/runs/{ref}/detach",
        right=ApiPermission.RUN,
        handler=detach_run,
        summary="Detach a run: the tool call that waits for it returns, and the run continues in the background.",
        response=RunDetails,
        extra_errors={409: "It has ended, or no tool call waits for it."},
    ),
    Route(
        method="POST",
        path="/api/runs/{ref}/resume",
        right=ApiPermission.RUN,
        handler=resume_run,
        summary="Resume a run whose process has died.",
        response=RunDetails,
        extra_errors={409: "It has ended, or a process is executing it."},
    ),
)
