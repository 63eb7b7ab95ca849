/** Messages of users, agents and the runtime, including replies that are still streaming. */

import type { JSX } from "preact";
import { useMemo } from "preact/hooks";
import { branchFrom, controlRun, copyText, showSession } from "../actions.ts";
import { agentHueStyle } from "../agent-colour.ts";
import { renderCached, renderMarkdown } from "../markdown.ts";
import { type RunView } from "../runs.ts";
import type { Message, Notice } from "../api-types.ts";
import { openSession, sessions } from "../store.ts";
import type { StreamingReply } from "../streaming-replies.ts";
import type { PendingMessage } from "../pending-messages.ts";
import { capitalize, formatTime, formatTokens, parseForwardedReport, RUN_STATUS_LABELS, sessionTitle } from "../format.ts";
import { AgentIcon, Icon } from "./icons.tsx";
import { CopyButton, IconButton, PlainText } from "./widgets.tsx";
import { agentName, agentTitle } from "../agent-title.ts";

export function Markdown({ text, isStreaming = false }: { text: string; isStreaming?: boolean }): JSX.Element {
  const html = useMemo(() => (isStreaming ? renderMarkdown(text) : renderCached(text)), [text, isStreaming]);
  return <div class="prose" dir="auto" onClick={copyClickedCode} dangerouslySetInnerHTML={{ __html: html }} />;
}

/** Copy code when a copy button in rendered Markdown is clicked. */
function copyClickedCode(event: MouseEvent): void {
  const button = (event.target as Element).closest<HTMLButtonElement>("button.copy-code");
  const code = button?.closest(".code")?.querySelector("code");
  if (!button || !code) return;
  const lines = [...code.querySelectorAll(".d")].map((line) => line.textContent);
  void copyText(lines.length ? lines.join("\n") : (code.textContent ?? "").replace(/\n$/, ""), "the code").then((copied) => {
    if (!copied) return;
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = "Copy"), 1200);
  });
}

export function MessageView({ message, thinking, sameSpeaker }: { message: Message; thinking: string; sameSpeaker: boolean }): JSX.Element {
  return message.role === "user" ? <UserMessage message={message} /> : <AgentMessage message={message} thinking={thinking} sameSpeaker={sameSpeaker} />;
}

function UserMessage({ message }: { message: Message }): JSX.Element {
  const senderSession = message.origin ? sessions.value?.find((each) => each.key === message.origin) : undefined;
  const agent = message.origin.startsWith("agent:") ? message.origin.slice(6) : (senderSession?.agent ?? "");
  const sender = (agent && agentTitle(agent)) || message.origin;
  return (
    <article class={`message from-user ${sender ? "by-agent" : ""}`} style={agentHueStyle(agent || openSession.value?.agent || "")} data-test="said-user" data-entry={message.id} aria-label={sender ? `${sender} says` : "You say"}>
      <header>
        {sender ? <><AgentIcon agent={agent || sender} /><b><PlainText text={sender} /></b></> : <b>You</b>}
        {senderSession && <button type="button" class="link small" onClick={() => showSession(senderSession.session_id)} title="Open the parent conversation">{sessionTitle(senderSession)}</button>}
        <MessageMeta message={message} />
      </header>
      {sender ? <ForwardedText text={message.text} /> : <div class="typed" dir="auto">{message.text}</div>}
    </article>
  );
}

/** Text from another agent; a forwarded report is shown without the runtime's instructions to the model. */
function ForwardedText({ text }: { text: string }): JSX.Element {
  const report = useMemo(() => parseForwardedReport(text), [text]);
  if (!report) return <Markdown text={text} />;
  return (
    <>
      {report.intro && <p class="muted forwarded-intro"><PlainText text={report.intro.replace(/:$/, ".")} /></p>}
      <Markdown text={report.body} />
      {report.facts && <details class="report-facts"><summary>Details</summary><pre class="block"><PlainText text={report.facts} /></pre></details>}
    </>
  );
}

function AgentMessage({ message, thinking, sameSpeaker }: { message: Message; thinking: string; sameSpeaker: boolean }): JSX.Element {
  const agent = openSession.value?.agent ?? "";
  return (
    <article class={`message from-agent ${sameSpeaker ? "same-speaker" : ""}`} style={agentHueStyle(agent)} data-test="said-agent" data-entry={message.id} aria-label={`${agent} says`}>
      <header>{!sameSpeaker && <><AgentIcon agent={agent} /><b>{agentTitle(agent)}</b></>}<MessageMeta message={message} /></header>
      {thinking && <Thinking text={thinking} />}
      {message.text.trim() && <Markdown text={message.text} />}
      {message.stop_reason && <p class="stopped" data-test="stopped"><Icon name="alert" size={14} /> {STOP_REASONS[message.stop_reason] ?? `Ended early: ${message.stop_reason}.`}</p>}
    </article>
  );
}

const STOP_REASONS: Record<string, string> = {
  length: "The reply reached the length limit. Send a message to continue.",
  refused: "The model refused to answer.",
  cancelled: "Stopped.",
};

