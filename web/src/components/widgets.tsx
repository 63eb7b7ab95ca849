/** Small parts that several views are made of. */

import { useSignal } from "@preact/signals";
import type { ComponentChildren, JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { copy } from "../actions.ts";
import { pieces } from "../invisible-characters.ts";
import { Icon, type Drawing } from "./icons.tsx";

interface Press {
  icon: Drawing;
  label: string;
  act: (event: MouseEvent) => void;
  test?: string;
  pressed?: boolean;
  class?: string;
  children?: ComponentChildren;
}

export function IconButton({ icon, label, act, test, pressed, class: name = "", children }: Press): JSX.Element {
  return (
    <button type="button" class={`icon-button ${name}`} title={label} aria-label={label} aria-pressed={pressed} data-test={test} onClick={act}>
      <Icon name={icon} />
      {children}
    </button>
  );
}

export function Copy({ text, what, label }: { text: string; what: string; label?: string }): JSX.Element {
  const done = useSignal(false);
  const act = async (event: MouseEvent): Promise<void> => {
    event.preventDefault();
    event.stopPropagation();
    if (!(await copy(text, what))) return;
    done.value = true;
    setTimeout(() => (done.value = false), 1200);
  };
  return (
    <button type="button" class="copy" aria-label={`Copy ${what}`} title={`Copy ${what}`} data-test="copy" onClick={(event) => void act(event)}>
      <Icon name={done.value ? "check" : "copy"} size={14} />
      {label && <span>{done.value ? "Copied" : label}</span>}
    </button>
  );
}

/** Text in which nothing hides. */
export function Plain({ text }: { text: string }): JSX.Element {
  return <>{pieces(text).map((piece, i) => (piece.unseen ? <mark key={i} class="unseen" title="A character that one does not see">{piece.text}</mark> : piece.text))}</>;
}

export interface Choice {
  label: string;
  icon?: Drawing;
  act: () => void;
  bad?: boolean;
  test?: string;
}

/** A button that opens a list of deeds; arrows move in it, Esc closes it and returns to the button. */
export function Menu({ label, icon, choices, test }: { label: string; icon: Drawing; choices: Choice[]; test?: string }): JSX.Element {
  const up = useSignal(false);
  const box = useRef<HTMLDivElement>(null);
  const close = (): void => {
    up.value = false;
    box.current?.querySelector("button")?.focus();
  };
  useEffect(() => {
    if (!up.value) return undefined;
    box.current?.querySelector<HTMLElement>("[role=menuitem]")?.focus();
    const away = (event: Event): void => {
      if (!box.current?.contains(event.target as Node)) up.value = false;
    };
    document.addEventListener("pointerdown", away);
    return () => document.removeEventListener("pointerdown", away);
  }, [up.value]);
  const onKey = (event: KeyboardEvent): void => {
    if (!up.value) return;
    if (event.key === "Escape") close();
    else if (event.key === "ArrowDown" || event.key === "ArrowUp") step(box.current, "[role=menuitem]", event.key === "ArrowDown" ? 1 : -1);
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  return (
    <div class="menu" ref={box} onKeyDown={onKey}>
      <button type="button" class="icon-button" aria-label={label} title={label} aria-haspopup="menu" aria-expanded={up.value} data-test={test} onClick={() => (up.value = !up.value)}>
        <Icon name={icon} />
      </button>
      {up.value && (
        <div class="menu-list" role="menu" aria-label={label}>
          {choices.map((choice) => (
            <button
              key={choice.label} type="button" role="menuitem" tabIndex={-1} class={choice.bad ? "bad" : ""} data-test={choice.test}
              onClick={() => { close(); choice.act(); }}
            >
              {choice.icon && <Icon name={choice.icon} size={14} />}
              {choice.label}
            </button>
          ))}
        </div>
      )}
    </div>
  );
}

/** Moves the focus among the elements of a list. */
export function step(within: Element | null | undefined, what: string, by: number): void {
  const all = [...(within?.querySelectorAll<HTMLElement>(what) ?? [])];
  const at = all.indexOf(document.activeElement as HTMLElement);
  const next = at < 0 ? (by > 0 ? 0 : all.length - 1) : Math.min(all.length - 1, Math.max(0, at + by));
  all[next]?.focus();
}

export function Dot({ status }: { status: string }): JSX.Element {
  return <span class={`dot ${status}`} role="img" aria-label={status} title={status} />;
}
