/** What was said: a person's words, an agent's, the runtime's, and words that are still coming. */

import type { JSX } from "preact";
import { useMemo } from "preact/hooks";
import { branch, copy, show, steer } from "../actions.ts";
import { hue } from "../agent-colour.ts";
import { render, rendered } from "../markdown.ts";
import { type Seen } from "../runs.ts";
import type { Notice, Said } from "../api-types.ts";
import { open, sessions } from "../store.ts";
import type { Flow } from "../streaming-replies.ts";
import type { Pending } from "../pending-messages.ts";
import { capital, clock, reported, STATUS, titleOf, tokens } from "../format.ts";
import { AgentMark, Icon } from "./icons.tsx";
import { Copy, IconButton, Plain } from "./widgets.tsx";

export function Prose({ text, growing = false }: { text: string; growing?: boolean }): JSX.Element {
  const html = useMemo(() => (growing ? render(text) : rendered(text)), [text, growing]);
  return <div class="prose" dir="auto" onClick={onProse} dangerouslySetInnerHTML={{ __html: html }} />;
}

/** The copy buttons of code are drawn by the renderer; their clicks arrive here. */
function onProse(event: MouseEvent): void {
  const button = (event.target as Element).closest<HTMLButtonElement>("button.copy-code");
  const code = button?.closest(".code")?.querySelector("code");
  if (!button || !code) return;
  const lines = [...code.querySelectorAll(".d")].map((line) => line.textContent);
  void copy(lines.length ? lines.join("\n") : (code.textContent ?? "").replace(/\n$/, ""), "the code").then((done) => {
    if (!done) return;
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = "Copy"), 1200);
  });
}

export function Words({ said, thinking, again }: { said: Said; thinking: string; again: boolean }): JSX.Element {
  return said.by === "user" ? <Asked said={said} /> : <Replied said={said} thinking={thinking} again={again} />;
}

function Asked({ said }: { said: Said }): JSX.Element {
  const asker = said.origin ? sessions.value?.find((each) => each.key === said.origin) : undefined;
  const from = said.origin.startsWith("agent:") ? said.origin.slice(6) : (asker?.agent ?? "");
  const who = capital(from) || said.origin;
  return (
    <article class={`said asked ${who ? "by-agent" : ""}`} style={hue(from || open.value?.agent || "")} data-test="said-user" data-entry={said.id} aria-label={who ? `${who} says` : "You say"}>
      <header>
        {who ? <><AgentMark agent={from || who} /><b><Plain text={who} /></b></> : <b>You</b>}
        {asker && <button type="button" class="link small" onClick={() => show(asker.session_id)} title="The conversation that asked">{titleOf(asker)}</button>}
        <Under said={said} />
      </header>
      {who ? <Passed text={said.text} /> : <div class="typed" dir="auto">{said.text}</div>}
    </article>
  );
}

/** Words of an agent; where the runtime passed them on, without what it told the model about them. */
function Passed({ text }: { text: string }): JSX.Element {
  const report = useMemo(() => reported(text), [text]);
  if (!report) return <Prose text={text} />;
  return (
    <>
      {report.intro && <p class="quiet passed"><Plain text={report.intro.replace(/:$/, ".")} /></p>}
      <Prose text={report.body} />
      {report.facts && <details class="facts-of"><summary>What is known of it</summary><pre class="block"><Plain text={report.facts} /></pre></details>}
    </>
  );
}

function Replied({ said, thinking, again }: { said: Said; thinking: string; again: boolean }): JSX.Element {
  const agent = open.value?.agent ?? "";
  return (
    <article class={`said replied ${again ? "again" : ""}`} style={hue(agent)} data-test="said-agent" data-entry={said.id} aria-label={`${agent} says`}>
      <header>{!again && <><AgentMark agent={agent} /><b>{capital(agent)}</b></>}<Under said={said} /></header>
      {thinking && <Thinking text={thinking} />}
      {said.text.trim() && <Prose text={said.text} />}
      {said.stop && <p class="stopped" data-test="stopped"><Icon name="alert" size={14} /> {STOPS[said.stop] ?? `Ended early: ${said.stop}.`}</p>}
    </article>
  );
}

const STOPS: Record<string, string> = {
  length: "The model reached its longest reply here: ask it to go on.",
  refused: "The model refused to answer this.",
  cancelled: "Stopped here.",
};

/** What one can do with words, and when they were said: quiet until looked at. */
function Under({ said }: { said: Said }): JSX.Element {
  const session = open.value;
  return (
    <span class="under">
      <span class="acts">
        {said.text && <Copy text={said.text} what="the message" />}
        {session?.type === "branch" && <IconButton icon="branch" label={said.by === "user" ? "Branch from here, to say it differently" : "Branch from here"} test="branch" act={() => void branch(session, said)} />}
      </span>
      {said.by === "agent" && said.usage.output > 0 && <span title={`${said.usage.input} tokens in, ${said.usage.output} out · ${said.model}`}>{tokens(said.usage.output)} tok</span>}
      <time dateTime={said.at}>{clock(said.at)}</time>
    </span>
  );
}

