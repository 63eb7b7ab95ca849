/** Watchers in the status bar, and their interjections above the composer. */

import type { JSX } from "preact";
import { promoteResult, showSession } from "../actions.ts";
import { agentHueStyle } from "../agent-colour.ts";
import { activeRuns } from "../runs.ts";
import type { InboxItem, Session, Watcher } from "../api-types.ts";
import { dismissInterjection, findWatcher, pendingInterjections, toggleWatcher, watcherAgents, watchers } from "../watchers.ts";
import { formatAge } from "../format.ts";
import { agentName, numberedAgentName } from "../agent-title.ts";
import { AgentIcon } from "./icons.tsx";
import { IconButton, type MenuItem, PlainText } from "./widgets.tsx";

/** The active watchers, such as `pair#2 watching`. */
export function ActiveWatcherList(): JSX.Element {
  return <>{watchers.value.map((each) => <ActiveWatcherButton key={each.id} watcher={each} />)}</>;
}

function ActiveWatcherButton({ watcher }: { watcher: Watcher }): JSX.Element {
  const isRunning = activeRuns.value.some((run) => run.sessionId === watcher.watcher);
  return (
    <button type="button" class="active-run" style={agentHueStyle(watcher.agent)} data-test="ledger-watcher" data-watcher={watcher.watcher} title={`${agentName(watcher.agent, watcher.agent_display_name)} is watching ${watcher.slug}${isRunning ? ", reading an update" : ""}`} onClick={() => showSession(watcher.watcher)}>
      <span class={`dot ${isRunning ? "running" : "watching"}`} aria-hidden="true" /><span><b>{numberedAgentName(watcher.name, watcher.agent, watcher.agent_display_name)}</b> watching</span>
    </button>
  );
}

/** The items for watchers in a conversation's menu. */
export function watcherMenuItems(session: Session): MenuItem[] {
  if ("watches" in session.attributes) return [];
  return watcherAgents.value.map((agent) => ({
    label: findWatcher(session.session_id, agent.name) ? `Stop ${agentName(agent.name)} watching` : `Let ${agentName(agent.name)} watch${agent.triggers.hotkeys[0] ? ` (${agent.triggers.hotkeys[0]})` : ""}`,
    icon: "pair",
    onSelect: () => void toggleWatcher(session.session_id, agent.name, "command"),
    testId: `watch-${agent.name}`,
  }));
}

/** The interjections about the open conversation, until they are forwarded or dismissed. */
export function InterjectionList({ session }: { session: Session }): JSX.Element | null {
  const interjections = pendingInterjections(session.session_id);
  if (!interjections.length) return null;
  return <section class="interjections" data-test="interjections" aria-label="Watcher comments" aria-live="polite">{interjections.map((each) => <InterjectionCard key={each.id} item={each} />)}</section>;
}

export function InterjectionCard({ item }: { item: InboxItem }): JSX.Element {
  return (
    <article class={`interjection ${item.severity ?? ""}`} style={agentHueStyle(item.agentId)} data-test="interjection" data-severity={item.severity ?? ""}>
      <header><AgentIcon agent={item.agentId} size={12} /><b>{agentName(item.agentId, item.agentDisplayName)}</b><span class={`severity ${item.severity ?? ""}`}>{item.interrupts ? "ended the turn" : item.severity}</span><span class="muted when">{formatAge(item.timestamp)}</span>
        <IconButton icon="cross" label="Dismiss" testId="interjection-dismiss" onClick={() => void dismissInterjection(item)} />
      </header>
      <p class="interjection-reason" data-test="interjection-reason"><PlainText text={item.reason ?? ""} /></p>
      {item.suggestion && <p class="interjection-suggestion" data-test="interjection-suggestion"><span class="muted">Instead: </span><PlainText text={item.suggestion} /></p>}
      <footer>
        <button type="button" class="link" data-test="interjection-pass" title="Add this comment to the conversation" onClick={() => void promoteResult(item)}>Add to conversation</button>
        <button type="button" class="link" onClick={() => showSession(item.sessionId)}>Watcher's session</button>
      </footer>
    </article>
  );
}
