/** What stands before everything for a moment: the keys, who a new session is with, whether to clear. */

import { useSignal } from "@preact/signals";
import type { ComponentChildren, JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { clear, create } from "../actions.ts";
import { hue } from "../agent-colour.ts";
import type { Session } from "../api-types.ts";
import { agents, current, dialog } from "../store.ts";
import { capital, titleOf } from "../format.ts";
import { AgentMark } from "./icons.tsx";
import { step } from "./widgets.tsx";

export function Dialogs(): JSX.Element | null {
  const up = dialog.value;
  if (!up) return null;
  if (up.what === "keys") return <Keys />;
  if (up.what === "new") return <NewSession />;
  return <Clear session={up.session} />;
}

function Shade({ label, children, test }: { label: string; children: ComponentChildren; test: string }): JSX.Element {
  const box = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    const before = document.activeElement;
    box.current?.showModal();
    return () => {
      const free = document.activeElement === null || document.activeElement === document.body || box.current?.contains(document.activeElement);
      if (free && before instanceof HTMLElement && before.isConnected) before.focus();
    };
  }, []);
  return (
    <dialog ref={box} class="dialog" aria-label={label} data-test={test} onClose={() => (dialog.value = null)} onClick={(event) => { if (event.target === box.current) dialog.value = null; }}>
      <div class="dialog-inner">{children}</div>
    </dialog>
  );
}

const KEYS: [string, string][] = [
  ["/", "search"],
  ["n", "new session"],
  ["j  k  ↓  ↑", "move in the list"],
  ["Enter", "open, or send"],
  ["Shift Enter", "a new line"],
  ["c", "to the box where one types"],
  ["a", "to the approvals"],
  ["i", "inbox"],
  ["r", "runs"],
  ["g  Home", "to the beginning of the conversation"],
  ["G  End", "to its end"],
  ["t", "light, dark, or as the system"],
  ["Esc", "close what is open"],
  ["?", "these keys"],
];

/** Keys and slash commands that agents' definitions name. */
function own(): [string, string][] {
  return (agents.value ?? []).flatMap((agent) => {
    const watches = agent.roles.includes("watcher");
    const keys = agent.triggers.hotkeys.map((key): [string, string] => [key, watches ? `${agent.name} watches, or no more` : `${agent.name} does what is typed`]);
    const commands = agent.triggers.slash.map((slash): [string, string] => [`/${slash.replace(/^\//, "")}`, `${agent.name} does it beside this conversation${watches ? "; alone, it watches" : ""}`]);
    return [...keys, ...commands];
  });
}

function Keys(): JSX.Element {
  return (
    <Shade label="Keys" test="keys">
      <h2>Keys</h2>
      <dl class="keys">{[...KEYS, ...own()].map(([key, does]) => <div key={key}><dt>{key.split("  ").map((each) => <kbd key={each}>{each}</kbd>)}</dt><dd>{does}</dd></div>)}</dl>
    </Shade>
  );
}

function NewSession(): JSX.Element {
  const wanted = useSignal("");
  const list = useRef<HTMLDivElement>(null);
  const words = wanted.value.trim().toLowerCase();
  const found = (agents.value ?? []).filter((each) => `${each.name} ${each.description}`.toLowerCase().includes(words));
  found.sort((a, b) => Number(b.name.startsWith(words)) - Number(a.name.startsWith(words)) || Number(b.name === current.value) - Number(a.name === current.value));
  const onKey = (event: KeyboardEvent): void => {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      step(list.current, "button", event.key === "ArrowDown" ? 1 : -1);
    } else if (event.key === "Enter" && event.target instanceof HTMLInputElement && found[0]) {
      event.preventDefault();
      void create(found[0].name);
    }
  };
  return (
    <Shade label="New session" test="new-dialog">
      <h2>New session with</h2>
      <div onKeyDown={onKey}>
        <input class="field" autofocus placeholder="An agent" aria-label="Agent" value={wanted.value} data-test="new-filter" onInput={(event) => (wanted.value = event.currentTarget.value)} />
        <div class="new-list" ref={list}>
          {found.map((each, i) => (
            <button key={each.name} type="button" class={`pick ${i === 0 ? "first" : ""}`} style={hue(each.name)} data-test="new-with" data-agent={each.name} onClick={() => void create(each.name)}>
              <AgentMark agent={each.name} /><span><b>{capital(each.display_name ?? each.name)}</b><span class="pick-about">{each.description}</span></span>
            </button>
          ))}
          {!found.length && <p class="quiet pad">No agent is called that.</p>}
        </div>
      </div>
    </Shade>
  );
}

function Clear({ session }: { session: Session }): JSX.Element {
  return (
    <Shade label="Clear" test="clear-dialog">
      <h2>Clear {titleOf(session)}?</h2>
      <p>The agent forgets what was said; the session, its name and its folder stay.</p>
      <p class="dialog-acts">
        <button type="button" class="button" onClick={() => (dialog.value = null)}>Keep it</button>
        <button type="button" class="button primary" data-test="clear-yes" onClick={() => void clear(session)}>Clear</button>
      </p>
    </Shade>
  );
}
