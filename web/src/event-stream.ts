/** The event stream of this tab: one connection, reopened for the open conversation and after a loss. */

import { batch } from "@preact/signals";
import { api, ApiError } from "./api.ts";
import { discardIncomplete, streamingReplies } from "./streaming-replies.ts";
import * as runs from "./runs.ts";
import { EVENT_KINDS, type ServerEvent } from "./api-types.ts";
import { connection, health, openSessionId, refreshApprovals, refreshDaemonInfo, refreshInbox, refreshSessions, sessionsById, setUnreachableHandler, showToast, upsertSession } from "./store.ts";
import * as conversation from "./conversation.ts";
import { applyEvent as applyWatcherEvent, refreshWatchers } from "./watchers.ts";

/** How long a hidden tab keeps its connection. */
const HIDDEN_TAB_TIMEOUT_MS = 60_000;
/** Delays between attempts to reconnect: the first, the one after which the banner is shown, and the longest. */
const MIN_RETRY_MS = 400;
const SHOW_LOST_AFTER_MS = 1_500;
const MAX_RETRY_MS = 8_000;

let eventSource: EventSource | null = null;
let subscribedTo = "";
let lastSeq = 0;
let retryDelayMs = MIN_RETRY_MS;
let retryTimer = 0;
let hiddenTimer = 0;
let missedEvents = false;

/** Connect with text deltas of the open conversation, unless already connected that way. */
export function connectStream(): void {
  const sessionId = openSessionId.value ?? "none";
  if (eventSource && eventSource.readyState !== EventSource.CLOSED && subscribedTo === sessionId) return;
  clearTimeout(retryTimer);
  eventSource?.close();
  subscribedTo = sessionId;
  const query = new URLSearchParams({ deltas: sessionId });
  if (lastSeq) query.set("after", String(lastSeq));
  const source = new EventSource(`/api/events?${query}`);
  eventSource = source;
  source.onopen = () => {
    if (source === eventSource) onStreamOpen();
  };
  source.onerror = () => {
    if (source === eventSource) void recoverStream(source);
  };
  for (const kind of EVENT_KINDS) source.addEventListener(kind, (event) => queueEvent(JSON.parse((event as MessageEvent<string>).data) as ServerEvent));
}

/** Load what was saved before the stream opened; after a loss, everything. */
function onStreamOpen(): void {
  retryDelayMs = MIN_RETRY_MS;
  if (connection.value === "lost") showToast("The daemon is reachable again.");
  connection.value = "open";
  conversation.catchUpAfterConnect();
  if (missedEvents) {
    void refreshAll();
    void conversation.reloadConversation(); // the file may have been edited by hand meanwhile
  }
  missedEvents = false;
}

async function recoverStream(source: EventSource): Promise<void> {
  source.close();
  if (!missedEvents) discardIncomplete();
  missedEvents = true;
  await reconnect();
}

/** Retry until the daemon responds. A daemon with a lower sequence number was reset, so the page follows it. */
async function reconnect(): Promise<void> {
  clearTimeout(retryTimer);
  try {
    const daemonHealth = await api.getHealth();
    lastSeq = Math.min(lastSeq, daemonHealth.seq);
    if (retryDelayMs > SHOW_LOST_AFTER_MS) connection.value = "lost";
    retryTimer = window.setTimeout(connectStream, retryDelayMs);
  } catch (error) {
    const unauthorized = error instanceof ApiError && error.status === 401;
    connection.value = unauthorized ? "unauthorized" : "lost";
    if (!unauthorized) retryTimer = window.setTimeout(() => void reconnect(), retryDelayMs);
  }
  retryDelayMs = Math.min(MAX_RETRY_MS, retryDelayMs * 1.7);
}

/** Reload everything after a gap in the event stream. */
export async function refreshAll(): Promise<void> {
  await Promise.all([refreshDaemonInfo(), refreshSessions(), refreshApprovals(), refreshInbox(), refreshWatchers(), runs.refreshActiveRuns(), conversation.loadNewEntries()]);
}

const BATCH_MS = 16;
/** Length of a reply from which it is redrawn less often. */
const LONG_REPLY_CHARS = 6_000;
const LONG_REPLY_BATCH_MS = 120;
let eventQueue: ServerEvent[] = [];

/** Apply the events of one frame together: they arrive faster than the screen is drawn. */
function queueEvent(event: ServerEvent): void {
  if (eventQueue.push(event) > 1) return;
  const hasLongReply = streamingReplies.value.some((reply) => reply.text.length > LONG_REPLY_CHARS);
  setTimeout(() => {
    const events = eventQueue;
    eventQueue = [];
    batch(() => events.forEach(applyEvent));
  }, hasLongReply ? LONG_REPLY_BATCH_MS : BATCH_MS);
}

function applyEvent(event: ServerEvent): void {
  if (event.kind === "events.reset") {
    resetStream(event.seq);
    return;
  }
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

/** Reload everything: events that this page has missed are gone. */
function resetStream(seq: number): void {
  lastSeq = seq;
  discardIncomplete();
  void refreshAll();
  void conversation.reloadConversation();
}

/** Update the session's row from the event, before the session list is reloaded. */
function updateSessionStatus(event: ServerEvent): void {
  const row = sessionsById.value.get(event.session);
  if (!row) return;
  const run = runs.activeRunOf(event.session);
  upsertSession({ ...row, status: run ? (run.status as "queued" | "running" | "waiting") : "idle", waiting_for: run?.waitingFor || null, run: run?.id ?? null });
}

/** Start from the daemon's current sequence number, so that no event is missed between loading and streaming. */
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
  else if (connection.value === "unauthorized") void reconnect();
  else if (!eventSource) {
    missedEvents = true;
    connectStream();
  }
}

/** Close the connection of a hidden tab. */
function pauseStream(): void {
  eventSource?.close();
  eventSource = null;
  discardIncomplete();
}
