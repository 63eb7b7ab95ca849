/** Characters that a reader does not see or that turn text round, found so that they can be shown. */

const UNSEEN = new RegExp(
  "[\\u0000-\\u0008\\u000b-\\u001f\\u007f-\\u009f\\u00ad\\u034f\\u061c\\u115f\\u1160\\u17b4\\u17b5\\u180b-\\u180f" +
    "\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u206f\\u3164\\ufe00-\\ufe0f\\ufeff\\uffa0\\ufff0-\\uffff\\u2800\\u00a0\\u2000-\\u200a\\u202f\\u205f\\u3000" +
    "\\u{110bd}\\u{1bca0}-\\u{1bca3}\\u{1d173}-\\u{1d17a}\\u{e0000}-\\u{e0fff}]|\\p{Cs}",
  "gu",
);

export interface Piece {
  text: string;
  unseen: boolean;
}

/** A text in pieces, each all visible or one mark that names what hides. */
export function pieces(text: string): Piece[] {
  const found: Piece[] = [];
  let at = 0;
  for (const match of text.matchAll(UNSEEN)) {
    if (match.index > at) found.push({ text: text.slice(at, match.index), unseen: false });
    found.push({ text: `U+${match[0].codePointAt(0)!.toString(16).toUpperCase().padStart(4, "0")}`, unseen: true });
    at = match.index + match[0].length;
  }
  if (at < text.length) found.push({ text: text.slice(at), unseen: false });
  return found;
}
