/** The one stream of events per tab: opened for the open conversation, taken up again where it was lost. */

import { api, Refusal } from "./api.ts";
import * as runs from "./runs.ts";
import { KINDS, type Told } from "./shapes.ts";
import { byId, connection, health, onUnreachable, openId, put, refreshApprovals, refreshInbox, refreshMachine, refreshSessions, toast } from "./store.ts";
import * as talk from "./talk.ts";

const PATIENCE = 60_000;
/** How long a hidden tab keeps its stream. */
const SLOWEST = 8_000;

let source: EventSource | null = null;
let seq = 0;
let wait = 500;
let timer = 0;
let hidden = 0;
let lost = false;

/** Opens the stream, for this conversation's words, in place of the one before. */
export function listen(): void {
  clearTimeout(timer);
  source?.close();
  const query = new URLSearchParams({ deltas: openId.value ?? "none" });
  if (seq) query.set("after", String(seq));
  const opened = new EventSource(`/api/events?${query}`);
  source = opened;
  opened.onopen = () => {
    if (opened !== source) return;
    wait = 500;
    if (connection.value === "lost") toast("The daemon answers again.");
    connection.value = "open";
    if (lost) void resync();
    lost = false;
  };
  opened.onerror = () => {
    if (opened === source) void fail(opened);
  };
  for (const kind of KINDS) opened.addEventListener(kind, (event) => hear(JSON.parse((event as MessageEvent<string>).data) as Told));
}

async function fail(failed: EventSource): Promise<void> {
  failed.close();
  if (!lost) talk.interrupted();
  lost = true;
  clearTimeout(timer);
  timer = window.setTimeout(listen, wait);
  wait = Math.min(SLOWEST, wait * 1.7);
  try {
    await api.health();
  } catch (error) {
    const barred = error instanceof Refusal && error.status === 401;
    connection.value = barred ? "barred" : "lost";
    if (barred) clearTimeout(timer);
  }
}

/** After a gap: everything that is asked for, and the entries after the last known one. */
export async function resync(): Promise<void> {
  await Promise.all([refreshMachine(), refreshSessions(), refreshApprovals(), refreshInbox(), runs.refresh(), talk.catchUp()]);
}

function hear(event: Told): void {
  if (event.seq > seq) seq = event.seq;
  runs.hear(event);
  talk.hear(event);
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

export function begin(): void {
  document.addEventListener("visibilitychange", () => {
    clearTimeout(hidden);
    if (document.hidden) hidden = window.setTimeout(rest, PATIENCE);
    else if (!source) {
      lost = true;
      listen();
    }
  });
  onUnreachable(() => {
    if (source && source.readyState !== EventSource.CLOSED) void fail(source);
  });
  listen();
  seq ||= health.value?.seq ?? 0;
}

/** Nobody looks: the connection is given back. */
function rest(): void {
  source?.close();
  source = null;
  talk.interrupted();
}
