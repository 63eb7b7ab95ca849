/** Runs as the page sees them: heard of by events, read from their rows, numbered by birth within their tree. */

import { computed, signal } from "@preact/signals";
import { api, Refusal } from "./api.ts";
import type { Run, Status, Told, Usage } from "./api-types.ts";
import { complain, single } from "./store.ts";
import { spoken } from "./format.ts";

export interface Seen {
  id: string;
  agent: string;
  session: string;
  parent: string;
  /** The first run of its tree, once its row was read. */
  root: string;
  call: string;
  about: string;
  status: Status;
  waitsFor: string;
  /** Since when its model has been asked, if no tool was called since. */
  asked: string;
  since: string;
  endedAt: string | null;
  total: number;
  turns: number;
  usage: Usage;
  cost: number | null;
  /** What it does just now, by the calls' ids, in words. */
  doing: ReadonlyMap<string, string>;
  note: string;
  error: string;
  reason: string;
  task: string;
  children: readonly string[];
  /** Its row was read: events tell less. */
  read: boolean;
}

export const runs = signal<ReadonlyMap<string, Seen>>(new Map());
export const live = computed(() => [...runs.value.values()].filter(isLive).sort(byBirth));
export const ticking = signal(Date.now());

const LIVE: ReadonlySet<Status> = new Set(["queued", "running", "waiting"]);
const EMPTY: ReadonlyMap<string, string> = new Map();

export function isLive(run: { status: Status }): boolean {
  return LIVE.has(run.status);
}

function byBirth(a: Seen, b: Seen): number {
  return a.id < b.id ? -1 : a.id > b.id ? 1 : 0;
}

/** Children at the call that asked for them, in order of birth. */
export const byCall = computed(() => {
  const calls = new Map<string, Seen[]>();
  for (const run of [...runs.value.values()].sort(byBirth)) {
    if (!run.call) continue;
    const there = calls.get(run.call);
    if (there) there.push(run);
    else calls.set(run.call, [run]);
  }
  return calls;
});

const numbers = computed(() => {
  const counts = new Map<string, number>();
  const found = new Map<string, number>();
  for (const run of [...runs.value.values()].sort(byBirth)) {
    const root = rootOf(run.id);
    const number = (counts.get(root) ?? 0) + 1;
    counts.set(root, number);
    found.set(run.id, number);
  }
  return found;
});

/** `oracle#4`: the agent, and the run's place in its tree by birth. */
export function nameOf(run: Seen): string {
  return `${run.agent}#${numbers.value.get(run.id) ?? 1}`;
}

export function rootOf(id: string): string {
  const all = runs.value;
  let at = id;
  for (let steps = 0; steps < 64; steps++) {
    const run = all.get(at);
    if (run?.root) return run.root;
    if (!run?.parent) return at;
    at = run.parent;
  }
  return at;
}

/** Whether a run is this one, or one that it set to work. */
export function isBelow(id: string, top: string): boolean {
  let at: string | undefined = id;
  for (let steps = 0; at && steps < 64; steps++) {
    if (at === top) return true;
    at = runs.value.get(at)?.parent;
  }
  return false;
}

export interface Sum {
  runs: number;
  tokens: number;
  /** Of those whose model has a price; null: none has. */
  cost: number | null;
}

/** What a run came to with all that it set to work. */
export function sumOf(run: Seen, below: ReadonlyMap<string, readonly Seen[]> = children.value): Sum {
  const sum: Sum = { runs: 1, tokens: run.usage.input + run.usage.output, cost: run.cost };
  for (const child of below.get(run.id) ?? []) {
    const more = sumOf(child, below);
    sum.runs += more.runs;
    sum.tokens += more.tokens;
    if (more.cost !== null) sum.cost = (sum.cost ?? 0) + more.cost;
  }
  return sum;
}

