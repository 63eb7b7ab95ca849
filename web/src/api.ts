/** The one door to the daemon: every request is made here, and every refusal becomes a sentence. */

import type { Agent, Answer, Approval, Entry, Health, Left, Run, Sent, Session, Watch } from "./api-types.ts";

export class Refusal extends Error {
  constructor(readonly status: number, readonly code: string, message: string) {
    super(message);
  }

  /** Nobody answered at all. */
  get unreachable(): boolean {
    return this.status === 0;
  }
}

export interface Span {
  limit?: number;
  before?: string;
  after?: string;
  around?: string;
}

export const api = {
  health: () => get<Health>("/health"),
  agents: () => get<Agent[]>("/agents"),
  sessions: (q: string) => get<Session[]>("/sessions", q ? { q } : {}),
  session: (id: string) => get<Session>(`/sessions/${path(id)}`),
  create: (agent: string, workspace?: string) => send<Session>("POST", "/sessions", { agent, ...(workspace ? { workspace } : {}) }),
  change: (id: string, what: { name?: string; pinned?: boolean }) => send<Session>("PATCH", `/sessions/${path(id)}`, what),
  remove: (id: string) => send<{ undo: string }>("DELETE", `/sessions/${path(id)}`),
  restore: (id: string) => send<Session>("POST", `/sessions/${path(id)}/restore`, {}),
  clear: (id: string) => send<Session>("POST", `/sessions/${path(id)}/clear`, {}),
  branch: (id: string, at: string | null, include: boolean) => send<Session>("POST", `/sessions/${path(id)}/branch`, { at, include }),
  draft: (id: string, content: string) => send<unknown>("PUT", `/sessions/${path(id)}/draft`, { content }),
  entries: (id: string, span: Span) => get<Entry[]>(`/sessions/${path(id)}/entries`, { ...span }),
  say: (id: string, content: string, key: string) =>
    send<Sent>("POST", `/sessions/${path(id)}/messages`, { content, mode: "async" }, { "Idempotency-Key": key }),
  runs: (of: { live?: true; session?: string; root?: string; limit?: number }) => get<Run[]>("/runs", { ...of }),
  run: (id: string) => get<Run>(`/runs/${path(id)}`),
  steer: (id: string, verb: "cancel" | "interrupt" | "detach" | "resume") => send<Run>("POST", `/runs/${path(id)}/${verb}`, {}),
  inbox: () => get<Left[]>("/inbox"),
  drain: () => send<Left[]>("POST", "/inbox/drain", {}),
  dismissWord: (id: string) => send<Left>("POST", `/inbox/${path(id)}/dismiss`, {}),
  watchers: () => get<Watch[]>("/watchers"),
  watch: (id: string, agent: string, trigger: string) => send<Watch>("POST", `/sessions/${path(id)}/watchers`, { agent, trigger }),
  unwatch: (id: string, agent: string) => send<Watch[]>("DELETE", `/sessions/${path(id)}/watchers?agent=${path(agent)}`),
  child: (id: string, agent: string, content: string, trigger: string, key: string) =>
    send<Run>("POST", `/sessions/${path(id)}/children`, { agent, content, trigger }, { "Idempotency-Key": key }),
  promote: (id: string) => send<Left>("POST", `/inbox/${path(id)}/promote`, {}),
  approvals: () => get<Approval[]>("/approvals"),
  answer: (id: string, answer: Answer) => send<Approval>("POST", `/approvals/${path(id)}`, { answer }),
};

const path = encodeURIComponent;

function get<T>(route: string, query: Record<string, string | number | boolean> = {}): Promise<T> {
  const asked = new URLSearchParams(Object.entries(query).map(([name, value]) => [name, String(value)]));
  return answered<T>(`/api${route}${asked.size ? `?${asked}` : ""}`, { method: "GET" });
}

function send<T>(method: string, route: string, body?: unknown, headers: Record<string, string> = {}): Promise<T> {
  const json = body === undefined ? {} : { body: JSON.stringify(body) };
  return answered<T>(`/api${route}`, { method, headers: { "Content-Type": "application/json", ...headers }, ...json });
}

async function answered<T>(url: string, init: RequestInit): Promise<T> {
  let answer: Response;
  try {
    answer = await fetch(url, { ...init, credentials: "same-origin", cache: "no-store" });
  } catch {
    throw new Refusal(0, "unreachable", "The daemon does not answer: start it with `retinue serve`.");
  }
  const text = await answer.text();
  if (!answer.ok) throw refusal(answer.status, text);
  return JSON.parse(text) as T;
}

function refusal(status: number, text: string): Refusal {
  if (status === 401) return new Refusal(401, "unauthenticated", "This browser may not come in any more: `retinue serve --link` prints a new link.");
  try {
    const { error } = JSON.parse(text) as { error: { code: string; message: string } };
    return new Refusal(status, error.code, sentence(error.message));
  } catch {
    return new Refusal(status, "unknown", `The daemon answered with ${status}: its log says why.`);
  }
}

function sentence(text: string): string {
  const clear = text.trim();
  return clear ? clear[0]!.toUpperCase() + clear.slice(1) : "Refused.";
}
