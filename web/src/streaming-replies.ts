/** Words that stream in: of a turn that is under way, or saved and not fetched yet. A reply has its entry's id from the
 * first word on: what stands in the conversation is never shown here as well. */

import { signal } from "@preact/signals";
import * as runs from "./runs.ts";
import type { ServerEvent } from "./api-types.ts";

export interface StreamingReply {
  run: string;
  entry: string;
  text: string;
  thinking: string;
  /** Its beginning was not heard here. */
  startMissed: boolean;
  /** All of it is in the file. */
  saved: boolean;
}

export const streamingReplies = signal<readonly StreamingReply[]>([]);
/** What was thought before the words of an entry, by its id. */
export const thinkingByEntry = signal<ReadonlyMap<string, string>>(new Map());

/** Whether the beginning of a turn may have been missed: the stream was opened while one was under way. */
let runsJoinedMidTurn = new Set<string>();

export function clear(): void {
  streamingReplies.value = [];
  thinkingByEntry.value = new Map();
}

/** A conversation was opened: the beginning of the turn that is under way was not heard. */
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

/** Words that somebody takes back: they are said again. */
export function discardUnsaved(run: string): void {
  streamingReplies.value = streamingReplies.value.filter((each) => each.run !== run || each.saved);
}

/** Words in flight when the connection was lost are incomplete: what is saved will tell. */
export function discardIncomplete(): void {
  runsJoinedMidTurn = new Set(runs.activeRuns.value.map((run) => run.id));
  streamingReplies.value = streamingReplies.value.filter((each) => each.saved);
}

/** What streamed in gives way to what was saved of it. */
export function removeSaved(savedEntries: ReadonlySet<string>): void {
  const thinking = new Map(thinkingByEntry.value);
  for (const reply of streamingReplies.value) if (savedEntries.has(reply.entry) && reply.thinking) thinking.set(reply.entry, reply.thinking);
  thinkingByEntry.value = thinking;
  streamingReplies.value = unsavedReplies(savedEntries);
}

/** Those that stand nowhere else. */
export function unsavedReplies(savedEntries: ReadonlySet<string>): StreamingReply[] {
  return streamingReplies.value.filter((reply) => !savedEntries.has(reply.entry) && !hasRunEnded(reply));
}

function hasRunEnded(reply: StreamingReply): boolean {
  const run = runs.runsById.value.get(reply.run);
  return !reply.saved && run !== undefined && !runs.isActive(run);
}
