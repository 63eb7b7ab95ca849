/** The panel at the right: the run trees, or the inbox. */

import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { useEffect } from "preact/hooks";
import { api } from "../api.ts";
import { controlRun, markInboxRead, promoteResult, showSession } from "../actions.ts";
import { agentName } from "../agent-title.ts";
import { agentHueStyle } from "../agent-colour.ts";
import { currentTime, isActive, rootRunId, runName, runsById, type RunView, subtreeTotals, upsertRuns, waitLabel } from "../runs.ts";
import type { InboxItem } from "../api-types.ts";
import { inbox, isFinished, openSessionId, panel, refreshInbox, tryOrReport, unreadCount } from "../store.ts";
import { formatAge, formatCount, formatDollars, formatDuration, formatTokens, formatUsage, RUN_STATUS_LABELS, stripMarkdown } from "../format.ts";
import { AgentIcon } from "./icons.tsx";
import { IconButton, PlainText, StatusDot } from "./widgets.tsx";
import { InterjectionCard } from "./watchers.tsx";
import { Markdown } from "./messages.tsx";

export function SidePanel(): JSX.Element | null {
  if (!panel.value) return null;
  return (
    <aside class="panel" data-test="panel" aria-label={panel.value === "runs" ? "Runs" : "Inbox"}>
      <header>
        <div role="tablist" aria-label="Panel" class="tabs">
          <PanelTab tab="runs" label="Runs" />
          <PanelTab tab="inbox" label={unreadCount.value ? `Inbox ${unreadCount.value}` : "Inbox"} />
        </div>
        <IconButton icon="cross" label="Close the panel" testId="panel-close" onClick={() => (panel.value = null)} />
      </header>
      {panel.value === "runs" ? <RunsPanel /> : <InboxPanel />}
    </aside>
  );
}

function PanelTab({ tab, label }: { tab: "runs" | "inbox"; label: string }): JSX.Element {
  return <button type="button" role="tab" aria-selected={panel.value === tab} data-test={`tab-${tab}`} onClick={() => (panel.value = tab)}>{label}</button>;
}

function RunsPanel(): JSX.Element {
  const onlyThisSession = useSignal(false);
  useEffect(() => {
    void tryOrReport(async () => upsertRuns(await api.listRuns({ limit: 100 })));
  }, []);
  const trees = runTrees(onlyThisSession.value ? openSessionId.value : null);
  return (
    <div class="panel-body" data-test="runs">
      {openSessionId.value && <label class="run-filter"><input type="checkbox" checked={onlyThisSession.value} onChange={(event) => (onlyThisSession.value = event.currentTarget.checked)} /> Only this conversation</label>}
      {!trees.length && <p class="muted padded">No runs. Each message you send starts a run; the runs of its sub-agents are listed below it.</p>}
      {trees.map(([root, childrenByRun]) => <ul class="tree" key={root.id}><RunTreeNode run={root} childrenByRun={childrenByRun} /></ul>)}
    </div>
  );
}

const MAX_TREES = 60;

/** Whole trees, active ones first, then the newest. */
function runTrees(session: string | null): [RunView, Map<string, RunView[]>][] {
  const childrenByRun = new Map<string, RunView[]>();
  const roots: RunView[] = [];
  const allRuns = [...runsById.value.values()].sort((a, b) => (a.id < b.id ? -1 : 1));
  for (const run of allRuns) {
    if (!run.parentId || !runsById.value.has(run.parentId)) roots.push(run);
    else childrenByRun.set(run.parentId, [...(childrenByRun.get(run.parentId) ?? []), run]);
  }
  const wantedRoots = session ? new Set(allRuns.filter((run) => run.sessionId === session).map((run) => rootRunId(run.id))) : null;
  const activeRoots = new Set(allRuns.filter(isActive).map((run) => rootRunId(run.id)));
  return roots
    .filter((run) => !wantedRoots || wantedRoots.has(run.id))
    .sort((a, b) => Number(activeRoots.has(b.id)) - Number(activeRoots.has(a.id)) || (a.id < b.id ? 1 : -1))
    .slice(0, MAX_TREES)
    .map((run) => [run, childrenByRun]);
}

