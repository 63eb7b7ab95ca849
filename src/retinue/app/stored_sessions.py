"""List, read and change sessions; needs no model."""

import asyncio
import json
import os
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

from msgspec.structs import replace

from retinue.agents.registry import FileAgentRegistry
from retinue.app.announcement_views import announcement_rows, announcement_rows_from_files
from retinue.app.home_access import HomeAccess
from retinue.app.purge import purge_home
from retinue.app.references import deleted_session_ref, find_session
from retinue.app.run_queries import open_questions
from retinue.app.session_events import emit_session_changed
from retinue.app.session_status import IDLE, SessionStatus, session_status
from retinue.config.load import load_config
from retinue.domain.agent import PathPatterns
from retinue.domain.approval import Approval, ApprovalState, approval_as_json
from retinue.domain.delivery import Delivery, DeliveryState
from retinue.domain.purge import PurgeTarget
from retinue.domain.redaction import Redactor, StreamRedactor
from retinue.domain.run import LIVE_STATUSES, Run, WaitReason
from retinue.domain.session import RESERVED_ATTRIBUTES, Session, matches_search, pinned_first, session_as_json
from retinue.domain.transcript import Entry, ToolCall
from retinue.errors import Conflict, Failed, NotFound, Refused, RetinueError, UsageError
from retinue.interfaces import SessionChanges, Transaction
from retinue.ledger.ledger import SqliteLedger
from retinue.sessions.lookup import top_folder
from retinue.sessions.pagination import PageRequest
from retinue.sessions.scan import SessionScan
from retinue.sessions.store import FileStore
from retinue.worker.clock import system_clock
from retinue.worker.process_lock import ProcessLock

_CHANGE_NAMES = {"name": "renamed", "pinned_at": "pinned"}
MAX_ATTRIBUTES_CHARS = 64 * 1024
"""Maximum length of a session's attributes as JSON."""


