/** Words that stream in: of a turn that is under way, or saved and not fetched yet. */

import { signal } from "@preact/signals";
import { lines } from "./entries.ts";
import * as runs from "./runs.ts";
import type { Told } from "./shapes.ts";

export interface Flow {
  run: string;
  text: string;
  thinking: string;
  /** Its beginning was not heard here. */
  cut: boolean;
  /** The reply of its run that was saved before it began; null: nobody knows. */
  after: string | null;
  savedAs: string;
}

export const flows = signal<readonly Flow[]>([]);
/** What was thought before the words of an entry, by its id. */
export const thoughts = signal<ReadonlyMap<string, string>>(new Map());

/** Whether the beginning of a turn may have been missed: the stream was opened while one was under way. */
let joined = new Set<string>();

/** The last reply of each run that the stream told to be saved. */
const saved = new Map<string, string>();

export function forget(): void {
  flows.value = [];
  thoughts.value = new Map();
  saved.clear();
}

/** A conversation was opened: the beginning of the turn that is under way was not heard. */
export function join(running: boolean): void {
  joined = new Set(running ? ["*"] : []);
}

export function flow(event: Told, ready: boolean): void {
  const at = flows.value.findIndex((each) => each.run === event.run && !each.savedAs);
  const words = event.text ?? "";
  const text = event.kind === "text.delta" ? words : "";
  const thinking = event.kind === "thinking.delta" ? words : "";
  if (at < 0) {
    const cut = joined.delete("*") || joined.delete(event.run);
    flows.value = [...flows.value, { run: event.run, text, thinking, cut, after: cut ? null : before(event.run, ready), savedAs: "" }];
    return;
  }
  flows.value = flows.value.map((each, i) => (i === at ? { ...each, text: each.text + text, thinking: each.thinking + thinking } : each));
}

/** The last reply of a run that is known to be saved. */
function before(run: string, ready: boolean): string | null {
  if (saved.has(run)) return saved.get(run)!;
  if (!ready) return null;
  return lines.value.findLast((line) => line.kind === "said" && line.by === "agent" && line.run === run)?.id ?? "";
}

export function save(event: Told): void {
  joined.delete("*");
  saved.set(event.run, event.entry ?? "");
  flows.value = flows.value.map((each) => (each.run === event.run && !each.savedAs ? { ...each, savedAs: event.entry ?? "" } : each));
}

/** Words that somebody takes back: they are said again. */
export function discard(run: string): void {
  flows.value = flows.value.filter((each) => each.run !== run || each.savedAs);
}

/** Words in flight when the connection was lost are incomplete: what is saved will tell. */
export function interrupted(): void {
  joined = new Set(runs.live.value.map((run) => run.id));
  saved.clear();
  flows.value = flows.value.filter((each) => each.savedAs);
}

/** What streamed in gives way to what was saved of it. */
export function settle(there: ReadonlySet<string>): void {
  const known = new Map(thoughts.value);
  for (const flow of flows.value) if (flow.savedAs && there.has(flow.savedAs) && flow.thinking) known.set(flow.savedAs, flow.thinking);
  thoughts.value = known;
  flows.value = flows.value.filter((flow) => !(flow.savedAs && there.has(flow.savedAs)) && !over(flow));
}

/** Those that stand nowhere else. */
export function visible(): Flow[] {
  return flows.value.filter((flow) => !over(flow) && !covered(flow));
}

function over(flow: Flow): boolean {
  const run = runs.runs.value.get(flow.run);
  return !flow.savedAs && run !== undefined && !runs.isLive(run);
}

/** It was fetched before the stream told that it was saved: it is shown once. */
function covered(flow: Flow): boolean {
  if (flow.after === null) return false;
  const all = lines.value;
  for (let i = all.length - 1; i >= 0; i--) {
    const line = all[i]!;
    if (line.id === flow.after) return false;
    if (line.kind === "said" && line.by === "agent" && line.run === flow.run) {
      return flow.after === "" || all.some((each) => each.id === flow.after);
    }
  }
  return false;
}
