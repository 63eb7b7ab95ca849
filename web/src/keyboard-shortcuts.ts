/** Global keyboard shortcuts: single letters outside text fields, Esc everywhere. */

import { dialog, editingName, openSessionId, panel, showToast, sidebarOpen } from "./store.ts";
import { agentName } from "./agent-title.ts";
import { agentForHotkey } from "./agent-triggers.ts";
import { toggleWatcher } from "./watchers.ts";
import { switchToNextTheme } from "./components/status-bar.tsx";

const SHORTCUTS: Record<string, () => void> = {
  "/": () => focusElement("#search"),
  n: () => (dialog.value = { kind: "new" }),
  j: () => moveSessionFocus(1),
  k: () => moveSessionFocus(-1),
  ArrowDown: () => moveSessionFocus(1),
  ArrowUp: () => moveSessionFocus(-1),
  c: () => focusElement(".composer textarea"),
  a: () => focusElement(".approvals button.primary"),
  i: () => (panel.value = panel.value === "inbox" ? null : "inbox"),
  r: () => (panel.value = panel.value === "runs" ? null : "runs"),
  g: () => clickElement(".to-start"),
  Home: () => clickElement(".to-start"),
  G: () => clickElement(".to-end"),
  End: () => clickElement(".to-end"),
  t: switchToNextTheme,
  "?": () => (dialog.value = { kind: "keys" }),
};

export function onKeyDown(event: KeyboardEvent): void {
  if (event.key === "Escape") return closeTopmost();
  if (!dialog.value && runAgentHotkey(event)) return;
  if (event.ctrlKey || event.metaKey || event.altKey || dialog.value || isTextField(event.target)) return;
  const arrow = event.key.startsWith("Arrow");
  if (arrow && (event.target as Element).closest?.(".scroller, [role=menu], .panel, .approvals")) return;
  const shortcut = SHORTCUTS[event.key];
  if (!shortcut) return;
  event.preventDefault();
  shortcut();
}

/** An agent's hotkey: start or stop a watcher; for another agent, focus the composer. */
function runAgentHotkey(event: KeyboardEvent): boolean {
  const agent = agentForHotkey(event);
  const id = openSessionId.value;
  if (!agent || !id) return false;
  event.preventDefault();
  if (event.repeat) return true;
  if (agent.roles.includes("watcher")) void toggleWatcher(id, agent.name, "key");
  else {
    showToast(`Type the task for ${agentName(agent.name)}, then press the agent's hotkey.`);
    focusElement(".composer textarea");
  }
  return true;
}

function isTextField(target: EventTarget | null): boolean {
  return target instanceof HTMLInputElement || target instanceof HTMLTextAreaElement || target instanceof HTMLSelectElement;
}

function closeTopmost(): void {
  if (dialog.value) dialog.value = null;
  else if (editingName.value) editingName.value = null;
  else if (sidebarOpen.value) sidebarOpen.value = false;
  else if (panel.value && !isTextField(document.activeElement)) panel.value = null;
}

function clickElement(selector: string): void {
  document.querySelector<HTMLElement>(selector)?.click();
}

function focusElement(selector: string): void {
  if (selector === "#search") sidebarOpen.value = true;
  requestAnimationFrame(() => document.querySelector<HTMLElement>(selector)?.focus());
}

/** Move the focus to the next or previous session in the list. */
function moveSessionFocus(by: number): void {
  const buttons = [...document.querySelectorAll<HTMLElement>(".session-open")];
  const focused = buttons.findIndex((each) => each === document.activeElement);
  const start = focused >= 0 ? focused : buttons.findIndex((each) => each.getAttribute("aria-current"));
  buttons[start < 0 ? 0 : Math.max(0, Math.min(buttons.length - 1, start + by))]?.focus();
}
