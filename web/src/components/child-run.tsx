/** A child at the call that asked for it: a card while it lives, one line that opens its conversation afterwards. */

import type { JSX } from "preact";
import { useEffect } from "preact/hooks";
import { show, steer } from "../actions.ts";
import { hue } from "../agent-colour.ts";
import { isLive, nameOf, overhear, sumOf, ticking, type Seen } from "../runs.ts";
import { capital, dollars, span, spent, STATUS, WAITS_FOR } from "../format.ts";
import { AgentMark, Icon } from "./icons.tsx";
import { IconButton } from "./widgets.tsx";

export function Child({ run }: { run: Seen }): JSX.Element {
  return isLive(run) ? <Card run={run} /> : <After run={run} />;
}

function Card({ run }: { run: Seen }): JSX.Element {
  useEffect(() => {
    if (run.status !== "queued" && !run.total) void overhear(run);
  }, [run.id]);
  return (
    <section class="card" style={hue(run.agent)} data-test="card" data-run={run.id} data-status={run.status} aria-label={`${capital(run.agent)} at work`}>
      <div class="card-head">
        <button type="button" class="card-title" onClick={() => show(run.session)} title="Open its conversation" data-test="card-open">
          <AgentMark agent={run.agent} />
          <span data-test="card-title">{capital(run.agent)} Task: {run.about}</span>
        </button>
        <span class="quiet">{nameOf(run)} {STATUS[run.status]} {[span(Math.max(0, ticking.value - Date.parse(run.since))), run.cost ? dollars(run.cost) : ""].filter(Boolean).join(" · ")}</span>
        <IconButton icon="stop" label={`Stop ${nameOf(run)}`} test="card-cancel" act={() => void steer(run.id, "cancel")} />
      </div>
      <div class="card-status" data-test="card-status">{statusOf(run)}</div>
      {run.doing.size > 0 && <ul class="card-calls">{[...run.doing.entries()].slice(0, 3).map(([id, words]) => <li key={id}>{words}</li>)}</ul>}
    </section>
  );
}

const PATIENCE = 1500;
/** How long a card says nothing of a silent model, once tools were called. */

function statusOf(run: Seen): string {
  if (run.status === "waiting" && run.waitsFor && run.waitsFor !== "child") return `Waiting ${WAITS_FOR[run.waitsFor] ?? ""}`;
  const silent = run.asked !== "" && ticking.value - Date.parse(run.asked) >= PATIENCE;
  return run.total && !silent ? `Calling Tools... (+${run.total})` : "Waiting...";
}

function After({ run }: { run: Seen }): JSX.Element {
  const took = run.endedAt ? span(Math.max(0, Date.parse(run.endedAt) - Date.parse(run.since))) : "";
  const sum = sumOf(run);
  return (
    <button type="button" class="child-line" style={hue(run.agent)} onClick={() => show(run.session)} data-test="child-line" data-run={run.id} data-status={run.status}>
      <AgentMark agent={run.agent} />
      <b>{nameOf(run)}</b>
      <span class={`state ${run.status}`}>{STATUS[run.status]}</span>
      <span class="gist">{run.error || run.about}</span>
      <span class="quiet" data-test="child-cost" title={sum.runs > 1 ? "With those that it set to work" : ""}>{[took, spent(sum.tokens, sum.cost)].filter(Boolean).join(" · ")}</span>
      <Icon name="right" size={14} />
    </button>
  );
}
