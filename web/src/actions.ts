/** What a person does: each deed is one request, and what the page makes of its answer. */

import { api } from "./api.ts";
import { typed } from "./drafts.ts";
import { promptAfter } from "./transcript.ts";
import { listen } from "./event-stream.ts";
import type { Answer, Approval, Left, Said, Session } from "./api-types.ts";
import {
  agents, approvals, attempt, chosen, dialog, drawer, drop, making, openId, put, refreshApprovals, refreshInbox, refreshSessions,
  sessions, shown, store, theme, toast, typeNext, type Theme,
} from "./store.ts";
import * as runs from "./runs.ts";
import * as talk from "./conversation.ts";
import { titleOf } from "./format.ts";

/** The address says what is open: `#/s/<session>`, `#/new/<agent>`, or nothing. */
export function addressed(): string | null {
  const [, where, what] = location.hash.split("/");
  const name = what ? decoded(what) : null;
  chosen.value = where === "new" ? name : null;
  return where === "s" ? name : null;
}

function decoded(text: string): string | null {
  try {
    return decodeURIComponent(text);
  } catch {
    return null;
  }
}

export function follow(): void {
  making.value = false;
  const wanted = addressed();
  drawer.value = false;
  if (wanted === openId.value && talk.state.value !== "none") return;
  openId.value = wanted;
  listen();
  if (wanted) void talk.load(wanted).then(() => named(wanted));
  else talk.clear();
}

/** An address may give a slug or a prefix: from here on it is the conversation's id. */
function named(wanted: string): void {
  const id = shown.value?.session_id;
  if (!id || id === wanted || openId.value !== wanted) return;
  history.replaceState(null, "", `#/s/${encodeURIComponent(id)}`);
  openId.value = id;
  listen();
  void talk.catchUp();
}

export function show(id: string): void {
  location.hash = `#/s/${encodeURIComponent(id)}`;
}

export function home(agent?: string): void {
  dialog.value = null;
  location.hash = agent ? `#/new/${encodeURIComponent(agent)}` : "#/";
}

export async function create(agent: string): Promise<void> {
  dialog.value = null;
  making.value = true;
  if (!(await begin(agent))) making.value = false;
}

export async function begin(agent: string, workspace?: string): Promise<Session | null> {
  const made = await attempt(() => api.create(agent, workspace));
  if (made) enter(made);
  return made;
}

/** Opens a conversation that was made just now: a list asked for a moment ago does not know it. */
function enter(made: Session): void {
  put(made);
  shown.value = made;
  typeNext.value = true;
  show(made.session_id);
  void refreshSessions();
}

/** Another agent: its latest conversation, or a new one where it has none. */
export function switchTo(agent: string): void {
  const latest = (sessions.value ?? []).filter((each) => each.agent === agent && each.type === "branch");
  latest.sort((a, b) => b.updated_at.localeCompare(a.updated_at));
  if (latest[0]) show(latest[0].session_id);
  else home(agent);
}

export async function pin(session: Session): Promise<void> {
  const pinned = !session.pinned_at;
  const changed = await attempt(() => api.change(session.session_id, { pinned }));
  if (changed) put(changed);
}

export async function rename(session: Session, name: string): Promise<void> {
  if (name === (session.name ?? "")) return;
  const changed = await attempt(() => api.change(session.session_id, { name }));
  if (changed) put(changed);
}

export async function remove(session: Session): Promise<void> {
  const gone = await attempt(() => api.remove(session.session_id));
  if (!gone) return;
  drop(session.session_id);
  if (openId.value === session.session_id) home();
  const undo = async (): Promise<void> => {
    const back = await attempt(() => api.restore(gone.undo));
    if (!back) return;
    put(back);
    show(back.session_id);
  };
  toast(`${titleOf(session)} was deleted.`, { action: { label: "Undo", act: () => void undo() } });
}

export async function clear(session: Session): Promise<void> {
  dialog.value = null;
  const cleared = await attempt(() => api.clear(session.session_id));
  if (!cleared) return;
  put(cleared);
  if (openId.value === session.session_id) await talk.reread();
  toast(`${titleOf(session)} is empty now.`);
}

/** From an agent's words one goes on differently; a person's own are taken back, to be said in another way. */
export async function branch(session: Session, said: Said): Promise<void> {
  const mine = said.by === "user";
  const at = mine ? said.id : promptAfter(said.id);
  const made = await attempt(() => api.branch(session.session_id, at, false));
  if (!made) return;
  put(made);
  if (mine && !said.origin) typed(made.session_id, said.text);
  typeNext.value = true;
  show(made.session_id);
  toast(`This is a branch of ${titleOf(session)}: what is said here stays here.`);
}

export async function steer(run: string, verb: "cancel" | "interrupt" | "detach" | "resume"): Promise<void> {
  const row = await attempt(() => api.steer(run, verb));
  if (row) runs.put([await api.run(run).catch(() => row)]);
}

export async function answer(approval: Approval, given: Answer): Promise<void> {
  const done = await attempt(() => api.answer(approval.id, given));
  if (done) approvals.value = approvals.value.filter((each) => each.id !== approval.id);
  void refreshApprovals();
}

export async function promote(left: Left): Promise<void> {
  const done = await attempt(() => api.promote(left.id ?? left.runId));
  if (done) toast(`What ${left.agentId} found stands in ${left.for ?? "the conversation that asked"} now.`);
  void refreshInbox();
}

export async function drain(): Promise<void> {
  const read = await attempt(() => api.drain());
  if (read) toast(read.length ? `${read.length} marked as read.` : "Nothing was left unread.");
  void refreshInbox();
}

export async function copy(text: string, what: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    if (!copiedByHand(text)) {
      toast(`The browser does not let this page copy: ${what} is ${text.slice(0, 300)}`, { bad: true });
      return false;
    }
  }
  return true;
}

function copiedByHand(text: string): boolean {
  const area = document.createElement("textarea");
  const focused = document.activeElement;
  area.value = text;
  area.className = "unseen-area";
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  if (focused instanceof HTMLElement) focused.focus();
  return done;
}

export function setTheme(wanted: Theme): void {
  theme.value = wanted;
  store("theme", wanted);
  document.documentElement.dataset.theme = wanted;
}

/** The agent a new conversation is offered with: the current one, else the first that people talk to. */
export function usual(): string | null {
  const known = agents.value ?? [];
  const wanted = chosen.value;
  if (wanted && known.some((each) => each.name === wanted)) return wanted;
  const latest = sessions.value?.find((each) => each.type === "branch")?.agent;
  if (latest && known.some((each) => each.name === latest)) return latest;
  return (known.find((each) => each.name === "general") ?? known.find((each) => each.roles.includes("primary")) ?? known[0])?.name ?? null;
}
