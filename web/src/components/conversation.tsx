/** The conversation in the middle of the page: its head, its entries, and where one types. */

import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { useCallback, useRef } from "preact/hooks";
import { home, pin, remove, rename, show, steer } from "../actions.ts";
import { atStart } from "../transcript.ts";
import { hue } from "../agent-colour.ts";
import { atWork, type Seen } from "../runs.ts";
import type { Session } from "../api-types.ts";
import { byId, connection, dialog, open, openId, renaming } from "../store.ts";
import { flows } from "../streaming-replies.ts";
import { items as shownItems, type Item } from "../conversation-rows.ts";
import * as talk from "../conversation.ts";
import { titleOf, WAITS_FOR } from "../format.ts";
import { Composer } from "./composer.tsx";
import { AgentMark, Icon } from "./icons.tsx";
import { Copy, Menu } from "./widgets.tsx";
import { Scroller } from "./virtual-list.tsx";
import { Switcher } from "./agent-switcher.tsx";
import { Call } from "./tool-call.tsx";
import { Interjections, watchChoices } from "./watchers.tsx";
import { Coming, Fell, OnItsWay, Queued, Told, Words } from "./messages.tsx";

export function Conversation(): JSX.Element {
  const session = open.value;
  if (talk.state.value === "gone") return <Gone />;
  if (!session) return <Opening />;
  return (
    <main class="main" id="main" style={hue(session.agent)}>
      <Head session={session} />
      <Entries session={session} />
      <Interjections session={session} />
      <Composer session={session} />
    </main>
  );
}

export function Opening(): JSX.Element {
  return <main class="main" id="main"><p class="quiet centre opening">Opening…</p></main>;
}

function Gone(): JSX.Element {
  return (
    <main class="main" id="main">
      <div class="empty" data-test="gone">
        <h1>This conversation is not here.</h1>
        <p>It was deleted, or the address is wrong. Others stand in the list at the left.</p>
        <button type="button" class="button" onClick={() => home()}>Begin a new one</button>
      </div>
    </main>
  );
}

function Head({ session }: { session: Session }): JSX.Element {
  const above = session.parent ? byId.value.get(session.parent) : undefined;
  return (
    <header class="head">
      <Switcher />
      <div class="head-title">
        {above && <button type="button" class="link up" onClick={() => show(above.session_id)} data-test="parent" title="The conversation that asked for this one">{titleOf(above)} /</button>}
        {renaming.value === `head ${session.session_id}` ? <Name session={session} /> : (
          <h1 title={session.slug} data-test="title" onDblClick={() => (renaming.value = `head ${session.session_id}`)}>{titleOf(session)}{session.branch !== "main" && <span class="quiet"> /{session.branch}</span>}</h1>
        )}
        <Path session={session} />
      </div>
      <Menu
        label="What to do with this conversation" icon="more" test="session-menu-open"
        choices={[
          { label: "Rename", icon: "pencil", act: () => (renaming.value = `head ${session.session_id}`), test: "rename" },
          { label: session.pinned_at ? "Unpin" : "Pin", icon: "pin", act: () => void pin(session), test: "pin" },
          ...watchChoices(session),
          { label: "Clear", icon: "eraser", act: () => (dialog.value = { what: "clear", session }), test: "clear" },
          { label: "Delete", icon: "trash", act: () => void remove(session), bad: true, test: "delete" },
        ]}
      />
    </header>
  );
}

function Path({ session }: { session: Session }): JSX.Element {
  return (
    <span class="path" data-test="path">
      <Icon name="file" size={12} />
      <span title={session.path}><bdi>{session.path}</bdi></span>
      <Copy text={session.path} what="the file's path" />
    </span>
  );
}

export function Name({ session }: { session: Session }): JSX.Element {
  const done = (event: Event): void => {
    const wanted = (event.currentTarget as HTMLInputElement).value.trim();
    if (!renaming.value) return;
    renaming.value = null;
    void rename(session, wanted);
  };
  const onKey = (event: KeyboardEvent): void => {
    if (event.key === "Enter") done(event);
    if (event.key === "Escape") renaming.value = null;
    event.stopPropagation();
  };
  const begin = useCallback((input: HTMLInputElement | null) => {
    input?.focus();
    input?.select();
  }, []);
  return <input class="name" ref={begin} aria-label="Name" data-test="name" defaultValue={session.name ?? ""} placeholder={session.slug} onKeyDown={onKey} onBlur={done} maxLength={200} />;
}

const FEW = 12;
/** Rows that one has scrolled through in a moment. */

