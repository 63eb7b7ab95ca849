/** The loaded entries of the open conversation, in order, and the results of its tool calls. */

import { batch, signal } from "@preact/signals";
import type { Message, Notice, ToolCall, ToolResult, TranscriptEntry } from "./api-types.ts";

export const PAGE_SIZE = 100;

export type TranscriptItem = Message | ToolCall | Notice;

export const transcriptItems = signal<readonly TranscriptItem[]>([]);
export const resultsByCall = signal<ReadonlyMap<string, ToolResult>>(new Map());
export const isStartLoaded = signal(false);

export function clear(): void {
  transcriptItems.value = [];
  resultsByCall.value = new Map();
  isStartLoaded.value = false;
}

export function replaceAll(entries: readonly TranscriptEntry[], limit: number): void {
  transcriptItems.value = entries.filter((each): each is TranscriptItem => each.kind !== "tool_result");
  resultsByCall.value = new Map(entries.filter((each) => each.kind === "tool_result").map((each) => [each.call_id, each]));
  isStartLoaded.value = entries.length < limit;
}

/** Replace entries that are known by id, and append new ones. */
export function mergeEntries(entries: readonly TranscriptEntry[]): void {
  const indexByKey = new Map(transcriptItems.value.map((item, i) => [item.kind + item.id, i]));
  const next = [...transcriptItems.value];
  const results = new Map(resultsByCall.value);
  for (const entry of entries) {
    if (entry.kind === "tool_result") {
      results.set(entry.call_id, entry);
      continue;
    }
    const index = indexByKey.get(entry.kind + entry.id);
    if (index === undefined) indexByKey.set(entry.kind + entry.id, next.push(entry) - 1);
    else next[index] = entry;
  }
  batch(() => {
    transcriptItems.value = next;
    resultsByCall.value = results;
  });
}

export function prependPage(page: readonly TranscriptEntry[], limit = PAGE_SIZE): void {
  const known = new Set(transcriptItems.value.map((item) => item.kind + item.id));
  const results = new Map(resultsByCall.value);
  const older: TranscriptItem[] = [];
  for (const entry of page) {
    if (entry.kind === "tool_result") results.set(entry.call_id, entry);
    else if (!known.has(entry.kind + entry.id)) older.push(entry);
  }
  isStartLoaded.value = page.length < limit || older.length === 0;
  resultsByCall.value = results;
  transcriptItems.value = [...older, ...transcriptItems.value];
}

/** The last entry that is not a tool call; all entries after it may still change. */
export function lastSettledId(): string | null {
  return transcriptItems.value.findLast((item) => item.kind !== "tool_call")?.id ?? null;
}

/** The id of the first user message after an entry, or null. */
export function nextUserMessageId(id: string): string | null {
  const index = transcriptItems.value.findIndex((item) => item.id === id);
  return transcriptItems.value.slice(index + 1).find((item) => item.kind === "message" && item.role === "user")?.id ?? null;
}