const children = computed(() => {
  const found = new Map<string, Seen[]>();
  for (const run of runs.value.values()) {
    if (!run.parent) continue;
    const there = found.get(run.parent);
    if (there) there.push(run);
    else found.set(run.parent, [run]);
  }
  return found;
});

export function ofSession(session: string): Seen[] {
  return [...runs.value.values()].filter((run) => run.session === session).sort(byBirth);
}

/** The live run of a session that is at work, or else the first that waits for its turn. */
export function atWork(session: string): Seen | null {
  const mine = live.value.filter((run) => run.session === session);
  return mine.find((run) => run.status === "running") ?? mine.find((run) => run.status === "waiting") ?? mine[0] ?? null;
}

export function put(rows: readonly Run[]): void {
  if (!rows.length) return;
  const next = new Map(runs.value);
  for (const row of rows) next.set(row.run_id, withRow(next.get(row.run_id), row));
  runs.value = next;
}

/** Whoever comes while a run is at work has heard nothing of its calls, and its row does not count them yet: its
 * conversation tells. */
export async function overhear(run: Seen): Promise<void> {
  const entries = await api.entries(run.session, { limit: 200 }).catch(() => []);
  const mine = entries.filter((entry) => entry.run === run.id);
  const answered = new Set(mine.map((entry) => (entry.kind === "returned" ? entry.of : "")));
  const calls = mine.filter((entry) => entry.kind === "called");
  const open = calls.filter((call) => !answered.has(call.id));
  const known = runs.value.get(run.id);
  if (!known || !isLive(known) || known.total >= calls.length) return;
  const doing = new Map(open.map((call) => [call.id, spoken(call.tool, call.args)]));
  runs.value = new Map(runs.value).set(run.id, { ...known, total: calls.length, doing });
}

function withRow(known: Seen | undefined, row: Run): Seen {
  const over = !isLive(row) || (known !== undefined && !isLive(known));
  const status = known && !isLive(known) && isLive(row) ? known.status : row.status;
  return {
    id: row.run_id,
    agent: row.agent,
    session: row.session_id,
    parent: row.parent ?? known?.parent ?? "",
    root: row.root,
    call: row.call || known?.call || "",
    about: row.label || firstLine(row.task ?? "") || known?.about || "its task",
    status,
    waitsFor: status === "waiting" ? (row.waiting_for ?? "") : "",
    asked: over ? "" : (known?.asked ?? ""),
    since: row.started_at ?? row.created_at,
    endedAt: row.ended_at ?? known?.endedAt ?? null,
    total: Math.max(known?.total ?? 0, row.tool_calls),
    turns: Math.max(known?.turns ?? 0, row.turns),
    usage: row.usage,
    cost: row.cost,
    doing: over ? EMPTY : (known?.doing ?? EMPTY),
    note: over ? "" : (known?.note ?? ""),
    error: row.error ?? "",
    reason: row.reason ?? "",
    task: row.task ?? known?.task ?? "",
    children: row.children,
    read: true,
  };
}

function firstLine(text: string): string {
  const line = text.trim().split("\n", 1)[0] ?? "";
  return line.length > 120 ? `${line.slice(0, 119)}…` : line;
}

function newborn(event: Told): Seen {
  return {
    id: event.run, agent: event.agent, session: event.session, parent: event.parent_run || "", root: "", call: event.call ?? "",
    about: firstLine(event.task ?? ""), status: "queued", waitsFor: "", asked: "", since: event.at, endedAt: null,
    total: 0, turns: 0, usage: { input: 0, output: 0 }, cost: null, doing: EMPTY, note: "", error: "", reason: "",
    task: event.task ?? "", children: [], read: false,
  };
}

