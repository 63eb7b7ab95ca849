"""Commands for the agent pool: list, stats and clear."""

from collections.abc import Sequence

import click

from retinue.app.agent_pool import list_pool_agents, retire_pool_agents
from retinue.app.stored_sessions import StoredSessions
from retinue.cli.offline_command import with_sessions
from retinue.cli.options import Group
from retinue.cli.ui.tables import format_age
from retinue.cli.ui.terminal import Column, Terminal
from retinue.domain.agent_pool import pool_entry_as_json, pool_stats

POOL_COLUMNS: Sequence[Column] = (
    ("AGENT ID", lambda row: row["agent_id"]),
    ("KEY", lambda row: row["key"]),
    ("STATE", lambda row: "in use" if row["in_use"] else "available"),
    ("USES", lambda row: str(row["use_count"])),
    ("AGE", lambda row: format_age(row["created_at"])),
    ("LAST USED", lambda row: format_age(row["last_used_at"])),
    ("PARENT", lambda row: row["parent"]),
)
EMPTY_POOL_NOTE = (
    "The pool is empty. Agents that finish a delegated task with a persistent session are added to it."
)


@click.group(cls=Group)
def pool() -> None:
    """List and clear the pool of agents that finished a task and can get another one.

    ID is an agent's id, as returned by the tools agent, explore and plan: the slug of its session.
    """


@pool.command("list")
@with_sessions()
async def list_pool(stored: StoredSessions, terminal: Terminal) -> None:
    """List the agents in the pool, most recently used first.

    KEY identifies a definition by name, prompt and tools. USES counts the tasks and questions of all agents
    with that key.
    """
    terminal.print_table(
        [pool_entry_as_json(entry) for entry in await list_pool_agents(stored.home)],
        POOL_COLUMNS,
        empty_note=EMPTY_POOL_NOTE,
    )


@pool.command("stats")
@with_sessions()
async def show_pool_stats(stored: StoredSessions, terminal: Terminal) -> None:
    """Show how many agents are in the pool, busy and idle, and how old they are."""
    terminal.print_facts(pool_stats(await list_pool_agents(stored.home), stored.home.clock.now()))


@pool.command("clear")
@click.argument("id", required=False)
@with_sessions()
async def clear_pool(stored: StoredSessions, terminal: Terminal, id: str | None) -> None:  # noqa: A002  (the name shown in the help)
    """Remove the agent ID, or every idle agent, from the pool; their sessions are kept."""
    removed = await retire_pool_agents(stored.home, id)
    if terminal.json:
        terminal.print_json([pool_entry_as_json(entry) for entry in removed])
        return
    for entry in removed:
        terminal.print_line(f"{entry.pooled_session.slug} was removed from the pool. Its conversation stays.")
    if not removed:
        terminal.print_note('No idle agents in the pool. List all with "retinue pool list".')
