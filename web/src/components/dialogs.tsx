/** The modal dialogs: shortcuts, new session, clear session. */

import { useSignal } from "@preact/signals";
import type { ComponentChildren, JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { clearSession, startNewSession } from "../actions.ts";
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
  return <ClearSessionDialog session={current.session} />;
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
    const keys = agent.triggers.hotkeys.map((key): [string, string] => [key, isWatcher ? `start or stop the watcher ${agent.name}` : `send the typed text to ${agent.name}`]);
    const commands = agent.triggers.slash.map((slash): [string, string] => [`/${slash.replace(/^\//, "")}`, `delegate to ${agent.name}${isWatcher ? "; without a task: start or stop watching" : ""}`]);
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

function ClearSessionDialog({ session }: { session: Session }): JSX.Element {
  return (
    <ModalDialog label="Clear" testId="clear-dialog">
      <h2>Clear {sessionTitle(session)}?</h2>
      <p>All messages are removed. The session, its name and its folder are kept.</p>
      <p class="dialog-actions">
        <button type="button" class="button" onClick={() => (dialog.value = null)}>Cancel</button>
        <button type="button" class="button primary" data-test="clear-yes" onClick={() => void clearSession(session)}>Clear</button>
      </p>
    </ModalDialog>
  );
}
