/** Watchers on the page: who watches, in the line at the bottom, and what they say, above where one types. */

import type { JSX } from "preact";
import { promote, show } from "../actions.ts";
import { hue } from "../agent-colour.ts";
import { live } from "../runs.ts";
import type { Left, Session, Watch } from "../api-types.ts";
import { canWatch, dismissWord, openWords, toggle, watchers, watching } from "../watchers.ts";
import { ago } from "../format.ts";
import { AgentMark } from "./icons.tsx";
import { IconButton, Plain } from "./widgets.tsx";

/** `pair#2 watching`: everybody who sits beside a conversation. */
export function Watching(): JSX.Element {
  return <>{watchers.value.map((each) => <Entry key={each.id} watch={each} />)}</>;
}

function Entry({ watch }: { watch: Watch }): JSX.Element {
  const hears = live.value.some((run) => run.session === watch.watcher);
  return (
    <button type="button" class="ledger-entry" style={hue(watch.agent)} data-test="ledger-watcher" data-watcher={watch.watcher} title={`${watch.agent} watches ${watch.slug}${hears ? ", and hears something now" : ""}`} onClick={() => show(watch.watcher)}>
      <span class={`dot ${hears ? "running" : "watching"}`} aria-hidden="true" /><span><b>{watch.name}</b> watching</span>
    </button>
  );
}

/** What the menu of a conversation offers. */
export function watchChoices(session: Session): { label: string; icon: "pair"; act: () => void; test: string }[] {
  if ("watches" in session.attributes) return [];
  return canWatch.value.map((agent) => ({
    label: watching(session.session_id, agent.name) ? `No more watching by ${agent.name}` : `Let ${agent.name} watch${agent.triggers.hotkeys[0] ? ` (${agent.triggers.hotkeys[0]})` : ""}`,
    icon: "pair",
    act: () => void toggle(session.session_id, agent.name, "command"),
    test: `watch-${agent.name}`,
  }));
}

/** What watchers said of the open conversation, until it is passed on or set aside. */
export function Interjections({ session }: { session: Session }): JSX.Element | null {
  const words = openWords(session.session_id);
  if (!words.length) return null;
  return <section class="interjections" data-test="interjections" aria-label="What watchers say" aria-live="polite">{words.map((each) => <Word key={each.id} left={each} />)}</section>;
}

export function Word({ left }: { left: Left }): JSX.Element {
  return (
    <article class={`interjection ${left.severity ?? ""}`} style={hue(left.agentId)} data-test="interjection" data-severity={left.severity ?? ""}>
      <header><AgentMark agent={left.agentId} size={12} /><b>{left.agentId}</b><span class={`severity ${left.severity ?? ""}`}>{left.interrupts ? "ended the turn" : left.severity}</span><span class="quiet when">{ago(left.timestamp)}</span>
        <IconButton icon="cross" label="Set it aside" test="interjection-dismiss" act={() => void dismissWord(left)} />
      </header>
      <p class="interjection-reason" data-test="interjection-reason"><Plain text={left.reason ?? ""} /></p>
      {left.suggestion && <p class="interjection-suggestion" data-test="interjection-suggestion"><span class="quiet">Instead: </span><Plain text={left.suggestion} /></p>}
      <footer>
        <button type="button" class="link" data-test="interjection-pass" title="Put it into this conversation, with its author's name" onClick={() => void promote(left)}>Pass it on</button>
        <button type="button" class="link" onClick={() => show(left.sessionId)}>What {left.agentId} heard</button>
      </footer>
    </article>
  );
}
