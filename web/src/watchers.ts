/** Watchers of conversations and their interjections. */

import { computed, signal } from "@preact/signals";
import { api } from "./api.ts";
import type { InboxItem, ServerEvent, Watcher } from "./api-types.ts";
import { agents, coalesceCalls, inbox, openSessionId, refreshInbox, showToast, tryOrReport } from "./store.ts";
import { agentTitle, numberedAgentName } from "./agent-title.ts";

export const watchers = signal<readonly Watcher[]>([]);
/** Sessions of watchers, whose runs are not listed as active runs. */
export const watcherSessions = computed(() => new Set(watchers.value.map((each) => each.watcher)));
export const watcherAgents = computed(() => (agents.value ?? []).filter((each) => each.roles.includes("watcher")));

export const refreshWatchers = coalesceCalls(async () => {
  watchers.value = await api.listWatchers();
}, 120);

export function findWatcher(session: string, agent: string): Watcher | undefined {
  return watchers.value.find((each) => each.session === session && each.agent === agent);
}

/** Interjections about a conversation that nobody has dismissed, the most severe first. */
export function pendingInterjections(session: string): InboxItem[] {
  const order: Record<string, number> = { interrupt: 0, warning: 1, info: 2 };
  const watcherIds = new Set(watchers.value.filter((each) => each.session === session).map((each) => each.watcher));
  return (inbox.value ?? [])
    .filter((each) => each.kind === "interjection" && each.delivery === "pending" && (watcherIds.has(each.sessionId) || interjectionSessions.get(each.id ?? "") === session))
    .sort((a, b) => (order[a.severity ?? ""] ?? 3) - (order[b.severity ?? ""] ?? 3));
}

/** The session of each interjection, for those whose watcher has ended. */
const interjectionSessions = new Map<string, string>();

export function applyEvent(event: ServerEvent): void {
  if (event.kind === "watch.started" || event.kind === "watch.ended") void refreshWatchers();
  if (event.kind === "watch.ended" && event.reason) showToast(`${numberedAgentName(event.name ?? event.agent, event.agent)} stopped watching: ${event.reason}`, { isError: true });
  if (event.kind === "interjection.dismissed") void refreshInbox();
  if (event.kind !== "interjection.posted") return;
  interjectionSessions.set(event.interjection ?? "", event.session);
  void refreshInbox();
  if (event.session !== openSessionId.value) {
    const isSerious = event.severity !== "info";
    showToast(`${numberedAgentName(event.name ?? event.agent, event.agent)}: ${(event.reason ?? "").slice(0, 160)}`, { isError: isSerious, action: { label: "Show", run: () => (location.hash = `#/s/${encodeURIComponent(event.session)}`) } });
  }
}

/** Start or stop a watcher of a conversation. */
export async function toggleWatcher(session: string, agent: string, trigger: "command" | "slash" | "key"): Promise<void> {
  const active = findWatcher(session, agent);
  const watcher = await tryOrReport(async () => (active ? ((await api.stopWatcher(session, agent))[0] ?? null) : await api.startWatcher(session, agent, trigger)));
  if (watcher) showToast(watcher.watching ? `${numberedAgentName(watcher.name, watcher.agent, watcher.agent_display_name)} now watches this session.` : `${agentTitle(agent)} stopped watching.`);
  void refreshWatchers();
}

export async function dismissInterjection(item: InboxItem): Promise<void> {
  if (!item.id) return;
  const id = item.id;
  const dismissed = await tryOrReport(() => api.dismissInterjection(id));
  if (dismissed) inbox.value = (inbox.value ?? []).map((each) => (each.id === id ? dismissed : each));
  void refreshInbox();
}
