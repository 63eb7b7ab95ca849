/** A virtual list: only the rows near the view are in the document. Heights are measured as rows appear, the row being
 * read stays in place, and the end is followed only while the reader is there. */

import { useSignal } from "@preact/signals";
import type { ComponentChildren, JSX } from "preact";
import { useCallback, useEffect, useLayoutEffect, useRef } from "preact/hooks";

interface VirtualListProps<T> {
  items: readonly T[];
  keyOf: (item: T) => string;
  estimateHeight: (item: T) => number;
  renderRow: (item: T) => ComponentChildren;
  onNearTop: () => void;
  /** A list with another id starts at its end. */
  listId: string;
  label: string;
  isBusy: boolean;
  before?: ComponentChildren;
  after?: ComponentChildren;
  /** Reports whether the view is at the end and at the start. */
  onPosition: (end: boolean, start: boolean) => void;
  scrollToEnd: { current: (() => void) | null };
  scrollToStart: { current: (() => void) | null };
}

/** Pixels above and below the view that are rendered. */
const OVERSCAN_PX = 900;
const NEAR_TOP_PX = 1800;
const AT_END_PX = 32;

export function VirtualList<T>(props: VirtualListProps<T>): JSX.Element {
  const box = useRef<HTMLDivElement>(null);
  const column = useRef<HTMLDivElement>(null);
  const heights = useRef(new Map<string, number>());
  const anchor = useRef<{ key: string; offset: number } | null>(null);
  const followsEnd = useRef(true);
  /** The scroll position set by following the end. If the view is further up, the reader scrolled there. */
  const followedTo = useRef(0);
  const shownListId = useRef(props.listId);
  const redraw = useSignal(0);
  const heightsVersion = useRef(0);
  const cachedTops = useRef<{ items: readonly T[]; heights: number; tops: Float64Array } | null>(null);
  redraw.value;

  if (shownListId.current !== props.listId) {
    shownListId.current = props.listId;
    heights.current.clear();
    heightsVersion.current++;
    followsEnd.current = true;
    followedTo.current = 0;
    anchor.current = null;
  }

  if (cachedTops.current?.items !== props.items || cachedTops.current.heights !== heightsVersion.current) {
    cachedTops.current = { items: props.items, heights: heightsVersion.current, tops: rowTops(props, heights.current) };
  }
  const tops = cachedTops.current.tops;
  const viewHeight = box.current?.clientHeight ?? 800;
  const totalHeight = tops[props.items.length]!;
  const anchorIndex = followsEnd.current || !anchor.current ? -1 : indexOfKey(props, anchor.current.key);
  const top = followsEnd.current ? Math.max(0, totalHeight - viewHeight)
    : anchorIndex >= 0 ? tops[anchorIndex]! - anchor.current!.offset
    : (box.current?.scrollTop ?? 0) - (column.current?.offsetTop ?? 0);
  const from = rowAtHeight(tops, top - OVERSCAN_PX);
  const to = Math.min(props.items.length, rowAtHeight(tops, top + viewHeight + OVERSCAN_PX) + 1);

  const onScrollRef = useRef<() => void>(() => undefined);
  /** After every change, keep the row being read in place, or the end in view. */
  const restorePosition = useCallback(() => {
    const viewport = box.current;
    if (!viewport) return;
    if (followsEnd.current && viewport.scrollTop < followedTo.current - 1 && !isAtEnd(viewport)) return onScrollRef.current();
    if (followsEnd.current) {
      viewport.scrollTop = viewport.scrollHeight;
      followedTo.current = viewport.scrollTop;
      return;
    }
    const anchorRow = anchor.current && findRow(column.current, anchor.current.key);
    if (!anchorRow || !anchor.current) return;
    const drift = anchorRow.offsetTop - viewport.scrollTop - anchor.current.offset;
    if (Math.abs(drift) > 0.5) viewport.scrollTop += drift;
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
    if (changed) heightsVersion.current++;
    return changed;
  }, []);

  const reportPosition = (): void => {
    if (box.current) props.onPosition(followsEnd.current || isAtEnd(box.current), box.current.scrollTop < AT_END_PX);
  };

  const resizeObserver = useRef<ResizeObserver | null>(null);
  useEffect(() => {
    resizeObserver.current = new ResizeObserver((changed) => {
      // A new width changes all heights: a view that was at the end stays there.
      if (changed.some((each) => each.target === box.current)) followedTo.current = 0;
      if (measure()) redraw.value++;
      restorePosition();
      reportPosition();
    });
    if (box.current) resizeObserver.current.observe(box.current);
    return () => resizeObserver.current?.disconnect();
  }, []);

  const observedRows = useRef(new Set<Element>());
  useLayoutEffect(() => {
    const changed = measure();
    restorePosition();
    const currentRows = new Set<Element>(column.current?.children ?? []);
    for (const old of observedRows.current) if (!currentRows.has(old)) resizeObserver.current?.unobserve(old);
    for (const row of currentRows) if (!observedRows.current.has(row)) resizeObserver.current?.observe(row);
    observedRows.current = currentRows;
    if (changed && !coversView(box.current, column.current, from, to, props.items.length)) redraw.value++;
    if ((box.current?.scrollTop ?? 0) < NEAR_TOP_PX) props.onNearTop();
    reportPosition();
  });

  props.scrollToEnd.current = () => {
    followsEnd.current = true;
    followedTo.current = 0;
    redraw.value++;
  };

  props.scrollToStart.current = () => {
    const first = props.items[0];
    if (!first || !box.current) return;
    followsEnd.current = false;
    anchor.current = { key: props.keyOf(first), offset: column.current?.offsetTop ?? 0 };
    box.current.scrollTop = 0;
    redraw.value++;
  };

  const renderedRange = useRef({ from, to });
  renderedRange.current = { from, to };
  const onScroll = (): void => {
    const viewport = box.current;
    if (!viewport) return;
    followsEnd.current = isAtEnd(viewport);
    reportPosition();
    rememberAnchor();
    if (!coversView(viewport, column.current, renderedRange.current.from, renderedRange.current.to, props.items.length)) redraw.value++;
    if (viewport.scrollTop < NEAR_TOP_PX) props.onNearTop();
  };

  onScrollRef.current = onScroll;

  /** Remember the first visible row and its distance from the top; none if the view is past the rendered rows. */
  const rememberAnchor = (): void => {
    const viewport = box.current;
    anchor.current = null;
    for (const row of column.current?.children ?? []) {
      const element = row as HTMLElement;
      if (!viewport || !element.dataset.key || element.offsetTop + element.offsetHeight <= viewport.scrollTop) continue;
      if (element.offsetTop < viewport.scrollTop + viewport.clientHeight) anchor.current = { key: element.dataset.key, offset: element.offsetTop - viewport.scrollTop };
      return;
    }
  };

  /** After details at the end were opened, keep them in place instead of following the end. */
  const onClick = (event: MouseEvent): void => {
    if (!(event.target as Element).closest("summary")) return;
    const row = (event.target as Element).closest<HTMLElement>("[data-key]");
    if (!row || !box.current) return;
    followsEnd.current = false;
    anchor.current = { key: row.dataset.key!, offset: row.offsetTop - box.current.scrollTop };
  };

  return (
    <div class="scroller" ref={box} onScroll={onScroll} onClickCapture={onClick} role="log" aria-label={props.label} aria-live={followsEnd.current ? "polite" : "off"} aria-busy={props.isBusy} tabIndex={0} data-test="conversation">
      {props.before}
      <div class="column" ref={column}>
        <div style={{ height: `${tops[from]}px` }} />
        {props.items.slice(from, to).map((item) => (
          <div class="row" key={props.keyOf(item)} data-key={props.keyOf(item)}>{props.renderRow(item)}</div>
        ))}
        <div style={{ height: `${totalHeight - tops[to]!}px` }} />
      </div>
      {props.after}
    </div>
  );
}