function Thinking({ text, now = false }: { text: string; now?: boolean }): JSX.Element {
  return (
    <details class="thinking" data-test="thinking">
      <summary><Icon name="thought" size={14} /> {now ? "Thinking…" : "Thoughts"}</summary>
      <div class="thoughts">{text}</div>
    </details>
  );
}

export function Coming({ flow, again }: { flow: Flow; again: boolean }): JSX.Element {
  const agent = open.value?.agent ?? "";
  return (
    <article class={`said replied coming ${again ? "again" : ""}`} style={hue(agent)} data-test="streaming" aria-label={`${agent} is speaking`}>
      {!again && <header><AgentMark agent={agent} /><b>{capital(agent)}</b></header>}
      {flow.thinking && <Thinking text={flow.thinking} now={!flow.text} />}
      {flow.text && <Prose text={(flow.cut ? "… " : "") + flow.text} growing />}
    </article>
  );
}

export function OnItsWay({ sent }: { sent: Pending }): JSX.Element {
  return (
    <article class="said asked on-its-way" data-test="pending" aria-label="You say">
      <header><b>You</b><span class="quiet">{sent.run ? "sent" : "sending…"}</span></header>
      <div class="typed" dir="auto">{sent.text}</div>
    </article>
  );
}

export function Queued({ run }: { run: Seen }): JSX.Element {
  return (
    <article class="said asked on-its-way" data-test="queued" data-run={run.id} aria-label="Queued">
      <header>
        <b>{run.parent ? run.agent : "You"}</b>
        <span class="tag"><Icon name="queue" size={12} /> queued</span>
        <span class="under"><span class="acts shown"><button type="button" class="link" onClick={() => void steer(run.id, "cancel")}>Take back</button></span></span>
      </header>
      <div class="typed" dir="auto">{run.task}</div>
    </article>
  );
}

const TITLES: Record<string, string> = {
  announcement: "A result came in",
  resumed: "Taken up again after an interruption",
  interrupted: "Asked to stop and sum up",
  nudge: "Reminded to answer",
};

/** What the runtime tells the model: never anybody's words. */
export function Told({ notice }: { notice: Notice }): JSX.Element {
  const agent = /^report run=\S+ agent=(\S+)/.exec(notice.text)?.[1] ?? "";
  const key = / session=(\S+)/.exec(notice.text)?.[1];
  const from = key ? sessions.value?.find((each) => each.key === key) : undefined;
  const report = notice.about === "announcement" && reported(notice.text) !== null;
  const title = notice.about === "announcement" && agent ? `A result came in from ${agent}` : (TITLES[notice.about] ?? capital(notice.about || "notice"));
  return (
    <details class="notice" style={hue(agent)} data-test="notice">
      <summary>
        {agent ? <AgentMark agent={agent} /> : <Icon name="inbox" size={14} />} <span>{title}</span>
        {from && <button type="button" class="link" onClick={(event) => { event.preventDefault(); show(from.session_id); }}>Open its conversation</button>}
      </summary>
      {report ? <Passed text={notice.text} /> : <pre class="block"><Plain text={notice.text} /></pre>}
    </details>
  );
}

/** A run that did not come to a good end, where it stopped. */
export function Fell({ run }: { run: Seen }): JSX.Element {
  const can = run.status === "lost" || run.status === "failed" || run.status === "timed_out";
  return (
    <div class={`fell ${run.status}`} data-test="run-ended" data-status={run.status} role="note">
      <Icon name={run.status === "cancelled" ? "stop" : "alert"} size={14} />
      <span>
        {ENDS[run.reason] ?? <><b>{capital(STATUS[run.status])}</b>{run.error && <>: {run.error.replace(/\.?$/, ".")}</>}</>}
        {can && ADVICE[run.reason] && <span class="advice"> {ADVICE[run.reason]}</span>}
      </span>
    </div>
  );
}

const ENDS: Record<string, string> = {
  user_cancel: "Stopped here by a person.",
  interrupted: "Interrupted by a person: it summed up and stopped.",
  deserted: "Stopped here, with the run that asked for it.",
};

const ADVICE: Record<string, string> = {
  auth: "Give the daemon a valid key and send again.",
  unreachable: "See that the model's server runs, and send again.",
  rate_limited: "Wait a little and send again.",
  config: "`retinue doctor` says what to mend.",
  disk: "Make room on the disk and send again.",
  deadline: "Send a message to let it go on from here.",
  idle: "Send a message to let it go on from here.",
  turn_limit: "Send a message to let it go on from here.",
  stuck: "Say what it should do differently.",
};
