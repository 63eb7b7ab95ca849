/** The open conversation: its entries in pages, what streams in beyond them, and what was sent and is not there yet. */

import { batch, computed, signal, type ReadonlySignal } from "@preact/signals";
import { api, Refusal } from "./api.ts";
import * as runs from "./runs.ts";
import type { Called, Entry, Notice, Returned, Said, Told } from "./shapes.ts";
import { attempt, byId, complain, openId, shown, single } from "./store.ts";

export const PAGE = 100;

export type Line = Said | Called | Notice;

/** Words that stream in: of a turn that is under way, or saved and not fetched yet. */
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

export interface Pending {
  key: string;
  text: string;
  run: string;
  at: string;
}

export type Item =
  | { key: string; is: "said"; said: Said; thinking: string; again: boolean }
  | { key: string; is: "call"; call: Called; result: Returned | null; first: boolean }
  | { key: string; is: "notice"; notice: Notice }
  | { key: string; is: "flow"; flow: Flow; again: boolean }
  | { key: string; is: "pending"; pending: Pending }
  | { key: string; is: "queued"; run: runs.Seen }
  | { key: string; is: "ended"; run: runs.Seen };

export const lines = signal<readonly Line[]>([]);
export const results = signal<ReadonlyMap<string, Returned>>(new Map());
export const flows = signal<readonly Flow[]>([]);
export const pending = signal<readonly Pending[]>([]);
export const state = signal<"none" | "loading" | "ready" | "gone">("none");
export const atStart = signal(false);
export const older = signal(false);
const thoughts = signal<ReadonlyMap<string, string>>(new Map());
/** Whether the beginning of a turn may have been missed: the stream was opened while one was under way. */
let joined = new Set<string>();

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
      const thinking = thoughts.value.get(line.id) ?? "";
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
  const found: Item[] = flows.value.filter((flow) => !over(flow) && !covered(flow)).map((flow) => (
    { key: `f${flow.run}${flow.savedAs}`, is: "flow", flow, again: speaking?.is === "said" && speaking.said.by === "agent" && flow.run === speaking.said.run }
  ));
  const sending = pending.value.filter((sent) => !there.has(sent.run) && !waits(sent) && !ended(sent));
  for (const sent of sending) found.push({ key: `p${sent.key}`, is: "pending", pending: sent });
  const known = new Set([...there, ...sending.map((sent) => sent.run)]);
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

/** Its run stands in the queue behind another of this conversation. */
function waits(sent: Pending): boolean {
  return runs.runs.value.get(sent.run)?.status === "queued" && runs.ofSession(openId.value ?? "").some((run) => run.id < sent.run && runs.isLive(run));
}

function ended(sent: Pending): boolean {
  const run = runs.runs.value.get(sent.run);
  return run !== undefined && !runs.isLive(run);
}

/** A run that ended before it said anything is told of while it is the latest. */
function isNew(run: runs.Seen): boolean {
  return run.id > (lines.value.at(-1)?.run ?? "");
}

export function clear(): void {
  batch(() => {
    lines.value = [];
    results.value = new Map();
    flows.value = [];
    pending.value = [];
    thoughts.value = new Map();
    saved.clear();
    atStart.value = false;
    older.value = false;
    shown.value = null;
    state.value = "none";
  });
}

let reopened = false;

/** From now on everything is heard; what was saved a moment before may have been missed. */
export function listening(): void {
  if (state.value === "ready") void catchUp();
  else reopened = true;
}

/** Reads a conversation from its end. The stream is open already, so nothing falls between. */
export async function load(id: string): Promise<void> {
  const known = shown.value?.session_id === id ? shown.value : (byId.value.get(id) ?? null);
  clear();
  shown.value = known;
  reopened = false;
  state.value = "loading";
  try {
    const [session, newest] = await Promise.all([api.session(id), api.entries(id, { limit: PAGE })]);
    if (openId.value !== id) return;
    joined = new Set(session.status === "running" ? ["*"] : []);
    batch(() => {
      shown.value = session;
      replace(newest, PAGE);
      state.value = "ready";
    });
    if (reopened) void catchUp();
    reopened = false;
    await runs.readSession(id);
  } catch (error) {
    if (openId.value !== id) return;
    state.value = "gone";
    if (!(error instanceof Refusal && error.status === 404)) complain(error);
  }
}

function replace(entries: readonly Entry[], asked: number): void {
  lines.value = entries.filter((each): each is Line => each.kind !== "returned");
  results.value = new Map(entries.filter((each) => each.kind === "returned").map((each) => [each.of, each]));
  atStart.value = entries.length < asked;
  settle();
}

/** Entries have names: what is there already is written over, what is new comes last. */
function merge(entries: readonly Entry[]): void {
  const places = new Map(lines.value.map((line, i) => [line.kind + line.id, i]));
  const next = [...lines.value];
  const answers = new Map(results.value);
  for (const entry of entries) {
    if (entry.kind === "returned") {
      answers.set(entry.of, entry);
      continue;
    }
    const at = places.get(entry.kind + entry.id);
    if (at === undefined) places.set(entry.kind + entry.id, next.push(entry) - 1);
    else next[at] = entry;
  }
  batch(() => {
    lines.value = next;
    results.value = answers;
    settle();
  });
}

/** What streamed in gives way to what was saved of it. */
function settle(): void {
  const there = new Set(lines.value.map((line) => line.id));
  const known = new Map(thoughts.value);
  for (const flow of flows.value) if (flow.savedAs && there.has(flow.savedAs) && flow.thinking) known.set(flow.savedAs, flow.thinking);
  thoughts.value = known;
  flows.value = flows.value.filter((flow) => !(flow.savedAs && there.has(flow.savedAs)) && !over(flow));
  pending.value = pending.value.filter((sent) => !(sent.run && there.has(sent.run)) && !said(sent));
}

