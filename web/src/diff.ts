/** Line diffs of two texts, and the parsing of unified diffs. */

export interface DiffLine {
  sign: "+" | "-" | " " | "@";
  text: string;
}

/** Lines per side that are compared; longer texts are shown as removed and added whole. */
const MAX_COMPARED_LINES = 600;
const CONTEXT_LINES = 3;

export function looksLikeDiff(text: string): boolean {
  return /^@@ -\d+(,\d+)? \+\d+(,\d+)? @@/m.test(text) && /^[+-]/m.test(text);
}

export function parseUnifiedDiff(text: string): DiffLine[] {
  return text.replace(/\n$/, "").split("\n").map((line) => {
    if (line.startsWith("@@") || /^(diff |index |--- |\+\+\+ )/.test(line)) return { sign: "@", text: line };
    if (line.startsWith("+")) return { sign: "+", text: line.slice(1) };
    if (line.startsWith("-")) return { sign: "-", text: line.slice(1) };
    return { sign: " ", text: line.replace(/^ /, "") };
  });
}

/** The diff of two texts; unchanged lines are kept only near a change. */
export function diffLines(before: string, after: string): DiffLine[] {
  const bothEndWithNewline = before.endsWith("\n") && after.endsWith("\n");
  const old = bothEndWithNewline ? before.slice(0, -1).split("\n") : splitLines(before);
  const current = bothEndWithNewline ? after.slice(0, -1).split("\n") : splitLines(after);
  let prefix = 0;
  while (prefix < old.length && prefix < current.length && old[prefix] === current[prefix]) prefix++;
  let suffix = 0;
  while (suffix < old.length - prefix && suffix < current.length - prefix && old[old.length - 1 - suffix] === current[current.length - 1 - suffix]) suffix++;
  const unchanged = (lines: string[]): DiffLine[] => lines.map((text) => ({ sign: " ", text }));
  const middle = diffChangedLines(old.slice(prefix, old.length - suffix), current.slice(prefix, current.length - suffix));
  return [
    ...unchanged(old.slice(Math.max(0, prefix - CONTEXT_LINES), prefix)),
    ...middle,
    ...unchanged(old.slice(old.length - suffix, old.length - suffix + CONTEXT_LINES)),
  ];
}

function splitLines(text: string): string[] {
  return text === "" ? [] : text.split("\n");
}

function diffChangedLines(old: string[], current: string[]): DiffLine[] {
  if (old.length > MAX_COMPARED_LINES || current.length > MAX_COMPARED_LINES) {
    return [...old.map((text): DiffLine => ({ sign: "-", text })), ...current.map((text): DiffLine => ({ sign: "+", text }))];
  }
  const width = current.length + 1;
  const lcsLengths = new Uint16Array((old.length + 1) * width);
  for (let i = old.length - 1; i >= 0; i--) {
    for (let j = current.length - 1; j >= 0; j--) {
      lcsLengths[i * width + j] = old[i] === current[j]
        ? lcsLengths[(i + 1) * width + j + 1]! + 1
        : Math.max(lcsLengths[(i + 1) * width + j]!, lcsLengths[i * width + j + 1]!);
    }
  }
  const lines: DiffLine[] = [];
  let i = 0;
  let j = 0;
  while (i < old.length || j < current.length) {
    if (i < old.length && j < current.length && old[i] === current[j]) {
      lines.push({ sign: " ", text: old[i]! });
      i++;
      j++;
    } else if (i < old.length && (j === current.length || lcsLengths[(i + 1) * width + j]! >= lcsLengths[i * width + j + 1]!)) {
      lines.push({ sign: "-", text: old[i++]! });
    } else {
      lines.push({ sign: "+", text: current[j++]! });
    }
  }
  return lines;
}
