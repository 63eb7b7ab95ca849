/** Runs: updated from events, loaded from the API, and numbered by creation within their tree. */

import { computed, signal } from "@preact/signals";
import { api, ApiError } from "./api.ts";
import type { Run, RunStatus, ServerEvent, Usage } from "./api-types.ts";
import { coalesceCalls, reportError } from "./store.ts";
import { formatToolCall } from "./format.ts";
import { agentName } from "./agent-title.ts";

export interface RunView {
  id: string;
  agent: string;
  sessionId: string;
  parentId: string;
  /** The first run of its tree; empty until the run is loaded. */
  rootId: string;
  callId: string;
  summary: string;
  status: RunStatus;
  waitingFor: string;
  /** When the model was last requested, if no tool was called since. */
  modelRequestedAt: string;
  startedAt: string;
  endedAt: string | null;
  toolCallCount: number;
  turns: number;
  usage: Usage;
  cost: number | null;
  /** Tool calls in progress: a description by call id. */
  activeCalls: ReadonlyMap<string, string>;
  note: string;
  error: string;
  reason: string;
  task: string;
  childIds: readonly string[];
  /** The run was loaded from the API; events contain less. */
  isLoaded: boolean;
}

export const runsById = signal<ReadonlyMap<string, RunView>>(new Map());
export const activeRuns = computed(() => [...runsById.value.values()].filter(isActive).sort(compareByCreation));
export const currentTime = signal(Date.now());

const ACTIVE_STATUSES: ReadonlySet<RunStatus> = new Set(["queued", "running", "waiting"]);
/** Reasons for which a run waits until a person resumes or cancels it. */
const PERSON_REASONS: ReadonlySet<string> = new Set(["recovery_limit", "model", "turn_limit"]);
const NO_CALLS: ReadonlyMap<string, string> = new Map();

/** Whether a person can resume the run: its model's server is down, or it waits for a decision. */
export function canResume(run: RunView): boolean {
  return run.status === "waiting" && (run.waitingFor === "model" || PERSON_REASONS.has(run.reason));
}

/** What a waiting run waits for, as the end of a sentence. */
const WAIT_LABELS: Record<string, string> = {
  approval: "for approval",
  person: "for your message",
  child: "for its sub-agents",
  model: "for its model",
  disk: "for disk space",
};

/** What a waiting run waits for, such as `for approval`; empty for other runs. */
export function waitLabel(run: RunView): string {
  if (run.status !== "waiting") return "";
  return canResume(run) && run.waitingFor === "person" ? "for your decision" : (WAIT_LABELS[run.waitingFor] ?? "");
}

export function isActive(run: { status: RunStatus }): boolean {
  return ACTIVE_STATUSES.has(run.status);
}

function compareByCreation(a: RunView, b: RunView): number {
  return a.id < b.id ? -1 : a.id > b.id ? 1 : 0;
}

/** Child runs by the tool call that started them, oldest first. */
export const runsByCall = computed(() => {
  const byCall = new Map<string, RunView[]>();
  for (const run of [...runsById.value.values()].sort(compareByCreation)) {
    if (!run.callId) continue;
    const siblings = byCall.get(run.callId);
    if (siblings) siblings.push(run);
    else byCall.set(run.callId, [run]);
  }
  return byCall;
});

const runNumbers = computed(() => {
  const counts = new Map<string, number>();
  const numbers = new Map<string, number>();
  for (const run of [...runsById.value.values()].sort(compareByCreation)) {
    const root = rootRunId(run.id);
    const number = (counts.get(root) ?? 0) + 1;
    counts.set(root, number);
    numbers.set(run.id, number);
  }
  return numbers;
});

/** For example `oracle#4`: the agent, and the run's number in its tree. */
export function runName(run: RunView): string {
  return `${agentName(run.agent)}#${runNumbers.value.get(run.id) ?? 1}`;
}

export function rootRunId(id: string): string {
  const allRuns = runsById.value;
  let current = id;
  for (let steps = 0; steps < 64; steps++) {
    const run = allRuns.get(current);
    if (run?.rootId) return run.rootId;
    if (!run?.parentId) return current;
    current = run.parentId;
  }
  return current;
}

/** True if the run is `ancestor` or one of its descendants. */
export function isInSubtree(id: string, ancestor: string): boolean {
  let current: string | undefined = id;
  for (let steps = 0; current && steps < 64; steps++) {
    if (current === ancestor) return true;
    current = runsById.value.get(current)?.parentId;
  }
  return false;
}

export interface RunTotals {
  runs: number;
  tokens: number;
  /** The cost of runs whose model has a price; null if none has. */
  cost: number | null;
}

