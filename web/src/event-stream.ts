/** The one stream of events per tab: opened for the open conversation, taken up again where it was lost. */

import { batch } from "@preact/signals";
import { api, ApiError } from "./api.ts";
import { streamingReplies, discardIncomplete } from "./streaming-replies.ts";
import * as runs from "./runs.ts";
import { EVENT_KINDS, type ServerEvent } from "./api-types.ts";
import { sessionsById, connection, health, setUnreachableHandler, openSessionId, upsertSession, refreshApprovals, refreshInbox, refreshDaemonInfo, refreshSessions, showToast } from "./store.ts";
import * as conversation from "./conversation.ts";
import { applyEvent as applyWatcherEvent, refreshWatchers } from "./watchers.ts";

const HIDDEN_TAB_TIMEOUT_MS = 60_000;
/** How long a hidden tab keeps its stream. */
const MIN_RETRY_MS = 400;
const SHOW_LOST_AFTER_MS = 1_500;
const MAX_RETRY_MS = 8_000;
/** How long it waits before it tries again: at first, until it says so, at most. */

let eventSource: EventSource | null = null;
let subscribedTo = "";
let lastSeq = 0;
let retryDelayMs = MIN_RETRY_MS;
let retryTimer = 0;
let hiddenTimer = 0;
let missedEvents = false;

/** The stream for the words of the conversation that is open: the one there is, or one in its place. */
export function connectStream(): void {
  const sessionId = openSessionId.value ?? "none";
  if (eventSource && eventSource.readyState !== EventSource.CLOSED && subscribedTo === sessionId) return;
  clearTimeout(retryTimer);
  eventSource?.close();
  subscribedTo = sessionId;
  const query = new URLSearchParams({ deltas: sessionId });
  if (lastSeq) query.set("after", String(lastSeq));
  const opened = new EventSource(`/api/events?${query}`);
  eventSource = opened;
  opened.onopen = () => {
    if (opened === eventSource) onStreamOpen();
  };
  opened.onerror = () => {
    if (opened === eventSource) void recoverStream(opened);
  };
  for (const kind of EVENT_KINDS) opened.addEventListener(kind, (event) => queueEvent(JSON.parse((event as MessageEvent<string>).data) as ServerEvent));
}

/** What was saved before the stream began is asked for once more; after a loss, everything is. */
function onStreamOpen(): void {
  retryDelayMs = MIN_RETRY_MS;
  if (connection.value === "lost") showToast("The daemon answers again.");
  connection.value = "open";
  conversation.catchUpAfterConnect();
  if (missedEvents) {
    void refreshAll();
    void conversation.reloadConversation(); // its file may have been changed by hand meanwhile
  }
  missedEvents = false;
}

async function recoverStream(source: EventSource): Promise<void> {
  source.close();
  if (!missedEvents) discardIncomplete();
  missedEvents = true;
  await reconnect();
}

/** Tries until the daemon answers. One that knows of less than this page begins anew. */
async function reconnect(): Promise<void> {
  clearTimeout(retryTimer);
  try {
    const daemonHealth = await api.getHealth();
    lastSeq = Math.min(lastSeq, daemonHealth.seq);
    if (retryDelayMs > SHOW_LOST_AFTER_MS) connection.value = "lost";
    retryTimer = window.setTimeout(connectStream, retryDelayMs);
  } catch (error) {
    const unauthorized = error instanceof ApiError && error.status === 401;
    connection.value = unauthorized ? "barred" : "lost";
    if (!unauthorized) retryTimer = window.setTimeout(() => void reconnect(), retryDelayMs);
  }
  retryDelayMs = Math.min(MAX_RETRY_MS, retryDelayMs * 1.7);
}

/** After a gap: everything that is asked for, and the entries after the last known one. */
export async function refreshAll(): Promise<void> {
  await Promise.all([refreshDaemonInfo(), refreshSessions(), refreshApprovals(), refreshInbox(), refreshWatchers(), runs.refreshActiveRuns(), conversation.loadNewEntries()]);
}

const BATCH_MS = 16;
const LONG_REPLY_CHARS = 6_000;
/** Characters of a reply beyond which it is drawn less often. */
const LONG_REPLY_BATCH_MS = 120;
let eventQueue: ServerEvent[] = [];

/** Events come faster than a screen is drawn: those of one frame are heard together. */
function queueEvent(event: ServerEvent): void {
  if (eventQueue.push(event) > 1) return;
  const hasLongReply = streamingReplies.value.some((flow) => flow.text.length > LONG_REPLY_CHARS);
  setTimeout(() => {
    const events = eventQueue;
    eventQueue = [];
    batch(() => events.forEach(applyEvent));
  }, hasLongReply ? LONG_REPLY_BATCH_MS : BATCH_MS);
}

function applyEvent(event: ServerEvent): void {
  if (event.seq > lastSeq) lastSeq = event.seq;
  runs.applyEvent(event);
  conversation.applyEvent(event);
  applyWatcherEvent(event);
  if (event.kind.startsWith("approval.")) void refreshApprovals();
  if (event.kind.startsWith("announcement.")) void refreshInbox();
  if (event.kind === "run.ended") {
    void refreshInbox();
    void refreshApprovals();
  }
  if (event.kind.startsWith("run.") || event.kind === "session.changed") updateSessionStatus(event);
  if (event.kind === "run.queued" || event.kind === "run.ended" || event.kind === "session.changed") void refreshSessions();
}

/** What an event says of a conversation's row, before the list is asked for. */
function updateSessionStatus(event: ServerEvent): void {
  const row = sessionsById.value.get(event.session);
  if (!row) return;
  const run = runs.activeRunOf(event.session);
  upsertSession({ ...row, status: run ? (run.status as "queued" | "running" | "waiting") : "idle", waiting_for: run?.waitingFor || null, run: run?.id ?? null });
}

/** What is known has a number, and the stream tells all that comes after it: nothing falls between. */
export async function startStream(): Promise<void> {
  document.addEventListener("visibilitychange", onVisibilityChange);
  setUnreachableHandler(() => {
    if (eventSource && eventSource.readyState !== EventSource.CLOSED) void recoverStream(eventSource);
  });
  try {
    health.value = await api.getHealth();
    lastSeq = health.value.seq;
  } catch {
    missedEvents = true;
    await reconnect();
  }
}

function onVisibilityChange(): void {
  clearTimeout(hiddenTimer);
  if (document.hidden) hiddenTimer = window.setTimeout(pauseStream, HIDDEN_TAB_TIMEOUT_MS);
  else if (connection.value === "barred") void reconnect();
  else if (!eventSource) {
    missedEvents = true;
    connectStream();
  }
}

/** Nobody looks: the connection is given back. */
function pauseStream(): void {
  eventSource?.close();
  eventSource = null;
  discardIncomplete();
}