function Entries({ session }: { session: Session }): JSX.Element {
  const toEnd = useRef<(() => void) | null>(null);
  const toStart = useRef<(() => void) | null>(null);
  const going = useSignal(false);
  /** What was read of it stands above what was there: the jump is made when all of it is. */
  const begin = async (): Promise<void> => {
    going.value = true;
    if (await talk.readToStart()) requestAnimationFrame(() => toStart.current?.());
    going.value = false;
  };
  const atEnd = useSignal(true);
  const atTop = useSignal(true);
  const ended = (end: boolean, start: boolean): void => {
    atEnd.value = end;
    atTop.value = start;
  };
  const items = shownItems.value;
  const run = atWork(session.session_id);
  const before = atStart.value ? <Begins session={session} count={items.length} /> : <p class="quiet centre earlier">{talk.older.value || !items.length ? "Reading…" : "Earlier"}</p>;
  return (
    <div class="entries">
      <Scroller
        items={items} keyOf={keyOf} guess={guess} render={draw} onTop={() => void talk.readOlder()} of={openId.value ?? ""}
        label={`Conversation with ${session.agent}`} busy={flows.value.length > 0} toEnd={toEnd} toStart={toStart} ended={ended}
        before={before} after={run ? <Now run={run} /> : <div class="now" />}
      />
      <div class="jumps">
        {!(atTop.value && atStart.value) && (items.length > FEW || !atStart.value) && <button type="button" class="jump to-start" data-test="to-start" disabled={going.value} onClick={() => void begin()} aria-label="Go to the beginning" title="Go to the beginning (g)"><Icon name="start" /></button>}
        {!atEnd.value && <button type="button" class="jump to-end" data-test="to-end" onClick={() => toEnd.current?.()} aria-label="Go to the end" title="Go to the end (G)"><Icon name="end" /></button>}
      </div>
    </div>
  );
}

function Begins({ session, count }: { session: Session; count: number }): JSX.Element | null {
  if (talk.state.value !== "ready") return null;
  if (count) return <p class="quiet centre earlier">Begun {new Date(session.created_at).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" })}</p>;
  return (
    <div class="empty small" data-test="empty-conversation">
      <AgentMark agent={session.agent} size={22} />
      <h2>Nothing has been said yet.</h2>
      <p>Type below what {session.agent} should do, in plain words; it works in <code>{session.workspace?.root ?? "its folder"}</code>{session.workspace?.writable ? "" : ", which it may only read"}.</p>
      <p class="quiet">All of it is kept in one Markdown file, which you can read and change: its path stands above.</p>
    </div>
  );
}

/** What goes on just now, below the last entry. */
function Now({ run }: { run: Seen }): JSX.Element {
  const doing = [...run.doing.values()].at(-1);
  const coming = flows.value.some((flow) => flow.run === run.id && flow.text);
  if (coming && !doing) return <div class="now" />;
  if (connection.value === "lost") return <div class="now" data-test="now"><span class="dot waiting" aria-hidden="true" /><span>Waits for the daemon…</span></div>;
  const words = run.status === "waiting" ? `Waits ${WAITS_FOR[run.waitsFor] ?? ""}` : run.status === "queued" ? "Waits for its turn" : run.note || (doing ? "Calls tools" : "Thinks");
  return <div class="now" data-test="now"><span class={run.status === "running" ? "spin" : `dot ${run.status}`} aria-hidden="true" /><span>{words}…</span></div>;
}

const keyOf = (item: Item): string => item.key;

/** About how high a row is, before it was measured. */
function guess(item: Item): number {
  if (item.is === "said") return 46 + Math.ceil(item.said.text.length / 80) * 22 + (item.said.text.match(/\n/g)?.length ?? 0) * 12;
  return item.is === "call" ? 32 : item.is === "flow" ? 120 : 60;
}

function draw(item: Item): JSX.Element {
  switch (item.is) {
    case "said": return <Words said={item.said} thinking={item.thinking} again={item.again} />;
    case "call": return <Call call={item.call} result={item.result} first={item.first} />;
    case "notice": return <Told notice={item.notice} />;
    case "flow": return <Coming flow={item.flow} again={item.again} />;
    case "pending": return <OnItsWay sent={item.pending} />;
    case "queued": return <Queued run={item.run} />;
    case "ended": return <Fell run={item.run} />;
  }
}

export function Controls({ run }: { run: Seen }): JSX.Element {
  return (
    <>
      <button type="button" class="button quiet-button" data-test="interrupt" title="Let it finish its step, sum up and stop" onClick={() => void steer(run.id, "interrupt")}><Icon name="pause" size={14} /> Interrupt</button>
      <button type="button" class="button quiet-button" data-test="cancel" title="Stop it and everybody it set to work" onClick={() => void steer(run.id, "cancel")}><Icon name="stop" size={14} /> Stop</button>
    </>
  );
}

