"""Conversations: finding them, reading them, and keeping them in order."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import click

from retinue.app.sessions import Sessions
from retinue.cli.offline_command import on_sessions
from retinue.cli.options import Group
from retinue.cli.ui.tables import SESSION_COLUMNS
from retinue.cli.ui.terminal import Terminal, one_line
from retinue.domain.session import Session, as_json, in_order
from retinue.domain.transcript import Said
from retinue.domain.transcript import as_json as entry_as_json
from retinue.errors import Failed, Usage

EMPTY = "no sessions yet: retinue run TEXT begins one"


@click.group(cls=Group)
def sessions() -> None:
    """Conversations: each is a folder with a session.md that a person can read, edit and resume.

    SESSION is an id, slug, alias, path of the folder or its session.md, a run of it, or an unambiguous prefix.
    """


@sessions.command("list")
@click.option("--agent", metavar="A", help="Only this agent's.")
@click.option("--top", is_flag=True, help="Without the sessions of children.")
@on_sessions()
async def list_sessions(app: Sessions, terminal: Terminal, agent: str | None, top: bool) -> None:
    """All sessions: pinned ones first, then the newest."""
    found = await app.sessions(agent=agent, children=not top)
    terminal.rows((as_json(session) for session in in_order(found)), SESSION_COLUMNS, empty=EMPTY)


@sessions.command("show")
@click.argument("session")
@on_sessions()
async def show_session(app: Sessions, terminal: Terminal, session: str) -> None:
    """What is known of one session, and what it and its children wait for a person with."""
    await _shown(app, terminal, session)


@sessions.command("open")
@click.argument("session")
@on_sessions()
async def open_session(app: Sessions, terminal: Terminal, session: str) -> int:
    """Open the session's file in $VISUAL or $EDITOR; without a terminal, print its path."""
    path = str(_file(await app.session(session)))
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR")
    if terminal.json:
        terminal.value({"path": path})
        return 0
    if editor is None or not (terminal.out.isatty() and sys.stdin.isatty()):
        terminal.line(path)
        return 0
    return _edited(editor, path)


@sessions.command("branch")
@click.argument("session")
@click.option("--at", metavar="ENTRY", help="The user entry to branch at; without it, all that was said.")
@click.option("--exclude", is_flag=True, help="Leave that entry itself out; without --at, the last one.")
@click.option("--name", default="", metavar="N", help="The branch's name.")
@on_sessions()
async def branch_session(
    app: Sessions, terminal: Terminal, session: str, at: str | None, exclude: bool, name: str
) -> None:
    """Go on from an earlier point in a copy, with all of the session's agents."""
    point = await _last_words(app, session) if exclude and at is None else at
    branched = await app.branch(session, at=point, include=not exclude, name=name)
    await _shown(app, terminal, branched.path)


@sessions.command("clear")
@click.argument("session")
@on_sessions()
async def clear_session(app: Sessions, terminal: Terminal, session: str) -> None:
    """Forget what was said; the session keeps its identity."""
    cleared = await app.clear(session)
    await _shown(app, terminal, cleared.id)


@sessions.command("delete")
@click.argument("session")
@on_sessions(whole=True)
async def delete_session(app: Sessions, terminal: Terminal, session: str) -> None:
    """Delete a session: its folder is renamed to *.deleted.<time>, no command finds it, and after 30 days it is gone.
    Until then `retinue sessions restore` brings it back: `undo` is the whole command.

    A worktree that was made for it is removed if it is clean and nobody else is in it; one that holds work stays.
    """
    gone = await app.delete(session)
    place = gone.workspace
    if place.source and Path(place.root).exists():
        terminal.note(f"its worktree holds work and stays: {place.root} (of {place.source})")
    undo = f"retinue sessions restore {gone.id}"
    facts = {"session_id": gone.id, "slug": gone.slug, "deleted": True, "path": gone.path, "undo": undo}
    terminal.facts(facts)


@sessions.command("restore")
@click.argument("session")
@on_sessions()
async def restore_session(app: Sessions, terminal: Terminal, session: str) -> None:
    """Bring a deleted session back: SESSION is its id, its slug, a run of it, or its folder's name since then."""
    await _shown(app, terminal, (await app.restore(await app.deleted(session))).id)


@sessions.command("rename")
@click.argument("session")
@click.argument("name")
@on_sessions()
async def rename_session(app: Sessions, terminal: Terminal, session: str, name: str) -> None:
    """Give a session a name for people; its id and folder stay."""
    if not name.strip():
        raise Usage("the name is empty: give the session a name with something in it")
    renamed = await app.rename(session, name)
    await _shown(app, terminal, renamed.id)


@sessions.command("pin")
@click.argument("session")
@on_sessions()
async def pin_session(app: Sessions, terminal: Terminal, session: str) -> None:
    """Keep a session at the top of lists."""
    await _shown(app, terminal, (await app.pin(session)).id)


@sessions.command("unpin")
@click.argument("session")
@on_sessions()
async def unpin_session(app: Sessions, terminal: Terminal, session: str) -> None:
    """No longer keep a session at the top of lists."""
    await _shown(app, terminal, (await app.unpin(session)).id)


@sessions.command("export")
@click.argument("session")
@on_sessions()
async def export_session(app: Sessions, terminal: Terminal, session: str) -> None:
    """Print the conversation as Markdown, or its entries as JSON, without what looks like a key."""
    if terminal.json:
        with terminal.array() as add:
            async for entries in app.exported(session):
                for entry in entries:
                    add(entry_as_json(entry))
        return
    async for piece in app.text(session):
        terminal.words(piece)


def _file(session: Session) -> Path:
    return Path(session.path) / "session.md"


async def _last_words(app: Sessions, session: str) -> str:
    """The last entry of a person."""
    last = ""
    async for entries in app.portions(session):
        said = [entry.id for entry in entries if isinstance(entry, Said) and entry.by == "user"]
        last = said[-1] if said else last
    if not last:
        raise Usage(f"{session} holds no words of a person: there is nothing to leave out")
    return last


async def _shown(app: Sessions, terminal: Terminal, ref: str) -> None:
    facts = await app.session_json(ref)
    if terminal.json:
        terminal.value(facts)
        return
    asked, announced, questions = (facts.pop(each) for each in ("approvals", "announcements", "questions"))
    terminal.facts(facts)
    for each in announced:
        child = each["metadata"]
        terminal.line(f"{child['slug']} {child['status']}: {one_line(each['summary'], 120)}")
    for each in asked:
        what = "" if each["touch"] == "tool" else f" {one_line(each['resource'], 120)}"
        terminal.line(f"\n{each['slug']} waits for a person: {each['tool']}{what}")
        answer = f"retinue approvals answer {each['id']} allow"
        terminal.line(f"  retinue approvals show {each['id']}, then {answer} (or deny)")
    for each in questions:
        terminal.line(f"\n{each['agent']} asks: {one_line(each['question'], 400)}")


def _edited(editor: str, path: str) -> int:
    try:
        done = subprocess.run([*shlex.split(editor), path], check=False)  # noqa: S603  (the person's own editor)
    except (OSError, ValueError) as error:
        raise Failed(
            f"{editor!r} could not be started: {error}; set VISUAL or EDITOR to an editor"
        ) from error
    return 1 if done.returncode else 0