/** What each kind of event tells of a run; a kind that is not here tells nothing that is shown. */
const HEARD: Partial<Record<Told["kind"], (run: Seen, event: Told) => Seen>> = {
  "run.queued": (run, event) => ({ ...run, status: "queued", call: event.call || run.call, parent: event.parent_run || run.parent }),
  "run.started": (run) => ({ ...run, status: "running", waitsFor: "", asked: "" }),
  "run.state": onState,
  "tool.started": (run, event) => ({ ...run, doing: new Map(run.doing).set(event.call ?? "", spoken(event.tool ?? "", event.args ?? "")) }),
  "tool.ended": (run, event) => ({ ...run, doing: without(run.doing, event.call ?? "") }),
  "run.ended": (run, event) => ({
    ...run, status: event.status ?? "done", endedAt: event.at, waitsFor: "", asked: "", doing: EMPTY, note: "", reason: event.reason ?? "",
  }),
};

function onState(run: Seen, event: Told): Seen {
  if (event.torn) return run;
  if (event.phase === "wait") return { ...run, status: "running", waitsFor: "", asked: event.at, note: event.note ?? "" };
  if (event.phase === "tool") return { ...run, status: "running", waitsFor: "", asked: "", note: "", total: event.total ?? run.total, doing: EMPTY };
  if (event.note) return { ...run, note: event.note };
  return { ...run, status: "waiting", waitsFor: event.phase ?? "", asked: "" };
}

function without(calls: ReadonlyMap<string, string>, call: string): ReadonlyMap<string, string> {
  const rest = new Map(calls);
  rest.delete(call);
  return rest;
}

export function hear(event: Told): void {
  const heard = HEARD[event.kind];
  if (!heard || !event.run) return;
  const before = runs.value.get(event.run);
  if (before && !isLive(before) && event.kind !== "run.queued" && event.kind !== "run.started") return;
  const after = heard(before ?? newborn(event), event);
  runs.value = new Map(runs.value).set(event.run, after);
  if (!after.read || event.kind === "run.ended") wanted.add(event.run);
  if (wanted.size) void readWanted();
}

const wanted = new Set<string>();

const FEW = 8;

/** What is known of a run only by its row: what it is about, and what it cost. Many are found among the newest. */
const readWanted = single(async () => {
  if (wanted.size > FEW) {
    const newest = await api.runs({ limit: 2 * wanted.size });
    for (const row of newest) wanted.delete(row.run_id);
    put(newest);
  }
  const ids = [...wanted].slice(0, FEW);
  for (const id of ids) wanted.delete(id);
  const rows = await Promise.all(ids.map((id) => api.run(id).catch(() => null)));
  put(rows.filter((row) => row !== null));
  if (wanted.size) queueMicrotask(() => void readWanted());
}, 120);

const families = new Set<string>();

/** Everybody of a run's tree, so that children stand at their calls and numbers are right. */
export async function family(id: string): Promise<void> {
  try {
    if (!runs.value.get(id)?.read) put([await api.run(id)]);
    const root = rootOf(id);
    if (families.has(root)) return;
    families.add(root);
    put(await api.runs({ root, limit: 1000 }));
  } catch (error) {
    if (!(error instanceof Refusal && error.status === 404)) complain(error);
  }
}

/** After a time without events: who lives now, and what became of those that did. */
export const refresh = single(async () => {
  families.clear();
  const rows = await api.runs({ live: true, limit: 500 });
  const living = new Set(rows.map((row) => row.run_id));
  const gone = live.value.filter((run) => !living.has(run.id)).map((run) => run.id);
  put(rows);
  for (const id of gone) wanted.add(id);
  if (gone.length) void readWanted();
  for (const row of rows) if (row.parent || row.children.length) await family(row.run_id);
});

/** Runs of one conversation, those that ended included, and the trees they began. */
export async function readSession(session: string): Promise<void> {
  const rows = await api.runs({ session, limit: 100 });
  put(rows);
  for (const row of rows) if (row.children.length || row.parent) await family(row.run_id);
}

setInterval(() => {
  if (live.value.length && !document.hidden) ticking.value = Date.now();
}, 1000);
