/** Formatting of times, sizes, statuses and tool calls. */

import type { RunStatus, Session } from "./api-types.ts";

export function formatAge(at: string, now = Date.now()): string {
  const seconds = Math.max(0, Math.floor((now - Date.parse(at)) / 1000));
  if (seconds < 60) return "now";
  if (seconds < 3600) return `${Math.floor(seconds / 60)}m`;
  if (seconds < 86_400) return `${Math.floor(seconds / 3600)}h`;
  if (seconds < 86_400 * 30) return `${Math.floor(seconds / 86_400)}d`;
  return new Date(at).toLocaleDateString(undefined, { day: "numeric", month: "short" });
}

export function formatDuration(ms: number): string {
  if (ms < 1000) return `${Math.max(0, Math.round(ms))} ms`;
  const seconds = Math.floor(ms / 1000);
  if (seconds < 60) return `${seconds}s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)}m ${seconds % 60}s`;
  return `${Math.floor(seconds / 3600)}h ${Math.floor(seconds / 60) % 60}m`;
}

export function formatTokens(count: number): string {
  if (count < 1000) return String(count);
  return count < 100_000 ? `${(count / 1000).toFixed(1)}k` : `${Math.round(count / 1000)}k`;
}

/** US dollars in cents, with more digits for less than one cent. */
export function formatDollars(amount: number): string {
  if (amount === 0 || amount >= 1) return `$${amount.toLocaleString("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 })}`;
  return `$${amount.toFixed(amount >= 0.001 ? 4 : 6)}`;
}

/** Tokens, and the cost if it is known. */
export function formatUsage(tokenCount: number, cost: number | null): string {
  return [tokenCount ? `${formatTokens(tokenCount)} tok` : "", cost === null ? "" : formatDollars(cost)].filter(Boolean).join(" · ");
}

export function formatCount(count: number, noun: string): string {
  return `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;
}

export function formatTime(at: string): string {
  const date = new Date(at);
  if (Number.isNaN(date.getTime())) return "";
  const isToday = new Date().toDateString() === date.toDateString();
  const time = date.toLocaleTimeString(undefined, { hour: "2-digit", minute: "2-digit" });
  return isToday ? time : `${date.toLocaleDateString(undefined, { day: "numeric", month: "short" })}, ${time}`;
}

/** A line of Markdown without its syntax. */
export function stripMarkdown(text: string): string {
  return text.replace(/^\s*(#{1,6}|>|[-*+])\s+/, "").replace(/(\*\*|__|`+)/g, "").replace(/\[([^\]]*)\]\([^)]*\)/g, "$1").trim();
}

/** The name of a session; for an unnamed sub-agent session, its task as given in the slug. */
export function sessionTitle(session: Pick<Session, "name" | "slug" | "type">): string {
  const task = session.type === "agent" ? /^.+?-\d{14}-(.*[a-z].*)$/.exec(session.slug)?.[1] : undefined;
  return session.name || (task ? capitalize(task.replace(/-/g, " ")) : session.slug);
}

export function capitalize(word: string): string {
  return word ? word[0]!.toUpperCase() + word.slice(1) : word;
}

export const RUN_STATUS_LABELS: Record<RunStatus, string> = {
  queued: "queued",
  running: "running",
  waiting: "waiting",
  done: "done",
  failed: "failed",
  cancelled: "cancelled",
  timed_out: "timed out",
  lost: "lost",
};

export interface ForwardedReport {
  /** The runtime's sentence that names the author of the body. */
  intro: string;
  facts: string;
  body: string;
}

/** Split a text that the runtime forwarded into its introduction, its facts and the quoted body. */
export function parseForwardedReport(text: string): ForwardedReport | null {
  const match = /^([\s\S]*?)<<<(\S+)\n([\s\S]*)\n\2>>>\s*$/.exec(text);
  if (!match) return null;
  const before = match[1]!.trim().split("\n");
  const factsStart = before.findIndex((line) => line.startsWith("report run="));
  const intro = before.slice(0, factsStart < 0 ? before.length : factsStart).join(" ").trim();
  return { intro, facts: factsStart < 0 ? "" : before.slice(factsStart).join("\n"), body: match[3]! };
}

export type ToolArguments = [name: string, value: unknown][];

/** The arguments of a call, or null if they are not a JSON object. */
export function parseArguments(args: string): ToolArguments | null {
  try {
    const parsed: unknown = JSON.parse(args || "{}");
    return parsed !== null && typeof parsed === "object" && !Array.isArray(parsed) ? Object.entries(parsed) : null;
  } catch {
    return null;
  }
}

export function formatValue(value: unknown): string {
  return typeof value === "string" ? value : (JSON.stringify(value, null, 2) ?? "");
}

/** The arguments on one line: the value of the first, then `name=value` for the others. */
export function summarizeArguments(args: string, limit = 160): string {
  const parsed = parseArguments(args);
  const text = parsed
    ? parsed.map(([name, value], i) => (i === 0 ? formatInline(value) : `${name}=${formatInline(value)}`)).join("  ")
    : args;
  const line = text.replace(/\s+/g, " ").trim();
  return line.length > limit ? `${line.slice(0, limit - 1)}…` : line;
}

function formatInline(value: unknown): string {
  return typeof value === "string" ? value : (JSON.stringify(value) ?? "");
}

export function formatToolCall(tool: string, args: string): string {
  return `${tool} ${summarizeArguments(args, 80)}`.trim();
}
