/** The menu that shows and changes the current agent. */

import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { startNewSession, switchAgent } from "../actions.ts";
import { agentHueStyle } from "../agent-colour.ts";
import { agents, currentAgent, sessions } from "../store.ts";
import { formatCount } from "../format.ts";
import { AgentIcon, Icon } from "./icons.tsx";
import { moveFocus } from "./widgets.tsx";
import { agentTitle } from "../agent-title.ts";

export function AgentSwitcher(): JSX.Element {
  const isOpen = useSignal(false);
  const box = useRef<HTMLDivElement>(null);
  const selected = currentAgent.value ?? "";
  useEffect(() => {
    if (!isOpen.value) return undefined;
    (box.current?.querySelector<HTMLElement>("[aria-current=true]") ?? box.current?.querySelector<HTMLElement>(".agent-choice"))?.focus();
    const closeOnOutsideClick = (event: Event): void => {
      if (!box.current?.contains(event.target as Node)) isOpen.value = false;
    };
    document.addEventListener("pointerdown", closeOnOutsideClick);
    return () => document.removeEventListener("pointerdown", closeOnOutsideClick);
  }, [isOpen.value]);
  const close = (): void => {
    isOpen.value = false;
    box.current?.querySelector("button")?.focus();
  };
  const onKeyDown = (event: KeyboardEvent): void => {
    if (!isOpen.value) return;
    if (event.key === "Escape") close();
    else if (event.key === "ArrowDown" || event.key === "ArrowUp") moveFocus(box.current, ".agent-choice", event.key === "ArrowDown" ? 1 : -1);
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  return (
    <div class="agent-switcher" ref={box} onKeyDown={onKeyDown}>
      <button type="button" class="current-agent" style={agentHueStyle(selected)} aria-haspopup="true" aria-expanded={isOpen.value} title="Switch agent" data-test="agent-switcher" data-agent={selected} onClick={() => (isOpen.value = !isOpen.value)}>
        <AgentIcon agent={selected} /><span data-test="current-agent">{agentTitle(selected)}</span><Icon name="down" size={12} />
      </button>
      {isOpen.value && (
        <div class="agent-menu" aria-label="Agents">
          {(agents.value ?? []).map((agent) => <AgentChoice key={agent.name} name={agent.name} description={agent.description} isCurrent={agent.name === selected} onClose={close} />)}
        </div>
      )}
    </div>
  );
}

function AgentChoice({ name, description, isCurrent, onClose }: { name: string; description: string; isCurrent: boolean; onClose: () => void }): JSX.Element {
  const count = (sessions.value ?? []).filter((each) => each.agent === name && each.type === "branch").length;
  return (
    <div class="agent-menu-row" style={agentHueStyle(name)}>
      <button type="button" class="agent-choice" aria-current={isCurrent ? "true" : undefined} data-test="agent-choice" data-agent={name} title={description} onClick={() => { onClose(); switchAgent(name); }}>
        <AgentIcon agent={name} /><b>{agentTitle(name)}</b><span class="muted">{count ? formatCount(count, "session") : "new"}</span>
        {isCurrent && <Icon name="check" size={14} />}
      </button>
      <button type="button" class="icon-button" aria-label={`New session with ${name}`} title={`New session with ${name}`} data-test="agent-new" data-agent={name} onClick={() => { onClose(); void startNewSession(name); }}><Icon name="plus" size={14} /></button>
    </div>
  );
}
