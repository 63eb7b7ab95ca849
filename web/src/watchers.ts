/** Who watches which conversation, what they say of it, and what agents' own keys and slash commands do. */

import { computed, signal } from "@preact/signals";
import { api } from "./api.ts";
import type { Agent, Left, Told, Watch } from "./api-types.ts";
import { agents, attempt, inbox, openId, refreshInbox, single, toast } from "./store.ts";
import { capital } from "./format.ts";

export const watchers = signal<readonly Watch[]>([]);
/** Sessions in which watchers sit: what goes on there is watching. */
export const seats = computed(() => new Set(watchers.value.map((each) => each.watcher)));
export const canWatch = computed(() => (agents.value ?? []).filter((each) => each.roles.includes("watcher")));

export const refreshWatchers = single(async () => {
  watchers.value = await api.watchers();
}, 120);

export function watching(session: string, agent: string): Watch | undefined {
  return watchers.value.find((each) => each.session === session && each.agent === agent);
}

/** What watchers said of a conversation and nobody has set aside, the gravest first. */
export function openWords(session: string): Left[] {
  const order: Record<string, number> = { interrupt: 0, warning: 1, info: 2 };
  const mine = new Set(watchers.value.filter((each) => each.session === session).map((each) => each.watcher));
  return (inbox.value ?? [])
    .filter((each) => each.kind === "interjection" && each.delivery === "pending" && (mine.has(each.sessionId) || saidOf.get(each.id ?? "") === session))
    .sort((a, b) => (order[a.severity ?? ""] ?? 3) - (order[b.severity ?? ""] ?? 3));
}

const saidOf = new Map<string, string>();
/** Of which session an interjection speaks, where its watcher is gone. */

export function hear(event: Told): void {
  if (event.kind === "watch.started" || event.kind === "watch.ended") void refreshWatchers();
  if (event.kind === "watch.ended" && event.why) toast(`${event.name ?? event.agent} watches no more: ${event.why}`, { bad: true });
  if (event.kind === "interjection.dismissed") void refreshInbox();
  if (event.kind !== "interjection.posted") return;
  saidOf.set(event.interjection ?? "", event.session);
  void refreshInbox();
  if (event.session !== openId.value) {
    const grave = event.severity !== "info";
    toast(`${event.name ?? event.agent}: ${(event.reason ?? "").slice(0, 160)}`, { bad: grave, action: { label: "Show", act: () => (location.hash = `#/s/${encodeURIComponent(event.session)}`) } });
  }
}

/** Sets a watcher beside a conversation, or sends it away. */
export async function toggle(session: string, agent: string, trigger: "command" | "slash" | "key"): Promise<void> {
  const on = watching(session, agent);
  const done = await attempt(async () => (on ? ((await api.unwatch(session, agent))[0] ?? null) : await api.watch(session, agent, trigger)));
  if (done) toast(done.watching ? `${done.name} watching` : `${capital(agent)} watches no more.`);
  void refreshWatchers();
}

export async function dismissWord(left: Left): Promise<void> {
  if (!left.id) return;
  const id = left.id;
  const gone = await attempt(() => api.dismissWord(id));
  if (gone) inbox.value = (inbox.value ?? []).map((each) => (each.id === id ? gone : each));
  void refreshInbox();
}

/** The agent whose slash command this is. */
export function slashed(text: string): { agent: Agent; rest: string } | null {
  const [, name, rest] = /^\/([a-z0-9-]+)(?:\s+([\s\S]*))?$/i.exec(text.trim()) ?? [];
  const agent = name ? (agents.value ?? []).find((each) => each.triggers.slash.some((slash) => slash.replace(/^\//, "") === name)) : undefined;
  return agent ? { agent, rest: (rest ?? "").trim() } : null;
}

/** Slash commands that begin as what is typed does. */
export function offered(text: string): { slash: string; agent: Agent }[] {
  if (!/^\/[a-z0-9-]*$/i.test(text)) return [];
  return (agents.value ?? []).flatMap((agent) => agent.triggers.slash.map((slash) => ({ slash: `/${slash.replace(/^\//, "")}`, agent }))).filter((each) => each.slash.startsWith(text));
}

/** Gives an agent a task beside a conversation; a watcher without one watches, or no more. */
export async function launch(session: string, agent: Agent, task: string, trigger: "slash" | "key"): Promise<boolean> {
  if (!task) {
    if (!agent.roles.includes("watcher")) {
      toast(`Say what ${agent.name} is to do, after its command.`, { bad: true });
      return false;
    }
    await toggle(session, agent.name, trigger);
    return true;
  }
  const key = [...crypto.getRandomValues(new Uint32Array(4))].join("-");
  const run = await attempt(() => api.child(session, agent.name, task, trigger, key));
  if (run) toast(`${capital(agent.name)} is at it; what it finds comes into the inbox.`, { action: { label: "Look", act: () => (location.hash = `#/s/${encodeURIComponent(run.session_id)}`) } });
  return run !== null;
}

const HELD = new Set(["ctrl", "control", "shift", "alt", "option", "cmd", "meta"]);

/** The agent whose key this is: `Ctrl+Shift+P`. One without Ctrl, Alt or Cmd would take a letter from whoever types. */
export function keyed(event: KeyboardEvent): Agent | null {
  if (!event.ctrlKey && !event.altKey && !event.metaKey) return null;
  return (agents.value ?? []).find((agent) => agent.triggers.hotkeys.some((key) => pressed(key, event))) ?? null;
}

function pressed(hotkey: string, event: KeyboardEvent): boolean {
  const words = hotkey.toLowerCase().split("+").map((word) => word.trim());
  const letter = words.pop() ?? "";
  const held = new Set(words);
  const wanted = (...names: string[]): boolean => names.some((name) => held.has(name));
  if (event.ctrlKey !== wanted("ctrl", "control") || event.shiftKey !== wanted("shift")) return false;
  if (event.altKey !== wanted("alt", "option") || event.metaKey !== wanted("cmd", "meta")) return false;
  return words.every((word) => HELD.has(word)) && (event.key.toLowerCase() === letter || event.code.toLowerCase() === `key${letter}`);
}