function RunTreeNode({ run, childrenByRun }: { run: RunView; childrenByRun: Map<string, RunView[]> }): JSX.Element {
  const childRuns = childrenByRun.get(run.id) ?? [];
  const totals = subtreeTotals(run, childrenByRun);
  const active = isActive(run);
  const reason = waitLabel(run);
  const durationMs = Math.max(0, (run.endedAt ? Date.parse(run.endedAt) : active ? currentTime.value : Date.parse(run.startedAt)) - Date.parse(run.startedAt));
  return (
    <li style={agentHueStyle(run.agent)} data-test="run" data-run={run.id} data-status={run.status}>
      <div class="run">
        <button type="button" class="run-open" onClick={() => showSession(run.sessionId)} title={run.error || run.summary}>
          <span class="run-name"><AgentIcon agent={run.agent} size={12} /><b>{runName(run)}</b></span>
          <span class={`state ${run.status}`}>{RUN_STATUS_LABELS[run.status]}</span>
          <span class="muted run-stats">{formatDuration(durationMs)}{run.usage.input + run.usage.output ? ` · ${formatTokens(run.usage.input)} in ${formatTokens(run.usage.output)} out` : ""}{run.cost === null ? "" : ` · ${formatDollars(run.cost)}`}</span>
          {childRuns.length > 0 && totals.tokens > 0 && <span class="muted run-stats" data-test="run-sum" title={`${formatCount(totals.runs, "run")}, including sub-agents`}>total {formatUsage(totals.tokens, totals.cost)}</span>}
          <span class="run-summary">{reason && <span class="state waiting">Waiting {reason}: </span>}{run.summary}</span>
        </button>
        {active && <IconButton icon="stop" label={`Stop ${runName(run)}`} testId="run-cancel" onClick={() => void controlRun(run.id, "cancel")} />}
      </div>
      {childRuns.length > 0 && <ul>{childRuns.map((child) => <RunTreeNode key={child.id} run={child} childrenByRun={childrenByRun} />)}</ul>}
    </li>
  );
}

function InboxPanel(): JSX.Element {
  useEffect(() => {
    void refreshInbox();
  }, []);
  const rows = inbox.value;
  return (
    <div class="panel-body" data-test="inbox">
      {unreadCount.value > 0 && <p class="inbox-bar"><span class="muted">{unreadCount.value} unread</span><button type="button" class="link" data-test="drain" title="Mark as read, so that no agent receives them" onClick={() => void markInboxRead()}>Mark all as read</button></p>}
      {rows && !rows.length && <p class="muted padded" data-test="inbox-empty">Empty. The status and results of delegated tasks are listed here.</p>}
      <ul class="inbox-list">{(rows ?? []).map((each) => <InboxRow key={each.id ?? each.runId} item={each} />)}</ul>
    </div>
  );
}

function InboxRow({ item }: { item: InboxItem }): JSX.Element {
  return item.kind === "interjection" && item.delivery === "pending" ? <InterjectionRow item={item} /> : <ResultRow item={item} />;
}

/** An interjection that nobody has dismissed. */
function InterjectionRow({ item }: { item: InboxItem }): JSX.Element {
  return (
    <li class="inbox-item new" style={agentHueStyle(item.agentId)} data-test="inbox-row" data-run={item.runId} data-status={item.status} data-delivery="pending">
      {item.recipient && <p class="inbox-item-label">{item.recipient}</p>}
      <InterjectionCard item={item} />
    </li>
  );
}

/** The label of runs that the `request_review` tool starts. */
const REVIEW_LABEL = "review";

/** What the item is, if it is more than a subtask. */
function kindLabel(item: InboxItem): string {
  if (item.kind === "interjection") return "watcher";
  if (item.label === REVIEW_LABEL) return REVIEW_LABEL;
  return item.capability === "subtask" ? "" : item.capability;
}

function ResultRow({ item }: { item: InboxItem }): JSX.Element {
  const isExpanded = useSignal(false);
  const text = item.error ?? item.summary ?? "";
  return (
    <li class={`inbox-item ${item.delivery === "pending" && isFinished(item) ? "new" : ""}`} style={agentHueStyle(item.agentId)} data-test="inbox-row" data-run={item.runId} data-status={item.status} data-delivery={item.delivery ?? ""}>
      <div class="inbox-item-header">
        <AgentIcon agent={item.agentId} size={12} />
        <b>{agentName(item.agentId, item.agentDisplayName)}</b>
        {kindLabel(item) && <span class="inbox-item-kind" data-test="inbox-kind">{kindLabel(item)}</span>}
        <span class={`state ${item.status}`}><StatusDot status={item.status} /> {item.severity ?? item.status}</span>
        <span class="muted when">{formatAge(item.timestamp)}</span>
      </div>
      {item.label && item.label !== REVIEW_LABEL && <p class="inbox-item-label">{item.label}</p>}
      {item.recipient && <p class="inbox-item-for">for <span title={item.recipient}>{item.recipient}</span></p>}
      {text && (isExpanded.value && !item.error
        ? <div class="inbox-item-text expanded"><Markdown text={text} /></div>
        : <p class={`inbox-item-text ${isExpanded.value ? "expanded" : ""} ${item.error ? "failed" : ""}`}><PlainText text={item.error ? text : stripMarkdown(text)} /></p>)}
      <div class="inbox-item-actions">
        <button type="button" class="link" data-test="inbox-open" onClick={() => showSession(item.sessionId)}>Conversation</button>
        {text.length > 160 && <button type="button" class="link" aria-expanded={isExpanded.value} onClick={() => (isExpanded.value = !isExpanded.value)}>{isExpanded.value ? "Show less" : "Show all"}</button>}
        {item.status === "complete" && item.id && <button type="button" class="link" data-test="promote" title="Add this result to the parent conversation" onClick={() => void promoteResult(item)}>Add to conversation</button>}
      </div>
    </li>
  );
}
