/** The list at the left: conversations grouped by agent, pinned ones first, and a search through all of them. */

import type { JSX } from "preact";
import { create, home, pin, remove, show, copy } from "../actions.ts";
import { hue } from "../agent-colour.ts";
import type { Session } from "../api-types.ts";
import { current, dialog, drawer, folded, found, openId, query, refreshSearch, renaming, sessions, toast, typeNext } from "../store.ts";
import { ago, bare, capital, titleOf } from "../format.ts";
import { Name } from "./conversation.tsx";
import { AgentMark, Icon } from "./icons.tsx";
import { Dot, IconButton, Menu, step } from "./widgets.tsx";

interface Group {
  name: string;
  agent: string | null;
  rows: Session[];
}

export function Sidebar(): JSX.Element {
  return (
    <aside class={`sidebar ${drawer.value ? "up" : ""}`} data-test="sidebar">
      <div class="sidebar-top">
        <button type="button" class="brand" onClick={() => home()} title="Begin a new conversation">Retinue</button>
        <IconButton icon="plus" label="New session (n)" test="new-session" act={() => (dialog.value = { what: "new" })} />
        <IconButton icon="cross" label="Close the list" class="only-narrow" act={() => (drawer.value = false)} />
      </div>
      <Search />
      <nav class="sessions" aria-label="Sessions" onKeyDown={onKey} data-test="sessions">
        {query.value.trim() ? <Matches /> : <Groups />}
      </nav>
    </aside>
  );
}

function Search(): JSX.Element {
  const onInput = (value: string): void => {
    query.value = value;
    void refreshSearch();
  };
  return (
    <label class="search">
      <Icon name="search" size={14} />
      <input
        type="search" id="search" placeholder="Search" aria-label="Search sessions" data-test="search" value={query.value}
        onInput={(event) => onInput(event.currentTarget.value)}
        onKeyDown={(event) => {
          if (event.key === "Escape") { onInput(""); event.currentTarget.blur(); }
          if (event.key === "ArrowDown") { event.preventDefault(); document.querySelector<HTMLElement>(".session-open")?.focus(); }
        }}
      />
      <kbd>/</kbd>
    </label>
  );
}

function Matches(): JSX.Element {
  if (!found.value) return <p class="quiet pad">Searching…</p>;
  if (!found.value.length) return <p class="quiet pad" data-test="no-matches">Nothing matches “{query.value.trim()}”. The search looks at names, agents and last words.</p>;
  return <ul>{found.value.map((each) => <Row key={each.session_id} session={each} tagged />)}</ul>;
}

function Groups(): JSX.Element {
  if (!sessions.value) return <p class="quiet pad">Reading…</p>;
  const all = groups(sessions.value);
  if (!all.length) return <p class="quiet pad" data-test="no-sessions">No sessions yet. Each one is a conversation with one agent and appears here; begin with the box at the right, or press <kbd>n</kbd>.</p>;
  return <>{all.map((group) => <Grouped key={group.name} group={group} />)}</>;
}

function groups(rows: readonly Session[]): Group[] {
  const tops = rows.filter((each) => each.type === "branch" || each.pinned_at);
  const pinned = tops.filter((each) => each.pinned_at);
  const found = new Map<string, Session[]>();
  for (const row of tops) {
    if (row.pinned_at) continue;
    const there = found.get(row.agent);
    if (there) there.push(row);
    else found.set(row.agent, [row]);
  }
  const rest = [...found].map(([agent, mine]): Group => ({ name: agent, agent, rows: mine }));
  return pinned.length ? [{ name: "Pinned", agent: null, rows: pinned }, ...rest] : rest;
}

function Grouped({ group }: { group: Group }): JSX.Element {
  const shut = folded.value.has(group.name);
  const toggle = (): void => {
    const next = new Set(folded.value);
    if (!next.delete(group.name)) next.add(group.name);
    folded.value = next;
  };
  const here = group.agent !== null && group.agent === current.value;
  return (
    <section class={`group ${here ? "here" : ""}`} style={group.agent ? hue(group.agent) : {}} data-test="group" data-agent={group.agent ?? "pinned"} aria-label={group.name}>
      <header>
        <button type="button" class="group-name" aria-expanded={!shut} onClick={toggle}>
          {group.agent ? <AgentMark agent={group.agent} /> : <span class="agent-mark plain"><Icon name="pin" size={14} /></span>}
          <span>{capital(group.name)}</span>
          <span class="quiet">{group.rows.length}</span>
        </button>
        {group.agent && <IconButton icon="plus" label={`New session with ${group.agent}`} test="group-new" act={() => void create(group.agent!)} />}
      </header>
      {!shut && <ul>{group.rows.map((each) => <Row key={each.session_id} session={each} tagged={!group.agent} />)}</ul>}
    </section>
  );
}

function Row({ session, tagged }: { session: Session; tagged: boolean }): JSX.Element {
  const here = openId.value === session.session_id;
  const name = `row ${session.session_id}`;
  return (
    <li class={`session ${here ? "here" : ""}`} style={hue(session.agent)} data-test="session-row" data-session={session.session_id} data-status={session.status}>
      {renaming.value === name ? <Name session={session} /> : (
        <button type="button" class="session-open" aria-current={here ? "page" : undefined} onClick={(event) => { typeNext.value = event.detail > 0; show(session.session_id); }} title={session.last_snippet}>
          {tagged && <AgentMark agent={session.agent} size={12} />}
          <span class="session-words">
            <span class="session-title">{session.name || bare(session.last_snippet) || "New session"}{session.branch !== "main" && session.type === "branch" ? <span class="quiet"> /{session.branch}</span> : null}</span>
            {session.name && session.last_snippet ? <span class="snippet">{bare(session.last_snippet)}</span> : <span class="snippet slug">{session.slug}</span>}
          </span>
          {session.status !== "idle" ? <Dot status={session.status} /> : <span class="quiet when">{ago(session.updated_at)}</span>}
        </button>
      )}
      <Menu
        label={`What to do with ${titleOf(session)}`} icon="more" test="row-menu"
        choices={[
          { label: session.pinned_at ? "Unpin" : "Pin", icon: "pin", act: () => void pin(session), test: "pin" },
          { label: "Rename", icon: "pencil", act: () => (renaming.value = name), test: "rename" },
          { label: "Copy the file's path", icon: "copy", act: () => void copy(session.path, "the path").then((done) => done && toast("Copied the path.")), test: "copy-path" },
          { label: "Clear", icon: "eraser", act: () => (dialog.value = { what: "clear", session }), test: "clear" },
          { label: "Delete", icon: "trash", act: () => void remove(session), bad: true, test: "delete" },
        ]}
      />
    </li>
  );
}

function onKey(event: KeyboardEvent): void {
  if (event.target instanceof HTMLInputElement || event.ctrlKey || event.metaKey || event.altKey) return;
  const by = event.key === "ArrowDown" || event.key === "j" ? 1 : event.key === "ArrowUp" || event.key === "k" ? -1 : 0;
  if (!by) return;
  event.preventDefault();
  event.stopPropagation();
  step(event.currentTarget as Element, ".session-open", by);
}

