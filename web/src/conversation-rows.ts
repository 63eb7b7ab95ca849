/** The open conversation as rows of a list: what is saved, then what is still to come. */

import { computed, type ReadonlySignal } from "@preact/signals";
import { lines, results } from "./transcript.ts";
import * as flows from "./streaming-replies.ts";
import * as runs from "./runs.ts";
import * as sending from "./pending-messages.ts";
import type { Called, Notice, Returned, Said } from "./api-types.ts";
import { openId } from "./store.ts";

export type Item =
  | { key: string; is: "said"; said: Said; thinking: string; again: boolean }
  | { key: string; is: "call"; call: Called; result: Returned | null; first: boolean }
  | { key: string; is: "notice"; notice: Notice }
  | { key: string; is: "flow"; flow: flows.Flow; again: boolean }
  | { key: string; is: "pending"; pending: sending.Pending }
  | { key: string; is: "queued"; run: runs.Seen }
  | { key: string; is: "ended"; run: runs.Seen };

const FELL: ReadonlySet<string> = new Set(["failed", "timed_out", "lost", "cancelled"]);

/** Runs of this conversation that came to no good end. Others change all the time, and must not draw all of this anew. */
const fallen = stable(() => runs.ofSession(openId.value ?? "").filter((run) => FELL.has(run.status)), (run) => [run]);

/** Whom each entry belongs to, in order; what is still to come stands below. */
const body = computed<readonly Item[]>(() => {
  const found: Item[] = [];
  const all = lines.value;
  const ends = new Map(fallen.value.map((run) => [run.id, run]));
  /** The run whose agent spoke last: its name need not be said again. */
  let speaking = "";
  for (let i = 0; i < all.length; i++) {
    const line = all[i]!;
    if (line.kind === "called") {
      const first = found.at(-1)?.is !== "call";
      found.push({ key: `c${line.id}`, is: "call", call: line, result: results.value.get(line.id) ?? null, first });
    } else if (line.kind === "notice") {
      found.push({ key: `n${line.id}`, is: "notice", notice: line });
    } else {
      const thinking = flows.thoughts.value.get(line.id) ?? "";
      if (line.by === "user" || line.text.trim() || thinking || line.stop) {
        found.push({ key: `s${line.id}`, is: "said", said: line, thinking, again: line.by === "agent" && line.run === speaking });
        speaking = line.by === "agent" ? line.run : "";
      }
    }
    const run = ends.get(line.run);
    if (run && all[i + 1]?.run !== line.run) found.push({ key: `e${run.id}`, is: "ended", run });
  }
  return found;
});

/** What is not in the file yet: words that stream in, what was sent, what waits for its turn. */
const tail = stable<Item>(() => {
  const there = new Set(lines.value.map((line) => line.id));
  const speaking = body.value.findLast((item) => item.is === "said");
  const found: Item[] = flows.visible(there).map((flow) => (
    { key: `s${flow.entry}`, is: "flow", flow, again: speaking?.is === "said" && speaking.said.by === "agent" && flow.run === speaking.said.run }
  ));
  const sent = sending.visible(there);
  for (const each of sent) found.push({ key: `p${each.key}`, is: "pending", pending: each });
  const known = new Set([...there, ...sent.map((each) => each.run)]);
  for (const run of runs.ofSession(openId.value ?? "")) {
    if (known.has(run.id)) continue;
    if (run.status === "queued" && run.task) found.push({ key: `q${run.id}`, is: "queued", run });
    if (FELL.has(run.status) && run.status !== "cancelled" && isNew(run)) found.push({ key: `e${run.id}`, is: "ended", run });
  }
  return found;
}, (item) => [item.key, item.is === "flow" ? item.flow : item.is === "pending" ? item.pending : item.is === "queued" || item.is === "ended" ? item.run : null]);

export const items = computed<readonly Item[]>(() => [...body.value, ...tail.value]);

/** A list that stays the same one while its parts do. */
function stable<T>(list: () => T[], parts: (item: T) => unknown[]): ReadonlySignal<readonly T[]> {
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

/** A run that ended before it said anything is told of while it is the latest. */
function isNew(run: runs.Seen): boolean {
  return run.id > (lines.value.at(-1)?.run ?? "");
}
