/** The colour of an agent: a hue computed from its name, so that it is the same everywhere. */

/** Chosen so that the hues of the built-in agents are far apart. */
const SEED = 6529;

export function agentHue(name: string): number {
  let hash = 2166136261 ^ SEED;
  for (let i = 0; i < name.length; i++) hash = Math.imul(hash ^ name.charCodeAt(i), 16777619);
  hash = Math.imul(hash ^ (hash >>> 15), 2246822507);
  hash ^= hash >>> 13;
  return (hash >>> 0) % 360;
}

/** The custom property from which CSS classes mix their colours. */
export function agentHueStyle(name: string): Record<"--hue", string> {
  return { "--hue": String(agentHue(name)) };
}
