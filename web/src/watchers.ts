/** Watchers and their interjections, and the hotkeys and slash commands of agents. */

import { computed, signal } from "@preact/signals";
import { api } from "./api.ts";
import type { Agent, InboxItem, ServerEvent, Watcher } from "./api-types.ts";
import { agents, coalesceCalls, inbox, openSessionId, refreshInbox, showToast, tryOrReport } from "./store.ts";
import { capitalize } from "./format.ts";

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
  if (event.kind === "watch.ended" && event.why) showToast(`${event.name ?? event.agent} watches no more: ${event.why}`, { isError: true });
  if (event.kind === "interjection.dismissed") void refreshInbox();
  if (event.kind !== "interjection.posted") return;
  interjectionSessions.set(event.interjection ?? "", event.session);
  void refreshInbox();
  if (event.session !== openSessionId.value) {
    const isSerious = event.severity !== "info";
    showToast(`${event.name ?? event.agent}: ${(event.reason ?? "").slice(0, 160)}`, { isError: isSerious, action: { label: "Show", run: () => (location.hash = `#/s/${encodeURIComponent(event.session)}`) } });
  }
}

/** Start or stop a watcher of a conversation. */
export async function toggleWatcher(session: string, agent: string, trigger: "command" | "slash" | "key"): Promise<void> {
  const active = findWatcher(session, agent);
  const watcher = await tryOrReport(async () => (active ? ((await api.stopWatcher(session, agent))[0] ?? null) : await api.startWatcher(session, agent, trigger)));
  if (watcher) showToast(watcher.watching ? `${watcher.name} watching` : `${capitalize(agent)} watches no more.`);
  void refreshWatchers();
}

export async function dismissInterjection(item: InboxItem): Promise<void> {
  if (!item.id) return;
  const id = item.id;
  const dismissed = await tryOrReport(() => api.dismissInterjection(id));
  if (dismissed) inbox.value = (inbox.value ?? []).map((each) => (each.id === id ? dismissed : each));
  void refreshInbox();
}

/** The agent whose slash command this is, and the rest of the text. */
export function parseSlashCommand(text: string): { agent: Agent; rest: string } | null {
  const [, name, rest] = /^\/([a-z0-9-]+)(?:\s+([\s\S]*))?$/i.exec(text.trim()) ?? [];
  const agent = name ? (agents.value ?? []).find((each) => each.triggers.slash.some((slash) => slash.replace(/^\//, "") === name)) : undefined;
  return agent ? { agent, rest: (rest ?? "").trim() } : null;
}

/** Slash commands that start with the typed text. */
export function matchingSlashCommands(text: string): { slash: string; agent: Agent }[] {
  if (!/^\/[a-z0-9-]*$/i.test(text)) return [];
  return (agents.value ?? []).flatMap((agent) => agent.triggers.slash.map((slash) => ({ slash: `/${slash.replace(/^\//, "")}`, agent }))).filter((each) => each.slash.startsWith(text));
}

/** Start an agent on a task beside a conversation; without a task, toggle a watcher. */
export async function startAgent(session: string, agent: Agent, task: string, trigger: "slash" | "key"): Promise<boolean> {
  if (!task) {
    if (!agent.roles.includes("watcher")) {
      showToast(`Say what ${agent.name} is to do, after its command.`, { isError: true });
      return false;
    }
    await toggleWatcher(session, agent.name, trigger);
    return true;
  }
  const key = [...crypto.getRandomValues(new Uint32Array(4))].join("-");
  const run = await tryOrReport(() => api.startChildRun(session, agent.name, task, trigger, key));
  if (run) showToast(`${capitalize(agent.name)} is at it; what it finds comes into the inbox.`, { action: { label: "Look", run: () => (location.hash = `#/s/${encodeURIComponent(run.session_id)}`) } });
  return run !== null;
}

const MODIFIERS = new Set(["ctrl", "control", "shift", "alt", "option", "cmd", "meta"]);

/** The agent with this hotkey, such as `Ctrl+Shift+P`. One without Ctrl, Alt or Cmd is ignored: it could be typed text. */
export function agentForHotkey(event: KeyboardEvent): Agent | null {
  if (!event.ctrlKey && !event.altKey && !event.metaKey) return null;
  return (agents.value ?? []).find((agent) => agent.triggers.hotkeys.some((key) => matchesHotkey(key, event))) ?? null;
}

function matchesHotkey(hotkey: string, event: KeyboardEvent): boolean {
  const words = hotkey.toLowerCase().split("+").map((word) => word.trim());
  const letter = words.pop() ?? "";
  const modifiers = new Set(words);
  const requires = (...names: string[]): boolean => names.some((name) => modifiers.has(name));
  if (event.ctrlKey !== requires("ctrl", "control") || event.shiftKey !== requires("shift")) return false;
  if (event.altKey !== requires("alt", "option") || event.metaKey !== requires("cmd", "meta")) return false;
  return words.every((word) => MODIFIERS.has(word)) && (event.key.toLowerCase() === letter || event.code.toLowerCase() === `key${letter}`);
}
