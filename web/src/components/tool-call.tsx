/** A tool call: one line that opens to show its arguments and result, and below it the child runs it started. */

import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { useEffect } from "preact/hooks";
import { type DiffLine, diffLines, looksLikeDiff, parseUnifiedDiff } from "../diff.ts";
import { isActive, loadRunTree, runsByCall, runsById, type RunView } from "../runs.ts";
import type { ToolCall, ToolResult } from "../api-types.ts";
import { approvals } from "../store.ts";
import { formatDuration, formatValue, parseArguments, summarizeArguments, type ToolArguments } from "../format.ts";
import { ChildRun } from "./child-run.tsx";
import { Icon } from "./icons.tsx";
import { CopyButton, PlainText } from "./widgets.tsx";
import { ASK_USER_TOOL, UserQuestion } from "./user-question.tsx";

export const DELEGATION_TOOLS: ReadonlySet<string> = new Set([
  "PersistentAgent", "agent", "agent_ask", "explore", "plan", "agents_message", "spawn_subagent", "request_review", "sessions_spawn",
]);

/** Characters of a result that are shown before “Show all” is clicked. */
const MAX_RESULT_CHARS = 12_000;

export function ToolCallView({ call, result, isFirst }: { call: ToolCall; result: ToolResult | null; isFirst: boolean }): JSX.Element {
  const children = runsByCall.value.get(call.id) ?? [];
  const delegates = DELEGATION_TOOLS.has(call.tool);
  const run = runsById.value.get(call.run);
  useEffect(() => {
    if (delegates && call.run && !children.length) void loadRunTree(call.run);
  }, [call.id]);
  const awaitsApproval = approvals.value.some((each) => each.call === call.id);
  const state = result ? (result.ok ? "ok" : "failed") : awaitsApproval ? "asks" : run && isActive(run) ? "under-way" : "open";
  return (
    <div class={`tool-call ${isFirst ? "first" : ""}`} data-test="tool-call" data-tool={call.tool} data-state={state} data-entry={call.id}>
      <details>
        <summary>
          <CallStateIcon state={state} />
          <code class="tool-name">{call.tool}</code>
          <span class="gist"><PlainText text={summarizeArguments(call.args)} /></span>
          <CallOutcome state={state} result={result} />
        </summary>
        <CallDetails call={call} result={result} />
      </details>
      {call.tool === ASK_USER_TOOL && !result && run?.waitingFor === "person" && <UserQuestion call={call} />}
      {children.map((child: RunView) => <ChildRun key={child.id} run={child} />)}
    </div>
  );
}

function CallStateIcon({ state }: { state: string }): JSX.Element {
  if (state === "under-way") return <span class="spinner" role="img" aria-label="running" />;
  if (state === "asks") return <span class="tool-call-state asks"><Icon name="shield" size={14} /></span>;
  return <span class={`tool-call-state ${state}`}><Icon name={state === "ok" ? "check" : state === "failed" ? "cross" : "more"} size={14} /></span>;
}

function CallOutcome({ state, result }: { state: string; result: ToolResult | null }): JSX.Element | null {
  if (state === "asks") return <span class="muted">waiting for your approval</span>;
  if (!result) return null;
  if (!result.ok) return <span class="muted failed">{parseToolError(result.text)?.error.replace(/_/g, " ") ?? "failed"}</span>;
  return result.duration_ms >= 100 ? <span class="muted">{formatDuration(result.duration_ms)}</span> : null;
}

/** The error and message of a result that is a JSON error, or null. */
function parseToolError(text: string): { error: string; message: string } | null {
  const fields = text.startsWith("{") ? new Map(parseArguments(text) ?? []) : null;
  const error = fields?.get("error");
  const message = fields?.get("message");
  return typeof error === "string" && typeof message === "string" ? { error, message } : null;
}

function CallDetails({ call, result }: { call: ToolCall; result: ToolResult | null }): JSX.Element {
  const args = parseArguments(call.args);
  return (
    <div class="inside">
      <div class="call-section"><span>Arguments</span><CopyButton text={call.args} what="the arguments" /></div>
      {args ? <CallArguments tool={call.tool} args={args} /> : <pre class="block"><PlainText text={call.args} /></pre>}
      {call.invalid_reason && <p class="stopped"><Icon name="alert" size={14} /> Not executed: {call.invalid_reason}</p>}
      {result && <div class="call-section"><span>{result.ok ? "Result" : "Error"}</span><CopyButton text={result.text} what="the result" /></div>}
      {result && !result.ok && parseToolError(result.text) && <p class="refusal"><PlainText text={parseToolError(result.text)!.message} /></p>}
      {result && <ResultText text={result.text} />}
    </div>
  );
}

function CallArguments({ tool, args }: { tool: string; args: ToolArguments }): JSX.Element {
  const values = new Map(args);
  const oldText = values.get("old");
  const newText = values.get("new");
  if (tool === "edit" && typeof oldText === "string" && typeof newText === "string") {
    const rest = args.filter(([name]) => name !== "old" && name !== "new");
    return <><ArgumentList args={rest} /><DiffView lines={diffLines(oldText, newText)} /></>;
  }
  const content = values.get("content");
  if (tool === "write" && typeof content === "string") {
    const rest = args.filter(([name]) => name !== "content");
    return <><ArgumentList args={rest} /><DiffView lines={content.replace(/\n$/, "").split("\n").map((text) => ({ sign: "+", text }))} /></>;
  }
  return <ArgumentList args={args} />;
}

export function ArgumentList({ args }: { args: ToolArguments }): JSX.Element | null {
  if (!args.length) return <p class="muted padded">none</p>;
  return (
    <dl class="argument-list">
      {args.map(([name, value]) => <div key={name}><dt><PlainText text={name} /></dt><dd><PlainText text={formatValue(value)} /></dd></div>)}
    </dl>
  );
}

function ResultText({ text }: { text: string }): JSX.Element {
  const isExpanded = useSignal(false);
  if (!text) return <p class="muted padded">empty</p>;
  const shown = isExpanded.value ? text : text.slice(0, MAX_RESULT_CHARS);
  return (
    <>
      {looksLikeDiff(shown) ? <DiffView lines={parseUnifiedDiff(shown)} /> : <pre class="block"><PlainText text={shown} /></pre>}
      {shown.length < text.length && <button type="button" class="link padded" onClick={() => (isExpanded.value = true)}>Show all {text.length.toLocaleString("en")} characters</button>}
    </>
  );
}

const DIFF_LINE_CLASSES = { "+": "d add", "-": "d del", "@": "d at", " ": "d" };

export function DiffView({ lines }: { lines: readonly DiffLine[] }): JSX.Element {
  return (
    <pre class="block diff" data-test="diff">
      {lines.map((line, i) => (
        <span key={i} class={DIFF_LINE_CLASSES[line.sign]}><span class="sign">{line.sign === "@" ? " " : line.sign}</span><PlainText text={line.text || " "} /></span>
      ))}
    </pre>
  );
}
