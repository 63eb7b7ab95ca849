/** The first page: who should work, and what at. It teaches by being the thing itself. */

import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { useRef } from "preact/hooks";
import { begin, home, usual } from "../actions.ts";
import { hue } from "../agent-colour.ts";
import type { Agent } from "../api-types.ts";
import { agents, current, health, sessions } from "../store.ts";
import * as talk from "../conversation.ts";
import { capital } from "../format.ts";
import { Area } from "./composer.tsx";
import { AgentMark, Icon } from "./icons.tsx";
import { Switcher } from "./agent-switcher.tsx";

const TRIES = [
  "Explain what this project does, and where to begin reading",
  "Find what is not tested here, and say what to test first",
  "Ask a researcher and a reviewer about the same file, and join what they say",
];

export function Home(): JSX.Element {
  const known = agents.value;
  if (known && !known.length) return <NoAgents />;
  return (
    <main class="main home" id="main" style={hue(current.value ?? usual() ?? "")}>
      {current.value && <header class="head"><Switcher /></header>}
      <div class="home-column">
        <h1>{sessions.value?.length ? "What next?" : "Say what should be done."}</h1>
        {!sessions.value?.length && <p class="lead">Choose who does it and write it in plain words. The agent reads and changes files in its folder, asks you before anything it may not do, and can hand work on to others. Everything it says is kept in a file of yours.</p>}
        <Begin />
        {known && <Choose known={known} />}
      </div>
    </main>
  );
}

function Begin(): JSX.Element {
  const text = useSignal("");
  const folder = useSignal("");
  const busy = useSignal(false);
  const area = useRef<HTMLTextAreaElement>(null);
  const agent = usual();
  const send = async (): Promise<void> => {
    const words = text.value.trim();
    if (!words || !agent || busy.value) return;
    busy.value = true;
    const made = await begin(agent, folder.value.trim() || undefined);
    busy.value = false;
    if (!made) return;
    await new Promise<void>((done) => setTimeout(done));
    await talk.say(made.session_id, words);
  };
  return (
    <form class="composer begin" onSubmit={(event) => { event.preventDefault(); void send(); }} data-test="home-form">
      <Area area={area} text={text.value} write={(words) => (text.value = words)} send={() => void send()} label={`Task for ${agent ?? "an agent"}`} hint={`What should ${agent ?? "the agent"} do?`} />
      <div class="composer-bar">
        <label class="folder"><Icon name="file" size={12} /><input value={folder.value} data-test="folder" onInput={(event) => (folder.value = event.currentTarget.value)} placeholder="folder: where the daemon was started" aria-label="Folder it works in" spellcheck={false} /></label>
        <button type="submit" class="button primary" data-test="send" disabled={!text.value.trim() || !agent || busy.value}><Icon name="send" size={14} /> Begin</button>
      </div>
      {!sessions.value?.length && (
        <ul class="tries" aria-label="Things to try">
          {TRIES.map((each) => <li key={each}><button type="button" class="link" onClick={() => { text.value = each; area.current?.focus(); }}>{each}</button></li>)}
        </ul>
      )}
    </form>
  );
}

function Choose({ known }: { known: Agent[] }): JSX.Element {
  const now = usual();
  const people = known.filter((each) => each.roles.includes("primary") || each.roles.includes("orchestrator") || each.name === now);
  const others = known.filter((each) => !people.includes(each));
  return (
    <section class="choose" aria-label="Agents" data-test="agents">
      <h2>Who</h2>
      <div class="agents" role="radiogroup" aria-label="Who should do it">{people.map((each) => <Pick key={each.name} agent={each} here={each.name === now} />)}</div>
      {others.length > 0 && <details><summary>{others.length} more, whom agents usually ask themselves</summary><div class="agents">{others.map((each) => <Pick key={each.name} agent={each} here={each.name === now} />)}</div></details>}
      {health.value && <p class="quiet">Agents are files: <code>retinue agents list</code> says where each comes from, and <code>retinue agents import</code> takes in your own.</p>}
    </section>
  );
}

function Pick({ agent, here }: { agent: Agent; here: boolean }): JSX.Element {
  return (
    <button type="button" role="radio" aria-checked={here} class="pick" style={hue(agent.name)} data-test="pick-agent" data-agent={agent.name} onClick={() => { home(agent.name); document.querySelector<HTMLElement>(".begin textarea")?.focus(); }}>
      <AgentMark agent={agent.name} />
      <span><b>{capital(agent.display_name ?? agent.name)}</b><span class="pick-about">{agent.description}</span></span>
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
        <p class="quiet">If there should be some, <code>retinue doctor</code> says why they are not read.</p>
      </div>
    </main>
  );
}
