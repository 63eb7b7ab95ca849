"""The pool: agents that finished a task for another and can be asked more."""

from collections.abc import Sequence

import click

from retinue.app.agent_pool import cleared, pooled
from retinue.app.sessions import Sessions
from retinue.cli.offline_command import on_sessions
from retinue.cli.options import Group
from retinue.cli.ui.tables import ago
from retinue.cli.ui.terminal import Column, Terminal
from retinue.domain.agent_pool import as_json, stats

COLUMNS: Sequence[Column] = (
    ("AGENT ID", lambda row: row["agent_id"]),
    ("KEY", lambda row: row["key"]),
    ("STATE", lambda row: "in use" if row["in_use"] else "available"),
    ("USES", lambda row: str(row["use_count"])),
    ("AGE", lambda row: ago(row["created_at"])),
    ("LAST USED", lambda row: ago(row["last_used_at"])),
    ("PARENT", lambda row: row["parent"]),
)
EMPTY = "the pool is empty: agents come into it when another agent gives them a task and keeps them"


@click.group(cls=Group)
def pool() -> None:
    """Agents that finished a task for another agent, which can still ask them more.

    ID is an agent's id, as the tools agent, explore and plan return it: the slug of its session.
    """


@pool.command("list")
@on_sessions()
async def list_pool(app: Sessions, terminal: Terminal) -> None:
    """Who is in the pool, the latest used first.

    KEY tells definitions apart: name, prompt and tools. USES counts the tasks and questions of all agents with that
    key.
    """
    terminal.rows([as_json(entry) for entry in await pooled(app)], COLUMNS, empty=EMPTY)


@pool.command("stats")
@on_sessions()
async def show_stats(app: Sessions, terminal: Terminal) -> None:
    """How many agents are in the pool, at work and free, and how old they are."""
    terminal.facts(stats(await pooled(app), app.chance.now()))


@pool.command("clear")
@click.argument("id", required=False)
@on_sessions()
async def clear_pool(app: Sessions, terminal: Terminal, id: str | None) -> None:  # noqa: A002  (what help prints)
    """Take the agent ID, or every idle one, out of the pool; their conversations stay."""
    gone = await cleared(app, id)
    if terminal.json:
        terminal.value([as_json(entry) for entry in gone])
        return
    for entry in gone:
        terminal.line(f"{entry.use.agent_id} can be asked no more; its conversation stays")
    if not gone:
        terminal.note("nobody idle is in the pool: retinue pool list shows who is")
