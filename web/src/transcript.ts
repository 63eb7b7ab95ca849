/** What is saved of the open conversation, as far as it was read: its lines in order, and the answers to its calls. */

import { batch, signal } from "@preact/signals";
import type { Called, Entry, Notice, Returned, Said } from "./api-types.ts";

export const PAGE = 100;

export type Line = Said | Called | Notice;

export const lines = signal<readonly Line[]>([]);
export const results = signal<ReadonlyMap<string, Returned>>(new Map());
export const atStart = signal(false);

export function forget(): void {
  lines.value = [];
  results.value = new Map();
  atStart.value = false;
}

export function replace(entries: readonly Entry[], asked: number): void {
  lines.value = entries.filter((each): each is Line => each.kind !== "returned");
  results.value = new Map(entries.filter((each) => each.kind === "returned").map((each) => [each.of, each]));
  atStart.value = entries.length < asked;
}

/** Entries have names: what is there already is written over, what is new comes last. */
export function merge(entries: readonly Entry[]): void {
  const places = new Map(lines.value.map((line, i) => [line.kind + line.id, i]));
  const next = [...lines.value];
  const answers = new Map(results.value);
  for (const entry of entries) {
    if (entry.kind === "returned") {
      answers.set(entry.of, entry);
      continue;
    }
    const at = places.get(entry.kind + entry.id);
    if (at === undefined) places.set(entry.kind + entry.id, next.push(entry) - 1);
    else next[at] = entry;
  }
  batch(() => {
    lines.value = next;
    results.value = answers;
  });
}

export function prepend(page: readonly Entry[], asked = PAGE): void {
  const there = new Set(lines.value.map((line) => line.kind + line.id));
  const answers = new Map(results.value);
  const above: Line[] = [];
  for (const entry of page) {
    if (entry.kind === "returned") answers.set(entry.of, entry);
    else if (!there.has(entry.kind + entry.id)) above.push(entry);
  }
  atStart.value = page.length < asked || above.length === 0;
  results.value = answers;
  lines.value = [...above, ...lines.value];
}

/** The last entry that is nobody's call: all after it may still change. */
export function anchor(): string | null {
  return lines.value.findLast((line) => line.kind !== "called")?.id ?? null;
}

/** The first words after an entry that somebody said to the agent; null where none were. */
export function promptAfter(id: string): string | null {
  const at = lines.value.findIndex((line) => line.id === id);
  return lines.value.slice(at + 1).find((line) => line.kind === "said" && line.by === "user")?.id ?? null;
}
