/** The slash commands and hotkeys that agent definitions declare. */

import { api } from "./api.ts";
import type { Agent } from "./api-types.ts";
import { agentName, agentTitle } from "./agent-title.ts";
import { agents, showToast, tryOrReport } from "./store.ts";
import { toggleWatcher } from "./watchers.ts";

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

/** Give an agent a task as a sub-agent of a conversation; without a task, toggle a watcher. */
export async function startAgent(session: string, agent: Agent, task: string, trigger: "slash" | "key"): Promise<boolean> {
  const isReview = agent.triggers.slash.includes("/review");
  if (!task && !isReview) {
    if (!agent.roles.includes("watcher")) {
      showToast(`Type the task after the command for ${agentName(agent.name)}.`, { isError: true });
      return false;
    }
    await toggleWatcher(session, agent.name, trigger);
    return true;
  }
  const key = [...crypto.getRandomValues(new Uint32Array(4))].join("-");
  const run = await tryOrReport(() => api.startChildRun(session, agent.name, task, trigger, key));
  if (run) showToast(`${agentTitle(agent.name)} has started. Its result will be in the inbox.`, { action: { label: "Open", run: () => (location.hash = `#/s/${encodeURIComponent(run.session_id)}`) } });
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
