/** The icons: sixteen units square, in the colour of the surrounding text. */

import type { JSX } from "preact";

const ICON_PATHS = {
  plus: "M8 3v10M3 8h10",
  search: "M7 11.5a4.5 4.5 0 1 0 0-9 4.5 4.5 0 0 0 0 9ZM10.5 10.5 14 14",
  pin: "M6 2.5h4l-.5 4L12 9H4l2.5-2.5L6 2.5ZM8 9v4.5",
  more: "M3.5 8h.01M8 8h.01M12.5 8h.01",
  trash: "M3 4.5h10M6.5 4.5v-2h3v2M4.5 4.5l.5 9h6l.5-9M7 7v4M9 7v4",
  pencil: "M10.5 3 13 5.5 6 12.5l-3 .5.5-3 7-7Z",
  eraser: "M6.5 13.5H13M3 10l6-6.5 4 3.5-5.5 6.5H5.5L3 10ZM6 6.8l4 3.6",
  branch: "M4.5 5.5v5M4.5 5.5a1.5 1.5 0 1 0 0-3 1.5 1.5 0 0 0 0 3ZM4.5 13.5a1.5 1.5 0 1 0 0-3 1.5 1.5 0 0 0 0 3ZM11.5 6.5a1.5 1.5 0 1 0 0-3 1.5 1.5 0 0 0 0 3ZM11.5 6.5c0 3-4 2-7 3.5",
  copy: "M5.5 5.5h7v7h-7zM3.5 10.5v-7h7",
  check: "M3 8.5 6.5 12 13 4.5",
  cross: "M4 4l8 8M12 4l-8 8",
  down: "M4 6.5 8 10.5l4-4",
  right: "M6.5 4l4 4-4 4",
  inbox: "M2.5 9 4.5 3h7l2 6v4h-11V9ZM2.5 9H6l1 1.5h2L10 9h3.5",
  tree: "M3 3h4v3H3zM9 10h4v3H9zM9 6h4v2.5M5 6v5.5h4",
  sun: "M8 10.5a2.5 2.5 0 1 0 0-5 2.5 2.5 0 0 0 0 5ZM8 1.5v1.5M8 13v1.5M1.5 8H3M13 8h1.5M3.4 3.4l1 1M11.6 11.6l1 1M3.4 12.6l1-1M11.6 4.4l1-1",
  moon: "M13 9.5A5.5 5.5 0 0 1 6.5 3a5.5 5.5 0 1 0 6.5 6.5Z",
  auto: "M8 2.5a5.5 5.5 0 1 0 0 11ZM8 2.5a5.5 5.5 0 0 1 0 11",
  send: "M8 13V3.5M3.5 8 8 3.5 12.5 8",
  stop: "M4 4h8v8H4z",
  pause: "M5.5 3.5v9M10.5 3.5v9",
  keys: "M2 4.5h12v7H2zM4.5 7h.01M7 7h.01M9.5 7h.01M12 7h.01M5 9.5h6",
  menu: "M2.5 4.5h11M2.5 8h11M2.5 11.5h11",
  start: "M8 13.5v-8M4.5 9 8 5.5 11.5 9M3.5 2.5h9",
  end: "M8 2.5v8M4.5 7 8 10.5 11.5 7M3.5 13.5h9",
  file: "M4 2.5h5l3 3v8H4zM9 2.5v3h3",
  alert: "M8 2.5 14 13H2L8 2.5ZM8 6.5v3M8 11.3h.01",
  shield: "M8 2 13 4v4c0 3-2 5-5 6-3-1-5-3-5-6V4l5-2Z",
  thought: "M5 11a3 3 0 0 1 0-6 3.5 3.5 0 0 1 6.5 1A2.5 2.5 0 0 1 11 11H5ZM4 13.5h.01",
  queue: "M8 4.5V8l2.5 1.5M8 13.5a5.5 5.5 0 1 0 0-11 5.5 5.5 0 0 0 0 11Z",
  redo: "M12.5 6.5A5 5 0 1 0 13 9M12.5 2.5v4h-4",
  builder: "M9 2.5 13.5 7 12 8.5 10.5 7l-6.5 6.5L2.5 12 9 5.5 7.5 4 9 2.5Z",
  executor: "M5 3l8 5-8 5V3Z",
  explorer: "M8 14A6 6 0 1 0 8 2a6 6 0 0 0 0 12ZM10.5 5.5 9 9l-3.5 1.5L7 7l3.5-1.5Z",
  general: "M8 2l1.8 4.2L14 8l-4.2 1.8L8 14l-1.8-4.2L2 8l4.2-1.8L8 2Z",
  oracle: "M1.5 8S4 3.5 8 3.5 14.5 8 14.5 8 12 12.5 8 12.5 1.5 8 1.5 8ZM8 10a2 2 0 1 0 0-4 2 2 0 0 0 0 4Z",
  orchestrator: "M8 5.5a1.8 1.8 0 1 0 0-3.6 1.8 1.8 0 0 0 0 3.6ZM3.5 14a1.8 1.8 0 1 0 0-3.6 1.8 1.8 0 0 0 0 3.6ZM12.5 14a1.8 1.8 0 1 0 0-3.6 1.8 1.8 0 0 0 0 3.6ZM7.2 5.2 4.3 10.6M8.8 5.2l2.9 5.4",
  pair: "M6 11.5a3.5 3.5 0 1 0 0-7 3.5 3.5 0 0 0 0 7ZM10 11.5a3.5 3.5 0 1 0 0-7 3.5 3.5 0 0 0 0 7Z",
  planner: "M2.5 4l1 1 1.5-2M2.5 8.5l1 1L5 7.5M2.5 13l1 1L5 12M7.5 4.5h6M7.5 8.5h6M7.5 12.5h6",
  researcher: "M8 4C6.5 2.8 4.5 2.5 2.5 2.8v9.7c2-.3 4 0 5.5 1.2 1.5-1.2 3.5-1.5 5.5-1.2V2.8c-2-.3-4 0-5.5 1.2ZM8 4v9.7",
  reviewer: "M4.5 11a2.5 2.5 0 1 0 0-5 2.5 2.5 0 0 0 0 5ZM11.5 11a2.5 2.5 0 1 0 0-5 2.5 2.5 0 0 0 0 5ZM7 8c.6-.5 1.4-.5 2 0M2 8l1.5-4M14 8l-1.5-4",
} as const;

export type IconName = keyof typeof ICON_PATHS;

export function Icon({ name, size = 16 }: { name: IconName; size?: number }): JSX.Element {
  return (
    <svg class={name === "more" ? "icon dots" : "icon"} width={size} height={size} viewBox="0 0 16 16" aria-hidden="true" focusable="false">
      <path d={ICON_PATHS[name]} />
    </svg>
  );
}

/** The icon of a built-in agent, or the first letter of another agent's name. */
export function AgentIcon({ agent, size = 14 }: { agent: string; size?: number }): JSX.Element {
  const icon = Object.hasOwn(ICON_PATHS, agent) && AGENTS_WITH_ICON.has(agent) ? (agent as IconName) : null;
  return (
    <span class="agent-mark" aria-hidden="true">
      {icon ? <Icon name={icon} size={size} /> : <b>{(agent[0] ?? "?").toUpperCase()}</b>}
    </span>
  );
}

const AGENTS_WITH_ICON: ReadonlySet<string> = new Set([
  "builder", "executor", "explorer", "general", "oracle", "orchestrator", "pair", "planner", "researcher", "reviewer",
]);
