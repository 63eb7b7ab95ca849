/** The status bar, the banner for a lost connection, and the toasts. */

import type { JSX } from "preact";
import { setTheme } from "../actions.ts";
import { agentHueStyle } from "../agent-colour.ts";
import { activeRuns, runName, type RunView, waitLabel } from "../runs.ts";
import { connection, dialog, dismissToast, health, panel, sidebarOpen, theme, type Theme, toasts, unreadCount } from "../store.ts";
import { showSession } from "../actions.ts";
import { RUN_STATUS_LABELS } from "../format.ts";
import { Icon } from "./icons.tsx";
import { IconButton } from "./widgets.tsx";
import { watchers, watcherSessions } from "../watchers.ts";
import { ActiveWatcherList } from "./watchers.tsx";

const NEXT_THEME: Record<Theme, Theme> = { auto: "light", light: "dark", dark: "auto" };
const THEME_LABELS: Record<Theme, { icon: "auto" | "sun" | "moon"; label: string }> = {
  auto: { icon: "auto", label: "Theme: system" },
  light: { icon: "sun", label: "Theme: light" },
  dark: { icon: "moon", label: "Theme: dark" },
};

export function switchToNextTheme(): void {
  setTheme(NEXT_THEME[theme.value]);
}

export function StatusBar(): JSX.Element {
  return (
    <footer class="status-bar">
      <IconButton icon="menu" label="Sessions" class="only-narrow" testId="drawer" onClick={() => (sidebarOpen.value = !sidebarOpen.value)} />
      <ActiveRunList />
      {health.value?.demonstration && <span class="demonstration" data-test="demonstration" title={`The model ${health.value.model} is for demonstrations only. Set RETINUE_MODEL to use another.`}>demonstration model</span>}
      <span class="muted daemon-info" title={health.value ? `Retinue ${health.value.version}, model ${health.value.model ?? "none"}, sandbox ${health.value.sandbox ?? "unknown"}` : ""}>{(health.value?.model ?? "").replace(/:.*\//, ":…/")}</span>
      <IconButton icon="tree" label="Runs (r)" testId="open-runs" pressed={panel.value === "runs"} onClick={() => (panel.value = panel.value === "runs" ? null : "runs")} />
      <IconButton icon="inbox" label={unreadCount.value ? `Inbox: ${unreadCount.value} new (i)` : "Inbox (i)"} testId="open-inbox" pressed={panel.value === "inbox"} onClick={() => (panel.value = panel.value === "inbox" ? null : "inbox")}>
        {unreadCount.value > 0 && <span class="badge" data-test="inbox-count">{unreadCount.value}</span>}
      </IconButton>
      <IconButton icon={THEME_LABELS[theme.value].icon} label={`${THEME_LABELS[theme.value].label} (t)`} testId="theme" onClick={switchToNextTheme} />
      <IconButton icon="keys" label="Keyboard shortcuts (?)" testId="open-keys" class="only-wide" onClick={() => (dialog.value = { kind: "keys" })} />
    </footer>
  );
}

const MAX_SHOWN_RUNS = 8;

/** The active runs, such as `oracle#4 running`: running ones first, then waiting, then queued. */
function ActiveRunList(): JSX.Element {
  const order: Record<string, number> = { running: 0, waiting: 1, queued: 2 };
  const active = activeRuns.value.filter((run) => !watcherSessions.value.has(run.sessionId)).toSorted((a, b) => (order[a.status] ?? 3) - (order[b.status] ?? 3));
  return (
    <div class="active-runs" data-test="ledger" role="group" aria-label="Active runs">
      {active.slice(0, MAX_SHOWN_RUNS).map((run) => <ActiveRunButton key={run.id} run={run} />)}
      {active.length > MAX_SHOWN_RUNS && <button type="button" class="link" onClick={() => (panel.value = "runs")}>and {active.length - MAX_SHOWN_RUNS} more</button>}
      <ActiveWatcherList />
      {!active.length && !watchers.value.length && <span class="muted">No active runs</span>}
    </div>
  );
}

function ActiveRunButton({ run }: { run: RunView }): JSX.Element {
  const reason = run.status === "waiting" && run.waitingFor ? ` (waiting ${waitLabel(run)})` : "";
  return (
    <button type="button" class="active-run" style={agentHueStyle(run.agent)} data-test="ledger-entry" data-run={run.id} title={`${run.summary}${reason}`} onClick={() => showSession(run.sessionId)}>
      <span class={`dot ${run.status}`} aria-hidden="true" /><span><b>{runName(run)}</b> {RUN_STATUS_LABELS[run.status]}</span>
    </button>
  );
}

export function ConnectionBanner(): JSX.Element | null {
  if (connection.value === "unauthorized") {
    return <p class="connection-banner unauthorized" role="alert" data-test="barred">You are logged out. Run <code>retinue serve --link</code> and open the link it prints.</p>;
  }
  if (connection.value !== "lost") return null;
  return <p class="connection-banner" role="status" data-test="lost">The daemon does not respond, so this page may be out of date. It reconnects when <code>retinue serve</code> is running again.</p>;
}

export function ToastList(): JSX.Element {
  return (
    <div class="toasts" role="status" aria-live="polite" data-test="toasts">
      {toasts.value.map((each) => (
        <div key={each.id} class={`toast ${each.isError ? "error" : ""}`} data-test="toast">
          {each.isError && <Icon name="alert" size={14} />}
          <span>{each.text}</span>
          {each.action && <button type="button" class="link" data-test="toast-action" onClick={() => { dismissToast(each.id); each.action?.run(); }}>{each.action.label}</button>}
          <IconButton icon="cross" label="Dismiss" onClick={() => dismissToast(each.id)} />
        </div>
      ))}
    </div>
  );
}
