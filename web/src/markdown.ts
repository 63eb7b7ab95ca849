/** A model's words as Markdown, and never as anything else: raw HTML is shown as text, images become links, links say
 * where they lead, and what is left goes through a sanitiser with a short list. */

import DOMPurify from "dompurify";
import { Marked, type Tokens } from "marked";
import { looksLikeDiff } from "./diff.ts";

const TAGS = [
  "p", "br", "strong", "em", "del", "code", "pre", "blockquote", "ul", "ol", "li", "h3", "h4", "h5", "h6",
  "table", "thead", "tbody", "tr", "th", "td", "hr", "a", "span",
];
const LEADS = /^(https?:\/\/|mailto:)/i;
const LONGEST = 200_000;
/** Characters of one text that are rendered; a longer one is shown plain. */

const marked = new Marked({ gfm: true, breaks: false, async: false });

marked.use({
  renderer: {
    html: (token: Tokens.HTML | Tokens.Tag) => ("block" in token && token.block ? `<p>${escaped(token.text.trim())}</p>` : escaped(token.text)),
    image: ({ href, text }: Tokens.Image) => anchor(href, escaped(text ? `image: ${text}` : "image"), ""),
    link({ href, tokens }: Tokens.Link) {
      const inner = this.parser.parseInline(tokens).replace(/<\/?a\b[^>]*>/g, ""); // a link inside of a link would tear both
      return anchor(href, inner, plain(inner));
    },
    heading({ tokens, depth }: Tokens.Heading) {
      const level = Math.min(6, depth + 2);
      return `<h${level}>${this.parser.parseInline(tokens)}</h${level}>`;
    },
    checkbox: ({ checked }: Tokens.Checkbox) => (checked ? "☑ " : "☐ "),
    code: ({ text, lang }: Tokens.Code) => `<pre><code class="language-${escaped((lang ?? "").split(/\s/)[0] ?? "")}">${escaped(text)}\n</code></pre>`,
  },
});

/** A link whose words are not its address, letter by letter, says where it leads. */
function anchor(href: string, inner: string, words: string): string {
  const url = LEADS.test(href) ? parsed(href) : null;
  if (!url) return `${inner} <span>${escaped(href)}</span>`;
  const where = url.protocol === "mailto:" ? url.pathname : url.host;
  const says = !url.username && words.includes(where) && (words === href || words === where);
  const shown = says ? "" : ` <span>${escaped(where)}</span>`;
  return `<a href="${escaped(url.href)}">${inner}${shown}</a>`;
}

function parsed(href: string): URL | null {
  try {
    return new URL(href);
  } catch {
    return null;
  }
}

function plain(html: string): string {
  return html.replace(/<[^>]*>/g, "").replace(/&amp;/g, "&");
}

export function escaped(text: string): string {
  return text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;").replace(/"/g, "&quot;").replace(/'/g, "&#39;");
}

const purify = DOMPurify(window);

purify.addHook("uponSanitizeAttribute", (_node, data) => {
  if (data.attrName === "class" && !/^language-[\w+#.-]{0,32}$/.test(data.attrValue)) data.keepAttr = false;
  if (data.attrName === "href" && !LEADS.test(data.attrValue)) data.keepAttr = false;
});

const kept = new Map<string, string>();
const MOST_KEPT = 400;

/** The safe HTML of a text; the same text is rendered once. */
export function rendered(text: string): string {
  const known = kept.get(text);
  if (known !== undefined) return known;
  const html = render(text);
  kept.set(text, html);
  if (kept.size > MOST_KEPT) kept.delete(kept.keys().next().value!);
  return html;
}

/** The same for a text that still grows: nobody will ask for it again. */
export function render(text: string): string {
  if (text.length > LONGEST) return `<pre><code>${escaped(text)}</code></pre>`;
  const clean = purify.sanitize(marked.parse(text) as string, {
    ALLOWED_TAGS: TAGS,
    ALLOWED_ATTR: ["href", "class", "align", "start"],
    ALLOW_DATA_ATTR: false,
    ALLOW_ARIA_ATTR: false,
    RETURN_DOM_FRAGMENT: true,
  });
  dress(clean);
  const holder = document.createElement("div");
  holder.append(clean);
  return holder.innerHTML;
}

/** What the page adds to clean words: where links open, copy buttons, room for wide tables, colours of diffs. */
function dress(clean: DocumentFragment): void {
  for (const span of clean.querySelectorAll("span")) span.className = "host";
  for (const link of clean.querySelectorAll("a")) {
    link.target = "_blank";
    link.rel = "noopener noreferrer";
  }
  for (const pre of clean.querySelectorAll("pre")) {
    const code = pre.querySelector("code");
    const language = code?.className.replace("language-", "") ?? "";
    const text = code?.textContent ?? "";
    if (code && (language === "diff" || language === "patch" || (!language && looksLikeDiff(text)))) colour(code, text);
    wrap(pre, "code", language);
  }
  for (const item of clean.querySelectorAll("li")) if (/^[☐☑]/.test(item.textContent ?? "")) item.className = "task";
  for (const table of clean.querySelectorAll("table")) wrap(table, "wide", null);
}

function wrap(inner: Element, name: string, language: string | null): void {
  const box = document.createElement("div");
  box.className = name;
  inner.replaceWith(box);
  box.append(inner);
  if (language === null) return;
  const bar = document.createElement("div");
  bar.className = "code-bar";
  const label = document.createElement("span");
  label.textContent = language;
  const button = document.createElement("button");
  button.type = "button";
  button.className = "copy-code";
  button.dataset.test = "copy-code";
  button.textContent = "Copy";
  bar.append(label, button);
  box.prepend(bar);
}

function colour(code: Element, text: string): void {
  code.textContent = "";
  for (const line of text.replace(/\n$/, "").split("\n")) {
    const row = document.createElement("span");
    row.className = line.startsWith("@@") ? "d at" : line.startsWith("+") ? "d add" : line.startsWith("-") ? "d del" : "d";
    row.textContent = line || " ";
    code.append(row);
  }
}
