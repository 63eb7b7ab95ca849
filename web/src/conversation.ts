/** The open conversation: read from its end, kept up with, and spoken to. */

import { batch, signal } from "@preact/signals";
import { api, Refusal } from "./api.ts";
import * as entries from "./transcript.ts";
import { atStart, lines, PAGE, results } from "./transcript.ts";
import * as flows from "./streaming-replies.ts";
import * as runs from "./runs.ts";
import { pending, settle as settleSent, type Pending } from "./pending-messages.ts";
import type { Entry, Told } from "./api-types.ts";
import { attempt, byId, complain, openId, shown, single } from "./store.ts";

export const state = signal<"none" | "loading" | "ready" | "gone">("none");
export const older = signal(false);

export function clear(): void {
  batch(() => {
    entries.forget();
    flows.forget();
    pending.value = [];
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
    flows.join(session.status === "running");
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

function replace(found: readonly Entry[], asked: number): void {
  entries.replace(found, asked);
  settle();
}

function merge(found: readonly Entry[]): void {
  batch(() => {
    entries.merge(found);
    settle();
  });
}

/** What streamed in, and what was sent, give way to what was saved of them. */
function settle(): void {
  const there = new Set(lines.value.map((line) => line.id));
  flows.settle(there);
  settleSent(there);
}

export const catchUp = single(async () => {
  const id = openId.value;
  if (!id || state.value !== "ready") return;
  const after = entries.anchor();
  if (!after) return reread();
  try {
    const found = await api.entries(id, { after });
    if (openId.value === id) merge(found);
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
    const [session, found] = await Promise.all([api.session(id), api.entries(id, { limit })]);
    if (openId.value !== id) return;
    batch(() => {
      shown.value = session;
      state.value = "ready";
      replace(found, limit);
    });
  } catch (error) {
    if (!(error instanceof Refusal && error.status === 404)) throw error;
    if (openId.value === id) state.value = "gone";
  }
});

export async function readOlder(limit = PAGE): Promise<boolean> {
  const id = openId.value;
  const before = lines.value[0]?.id;
  if (!id || !before || atStart.value || older.value) return false;
  older.value = true;
  const page = await attempt(() => api.entries(id, { limit, before }));
  if (openId.value !== id) return false;
  batch(() => {
    older.value = false;
    if (page) entries.prepend(page, limit);
  });
  return page !== null;
}

const MOST = 1000;

/** All of it from the beginning on, many entries at a time; false where that came to nothing, or another was opened. */
export async function readToStart(): Promise<boolean> {
  const id = openId.value;
  while (older.value && openId.value === id) await new Promise((done) => setTimeout(done, 20));
  while (!atStart.value && openId.value === id) if (!(await readOlder(MOST))) return false;
  return openId.value === id;
}

export function hear(event: Told): void {
  if (event.session !== openId.value) return;
  switch (event.kind) {
    case "text.delta":
    case "thinking.delta":
      flows.flow(event);
      break;
    case "text.discarded":
      flows.discard(event.run);
      break;
    case "entry.saved":
      if (event.of === "agent") flows.save(event);
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
