/** What a person types and has not sent: kept beside the conversation half a second after the last key. */

import { api } from "./api.ts";
import { atWork } from "./runs.ts";

const AFTER = 500;
const AGAIN = 1000;
/** While an agent writes into the file, what is typed waits here. */

interface Draft {
  text: string;
  saved: string;
  timer: number;
  going: Promise<unknown>;
}

const drafts = new Map<string, Draft>();

function of(session: string): Draft {
  const known = drafts.get(session);
  if (known) return known;
  const made: Draft = { text: kept(session), saved: "", timer: 0, going: Promise.resolve() };
  drafts.set(session, made);
  return made;
}

/** What stood there when this tab last knew, or what the conversation's file holds. */
export function begun(session: string, told: string | null | undefined): string {
  const draft = of(session);
  if (told && !draft.text) draft.text = told;
  if (told) draft.saved = told;
  return draft.text;
}

export function typed(session: string, text: string): void {
  const draft = of(session);
  draft.text = text;
  keep(session, text);
  clearTimeout(draft.timer);
  draft.timer = window.setTimeout(() => void saved(session), AFTER);
}

/** Nothing of it is left here, nor in the file, before these words are sent. The daemon itself takes from the file what
 * they begin with. */
export async function taken(session: string, words: string): Promise<void> {
  const draft = of(session);
  draft.text = "";
  keep(session, "");
  clearTimeout(draft.timer);
  await draft.going;
  if (words.trim().startsWith(draft.saved.trim())) draft.saved = "";
  if (draft.saved) await saved(session);
}

async function saved(session: string): Promise<void> {
  const draft = of(session);
  const text = draft.text;
  if (text === draft.saved) return;
  if (atWork(session)) {
    draft.timer = window.setTimeout(() => void saved(session), AGAIN);
    return;
  }
  draft.going = draft.going.then(() => api.draft(session, text)).then(() => (draft.saved = text), () => undefined);
  await draft.going;
}

function kept(session: string): string {
  try {
    return localStorage.getItem(`retinue.draft.${session}`) ?? "";
  } catch {
    return "";
  }
}

function keep(session: string, text: string): void {
  try {
    if (text) localStorage.setItem(`retinue.draft.${session}`, text);
    else localStorage.removeItem(`retinue.draft.${session}`);
  } catch {
    // A browser that keeps nothing leaves the file, which does.
  }
}
