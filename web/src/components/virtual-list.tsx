/** A list of any length of which only a window stands in the document: heights are measured as rows come into view, the
 * row that one reads stays where it is, and the end is followed only by who is there. */

import { useSignal } from "@preact/signals";
import type { ComponentChildren, JSX } from "preact";
import { useCallback, useEffect, useLayoutEffect, useRef } from "preact/hooks";

interface Rows<T> {
  items: readonly T[];
  keyOf: (item: T) => string;
  guess: (item: T) => number;
  render: (item: T) => ComponentChildren;
  onTop: () => void;
  /** Another conversation begins at its end. */
  of: string;
  label: string;
  busy: boolean;
  before?: ComponentChildren;
  after?: ComponentChildren;
  /** Whether one is at its end, and at its beginning. */
  ended: (end: boolean, start: boolean) => void;
  toEnd: { current: (() => void) | null };
  toStart: { current: (() => void) | null };
}

const MARGIN = 900;
/** Pixels above and below the view that are in the document. */
const NEAR_TOP = 1800;
const AT_END = 32;

export function Scroller<T>(rows: Rows<T>): JSX.Element {
  const box = useRef<HTMLDivElement>(null);
  const column = useRef<HTMLDivElement>(null);
  const heights = useRef(new Map<string, number>());
  const reading = useRef<{ key: string; offset: number } | null>(null);
  const stick = useRef(true);
  /** Where following the end has put the view: whoever finds it further up was moved there by the reader. */
  const put = useRef(0);
  const was = useRef(rows.of);
  const turn = useSignal(0);
  const count = useRef(0);
  const known = useRef<{ items: readonly T[]; heights: number; tops: Float64Array } | null>(null);
  turn.value;

  if (was.current !== rows.of) {
    was.current = rows.of;
    heights.current.clear();
    count.current++;
    stick.current = true;
    put.current = 0;
    reading.current = null;
  }

  if (known.current?.items !== rows.items || known.current.heights !== count.current) {
    known.current = { items: rows.items, heights: count.current, tops: positions(rows, heights.current) };
  }
  const tops = known.current.tops;
  const view = box.current?.clientHeight ?? 800;
  const total = tops[rows.items.length]!;
  const kept = stick.current || !reading.current ? -1 : indexOf(rows, reading.current.key);
  const top = stick.current ? Math.max(0, total - view)
    : kept >= 0 ? tops[kept]! - reading.current!.offset
    : (box.current?.scrollTop ?? 0) - (column.current?.offsetTop ?? 0);
  const from = at(tops, top - MARGIN);
  const to = Math.min(rows.items.length, at(tops, top + view + MARGIN) + 1);

  const scrolled = useRef<() => void>(() => undefined);
  /** After every change: what one reads stands where it stood, or the end is in view. */
  const hold = useCallback(() => {
    const outer = box.current;
    if (!outer) return;
    if (stick.current && outer.scrollTop < put.current - 1 && !isAtEnd(outer)) return scrolled.current();
    if (stick.current) {
      outer.scrollTop = outer.scrollHeight;
      put.current = outer.scrollTop;
      return;
    }
    const kept = reading.current && find(column.current, reading.current.key);
    if (!kept || !reading.current) return;
    const drift = kept.offsetTop - outer.scrollTop - reading.current.offset;
    if (Math.abs(drift) > 0.5) outer.scrollTop += drift;
  }, []);

  const measure = useCallback(() => {
    let changed = false;
    for (const row of column.current?.children ?? []) {
      const key = (row as HTMLElement).dataset.key;
      if (!key) continue;
      const height = (row as HTMLElement).offsetHeight;
      if (heights.current.get(key) !== height) {
        heights.current.set(key, height);
        changed = true;
      }
    }
    if (changed) count.current++;
    return changed;
  }, []);

  const told = (): void => {
    if (box.current) rows.ended(stick.current || isAtEnd(box.current), box.current.scrollTop < AT_END);
  };

  const watcher = useRef<ResizeObserver | null>(null);
  useEffect(() => {
    watcher.current = new ResizeObserver((changed) => {
      // Another width makes other heights: whoever was at the end is there still, wherever the browser has put the view.
      if (changed.some((each) => each.target === box.current)) put.current = 0;
      if (measure()) turn.value++;
      hold();
      told();
    });
    if (box.current) watcher.current.observe(box.current);
    return () => watcher.current?.disconnect();
  }, []);

  const watched = useRef(new Set<Element>());
  useLayoutEffect(() => {
    const changed = measure();
    hold();
    const now = new Set<Element>(column.current?.children ?? []);
    for (const old of watched.current) if (!now.has(old)) watcher.current?.unobserve(old);
    for (const row of now) if (!watched.current.has(row)) watcher.current?.observe(row);
    watched.current = now;
    if (changed && !covered(box.current, column.current, from, to, rows.items.length)) turn.value++;
    if ((box.current?.scrollTop ?? 0) < NEAR_TOP) rows.onTop();
    told();
  });

  rows.toEnd.current = () => {
    stick.current = true;
    put.current = 0;
    turn.value++;
  };

  rows.toStart.current = () => {
    const first = rows.items[0];
    if (!first || !box.current) return;
    stick.current = false;
    reading.current = { key: rows.keyOf(first), offset: column.current?.offsetTop ?? 0 };
    box.current.scrollTop = 0;
    turn.value++;
  };

  const drawn = useRef({ from, to });
  drawn.current = { from, to };
  const onScroll = (): void => {
    const outer = box.current;
    if (!outer) return;
    stick.current = isAtEnd(outer);
    told();
    note();
    if (!covered(outer, column.current, drawn.current.from, drawn.current.to, rows.items.length)) turn.value++;
    if (outer.scrollTop < NEAR_TOP) rows.onTop();
  };

  scrolled.current = onScroll;

  /** Remembers the first row in view, and how far it stands from the top; none, where one went further than rows are. */
  const note = (): void => {
    const outer = box.current;
    reading.current = null;
    for (const row of column.current?.children ?? []) {
      const one = row as HTMLElement;
      if (!outer || !one.dataset.key || one.offsetTop + one.offsetHeight <= outer.scrollTop) continue;
      if (one.offsetTop < outer.scrollTop + outer.clientHeight) reading.current = { key: one.dataset.key, offset: one.offsetTop - outer.scrollTop };
      return;
    }
  };

  /** Who opens a fold at the end looks at the fold from then on. */
  const onClick = (event: MouseEvent): void => {
    if (!(event.target as Element).closest("summary")) return;
    const row = (event.target as Element).closest<HTMLElement>("[data-key]");
    if (!row || !box.current) return;
    stick.current = false;
    reading.current = { key: row.dataset.key!, offset: row.offsetTop - box.current.scrollTop };
  };

  return (
    <div class="scroller" ref={box} onScroll={onScroll} onClickCapture={onClick} role="log" aria-label={rows.label} aria-live={stick.current ? "polite" : "off"} aria-busy={rows.busy} tabIndex={0} data-test="conversation">
      {rows.before}
      <div class="column" ref={column}>
        <div style={{ height: `${tops[from]}px` }} />
        {rows.items.slice(from, to).map((item) => (
          <div class="row" key={rows.keyOf(item)} data-key={rows.keyOf(item)}>{rows.render(item)}</div>
        ))}
        <div style={{ height: `${total - tops[to]!}px` }} />
      </div>
      {rows.after}
    </div>
  );
}

