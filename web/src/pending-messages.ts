/** What was sent and does not stand in the conversation yet. */

import { signal } from "@preact/signals";
import { transcriptItems } from "./transcript.ts";
import * as runs from "./runs.ts";
import { openSessionId } from "./store.ts";

export interface PendingMessage {
  key: string;
  text: string;
  runId: string;
  sentAt: string;
}

export const pendingMessages = signal<readonly PendingMessage[]>([]);

/** What was said stands in the conversation, and no longer here. */
export function removeDelivered(savedEntries: ReadonlySet<string>): void {
  pendingMessages.value = pendingMessages.value.filter((message) => !(message.runId && savedEntries.has(message.runId)) && !isInTranscript(message));
}

/** Those that stand nowhere else. */
export function unsavedMessages(savedEntries: ReadonlySet<string>): PendingMessage[] {
  return pendingMessages.value.filter((message) => !savedEntries.has(message.runId) && !isQueuedBehindAnother(message) && !hasRunEnded(message));
}

/** Its run stands in the queue behind another of this conversation. */
function isQueuedBehindAnother(message: PendingMessage): boolean {
  return runs.runsById.value.get(message.runId)?.status === "queued" && runs.sessionRuns(openSessionId.value ?? "").some((run) => run.id < message.runId && runs.isActive(run));
}

function hasRunEnded(message: PendingMessage): boolean {
  const run = runs.runsById.value.get(message.runId);
  return run !== undefined && !runs.isActive(run);
}

/** It stands in the conversation before the answer to its sending came. */
function isInTranscript(message: PendingMessage): boolean {
  return !message.runId && transcriptItems.value.some((item) => item.kind === "said" && item.by === "user" && item.at >= message.sentAt && item.text.trim() === message.text.trim());
}
