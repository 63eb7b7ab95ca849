/** Words that stream in: of a turn that is under way, or saved and not fetched yet. A reply has its entry's id from the
 * first word on: what stands in the conversation is never shown here as well. */

import { signal } from "@preact/signals";
import * as runs from "./runs.ts";
import type { Told } from "./api-types.ts";

export interface Flow {
  run: string;
  entry: string;
  text: string;
  thinking: string;
  /** Its beginning was not heard here. */
  cut: boolean;
  /** All of it is in the file. */
  saved: boolean;
}

export const flows = signal<readonly Flow[]>([]);
/** What was thought before the words of an entry, by its id. */
export const thoughts = signal<ReadonlyMap<string, string>>(new Map());

/** Whether the beginning of a turn may have been missed: the stream was opened while one was under way. */
let joined = new Set<string>();

export function forget(): void {
  flows.value = [];
  thoughts.value = new Map();
}

/** A conversation was opened: the beginning of the turn that is under way was not heard. */
export function join(running: boolean): void {
  joined = new Set(running ? ["*"] : []);
}

export function flow(event: Told): void {
  const entry = event.entry ?? "";
  const known = flows.value.find((each) => each.entry === entry);
  const words = event.text ?? "";
  const text = event.kind === "text.delta" ? words : "";
  const thinking = event.kind === "thinking.delta" ? words : "";
  if (known) flows.value = flows.value.map((each) => (each === known ? { ...each, text: each.text + text, thinking: each.thinking + thinking } : each));
  else flows.value = [...flows.value, { run: event.run, entry, text, thinking, cut: joined.delete("*") || joined.delete(event.run), saved: false }];
}

export function save(event: Told): void {
  joined.delete("*");
  flows.value = flows.value.map((each) => (each.entry === event.entry ? { ...each, saved: true } : each));
}

/** Words that somebody takes back: they are said again. */
export function discard(run: string): void {
  flows.value = flows.value.filter((each) => each.run !== run || each.saved);
}

/** Words in flight when the connection was lost are incomplete: what is saved will tell. */
export function interrupted(): void {
  joined = new Set(runs.live.value.map((run) => run.id));
  flows.value = flows.value.filter((each) => each.saved);
}

/** What streamed in gives way to what was saved of it. */
export function settle(there: ReadonlySet<string>): void {
  const known = new Map(thoughts.value);
  for (const flow of flows.value) if (there.has(flow.entry) && flow.thinking) known.set(flow.entry, flow.thinking);
  thoughts.value = known;
  flows.value = visible(there);
}

/** Those that stand nowhere else. */
export function visible(there: ReadonlySet<string>): Flow[] {
  return flows.value.filter((flow) => !there.has(flow.entry) && !over(flow));
}

function over(flow: Flow): boolean {
  const run = runs.runs.value.get(flow.run);
  return !flow.saved && run !== undefined && !runs.isLive(run);
}