function over(flow: Flow): boolean {
  const run = runs.runs.value.get(flow.run);
  return !flow.savedAs && run !== undefined && !runs.isLive(run);
}

/** It stands in the conversation before the answer to its sending came. */
function said(sent: Pending): boolean {
  return !sent.run && lines.value.some((line) => line.kind === "said" && line.by === "user" && line.at >= sent.at && line.text.trim() === sent.text.trim());
}

/** The last entry that is nobody's call: all after it may still change. */
function anchor(): string | null {
  return lines.value.findLast((line) => line.kind !== "called")?.id ?? null;
}

/** The first words after an entry that somebody said to the agent; null where none were. */
export function promptAfter(id: string): string | null {
  const at = lines.value.findIndex((line) => line.id === id);
  return lines.value.slice(at + 1).find((line) => line.kind === "said" && line.by === "user")?.id ?? null;
}

export const catchUp = single(async () => {
  const id = openId.value;
  if (!id || state.value !== "ready") return;
  const after = anchor();
  if (!after) return reread();
  try {
    const entries = await api.entries(id, { after });
    if (openId.value === id) merge(entries);
  } catch (error) {
    if (error instanceof Refusal && (error.status === 404 || error.status === 400)) return reread();
    throw error;
  }
}, 60);

/** The file was changed by hand, or cleared: as much of it as was shown is read anew. */
export const reread = single(async () => {
  const id = openId.value;
  if (!id) return;
  const limit = Math.max(PAGE, lines.value.length + results.value.size);
  try {
    const [session, entries] = await Promise.all([api.session(id), api.entries(id, { limit })]);
    if (openId.value !== id) return;
    batch(() => {
      shown.value = session;
      state.value = "ready";
      replace(entries, limit);
    });
  } catch (error) {
    if (!(error instanceof Refusal && error.status === 404)) throw error;
    if (openId.value === id) state.value = "gone";
  }
});

export async function readOlder(): Promise<void> {
  const id = openId.value;
  const before = lines.value[0]?.id;
  if (!id || !before || atStart.value || older.value) return;
  older.value = true;
  const page = await attempt(() => api.entries(id, { limit: PAGE, before }));
  if (openId.value !== id) return;
  batch(() => {
    older.value = false;
    if (page) prepend(page);
  });
}

function prepend(page: readonly Entry[]): void {
  const there = new Set(lines.value.map((line) => line.kind + line.id));
  const answers = new Map(results.value);
  const above: Line[] = [];
  for (const entry of page) {
    if (entry.kind === "returned") answers.set(entry.of, entry);
    else if (!there.has(entry.kind + entry.id)) above.push(entry);
  }
  atStart.value = page.length < PAGE || above.length === 0;
  results.value = answers;
  lines.value = [...above, ...lines.value];
}

export function hear(event: Told): void {
  if (event.session !== openId.value) return;
  switch (event.kind) {
    case "text.delta":
    case "thinking.delta":
      flow(event);
      break;
    case "text.discarded":
      flows.value = flows.value.filter((each) => each.run !== event.run || each.savedAs);
      break;
    case "entry.saved":
      if (event.of === "agent") save(event);
      void catchUp();
      break;
    case "run.started":
    case "announcement.delivered":
      void catchUp();
      break;
    case "run.ended":
      void catchUp().then(settle);
      break;
    case "session.changed":
      void reread();
      break;
    default:
  }
}

function flow(event: Told): void {
  const at = flows.value.findIndex((each) => each.run === event.run && !each.savedAs);
  const words = event.text ?? "";
  const text = event.kind === "text.delta" ? words : "";
  const thinking = event.kind === "thinking.delta" ? words : "";
  if (at < 0) {
    const cut = joined.delete("*") || joined.delete(event.run);
    flows.value = [...flows.value, { run: event.run, text, thinking, cut, after: cut ? null : before(event.run), savedAs: "" }];
    return;
  }
  flows.value = flows.value.map((each, i) => (i === at ? { ...each, text: each.text + text, thinking: each.thinking + thinking } : each));
}

/** The last reply of a run that is known to be saved. */
function before(run: string): string | null {
  if (saved.has(run)) return saved.get(run)!;
  if (state.value !== "ready") return null;
  return lines.value.findLast((line) => line.kind === "said" && line.by === "agent" && line.run === run)?.id ?? "";
}

const saved = new Map<string, string>();

function save(event: Told): void {
  joined.delete("*");
  saved.set(event.run, event.entry ?? "");
  flows.value = flows.value.map((each) => (each.run === event.run && !each.savedAs ? { ...each, savedAs: event.entry ?? "" } : each));
}

/** Words in flight when the connection was lost are incomplete: what is saved will tell. */
export function interrupted(): void {
  joined = new Set(runs.live.value.map((run) => run.id));
  saved.clear();
  flows.value = flows.value.filter((each) => each.savedAs);
}

/** To the conversation in which it was typed, whichever is open by now. */
export async function say(id: string, text: string): Promise<boolean> {
  const key = [...crypto.getRandomValues(new Uint32Array(4))].join("-");
  const sent: Pending = { key, text, run: "", at: `${new Date(Date.now() - 1000).toISOString().slice(0, 19)}Z` };
  if (openId.value === id) pending.value = [...pending.value, sent];
  try {
    const answer = await api.say(id, text, key);
    pending.value = pending.value.map((each) => (each.key === key ? { ...each, run: answer.responseId } : each));
    settle();
    void catchUp();
    return true;
  } catch (error) {
    pending.value = pending.value.filter((each) => each.key !== key);
    complain(error);
    return false;
  }
}
