/** What was sent and does not stand in the conversation yet. */

import { signal } from "@preact/signals";
import { lines } from "./transcript.ts";
import * as runs from "./runs.ts";
import { openId } from "./store.ts";

export interface Pending {
  key: string;
  text: string;
  run: string;
  at: string;
}

export const pending = signal<readonly Pending[]>([]);

/** What was said stands in the conversation, and no longer here. */
export function settle(there: ReadonlySet<string>): void {
  pending.value = pending.value.filter((sent) => !(sent.run && there.has(sent.run)) && !said(sent));
}

/** Those that stand nowhere else. */
export function visible(there: ReadonlySet<string>): Pending[] {
  return pending.value.filter((sent) => !there.has(sent.run) && !waits(sent) && !ended(sent));
}

/** Its run stands in the queue behind another of this conversation. */
function waits(sent: Pending): boolean {
  return runs.runs.value.get(sent.run)?.status === "queued" && runs.ofSession(openId.value ?? "").some((run) => run.id < sent.run && runs.isLive(run));
}

function ended(sent: Pending): boolean {
  const run = runs.runs.value.get(sent.run);
  return run !== undefined && !runs.isLive(run);
}

/** It stands in the conversation before the answer to its sending came. */
function said(sent: Pending): boolean {
  return !sent.run && lines.value.some((line) => line.kind === "said" && line.by === "user" && line.at >= sent.at && line.text.trim() === sent.text.trim());
}