/** The totals of a run and all its descendants. */
export function subtreeTotals(run: RunView, childrenByRun: ReadonlyMap<string, readonly RunView[]> = childrenByParent.value): RunTotals {
  const totals: RunTotals = { runs: 1, tokens: run.usage.input + run.usage.output, cost: run.cost };
  for (const child of childrenByRun.get(run.id) ?? []) {
    const childTotals = subtreeTotals(child, childrenByRun);
    totals.runs += childTotals.runs;
    totals.tokens += childTotals.tokens;
    if (childTotals.cost !== null) totals.cost = (totals.cost ?? 0) + childTotals.cost;
  }
  return totals;
}

const childrenByParent = computed(() => {
  const byParent = new Map<string, RunView[]>();
  for (const run of runsById.value.values()) {
    if (!run.parentId) continue;
    const siblings = byParent.get(run.parentId);
    if (siblings) siblings.push(run);
    else byParent.set(run.parentId, [run]);
  }
  return byParent;
});

export function sessionRuns(session: string): RunView[] {
  return [...runsById.value.values()].filter((run) => run.sessionId === session).sort(compareByCreation);
}

/** The running run of a session, or else one that waits or is queued. */
export function activeRunOf(session: string): RunView | null {
  const candidates = activeRuns.value.filter((run) => run.sessionId === session);
  return candidates.find((run) => run.status === "running") ?? candidates.find((run) => run.status === "waiting") ?? candidates[0] ?? null;
}

export function upsertRuns(rows: readonly Run[]): void {
  if (!rows.length) return;
  const next = new Map(runsById.value);
  for (const row of rows) next.set(row.run_id, mergeRow(next.get(row.run_id), row));
  runsById.value = next;
}

/** Load the tool calls of a run in progress, whose earlier events this page has not received and whose row does not
 * count them yet. */
export async function loadActiveCalls(run: RunView): Promise<void> {
  const entries = await api.listEntries(run.sessionId, { limit: 200 }).catch(() => []);
  const runEntries = entries.filter((entry) => entry.run === run.id);
  const answeredCalls = new Set(runEntries.map((entry) => (entry.kind === "tool_result" ? entry.call_id : "")));
  const calls = runEntries.filter((entry) => entry.kind === "tool_call");
  const openCalls = calls.filter((call) => !answeredCalls.has(call.id));
  const known = runsById.value.get(run.id);
  if (!known || !isActive(known) || known.toolCallCount >= calls.length) return;
  const activeCalls = new Map(openCalls.map((call) => [call.id, formatToolCall(call.tool, call.args)]));
  runsById.value = new Map(runsById.value).set(run.id, { ...known, toolCallCount: calls.length, activeCalls });
}

function mergeRow(known: RunView | undefined, row: Run): RunView {
  const isOver = !isActive(row) || (known !== undefined && !isActive(known));
  const status = known && !isActive(known) && isActive(row) ? known.status : row.status;
  return {
    id: row.run_id,
    agent: row.agent,
    sessionId: row.session_id,
    parentId: row.parent ?? known?.parentId ?? "",
    rootId: row.root,
    callId: row.call || known?.callId || "",
    summary: row.label || firstLine(row.task ?? "") || known?.summary || "its task",
    status,
    waitingFor: status === "waiting" ? (row.waiting_for ?? "") : "",
    modelRequestedAt: isOver ? "" : (known?.modelRequestedAt ?? ""),
    startedAt: row.started_at ?? row.created_at,
    endedAt: row.ended_at ?? known?.endedAt ?? null,
    toolCallCount: Math.max(known?.toolCallCount ?? 0, row.tool_calls),
    turns: Math.max(known?.turns ?? 0, row.turns),
    usage: row.usage,
    cost: row.cost,
    activeCalls: isOver ? NO_CALLS : (known?.activeCalls ?? NO_CALLS),
    note: isOver ? "" : (known?.note ?? ""),
    error: row.error ?? "",
    reason: row.reason ?? "",
    task: row.task ?? known?.task ?? "",
    childIds: row.children,
    isLoaded: true,
  };
}

function firstLine(text: string): string {
  const line = text.trim().split("\n", 1)[0] ?? "";
  return line.length > 120 ? `${line.slice(0, 119)}…` : line;
}

function newRunFromEvent(event: ServerEvent): RunView {
  return {
    id: event.run, agent: event.agent, sessionId: event.session, parentId: event.parent_run || "", rootId: "", callId: event.call ?? "",
    summary: firstLine(event.task ?? ""), status: "queued", waitingFor: "", modelRequestedAt: "", startedAt: event.at, endedAt: null,
    toolCallCount: 0, turns: 0, usage: { input: 0, output: 0 }, cost: null, activeCalls: NO_CALLS, note: "", error: "", reason: "",
    task: event.task ?? "", childIds: [], isLoaded: false,
  };
}

