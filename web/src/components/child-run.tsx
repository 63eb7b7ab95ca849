/** A child run at the tool call that started it: a card while active, then one line that opens its conversation. */

import type { JSX } from "preact";
import { useEffect } from "preact/hooks";
import { controlRun, showSession } from "../actions.ts";
import { agentHueStyle } from "../agent-colour.ts";
import { currentTime, isActive, loadActiveCalls, runName, type RunView, subtreeTotals, waitLabel } from "../runs.ts";
import { formatDollars, formatDuration, formatUsage, RUN_STATUS_LABELS } from "../format.ts";
import { AgentIcon, Icon } from "./icons.tsx";
import { IconButton } from "./widgets.tsx";
import { agentTitle } from "../agent-title.ts";

export function ChildRun({ run }: { run: RunView }): JSX.Element {
  return isActive(run) ? <ActiveChildCard run={run} /> : <FinishedChildLine run={run} />;
}

function ActiveChildCard({ run }: { run: RunView }): JSX.Element {
  useEffect(() => {
    if (run.status !== "queued" && !run.toolCallCount) void loadActiveCalls(run);
  }, [run.id]);
  return (
    <section class="card" style={agentHueStyle(run.agent)} data-test="card" data-run={run.id} data-status={run.status} aria-label={`${agentTitle(run.agent)} is running`}>
      <div class="card-head">
        <button type="button" class="card-title" onClick={() => showSession(run.sessionId)} title="Open its conversation" data-test="card-open">
          <AgentIcon agent={run.agent} />
          <span data-test="card-title">{agentTitle(run.agent)} Task: {run.summary}</span>
        </button>
        <span class="muted">{runName(run)} {RUN_STATUS_LABELS[run.status]} {[formatDuration(Math.max(0, currentTime.value - Date.parse(run.startedAt))), run.cost ? formatDollars(run.cost) : ""].filter(Boolean).join(" · ")}</span>
        <IconButton icon="stop" label={`Stop ${runName(run)}`} testId="card-cancel" onClick={() => void controlRun(run.id, "cancel")} />
      </div>
      <div class="card-status" data-test="card-status">{progressText(run)}</div>
      {run.activeCalls.size > 0 && <ul class="card-calls">{[...run.activeCalls.entries()].slice(0, 3).map(([id, description]) => <li key={id}>{description}</li>)}</ul>}
    </section>
  );
}

/** Duration of a model request after which the card shows that the run waits. */
const SLOW_MODEL_MS = 1500;

function progressText(run: RunView): string {
  if (run.status === "waiting" && run.waitingFor && run.waitingFor !== "child") return `Waiting ${waitLabel(run)}`;
  const isModelSlow = run.modelRequestedAt !== "" && currentTime.value - Date.parse(run.modelRequestedAt) >= SLOW_MODEL_MS;
  if (isModelSlow) return "Waiting...";
  return run.toolCallCount ? `Calling Tools... (+${run.toolCallCount})` : run.status === "queued" ? "Queued..." : "Starting...";
}

function FinishedChildLine({ run }: { run: RunView }): JSX.Element {
  const duration = run.endedAt ? formatDuration(Math.max(0, Date.parse(run.endedAt) - Date.parse(run.startedAt))) : "";
  const totals = subtreeTotals(run);
  return (
    <button type="button" class="child-line" style={agentHueStyle(run.agent)} onClick={() => showSession(run.sessionId)} data-test="child-line" data-run={run.id} data-status={run.status}>
      <AgentIcon agent={run.agent} />
      <b>{runName(run)}</b>
      <span class={`state ${run.status}`}>{RUN_STATUS_LABELS[run.status]}</span>
      <span class="gist">{run.error || run.summary}</span>
      <span class="muted" data-test="child-cost" title={totals.runs > 1 ? "Including its sub-agents" : ""}>{[duration, formatUsage(totals.tokens, totals.cost)].filter(Boolean).join(" · ")}</span>
      <Icon name="right" size={14} />
    </button>
  );
}
