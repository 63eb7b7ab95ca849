/** The panel at the right: runs as a tree, or what sub-agents left. */

import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { useEffect } from "preact/hooks";
import { api } from "../api.ts";
import { drain, promote, show, steer } from "../actions.ts";
import { hue } from "../agent-colour.ts";
import { isLive, nameOf, put, rootOf, runs, sumOf, ticking, type Seen } from "../runs.ts";
import type { Left } from "../api-types.ts";
import { attempt, ended, inbox, openId, panel, refreshInbox, unread } from "../store.ts";
import { ago, bare, counted, dollars, span, spent, STATUS, tokens, WAITS_FOR } from "../format.ts";
import { AgentMark } from "./icons.tsx";
import { Dot, IconButton, Plain } from "./widgets.tsx";
import { Word } from "./watchers.tsx";
import { Prose } from "./messages.tsx";

export function Panels(): JSX.Element | null {
  if (!panel.value) return null;
  return (
    <aside class="panel" data-test="panel" aria-label={panel.value === "runs" ? "Runs" : "Inbox"}>
      <header>
        <div role="tablist" aria-label="Panel" class="tabs">
          <Tab what="runs" label="Runs" />
          <Tab what="inbox" label={unread.value ? `Inbox ${unread.value}` : "Inbox"} />
        </div>
        <IconButton icon="cross" label="Close the panel" test="panel-close" act={() => (panel.value = null)} />
      </header>
      {panel.value === "runs" ? <Runs /> : <Inbox />}
    </aside>
  );
}

function Tab({ what, label }: { what: "runs" | "inbox"; label: string }): JSX.Element {
  return <button type="button" role="tab" aria-selected={panel.value === what} data-test={`tab-${what}`} onClick={() => (panel.value = what)}>{label}</button>;
}

function Runs(): JSX.Element {
  const mine = useSignal(false);
  useEffect(() => {
    void attempt(async () => put(await api.runs({ limit: 100 })));
  }, []);
  const forest = trees(mine.value ? openId.value : null);
  return (
    <div class="panel-body" data-test="runs">
      {openId.value && <label class="only-mine"><input type="checkbox" checked={mine.value} onChange={(event) => (mine.value = event.currentTarget.checked)} /> Only this conversation</label>}
      {!forest.length && <p class="quiet pad">No runs. A run is one task of one session: each message you send begins one, and the agents it sets to work stand below it.</p>}
      {forest.map(([root, below]) => <ul class="tree" key={root.id}><Branch run={root} below={below} /></ul>)}
    </div>
  );
}

const MOST = 60;

/** Whole trees, those at work first, then the newest. */
function trees(session: string | null): [Seen, Map<string, Seen[]>][] {
  const below = new Map<string, Seen[]>();
  const roots: Seen[] = [];
  const all = [...runs.value.values()].sort((a, b) => (a.id < b.id ? -1 : 1));
  for (const run of all) {
    if (!run.parent || !runs.value.has(run.parent)) roots.push(run);
    else below.set(run.parent, [...(below.get(run.parent) ?? []), run]);
  }
  const wanted = session ? new Set(all.filter((run) => run.session === session).map((run) => rootOf(run.id))) : null;
  const busy = new Set(all.filter(isLive).map((run) => rootOf(run.id)));
  return roots
    .filter((run) => !wanted || wanted.has(run.id))
    .sort((a, b) => Number(busy.has(b.id)) - Number(busy.has(a.id)) || (a.id < b.id ? 1 : -1))
    .slice(0, MOST)
    .map((run) => [run, below]);
}

