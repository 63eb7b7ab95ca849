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
  "Explain what this project does, and where to begin reading",
  "Find what is not tested here, and say what to test first",
  "Ask a researcher and a reviewer about the same file, and join what they say",
];

export function HomePage(): JSX.Element {
  const agentList = agents.value;
  if (agentList && !agentList.length) return <NoAgents />;
  return (
    <main class="main home" id="main" style={agentHueStyle(currentAgent.value ?? defaultAgent() ?? "")}>
      {currentAgent.value && <header class="head"><AgentSwitcher /></header>}
      <div class="home-column">
        <h1>{sessions.value?.length ? "What next?" : "Say what should be done."}</h1>
        {!sessions.value?.length && <p class="intro">Choose who does it and write it in plain words. The agent reads and changes files in its folder, asks you before anything it may not do, and can hand work on to others. Everything it says is kept in a file of yours.</p>}
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
        <label class="folder"><Icon name="file" size={12} /><input value={folder.value} data-test="folder" onInput={(event) => (folder.value = event.currentTarget.value)} placeholder="folder: where the daemon was started" aria-label="Folder it works in" spellcheck={false} /></label>
        <button type="submit" class="button primary" data-test="send" disabled={!text.value.trim() || !agent || isCreating.value}><Icon name="send" size={14} /> Begin</button>
      </div>
      {!sessions.value?.length && (
        <ul class="example-tasks" aria-label="Things to try">
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
      <h2>Who</h2>
      <div class="agent-grid" role="radiogroup" aria-label="Who should do it">{primary.map((each) => <AgentOption key={each.name} agent={each} isSelected={each.name === selected} />)}</div>
      {others.length > 0 && <details><summary>{others.length} more, whom agents usually ask themselves</summary><div class="agent-grid">{others.map((each) => <AgentOption key={each.name} agent={each} isSelected={each.name === selected} />)}</div></details>}
      {health.value && <p class="muted">Agents are files: <code>retinue agents list</code> says where each comes from, and <code>retinue agents import</code> takes in your own.</p>}
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
        <h1>There are no agents.</h1>
        <p>An agent is a Markdown file that says who it is and what it may do. Put one into the folder <code>agents/</code> of your configuration, or take one in:</p>
        <pre class="block">retinue agents import PATH</pre>
        <p class="muted">If there should be some, <code>retinue doctor</code> says why they are not read.</p>
      </div>
    </main>
  );
}
