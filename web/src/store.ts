/** The state of the page, as signals. */

import { computed, signal } from "@preact/signals";
import { api, ApiError } from "./api.ts";
import type { Agent, Approval, Health, InboxItem, Session } from "./api-types.ts";

export type Connection = "opening" | "open" | "lost" | "unauthorized";
export type Panel = "runs" | "inbox" | null;
export type Dialog = { kind: "keys" } | { kind: "new" } | { kind: "clear" | "delete"; session: Session } | null;
export type Theme = "auto" | "light" | "dark";

export interface Toast {
  id: number;
  text: string;
  isError: boolean;
  action?: { label: string; run: () => void };
}

export const health = signal<Health | null>(null);
export const agents = signal<Agent[] | null>(null);
export const sessions = signal<Session[] | null>(null);
export const approvals = signal<Approval[]>([]);
export const inbox = signal<InboxItem[] | null>(null);
export const connection = signal<Connection>("opening");
export const openSessionId = signal<string | null>(null);
/** The agent that the URL names for a new session. */
export const chosenAgent = signal<string | null>(null);
export const searchQuery = signal("");
export const searchResults = signal<Session[] | null>(null);
export const panel = signal<Panel>(null);
export const sidebarOpen = signal(false);
export const dialog = signal<Dialog>(null);
export const editingName = signal<string | null>(null);
/** A session is being created; text must not go to the one that was open before. */
export const creatingSession = signal(false);
/** Focus the composer once the session is open: set after a click or a new session, not after keyboard navigation. */
export const focusComposerNext = signal(false);
export const toasts = signal<Toast[]>([]);
export const theme = signal<Theme>(readSetting("theme", ["auto", "light", "dark"]) ?? "auto");
export const collapsedGroups = signal<ReadonlySet<string>>(new Set());

export const sessionsById = computed(() => new Map((sessions.value ?? []).map((each) => [each.session_id, each])));
/** The open session as loaded on its own; it may be missing from the list. */
export const loadedSession = signal<Session | null>(null);
export const openSession = computed(() => {
  const id = openSessionId.value;
  if (!id) return null;
  const row = sessionsById.value.get(id);
  const loaded = loadedSession.value?.session_id === id ? loadedSession.value : null;
  return row ? { ...loaded, ...row } : loaded;
});
export const currentAgent = computed(() => openSession.value?.agent ?? chosenAgent.value);
export const unreadCount = computed(() => (inbox.value ?? []).filter((each) => each.delivery === "pending" && isFinished(each)).length);

export function isFinished(item: InboxItem): boolean {
  return item.status === "complete" || item.status === "error";
}

export function readSetting<T extends string>(name: string, allowed: readonly T[]): T | null {
  try {
    const value = localStorage.getItem(`retinue.${name}`) as T | null;
    return value && allowed.includes(value) ? value : null;
  } catch {
    return null;
  }
}

export function writeSetting(name: string, value: string): void {
  try {
    localStorage.setItem(`retinue.${name}`, value);
  } catch {
    // Without localStorage the page works, but forgets settings.
  }
}

let lastToastId = 0;

export function showToast(text: string, options: { isError?: boolean; action?: Toast["action"] } = {}): void {
  const id = ++lastToastId;
  const toast: Toast = { id, text, isError: options.isError ?? false, ...(options.action ? { action: options.action } : {}) };
  toasts.value = [...toasts.value.slice(-3), toast];
  setTimeout(() => dismissToast(id), options.action || options.isError ? 10_000 : 4_000);
}

export function dismissToast(id: number): void {
  toasts.value = toasts.value.filter((each) => each.id !== id);
}

/** Run a request, and show a toast if it fails. */
export async function tryOrReport<T>(request: () => Promise<T>): Promise<T | null> {
  try {
    return await request();
  } catch (error) {
    reportError(error);
    return null;
  }
}

let unreachableHandler = (): void => undefined;

/** Set what happens when the daemon does not respond to a request. */
export function setUnreachableHandler(handler: () => void): void {
  unreachableHandler = handler;
}

export function reportError(error: unknown): void {
  if (error instanceof ApiError && error.isUnreachable) unreachableHandler();
  if (error instanceof ApiError && error.status === 401) {
    connection.value = "unauthorized";
    return;
  }
  if (error instanceof ApiError && error.isUnreachable && connection.value !== "open") return;
  showToast(error instanceof Error ? error.message : String(error), { isError: true });
}

export function upsertSession(row: Session): void {
  const rows = sessions.value ?? [];
  const index = rows.findIndex((each) => each.session_id === row.session_id);
  const merged = index < 0 ? [row, ...rows] : rows.map((each, i) => (i === index ? { ...each, ...row } : each));
  sessions.value = sortedSessions(merged);
  if (loadedSession.value?.session_id === row.session_id) loadedSession.value = { ...loadedSession.value, ...row };
}

export function removeSession(id: string): void {
  sessions.value = (sessions.value ?? []).filter((each) => each.session_id !== id);
}

/** Pinned sessions first, latest pin first; then by latest change. */
export function sortedSessions(rows: Session[]): Session[] {
  return rows.toSorted(
    (a, b) => (b.pinned_at ?? "").localeCompare(a.pinned_at ?? "") || b.updated_at.localeCompare(a.updated_at),
  );
}

/** Run one call at a time. Calls made meanwhile share one further run. */
export function coalesceCalls(request: () => Promise<void>, pauseMs = 0): () => Promise<void> {
  let inFlight: Promise<void> | null = null;
  let callAgain = false;
  const runUntilSettled = async (): Promise<void> => {
    do {
      callAgain = false;
      await request().catch(reportError);
      if (pauseMs) await new Promise((resolve) => setTimeout(resolve, pauseMs));
    } while (callAgain);
    inFlight = null;
  };
  return () => {
    if (inFlight) callAgain = true;
    else inFlight = runUntilSettled();
    return inFlight;
  };
}

export const refreshSessions = coalesceCalls(async () => {
  const search = searchQuery.value.trim();
  sessions.value = sortedSessions(await api.listSessions(""));
  if (search) searchResults.value = await api.listSessions(search);
}, 250);

export const refreshSearch = coalesceCalls(async () => {
  const search = searchQuery.value.trim();
  searchResults.value = search ? await api.listSessions(search) : null;
}, 80);

export const refreshApprovals = coalesceCalls(async () => {
  approvals.value = (await api.listApprovals()).filter((each) => each.state === "pending");
});

export const refreshInbox = coalesceCalls(async () => {
  inbox.value = await api.listInbox();
}, 400);

export const refreshDaemonInfo = coalesceCalls(async () => {
  const [healthNow, agentList] = await Promise.all([api.getHealth(), api.listAgents()]);
  health.value = healthNow;
  agents.value = agentList;
});
