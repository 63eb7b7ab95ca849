/** The open conversation: its header, its rows and the composer. */

import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { useCallback, useRef } from "preact/hooks";
import { controlRun, renameSession, showHome, showSession, togglePin } from "../actions.ts";
import { isStartLoaded } from "../transcript.ts";
import { agentHueStyle } from "../agent-colour.ts";
import { activeRunOf, canResume, type RunView, waitLabel } from "../runs.ts";
import type { Session } from "../api-types.ts";
import { connection, dialog, editingName, openSession, openSessionId, sessionsById } from "../store.ts";
import { streamingReplies } from "../streaming-replies.ts";
import { type ConversationRow, conversationRows } from "../conversation-rows.ts";
import * as conversation from "../conversation.ts";
import { sessionTitle } from "../format.ts";
import { Composer } from "./composer.tsx";
import { AgentIcon, Icon } from "./icons.tsx";
import { CopyButton, Menu, PlainText } from "./widgets.tsx";
import { VirtualList } from "./virtual-list.tsx";
import { AgentSwitcher } from "./agent-switcher.tsx";
import { ToolCallView } from "./tool-call.tsx";
import { InterjectionList, watcherMenuItems } from "./watchers.tsx";
import { MessageView, NoticeView, PendingMessageView, QueuedMessage, RunEndNotice, StreamingMessage } from "./messages.tsx";
import { agentName } from "../agent-title.ts";

export function Conversation(): JSX.Element {
  const session = openSession.value;
  if (conversation.loadState.value === "gone") return <ConversationNotFound />;
  if (!session) return <LoadingConversation />;
  return (
    <main class="main" id="main" style={agentHueStyle(session.agent)}>
      <ConversationHeader session={session} />
      <ConversationLog session={session} />
      <InterjectionList session={session} />
      <Composer session={session} />
    </main>
  );
}

export function LoadingConversation(): JSX.Element {
  return <main class="main" id="main"><p class="muted centered loading">Opening…</p></main>;
}

function ConversationNotFound(): JSX.Element {
  return (
    <main class="main" id="main">
      <div class="empty" data-test="gone">
        <h1>Conversation not found</h1>
        <p>It was deleted, or the address is wrong. Choose another one in the list of sessions.</p>
        <button type="button" class="button" onClick={() => showHome()}>New conversation</button>
      </div>
    </main>
  );
}

function ConversationHeader({ session }: { session: Session }): JSX.Element {
  const parent = session.parent ? sessionsById.value.get(session.parent) : undefined;
  return (
    <header class="head">
      <AgentSwitcher />
      <div class="head-title">
        {parent && <button type="button" class="link parent-link" onClick={() => showSession(parent.session_id)} data-test="parent" title="Open the parent conversation">{sessionTitle(parent)} /</button>}
        {editingName.value === `head ${session.session_id}` ? <SessionNameInput session={session} /> : (
          <h1 title={session.slug} data-test="title" onDblClick={() => (editingName.value = `head ${session.session_id}`)}>{sessionTitle(session)}{session.branch !== "main" && <span class="muted"> /{session.branch}</span>}</h1>
        )}
        <TranscriptPath session={session} />
      </div>
      <Menu
        label="Conversation menu" icon="more" testId="session-menu-open"
        items={[
          { label: "Rename", icon: "pencil", onSelect: () => (editingName.value = `head ${session.session_id}`), testId: "rename" },
          { label: session.pinned_at ? "Unpin" : "Pin", icon: "pin", onSelect: () => void togglePin(session), testId: "pin" },
          ...watcherMenuItems(session),
          { label: "Clear", icon: "eraser", onSelect: () => (dialog.value = { kind: "clear", session }), testId: "clear" },
          { label: "Delete", icon: "trash", onSelect: () => (dialog.value = { kind: "delete", session }), isDestructive: true, testId: "delete" },
        ]}
      />
    </header>
  );
}

function TranscriptPath({ session }: { session: Session }): JSX.Element {
  return (
    <span class="path" data-test="path">
      <Icon name="file" size={12} />
      <span title={session.path}><bdi>{session.path}</bdi></span>
      <CopyButton text={session.path} what="the file's path" />
    </span>
  );
}

export function SessionNameInput({ session }: { session: Session }): JSX.Element {
  const saveName = (event: Event): void => {
    const name = (event.currentTarget as HTMLInputElement).value.trim();
    if (!editingName.value) return;
    editingName.value = null;
    void renameSession(session, name);
  };
  const onKeyDown = (event: KeyboardEvent): void => {
    if (event.key === "Enter") saveName(event);
    if (event.key === "Escape") editingName.value = null;
    event.stopPropagation();
  };
  const focusAndSelect = useCallback((input: HTMLInputElement | null) => {
    input?.focus();
    input?.select();
  }, []);
  return <input class="name" ref={focusAndSelect} aria-label="Name" data-test="name" defaultValue={session.name ?? ""} placeholder={session.slug} onKeyDown={onKeyDown} onBlur={saveName} maxLength={200} />;
}

/** The jump button is not worth showing for fewer rows. */
const MIN_ROWS_FOR_JUMP = 12;