function Branch({ run, below }: { run: Seen; below: Map<string, Seen[]> }): JSX.Element {
  const children = below.get(run.id) ?? [];
  const sum = sumOf(run, below);
  const now = isLive(run);
  const why = run.status === "waiting" ? (WAITS_FOR[run.waitsFor] ?? "") : "";
  const took = Math.max(0, (run.endedAt ? Date.parse(run.endedAt) : now ? ticking.value : Date.parse(run.since)) - Date.parse(run.since));
  return (
    <li style={hue(run.agent)} data-test="run" data-run={run.id} data-status={run.status}>
      <div class="run">
        <button type="button" class="run-open" onClick={() => show(run.session)} title={run.error || run.about}>
          <span class="run-name"><AgentMark agent={run.agent} size={12} /><b>{nameOf(run)}</b></span>
          <span class={`state ${run.status}`}>{STATUS[run.status]}</span>
          <span class="quiet numbers">{span(took)}{run.usage.input + run.usage.output ? ` · ${tokens(run.usage.input)} in ${tokens(run.usage.output)} out` : ""}{run.cost === null ? "" : ` · ${dollars(run.cost)}`}</span>
          {children.length > 0 && sum.tokens > 0 && <span class="quiet numbers" data-test="run-sum" title={`${counted(sum.runs, "run")}: this one and those that it set to work`}>in all {spent(sum.tokens, sum.cost)}</span>}
          <span class="run-about">{why && <span class="state waiting">{why}: </span>}{run.about}</span>
        </button>
        {now && <IconButton icon="stop" label={`Stop ${nameOf(run)}`} test="run-cancel" act={() => void steer(run.id, "cancel")} />}
      </div>
      {children.length > 0 && <ul>{children.map((child) => <Branch key={child.id} run={child} below={below} />)}</ul>}
    </li>
  );
}

function Inbox(): JSX.Element {
  useEffect(() => {
    void refreshInbox();
  }, []);
  const rows = inbox.value;
  return (
    <div class="panel-body" data-test="inbox">
      {unread.value > 0 && <p class="inbox-bar"><span class="quiet">{unread.value} not taken yet</span><button type="button" class="link" data-test="drain" title="You have read them: no model is told of them any more" onClick={() => void drain()}>Mark all as read</button></p>}
      {rows && !rows.length && <p class="quiet pad" data-test="inbox-empty">Nothing here. When agents hand work to others, what those are at and what they leave is listed here, whether anybody waits for it or not.</p>}
      <ul class="lefts">{(rows ?? []).map((each) => <Item key={each.id ?? each.runId} left={each} />)}</ul>
    </div>
  );
}

function Item({ left }: { left: Left }): JSX.Element {
  return left.kind === "interjection" && left.delivery === "pending" ? <Said left={left} /> : <Result left={left} />;
}

/** What a watcher says, and nobody has set aside. */
function Said({ left }: { left: Left }): JSX.Element {
  return (
    <li class="left new" style={hue(left.agentId)} data-test="inbox-row" data-run={left.runId} data-status={left.status} data-delivery="pending">
      {left.for && <p class="left-label">{left.for}</p>}
      <Word left={left} />
    </li>
  );
}

const REVIEW = "review";
/** What whoever asks for a review calls it. */

/** What a row is, where it is more than a subtask. */
function kindOf(left: Left): string {
  if (left.kind === "interjection") return "watcher";
  if (left.label === REVIEW) return REVIEW;
  return left.capability === "subtask" ? "" : left.capability;
}

function Result({ left }: { left: Left }): JSX.Element {
  const whole = useSignal(false);
  const words = left.error ?? left.summary ?? "";
  return (
    <li class={`left ${left.delivery === "pending" && ended(left) ? "new" : ""}`} style={hue(left.agentId)} data-test="inbox-row" data-run={left.runId} data-status={left.status} data-delivery={left.delivery ?? ""}>
      <div class="left-head">
        <AgentMark agent={left.agentId} size={12} />
        <b>{left.agentId}</b>
        {kindOf(left) && <span class="kind" data-test="inbox-kind">{kindOf(left)}</span>}
        <span class={`state ${left.status}`}><Dot status={left.status} /> {left.severity ?? left.status}</span>
        <span class="quiet when">{ago(left.timestamp)}</span>
      </div>
      {left.label && left.label !== REVIEW && <p class="left-label">{left.label}</p>}
      {left.for && <p class="left-for">for <span title={left.for}>{left.for}</span></p>}
      {words && (whole.value && !left.error
        ? <div class="left-words whole"><Prose text={words} /></div>
        : <p class={`left-words ${whole.value ? "whole" : ""} ${left.error ? "failed" : ""}`}><Plain text={left.error ? words : bare(words)} /></p>)}
      <div class="left-acts">
        <button type="button" class="link" data-test="inbox-open" onClick={() => show(left.sessionId)}>Conversation</button>
        {words.length > 160 && <button type="button" class="link" aria-expanded={whole.value} onClick={() => (whole.value = !whole.value)}>{whole.value ? "Less" : "All of it"}</button>}
        {left.status === "complete" && left.id && <button type="button" class="link" data-test="promote" title="Put it into the conversation that asked, with its author's name" onClick={() => void promote(left)}>Promote</button>}
      </div>
    </li>
  );
}
