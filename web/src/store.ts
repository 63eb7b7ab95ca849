/** What the page knows: signals that views read, and the few ways to change them. */

import { computed, signal } from "@preact/signals";
import { api, Refusal } from "./api.ts";
import type { Agent, Approval, Health, Left, Session } from "./api-types.ts";

export type Connection = "opening" | "open" | "lost" | "barred";
export type Panel = "runs" | "inbox" | null;
export type Dialog = { what: "keys" } | { what: "new" } | { what: "clear"; session: Session } | null;
export type Theme = "auto" | "light" | "dark";

export interface Toast {
  id: number;
  text: string;
  bad: boolean;
  action?: { label: string; act: () => void };
}

export const health = signal<Health | null>(null);
export const agents = signal<Agent[] | null>(null);
export const sessions = signal<Session[] | null>(null);
export const approvals = signal<Approval[]>([]);
export const inbox = signal<Left[] | null>(null);
export const connection = signal<Connection>("opening");
export const openId = signal<string | null>(null);
/** The agent whose name an address gives for a new conversation. */
export const chosen = signal<string | null>(null);
export const query = signal("");
export const found = signal<Session[] | null>(null);
export const panel = signal<Panel>(null);
export const drawer = signal(false);
export const dialog = signal<Dialog>(null);
export const renaming = signal<string | null>(null);
/** A conversation is being made, and nothing that is typed may go into the one before. */
export const making = signal(false);
/** Whoever opened a conversation with the mouse, or began one, types next; with keys one goes on in the list. */
export const typeNext = signal(false);
export const toasts = signal<Toast[]>([]);
export const theme = signal<Theme>(stored("theme", ["auto", "light", "dark"]) ?? "auto");
export const folded = signal<ReadonlySet<string>>(new Set());

export const byId = computed(() => new Map((sessions.value ?? []).map((each) => [each.session_id, each])));
/** The open one as one request told it: it may be no row of the list. */
export const shown = signal<Session | null>(null);
export const open = computed(() => {
  const id = openId.value;
  if (!id) return null;
  const row = byId.value.get(id);
  const own = shown.value?.session_id === id ? shown.value : null;
  return row ? { ...own, ...row } : own;
});
export const current = computed(() => open.value?.agent ?? chosen.value);
export const unread = computed(() => (inbox.value ?? []).filter((each) => each.delivery === "pending" && ended(each)).length);

export function ended(left: Left): boolean {
  return left.status === "complete" || left.status === "error";
}

export function stored<T extends string>(name: string, allowed: readonly T[]): T | null {
  try {
    const value = localStorage.getItem(`retinue.${name}`) as T | null;
    return value && allowed.includes(value) ? value : null;
  } catch {
    return null;
  }
}

export function store(name: string, value: string): void {
  try {
    localStorage.setItem(`retinue.${name}`, value);
  } catch {
    // A browser that keeps nothing still shows everything.
  }
}

let toastCount = 0;

export function toast(text: string, more: { bad?: boolean; action?: Toast["action"] } = {}): void {
  const id = ++toastCount;
  const made: Toast = { id, text, bad: more.bad ?? false, ...(more.action ? { action: more.action } : {}) };
  toasts.value = [...toasts.value.slice(-3), made];
  setTimeout(() => dismiss(id), more.action || more.bad ? 10_000 : 4_000);
}

export function dismiss(id: number): void {
  toasts.value = toasts.value.filter((each) => each.id !== id);
}

/** Does something that may be refused, and says so where it is. */
export async function attempt<T>(deed: () => Promise<T>): Promise<T | null> {
  try {
    return await deed();
  } catch (error) {
    complain(error);
    return null;
  }
}

let whenUnreachable = (): void => undefined;

/** Whoever keeps the connection hears of every request that nobody answered. */
export function onUnreachable(act: () => void): void {
  whenUnreachable = act;
}

export function complain(error: unknown): void {
  if (error instanceof Refusal && error.unreachable) whenUnreachable();
  if (error instanceof Refusal && error.status === 401) {
    connection.value = "barred";
    return;
  }
  if (error instanceof Refusal && error.unreachable && connection.value !== "open") return;
  toast(error instanceof Error ? error.message : String(error), { bad: true });
}

export function put(row: Session): void {
  const rows = sessions.value ?? [];
  const at = rows.findIndex((each) => each.session_id === row.session_id);
  const merged = at < 0 ? [row, ...rows] : rows.map((each, i) => (i === at ? { ...each, ...row } : each));
  sessions.value = inOrder(merged);
  if (shown.value?.session_id === row.session_id) shown.value = { ...shown.value, ...row };
}

export function drop(id: string): void {
  sessions.value = (sessions.value ?? []).filter((each) => each.session_id !== id);
}

/** Pinned first, the latest pin first; then the latest change first. */
export function inOrder(rows: Session[]): Session[] {
  return rows.toSorted(
    (a, b) => (b.pinned_at ?? "").localeCompare(a.pinned_at ?? "") || b.updated_at.localeCompare(a.updated_at),
  );
}

/** One request at a time; whoever asks meanwhile is answered by one more. */
export function single(work: () => Promise<void>, pause = 0): () => Promise<void> {
  let going: Promise<void> | null = null;
  let again = false;
  const once = async (): Promise<void> => {
    do {
      again = false;
      await work().catch(complain);
      if (pause) await new Promise((done) => setTimeout(done, pause));
    } while (again);
    going = null;
  };
  return () => {
    if (going) again = true;
    else going = once();
    return going;
  };
}

export const refreshSessions = single(async () => {
  const wanted = query.value.trim();
  sessions.value = inOrder(await api.sessions(""));
  if (wanted) found.value = await api.sessions(wanted);
}, 250);

export const refreshSearch = single(async () => {
  const wanted = query.value.trim();
  found.value = wanted ? await api.sessions(wanted) : null;
}, 80);

export const refreshApprovals = single(async () => {
  approvals.value = (await api.approvals()).filter((each) => each.state === "pending");
});

export const refreshInbox = single(async () => {
  inbox.value = await api.inbox();
}, 400);

export const refreshMachine = single(async () => {
  const [now, known] = await Promise.all([api.health(), api.agents()]);
  health.value = now;
  agents.value = known;
});
