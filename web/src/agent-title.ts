/** Display names of agents. */

import { capitalize } from "./format.ts";
import { agents, sessions } from "./store.ts";

/** The agent's display name, or its name if that differs only in capitals. The rows of sessions have the names of hidden agents. */
export function agentName(name: string, displayName: string | null = null): string {
  const listed = displayName ?? agents.value?.find((each) => each.name === name)?.display_name;
  const shown = listed ?? sessions.value?.find((each) => each.agent === name)?.agent_display_name ?? name;
  return shown.toLowerCase() === name ? name : shown;
}

/** A name with a number, such as `pair#2`, with the display name of its agent. */
export function numberedAgentName(numberedName: string, agent: string, displayName: string | null = null): string {
  return numberedName.startsWith(`${agent}#`) ? agentName(agent, displayName) + numberedName.slice(agent.length) : numberedName;
}

/** The agent's display name, or its name with a capital letter. */
export function agentTitle(name: string): string {
  const shown = agentName(name);
  return shown === name ? capitalize(name) : shown;
}
