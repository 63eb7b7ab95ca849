/** Differences between two texts, line by line, and texts that are differences already. */

export interface DiffLine {
  sign: "+" | "-" | " " | "@";
  text: string;
}

const MOST = 600;
/** Lines on a side that are compared; longer ones are shown as taken away and added whole. */
const AROUND = 3;

export function looksLikeDiff(text: string): boolean {
  return /^@@ -\d+(,\d+)? \+\d+(,\d+)? @@/m.test(text) && /^[+-]/m.test(text);
}

export function unified(text: string): DiffLine[] {
  return text.replace(/\n$/, "").split("\n").map((line) => {
    if (line.startsWith("@@") || /^(diff |index |--- |\+\+\+ )/.test(line)) return { sign: "@", text: line };
    if (line.startsWith("+")) return { sign: "+", text: line.slice(1) };
    if (line.startsWith("-")) return { sign: "-", text: line.slice(1) };
    return { sign: " ", text: line.replace(/^ /, "") };
  });
}

/** The lines of `before` and `after` in one column; what both share stays only near a change. */
export function compared(before: string, after: string): DiffLine[] {
  const whole = before.endsWith("\n") && after.endsWith("\n");
  const old = whole ? before.slice(0, -1).split("\n") : linesOf(before);
  const now = whole ? after.slice(0, -1).split("\n") : linesOf(after);
  let head = 0;
  while (head < old.length && head < now.length && old[head] === now[head]) head++;
  let tail = 0;
  while (tail < old.length - head && tail < now.length - head && old[old.length - 1 - tail] === now[now.length - 1 - tail]) tail++;
  const same = (lines: string[]): DiffLine[] => lines.map((text) => ({ sign: " ", text }));
  const middle = between(old.slice(head, old.length - tail), now.slice(head, now.length - tail));
  return [
    ...same(old.slice(Math.max(0, head - AROUND), head)),
    ...middle,
    ...same(old.slice(old.length - tail, old.length - tail + AROUND)),
  ];
}

function linesOf(text: string): string[] {
  return text === "" ? [] : text.split("\n");
}

function between(old: string[], now: string[]): DiffLine[] {
  if (old.length > MOST || now.length > MOST) {
    return [...old.map((text): DiffLine => ({ sign: "-", text })), ...now.map((text): DiffLine => ({ sign: "+", text }))];
  }
  const width = now.length + 1;
  const longest = new Uint16Array((old.length + 1) * width);
  for (let i = old.length - 1; i >= 0; i--) {
    for (let j = now.length - 1; j >= 0; j--) {
      longest[i * width + j] = old[i] === now[j]
        ? longest[(i + 1) * width + j + 1]! + 1
        : Math.max(longest[(i + 1) * width + j]!, longest[i * width + j + 1]!);
    }
  }
  const found: DiffLine[] = [];
  let i = 0;
  let j = 0;
  while (i < old.length || j < now.length) {
    if (i < old.length && j < now.length && old[i] === now[j]) {
      found.push({ sign: " ", text: old[i]! });
      i++;
      j++;
    } else if (i < old.length && (j === now.length || longest[(i + 1) * width + j]! >= longest[i * width + j + 1]!)) {
      found.push({ sign: "-", text: old[i++]! });
    } else {
      found.push({ sign: "+", text: now[j++]! });
    }
  }
  return found;
}
