/** Which agent one talks to: shown always, and changed here. */

import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { create, switchTo } from "../actions.ts";
import { hue } from "../agent-colour.ts";
import { agents, current, sessions } from "../store.ts";
import { capital, counted } from "../format.ts";
import { AgentMark, Icon } from "./icons.tsx";
import { step } from "./widgets.tsx";

export function Switcher(): JSX.Element {
  const up = useSignal(false);
  const box = useRef<HTMLDivElement>(null);
  const now = current.value ?? "";
  useEffect(() => {
    if (!up.value) return undefined;
    (box.current?.querySelector<HTMLElement>("[aria-current=true]") ?? box.current?.querySelector<HTMLElement>(".agent-choice"))?.focus();
    const away = (event: Event): void => {
      if (!box.current?.contains(event.target as Node)) up.value = false;
    };
    document.addEventListener("pointerdown", away);
    return () => document.removeEventListener("pointerdown", away);
  }, [up.value]);
  const close = (): void => {
    up.value = false;
    box.current?.querySelector("button")?.focus();
  };
  const onKey = (event: KeyboardEvent): void => {
    if (!up.value) return;
    if (event.key === "Escape") close();
    else if (event.key === "ArrowDown" || event.key === "ArrowUp") step(box.current, ".agent-choice", event.key === "ArrowDown" ? 1 : -1);
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  return (
    <div class="switcher" ref={box} onKeyDown={onKey}>
      <button type="button" class="current-agent" style={hue(now)} aria-haspopup="true" aria-expanded={up.value} title="Talk to another agent" data-test="agent-switcher" data-agent={now} onClick={() => (up.value = !up.value)}>
        <AgentMark agent={now} /><span data-test="current-agent">{capital(now)}</span><Icon name="down" size={12} />
      </button>
      {up.value && (
        <div class="switch-list" aria-label="Agents">
          {(agents.value ?? []).map((agent) => <Other key={agent.name} name={agent.name} description={agent.description} here={agent.name === now} close={close} />)}
        </div>
      )}
    </div>
  );
}

function Other({ name, description, here, close }: { name: string; description: string; here: boolean; close: () => void }): JSX.Element {
  const count = (sessions.value ?? []).filter((each) => each.agent === name && each.type === "branch").length;
  return (
    <div class="switch-row" style={hue(name)}>
      <button type="button" class="agent-choice" aria-current={here ? "true" : undefined} data-test="agent-choice" data-agent={name} title={description} onClick={() => { close(); switchTo(name); }}>
        <AgentMark agent={name} /><b>{capital(name)}</b><span class="quiet">{count ? counted(count, "session") : "new"}</span>
        {here && <Icon name="check" size={14} />}
      </button>
      <button type="button" class="icon-button" aria-label={`New session with ${name}`} title={`New session with ${name}`} data-test="agent-new" data-agent={name} onClick={() => { close(); void create(name); }}><Icon name="plus" size={14} /></button>
    </div>
  );
}
