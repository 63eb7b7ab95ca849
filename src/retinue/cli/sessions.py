"""Commands for sessions: list, show, open, branch, clear, delete, restore, rename, pin and export."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import click

from retinue.app.stored_sessions import StoredSessions
from retinue.cli.offline_command import with_sessions
from retinue.cli.options import Group
from retinue.cli.ui.tables import SESSION_COLUMNS
from retinue.cli.ui.terminal import Terminal, one_line
from retinue.domain.session import Session, pinned_first, session_as_json
from retinue.domain.transcript import Message, entry_as_json
from retinue.errors import Failed, UsageError
from retinue.search_path import find_executable

EMPTY_LIST_NOTE = 'No sessions yet. Start one with "retinue run TEXT".'


@click.group(cls=Group)
def sessions() -> None:
    """List, show and organise sessions.

    A session is a folder with a session.md that you can read, edit and continue.

    SESSION is an id, slug, alias, path of the folder or its session.md, one of its runs, or an unambiguous
    prefix.
    """


@sessions.command("list")
@click.option("--agent", metavar="A", help="Only sessions of this agent.")
@click.option("--top", is_flag=True, help="Only top-level sessions, without those of sub-agents.")
@with_sessions()
async def list_sessions(stored: StoredSessions, terminal: Terminal, agent: str | None, top: bool) -> None:
    """List all sessions: pinned ones first, then the newest."""
    rows = await stored.list(agent=agent, children=not top)
    terminal.print_table(
        (session_as_json(session) for session in pinned_first(rows)),
        SESSION_COLUMNS,
        empty_note=EMPTY_LIST_NOTE,
    )


@sessions.command("show")
@click.argument("session")
@with_sessions()
async def show_session(stored: StoredSessions, terminal: Terminal, session: str) -> None:
    """Show one session, with the pending approvals and questions of it and its children."""
    await _print_session(stored, terminal, session)


@sessions.command("open")
@click.argument("session")
@with_sessions()
async def open_session(stored: StoredSessions, terminal: Terminal, session: str) -> int:
    """Open the session's file in $VISUAL or $EDITOR; without a terminal, print its path."""
    path = str(_transcript_path(await stored.find(session)))
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR")
    if terminal.json:
        terminal.print_json({"path": path})
        return 0
    if editor is None or not (terminal.out.isatty() and sys.stdin.isatty()):
        terminal.print_line(path)
        return 0
    return _open_in_editor(editor, path)


@sessions.command("branch")
@click.argument("session")
@click.option("--at", metavar="ENTRY", help="User entry to branch at (default: the end of the conversation).")
@click.option("--exclude", is_flag=True, help="Leave out that entry (without --at: the last user entry).")
@click.option("--name", default="", metavar="N", help="Name of the branch.")
@with_sessions()
async def branch_session(
    stored: StoredSessions, terminal: Terminal, session: str, at: str | None, exclude: bool, name: str
) -> None:
    """Copy a session up to an earlier point, including its sub-agents, and continue in the copy."""
    entry_id = await _last_user_entry(stored, session) if exclude and at is None else at
    branched = await stored.branch(session, at=entry_id, include=not exclude, name=name)
    await _print_session(stored, terminal, branched.path)


@sessions.command("clear")
@click.argument("session")
@click.option("--purge", is_flag=True, help="Keep no copy, and delete its sub-agents for good.")
@with_sessions()
async def clear_session(stored: StoredSessions, terminal: Terminal, session: str, purge: bool) -> None:
    """Remove all messages of a session. Its id, name and folder are kept.

    A copy of the messages is kept in its folder, as session.md.cleared-TIME, unless you give --purge.
    """
    cleared = await stored.clear(session, purge=purge)
    await _print_session(stored, terminal, cleared.id)


@sessions.command("delete")
@click.argument("session")
@click.option("--purge", is_flag=True, help="Delete it for good at once; also a session deleted before.")
@with_sessions(full_app=True)
async def delete_session(stored: StoredSessions, terminal: Terminal, session: str, purge: bool) -> None:
    """Delete a session. It can be restored for 30 days, unless you give --purge.

    Its folder is renamed to *.deleted.<time>, and commands no longer find it. `restore_command` is the command
    that restores it.

    With --purge, the session, its sub-agents and everything about them are removed from every file of the
    home. Only ids, status, times, hashes and daily sums remain.

    A worktree created for the session is removed if it is clean and no other session uses it.
    """
    deleted = await stored.delete(session, purge=purge)
    workspace = deleted.workspace
    if workspace.source_repository and Path(workspace.root).exists():
        terminal.print_note(
            f"Its worktree contains changes and was kept: {workspace.root} (of {workspace.source_repository})"
        )
    facts = {
        "session_id": deleted.id,
        "slug": deleted.slug,
        "deleted": True,
        "purged": purge,
        "path": deleted.path or None,
        "restore_command": None if purge else f"retinue sessions restore {deleted.id}",
    }
    terminal.print_facts(facts)


