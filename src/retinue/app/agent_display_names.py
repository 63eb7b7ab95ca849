"""Display names of the agents of runs."""

from collections.abc import Mapping
from contextlib import suppress

from retinue.app.home_access import HomeAccess
from retinue.domain.run import Run
from retinue.errors import RetinueError
from retinue.interfaces import Transaction


async def display_names_by_run(agent_by_run: Mapping[str, str], home: HomeAccess) -> dict[str, str | None]:
    """Return the display name of each run's agent, by run id.

    An agent of a trusted project is found in the folder that its session was started for.
    """
    finder = home.agents.display_name_finder()
    names = {run_id: finder.find(agent, "") for run_id, agent in agent_by_run.items()}
    project_runs = [run_id for run_id, agent in agent_by_run.items() if not finder.is_own(agent)]
    if not project_runs:
        return names

    def find_runs(tx: Transaction) -> list[Run]:
        return [run for run_id in project_runs if (run := tx.get_run(run_id)) is not None]

    for run in await home.ledger.read(find_runs):
        with suppress(RetinueError):  # the session may be gone
            session = await home.store.find(run.transcript_path)
            names[run.id] = finder.find(run.agent, session.workspace.intended_folder)
    return names
