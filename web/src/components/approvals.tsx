/** The approval requests, in a strip above everything else. Model output is never rendered there, so an imitation in
 * a conversation can be recognised. */

import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { answerApproval, showSession } from "../actions.ts";
import { agentHueStyle } from "../agent-colour.ts";
import type { Approval } from "../api-types.ts";
import { approvals } from "../store.ts";
import { formatCount, formatValue, parseArguments } from "../format.ts";
import { AgentIcon, Icon } from "./icons.tsx";
import { PlainText } from "./widgets.tsx";
import { ArgumentList, DiffView } from "./tool-call.tsx";
import { diffLines } from "../diff.ts";
import { agentName } from "../agent-title.ts";

const ACCESS_VERBS: Record<Approval["access"], string> = { read: "read a file", write: "write a file", run: "run a command", tool: "use", scope: "get more permissions for" };

export function ApprovalList(): JSX.Element | null {
  const isCollapsed = useSignal(false);
  const pending = approvals.value;
  if (!pending.length) return null;
  return (
    <section class="approvals" id="approvals" aria-label="Approvals" tabIndex={-1} data-test="approvals">
      <header>
        <Icon name="shield" size={14} />
        <b>{pending.length === 1 ? "An agent requests approval" : `${formatCount(pending.length, "approval")} pending`}</b>
        <span class="muted">Genuine requests appear only here, never inside a conversation.</span>
        <button type="button" class="link" aria-expanded={!isCollapsed.value} onClick={() => (isCollapsed.value = !isCollapsed.value)}>{isCollapsed.value ? "Show" : "Hide"}</button>
      </header>
      {!isCollapsed.value && <div class="approval-cards">{pending.map((each) => <ApprovalCard key={each.id} approval={each} />)}</div>}
    </section>
  );
}

function ApprovalCard({ approval }: { approval: Approval }): JSX.Element {
  const isAnswering = useSignal(false);
  const decide = (decision: "allow" | "deny" | "add"): void => {
    isAnswering.value = true;
    void answerApproval(approval, decision).finally(() => (isAnswering.value = false));
  };
  return (
    <article class="approval-card" style={agentHueStyle(approval.agent)} data-test="approval" data-approval={approval.id} aria-label={`${agentName(approval.agent)} requests permission to ${ACCESS_VERBS[approval.access]} ${approval.access === "tool" || approval.access === "scope" ? "" : "with "}${approval.tool}`}>
      <div class="approval-summary">
        <AgentIcon agent={approval.agent} />
        <span class="approval-summary-text">
          <b><PlainText text={agentName(approval.agent)} /></b> requests permission to {ACCESS_VERBS[approval.access]}{" "}{approval.access === "tool" || approval.access === "scope" ? <code><PlainText text={approval.tool} /></code> : <>with <code><PlainText text={approval.tool} /></code></>}
        </span>
        <RequestChain approval={approval} />
      </div>
      {approval.resource !== approval.tool && <pre class="resource" data-test="approval-resource"><PlainText text={approval.resource} /></pre>}
      <ApprovalArguments approval={approval} />
      {approval.reason && <p class="reason"><span class="muted">{approval.access === "scope" ? "Reason:" : "Requires approval:"}</span> <PlainText text={approval.reason} /></p>}
      {approval.warning && <p class="reason warning" role="alert" data-test="approval-warning"><Icon name="alert" size={14} /> <PlainText text={approval.warning.replace(/^warning: /, "")} /></p>}
      {approval.add_effect && <p class="reason"><span class="muted">Effect:</span> <span data-test="approval-add"><PlainText text={approval.add_effect.replace(/^add /, "")} /></span></p>}
      <footer>
        <span class="muted approval-facts">
          <span title={`Full digest: ${approval.digest}`}>digest <code data-test="approval-digest">{approval.digest.slice(0, 12)}</code></span>
          {approval.workspace && <span>in <code><PlainText text={approval.workspace} /></code></span>}
          {approval.sandbox && <span>sandbox {approval.sandbox}</span>}
          <span>until {new Date(approval.expires_at).toLocaleString(undefined, { dateStyle: "short", timeStyle: "short" })}</span>
        </span>
        <span class="approval-actions">
          <button type="button" class="button" disabled={isAnswering.value} data-test="deny" onClick={() => decide("deny")}>Deny</button>
          {approval.access === "scope" && <button type="button" class="button" disabled={isAnswering.value} data-test="add" onClick={() => decide("add")} title="Grant permanently, in the session's preset.md">Add to its permissions</button>}
          <button type="button" class="button primary" disabled={isAnswering.value} data-test="allow" onClick={() => decide("allow")}>Allow once</button>
        </span>
      </footer>
    </article>
  );
}

/** The chain of requesters, from the user to the agent that requests the approval. */
function RequestChain({ approval }: { approval: Approval }): JSX.Element {
  return (
    <button type="button" class="request-chain" onClick={() => showSession(approval.session_id)} title="Open the conversation" data-test="approval-chain">
      {approval.chain.map((name, i) => <span key={i}>{i > 0 && <span class="then"> › </span>}<PlainText text={name} /></span>)}
    </button>
  );
}

/** All arguments that the resource line does not already show, in full. */
function ApprovalArguments({ approval }: { approval: Approval }): JSX.Element | null {
  const parsed = parseArguments(approval.args);
  if (!parsed) return <pre class="resource"><PlainText text={approval.args} /></pre>;
  const values = new Map(parsed);
  const oldText = values.get("old");
  const newText = values.get("new");
  const isEdit = approval.tool === "edit" && typeof oldText === "string" && typeof newText === "string";
  const rest = parsed.filter(([name, value]) => formatValue(value) !== approval.resource && !(isEdit && (name === "old" || name === "new")) && !(approval.access === "scope" && (name === "tool" || name === "reason")));
  if (!rest.length && !isEdit && !approval.files.length && !approval.files_note) return null;
  return (
    <div class="approval-arguments" data-test="approval-args" role="group" aria-label="Exact arguments" tabIndex={0}>
      {rest.length > 0 && <ArgumentList args={rest} />}
      {isEdit && <DiffView lines={diffLines(oldText, newText)} />}
      {approval.files.length > 0 && (
        <ul class="files">
          {approval.files.map((file) => <li key={file.path}><code><PlainText text={file.path} /></code> <span class="muted">{file.size.toLocaleString("en")} bytes, sha256 {file.sha256.slice(0, 12)}: the approval covers its current content</span></li>)}
        </ul>
      )}
      {approval.files_note && <p class="muted" data-test="approval-files-note"><PlainText text={approval.files_note} /></p>}
    </div>
  );
}
