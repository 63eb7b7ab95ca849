/** The open conversation: load it from its end, keep it up to date, and send messages to it. */

import { batch, signal } from "@preact/signals";
import { api, ApiError } from "./api.ts";
import * as transcript from "./transcript.ts";
import { isStartLoaded, PAGE_SIZE, resultsByCall, transcriptItems } from "./transcript.ts";
import * as streaming from "./streaming-replies.ts";
import * as runs from "./runs.ts";
import { type PendingMessage, pendingMessages, removeDelivered as removeDeliveredMessages } from "./pending-messages.ts";
import type { ServerEvent, TranscriptEntry } from "./api-types.ts";
import { coalesceCalls, loadedSession, openSessionId, reportError, sessionsById, tryOrReport } from "./store.ts";

export const loadState = signal<"none" | "loading" | "ready" | "gone">("none");
export const isLoadingOlder = signal(false);

export function closeConversation(): void {
  batch(() => {
    transcript.clear();
    streaming.clear();
    pendingMessages.value = [];
    isLoadingOlder.value = false;
    loadedSession.value = null;
    loadState.value = "none";
  });
}

let connectedWhileLoading = false;

/** Load entries that may have been saved just before the event stream opened. */
export function catchUpAfterConnect(): void {
  if (loadState.value === "ready") void loadNewEntries();
  else connectedWhileLoading = true;
}

/** Load a conversation from its end. The event stream is already open, so no entry is missed. */
export async function loadConversation(id: string): Promise<void> {
  const known = loadedSession.value?.session_id === id ? loadedSession.value : (sessionsById.value.get(id) ?? null);
  closeConversation();
  loadedSession.value = known;
  connectedWhileLoading = false;
  loadState.value = "loading";
  try {
    const [session, newest] = await Promise.all([api.getSession(id), api.listEntries(id, { limit: PAGE_SIZE })]);
    if (openSessionId.value !== id) return;
    streaming.markTurnInProgress(session.status === "running");
    batch(() => {
      loadedSession.value = session;
      replaceEntries(newest, PAGE_SIZE);
      loadState.value = "ready";
    });
    if (connectedWhileLoading) void loadNewEntries();
    connectedWhileLoading = false;
    await runs.loadSessionRuns(id);
  } catch (error) {
    if (openSessionId.value !== id) return;
    loadState.value = "gone";
    if (!(error instanceof ApiError && error.status === 404)) reportError(error);
  }
}

function replaceEntries(entries: readonly TranscriptEntry[], limit: number): void {
  transcript.replaceAll(entries, limit);
  removeSavedDuplicates();
}

function mergeEntries(entries: readonly TranscriptEntry[]): void {
  batch(() => {
    transcript.mergeEntries(entries);
    removeSavedDuplicates();
  });
}

/** Remove streaming replies and sent messages that are saved by now. */
function removeSavedDuplicates(): void {
  const savedEntries = new Set(transcriptItems.value.map((item) => item.id));
  streaming.removeSaved(savedEntries);
  removeDeliveredMessages(savedEntries);
}

export const loadNewEntries = coalesceCalls(async () => {
  const id = openSessionId.value;
  if (!id || loadState.value !== "ready") return;
  const after = transcript.lastSettledId();
  if (!after) return reloadConversation();
  try {
    const entries = await api.listEntries(id, { after });
    if (openSessionId.value === id) mergeEntries(entries);
  } catch (error) {
    if (error instanceof ApiError && (error.status === 404 || error.status === 400)) return reloadConversation();
    throw error;
  }
}, 60);

/** Load as many entries as were shown again, after the file was edited by hand or cleared. */
export const reloadConversation = coalesceCalls(async () => {
  const id = openSessionId.value;
  if (!id) return;
  const limit = Math.max(PAGE_SIZE, transcriptItems.value.length + resultsByCall.value.size);
  try {
    const [session, entries] = await Promise.all([api.getSession(id), api.listEntries(id, { limit })]);
    if (openSessionId.value !== id) return;
    batch(() => {
      loadedSession.value = session;
      loadState.value = "ready";
      replaceEntries(entries, limit);
    });
  } catch (error) {
    if (!(error instanceof ApiError && error.status === 404)) throw error;
    if (openSessionId.value === id) loadState.value = "gone";
  }
});

export async function loadOlder(limit = PAGE_SIZE): Promise<boolean> {
  const id = openSessionId.value;
  const before = transcriptItems.value[0]?.id;
  if (!id || !before || isStartLoaded.value || isLoadingOlder.value) return false;
  isLoadingOlder.value = true;
  const page = await tryOrReport(() => api.listEntries(id, { limit, before }));
  if (openSessionId.value !== id) return false;
  batch(() => {
    isLoadingOlder.value = false;
    if (page) transcript.prependPage(page, limit);
  });
  return page !== null;
}

const MAX_PAGE_SIZE = 1000;

/** Load everything up to the beginning. Return false if that failed or another conversation was opened. */
export async function loadToStart(): Promise<boolean> {
  const id = openSessionId.value;
  while (isLoadingOlder.value && openSessionId.value === id) await new Promise((resolve) => setTimeout(resolve, 20));
  while (!isStartLoaded.value && openSessionId.value === id) if (!(await loadOlder(MAX_PAGE_SIZE))) return false;
  return openSessionId.value === id;
}

export function applyEvent(event: ServerEvent): void {
  if (event.session !== openSessionId.value) return;
  switch (event.kind) {
    case "text.delta":
    case "thinking.delta":
      streaming.appendDelta(event);
      break;
    case "text.discarded":
      streaming.discardUnsaved(event.run);
      break;
    case "entry.saved":
      if (event.entry_kind === "agent") streaming.markSaved(event);
      void loadNewEntries();
      break;
    case "run.started":
    case "announcement.delivered":
      void loadNewEntries();
      break;
    case "run.ended":
      void loadNewEntries().then(removeSavedDuplicates);
      break;
    case "session.changed":
      void reloadConversation();
      break;
    default:
  }
}

/** Send to the conversation in which the text was typed, even if another one is open by now. */
export async function sendMessage(id: string, text: string): Promise<boolean> {
  const key = [...crypto.getRandomValues(new Uint32Array(4))].join("-");
  const message: PendingMessage = { key, text, runId: "", sentAt: `${new Date(Date.now() - 1000).toISOString().slice(0, 19)}Z` };
  if (openSessionId.value === id) pendingMessages.value = [...pendingMessages.value, message];
  try {
    const response = await api.sendMessage(id, text, key);
    pendingMessages.value = pendingMessages.value.map((each) => (each.key === key ? { ...each, runId: response.responseId } : each));
    removeSavedDuplicates();
    void loadNewEntries();
    return true;
  } catch (error) {
    pendingMessages.value = pendingMessages.value.filter((each) => each.key !== key);
    reportError(error);
    return false;
  }
}