class StoredSessions:
    """Sessions and their transcripts, as they are on disk."""

    def __init__(self, home: HomeAccess) -> None:
        self.home = home

    async def find(self, ref: str) -> Session:
        """Find a session by any of its names, or by one of its runs.

        Raises:
            NotFound: Nothing has this name.
            UsageError: The reference is ambiguous.
        """
        return await find_session(ref, self.home)

    async def find_for_api(self, ref: str) -> Session:
        """Find a session for a remote client.

        Not by path, nor by display name (another session may have it tomorrow), nor by run.
        """
        return await self.home.store.find_by_key(ref)

    async def deleted_ref(self, ref: str) -> str:
        """Return the session id if `ref` names a run, also of a deleted session; else return `ref` unchanged."""
        return await deleted_session_ref(ref, self.home)

    async def list_json(
        self, *, agent: str | None = None, children: bool = True, search: str = "", limit: int | None = None
    ) -> list[dict[str, Any]]:
        """Return JSON rows of sessions with their status."""
        found = await self.list_with_status(agent=agent, children=children, search=search, limit=limit)
        return [session_as_json(session) | status.as_json() for session, status in found]

    async def list_with_status(
        self, *, agent: str | None = None, children: bool = True, search: str = "", limit: int | None = None
    ) -> list[tuple[Session, SessionStatus]]:
        """Return sessions with their status: pinned first, then newest."""
        found = await self.home.store.sessions(agent=agent, children=children)
        if search.strip():
            found = [each for each in found if matches_search(each, search)]
        status_by_session = await self.statuses()
        return [(each, status_by_session.get(each.id, IDLE)) for each in pinned_first(found)[:limit]]

    async def statuses(self) -> dict[str, SessionStatus]:
        """Return the status of each session that is not idle, with one ledger query for all."""
        runs = await self.home.ledger.read(lambda tx: tx.find_runs(status=LIVE_STATUSES))
        return {session: session_status(live_runs) for session, live_runs in _runs_by_session(runs).items()}

    async def to_json(self, ref: str) -> dict[str, Any]:
        """Return the JSON object that `sessions show --json` prints."""
        session = await self.find(ref)
        scan = await self.home.store.scan(session)
        live = await self.home.ledger.read(lambda tx: tx.find_runs(status=LIVE_STATUSES, session=session.id))
        return session_as_json(session) | {
            **session_status(live).as_json(),
            "agent_display_name": self.home.agents.display_name_finder().find(
                session.agent, session.workspace.intended_folder
            ),
            "entries": scan.entries,
            "draft": self.home.redact(await self.home.store.read_draft(session)),
            "announcements": await self._announcements(session, scan),
            "approvals": await self._pending_approvals_below(session),
            "questions": [each.as_json() for run in live for each in await open_questions(run, self.home)],
            "preset": await self._preset_origin(session),
            "permissions": await self._preset_permissions(session),
            "problems": [*scan.problems, *await self.home.store.problems(session)],
        }

    async def _announcements(self, session: Session, scan: SessionScan) -> list[dict[str, Any]]:
        """Return the runs that a session delegated; those that the ledger lacks, from files."""
        sessions = await self.home.store.children(session)
        rows = await announcement_rows(session, sessions, self.home.ledger)
        in_ledger = await self.home.ledger.read(lambda tx: tx.find_runs(session=session.id))
        if scan.run_ids <= {run.id for run in in_ledger}:
            return rows
        entries = self.home.store.iter_entries(session)
        return [*await announcement_rows_from_files(session, sessions, entries, rows), *rows]

    async def _pending_approvals_below(self, session: Session) -> list[dict[str, Any]]:
        """Return pending approvals of a session and its descendants, oldest first, with the requester's slug."""
        pending: list[dict[str, Any]] = []
        for approval in await self.home.ledger.read(
            lambda tx: tx.find_approvals(state=[ApprovalState.PENDING])
        ):
            if (requester := await self._approval_session(approval)) is None:
                continue
            if session.id in (requester.id, requester.parent_id) or requester.path.startswith(
                f"{session.path}/"
            ):
                display_name = self.home.agents.display_name_finder().find(
                    approval.agent, requester.workspace.intended_folder
                )
                pending.append(
                    approval_as_json(approval) | {"slug": requester.slug, "agent_display_name": display_name}
                )
        return pending

    async def _approval_session(self, approval: Approval) -> Session | None:
        """Return the session that requested an approval, or None if that expired or the session is gone."""
        if self.home.clock.now() >= approval.expires_at:
            return None
        with suppress(NotFound):
            return await self.home.store.find(approval.session)
        return None

    async def _preset_origin(self, session: Session) -> str:
        """Return which definition a session uses.

        `live` is the agent's current one, `edited` the session's copy after a person changed it, `own` a
        child's copy.
        """
        if not session.is_top_level:
            return "own"
        try:
            _, current_hash = await self.home.store.read_preset(session)
        except RetinueError:
            return "unreadable"
        return "live" if current_hash == session.preset_hash else "edited"

    async def _preset_permissions(self, session: Session) -> dict[str, Any] | None:
        """Return what the session's preset.md requests; what applies is decided by its scope."""
        try:
            preset, _ = await self.home.store.read_preset(session)
        except RetinueError:
            return None
        paths = preset.paths or PathPatterns()
        return {
            "tools": {"allow": preset.tool_allow, "deny": preset.tool_deny},
            "paths": {"read": paths.read, "write": paths.write, "deny": paths.deny},
            "writable": session.workspace.writable,
        }

    async def entries(self, ref: str) -> list[Entry]:
        """Return all entries of a session."""
        entries, _ = await self.home.store.read_entries(await self.find(ref))
        return entries

    async def iter_entries(self, ref: str) -> AsyncGenerator[list[Entry]]:
        """Yield the entries of a session in chunks, so that its length does not matter."""
        async for entries in self.home.store.iter_entries(await self.find(ref)):
            yield entries

    async def iter_redacted_entries(self, ref: str) -> AsyncGenerator[list[Entry]]:
        """Yield the entries in chunks with secrets redacted: a person may have typed a key into the file."""
        async for entries in self.iter_entries(ref):
            yield [_redact_entry(entry, self.home.redact) for entry in entries]

    async def iter_text(self, ref: str) -> AsyncGenerator[str]:
        """Yield a session's file piece by piece with secrets redacted."""
        redacting = StreamRedactor(self.home.redact)
        async for piece in self.home.store.iter_text(await self.find(ref)):
            yield redacting.feed(piece)
        yield redacting.flush()

    async def entries_page(self, ref: str, request: PageRequest) -> list[Entry]:
        """Return one page of a session's entries with secrets redacted."""
        found = await self.home.store.read_page(await self.find(ref), request)
        return [_redact_entry(entry, self.home.redact) for entry in found]

    async def iter_entries_between(
        self, ref: str, *, after: str = "", before: str = ""
    ) -> AsyncGenerator[list[Entry]]:
        """Yield all entries after one entry and before another in chunks, with secrets redacted."""
        async for entries in self.home.store.iter_entries_between(
            await self.find(ref), after=after, before=before
        ):
            yield [_redact_entry(entry, self.home.redact) for entry in entries]

    async def rename(self, ref: str, name: str) -> Session:
        return await self.update(ref, name=name)

    async def pin(self, ref: str) -> Session:
        return await self.update(ref, pinned=True)

    async def unpin(self, ref: str) -> Session:
        return await self.update(ref, pinned=False)

    async def update(
        self,
        ref: str,
        *,
        name: str | None = None,
        pinned: bool | None = None,
        attributes: Mapping[str, Any] | None = None,
    ) -> Session:
        """Change the given properties of a session.

        Args:
            ref: The session.
            name: New name; empty removes it.
            pinned: Pin or unpin.
            attributes: Merged into the existing ones; a value of None removes the attribute.

        Returns:
            The changed session.

        Raises:
            Refused: An attribute is reserved.
            UsageError: The attributes are too large or not JSON.
        """
        session = await self.find(ref)
        async with self.home.session_locks.hold(session.id):
            changes: SessionChanges = {}
            if name is not None:
                changes["name"] = self.home.redact(name) or None
            if pinned is not None:
                changes["pinned_at"] = self.home.clock.now() if pinned else None
            if attributes is not None:
                changes["attributes"] = _merge_attributes(
                    (await self.home.store.find(session.id)).attributes, attributes
                )
            if not changes:
                return session
            return await self.emit_change(await self.home.store.update(session, **changes), *changes)

    async def save_draft(self, ref: str, text: str) -> None:
        """Save a person's unsent text at the end of the file; refused while a run is active there."""
        session = await self.find(ref)
        async with self.home.session_locks.hold(session.id):
            live = await self.home.ledger.read(
                lambda tx: tx.find_runs(status=LIVE_STATUSES, session=session.id)
            )
            if any(not run.waits_between_turns for run in live):
                raise Conflict(f"{session.slug} has an active run. A draft can be saved when it has ended.")
            await self.home.store.save_draft(session, self.home.redact(text))

    async def clear(self, ref: str, *, purge: bool = False) -> Session:
        """Clear a session's transcript.

        Args:
            ref: The session.
            purge: Keep no copy of the messages anywhere, and delete the session's children for good.

        Raises:
            Conflict: A run of the session has not ended; or with `purge`, one below it, or a result is undelivered.
            Failed: With `purge`, the messages were removed, but other branches or a damaged ledger may have copies.
        """
        session = await self.find(ref)
        async with self.home.session_locks.hold(session.id):
            await self._check_no_live_run(session)
            if not purge:
                return await self.emit_change(await self.home.store.clear(session), "cleared")
            await self._check_nothing_pending_below(session)
            remaining = await asyncio.to_thread(self._purge_history, session)
            cleared = await self.emit_change(await self.home.store.find(session.id), "cleared")
            _check_nothing_remains(remaining)
            if branches := await asyncio.to_thread(self.home.store.other_branches_with_history, session):
                slugs = ", ".join(each.key for each in branches)
                raise Failed(
                    f"The messages of {session.key} were removed, but other branches of the session may have copies of them: "
                    f"{slugs}. Clear these with `retinue sessions clear BRANCH --purge` too."
                )
            return cleared

    def _purge_history(self, session: Session) -> list[str]:
        store = self.home.store
        target = store.purge_target(session, session.path, keeps_session=True)
        return self._purge(target, lambda: store.remove_history(session, target))

    def _purge(self, target: PurgeTarget, remove_files: Callable[[], None]) -> list[str]:
        return purge_home(
            self.home.store.root.parent, target, now=self.home.clock.now(), remove_files=remove_files
        )

    async def delete(self, ref: str, *, purge: bool = False) -> Session:
        """Move a session to the trash, with its clean worktrees and those of its children.

        Args:
            ref: The session; with `purge` also one that is in the trash already.
            purge: Remove it and everything about it from every file of the home at once.

        Returns:
            The session with its path in the trash; after a purge, the path is empty.

        Raises:
            Conflict: A run of it or below it has not ended, or results were not delivered.
        """
        if not purge:
            return await self._move_to_trash(ref)
        try:
            session = await self._move_to_trash(ref)
        except NotFound:
            return await self.purge_deleted(await self.deleted_ref(ref))
        return await self.purge_deleted(os.path.basename(session.path))  # noqa: PTH119  (a name, not a file)

    async def _move_to_trash(self, ref: str) -> Session:
        session = await self.find(ref)
        async with self.home.session_locks.hold(session.id):
            await self._check_no_live_run(session)
            await self._check_nothing_pending_below(session)
            deleted = replace(session, path=await self.home.store.delete(session), is_deleted=True)
            return await self.emit_change(deleted, "deleted")

    async def purge_deleted(self, ref: str) -> Session:
        """Remove a deleted session and its children from every file of the home.

        Args:
            ref: Its id, its slug, or the folder's name after the deletion.

        Raises:
            NotFound: There is no such deleted session.
            Conflict: A run of it or below it has not ended.
        """
        store = self.home.store
        session, folder = await store.find_deleted(ref)

        def purge() -> list[str]:
            target = store.purge_target(session, folder)
            return self._purge(target, lambda: store.remove_deleted_folder(folder, target))

        async with self.home.session_locks.hold(session.id):
            _check_nothing_remains(await asyncio.to_thread(purge))
        return replace(session, path="", is_deleted=True)

    async def restore(self, ref: str) -> Session:
        """Restore a deleted session that is still in the trash."""
        return await self.emit_change(await self.home.store.restore(ref), "restored")

    async def branch(
        self, ref: str, *, at: str | None = None, include: bool = True, name: str = ""
    ) -> Session:
        """Create a branch of a session.

        Args:
            ref: The session.
            at: The entry to branch at; None for the end.
            include: Whether the branch contains that entry.
            name: Name of the branch.
        """
        branch = await self.home.store.branch(
            await self.find(ref), prompt_id=at, include=include, name=self.home.redact(name)
        )
        return await self.emit_change(branch, "branched")

    async def emit_change(self, session: Session, *changes: str) -> Session:
        """Emit `session.changed` for listeners in all processes."""
        return await emit_session_changed(
            session,
            ", ".join(_CHANGE_NAMES.get(each, each) for each in changes),
            self.home.ledger,
            self.home.clock,
        )

    async def _check_no_live_run(self, session: Session) -> None:
        """Raise Conflict if the session has an unfinished run.

        An interrupted run continues from the file; without it, all its work would be repeated.
        """
        for run in await self.home.ledger.read(
            lambda tx: tx.find_runs(status=LIVE_STATUSES, session=session.id)
        ):
            state, advice = _live_run_state(run, session, has_live_owner=self.home.has_live_owner(run))
            raise Conflict(f"{session.slug} has {state}. {advice} `retinue runs cancel {run.id}`.")

    async def _check_nothing_pending_below(self, session: Session) -> None:
        """Raise Conflict if descendants or other branches are active or results are undelivered.

        That includes results for the session and results of it.
        """
        folder = f"{top_folder(session)}/"
        descendants = [each for each in await self.home.store.sessions() if each.path.startswith(folder)]
        ids = {session.id, *(each.id for each in descendants)}

        def step(tx: Transaction) -> tuple[list[Run], list[Delivery]]:
            live = [run for run in tx.find_runs(status=LIVE_STATUSES) if run.session_id in ids - {session.id}]
            pending = tx.find_deliveries(state=[DeliveryState.PENDING], answers_call=False)
            outgoing = [each for each in pending if (run := tx.get_run(each.run)) and run.session_id in ids]
            return live, [each for each in pending if each.session in ids or each in outgoing]

        live, undelivered = await self.home.ledger.read(step)
        if live:
            raise Conflict(
                f"{live[0].slug} below {session.slug} is {live[0].status}. Cancel its run first with `retinue runs cancel {live[0].id}`."
            )
        if undelivered:
            raise Conflict(
                f"{len(undelivered)} results of or for {session.slug} are not delivered. Show them with `retinue inbox`, or mark them "
                "as read with `retinue inbox --drain`."
            )

    # Last, because further down in this class `list` would no longer be the type.
    async def list(
        self, *, agent: str | None = None, children: bool = True, max_age_s: float = 0.0
    ) -> list[Session]:
        """Return sessions, newest first.

        Args:
            agent: Only sessions of this agent.
            children: Whether to include child sessions.
            max_age_s: Seconds by which changes of other processes may be missing.
        """
        return await self.home.store.sessions(agent=agent, children=children, max_age_s=max_age_s)