/** The actions, token count and time of a message. */
function MessageMeta({ message }: { message: Message }): JSX.Element {
  const session = openSession.value;
  return (
    <span class="message-meta">
      <span class="message-actions">
        {message.text && <CopyButton text={message.text} what="the message" />}
        {session?.type === "branch" && <IconButton icon="branch" label={message.role === "user" ? "Edit in a new branch" : "Branch from here"} testId="branch" onClick={() => void branchFrom(session, message)} />}
      </span>
      {message.role === "agent" && message.usage.output > 0 && <span title={`${message.usage.input} tokens in, ${message.usage.output} out · ${message.model}`}>{formatTokens(message.usage.output)} tok</span>}
      <time dateTime={message.at}>{formatTime(message.at)}</time>
    </span>
  );
}

function Thinking({ text, inProgress = false }: { text: string; inProgress?: boolean }): JSX.Element {
  return (
    <details class="thinking" data-test="thinking">
      <summary><Icon name="thought" size={14} /> {inProgress ? "Thinking…" : "Thoughts"}</summary>
      <div class="thoughts">{text}</div>
    </details>
  );
}

export function StreamingMessage({ reply, sameSpeaker }: { reply: StreamingReply; sameSpeaker: boolean }): JSX.Element {
  const agent = openSession.value?.agent ?? "";
  return (
    <article class={`message from-agent streaming ${sameSpeaker ? "same-speaker" : ""}`} style={agentHueStyle(agent)} data-test="streaming" aria-label={`${agent} is replying`}>
      {!sameSpeaker && <header><AgentIcon agent={agent} /><b>{agentTitle(agent)}</b></header>}
      {reply.thinking && <Thinking text={reply.thinking} inProgress={!reply.text} />}
      {reply.text && <Markdown text={(reply.startMissed ? "… " : "") + reply.text} isStreaming />}
    </article>
  );
}

export function PendingMessageView({ message }: { message: PendingMessage }): JSX.Element {
  return (
    <article class="message from-user unsaved" data-test="pending" aria-label="You say">
      <header><b>You</b><span class="muted">{message.runId ? "sent" : "sending…"}</span></header>
      <div class="typed" dir="auto">{message.text}</div>
    </article>
  );
}

export function QueuedMessage({ run }: { run: RunView }): JSX.Element {
  return (
    <article class="message from-user unsaved" data-test="queued" data-run={run.id} aria-label="Queued">
      <header>
        <b>{run.parentId ? agentName(run.agent) : "You"}</b>
        <span class="tag"><Icon name="queue" size={12} /> queued</span>
        <span class="message-meta"><span class="message-actions shown"><button type="button" class="link" onClick={() => void controlRun(run.id, "cancel")}>Cancel</button></span></span>
      </header>
      <div class="typed" dir="auto">{run.task}</div>
    </article>
  );
}

const NOTICE_TITLES: Record<string, string> = {
  announcement: "Result received",
  resumed: "Resumed after an interruption",
  interrupted: "Interrupted: summary requested",
  nudge: "Reminded to reply",
};

/** A notice from the runtime to the model. */
export function NoticeView({ notice }: { notice: Notice }): JSX.Element {
  const agent = /^report run=\S+ agent=(\S+)/.exec(notice.text)?.[1] ?? "";
  const sessionKey = / session=(\S+)/.exec(notice.text)?.[1];
  const session = sessionKey ? sessions.value?.find((each) => each.key === sessionKey) : undefined;
  const isReport = notice.topic === "announcement" && parseForwardedReport(notice.text) !== null;
  const title = notice.topic === "announcement" && agent ? `Result received from ${agentName(agent)}` : (NOTICE_TITLES[notice.topic] ?? capitalize(notice.topic || "notice"));
  return (
    <details class="notice" style={agentHueStyle(agent)} data-test="notice">
      <summary>
        {agent ? <AgentIcon agent={agent} /> : <Icon name="inbox" size={14} />} <span>{title}</span>
        {session && <button type="button" class="link" onClick={(event) => { event.preventDefault(); showSession(session.session_id); }}>Open its conversation</button>}
      </summary>
      {isReport ? <ForwardedText text={notice.text} /> : <pre class="block"><PlainText text={notice.text} /></pre>}
    </details>
  );
}

/** The end of an unsuccessful run. */
export function RunEndNotice({ run }: { run: RunView }): JSX.Element {
  const canContinue = run.status === "lost" || run.status === "failed" || run.status === "timed_out";
  return (
    <div class={`run-ended ${run.status}`} data-test="run-ended" data-status={run.status} role="note">
      <Icon name={run.status === "cancelled" ? "stop" : "alert"} size={14} />
      <span>
        {END_REASONS[run.reason] ?? <><b>{capitalize(RUN_STATUS_LABELS[run.status])}</b>{run.error && <>: {run.error.replace(/\.?$/, ".")}</>}</>}
        {canContinue && NEXT_STEPS[run.reason] && <span class="next-step"> {NEXT_STEPS[run.reason]}</span>}
      </span>
    </div>
  );
}

const END_REASONS: Record<string, string> = {
  user_cancel: "Cancelled by the user.",
  interrupted: "Interrupted by the user, and ended with a summary.",
  deserted: "Cancelled together with its parent run.",
};

const NEXT_STEPS: Record<string, string> = {
  auth: "Set a valid API key for the daemon, then send the message again.",
  unreachable: "Check that the model's server is running, then send the message again.",
  rate_limited: "Wait a moment, then send the message again.",
  config: "Run `retinue doctor` to find the problem.",
  disk: "Free some disk space, then send the message again.",
  deadline: "Send a message to continue.",
  idle: "Send a message to continue.",
  turn_limit: "Send a message to continue.",
  stuck: "Send a message that says what to do differently.",
};
