/** The session list at the left: grouped by agent, pinned sessions first, with a search. */

import type { JSX } from "preact";
import { copyText, startNewSession, showHome, showSession, togglePin } from "../actions.ts";
import { agentHueStyle } from "../agent-colour.ts";
import type { Session } from "../api-types.ts";
import { collapsedGroups, currentAgent, dialog, editingName, focusComposerNext, openSessionId, refreshSearch, searchQuery, searchResults, sessions, showToast, sidebarOpen } from "../store.ts";
import { formatAge, sessionTitle, stripMarkdown } from "../format.ts";
import { SessionNameInput } from "./conversation.tsx";
import { AgentIcon, Icon } from "./icons.tsx";
import { IconButton, Menu, moveFocus, StatusDot } from "./widgets.tsx";
import { agentName, agentTitle } from "../agent-title.ts";

interface SessionGroupData {
  name: string;
  agent: string | null;
  sessions: Session[];
}

export function Sidebar(): JSX.Element {
  return (
    <aside class={`sidebar ${sidebarOpen.value ? "open" : ""}`} data-test="sidebar">
      <div class="sidebar-top">
        <button type="button" class="brand" onClick={() => showHome()} title="New conversation">Retinue</button>
        <IconButton icon="plus" label="New session (n)" testId="new-session" onClick={() => (dialog.value = { kind: "new" })} />
        <IconButton icon="cross" label="Close the list" class="only-narrow" onClick={() => (sidebarOpen.value = false)} />
      </div>
      <SessionSearch />
      <nav class="sessions" aria-label="Sessions" onKeyDown={onKeyDown} data-test="sessions">
        {searchQuery.value.trim() ? <SearchResults /> : <SessionList />}
      </nav>
    </aside>
  );
}

function SessionSearch(): JSX.Element {
  const search = (value: string): void => {
    searchQuery.value = value;
    void refreshSearch();
  };
  return (
    <label class="search">
      <Icon name="search" size={14} />
      <input
        type="search" id="search" placeholder="Search" aria-label="Search sessions" data-test="search" value={searchQuery.value}
        onInput={(event) => search(event.currentTarget.value)}
        onKeyDown={(event) => {
          if (event.key === "Escape") { search(""); event.currentTarget.blur(); }
          if (event.key === "ArrowDown") { event.preventDefault(); document.querySelector<HTMLElement>(".session-open")?.focus(); }
        }}
      />
      <kbd>/</kbd>
    </label>
  );
}

function SearchResults(): JSX.Element {
  if (!searchResults.value) return <p class="muted padded">Searching…</p>;
  if (!searchResults.value.length) return <p class="muted padded" data-test="no-matches">No session matches “{searchQuery.value.trim()}”. The search covers names, agents and last messages.</p>;
  return <ul>{searchResults.value.map((each) => <SessionRow key={each.session_id} session={each} showAgent />)}</ul>;
}

function SessionList(): JSX.Element {
  if (!sessions.value) return <p class="muted padded">Loading…</p>;
  const groupList = sessionGroups(sessions.value);
  if (!groupList.length) return <p class="muted padded" data-test="no-sessions">No sessions yet. Start one with the form on the right, or press <kbd>n</kbd>.</p>;
  return <>{groupList.map((group) => <SessionGroup key={group.name} group={group} />)}</>;
}

function sessionGroups(rows: readonly Session[]): SessionGroupData[] {
  const listed = rows.filter((each) => each.type === "branch" || each.pinned_at);
  const pinned = listed.filter((each) => each.pinned_at);
  const byAgent = new Map<string, Session[]>();
  for (const row of listed) {
    if (row.pinned_at) continue;
    const group = byAgent.get(row.agent);
    if (group) group.push(row);
    else byAgent.set(row.agent, [row]);
  }
  const agentGroups = [...byAgent].map(([agent, agentSessions]): SessionGroupData => ({ name: agent, agent, sessions: agentSessions }));
  return pinned.length ? [{ name: "Pinned", agent: null, sessions: pinned }, ...agentGroups] : agentGroups;
}