function rowTops<T>(props: VirtualListProps<T>, heights: ReadonlyMap<string, number>): Float64Array {
  const tops = new Float64Array(props.items.length + 1);
  for (let i = 0; i < props.items.length; i++) {
    const item = props.items[i]!;
    tops[i + 1] = tops[i]! + (heights.get(props.keyOf(item)) ?? props.estimateHeight(item));
  }
  return tops;
}

function indexOfKey<T>(props: VirtualListProps<T>, key: string): number {
  return props.items.findIndex((item) => props.keyOf(item) === key);
}

/** The index of the row at a height, by binary search. */
function rowAtHeight(tops: Float64Array, height: number): number {
  let low = 0;
  let high = tops.length - 2;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (tops[middle]! <= height) low = middle;
    else high = middle - 1;
  }
  return Math.max(0, low);
}

function isAtEnd(viewport: HTMLElement): boolean {
  return viewport.scrollHeight - viewport.scrollTop - viewport.clientHeight < AT_END_PX;
}

function findRow(column: HTMLElement | null, key: string): HTMLElement | null {
  for (const row of column?.children ?? []) if ((row as HTMLElement).dataset.key === key) return row as HTMLElement;
  return null;
}

/** True if the rendered rows cover the view with some margin. */
function coversView(viewport: HTMLElement | null, column: HTMLElement | null, from: number, to: number, count: number): boolean {
  if (!viewport || !column) return true;
  const first = column.firstElementChild as HTMLElement;
  const last = column.lastElementChild as HTMLElement;
  const above = from === 0 || first.offsetTop + first.offsetHeight < viewport.scrollTop - OVERSCAN_PX / 3;
  const below = to === count || last.offsetTop > viewport.scrollTop + viewport.clientHeight + OVERSCAN_PX / 3;
  return above && below;
}
