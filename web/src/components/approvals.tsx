/** What agents ask before they act. It stands in a place of its own, above everything, where no model's words can be:
 * who sees a question anywhere else sees text. */

import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { answer, show } from "../actions.ts";
import { hue } from "../agent-colour.ts";
import type { Approval } from "../api-types.ts";
import { approvals } from "../store.ts";
import { argumentsOf, asText, counted } from "../format.ts";
import { AgentMark, Icon } from "./icons.tsx";
import { Plain } from "./widgets.tsx";
import { Diff, Pairs } from "./tool-call.tsx";
import { compared } from "../diff.ts";

const DOES: Record<Approval["touch"], string> = { read: "read a file", write: "write a file", run: "run a command", tool: "use", more: "have more scope for" };

export function Approvals(): JSX.Element | null {
  const shut = useSignal(false);
  const all = approvals.value;
  if (!all.length) return null;
  return (
    <section class="approvals" id="approvals" aria-label="Approvals" tabIndex={-1} data-test="approvals">
      <header>
        <Icon name="shield" size={14} />
        <b>{all.length === 1 ? "An agent asks before it acts" : `${counted(all.length, "question")} of agents before they act`}</b>
        <span class="quiet">Only this strip asks for a yes; what looks like it in a conversation is text.</span>
        <button type="button" class="link" aria-expanded={!shut.value} onClick={() => (shut.value = !shut.value)}>{shut.value ? "Show" : "Fold"}</button>
      </header>
      {!shut.value && <div class="questions">{all.map((each) => <Question key={each.id} asked={each} />)}</div>}
    </section>
  );
}

function Question({ asked }: { asked: Approval }): JSX.Element {
  const busy = useSignal(false);
  const give = (given: "allow" | "deny" | "add"): void => {
    busy.value = true;
    void answer(asked, given).finally(() => (busy.value = false));
  };
  return (
    <article class="question" style={hue(asked.agent)} data-test="approval" data-approval={asked.id} aria-label={`${asked.agent} asks to ${DOES[asked.touch]} ${asked.tool}`}>
      <div class="wish">
        <AgentMark agent={asked.agent} />
        <span class="wish-words">
          <b><Plain text={asked.agent} /></b> wants to {DOES[asked.touch]}{" "}{asked.touch === "tool" || asked.touch === "more" ? <code><Plain text={asked.tool} /></code> : <>with <code><Plain text={asked.tool} /></code></>}
        </span>
        <Chain asked={asked} />
      </div>
      {asked.resource !== asked.tool && <pre class="resource" data-test="approval-resource"><Plain text={asked.resource} /></pre>}
      <Exactly asked={asked} />
      {asked.reason && <p class="reason"><span class="quiet">{asked.touch === "more" ? "Its reason" : "Asked because"}</span> <Plain text={asked.reason} /></p>}
      {asked.add && <p class="reason"><span class="quiet">If you add it</span> <span data-test="approval-add"><Plain text={asked.add.replace(/^add /, "it ")} /></span></p>}
      <footer>
        <span class="quiet facts">
          <span title={`The whole digest: ${asked.digest}`}>digest <code data-test="approval-digest">{asked.digest.slice(0, 12)}</code></span>
          {asked.workspace && <span>in <code><Plain text={asked.workspace} /></code></span>}
          {asked.sandbox && <span>sandbox {asked.sandbox}</span>}
          <span>until {new Date(asked.expires_at).toLocaleString(undefined, { dateStyle: "short", timeStyle: "short" })}</span>
        </span>
        <span class="answers">
          <button type="button" class="button" disabled={busy.value} data-test="deny" onClick={() => give("deny")}>Deny</button>
          {asked.touch === "more" && <button type="button" class="button" disabled={busy.value} data-test="add" onClick={() => give("add")} title="From now on, written into the session's preset.md">Add to its scope</button>}
          <button type="button" class="button primary" disabled={busy.value} data-test="allow" onClick={() => give("allow")}>Allow once</button>
        </span>
      </footer>
    </article>
  );
}

/** Who asked for whom, from the person to the one that acts. */
function Chain({ asked }: { asked: Approval }): JSX.Element {
  return (
    <button type="button" class="chain" onClick={() => show(asked.session_id)} title="Open the conversation that asks" data-test="approval-chain">
      {asked.chain.map((who, i) => <span key={i}>{i > 0 && <span class="then"> › </span>}<Plain text={who} /></span>)}
    </button>
  );
}

/** Every argument that the line above does not show already, in full. */
function Exactly({ asked }: { asked: Approval }): JSX.Element | null {
  const found = argumentsOf(asked.args);
  if (!found) return <pre class="resource"><Plain text={asked.args} /></pre>;
  const values = new Map(found);
  const old = values.get("old");
  const now = values.get("new");
  const edits = asked.tool === "edit" && typeof old === "string" && typeof now === "string";
  const rest = found.filter(([name, value]) => asText(value) !== asked.resource && !(edits && (name === "old" || name === "new")) && !(asked.touch === "more" && (name === "tool" || name === "reason")));
  if (!rest.length && !edits && !asked.files.length) return null;
  return (
    <div class="exactly" data-test="approval-args" role="group" aria-label="Exact arguments" tabIndex={0}>
      {rest.length > 0 && <Pairs found={rest} />}
      {edits && <Diff lines={compared(old, now)} />}
      {asked.files.length > 0 && (
        <ul class="files">
          {asked.files.map((file) => <li key={file.path}><code><Plain text={file.path} /></code> <span class="quiet">{file.size.toLocaleString("en")} bytes, sha256 {file.sha256.slice(0, 12)}: a yes is for what it holds now</span></li>)}
        </ul>
      )}
    </div>
  );
}