function ConversationLog({ session }: { session: Session }): JSX.Element {
  const scrollToEnd = useRef<(() => void) | null>(null);
  const scrollToStart = useRef<(() => void) | null>(null);
  const isJumping = useSignal(false);
  /** Load everything first: older rows are inserted above, so the jump must come last. */
  const jumpToStart = async (): Promise<void> => {
    isJumping.value = true;
    if (await conversation.loadToStart()) requestAnimationFrame(() => scrollToStart.current?.());
    isJumping.value = false;
  };
  const isAtEnd = useSignal(true);
  const isAtTop = useSignal(true);
  const onPosition = (end: boolean, start: boolean): void => {
    isAtEnd.value = end;
    isAtTop.value = start;
  };
  const rows = conversationRows.value;
  const run = activeRunOf(session.session_id);
  const after = <><FileProblems session={session} />{run ? <RunStatusLine run={run} /> : <div class="run-status" />}</>;
  const before = isStartLoaded.value ? <ConversationStart session={session} count={rows.length} /> : <p class="muted centered earlier">{conversation.isLoadingOlder.value || !rows.length ? "Loading…" : "Earlier"}</p>;
  return (
    <div class="conversation-log">
      <VirtualList
        items={rows} keyOf={rowKey} estimateHeight={estimateHeight} renderRow={renderRow} onNearTop={() => void conversation.loadOlder()} listId={openSessionId.value ?? ""}
        label={`Conversation with ${agentName(session.agent)}`} isBusy={streamingReplies.value.length > 0} scrollToEnd={scrollToEnd} scrollToStart={scrollToStart} onPosition={onPosition}
        before={before} after={after}
      />
      <div class="jumps">
        {!(isAtTop.value && isStartLoaded.value) && (rows.length > MIN_ROWS_FOR_JUMP || !isStartLoaded.value) && <button type="button" class="jump to-start" data-test="to-start" disabled={isJumping.value} onClick={() => void jumpToStart()} aria-label="Go to the beginning" title="Go to the beginning (g)"><Icon name="start" /></button>}
        {!isAtEnd.value && <button type="button" class="jump to-end" data-test="to-end" onClick={() => scrollToEnd.current?.()} aria-label="Go to the end" title="Go to the end (G)"><Icon name="end" /></button>}
      </div>
    </div>
  );
}

function ConversationStart({ session, count }: { session: Session; count: number }): JSX.Element | null {
  if (conversation.loadState.value !== "ready") return null;
  if (count) return <p class="muted centered earlier">Started {new Date(session.created_at).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" })}</p>;
  if (session.problems?.length) return null;
  return (
    <div class="empty small" data-test="empty-conversation">
      <AgentIcon agent={session.agent} size={22} />
      <h2>No messages yet</h2>
      <p>Type a task for {agentName(session.agent)} below. It works in <code>{session.workspace?.root ?? "its folder"}</code>{session.workspace?.writable ? "" : ", which is read-only"}.</p>
      <p class="muted">The conversation is a Markdown file that you can read and edit. Its path is shown above.</p>
    </div>
  );
}

/** What is wrong with the conversation's files, below the last entry that can be read. */
function FileProblems({ session }: { session: Session }): JSX.Element {
  return <>{session.problems?.map((problem) => <div key={problem} class="run-ended" data-test="file-problem" role="note"><Icon name="alert" size={14} /><span><PlainText text={problem} /></span></div>)}</>;
}

/** What the run is doing now, below the last row. */
function RunStatusLine({ run }: { run: RunView }): JSX.Element {
  const lastCall = [...run.activeCalls.values()].at(-1);
  const isStreaming = streamingReplies.value.some((reply) => reply.run === run.id && reply.text);
  if (isStreaming && !lastCall) return <div class="run-status" />;
  if (connection.value === "lost") return <div class="run-status" data-test="now"><span class="dot waiting" aria-hidden="true" /><span>Waiting for the daemon…</span></div>;
  const label = run.status === "waiting" ? `Waiting ${waitLabel(run)}` : run.status === "queued" ? "Queued" : run.note || (lastCall ? "Calling tools" : "Thinking");
  return <div class="run-status" data-test="now"><span class={run.status === "running" ? "spinner" : `dot ${run.status}`} aria-hidden="true" /><span>{label}{canResume(run) && run.error ? `: ${run.error}` : "…"}</span>{canResume(run) && <button type="button" class="link" data-test="resume" onClick={() => void controlRun(run.id, "resume")}>Resume now</button>}</div>;
}

const rowKey = (row: ConversationRow): string => row.key;

/** The approximate height of a row before it is measured. */
function estimateHeight(row: ConversationRow): number {
  if (row.kind === "message") return 46 + Math.ceil(row.message.text.length / 80) * 22 + (row.message.text.match(/\n/g)?.length ?? 0) * 12;
  return row.kind === "toolCall" ? 32 : row.kind === "streaming" ? 120 : 60;
}

function renderRow(row: ConversationRow): JSX.Element {
  switch (row.kind) {
    case "message": return <MessageView message={row.message} thinking={row.thinking} sameSpeaker={row.sameSpeaker} />;
    case "toolCall": return <ToolCallView call={row.call} result={row.result} isFirst={row.isFirst} />;
    case "notice": return <NoticeView notice={row.notice} />;
    case "streaming": return <StreamingMessage reply={row.reply} sameSpeaker={row.sameSpeaker} />;
    case "pending": return <PendingMessageView message={row.pending} />;
    case "queued": return <QueuedMessage run={row.run} />;
    case "runEnded": return <RunEndNotice run={row.run} />;
  }
}
