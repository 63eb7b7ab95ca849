/** An agent's colour: a hue computed from its name, the same everywhere and for ever. */

const SEED = 6529;
/** Chosen so that the agents that come with the product lie far apart on the circle. */

export function agentHue(name: string): number {
  let hash = 2166136261 ^ SEED;
  for (let i = 0; i < name.length; i++) hash = Math.imul(hash ^ name.charCodeAt(i), 16777619);
  hash = Math.imul(hash ^ (hash >>> 15), 2246822507);
  hash ^= hash >>> 13;
  return (hash >>> 0) % 360;
}

/** The custom property that classes mix their colours from. */
export function agentHueStyle(name: string): Record<"--hue", string> {
  return { "--hue": String(agentHue(name)) };
}
