/** A call of a tool: one line until it is opened, then its exact arguments and what came of it; below it, whoever it
 * set to work. */

import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { useEffect } from "preact/hooks";
import { compared, looksLikeDiff, unified, type DiffLine } from "../diff.ts";
import { byCall, family, isLive, runs, type Seen } from "../runs.ts";
import type { Called, Returned } from "../api-types.ts";
import { approvals } from "../store.ts";
import { argumentsOf, asText, gist, span, type Arguments } from "../format.ts";
import { Child } from "./child-run.tsx";
import { Icon } from "./icons.tsx";
import { Copy, Plain } from "./widgets.tsx";
import { ASKS, Question } from "./user-question.tsx";

export const DOORS: ReadonlySet<string> = new Set([
  "PersistentAgent", "agent", "agent_ask", "explore", "plan", "agents_message", "spawn_subagent", "request_review", "sessions_spawn",
]);

const LONG = 12_000;
/** Characters of a result that are shown before one asks for the rest. */

export function Call({ call, result, first }: { call: Called; result: Returned | null; first: boolean }): JSX.Element {
  const children = byCall.value.get(call.id) ?? [];
  const door = DOORS.has(call.tool);
  const run = runs.value.get(call.run);
  useEffect(() => {
    if (door && call.run && !children.length) void family(call.run);
  }, [call.id]);
  const waits = approvals.value.some((each) => each.call === call.id);
  const state = result ? (result.ok ? "ok" : "failed") : waits ? "asks" : run && isLive(run) ? "under-way" : "open";
  return (
    <div class={`call ${first ? "first" : ""}`} data-test="tool-call" data-tool={call.tool} data-state={state} data-entry={call.id}>
      <details>
        <summary>
          <State state={state} />
          <code class="tool">{call.tool}</code>
          <span class="gist"><Plain text={gist(call.args)} /></span>
          <Aside state={state} result={result} />
        </summary>
        <Inside call={call} result={result} />
      </details>
      {call.tool === ASKS && !result && run?.waitsFor === "person" && <Question call={call} />}
      {children.map((child: Seen) => <Child key={child.id} run={child} />)}
    </div>
  );
}

function State({ state }: { state: string }): JSX.Element {
  if (state === "under-way") return <span class="spin" role="img" aria-label="under way" />;
  if (state === "asks") return <span class="call-state asks"><Icon name="shield" size={14} /></span>;
  return <span class={`call-state ${state}`}><Icon name={state === "ok" ? "check" : state === "failed" ? "cross" : "more"} size={14} /></span>;
}

function Aside({ state, result }: { state: string; result: Returned | null }): JSX.Element | null {
  if (state === "asks") return <span class="quiet">waits for your answer</span>;
  if (!result) return null;
  if (!result.ok) return <span class="quiet failed">{refusalOf(result.text)?.error.replace(/_/g, " ") ?? "refused or failed"}</span>;
  return result.ms >= 100 ? <span class="quiet">{span(result.ms)}</span> : null;
}

/** A refusal that says in words what programs read in fields. */
function refusalOf(text: string): { error: string; message: string } | null {
  const found = text.startsWith("{") ? new Map(argumentsOf(text) ?? []) : null;
  const error = found?.get("error");
  const message = found?.get("message");
  return typeof error === "string" && typeof message === "string" ? { error, message } : null;
}

function Inside({ call, result }: { call: Called; result: Returned | null }): JSX.Element {
  const found = argumentsOf(call.args);
  return (
    <div class="inside">
      <div class="part"><span>Arguments</span><Copy text={call.args} what="the arguments" /></div>
      {found ? <Given tool={call.tool} found={found} /> : <pre class="block"><Plain text={call.args} /></pre>}
      {call.broken && <p class="stopped"><Icon name="alert" size={14} /> It was never run: {call.broken}</p>}
      {result && <div class="part"><span>{result.ok ? "Result" : "Refusal"}</span><Copy text={result.text} what="the result" /></div>}
      {result && !result.ok && refusalOf(result.text) && <p class="refusal"><Plain text={refusalOf(result.text)!.message} /></p>}
      {result && <Result text={result.text} />}
    </div>
  );
}

function Given({ tool, found }: { tool: string; found: Arguments }): JSX.Element {
  const values = new Map(found);
  const old = values.get("old");
  const now = values.get("new");
  if (tool === "edit" && typeof old === "string" && typeof now === "string") {
    const rest = found.filter(([name]) => name !== "old" && name !== "new");
    return <><Pairs found={rest} /><Diff lines={compared(old, now)} /></>;
  }
  const content = values.get("content");
  if (tool === "write" && typeof content === "string") {
    const rest = found.filter(([name]) => name !== "content");
    return <><Pairs found={rest} /><Diff lines={content.replace(/\n$/, "").split("\n").map((text) => ({ sign: "+", text }))} /></>;
  }
  return <Pairs found={found} />;
}

export function Pairs({ found }: { found: Arguments }): JSX.Element | null {
  if (!found.length) return <p class="quiet pad">none</p>;
  return (
    <dl class="pairs">
      {found.map(([name, value]) => <div key={name}><dt><Plain text={name} /></dt><dd><Plain text={asText(value)} /></dd></div>)}
    </dl>
  );
}

function Result({ text }: { text: string }): JSX.Element {
  const whole = useSignal(false);
  if (!text) return <p class="quiet pad">nothing</p>;
  const shown = whole.value ? text : text.slice(0, LONG);
  return (
    <>
      {looksLikeDiff(shown) ? <Diff lines={unified(shown)} /> : <pre class="block"><Plain text={shown} /></pre>}
      {shown.length < text.length && <button type="button" class="link pad" onClick={() => (whole.value = true)}>Show all {text.length.toLocaleString("en")} characters</button>}
    </>
  );
}

const NAMES = { "+": "d add", "-": "d del", "@": "d at", " ": "d" };

export function Diff({ lines }: { lines: readonly DiffLine[] }): JSX.Element {
  return (
    <pre class="block diff" data-test="diff">
      {lines.map((line, i) => (
        <span key={i} class={NAMES[line.sign]}><span class="sign">{line.sign === "@" ? " " : line.sign}</span><Plain text={line.text || " "} /></span>
      ))}
    </pre>
  );
}
