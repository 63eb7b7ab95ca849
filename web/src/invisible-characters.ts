/** Characters that are invisible or change the text direction, found so that they can be shown. */

const INVISIBLE = new RegExp(
  "[\\u0000-\\u0008\\u000b-\\u001f\\u007f-\\u009f\\u00ad\\u034f\\u061c\\u115f\\u1160\\u17b4\\u17b5\\u180b-\\u180f" +
    "\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u206f\\u3164\\ufe00-\\ufe0f\\ufeff\\uffa0\\ufff0-\\uffff\\u2800\\u00a0\\u2000-\\u200a\\u202f\\u205f\\u3000" +
    "\\u{110bd}\\u{1bca0}-\\u{1bca3}\\u{1d173}-\\u{1d17a}\\u{e0000}-\\u{e0fff}]|\\p{Cs}",
  "gu",
);

export interface TextPart {
  text: string;
  isInvisible: boolean;
}

/** Split a text into visible parts and names of invisible characters, such as `U+200B`. */
export function splitInvisible(text: string): TextPart[] {
  const parts: TextPart[] = [];
  let index = 0;
  for (const match of text.matchAll(INVISIBLE)) {
    if (match.index > index) parts.push({ text: text.slice(index, match.index), isInvisible: false });
    parts.push({ text: `U+${match[0].codePointAt(0)!.toString(16).toUpperCase().padStart(4, "0")}`, isInvisible: true });
    index = match.index + match[0].length;
  }
  if (index < text.length) parts.push({ text: text.slice(index), isInvisible: false });
  return parts;
}