function positions<T>(rows: Rows<T>, heights: ReadonlyMap<string, number>): Float64Array {
  const tops = new Float64Array(rows.items.length + 1);
  for (let i = 0; i < rows.items.length; i++) {
    const item = rows.items[i]!;
    tops[i + 1] = tops[i]! + (heights.get(rows.keyOf(item)) ?? rows.guess(item));
  }
  return tops;
}

function indexOf<T>(rows: Rows<T>, key: string): number {
  return rows.items.findIndex((item) => rows.keyOf(item) === key);
}

/** The row at a height, by halving. */
function at(tops: Float64Array, height: number): number {
  let low = 0;
  let high = tops.length - 2;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (tops[middle]! <= height) low = middle;
    else high = middle - 1;
  }
  return Math.max(0, low);
}

function isAtEnd(outer: HTMLElement): boolean {
  return outer.scrollHeight - outer.scrollTop - outer.clientHeight < AT_END;
}

function find(column: HTMLElement | null, key: string): HTMLElement | null {
  for (const row of column?.children ?? []) if ((row as HTMLElement).dataset.key === key) return row as HTMLElement;
  return null;
}

/** Whether rows stand wherever one looks, with something to spare. */
function covered(outer: HTMLElement | null, column: HTMLElement | null, from: number, to: number, count: number): boolean {
  if (!outer || !column) return true;
  const first = column.firstElementChild as HTMLElement;
  const last = column.lastElementChild as HTMLElement;
  const above = from === 0 || first.offsetTop + first.offsetHeight < outer.scrollTop - MARGIN / 3;
  const below = to === count || last.offsetTop > outer.scrollTop + outer.clientHeight + MARGIN / 3;
  return above && below;
}
