/** Unsent text, saved with the session half a second after the last key. */

import { api } from "./api.ts";
import { activeRunOf } from "./runs.ts";

const SAVE_DELAY_MS = 500;
/** Retry delay while an agent is writing to the session's file. */
const BUSY_RETRY_MS = 1000;

interface Draft {
  text: string;
  saved: string;
  timer: number;
  saving: Promise<unknown>;
}

const drafts = new Map<string, Draft>();

function draftOf(session: string): Draft {
  const known = drafts.get(session);
  if (known) return known;
  const draft: Draft = { text: readLocalDraft(session), saved: "", timer: 0, saving: Promise.resolve() };
  drafts.set(session, draft);
  return draft;
}

/** The text last known to this tab, or else the draft saved in the session's file. */
export function loadDraft(session: string, saved: string | null | undefined): string {
  const draft = draftOf(session);
  if (saved && !draft.text) draft.text = saved;
  if (saved) draft.saved = saved;
  return draft.text;
}

export function updateDraft(session: string, text: string): void {
  const draft = draftOf(session);
  draft.text = text;
  writeLocalDraft(session, text);
  clearTimeout(draft.timer);
  draft.timer = window.setTimeout(() => void saveDraft(session), SAVE_DELAY_MS);
}

/** Remove the draft here and in the file before its text is sent. The daemon removes the sent text from the start of
 * the saved draft itself. */
export async function removeSentDraft(session: string, sent: string): Promise<void> {
  const draft = draftOf(session);
  draft.text = "";
  writeLocalDraft(session, "");
  clearTimeout(draft.timer);
  await draft.saving;
  if (sent.trim().startsWith(draft.saved.trim())) draft.saved = "";
  if (draft.saved) await saveDraft(session);
}

/** Save the unsent text no more, until it changes again: nothing of it may be written during or after a purge. */
export async function stopSavingDraft(session: string): Promise<void> {
  const draft = drafts.get(session);
  clearTimeout(draft?.timer);
  await draft?.saving;
}

/** Remove the unsent text of a purged session from this browser. */
export function forgetDraft(session: string): void {
  clearTimeout(drafts.get(session)?.timer);
  drafts.delete(session);
  writeLocalDraft(session, "");
}

async function saveDraft(session: string): Promise<void> {
  const draft = draftOf(session);
  const text = draft.text;
  if (text === draft.saved) return;
  if (activeRunOf(session)) {
    draft.timer = window.setTimeout(() => void saveDraft(session), BUSY_RETRY_MS);
    return;
  }
  draft.saving = draft.saving.then(() => api.saveDraft(session, text)).then(() => (draft.saved = text), () => undefined);
  await draft.saving;
}

function readLocalDraft(session: string): string {
  try {
    return localStorage.getItem(`retinue.draft.${session}`) ?? "";
  } catch {
    return "";
  }
}

function writeLocalDraft(session: string, text: string): void {
  try {
    if (text) localStorage.setItem(`retinue.draft.${session}`, text);
    else localStorage.removeItem(`retinue.draft.${session}`);
  } catch {
    // Without localStorage the draft is still saved in the session's file.
  }
}