def _check_nothing_remains(damaged_ledgers: Sequence[str]) -> None:
    if damaged_ledgers:
        raise Failed(
            f"The session was purged, but copies of a damaged ledger still mention it. Remove them: {', '.join(damaged_ledgers)}"
        )


def _live_run_state(run: Run, session: Session, *, has_live_owner: bool) -> tuple[str, str]:
    """Describe a run that has not ended, and what a person can do about it instead of cancelling it."""
    resume = f"First use `retinue runs resume {run.id}` or"
    if run.is_suspended_for_person:
        return f"a run that waits until you resume or cancel it ({run.reason})", resume
    if run.waiting_for is WaitReason.PERSON:
        return "a run that waits for your reply", f"First use `retinue send {session.slug} TEXT` or"
    if run.waiting_for is WaitReason.APPROVAL:
        return "a run that waits for an approval", "First use `retinue approvals answer` or"
    if has_live_owner:
        return "an active run", "Cancel it first with"
    return "an interrupted run", resume


def _runs_by_session(runs: Sequence[Run]) -> dict[str, list[Run]]:
    by_session: dict[str, list[Run]] = {}
    for run in runs:
        by_session.setdefault(run.session_id, []).append(run)
    return by_session


def _merge_attributes(existing: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    if reserved := sorted(RESERVED_ATTRIBUTES & changes.keys()):
        raise Refused(f"The attribute {reserved[0]!r} is reserved. Choose another name.")
    merged = {key: value for key, value in (dict(existing) | dict(changes)).items() if value is not None}
    try:
        size = len(json.dumps(merged))
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"The attributes are not JSON: {error}") from error
    if size > MAX_ATTRIBUTES_CHARS:
        raise UsageError(
            f"The attributes would be longer than {MAX_ATTRIBUTES_CHARS:,} characters. Store less there."
        )
    return merged


def _redact_entry(entry: Entry, redact: Redactor) -> Entry:
    if isinstance(entry, ToolCall):
        return replace(entry, tool=redact(entry.tool), args=redact(entry.args))
    return replace(entry, text=redact(entry.text))


@asynccontextmanager
async def open_sessions(*, home: str | None) -> AsyncGenerator[StoredSessions]:
    """Open only the sessions of a home.

    Nothing is written unless requested, so sessions can be listed and read on a read-only disk.
    """
    config = load_config(os.environ, home=home)
    folder = config.home
    clock = system_clock()
    store = FileStore(folder / "sessions", clock)
    ledger = SqliteLedger(folder / "ledger.db")
    store.sweep()
    try:
        yield StoredSessions(
            HomeAccess(
                store=store,
                ledger=ledger,
                clock=clock,
                agents=FileAgentRegistry.from_settings(config),
                redact=Redactor(config.secrets()),
                is_owner_alive=partial(ProcessLock.is_alive, folder),
            )
        )
    finally:
        await ledger.close()
        store.close()
