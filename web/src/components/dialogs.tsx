/** The modal dialogs: shortcuts, new session, clear or delete a session. */

import { useSignal } from "@preact/signals";
import type { ComponentChildren, JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { clearSession, deleteSession, startNewSession } from "../actions.ts";
import { agentName } from "../agent-title.ts";
import { agentHueStyle } from "../agent-colour.ts";
import type { Session } from "../api-types.ts";
import { agents, currentAgent, dialog } from "../store.ts";
import { capitalize, sessionTitle } from "../format.ts";
import { AgentIcon } from "./icons.tsx";
import { moveFocus } from "./widgets.tsx";

export function Dialogs(): JSX.Element | null {
  const current = dialog.value;
  if (!current) return null;
  if (current.kind === "keys") return <ShortcutsDialog />;
  if (current.kind === "new") return <NewSessionDialog />;
  return <RemoveSessionDialog kind={current.kind} session={current.session} />;
}

function ModalDialog({ label, children, testId }: { label: string; children: ComponentChildren; testId: string }): JSX.Element {
  const box = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    const previousFocus = document.activeElement;
    box.current?.showModal();
    return () => {
      const focusIsFree = document.activeElement === null || document.activeElement === document.body || box.current?.contains(document.activeElement);
      if (focusIsFree && previousFocus instanceof HTMLElement && previousFocus.isConnected) previousFocus.focus();
    };
  }, []);
  return (
    <dialog ref={box} class="dialog" aria-label={label} data-test={testId} onClose={() => (dialog.value = null)} onClick={(event) => { if (event.target === box.current) dialog.value = null; }}>
      <div class="dialog-inner">{children}</div>
    </dialog>
  );
}

const SHORTCUT_HELP: [string, string][] = [
  ["/", "search"],
  ["n", "new session"],
  ["j  k  ↓  ↑", "move in the session list"],
  ["Enter", "open, or send"],
  ["Shift Enter", "a new line"],
  ["c", "focus the message box"],
  ["a", "focus the approvals"],
  ["i", "inbox"],
  ["r", "runs"],
  ["g  Home", "go to the beginning of the conversation"],
  ["G  End", "go to its end"],
  ["t", "theme: light, dark or system"],
  ["Esc", "close"],
  ["?", "keyboard shortcuts"],
];

/** Hotkeys and slash commands from agent definitions. */
function agentShortcuts(): [string, string][] {
  return (agents.value ?? []).flatMap((agent) => {
    const isWatcher = agent.roles.includes("watcher");
    const keys = agent.triggers.hotkeys.map((key): [string, string] => [key, isWatcher ? `start or stop the watcher ${agentName(agent.name)}` : `send the typed text to ${agentName(agent.name)}`]);
    const commands = agent.triggers.slash.map((slash): [string, string] => [`/${slash.replace(/^\//, "")}`, `delegate to ${agentName(agent.name)}${isWatcher ? "; without a task: start or stop watching" : ""}`]);
    return [...keys, ...commands];
  });
}

function ShortcutsDialog(): JSX.Element {
  return (
    <ModalDialog label="Keyboard shortcuts" testId="keys">
      <h2>Keyboard shortcuts</h2>
      <dl class="keys">{[...SHORTCUT_HELP, ...agentShortcuts()].map(([key, description]) => <div key={key}><dt>{key.split("  ").map((each) => <kbd key={each}>{each}</kbd>)}</dt><dd>{description}</dd></div>)}</dl>
    </ModalDialog>
  );
}

function NewSessionDialog(): JSX.Element {
  const filter = useSignal("");
  const list = useRef<HTMLDivElement>(null);
  const filterText = filter.value.trim().toLowerCase();
  const matches = (agents.value ?? []).filter((each) => `${each.name} ${each.description}`.toLowerCase().includes(filterText));
  matches.sort((a, b) => Number(b.name.startsWith(filterText)) - Number(a.name.startsWith(filterText)) || Number(b.name === currentAgent.value) - Number(a.name === currentAgent.value));
  const onKeyDown = (event: KeyboardEvent): void => {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      moveFocus(list.current, "button", event.key === "ArrowDown" ? 1 : -1);
    } else if (event.key === "Enter" && event.target instanceof HTMLInputElement && matches[0]) {
      event.preventDefault();
      void startNewSession(matches[0].name);
    }
  };
  return (
    <ModalDialog label="New session" testId="new-dialog">
      <h2>New session with</h2>
      <div onKeyDown={onKeyDown}>
        <input class="field" autofocus placeholder="An agent" aria-label="Agent" value={filter.value} data-test="new-filter" onInput={(event) => (filter.value = event.currentTarget.value)} />
        <div class="agent-list" ref={list}>
          {matches.map((each, i) => (
            <button key={each.name} type="button" class={`agent-option ${i === 0 ? "first" : ""}`} style={agentHueStyle(each.name)} data-test="new-with" data-agent={each.name} onClick={() => void startNewSession(each.name)}>
              <AgentIcon agent={each.name} /><span><b>{capitalize(each.display_name ?? each.name)}</b><span class="agent-option-description">{each.description}</span></span>
            </button>
          ))}
          {!matches.length && <p class="muted padded">No matching agents.</p>}
        </div>
      </div>
    </ModalDialog>
  );
}

interface RemovalText {
  verb: string;
  consequence: string;
  purgeConsequence: string;
}

const REMOVALS: Record<"clear" | "delete", RemovalText> = {
  clear: {
    verb: "Clear",
    consequence: "All messages are removed. The session, its name and its folder are kept, and a copy of the messages stays in the folder.",
    purgeConsequence: "All messages and sub-agents of this session are removed from every file at once. The session and its name are kept. This cannot be undone.",
  },
  delete: {
    verb: "Delete",
    consequence: "The session moves to the trash. It can be restored for 30 days.",
    purgeConsequence: "The session and its sub-agents are removed from every file at once. This cannot be undone.",
  },
};

/** Confirm that a session is deleted or cleared, with the choice to purge it. */
function RemoveSessionDialog({ kind, session }: { kind: "clear" | "delete"; session: Session }): JSX.Element {
  const purge = useSignal(false);
  const { verb, consequence, purgeConsequence } = REMOVALS[kind];
  const confirm = (): void => void (kind === "clear" ? clearSession(session, purge.value) : deleteSession(session, purge.value));
  return (
    <ModalDialog label={verb} testId={`${kind}-dialog`}>
      <h2>{verb} {sessionTitle(session)}?</h2>
      <p data-test="consequence" aria-live="polite">{purge.value ? purgeConsequence : consequence}</p>
      <label class="dialog-choice">
        <input type="checkbox" data-test="purge" checked={purge.value} onChange={(event) => (purge.value = event.currentTarget.checked)} /> Also remove the words everywhere
      </label>
      <p class="dialog-actions">
        <button type="button" class="button" data-test="remove-no" onClick={() => (dialog.value = null)}>Cancel</button>
        <button type="button" class="button primary" data-test={`${kind}-yes`} onClick={confirm}>{purge.value ? `${verb} for good` : verb}</button>
      </p>
    </ModalDialog>
  );
}
