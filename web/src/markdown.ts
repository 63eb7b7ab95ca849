/** Safe Markdown: raw HTML is shown as text, images become links, links show their destination, and the result is
 * sanitised against a short list of tags. */

import DOMPurify from "dompurify";
import { Marked, type Tokens } from "marked";
import { looksLikeDiff } from "./diff.ts";

const TAGS = [
  "p", "br", "strong", "em", "del", "code", "pre", "blockquote", "ul", "ol", "li", "h3", "h4", "h5", "h6",
  "table", "thead", "tbody", "tr", "th", "td", "hr", "a", "span",
];
const SAFE_URL = /^(https?:\/\/|mailto:)/i;
/** A longer text is shown unformatted. */
const MAX_RENDERED_CHARS = 200_000;

const marked = new Marked({ gfm: true, breaks: false, async: false });

marked.use({
  renderer: {
    html: (token: Tokens.HTML | Tokens.Tag) => ("block" in token && token.block ? `<p>${escapeHtml(token.text.trim())}</p>` : escapeHtml(token.text)),
    image: ({ href, text }: Tokens.Image) => linkHtml(href, escapeHtml(text ? `image: ${text}` : "image"), ""),
    link({ href, tokens }: Tokens.Link) {
      const inner = this.parser.parseInline(tokens).replace(/<\/?a\b[^>]*>/g, ""); // nested links would break both
      return linkHtml(href, inner, stripTags(inner));
    },
    heading({ tokens, depth }: Tokens.Heading) {
      const level = Math.min(6, depth + 2);
      return `<h${level}>${this.parser.parseInline(tokens)}</h${level}>`;
    },
    checkbox: ({ checked }: Tokens.Checkbox) => (checked ? "☑ " : "☐ "),
    code: ({ text, lang }: Tokens.Code) => `<pre><code class="language-${escapeHtml((lang ?? "").split(/\s/)[0] ?? "")}">${escapeHtml(text)}\n</code></pre>`,
  },
});

/** A link whose text is not exactly its address shows its destination. */
function linkHtml(href: string, inner: string, linkText: string): string {
  const url = SAFE_URL.test(href) ? parseUrl(href) : null;
  if (!url) return `${inner} <span>${escapeHtml(href)}</span>`;
  const destination = url.protocol === "mailto:" ? url.pathname : url.host;
  const textShowsDestination = !url.username && linkText.includes(destination) && (linkText === href || linkText === destination);
  const suffix = textShowsDestination ? "" : ` <span>${escapeHtml(destination)}</span>`;
  return `<a href="${escapeHtml(url.href)}">${inner}${suffix}</a>`;
}

function parseUrl(href: string): URL | null {
  try {
    return new URL(href);
  } catch {
    return null;
  }
}

function stripTags(html: string): string {
  return html.replace(/<[^>]*>/g, "").replace(/&amp;/g, "&");
}

export function escapeHtml(text: string): string {
  return text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;").replace(/"/g, "&quot;").replace(/'/g, "&#39;");
}

const purify = DOMPurify(window);

purify.addHook("uponSanitizeAttribute", (_node, data) => {
  if (data.attrName === "class" && !/^language-[\w+#.-]{0,32}$/.test(data.attrValue)) data.keepAttr = false;
  if (data.attrName === "href" && !SAFE_URL.test(data.attrValue)) data.keepAttr = false;
});

const htmlCache = new Map<string, string>();
const MAX_CACHED = 400;

/** The safe HTML of a text, cached. */
export function renderCached(text: string): string {
  const known = htmlCache.get(text);
  if (known !== undefined) return known;
  const html = renderMarkdown(text);
  htmlCache.set(text, html);
  if (htmlCache.size > MAX_CACHED) htmlCache.delete(htmlCache.keys().next().value!);
  return html;
}

/** The safe HTML of a text that is still streaming and not worth caching. */
export function renderMarkdown(text: string): string {
  if (text.length > MAX_RENDERED_CHARS) return `<pre><code>${escapeHtml(text)}</code></pre>`;
  const fragment = purify.sanitize(marked.parse(text) as string, {
    ALLOWED_TAGS: TAGS,
    ALLOWED_ATTR: ["href", "class", "align", "start"],
    ALLOW_DATA_ATTR: false,
    ALLOW_ARIA_ATTR: false,
    RETURN_DOM_FRAGMENT: true,
  });
  decorate(fragment);
  const container = document.createElement("div");
  container.append(fragment);
  return container.innerHTML;
}

/** Add what the page needs to sanitised HTML: link targets, copy buttons, scrolling tables, diff colours. */
function decorate(fragment: DocumentFragment): void {
  for (const span of fragment.querySelectorAll("span")) span.className = "link-host";
  for (const link of fragment.querySelectorAll("a")) {
    link.target = "_blank";
    link.rel = "noopener noreferrer";
  }
  for (const pre of fragment.querySelectorAll("pre")) {
    const code = pre.querySelector("code");
    const language = code?.className.replace("language-", "") ?? "";
    const text = code?.textContent ?? "";
    if (code && (language === "diff" || language === "patch" || (!language && looksLikeDiff(text)))) highlightDiff(code, text);
    wrapElement(pre, "code", language);
  }
  for (const item of fragment.querySelectorAll("li")) if (/^[☐☑]/.test(item.textContent ?? "")) item.className = "task";
  for (const table of fragment.querySelectorAll("table")) wrapElement(table, "table-scroll", null);
}

function wrapElement(inner: Element, name: string, language: string | null): void {
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

function highlightDiff(code: Element, text: string): void {
  code.textContent = "";
  for (const line of text.replace(/\n$/, "").split("\n")) {
    const row = document.createElement("span");
    row.className = line.startsWith("@@") ? "d at" : line.startsWith("+") ? "d add" : line.startsWith("-") ? "d del" : "d";
    row.textContent = line || " ";
    code.append(row);
  }
}
