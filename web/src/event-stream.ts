/** The one stream of events per tab: opened for the open conversation, taken up again where it was lost. */

import { batch } from "@preact/signals";
import { api, Refusal } from "./api.ts";
import { flows, interrupted } from "./streaming-replies.ts";
import * as runs from "./runs.ts";
import { KINDS, type Told } from "./api-types.ts";
import { byId, connection, health, onUnreachable, openId, put, refreshApprovals, refreshInbox, refreshMachine, refreshSessions, toast } from "./store.ts";
import * as talk from "./conversation.ts";
import { hear as hearWatchers, refreshWatchers } from "./watchers.ts";

const PATIENCE = 60_000;
/** How long a hidden tab keeps its stream. */
const FIRST = 400;
const PATIENT = 1_500;
const SLOWEST = 8_000;
/** How long it waits before it tries again: at first, until it says so, at most. */

let source: EventSource | null = null;
let target = "";
let seq = 0;
let wait = FIRST;
let timer = 0;
let hidden = 0;
let lost = false;

/** The stream for the words of the conversation that is open: the one there is, or one in its place. */
export function listen(): void {
  const wanted = openId.value ?? "none";
  if (source && source.readyState !== EventSource.CLOSED && target === wanted) return;
  clearTimeout(timer);
  source?.close();
  target = wanted;
  const query = new URLSearchParams({ deltas: wanted });
  if (seq) query.set("after", String(seq));
  const opened = new EventSource(`/api/events?${query}`);
  source = opened;
  opened.onopen = () => {
    if (opened === source) begun();
  };
  opened.onerror = () => {
    if (opened === source) void fail(opened);
  };
  for (const kind of KINDS) opened.addEventListener(kind, (event) => take(JSON.parse((event as MessageEvent<string>).data) as Told));
}

/** What was saved before the stream began is asked for once more; after a loss, everything is. */
function begun(): void {
  wait = FIRST;
  if (connection.value === "lost") toast("The daemon answers again.");
  connection.value = "open";
  talk.listening();
  if (lost) {
    void resync();
    void talk.reread(); // its file may have been changed by hand meanwhile
  }
  lost = false;
}

async function fail(failed: EventSource): Promise<void> {
  failed.close();
  if (!lost) interrupted();
  lost = true;
  await again();
}

/** Tries until the daemon answers. One that knows of less than this page begins anew. */
async function again(): Promise<void> {
  clearTimeout(timer);
  try {
    const now = await api.health();
    seq = Math.min(seq, now.seq);
    if (wait > PATIENT) connection.value = "lost";
    timer = window.setTimeout(listen, wait);
  } catch (error) {
    const barred = error instanceof Refusal && error.status === 401;
    connection.value = barred ? "barred" : "lost";
    if (!barred) timer = window.setTimeout(() => void again(), wait);
  }
  wait = Math.min(SLOWEST, wait * 1.7);
}

/** After a gap: everything that is asked for, and the entries after the last known one. */
export async function resync(): Promise<void> {
  await Promise.all([refreshMachine(), refreshSessions(), refreshApprovals(), refreshInbox(), refreshWatchers(), runs.refresh(), talk.catchUp()]);
}

const FRAME = 16;
const LONG = 6_000;
/** Characters of a reply beyond which it is drawn less often. */
const SELDOM = 120;
let heap: Told[] = [];

/** Events come faster than a screen is drawn: those of one frame are heard together. */
function take(event: Told): void {
  if (heap.push(event) > 1) return;
  const long = flows.value.some((flow) => flow.text.length > LONG);
  setTimeout(() => {
    const all = heap;
    heap = [];
    batch(() => all.forEach(hear));
  }, long ? SELDOM : FRAME);
}

function hear(event: Told): void {
  if (event.seq > seq) seq = event.seq;
  runs.hear(event);
  talk.hear(event);
  hearWatchers(event);
  if (event.kind.startsWith("approval.")) void refreshApprovals();
  if (event.kind.startsWith("announcement.")) void refreshInbox();
  if (event.kind === "run.ended") {
    void refreshInbox();
    void refreshApprovals();
  }
  if (event.kind.startsWith("run.") || event.kind === "session.changed") mark(event);
  if (event.kind === "run.queued" || event.kind === "run.ended" || event.kind === "session.changed") void refreshSessions();
}

/** What an event says of a conversation's row, before the list is asked for. */
function mark(event: Told): void {
  const row = byId.value.get(event.session);
  if (!row) return;
  const run = runs.atWork(event.session);
  put({ ...row, status: run ? (run.status as "queued" | "running" | "waiting") : "idle", waiting_for: run?.waitsFor || null, run: run?.id ?? null });
}

/** What is known has a number, and the stream tells all that comes after it: nothing falls between. */
export async function begin(): Promise<void> {
  document.addEventListener("visibilitychange", onSight);
  onUnreachable(() => {
    if (source && source.readyState !== EventSource.CLOSED) void fail(source);
  });
  try {
    health.value = await api.health();
    seq = health.value.seq;
  } catch {
    lost = true;
    await again();
  }
}

function onSight(): void {
  clearTimeout(hidden);
  if (document.hidden) hidden = window.setTimeout(rest, PATIENCE);
  else if (connection.value === "barred") void again();
  else if (!source) {
    lost = true;
    listen();
  }
}

/** Nobody looks: the connection is given back. */
function rest(): void {
  source?.close();
  source = null;
  interrupted();
}
