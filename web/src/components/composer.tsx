/** Where one types: Enter sends, Shift+Enter begins a line, and what is not sent is kept. */

import { useSignal } from "@preact/signals";
import type { JSX, RefObject } from "preact";
import { useCallback, useEffect, useLayoutEffect, useRef } from "preact/hooks";
import { begun, taken, typed } from "../drafts.ts";
import { hue } from "../agent-colour.ts";
import { atWork, isBelow } from "../runs.ts";
import type { Agent, Session } from "../api-types.ts";
import { approvals, connection, openId, shown, typeNext } from "../store.ts";
import * as talk from "../conversation.ts";
import { keyed, launch, offered, slashed } from "../watchers.ts";
import { Controls } from "./conversation.tsx";
import { Icon } from "./icons.tsx";

export function Composer({ session }: { session: Session }): JSX.Element {
  const id = session.session_id;
  const text = useSignal(begun(id, null));
  const line = useRef<Promise<void>>(Promise.resolve());
  const area = useRef<HTMLTextAreaElement>(null);
  const run = atWork(id);
  const asks = run !== null && approvals.value.some((each) => isBelow(each.run_id, run.id));
  const queues = run !== null && run.waitsFor !== "person";
  const shut = connection.value === "lost";
  const told = shown.value?.session_id === id ? shown.value.draft : null;
  useEffect(() => {
    text.value = begun(id, told);
  }, [id, told]);
  useEffect(() => {
    if (typeNext.value && matchMedia("(pointer: fine)").matches) area.current?.focus({ preventScroll: true });
    typeNext.value = false;
  }, [id]);
  const write = (words: string): void => {
    text.value = words;
    typed(id, words);
  };
  /** To another agent, beside this conversation; what could not be handed on comes back. */
  const hand = (agent: Agent, task: string, trigger: "slash" | "key"): void => {
    const words = text.value;
    text.value = "";
    void taken(id, words).then(async () => {
      if ((await launch(id, agent, task, trigger)) || begun(id, null)) return;
      typed(id, words);
      if (openId.value === id) text.value = words;
    });
  };
  const onKey = (event: KeyboardEvent): boolean => {
    const command = event.key === "Tab" && !event.shiftKey ? offered(text.value)[0] : undefined;
    if (command) {
      write(`${command.slash} `);
      return true;
    }
    const agent = text.value.trim() && !shut ? keyed(event) : null;
    if (!agent || agent.roles.includes("watcher")) return false;
    if (!event.repeat) hand(agent, text.value.trim(), "key");
    return true;
  };
  /** One after the other, in the order in which they were typed; what could not be sent comes back. */
  const send = (): void => {
    const words = text.value;
    if (!words.trim() || shut) return;
    const command = slashed(words);
    if (command) return hand(command.agent, command.rest, "slash");
    text.value = "";
    const ready = taken(id, words);
    line.current = line.current.then(async () => {
      await ready;
      if ((await talk.say(id, words)) || begun(id, null)) return;
      typed(id, words);
      if (openId.value === id) text.value = words;
    });
  };
  return (
    <form class="composer" onSubmit={(event) => { event.preventDefault(); send(); }} data-test="composer-form">
      <Slashes text={text.value} choose={(slash) => { write(`${slash} `); area.current?.focus(); }} />
      <Area area={area} text={text.value} write={write} send={send} onKey={onKey} label={`Message to ${session.agent}`} hint={asks ? "It waits for your answer above" : queues ? "It is at work: what you send waits for its turn" : run ? "It waits for you: say how to go on" : `Say what ${session.agent} should do`} />
      <div class="composer-bar">
        <span class="hint">{asks ? "Answer it in the strip above; Enter queues more" : queues ? "Enter queues it" : "Enter sends, Shift+Enter begins a line"}</span>
        {run && <Controls run={run} />}
        <button type="submit" class="button primary" data-test="send" disabled={!text.value.trim() || shut} aria-label={queues ? "Queue" : "Send"}>
          <Icon name={queues ? "queue" : "send"} size={14} /> {queues ? "Queue" : "Send"}
        </button>
      </div>
    </form>
  );
}

/** The commands of agents that begin as what is typed does. */
function Slashes({ text, choose }: { text: string; choose: (slash: string) => void }): JSX.Element | null {
  const found = offered(text);
  if (!found.length) return null;
  return (
    <div class="slashes" data-test="slashes" role="group" aria-label="Commands of agents">
      {found.map(({ slash, agent }) => (
        <button key={slash} type="button" style={hue(agent.name)} data-test="slash" onClick={() => choose(slash)}><b>{slash}</b><span>{agent.roles.includes("watcher") ? `${agent.description} Alone, it watches.` : agent.description}</span></button>
      ))}
    </div>
  );
}

interface Typing {
  area: RefObject<HTMLTextAreaElement | null>;
  text: string;
  write: (words: string) => void;
  send: () => void;
  /** Whether a key means something else than a letter. */
  onKey?: (event: KeyboardEvent) => boolean;
  label: string;
  hint: string;
}

export function Area({ area, text, write, send, onKey: taken, label, hint }: Typing): JSX.Element {
  const grown = useCallback(() => {
    const box = area.current;
    if (!box) return;
    box.style.height = "auto";
    box.style.height = `${Math.min(box.scrollHeight, window.innerHeight * 0.4)}px`;
  }, []);
  useLayoutEffect(grown, [text, hint]);
  useEffect(() => {
    addEventListener("resize", grown);
    return () => removeEventListener("resize", grown);
  }, []);
  const onKey = (event: KeyboardEvent): void => {
    if (taken?.(event)) {
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
  return <textarea ref={area} rows={1} value={text} placeholder={hint} aria-label={label} data-test="composer" dir="auto" onInput={(event) => write(event.currentTarget.value)} onKeyDown={onKey} />;
}
