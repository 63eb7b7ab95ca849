"""Send a message to a session or agent on behalf of a program, and return the reply as JSON."""

import asyncio
from contextlib import suppress
from functools import partial
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from retinue.app.approvals import ApprovalService
from retinue.app.context import AppContext
from retinue.app.permissions import check_agent_allowed
from retinue.app.pruned_runs import find_transcript_texts
from retinue.app.run_options import RunOptions
from retinue.app.runs import RunService
from retinue.app.submit import keyed_entry_id
from retinue.app.tree_activity import is_tree_active, runs_ahead_of
from retinue.app.workspace_folder import check_home_allowed, resolve_workspace
from retinue.domain.agent import AGENT_NAME
from retinue.domain.run import LIVE_STATUSES, Run, Status, WaitReason
from retinue.domain.session import Session
from retinue.domain.transcript import Message
from retinue.errors import Conflict, NotFound, Refused, UsageError
from retinue.interfaces import Transaction
from retinue.sessions.pagination import PageRequest
from retinue.sessions.window import WINDOW_BYTES
from retinue.tools.delegation.agents_message import (
    CREATE_SESSION,
    LATEST_OR_CREATE_SESSION,
    LATEST_SESSION,
    is_queued_behind,
    message_result,
)

HTTP_ENTRY_POINT = "http"
"""Entry point of messages from programs."""
HTTP_KEY_PREFIX = f"{HTTP_ENTRY_POINT}:"
"""Prefix of a request key derived from a program's idempotency key."""
RESPONSE_PRUNED = "response_pruned"
"""Error code for a repeated message whose response is gone."""
RESPONSE_PRUNED_MESSAGE = (
    "Run {run} answered this message before and is done, but its text was pruned by retention, and the session's "
    "transcript does not have the response any more. The message was not sent again."
)
MAX_KEY_CHARS = 200
MAX_CACHED_KEYS = 10_000
APPROVAL_HINT = (
    "{agent} is waiting for approval of {tool}. View the request with GET /api/approvals/{id}. Answer it with POST /api/approvals/{id} and "
    '{{"answer": "allow"}} or {{"answer": "deny"}}.'
)
REPLY_HINT = (
    "{agent} is waiting for a message. Send one with POST /api/sessions/{session}/messages. {questions}"
)
STATUS_HINT = "Follow it with GET /api/runs/{run} and GET /api/events."


class MessageRequest(Struct, frozen=True, kw_only=True):
    """A message to a session, and how to wait for the reply."""

    content: str
    wait: bool = True
    timeout_s: float = 300
    """Seconds to wait; 0 means the maximum."""
    idempotency_key: str = ""
    """Idempotency key: repeating the message with the same key sends it once."""


