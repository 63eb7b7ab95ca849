"""Routes for runs: list, get, cancel, interrupt, detach and resume."""

from typing import Any

from retinue.domain.api_permission import ApiPermission
from retinue.server.context import ServerContext
from retinue.server.request_schemas import RunsQuery
from retinue.server.routing import ApiRequest, NoFields, Route
from retinue.server.run_json import RunDetails, RunRow


async def list_runs(context: ServerContext, request: ApiRequest[RunsQuery, NoFields]) -> list[dict[str, Any]]:
    app, query = context.app, request.query
    session = None if query.session is None else (await app.sessions.find_for_api(query.session)).id
    root = None if query.root is None else (await app.runs.find_by_id(query.root)).root_id
    return await app.runs.list_json(live=query.live, session=session, root=root, limit=query.limit)


async def get_run(context: ServerContext, request: ApiRequest[NoFields, NoFields]) -> dict[str, Any]:
    return await context.app.runs.to_json(await _run_id(context, request))


async def _run_id(context: ServerContext, request: ApiRequest[NoFields, NoFields]) -> str:
    return (await context.app.runs.find_by_id(request.ref)).id


async def cancel_run(context: ServerContext, request: ApiRequest[NoFields, NoFields]) -> dict[str, Any]:
    return await context.app.runs.to_json((await context.app.runs.cancel(await _run_id(context, request))).id)


async def interrupt_run(context: ServerContext, request: ApiRequest[NoFields, NoFields]) -> dict[str, Any]:
    return await context.app.runs.to_json(
        (await context.app.runs.interrupt(await _run_id(context, request))).id
    )


async def detach_run(context: ServerContext, request: ApiRequest[NoFields, NoFields]) -> dict[str, Any]:
    return await context.app.runs.to_json((await context.app.runs.detach(await _run_id(context, request))).id)


async def resume_run(context: ServerContext, request: ApiRequest[NoFields, NoFields]) -> dict[str, Any]:
    return await context.app.runs.to_json(
        (await context.app.runs.resume(await _run_id(context, request)))[0].id
    )


ROUTES = (
    Route(
        method="GET",
        path="/api/runs",
        right=ApiPermission.READ,
        handler=list_runs,
        summary="Runs, the newest first.",
        query=RunsQuery,
        response=list[RunRow],
        extra_errors={404: "There is no such session or run."},
    ),
    Route(
        method="GET",
        path="/api/runs/{ref}",
        right=ApiPermission.READ,
        handler=get_run,
        summary="Everything that is known of one run.",
        response=RunDetails,
    ),
    Route(
        method="POST",
        path="/api/runs/{ref}/cancel",
        right=ApiPermission.RUN,
        handler=cancel_run,
        summary="Stops a run and those it asked for; what it said so far is kept. One that has ended stays as it is.",
        response=RunDetails,
    ),
    Route(
        method="POST",
        path="/api/runs/{ref}/interrupt",
        right=ApiPermission.RUN,
        handler=interrupt_run,
        summary="Lets a run end with a summary of what it has come to, and answers at once.",
        response=RunDetails,
    ),
    Route(
        method="POST",
        path="/api/runs/{ref}/detach",
        right=ApiPermission.RUN,
        handler=detach_run,
        summary="Lets a run that a call waits for go on in the background.",
        response=RunDetails,
        extra_errors={409: "It has ended, or nobody waits for it."},
    ),
    Route(
        method="POST",
        path="/api/runs/{ref}/resume",
        right=ApiPermission.RUN,
        handler=resume_run,
        summary="Goes on with a run whose process has died.",
        response=RunDetails,
        extra_errors={409: "It has ended, or somebody works it."},
    ),
)
