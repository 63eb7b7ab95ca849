/** Small controls shared by several components. */

import { useSignal } from "@preact/signals";
import type { ComponentChildren, JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { copyText } from "../actions.ts";
import { splitInvisible } from "../invisible-characters.ts";
import { Icon, type IconName } from "./icons.tsx";

interface IconButtonProps {
  icon: IconName;
  label: string;
  onClick: (event: MouseEvent) => void;
  testId?: string;
  pressed?: boolean;
  class?: string;
  children?: ComponentChildren;
}

export function IconButton({ icon, label, onClick: act, testId: test, pressed, class: name = "", children }: IconButtonProps): JSX.Element {
  return (
    <button type="button" class={`icon-button ${name}`} title={label} aria-label={label} aria-pressed={pressed} data-test={test} onClick={act}>
      <Icon name={icon} />
      {children}
    </button>
  );
}

export function CopyButton({ text, what, label }: { text: string; what: string; label?: string }): JSX.Element {
  const isCopied = useSignal(false);
  const onClick = async (event: MouseEvent): Promise<void> => {
    event.preventDefault();
    event.stopPropagation();
    if (!(await copyText(text, what))) return;
    isCopied.value = true;
    setTimeout(() => (isCopied.value = false), 1200);
  };
  return (
    <button type="button" class="copy-button" aria-label={`Copy ${what}`} title={`Copy ${what}`} data-test="copy" onClick={(event) => void onClick(event)}>
      <Icon name={isCopied.value ? "check" : "copy"} size={14} />
      {label && <span>{isCopied.value ? "Copied" : label}</span>}
    </button>
  );
}

/** Text with invisible characters made visible. */
export function PlainText({ text }: { text: string }): JSX.Element {
  return <>{splitInvisible(text).map((part, i) => (part.isInvisible ? <mark key={i} class="unseen" title="Invisible character">{part.text}</mark> : part.text))}</>;
}

export interface MenuItem {
  label: string;
  icon?: IconName;
  onSelect: () => void;
  isDestructive?: boolean;
  testId?: string;
}

/** A button that opens a menu. Arrow keys move in it; Esc closes it and returns the focus to the button. */
export function Menu({ label, icon, items, testId }: { label: string; icon: IconName; items: MenuItem[]; testId?: string }): JSX.Element {
  const isOpen = useSignal(false);
  const box = useRef<HTMLDivElement>(null);
  const close = (): void => {
    isOpen.value = false;
    box.current?.querySelector("button")?.focus();
  };
  useEffect(() => {
    if (!isOpen.value) return undefined;
    box.current?.querySelector<HTMLElement>("[role=menuitem]")?.focus();
    const closeOnOutsideClick = (event: Event): void => {
      if (!box.current?.contains(event.target as Node)) isOpen.value = false;
    };
    document.addEventListener("pointerdown", closeOnOutsideClick);
    return () => document.removeEventListener("pointerdown", closeOnOutsideClick);
  }, [isOpen.value]);
  const onKeyDown = (event: KeyboardEvent): void => {
    if (!isOpen.value) return;
    if (event.key === "Escape") close();
    else if (event.key === "ArrowDown" || event.key === "ArrowUp") moveFocus(box.current, "[role=menuitem]", event.key === "ArrowDown" ? 1 : -1);
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  return (
    <div class="menu" ref={box} onKeyDown={onKeyDown}>
      <button type="button" class="icon-button" aria-label={label} title={label} aria-haspopup="menu" aria-expanded={isOpen.value} data-test={testId} onClick={() => (isOpen.value = !isOpen.value)}>
        <Icon name={icon} />
      </button>
      {isOpen.value && (
        <div class="menu-list" role="menu" aria-label={label}>
          {items.map((item) => (
            <button
              key={item.label} type="button" role="menuitem" tabIndex={-1} class={item.isDestructive ? "destructive" : ""} data-test={item.testId}
              onClick={() => { close(); item.onSelect(); }}
            >
              {item.icon && <Icon name={item.icon} size={14} />}
              {item.label}
            </button>
          ))}
        </div>
      )}
    </div>
  );
}

/** Move the focus among the matching elements of a container. */
export function moveFocus(container: Element | null | undefined, selector: string, by: number): void {
  const elements = [...(container?.querySelectorAll<HTMLElement>(selector) ?? [])];
  const focused = elements.indexOf(document.activeElement as HTMLElement);
  const next = focused < 0 ? (by > 0 ? 0 : elements.length - 1) : Math.min(elements.length - 1, Math.max(0, focused + by));
  elements[next]?.focus();
}

export function StatusDot({ status }: { status: string }): JSX.Element {
  return <span class={`dot ${status}`} role="img" aria-label={status} title={status} />;
}