function SessionGroup({ group }: { group: SessionGroupData }): JSX.Element {
  const isCollapsed = collapsedGroups.value.has(group.name);
  const toggle = (): void => {
    const next = new Set(collapsedGroups.value);
    if (!next.delete(group.name)) next.add(group.name);
    collapsedGroups.value = next;
  };
  const isCurrent = group.agent !== null && group.agent === currentAgent.value;
  return (
    <section class={`group ${isCurrent ? "here" : ""}`} style={group.agent ? agentHueStyle(group.agent) : {}} data-test="group" data-agent={group.agent ?? "pinned"} aria-label={group.name}>
      <header>
        <button type="button" class="group-name" aria-expanded={!isCollapsed} onClick={toggle}>
          {group.agent ? <AgentIcon agent={group.agent} /> : <span class="agent-mark plain"><Icon name="pin" size={14} /></span>}
          <span>{group.agent ? agentTitle(group.agent) : group.name}</span>
          <span class="muted">{group.sessions.length}</span>
        </button>
        {group.agent && <IconButton icon="plus" label={`New session with ${agentName(group.agent)}`} testId="group-new" onClick={() => void startNewSession(group.agent!)} />}
      </header>
      {!isCollapsed && <ul>{group.sessions.map((each) => <SessionRow key={each.session_id} session={each} showAgent={!group.agent} />)}</ul>}
    </section>
  );
}

function SessionRow({ session, showAgent }: { session: Session; showAgent: boolean }): JSX.Element {
  const isOpen = openSessionId.value === session.session_id;
  const editingKey = `row ${session.session_id}`;
  return (
    <li class={`session ${isOpen ? "here" : ""}`} style={agentHueStyle(session.agent)} data-test="session-row" data-session={session.session_id} data-status={session.status}>
      {editingName.value === editingKey ? <SessionNameInput session={session} /> : (
        <button type="button" class="session-open" aria-current={isOpen ? "page" : undefined} onClick={(event) => { focusComposerNext.value = event.detail > 0; showSession(session.session_id); }} title={session.last_snippet}>
          {showAgent && <AgentIcon agent={session.agent} size={12} />}
          <span class="session-text">
            <span class="session-title">{session.name || stripMarkdown(session.last_snippet) || "New session"}{session.branch !== "main" && session.type === "branch" ? <span class="muted"> /{session.branch}</span> : null}</span>
            {session.name && session.last_snippet ? <span class="snippet">{stripMarkdown(session.last_snippet)}</span> : <span class="snippet slug">{session.slug}</span>}
          </span>
          {session.status !== "idle" ? <StatusDot status={session.status} /> : <span class="muted when">{formatAge(session.updated_at)}</span>}
        </button>
      )}
      <Menu
        label={`Menu for ${sessionTitle(session)}`} icon="more" testId="row-menu"
        items={[
          { label: session.pinned_at ? "Unpin" : "Pin", icon: "pin", onSelect: () => void togglePin(session), testId: "pin" },
          { label: "Rename", icon: "pencil", onSelect: () => (editingName.value = editingKey), testId: "rename" },
          { label: "Copy the file's path", icon: "copy", onSelect: () => void copyText(session.path, "the path").then((copied) => copied && showToast("Path copied.")), testId: "copy-path" },
          { label: "Clear", icon: "eraser", onSelect: () => (dialog.value = { kind: "clear", session }), testId: "clear" },
          { label: "Delete", icon: "trash", onSelect: () => (dialog.value = { kind: "delete", session }), isDestructive: true, testId: "delete" },
        ]}
      />
    </li>
  );
}

function onKeyDown(event: KeyboardEvent): void {
  if (event.target instanceof HTMLInputElement || event.ctrlKey || event.metaKey || event.altKey) return;
  const by = event.key === "ArrowDown" || event.key === "j" ? 1 : event.key === "ArrowUp" || event.key === "k" ? -1 : 0;
  if (!by) return;
  event.preventDefault();
  event.stopPropagation();
  moveFocus(event.currentTarget as Element, ".session-open", by);
}

