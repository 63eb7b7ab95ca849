/** Small words: times, sizes, calls and states as a person reads them. */

import type { Session, Status } from "./api-types.ts";

export function ago(at: string, now = Date.now()): string {
  const seconds = Math.max(0, Math.floor((now - Date.parse(at)) / 1000));
  if (seconds < 60) return "now";
  if (seconds < 3600) return `${Math.floor(seconds / 60)}m`;
  if (seconds < 86_400) return `${Math.floor(seconds / 3600)}h`;
  if (seconds < 86_400 * 30) return `${Math.floor(seconds / 86_400)}d`;
  return new Date(at).toLocaleDateString(undefined, { day: "numeric", month: "short" });
}

export function span(ms: number): string {
  if (ms < 1000) return `${Math.max(0, Math.round(ms))} ms`;
  const seconds = Math.floor(ms / 1000);
  if (seconds < 60) return `${seconds}s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)}m ${seconds % 60}s`;
  return `${Math.floor(seconds / 3600)}h ${Math.floor(seconds / 60) % 60}m`;
}

export function tokens(count: number): string {
  if (count < 1000) return String(count);
  return count < 100_000 ? `${(count / 1000).toFixed(1)}k` : `${Math.round(count / 1000)}k`;
}

/** As a person reads it: cents, and finer where there is less than one. */
export function dollars(sum: number): string {
  if (sum === 0 || sum >= 1) return `$${sum.toLocaleString("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 })}`;
  return `$${sum.toFixed(sum >= 0.001 ? 4 : 6)}`;
}

/** What a run came to: its tokens, and its price where there is one. */
export function spent(tokenCount: number, cost: number | null): string {
  return [tokenCount ? `${tokens(tokenCount)} tok` : "", cost === null ? "" : dollars(cost)].filter(Boolean).join(" · ");
}

export function counted(count: number, what: string): string {
  return `${count.toLocaleString("en")} ${what}${count === 1 ? "" : "s"}`;
}

export function clock(at: string): string {
  const when = new Date(at);
  if (Number.isNaN(when.getTime())) return "";
  const today = new Date().toDateString() === when.toDateString();
  const time = when.toLocaleTimeString(undefined, { hour: "2-digit", minute: "2-digit" });
  return today ? time : `${when.toLocaleDateString(undefined, { day: "numeric", month: "short" })}, ${time}`;
}

/** Markdown on one line, without its marks. */
export function bare(text: string): string {
  return text.replace(/^\s*(#{1,6}|>|[-*+])\s+/, "").replace(/(\*\*|__|`+)/g, "").replace(/\[([^\]]*)\]\([^)]*\)/g, "$1").trim();
}

/** Its name; of a sub-agent's without one, what it was set to do, as its folder says it. */
export function titleOf(session: Pick<Session, "name" | "slug" | "type">): string {
  const about = session.type === "agent" ? /^.+?-\d{14}-(.*[a-z].*)$/.exec(session.slug)?.[1] : undefined;
  return session.name || (about ? capital(about.replace(/-/g, " ")) : session.slug);
}

export function capital(word: string): string {
  return word ? word[0]!.toUpperCase() + word.slice(1) : word;
}

export const STATUS: Record<Status, string> = {
  queued: "queued",
  running: "running",
  waiting: "waiting",
  done: "done",
  failed: "failed",
  cancelled: "cancelled",
  timed_out: "timed out",
  lost: "lost",
};

export const WAITS_FOR: Record<string, string> = {
  approval: "for an approval",
  person: "for a person",
  child: "for its sub-agents",
  model: "for its model",
  disk: "for room on the disk",
};

export interface Report {
  /** Whose words they are, in the runtime's. */
  intro: string;
  facts: string;
  body: string;
}

/** What somebody said as the runtime passes it on: facts that it knows, then their words between two lines. */
export function reported(text: string): Report | null {
  const found = /^([\s\S]*?)<<<(\S+)\n([\s\S]*)\n\2>>>\s*$/.exec(text);
  if (!found) return null;
  const before = found[1]!.trim().split("\n");
  const at = before.findIndex((line) => line.startsWith("report run="));
  const intro = before.slice(0, at < 0 ? before.length : at).join(" ").trim();
  return { intro, facts: at < 0 ? "" : before.slice(at).join("\n"), body: found[3]! };
}

export type Arguments = [name: string, value: unknown][];

/** The arguments of a call, or null where they are no object. */
export function argumentsOf(args: string): Arguments | null {
  try {
    const found: unknown = JSON.parse(args || "{}");
    return found !== null && typeof found === "object" && !Array.isArray(found) ? Object.entries(found) : null;
  } catch {
    return null;
  }
}

export function asText(value: unknown): string {
  return typeof value === "string" ? value : (JSON.stringify(value, null, 2) ?? "");
}

/** What a call is about, on one line: its first argument, then the names of others with theirs. */
export function gist(args: string, limit = 160): string {
  const found = argumentsOf(args);
  const words = found
    ? found.map(([name, value], i) => (i === 0 ? flat(value) : `${name}=${flat(value)}`)).join("  ")
    : args;
  const line = words.replace(/\s+/g, " ").trim();
  return line.length > limit ? `${line.slice(0, limit - 1)}…` : line;
}

function flat(value: unknown): string {
  return typeof value === "string" ? value : (JSON.stringify(value) ?? "");
}

export function spoken(tool: string, args: string): string {
  return `${tool} ${gist(args, 80)}`.trim();
}
