/** The open conversation as rows of a list: saved entries first, then what is not saved yet. */

import { computed, type ReadonlySignal } from "@preact/signals";
import { resultsByCall, transcriptItems } from "./transcript.ts";
import * as streaming from "./streaming-replies.ts";
import * as runs from "./runs.ts";
import * as pendingMessages from "./pending-messages.ts";
import type { Message, Notice, ToolCall, ToolResult } from "./api-types.ts";
import { openSessionId } from "./store.ts";

export type ConversationRow =
  | { key: string; kind: "message"; message: Message; thinking: string; sameSpeaker: boolean }
  | { key: string; kind: "toolCall"; call: ToolCall; result: ToolResult | null; isFirst: boolean }
  | { key: string; kind: "notice"; notice: Notice }
  | { key: string; kind: "streaming"; reply: streaming.StreamingReply; sameSpeaker: boolean }
  | { key: string; kind: "pending"; pending: pendingMessages.PendingMessage }
  | { key: string; kind: "queued"; run: runs.RunView }
  | { key: string; kind: "runEnded"; run: runs.RunView };

const UNSUCCESSFUL: ReadonlySet<string> = new Set(["failed", "timed_out", "lost", "cancelled"]);

/** Unsuccessful runs of this conversation. Memoized: other runs change often and must not redraw the list. */
const unsuccessfulRuns = memoizedList(() => runs.sessionRuns(openSessionId.value ?? "").filter((run) => UNSUCCESSFUL.has(run.status)), (run) => [run]);

/** Rows for the saved entries, in order, with the end of each unsuccessful run. */
const savedRows = computed<readonly ConversationRow[]>(() => {
  const rows: ConversationRow[] = [];
  const items = transcriptItems.value;
  const endedRuns = new Map(unsuccessfulRuns.value.map((run) => [run.id, run]));
  /** The run of the previous agent message, whose name need not be repeated. */
  let speakingRun = "";
  for (let i = 0; i < items.length; i++) {
    const item = items[i]!;
    if (item.kind === "tool_call") {
      const first = rows.at(-1)?.kind !== "toolCall";
      rows.push({ key: `c${item.id}`, kind: "toolCall", call: item, result: resultsByCall.value.get(item.id) ?? null, isFirst: first });
    } else if (item.kind === "notice") {
      rows.push({ key: `n${item.id}`, kind: "notice", notice: item });
    } else {
      const thinking = streaming.thinkingByEntry.value.get(item.id) ?? "";
      if (item.role === "user" || item.text.trim() || thinking || item.stop_reason) {
        rows.push({ key: `s${item.id}`, kind: "message", message: item, thinking, sameSpeaker: item.role === "agent" && item.run === speakingRun });
        speakingRun = item.role === "agent" ? item.run : "";
      }
    }
    const run = endedRuns.get(item.run);
    if (run && items[i + 1]?.run !== item.run) rows.push({ key: `e${run.id}`, kind: "runEnded", run });
  }
  return rows;
});

/** Rows for what is not in the transcript yet: streaming replies, sent messages and queued runs. */
const unsavedRows = memoizedList<ConversationRow>(() => {
  const savedEntries = new Set(transcriptItems.value.map((row) => row.id));
  const lastMessage = savedRows.value.findLast((row) => row.kind === "message");
  const rows: ConversationRow[] = streaming.unsavedReplies(savedEntries).map((reply) => (
    { key: `s${reply.entry}`, kind: "streaming", reply, sameSpeaker: lastMessage?.kind === "message" && lastMessage.message.role === "agent" && reply.run === lastMessage.message.run }
  ));
  const messages = pendingMessages.unsavedMessages(savedEntries);
  for (const each of messages) rows.push({ key: `p${each.key}`, kind: "pending", pending: each });
  const knownRuns = new Set([...savedEntries, ...messages.map((each) => each.runId)]);
  for (const run of runs.sessionRuns(openSessionId.value ?? "")) {
    if (knownRuns.has(run.id)) continue;
    if (run.status === "queued" && run.task) rows.push({ key: `q${run.id}`, kind: "queued", run });
    if (UNSUCCESSFUL.has(run.status) && run.status !== "cancelled" && isAfterTranscript(run)) rows.push({ key: `e${run.id}`, kind: "runEnded", run });
  }
  return rows;
}, (row) => [row.key, row.kind === "streaming" ? row.reply : row.kind === "pending" ? row.pending : row.kind === "queued" || row.kind === "runEnded" ? row.run : null]);

export const conversationRows = computed<readonly ConversationRow[]>(() => [...savedRows.value, ...unsavedRows.value]);

/** A computed list that keeps its identity while its parts are equal. */
function memoizedList<T>(list: () => T[], parts: (item: T) => unknown[]): ReadonlySignal<readonly T[]> {
  let last: readonly T[] = [];
  const same = (a: T, b: T): boolean => {
    const other = parts(b);
    return parts(a).every((part, i) => part === other[i]);
  };
  return computed(() => {
    const next = list();
    if (next.length !== last.length || next.some((item, i) => !same(item, last[i]!))) last = next;
    return last;
  });
}

/** A run that failed before its first entry is shown only while it is the latest. */
function isAfterTranscript(run: runs.RunView): boolean {
  return run.id > (transcriptItems.value.at(-1)?.run ?? "");
}
