/** Messages that were sent and are not in the transcript yet. */

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

/** Forget messages that are in the transcript now. */
export function removeDelivered(savedEntries: ReadonlySet<string>): void {
  pendingMessages.value = pendingMessages.value.filter((message) => !(message.runId && savedEntries.has(message.runId)) && !isInTranscript(message));
}

/** Messages to show below the transcript, without those that are shown as queued runs. */
export function unsavedMessages(savedEntries: ReadonlySet<string>): PendingMessage[] {
  return pendingMessages.value.filter((message) => !savedEntries.has(message.runId) && !isQueuedBehindAnother(message) && !hasRunEnded(message));
}

/** True if its run is queued behind another one of this conversation. */
function isQueuedBehindAnother(message: PendingMessage): boolean {
  return runs.runsById.value.get(message.runId)?.status === "queued" && runs.sessionRuns(openSessionId.value ?? "").some((run) => run.id < message.runId && runs.isActive(run));
}

function hasRunEnded(message: PendingMessage): boolean {
  const run = runs.runsById.value.get(message.runId);
  return run !== undefined && !runs.isActive(run);
}

/** True if the message is in the transcript although the response to sending it has not arrived. */
function isInTranscript(message: PendingMessage): boolean {
  return !message.runId && transcriptItems.value.some((item) => item.kind === "message" && item.role === "user" && item.at >= message.sentAt && item.text.trim() === message.text.trim());
}
