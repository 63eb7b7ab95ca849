"""Routes about runs: what is going on, what has been, and what to do about it."""

from typing import Any

from retinue.domain.api_permission import Right
from retinue.server.context import House
from retinue.server.request_schemas import RunsQuery
from retinue.server.routing import Nothing, Route, Wish
from retinue.server.run_json import RunRow, RunShown


async def listed(house: House, wish: Wish[RunsQuery, Nothing]) -> list[dict[str, Any]]:
    app, asked = house.app, wish.query
    session = None if asked.session is None else (await app.named(asked.session)).id
    root = None if asked.root is None else (await app.named_run(asked.root)).root
    return await app.runs_json(live=asked.live, session=session, root=root, limit=asked.limit)


async def shown(house: House, wish: Wish[Nothing, Nothing]) -> dict[str, Any]:
    return await house.app.run_json(await _meant(house, wish))


async def _meant(house: House, wish: Wish[Nothing, Nothing]) -> str:
    return (await house.app.named_run(wish.ref)).id


async def cancelled(house: House, wish: Wish[Nothing, Nothing]) -> dict[str, Any]:
    return await house.app.run_json((await house.app.cancel(await _meant(house, wish))).id)


async def interrupted(house: House, wish: Wish[Nothing, Nothing]) -> dict[str, Any]:
    return await house.app.run_json((await house.app.interrupt(await _meant(house, wish))).id)


async def detached(house: House, wish: Wish[Nothing, Nothing]) -> dict[str, Any]:
    return await house.app.run_json((await house.app.detach(await _meant(house, wish))).id)


async def resumed(house: House, wish: Wish[Nothing, Nothing]) -> dict[str, Any]:
    return await house.app.run_json((await house.app.resume(await _meant(house, wish)))[0].id)


ROUTES = (
    Route(
        method="GET",
        path="/api/runs",
        right=Right.READ,
        does=listed,
        says="Runs, the newest first.",
        query=RunsQuery,
        gives=list[RunRow],
        errors={404: "There is no such session or run."},
    ),
    Route(
        method="GET",
        path="/api/runs/{ref}",
        right=Right.READ,
        does=shown,
        says="Everything that is known of one run.",
        gives=RunShown,
    ),
    Route(
        method="POST",
        path="/api/runs/{ref}/cancel",
        right=Right.RUN,
        does=cancelled,
        says="Stops a run and those it asked for; what it said so far is kept. One that has ended stays as it is.",
        gives=RunShown,
    ),
    Route(
        method="POST",
        path="/api/runs/{ref}/interrupt",
        right=Right.RUN,
        does=interrupted,
        says="Lets a run end with a summary of what it has come to, and answers at once.",
        gives=RunShown,
    ),
    Route(
        method="POST",
        path="/api/runs/{ref}/detach",
        right=Right.RUN,
        does=detached,
        says="Lets a run that a call waits for go on in the background.",
        gives=RunShown,
        errors={409: "It has ended, or nobody waits for it."},
    ),
    Route(
        method="POST",
        path="/api/runs/{ref}/resume",
        right=Right.RUN,
        does=resumed,
        says="Goes on with a run whose process has died.",
        gives=RunShown,
        errors={409: "It has ended, or somebody works it."},
    ),
)