@sessions.command("restore")
@click.argument("session")
@with_sessions()
async def restore_session(stored: StoredSessions, terminal: Terminal, session: str) -> None:
    """Restore a deleted session.

    SESSION is its id, slug, one of its runs, or the current name of its folder.
    """
    await _print_session(stored, terminal, (await stored.restore(await stored.deleted_ref(session))).id)


@sessions.command("rename")
@click.argument("session")
@click.argument("name")
@with_sessions()
async def rename_session(stored: StoredSessions, terminal: Terminal, session: str, name: str) -> None:
    """Rename a session; its id and folder are kept."""
    if not name.strip():
        raise UsageError("The name is empty. Give a name with at least one visible character.")
    renamed = await stored.rename(session, name)
    await _print_session(stored, terminal, renamed.id)


@sessions.command("pin")
@click.argument("session")
@with_sessions()
async def pin_session(stored: StoredSessions, terminal: Terminal, session: str) -> None:
    """Keep a session at the top of lists."""
    await _print_session(stored, terminal, (await stored.pin(session)).id)


@sessions.command("unpin")
@click.argument("session")
@with_sessions()
async def unpin_session(stored: StoredSessions, terminal: Terminal, session: str) -> None:
    """Unpin a session."""
    await _print_session(stored, terminal, (await stored.unpin(session)).id)


@sessions.command("export")
@click.argument("session")
@with_sessions()
async def export_session(stored: StoredSessions, terminal: Terminal, session: str) -> None:
    """Print the conversation as Markdown, or its entries as JSON, with secrets redacted."""
    if terminal.json:
        with terminal.print_json_array() as add:
            async for entries in stored.iter_redacted_entries(session):
                for entry in entries:
                    add(entry_as_json(entry))
        return
    async for text in stored.iter_text(session):
        terminal.print_text(text)


def _transcript_path(session: Session) -> Path:
    return Path(session.path) / "session.md"


async def _last_user_entry(stored: StoredSessions, session: str) -> str:
    """Return the id of the last user entry."""
    entry_id = ""
    async for entries in stored.iter_entries(session):
        user_entry_ids = [
            entry.id for entry in entries if isinstance(entry, Message) and entry.role == "user"
        ]
        entry_id = user_entry_ids[-1] if user_entry_ids else entry_id
    if not entry_id:
        raise UsageError(f"{session} has no user message that --exclude could leave out")
    return entry_id


async def _print_session(stored: StoredSessions, terminal: Terminal, ref: str) -> None:
    facts = await stored.to_json(ref)
    if terminal.json:
        terminal.print_json(facts)
        return
    approvals, announcements, questions = (
        facts.pop(each) for each in ("approvals", "announcements", "questions")
    )
    terminal.print_facts(facts)
    for each in announcements:
        child = each["metadata"]
        terminal.print_line(f"{child['slug']} {child['status']}: {one_line(each['summary'], 120)}")
    for each in approvals:
        resource = "" if each["access"] == "tool" else f" {one_line(each['resource'], 120)}"
        terminal.print_line(f"\n{each['slug']} is waiting for approval: {each['tool']}{resource}")
        answer = f"retinue approvals answer {each['id']} allow"
        terminal.print_line(f"  retinue approvals show {each['id']}, then {answer} (or deny)")
    for each in questions:
        terminal.print_line(f"\n{each['agent']} asks: {one_line(each['question'], 400)}")


def _open_in_editor(editor: str, path: str) -> int:
    try:
        program, *arguments = shlex.split(editor)
        found = program if "/" in program else find_executable(program, os.environ)
        if found is None:
            raise Failed(f"The editor {program} is not on the PATH. Set VISUAL or EDITOR to another editor.")
        completed = subprocess.run([found, *arguments, path], check=False)  # noqa: S603  (the person's own editor)
    except (OSError, ValueError) as error:
        raise Failed(
            f"Cannot start the editor {editor!r}: {error}. Set VISUAL or EDITOR to another editor."
        ) from error
    return 1 if completed.returncode else 0
