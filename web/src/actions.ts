/** User actions: each makes one request and applies the answer to the page. */

import { agentName } from "./agent-title.ts";
import { api, ApiError } from "./api.ts";
import { forgetDraft, stopSavingDraft, updateDraft } from "./drafts.ts";
import { nextUserMessageId } from "./transcript.ts";
import { connectStream } from "./event-stream.ts";
import type { Approval, ApprovalDecision, InboxItem, Message, Session } from "./api-types.ts";
import {
  agents, approvals, chosenAgent, creatingSession, dialog, focusComposerNext, loadedSession, openSessionId, refreshApprovals,
  refreshInbox, refreshSessions, removeSession, sessions, showToast, sidebarOpen, theme, type Theme, tryOrReport, upsertSession,
  writeSetting,
} from "./store.ts";
import * as runs from "./runs.ts";
import * as conversation from "./conversation.ts";
import { sessionTitle } from "./format.ts";

/** Return the session reference in the URL hash: `#/s/<session>`, `#/new/<agent>`, or nothing. Sets `chosenAgent`. */
export function readLocationHash(): string | null {
  const [, route, argument] = location.hash.split("/");
  const name = argument ? decodeOrNull(argument) : null;
  chosenAgent.value = route === "new" ? name : null;
  return route === "s" ? name : null;
}

function decodeOrNull(text: string): string | null {
  try {
    return decodeURIComponent(text);
  } catch {
    return null;
  }
}

export function openFromLocation(): void {
  creatingSession.value = false;
  const reference = readLocationHash();
  sidebarOpen.value = false;
  if (reference === openSessionId.value && conversation.loadState.value !== "none") return;
  openSessionId.value = reference;
  connectStream();
  if (reference) void conversation.loadConversation(reference).then(() => replaceLocationWithId(reference));
  else conversation.closeConversation();
}

/** Replace a slug or id prefix in the URL with the session's full id. */
function replaceLocationWithId(reference: string): void {
  const id = loadedSession.value?.session_id;
  if (!id || id === reference || openSessionId.value !== reference) return;
  history.replaceState(null, "", `#/s/${encodeURIComponent(id)}`);
  openSessionId.value = id;
  connectStream();
  void conversation.loadNewEntries();
}

export function showSession(id: string): void {
  location.hash = `#/s/${encodeURIComponent(id)}`;
}

export function showHome(agent?: string): void {
  dialog.value = null;
  location.hash = agent ? `#/new/${encodeURIComponent(agent)}` : "#/";
}

export async function startNewSession(agent: string): Promise<void> {
  dialog.value = null;
  creatingSession.value = true;
  if (!(await createAndShowSession(agent))) creatingSession.value = false;
}

export async function createAndShowSession(agent: string, workspace?: string): Promise<Session | null> {
  const session = await tryOrReport(() => api.createSession(agent, workspace));
  if (session) showNewSession(session);
  return session;
}

/** Open a session that was just created and may be missing from a list requested earlier. */
function showNewSession(session: Session): void {
  upsertSession(session);
  loadedSession.value = session;
  focusComposerNext.value = true;
  showSession(session.session_id);
  void refreshSessions();
}

/** Open the agent's latest session, or the form for a new one. */
export function switchAgent(agent: string): void {
  const latest = (sessions.value ?? []).filter((each) => each.agent === agent && each.type === "branch");
  latest.sort((a, b) => b.updated_at.localeCompare(a.updated_at));
  if (latest[0]) showSession(latest[0].session_id);
  else showHome(agent);
}

export async function togglePin(session: Session): Promise<void> {
  const pinned = !session.pinned_at;
  const changed = await tryOrReport(() => api.updateSession(session.session_id, { pinned }));
  if (changed) upsertSession(changed);
}

export async function renameSession(session: Session, name: string): Promise<void> {
  if (name === (session.name ?? "")) return;
  const changed = await tryOrReport(() => api.updateSession(session.session_id, { name }));
  if (changed) upsertSession(changed);
}

/** Wait for a removal; after a purge, also one that failed because of copies it left elsewhere, remove the draft. */
async function forgettingDraft<T>(session: Session, purge: boolean, removal: Promise<T>): Promise<T> {
  try {
    const removed = await removal;
    if (purge) forgetDraft(session.session_id);
    return removed;
  } catch (error) {
    if (purge && error instanceof ApiError && error.code === "failed") forgetDraft(session.session_id);
    throw error;
  }
}

