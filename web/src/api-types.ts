/** The daemon's JSON, as it arrives. */

export interface Health {
  version: string;
  pid: number;
  started_at: string;
  sandbox: string | null;
  model: string | null;
  demonstration: boolean;
  counts: Record<string, number>;
  seq: number;
}

export interface Agent {
  name: string;
  display_name: string | null;
  description: string;
  model: string | null;
  roles: string[];
  source: string;
  ui_visible?: boolean;
  visible?: boolean;
  triggers: { slash: string[]; hotkeys: string[] };
}

export interface Watcher {
  id: string;
  /** For example `pair#2`, the second watcher of its session. */
  name: string;
  agent: string;
  agent_display_name: string | null;
  session: string;
  slug: string;
  watcher: string;
  watching: boolean;
}

export type SessionStatus = "idle" | "queued" | "running" | "waiting";

export interface Session {
  session_id: string;
  slug: string;
  key: string;
  agent: string;
  agent_display_name: string | null;
  name: string | null;
  branch: string;
  parent_session_id: string | null;
  parent: string | null;
  type: "branch" | "agent";
  depth: number;
  path: string;
  created_at: string;
  updated_at: string;
  pinned_at: string | null;
  last_snippet: string;
  attributes: Record<string, unknown>;
  workspace: { root: string; isolation: string; writable: boolean; label: string | null } | null;
  status: SessionStatus;
  waiting_for?: string | null;
  run?: string | null;
  /** Only when one session is requested, not in lists. */
  entries?: number;
  problems?: string[];
  draft?: string | null;
}

export interface Message {
  kind: "message";
  id: string;
  role: "user" | "agent";
  text: string;
  at: string;
  origin: string;
  run: string;
  model: string;
  usage: Usage;
  stop_reason: string;
  tool_call_count: number;
}

export interface ToolCall {
  kind: "tool_call";
  id: string;
  tool: string;
  args: string;
  at: string;
  run: string;
  invalid_reason: string;
}

export interface ToolResult {
  kind: "tool_result";
  id: string;
  call_id: string;
  text: string;
  ok: boolean;
  duration_ms: number;
  at: string;
  run: string;
}

export interface Notice {
  kind: "notice";
  /** Why the runtime added the notice: announcement, resumed, nudge, interrupted, … */
  topic: string;
  id: string;
  text: string;
  at: string;
  run: string;
}

export type TranscriptEntry = Message | ToolCall | ToolResult | Notice;

export interface Usage {
  input: number;
  output: number;
}

export type RunStatus = "queued" | "running" | "waiting" | "done" | "failed" | "cancelled" | "timed_out" | "lost";

export interface Run {
  run_id: string;
  session_id: string;
  slug: string;
  key: string;
  agent: string;
  status: RunStatus;
  waiting_for: string | null;
  reason: string | null;
  text: string;
  error: string | null;
  turns: number;
  tool_calls: number;
  usage: Usage;
  /** US dollars; null if the model has no price. */
  cost: number | null;
  started_at: string | null;
  ended_at: string | null;
  duration_ms: number | null;
  path: string;
  children: string[];
  parent: string | null;
  depth: number;
  label: string | null;
  task: string | null;
  model: string | null;
  source: string;
  entry_point: string;
  created_at: string;
  /** The tool call that started the run. */
  call: string | null;
  /** The first run of the tree; the run's own id if it has no parent. */
  root: string;
}

export interface InboxItem {
  id: string | null;
  sessionId: string;
  sessionKey: string;
  runId: string;
  agentId: string;
  agentDisplayName: string | null;
  capability: string;
  label: string | null;
  status: "pending" | "running" | "waiting" | "complete" | "error";
  summary: string | null;
  error: string | null;
  timestamp: string;
  stats: { turns: number; toolCalls: number; inputTokens: number; outputTokens: number; durationMs: number | null };
  delivery: "pending" | "delivered" | "failed" | "discarded" | null;
  transcript: string;
  recipient: string | null;
  kind: "result" | "interjection";
  severity: "info" | "warning" | "interrupt" | null;
  reason: string | null;
  suggestion: string | null;
  /** The run whose turn the interjection interrupted. */
  interrupts: string | null;
}

export type ApprovalDecision = "allow" | "deny" | "add";

export interface Approval {
  id: string;
  run_id: string;
  session_id: string;
  agent: string;
  call: string;
  tool: string;
  access: "read" | "write" | "run" | "tool" | "scope";
  resource: string;
  args: string;
  reason: string | null;
  workspace: string | null;
  sandbox: string | null;
  files: { path: string; sha256: string; size: number }[];
  files_note: string | null;
  chain: string[];
  /** What adding this to the session's scope would allow. */
  add_effect: string | null;
  warning: string | null;
  digest: string;
  state: string;
  asked_at: string;
  expires_at: string;
}

export interface SendMessageResponse {
  status: string;
  responseId: string;
  sessionId: string;
  message?: string;
}

export const EVENT_KINDS = [
  "run.queued", "run.started", "run.state", "run.ended",
  "text.delta", "thinking.delta", "text.discarded",
  "tool.started", "tool.ended", "entry.saved",
  "announcement.posted", "announcement.delivered",
  "approval.asked", "approval.answered", "session.changed",
  "watch.started", "watch.ended", "interjection.posted", "interjection.dismissed", "events.reset",
] as const;

export type EventKind = (typeof EVENT_KINDS)[number];

export interface ServerEvent {
  kind: EventKind;
  seq: number;
  live_seq?: number;
  at: string;
  session: string;
  run: string;
  parent_run: string;
  agent: string;
  phase?: string;
  text?: string;
  note?: string;
  tool?: string;
  args?: string;
  call?: string;
  ok?: boolean;
  entry?: string;
  entry_kind?: string;
  status?: RunStatus;
  reason?: string | null;
  /** Why a waiting run waits. */
  error?: string;
  duration_ms?: number | null;
  total?: number;
  task?: string;
  torn_tail_path?: string;
  interjection?: string;
  severity?: string;
  name?: string;
}
