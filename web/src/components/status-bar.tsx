/** The rim of the page: the line at the bottom that says what goes on, what is lost, and short messages. */

import type { JSX } from "preact";
import { setTheme } from "../actions.ts";
import { hue } from "../agent-colour.ts";
import { live, nameOf, type Seen } from "../runs.ts";
import { connection, dialog, dismiss, drawer, health, panel, theme, toasts, unread, type Theme } from "../store.ts";
import { show } from "../actions.ts";
import { STATUS, WAITS_FOR } from "../format.ts";
import { Icon } from "./icons.tsx";
import { IconButton } from "./widgets.tsx";
import { seats, watchers } from "../watchers.ts";
import { Watching } from "./watchers.tsx";

const NEXT: Record<Theme, Theme> = { auto: "light", light: "dark", dark: "auto" };
const THEMES: Record<Theme, { icon: "auto" | "sun" | "moon"; label: string }> = {
  auto: { icon: "auto", label: "Colours: as the system" },
  light: { icon: "sun", label: "Colours: light" },
  dark: { icon: "moon", label: "Colours: dark" },
};

export function nextTheme(): void {
  setTheme(NEXT[theme.value]);
}

export function Bar(): JSX.Element {
  return (
    <footer class="bar">
      <IconButton icon="menu" label="Sessions" class="only-narrow" test="drawer" act={() => (drawer.value = !drawer.value)} />
      <Ledger />
      {health.value?.demonstration && <span class="demonstration" data-test="demonstration" title={`The model is ${health.value.model}: it shows how this works, not how well a model can do it. RETINUE_MODEL names another.`}>demonstration model</span>}
      <span class="quiet machine" title={health.value ? `Retinue ${health.value.version}, model ${health.value.model ?? "none"}, sandbox ${health.value.sandbox ?? "unknown"}` : ""}>{(health.value?.model ?? "").replace(/:.*\//, ":…/")}</span>
      <IconButton icon="tree" label="Runs (r)" test="open-runs" pressed={panel.value === "runs"} act={() => (panel.value = panel.value === "runs" ? null : "runs")} />
      <IconButton icon="inbox" label={unread.value ? `Inbox: ${unread.value} new (i)` : "Inbox (i)"} test="open-inbox" pressed={panel.value === "inbox"} act={() => (panel.value = panel.value === "inbox" ? null : "inbox")}>
        {unread.value > 0 && <span class="badge" data-test="inbox-count">{unread.value}</span>}
      </IconButton>
      <IconButton icon={THEMES[theme.value].icon} label={`${THEMES[theme.value].label} (t)`} test="theme" act={nextTheme} />
      <IconButton icon="keys" label="Keys (?)" test="open-keys" class="only-wide" act={() => (dialog.value = { what: "keys" })} />
    </footer>
  );
}

const MOST = 8;

/** `oracle#4 running`: everybody who is at work, those that run before those that wait. */
function Ledger(): JSX.Element {
  const order: Record<string, number> = { running: 0, waiting: 1, queued: 2 };
  const all = live.value.filter((run) => !seats.value.has(run.session)).toSorted((a, b) => (order[a.status] ?? 3) - (order[b.status] ?? 3));
  return (
    <div class="ledger" data-test="ledger" role="group" aria-label="At work">
      {all.slice(0, MOST).map((run) => <Entry key={run.id} run={run} />)}
      {all.length > MOST && <button type="button" class="link" onClick={() => (panel.value = "runs")}>and {all.length - MOST} more</button>}
      <Watching />
      {!all.length && !watchers.value.length && <span class="quiet">Nothing is at work</span>}
    </div>
  );
}

function Entry({ run }: { run: Seen }): JSX.Element {
  const why = run.status === "waiting" && run.waitsFor ? ` ${WAITS_FOR[run.waitsFor] ?? ""}` : "";
  return (
    <button type="button" class="ledger-entry" style={hue(run.agent)} data-test="ledger-entry" data-run={run.id} title={`${run.about}${why}`} onClick={() => show(run.session)}>
      <span class={`dot ${run.status}`} aria-hidden="true" /><span><b>{nameOf(run)}</b> {STATUS[run.status]}</span>
    </button>
  );
}

export function Lost(): JSX.Element | null {
  if (connection.value === "barred") {
    return <p class="lost barred" role="alert" data-test="barred">This browser may not come in any more. Run <code>retinue serve --link</code> and open the link it prints.</p>;
  }
  if (connection.value !== "lost") return null;
  return <p class="lost" role="status" data-test="lost">The daemon does not answer. What you see may be old; it goes on by itself when <code>retinue serve</code> runs again.</p>;
}

export function Toasts(): JSX.Element {
  return (
    <div class="toasts" role="status" aria-live="polite" data-test="toasts">
      {toasts.value.map((each) => (
        <div key={each.id} class={`toast ${each.bad ? "bad" : ""}`} data-test="toast">
          {each.bad && <Icon name="alert" size={14} />}
          <span>{each.text}</span>
          {each.action && <button type="button" class="link" data-test="toast-action" onClick={() => { dismiss(each.id); each.action?.act(); }}>{each.action.label}</button>}
          <IconButton icon="cross" label="Dismiss" act={() => dismiss(each.id)} />
        </div>
      ))}
    </div>
  );
}
