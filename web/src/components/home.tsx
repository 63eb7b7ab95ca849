/** The start page: choose an agent and give it a task. */

import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { useRef } from "preact/hooks";
import { createAndShowSession, defaultAgent, showHome } from "../actions.ts";
import { agentHueStyle } from "../agent-colour.ts";
import type { Agent } from "../api-types.ts";
import { agents, currentAgent, health, sessions } from "../store.ts";
import * as conversation from "../conversation.ts";
import { capitalize } from "../format.ts";
import { MessageInput } from "./composer.tsx";
import { AgentIcon, Icon } from "./icons.tsx";
import { AgentSwitcher } from "./agent-switcher.tsx";

const EXAMPLE_TASKS = [
  "Explain what this project does, and where to start reading",
  "Find untested code here, and say what to test first",
  "Ask a researcher and a reviewer about the same file, and combine their answers",
];

export function HomePage(): JSX.Element {
  const agentList = agents.value;
  if (agentList && !agentList.length) return <NoAgents />;
  return (
    <main class="main home" id="main" style={agentHueStyle(currentAgent.value ?? defaultAgent() ?? "")}>
      {currentAgent.value && <header class="head"><AgentSwitcher /></header>}
      <div class="home-column">
        <h1>{sessions.value?.length ? "New session" : "Start your first session"}</h1>
        {!sessions.value?.length && <p class="intro">Choose an agent and describe the task. The agent reads and changes files in its folder, asks for your approval where it needs one, and can delegate to sub-agents. The conversation is saved as a file.</p>}
        <NewSessionForm />
        {agentList && <AgentPicker agentList={agentList} />}
      </div>
    </main>
  );
}

function NewSessionForm(): JSX.Element {
  const text = useSignal("");
  const folder = useSignal("");
  const isCreating = useSignal(false);
  const area = useRef<HTMLTextAreaElement>(null);
  const agent = defaultAgent();
  const submit = async (): Promise<void> => {
    const task = text.value.trim();
    if (!task || !agent || isCreating.value) return;
    isCreating.value = true;
    const session = await createAndShowSession(agent, folder.value.trim() || undefined);
    isCreating.value = false;
    if (!session) return;
    await new Promise<void>((resolve) => setTimeout(resolve));
    await conversation.sendMessage(session.session_id, task);
  };
  return (
    <form class="composer new-session-form" onSubmit={(event) => { event.preventDefault(); void submit(); }} data-test="home-form">
      <MessageInput area={area} text={text.value} onWrite={(task) => (text.value = task)} onSend={() => void submit()} label={`Task for ${agent ?? "an agent"}`} hint={`What should ${agent ?? "the agent"} do?`} />
      <div class="composer-bar">
        <label class="folder"><Icon name="file" size={12} /><input value={folder.value} data-test="folder" onInput={(event) => (folder.value = event.currentTarget.value)} placeholder="workspace (default: the daemon's folder)" aria-label="Workspace folder" spellcheck={false} /></label>
        <button type="submit" class="button primary" data-test="send" disabled={!text.value.trim() || !agent || isCreating.value}><Icon name="send" size={14} /> Start</button>
      </div>
      {!sessions.value?.length && (
        <ul class="example-tasks" aria-label="Example tasks">
          {EXAMPLE_TASKS.map((each) => <li key={each}><button type="button" class="link" onClick={() => { text.value = each; area.current?.focus(); }}>{each}</button></li>)}
        </ul>
      )}
    </form>
  );
}

function AgentPicker({ agentList }: { agentList: Agent[] }): JSX.Element {
  const selected = defaultAgent();
  const primary = agentList.filter((each) => each.roles.includes("primary") || each.roles.includes("orchestrator") || each.name === selected);
  const others = agentList.filter((each) => !primary.includes(each));
  return (
    <section class="agent-picker" aria-label="Agents" data-test="agents">
      <h2>Agent</h2>
      <div class="agent-grid" role="radiogroup" aria-label="Agent">{primary.map((each) => <AgentOption key={each.name} agent={each} isSelected={each.name === selected} />)}</div>
      {others.length > 0 && <details><summary>{others.length} more, mainly used as sub-agents</summary><div class="agent-grid">{others.map((each) => <AgentOption key={each.name} agent={each} isSelected={each.name === selected} />)}</div></details>}
      {health.value && <p class="muted">Agents are files. <code>retinue agents list</code> shows where each is defined; <code>retinue agents import</code> imports your own.</p>}
    </section>
  );
}

function AgentOption({ agent, isSelected }: { agent: Agent; isSelected: boolean }): JSX.Element {
  return (
    <button type="button" role="radio" aria-checked={isSelected} class="agent-option" style={agentHueStyle(agent.name)} data-test="pick-agent" data-agent={agent.name} onClick={() => { showHome(agent.name); document.querySelector<HTMLElement>(".new-session-form textarea")?.focus(); }}>
      <AgentIcon agent={agent.name} />
      <span><b>{capitalize(agent.display_name ?? agent.name)}</b><span class="agent-option-description">{agent.description}</span></span>
    </button>
  );
}

function NoAgents(): JSX.Element {
  return (
    <main class="main" id="main">
      <div class="empty" data-test="no-agents">
        <h1>No agents</h1>
        <p>An agent is a Markdown file with a prompt and permissions. Put one into the folder <code>agents/</code> of your configuration, or import one:</p>
        <pre class="block">retinue agents import PATH</pre>
        <p class="muted">If agents are missing, run <code>retinue doctor</code> to see why.</p>
      </div>
    </main>
  );
}
