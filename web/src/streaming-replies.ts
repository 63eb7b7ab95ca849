/** Replies that are streaming, or saved but not loaded yet. A reply has the id of its entry from the first delta on, so
 * that a loaded reply is never shown twice. */

import { signal } from "@preact/signals";
import * as runs from "./runs.ts";
import type { ServerEvent } from "./api-types.ts";

export interface StreamingReply {
  run: string;
  entry: string;
  text: string;
  thinking: string;
  /** Streaming began before this page was connected. */
  startMissed: boolean;
  /** The whole reply is in the session's file. */
  saved: boolean;
}

export const streamingReplies = signal<readonly StreamingReply[]>([]);
/** Thinking text by entry id. */
export const thinkingByEntry = signal<ReadonlyMap<string, string>>(new Map());

/** Runs whose current turn began before the stream was open; `*` is any run of the open conversation. */
let runsJoinedMidTurn = new Set<string>();

export function clear(): void {
  streamingReplies.value = [];
  thinkingByEntry.value = new Map();
}

/** Note that a turn may be in progress whose beginning was not received. */
export function markTurnInProgress(isRunning: boolean): void {
  runsJoinedMidTurn = new Set(isRunning ? ["*"] : []);
}

export function appendDelta(event: ServerEvent): void {
  const entry = event.entry ?? "";
  const known = streamingReplies.value.find((each) => each.entry === entry);
  const delta = event.text ?? "";
  const text = event.kind === "text.delta" ? delta : "";
  const thinking = event.kind === "thinking.delta" ? delta : "";
  if (known) streamingReplies.value = streamingReplies.value.map((each) => (each === known ? { ...each, text: each.text + text, thinking: each.thinking + thinking } : each));
  else streamingReplies.value = [...streamingReplies.value, { run: event.run, entry, text, thinking, startMissed: runsJoinedMidTurn.delete("*") || runsJoinedMidTurn.delete(event.run), saved: false }];
}

export function markSaved(event: ServerEvent): void {
  runsJoinedMidTurn.delete("*");
  streamingReplies.value = streamingReplies.value.map((each) => (each.entry === event.entry ? { ...each, saved: true } : each));
}

/** Remove the unsaved text of a run: the request is repeated. */
export function discardUnsaved(run: string): void {
  streamingReplies.value = streamingReplies.value.filter((each) => each.run !== run || each.saved);
}

/** Remove replies that were cut off by a lost connection; the saved ones will be loaded. */
export function discardIncomplete(): void {
  runsJoinedMidTurn = new Set(runs.activeRuns.value.map((run) => run.id));
  streamingReplies.value = streamingReplies.value.filter((each) => each.saved);
}

/** Remove replies that are loaded now, and keep their thinking. */
export function removeSaved(savedEntries: ReadonlySet<string>): void {
  const thinking = new Map(thinkingByEntry.value);
  for (const reply of streamingReplies.value) if (savedEntries.has(reply.entry) && reply.thinking) thinking.set(reply.entry, reply.thinking);
  thinkingByEntry.value = thinking;
  streamingReplies.value = unsavedReplies(savedEntries);
}

/** Replies to show below the transcript, without those whose run ended before they were saved. */
export function unsavedReplies(savedEntries: ReadonlySet<string>): StreamingReply[] {
  return streamingReplies.value.filter((reply) => !savedEntries.has(reply.entry) && !hasRunEnded(reply));
}

function hasRunEnded(reply: StreamingReply): boolean {
  const run = runs.runsById.value.get(reply.run);
  return !reply.saved && run !== undefined && !runs.isActive(run);
}