class MessageService:
    """Messages from programs."""

    def __init__(self, context: AppContext, runs: RunService, approvals: ApprovalService) -> None:
        self._context = context
        self._runs = runs
        self._approvals = approvals
        self._message_key_cache = dict[str, tuple[str, str]]()
        """Run id and text by key, for messages that resumed a waiting run."""

    async def send(self, ref: str, request: MessageRequest) -> tuple[Run, dict[str, Any]]:
        """Send a message to a session.

        Returns:
            The run that replies, and its report so far. A client that stops waiting does not stop the run.
        """
        _check_message(request)
        return await self._wait_and_report(
            await self._submit_message(await self._context.store.find_by_key(ref), request), request
        )

    async def send_to_agent(
        self,
        agent: str,
        request: MessageRequest,
        *,
        session: str,
        workspace: str | None = None,
        allow_home: bool = False,
    ) -> tuple[Run, dict[str, Any]]:
        """Send a message to an agent.

        Args:
            agent: The agent.
            request: The message.
            session: `latest`, `latest-or-create`, `create`, or one of the agent's own sessions.
            workspace: Folder for a new session.
            allow_home: Allow the user's home folder as that folder.

        Returns:
            The run that replies, and its report so far.
        """
        _check_message(request)
        self.check_agent_accessible(agent, workspace)
        async with self._context.session_locks.hold(f"agent {agent}"):
            target = await self._select_conversation(agent, session, request)
            if target is not None:
                run = await self._submit_message(target, request)
            else:
                key = f"{HTTP_KEY_PREFIX}{request.idempotency_key}" if request.idempotency_key else ""
                folder = resolve_workspace(workspace)
                policy = self._context.agents.get(agent, folder).agent.workspace
                check_home_allowed(folder, policy, is_named=workspace is not None, allow_home=allow_home)
                options = RunOptions(
                    agent=agent, workspace=folder, allow_home=True, key=key, entry_point=HTTP_ENTRY_POINT
                )
                run = await self._runs.start(request.content, options)
        return await self._wait_and_report(run, request)

    def check_agent_accessible(self, agent: str, workspace: str | None = None) -> None:
        """Check that clients may use an agent.

        Raises:
            NotFound: There is no such agent.
            Refused: The configuration denies it, or its definition hides it.
        """
        self._context.agents.ensure_general_agent()
        if not AGENT_NAME.fullmatch(agent):
            raise self._context.agents.not_found_error(agent)
        check_agent_allowed(agent, self._context.runtime)
        if not self._context.agents.get(agent, resolve_workspace(workspace)).agent.ui_visible:
            raise Refused(f"Agent not accessible: {agent}. Its definition sets `ui_visible: false`.")

    async def _select_conversation(
        self, agent: str, selector: str, request: MessageRequest
    ) -> Session | None:
        """Return the selected session, or None for a new one.

        A repeated idempotency key selects the session of the first message with that key.
        """
        key = f"{HTTP_KEY_PREFIX}{request.idempotency_key}"
        if request.idempotency_key and (
            earlier_run := await self._context.ledger.read(lambda tx: tx.get_run_by_key(key))
        ):
            if earlier_run.agent != agent:
                raise _key_conflict(request.idempotency_key, earlier_run)
            return await self._context.store.find(earlier_run.session_id)
        if selector == CREATE_SESSION:
            return None
        if selector in (LATEST_SESSION, LATEST_OR_CREATE_SESSION):
            sessions = await self._context.store.sessions(agent=agent, children=False)
            if not sessions and selector == LATEST_SESSION:
                raise NotFound(
                    f"No existing session for agent {agent}. Use `{LATEST_OR_CREATE_SESSION}` to start one."
                )
            return await self._context.store.find(sessions[0].path) if sessions else None
        try:
            session = await self._context.store.find_by_key(selector)
        except NotFound as error:
            raise NotFound(
                f"Session not found: {selector}. List sessions with `retinue sessions list`."
            ) from error
        if session.agent != agent:
            raise Conflict(
                f"Session does not belong to this agent: {session.slug} belongs to {session.agent}."
            )
        return session

    async def _wait_and_report(self, run: Run, request: MessageRequest) -> tuple[Run, dict[str, Any]]:
        seconds = float(self._context.runtime.limits.run_timeout_s(request.timeout_s))
        if request.wait and not await self._context.ledger.read(lambda tx: is_queued_behind(run, tx)):
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._wait_until_blocked(run)
        current = await self._runs.find(run.id)
        if current.is_pruned and current.status is Status.DONE and request.wait:
            return await self._report_pruned(current)
        report = await message_result(
            current, self._context.runtime, wait=request.wait, timeout_s=seconds, later_note=STATUS_HINT
        )
        reports_blockers = request.wait or current.status is Status.QUEUED
        return current, report | (await self._waiting_report(current) if reports_blockers else {})

    async def _report_pruned(self, run: Run) -> tuple[Run, dict[str, Any]]:
        """Report a pruned run that is done, with its response if the session's transcript still has it."""
        found = await find_transcript_texts(run, self._context.store)
        restored = replace(run, text=found.response or "", tool_calls=found.tool_calls)
        report = await message_result(restored, self._context.runtime, wait=True, timeout_s=0)
        if found.response is not None:
            return restored, report
        fields = {name: report[name] for name in ("agentId", "sessionId", "sessionName", "responseId")}
        error = {"code": RESPONSE_PRUNED, "message": RESPONSE_PRUNED_MESSAGE.format(run=run.id)}
        return restored, {"error": error, **fields}

    async def _submit_message(self, session: Session, request: MessageRequest) -> Run:
        async with self._context.session_locks.hold(session.id):
            key = f"{HTTP_KEY_PREFIX}{request.idempotency_key}" if request.idempotency_key else ""
            if key and (earlier := await self._find_earlier_message(session, key)):
                return self._check_same_message(*earlier, session, request)
            await self._discard_sent_draft(session, request.content)
            options = RunOptions(session=session.id, key=key, entry_point=HTTP_ENTRY_POINT)
            run = await self._runs.start(request.content, options)
            if not key or run.request.key == key:
                return self._check_same_message(run, run.request.task or "", session, request) if key else run
            if len(self._message_key_cache) >= MAX_CACHED_KEYS:
                self._message_key_cache.pop(next(iter(self._message_key_cache)))
            self._message_key_cache[key] = (run.id, self._context.redact(request.content))
            return run

    async def _find_earlier_message(self, session: Session, key: str) -> tuple[Run, str | None] | None:
        """Return the run and text of an earlier message with this key.

        The text of a pruned run is None if the transcript does not have it any more.
        A message that resumed a waiting run is found in the file by its entry id. An answer to a question is
        stored there without its key, so only this process remembers it.
        """
        if earlier_run := await self._context.ledger.read(lambda tx: tx.get_run_by_key(key)):
            if earlier_run.is_pruned:
                return earlier_run, (await find_transcript_texts(earlier_run, self._context.store)).task
            return earlier_run, earlier_run.request.task or ""
        if key in self._message_key_cache:
            run, text = self._message_key_cache[key]
            return await self._runs.find(run), text
        page = PageRequest(limit=1, around=keyed_entry_id(key), within_bytes=WINDOW_BYTES)
        with suppress(NotFound):
            for entry in await self._context.store.read_page(session, page):
                if isinstance(entry, Message):
                    return await self._runs.find(entry.run), entry.text
        return None

    def _check_same_message(
        self, run: Run, text: str | None, session: Session, request: MessageRequest
    ) -> Run:
        """Return the run if the key was used for the same message; otherwise raise Conflict.

        If the text of the earlier message is gone, any message with its key counts as the same.
        """
        if run.session_id == session.id and text in (None, self._context.redact(request.content)):
            return run
        raise _key_conflict(request.idempotency_key, run)

    async def _discard_sent_draft(self, session: Session, content: str) -> None:
        """Clear a saved draft that this message starts with, so that its text is not stored twice."""
        live = await self._context.ledger.read(
            lambda tx: tx.find_runs(status=LIVE_STATUSES, session=session.id)
        )
        draft = (
            ""
            if any(not run.waits_between_turns for run in live)
            else await self._context.store.read_draft(session)
        )
        if draft and content.strip().startswith(draft.strip()):
            await self._context.store.save_draft(session, "")

    async def _waiting_report(self, run: Run) -> dict[str, Any]:
        """Describe what a person must do for a waiting run, or for one that is queued behind a waiting run."""
        if not run.status.is_live:
            return {}
        questions = await self._runs.open_questions(run)
        if run.waiting_for is WaitReason.PERSON:
            question_texts = [each.text_with_options() for each in questions]
            sentences = " ".join(
                [*question_texts, "The run is waiting for you. Send a message to continue it."]
            )
            return {"status": "waiting", "response": run.text, "timeoutSeconds": None, "message": sentences}
        sentences = [
            APPROVAL_HINT.format(id=each.id, agent=each.agent, tool=each.tool)
            for each in await self._approvals.pending(run)
        ]
        for run_ahead in await self._context.ledger.read(partial(runs_ahead_of, run)):
            questions += await self._runs.open_questions(run_ahead)
        for waiting_run in await self._context.ledger.read(partial(_runs_awaiting_reply, run)):
            texts = [each.text_with_options() for each in questions if each.run_id == waiting_run.id]
            sentences.append(
                REPLY_HINT.format(
                    agent=waiting_run.agent, session=waiting_run.session_id, questions=" ".join(texts)
                ).strip()
            )
        return {"message": " ".join([*sentences, STATUS_HINT.format(run=run.id)])} if sentences else {}

    async def _wait_until_blocked(self, run: Run) -> None:
        """Wait until the run has ended, or cannot continue without a person.

        Another process may work on it or answer its questions meanwhile.
        """
        while True:
            await self._context.worker.wait(run.id)
            current = await self._runs.find(run.id)
            if current.status.is_final or (
                current.status is Status.WAITING and current.waiting_for is WaitReason.PERSON
            ):
                return
            if current.status is Status.WAITING and await self._waits_for_person(current):
                return
            await self._context.worker.wait_for_change()

    async def _waits_for_person(self, run: Run) -> bool:
        """Return whether nothing in its tree is active and a person can unblock it."""
        if await self._context.ledger.read(partial(is_tree_active, run.root_id)):
            return False
        return bool(
            await self._approvals.pending(run)
            or await self._context.ledger.read(partial(_runs_awaiting_reply, run))
        )


def _check_message(request: MessageRequest) -> None:
    if not request.content.strip():
        raise UsageError("The content is empty. Send a text.")
    if len(request.idempotency_key) > MAX_KEY_CHARS or not request.idempotency_key.isprintable():
        raise UsageError(f"The Idempotency-Key must have at most {MAX_KEY_CHARS} visible characters.")


def _key_conflict(key: str, run: Run) -> Conflict:
    return Conflict(f"The key {key!r} was already used for another message: run {run.id} in {run.slug}.")


def _runs_awaiting_reply(run: Run, tx: Transaction) -> list[Run]:
    """Return runs that wait for a person's reply, oldest first.

    These are in the run's tree, or in the tree of a run ahead of it.
    """
    roots = [each.root_id for each in (run, *runs_ahead_of(run, tx)) if each.root_id == each.id]
    waiting = [each for root in roots for each in reversed(tx.find_runs(status=[Status.WAITING], root=root))]
    return [each for each in waiting if each.waiting_for is WaitReason.PERSON and each.id != run.id]