/** Delete a session; with `purge`, for good. */
export async function deleteSession(session: Session, purge: boolean): Promise<void> {
  dialog.value = null;
  if (purge) await stopSavingDraft(session.session_id);
  const deleted = await tryOrReport(() => forgettingDraft(session, purge, api.deleteSession(session.session_id, purge)));
  if (!deleted) return;
  removeSession(session.session_id);
  if (openSessionId.value === session.session_id) showHome();
  const restoreId = deleted.restore_id;
  if (restoreId === null) {
    showToast(`${sessionTitle(session)} was deleted for good.`);
    return;
  }
  const undo = async (): Promise<void> => {
    const restored = await tryOrReport(() => api.restoreSession(restoreId));
    if (!restored) return;
    upsertSession(restored);
    showSession(restored.session_id);
  };
  showToast(`${sessionTitle(session)} was deleted.`, { action: { label: "Undo", run: () => void undo() } });
}

/** Remove all messages of a session; with `purge`, for good. */
export async function clearSession(session: Session, purge: boolean): Promise<void> {
  dialog.value = null;
  if (purge) await stopSavingDraft(session.session_id);
  const cleared = await tryOrReport(() => forgettingDraft(session, purge, api.clearSession(session.session_id, purge)));
  if (!cleared) return;
  upsertSession(cleared);
  if (openSessionId.value === session.session_id) await conversation.reloadConversation();
  showToast(`${sessionTitle(session)} is empty now.`);
}

/** Branch after an agent's message, or before a user's message so that it can be edited and sent again. */
export async function branchFrom(session: Session, message: Message): Promise<void> {
  const isUserMessage = message.role === "user";
  const branchPoint = isUserMessage ? message.id : nextUserMessageId(message.id);
  const created = await tryOrReport(() => api.branchSession(session.session_id, branchPoint, false));
  if (!created) return;
  upsertSession(created);
  if (isUserMessage && !message.origin) updateDraft(created.session_id, message.text);
  focusComposerNext.value = true;
  showSession(created.session_id);
  showToast(`This is a branch of ${sessionTitle(session)}. New messages stay in the branch.`);
}

export async function controlRun(runId: string, action: "cancel" | "interrupt" | "detach" | "resume"): Promise<void> {
  const row = await tryOrReport(() => api.controlRun(runId, action));
  if (row) runs.upsertRuns([await api.getRun(runId).catch(() => row)]);
}

export async function answerApproval(approval: Approval, decision: ApprovalDecision): Promise<void> {
  const answered = await tryOrReport(() => api.answerApproval(approval.id, decision));
  if (answered) approvals.value = approvals.value.filter((each) => each.id !== approval.id);
  void refreshApprovals();
}

export async function promoteResult(item: InboxItem): Promise<void> {
  const promoted = await tryOrReport(() => api.promoteResult(item.id ?? item.runId));
  if (promoted) showToast(`The result of ${agentName(item.agentId, item.agentDisplayName)} was added to ${item.recipient ?? "the parent conversation"}.`);
  void refreshInbox();
}

export async function markInboxRead(): Promise<void> {
  const read = await tryOrReport(() => api.markInboxRead());
  if (read) showToast(read.length ? `${read.length} marked as read.` : "No unread results.");
  void refreshInbox();
}

export async function copyText(text: string, description: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    if (!copyWithSelection(text)) {
      showToast(`The browser blocked copying. Copy ${description} manually: ${text.slice(0, 300)}`, { isError: true });
      return false;
    }
  }
  return true;
}

function copyWithSelection(text: string): boolean {
  const area = document.createElement("textarea");
  const focused = document.activeElement;
  area.value = text;
  area.className = "offscreen";
  document.body.append(area);
  area.select();
  const copied = document.execCommand("copy");
  area.remove();
  if (focused instanceof HTMLElement) focused.focus();
  return copied;
}

export function setTheme(chosen: Theme): void {
  theme.value = chosen;
  writeSetting("theme", chosen);
  document.documentElement.dataset.theme = chosen;
}

/** The agent preselected for a new session: the chosen one, else that of the latest session, else a primary agent. */
export function defaultAgent(): string | null {
  const known = agents.value ?? [];
  const chosen = chosenAgent.value;
  if (chosen && known.some((each) => each.name === chosen)) return chosen;
  const latest = sessions.value?.find((each) => each.type === "branch")?.agent;
  if (latest && known.some((each) => each.name === latest)) return latest;
  return (known.find((each) => each.name === "general") ?? known.find((each) => each.roles.includes("primary")) ?? known[0])?.name ?? null;
}
