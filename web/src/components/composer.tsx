/** The message composer: Enter sends, Shift+Enter adds a line, and unsent text is kept. */

import { useSignal } from "@preact/signals";
import type { JSX, RefObject } from "preact";
import { useCallback, useEffect, useLayoutEffect, useRef } from "preact/hooks";
import { controlRun } from "../actions.ts";
import { loadDraft, removeSentDraft, updateDraft } from "../drafts.ts";
import { agentHueStyle } from "../agent-colour.ts";
import { activeRunOf, isInSubtree, type RunView } from "../runs.ts";
import type { Agent, Session } from "../api-types.ts";
import { approvals, connection, focusComposerNext, loadedSession, openSessionId } from "../store.ts";
import * as conversation from "../conversation.ts";
import { agentForHotkey, matchingSlashCommands, parseSlashCommand, startAgent } from "../agent-triggers.ts";
import { Icon } from "./icons.tsx";
import { agentName } from "../agent-title.ts";

export function Composer({ session }: { session: Session }): JSX.Element {
  const id = session.session_id;
  const text = useSignal(loadDraft(id, null));
  const sendQueue = useRef<Promise<void>>(Promise.resolve());
  const area = useRef<HTMLTextAreaElement>(null);
  const run = activeRunOf(id);
  const awaitsApproval = run !== null && approvals.value.some((each) => isInSubtree(each.run_id, run.id));
  const willQueue = run !== null && run.waitingFor !== "person";
  const isOffline = connection.value === "lost";
  const savedDraft = loadedSession.value?.session_id === id ? loadedSession.value.draft : null;
  useEffect(() => {
    text.value = loadDraft(id, savedDraft);
  }, [id, savedDraft]);
  useEffect(() => {
    if (focusComposerNext.value && matchMedia("(pointer: fine)").matches) area.current?.focus({ preventScroll: true });
    focusComposerNext.value = false;
  }, [id]);
  const updateText = (input: string): void => {
    text.value = input;
    updateDraft(id, input);
  };
  /** Delegate the text to another agent, and restore it if that fails. */
  const delegate = (agent: Agent, task: string, trigger: "slash" | "key"): void => {
    const input = text.value;
    text.value = "";
    void removeSentDraft(id, input).then(async () => {
      if ((await startAgent(id, agent, task, trigger)) || loadDraft(id, null)) return;
      updateDraft(id, input);
      if (openSessionId.value === id) text.value = input;
    });
  };
  const interceptKey = (event: KeyboardEvent): boolean => {
    const command = event.key === "Tab" && !event.shiftKey ? matchingSlashCommands(text.value)[0] : undefined;
    if (command) {
      updateText(`${command.slash} `);
      return true;
    }
    const agent = text.value.trim() && !isOffline ? agentForHotkey(event) : null;
    if (!agent || agent.roles.includes("watcher")) return false;
    if (!event.repeat) delegate(agent, text.value.trim(), "key");
    return true;
  };
  /** Send messages one after the other in the order typed, and restore the text if that fails. */
  const send = (): void => {
    const input = text.value;
    if (!input.trim() || isOffline) return;
    const command = parseSlashCommand(input);
    if (command) return delegate(command.agent, command.rest, "slash");
    text.value = "";
    const ready = removeSentDraft(id, input);
    sendQueue.current = sendQueue.current.then(async () => {
      await ready;
      if ((await conversation.sendMessage(id, input)) || loadDraft(id, null)) return;
      updateDraft(id, input);
      if (openSessionId.value === id) text.value = input;
    });
  };
  return (
    <form class="composer" onSubmit={(event) => { event.preventDefault(); send(); }} data-test="composer-form">
      <SlashCommandMenu text={text.value} onChoose={(slash) => { updateText(`${slash} `); area.current?.focus(); }} />
      <MessageInput area={area} text={text.value} onWrite={updateText} onSend={send} interceptKey={interceptKey} label={`Message to ${agentName(session.agent)}`} hint={awaitsApproval ? "Waiting for your approval above" : willQueue ? "Busy: your message will be queued" : run ? "Waiting for your message" : `Message ${agentName(session.agent)}`} />
      <div class="composer-bar">
        <span class="hint">{awaitsApproval ? "Answer the approval above; Enter queues a message" : willQueue ? "Enter queues the message" : "Enter sends, Shift+Enter adds a line"}</span>
        {run && <RunControls run={run} />}
        <button type="submit" class="button primary" data-test="send" disabled={!text.value.trim() || isOffline} aria-label={willQueue ? "Queue" : "Send"}>
          <Icon name={willQueue ? "queue" : "send"} size={14} /> {willQueue ? "Queue" : "Send"}
        </button>
      </div>
    </form>
  );
}

function RunControls({ run }: { run: RunView }): JSX.Element {
  return (
    <>
      <button type="button" class="button subtle-button" data-test="interrupt" title="Stop with a summary of the work so far" onClick={() => void controlRun(run.id, "interrupt")}><Icon name="pause" size={14} /> Interrupt</button>
      <button type="button" class="button subtle-button" data-test="cancel" title="Stop this run and its sub-agents" onClick={() => void controlRun(run.id, "cancel")}><Icon name="stop" size={14} /> Stop</button>
    </>
  );
}

/** The slash commands that start with the typed text. */
function SlashCommandMenu({ text, onChoose }: { text: string; onChoose: (slash: string) => void }): JSX.Element | null {
  const commands = matchingSlashCommands(text);
  if (!commands.length) return null;
  return (
    <div class="slash-commands" data-test="slashes" role="group" aria-label="Slash commands">
      {commands.map(({ slash, agent }) => (
        <button key={slash} type="button" style={agentHueStyle(agent.name)} data-test="slash" onClick={() => onChoose(slash)}><b>{slash}</b><span>{agent.roles.includes("watcher") ? `${agent.description} Without a task: start or stop watching.` : agent.description}</span></button>
      ))}
    </div>
  );
}

interface MessageInputProps {
  area: RefObject<HTMLTextAreaElement | null>;
  text: string;
  onWrite: (text: string) => void;
  onSend: () => void;
  /** Return true to handle the key instead of the input. */
  interceptKey?: (event: KeyboardEvent) => boolean;
  label: string;
  hint: string;
}

export function MessageInput({ area, text, onWrite: write, onSend: send, interceptKey, label, hint }: MessageInputProps): JSX.Element {
  const growToContent = useCallback(() => {
    const box = area.current;
    if (!box) return;
    box.style.height = "auto";
    box.style.height = `${Math.min(box.scrollHeight, window.innerHeight * 0.4)}px`;
  }, []);
  useLayoutEffect(growToContent, [text, hint]);
  useEffect(() => {
    addEventListener("resize", growToContent);
    return () => removeEventListener("resize", growToContent);
  }, []);
  const onKeyDown = (event: KeyboardEvent): void => {
    if (interceptKey?.(event)) {
      event.preventDefault();
      event.stopPropagation();
      return;
    }
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      send();
    }
    if (event.key === "Escape") area.current?.blur();
  };
  return <textarea ref={area} rows={1} value={text} placeholder={hint} aria-label={label} data-test="composer" dir="auto" onInput={(event) => write(event.currentTarget.value)} onKeyDown={onKeyDown} />;
}
