/** Keys that work everywhere: single letters where nobody types, Esc wherever one is. */

import { dialog, drawer, openId, panel, renaming, toast } from "./store.ts";
import { keyed, toggle } from "./watchers.ts";
import { nextTheme } from "./components/status-bar.tsx";

const DEEDS: Record<string, () => void> = {
  "/": () => focus("#search"),
  n: () => (dialog.value = { what: "new" }),
  j: () => move(1),
  k: () => move(-1),
  ArrowDown: () => move(1),
  ArrowUp: () => move(-1),
  c: () => focus(".composer textarea"),
  a: () => focus(".approvals button.primary"),
  i: () => (panel.value = panel.value === "inbox" ? null : "inbox"),
  r: () => (panel.value = panel.value === "runs" ? null : "runs"),
  g: () => click(".to-start"),
  Home: () => click(".to-start"),
  G: () => click(".to-end"),
  End: () => click(".to-end"),
  t: nextTheme,
  "?": () => (dialog.value = { what: "keys" }),
};

export function onKey(event: KeyboardEvent): void {
  if (event.key === "Escape") return close();
  if (!dialog.value && launched(event)) return;
  if (event.ctrlKey || event.metaKey || event.altKey || dialog.value || typing(event.target)) return;
  const arrow = event.key.startsWith("Arrow");
  if (arrow && (event.target as Element).closest?.(".scroller, [role=menu], .panel, .approvals")) return;
  const deed = DEEDS[event.key];
  if (!deed) return;
  event.preventDefault();
  deed();
}

/** An agent's own key: a watcher watches the open conversation, or no more; another does what is typed, where it is. */
function launched(event: KeyboardEvent): boolean {
  const agent = keyed(event);
  const id = openId.value;
  if (!agent || !id) return false;
  event.preventDefault();
  if (event.repeat) return true;
  if (agent.roles.includes("watcher")) void toggle(id, agent.name, "key");
  else {
    toast(`Type what ${agent.name} is to do, then press its key.`);
    focus(".composer textarea");
  }
  return true;
}

function typing(target: EventTarget | null): boolean {
  return target instanceof HTMLInputElement || target instanceof HTMLTextAreaElement || target instanceof HTMLSelectElement;
}

function close(): void {
  if (dialog.value) dialog.value = null;
  else if (renaming.value) renaming.value = null;
  else if (drawer.value) drawer.value = false;
  else if (panel.value && !typing(document.activeElement)) panel.value = null;
}

function click(what: string): void {
  document.querySelector<HTMLElement>(what)?.click();
}

function focus(what: string): void {
  if (what === "#search") drawer.value = true;
  requestAnimationFrame(() => document.querySelector<HTMLElement>(what)?.focus());
}

/** From the open conversation, or the one that has the focus, to its neighbour. */
function move(by: number): void {
  const all = [...document.querySelectorAll<HTMLElement>(".session-open")];
  const at = all.findIndex((each) => each === document.activeElement);
  const from = at >= 0 ? at : all.findIndex((each) => each.getAttribute("aria-current"));
  all[from < 0 ? 0 : Math.max(0, Math.min(all.length - 1, from + by))]?.focus();
}
