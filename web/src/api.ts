/** The client of the daemon's HTTP API. Every failed request becomes an `ApiError` with a readable message. */

import type { Agent, Approval, ApprovalDecision, Health, InboxItem, Run, SendMessageResponse, Session, TranscriptEntry, Watcher } from "./api-types.ts";

export class ApiError extends Error {
  constructor(readonly status: number, readonly code: string, message: string) {
    super(message);
  }

  /** True when the daemon did not respond at all. */
  get isUnreachable(): boolean {
    return this.status === 0;
  }
}

export interface EntryRange {
  limit?: number;
  before?: string;
  after?: string;
  around?: string;
}

export const api = {
  getHealth: () => getJson<Health>("/health"),
  listAgents: () => getJson<Agent[]>("/agents"),
  listSessions: (search: string) => getJson<Session[]>("/sessions", search ? { q: search } : {}),
  getSession: (id: string) => getJson<Session>(`/sessions/${encode(id)}`),
  createSession: (agent: string, workspace?: string) => sendJson<Session>("POST", "/sessions", { agent, ...(workspace ? { workspace } : {}) }),
  updateSession: (id: string, changes: { name?: string; pinned?: boolean }) => sendJson<Session>("PATCH", `/sessions/${encode(id)}`, changes),
  deleteSession: (id: string, purge: boolean) => sendJson<{ restore_id: string | null }>("DELETE", `/sessions/${encode(id)}${purge ? "?purge=true" : ""}`),
  restoreSession: (id: string) => sendJson<Session>("POST", `/sessions/${encode(id)}/restore`, {}),
  clearSession: (id: string, purge: boolean) => sendJson<Session>("POST", `/sessions/${encode(id)}/clear${purge ? "?purge=true" : ""}`, {}),
  branchSession: (id: string, at: string | null, include: boolean) => sendJson<Session>("POST", `/sessions/${encode(id)}/branch`, { at, include }),
  saveDraft: (id: string, content: string) => sendJson<unknown>("PUT", `/sessions/${encode(id)}/draft`, { content }),
  listEntries: (id: string, range: EntryRange) => getJson<TranscriptEntry[]>(`/sessions/${encode(id)}/entries`, { ...range }),
  sendMessage: (id: string, content: string, key: string) =>
    sendJson<SendMessageResponse>("POST", `/sessions/${encode(id)}/messages`, { content, mode: "async" }, { "Idempotency-Key": key }),
  listRuns: (filter: { live?: true; session?: string; root?: string; limit?: number }) => getJson<Run[]>("/runs", { ...filter }),
  getRun: (id: string) => getJson<Run>(`/runs/${encode(id)}`),
  controlRun: (id: string, action: "cancel" | "interrupt" | "detach" | "resume") => sendJson<Run>("POST", `/runs/${encode(id)}/${action}`, {}),
  listInbox: () => getJson<InboxItem[]>("/inbox"),
  markInboxRead: () => sendJson<InboxItem[]>("POST", "/inbox/drain", {}),
  dismissInterjection: (id: string) => sendJson<InboxItem>("POST", `/inbox/${encode(id)}/dismiss`, {}),
  listWatchers: () => getJson<Watcher[]>("/watchers"),
  startWatcher: (id: string, agent: string, trigger: string) => sendJson<Watcher>("POST", `/sessions/${encode(id)}/watchers`, { agent, trigger }),
  stopWatcher: (id: string, agent: string) => sendJson<Watcher[]>("DELETE", `/sessions/${encode(id)}/watchers?agent=${encode(agent)}`),
  startChildRun: (id: string, agent: string, content: string, trigger: string, key: string) =>
    sendJson<Run>("POST", `/sessions/${encode(id)}/children`, { agent, content, trigger }, { "Idempotency-Key": key }),
  promoteResult: (id: string) => sendJson<InboxItem>("POST", `/inbox/${encode(id)}/promote`, {}),
  listApprovals: () => getJson<Approval[]>("/approvals"),
  answerApproval: (id: string, answer: ApprovalDecision) => sendJson<Approval>("POST", `/approvals/${encode(id)}`, { answer }),
};

const encode = encodeURIComponent;

function getJson<T>(route: string, query: Record<string, string | number | boolean> = {}): Promise<T> {
  const params = new URLSearchParams(Object.entries(query).map(([name, value]) => [name, String(value)]));
  return fetchJson<T>(`/api${route}${params.size ? `?${params}` : ""}`, { method: "GET" });
}

function sendJson<T>(method: string, route: string, body?: unknown, headers: Record<string, string> = {}): Promise<T> {
  const json = body === undefined ? {} : { body: JSON.stringify(body) };
  return fetchJson<T>(`/api${route}`, { method, headers: { "Content-Type": "application/json", ...headers }, ...json });
}

async function fetchJson<T>(url: string, init: RequestInit): Promise<T> {
  let response: Response;
  try {
    response = await fetch(url, { ...init, credentials: "same-origin", cache: "no-store" });
  } catch {
    throw new ApiError(0, "unreachable", "The daemon does not respond. Start it with `retinue serve`.");
  }
  const text = await response.text();
  if (!response.ok) throw errorFromResponse(response.status, text);
  return JSON.parse(text) as T;
}

function errorFromResponse(status: number, text: string): ApiError {
  if (status === 401) return new ApiError(401, "unauthenticated", "You are logged out. Run `retinue serve --link` and open the link it prints.");
  try {
    const { error } = JSON.parse(text) as { error: { code: string; message: string } };
    return new ApiError(status, error.code, asSentence(error.message));
  } catch {
    return new ApiError(status, "unknown", `The daemon responded with status ${status}. See its log for details.`);
  }
}

function asSentence(text: string): string {
  const trimmed = text.trim();
  return trimmed ? trimmed[0]!.toUpperCase() + trimmed.slice(1) : "The request was refused.";
}