/** How each kind of event changes a run. Other kinds change nothing that is shown. */
const EVENT_REDUCERS: Partial<Record<ServerEvent["kind"], (run: RunView, event: ServerEvent) => RunView>> = {
  "run.queued": (run, event) => ({ ...run, status: "queued", callId: event.call || run.callId, parentId: event.parent_run || run.parentId }),
  "run.started": (run) => ({ ...run, status: "running", waitingFor: "", modelRequestedAt: "" }),
  "run.state": reduceStateEvent,
  "tool.started": (run, event) => ({ ...run, activeCalls: new Map(run.activeCalls).set(event.call ?? "", formatToolCall(event.tool ?? "", event.args ?? "")) }),
  "tool.ended": (run, event) => ({ ...run, activeCalls: withoutCall(run.activeCalls, event.call ?? "") }),
  "run.ended": (run, event) => ({
    ...run, status: event.status ?? "done", endedAt: event.at, waitingFor: "", modelRequestedAt: "", activeCalls: NO_CALLS, note: "", reason: event.reason ?? "",
  }),
};

function reduceStateEvent(run: RunView, event: ServerEvent): RunView {
  if (event.torn_tail_path) return run;
  if (event.phase === "wait") return { ...run, status: "running", waitingFor: "", modelRequestedAt: event.at, note: event.note ?? "" };
  if (event.phase === "tool") return { ...run, status: "running", waitingFor: "", modelRequestedAt: "", note: "", toolCallCount: event.total ?? run.toolCallCount, activeCalls: NO_CALLS };
  if (event.note) return { ...run, note: event.note };
  return { ...run, status: "waiting", waitingFor: event.phase ?? "", modelRequestedAt: "", note: "", reason: event.reason ?? "", error: event.error ?? "" };
}

function withoutCall(calls: ReadonlyMap<string, string>, call: string): ReadonlyMap<string, string> {
  const rest = new Map(calls);
  rest.delete(call);
  return rest;
}

export function applyEvent(event: ServerEvent): void {
  const reduce = EVENT_REDUCERS[event.kind];
  if (!reduce || !event.run) return;
  const before = runsById.value.get(event.run);
  if (before && !isActive(before) && event.kind !== "run.queued" && event.kind !== "run.started") return;
  const after = reduce(before ?? newRunFromEvent(event), event);
  runsById.value = new Map(runsById.value).set(event.run, after);
  if (!after.isLoaded || event.kind === "run.ended") runsToLoad.add(event.run);
  if (runsToLoad.size) void loadRequestedRuns();
}

const runsToLoad = new Set<string>();

const MAX_SINGLE_REQUESTS = 8;

/** Load runs for what events do not contain, such as task and cost. Many at once are loaded with the newest runs. */
const loadRequestedRuns = coalesceCalls(async () => {
  if (runsToLoad.size > MAX_SINGLE_REQUESTS) {
    const newest = await api.listRuns({ limit: 2 * runsToLoad.size });
    for (const row of newest) runsToLoad.delete(row.run_id);
    upsertRuns(newest);
  }
  const ids = [...runsToLoad].slice(0, MAX_SINGLE_REQUESTS);
  for (const id of ids) runsToLoad.delete(id);
  const rows = await Promise.all(ids.map((id) => api.getRun(id).catch(() => null)));
  upsertRuns(rows.filter((row) => row !== null));
  if (runsToLoad.size) queueMicrotask(() => void loadRequestedRuns());
}, 120);

const loadedTrees = new Set<string>();

/** Load all runs of a tree, so that children appear at their calls and numbers are right. */
export async function loadRunTree(id: string): Promise<void> {
  try {
    if (!runsById.value.get(id)?.isLoaded) upsertRuns([await api.getRun(id)]);
    const root = rootRunId(id);
    if (loadedTrees.has(root)) return;
    loadedTrees.add(root);
    upsertRuns(await api.listRuns({ root, limit: 1000 }));
  } catch (error) {
    if (!(error instanceof ApiError && error.status === 404)) reportError(error);
  }
}

/** Load the active runs after a gap in the events, and those that ended meanwhile. */
export const refreshActiveRuns = coalesceCalls(async () => {
  loadedTrees.clear();
  const rows = await api.listRuns({ live: true, limit: 500 });
  const activeIds = new Set(rows.map((row) => row.run_id));
  const endedIds = activeRuns.value.filter((run) => !activeIds.has(run.id)).map((run) => run.id);
  upsertRuns(rows);
  for (const id of endedIds) runsToLoad.add(id);
  if (endedIds.length) void loadRequestedRuns();
  for (const row of rows) if (row.parent || row.children.length) await loadRunTree(row.run_id);
});

/** Load the runs of one conversation, including ended ones, and their trees. */
export async function loadSessionRuns(session: string): Promise<void> {
  const rows = await api.listRuns({ session, limit: 100 });
  upsertRuns(rows);
  for (const row of rows) if (row.children.length || row.parent) await loadRunTree(row.run_id);
}

setInterval(() => {
  if (activeRuns.value.length && !document.hidden) currentTime.value = Date.now();
}, 500);
