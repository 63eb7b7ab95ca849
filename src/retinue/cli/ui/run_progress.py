"""Live progress in the footer: the active runs of a tree as cards and lines."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta

from msgspec import Struct

from retinue.app import App
from retinue.cli.ui.live_footer import Footer, FooterLine, TerminalSize, display_width, truncate_to_width
from retinue.cli.ui.run_tree import NO_TITLES, RunNode, RunTree
from retinue.domain.event import Event
from retinue.domain.run import LIVE_STATUSES, Run, Status
from retinue.errors import RetinueError
from retinue.interfaces import Transaction

MIN_FRAME_SECONDS = 0.1
"""Minimum time between two frames."""
MAX_FRAME_SECONDS = 0.25
"""Maximum time between two frames, so that durations advance and silent models are noticed."""
LEDGER_POLL_SECONDS = 1.0
"""Interval at which the ledger is checked for changes made by other processes."""
MIN_SHOWN_AGE = timedelta(seconds=0.5)
"""A run that ends sooner gets no line: it would only flash."""
SILENCE_THRESHOLD = timedelta(seconds=1.5)
"""Silence of a model after which its card says so."""
MAX_FOOTER_LINES = 14
"""Maximum number of footer lines."""
MAX_CARD_CALLS = 3
"""Maximum number of tool calls that a card shows line by line."""

_COLOURS: Mapping[Status, str] = {Status.RUNNING: "36", Status.WAITING: "33", Status.QUEUED: "2"}


class TreeView(Struct, frozen=True, kw_only=True):
    """Render a run tree for one watched run, one moment and one window size."""

    tree: RunTree
    watched_run: str
    """Id of the watched run; empty if several are watched."""
    now: datetime
    width: int
    max_lines: int
    silence_threshold: timedelta = SILENCE_THRESHOLD

    def lines(self) -> list[FooterLine]:
        """Return the footer lines, with as much detail as fits."""
        children_by_parent = self.tree.children_by_parent()
        own_lines = [
            *self._watched_run_lines(children_by_parent),
            *self._other_tree_lines(children_by_parent),
        ]
        line_limit = self.max_lines - len(own_lines)
        children = (
            children_by_parent.get(self.watched_run, [])
            if self.watched_run
            else children_by_parent.get("", [])
        )
        if self.watched_run in self.tree.live:
            for calls in (MAX_CARD_CALLS, 0):
                cards = self._card_lines(children, children_by_parent, calls=calls)
                if len(cards) <= line_limit:
                    return cards + own_lines
        return self._capped_lines(children, children_by_parent, line_limit) + own_lines

    def _watched_run_lines(self, children_by_parent: Mapping[str, list[RunNode]]) -> list[FooterLine]:
        node = self.tree.live.get(self.watched_run)
        if node is None or (
            not children_by_parent.get(node.id) and self.now - node.started_at < MIN_SHOWN_AGE
        ):
            return []
        return [self._run_line(node, 0)]

    def _other_tree_lines(self, children_by_parent: Mapping[str, list[RunNode]]) -> list[FooterLine]:
        """Return a line per run that does not belong to the watched run: it works in the background."""
        if not self.watched_run:
            return []
        others = [each for each in children_by_parent.get("", ()) if each.id != self.watched_run]
        return self._capped_lines(others, children_by_parent, self.max_lines // 2)

    def _card_lines(
        self, children: Sequence[RunNode], children_by_parent: Mapping[str, list[RunNode]], *, calls: int
    ) -> list[FooterLine]:
        """Return the cards of the children; neighbouring cards share one separator line."""
        rule: FooterLine = (("─" * (self.width - 1), "2"),)
        lines: list[FooterLine] = []
        for child in children:
            lines += [rule, self._card_title(child), *self._card_status_lines(child, calls=calls)]
            lines += [self._run_line(each, depth) for each, depth in _descendants(child, children_by_parent)]
        return [*lines, rule] if lines else []

    def _card_title(self, node: RunNode) -> FooterLine:
        """Return the title of a card, with run, status and duration at the right edge if they fit."""
        title = truncate_to_width(
            f"{node.title or node.agent.capitalize()} Task: {node.task}", self.width - 1
        )
        suffix = f"{node.display_name} {node.status} {node.duration_text(self.now)}"
        gap = self.width - 1 - display_width(title) - display_width(suffix)
        return ((title, "1"), (" " * gap + suffix, "2")) if gap >= 2 else ((title, "1"),)  # noqa: PLR2004  (blanks)

    def _card_status_lines(self, node: RunNode, *, calls: int) -> list[FooterLine]:
        if node.is_model_silent(self.now, self.silence_threshold):
            return [(("Waiting...", "2"),)]
        if node.status is Status.WAITING and node.activity:
            return [((f"Waiting {node.activity}", "33"),)]
        if not node.tool_call_count:
            return [(("", ""),)]
        heading = f"Calling Tools... (+{node.tool_call_count})"
        call_texts = [summary for _, summary in node.latest_calls]
        if not calls:
            return [((truncate_to_width(f"{heading} {', '.join(call_texts)}", self.width - 1), "36"),)]
        lines: list[FooterLine] = [((heading, "36"),)]
        lines += [((truncate_to_width(f"  {text}", self.width - 1), "2"),) for text in call_texts[:calls]]
        if len(call_texts) > calls:
            lines.append(((f"  … and {len(call_texts) - calls} more", "2"),))
        return lines

    def _run_line(self, node: RunNode, depth: int) -> FooterLine:
        state, rest = f"{node.status}", f" {node.duration_text(self.now)}"
        if node.activity:
            rest += f" · {node.activity}"
        name = truncate_to_width("  " * depth + node.display_name + " ", self.width - 1)
        space = self.width - 1 - display_width(name)
        state = truncate_to_width(state, space)
        rest = truncate_to_width(rest, space - display_width(state))
        return (name, ""), (state, _COLOURS[node.status]), (rest, "2")

    def _capped_lines(
        self, children: Sequence[RunNode], children_by_parent: Mapping[str, list[RunNode]], line_limit: int
    ) -> list[FooterLine]:
        """Return a line per run up to the limit, and the number left out.

        Running runs take precedence over queued ones.
        """
        nodes = [
            pair for child in children for pair in ((child, 0), *_descendants(child, children_by_parent))
        ]
        if len(nodes) <= line_limit:
            return [self._run_line(node, depth) for node, depth in nodes]
        visible = sorted(nodes, key=lambda pair: pair[0].status is Status.QUEUED)[: max(0, line_limit - 1)]
        shown_ids = {node.id for node, _ in visible}
        lines = [self._run_line(node, depth) for node, depth in nodes if node.id in shown_ids]
        return [*lines, ((f"… and {len(nodes) - len(shown_ids)} more", "2"),)]


def _descendants(
    node: RunNode, children_by_parent: Mapping[str, list[RunNode]], depth: int = 1
) -> list[tuple[RunNode, int]]:
    nodes: list[tuple[RunNode, int]] = []
    for each in children_by_parent.get(node.id, ()):
        nodes += [(each, depth), *_descendants(each, children_by_parent, depth + 1)]
    return nodes


class RunProgress:
    """Keep the footer up to date from events and ledger rows while runs are active. Never raises."""

    def __init__(
        self,
        footer: Footer | None,
        *,
        is_prompting: Callable[[], bool] = lambda: False,
        now: Callable[[], datetime] | None = None,
        titles: Mapping[str, str] = NO_TITLES,
    ) -> None:
        self.footer = footer
        if footer is not None:
            footer.is_paused = is_prompting
        self.now = now or (lambda: datetime.now(UTC))
        self.tree = RunTree(titles=titles)
        self.watched_run = ""
        self.root_ids: set[str] = set()
        self.changed = asyncio.Event()
        self.stopped = False

    def add_runs(self, runs: Sequence[Run], tree_runs: Sequence[Run] = ()) -> None:
        """Show these runs; `tree_runs` holds the runs of their trees that are already known."""
        self.tree.update(tree_runs)
        self.tree.update(runs)
        self.root_ids |= {run.root_id for run in runs}
        self.watched_run = runs[0].id if len(runs) == 1 else ""
        self.changed.set()

    def on_event(self, event: Event) -> None:
        if self.tree.apply_event(event):
            self.changed.set()

    def stop(self) -> None:
        """Stop drawing, because the user interrupted or detached."""
        self.stopped = True
        self.clear()

    def clear(self) -> None:
        if self.footer is not None:
            with suppress(OSError):
                self.footer.draw(())

    def draw(self) -> None:
        if self.footer is None or self.stopped:
            return
        size: TerminalSize = self.footer.current_size()
        view = TreeView(
            tree=self.tree,
            watched_run=self.watched_run,
            now=self.now(),
            width=size.width,
            max_lines=min(MAX_FOOTER_LINES, size.height - 2),
        )
        with suppress(OSError):
            self.footer.draw(view.lines())

    @asynccontextmanager
    async def show(self, app: App) -> AsyncGenerator[None]:
        """Show the footer while the context is open, and remove it however the context ends."""
        if self.footer is None:
            yield
            return
        try:
            async with asyncio.TaskGroup() as group:
                refresh_task = group.create_task(self._refresh_forever(app))
                yield
                refresh_task.cancel()
        except ExceptionGroup as group_error:
            raise group_error.exceptions[0] from group_error
        finally:
            self.clear()

    async def _refresh_forever(self, app: App) -> None:
        last_sync = self.now()
        while True:
            if (self.now() - last_sync).total_seconds() >= LEDGER_POLL_SECONDS:
                last_sync = self.now()
                await self._sync_with_ledger(app)
            await self._load_missing_rows(app)
            self.draw()
            await asyncio.sleep(MIN_FRAME_SECONDS)
            with suppress(TimeoutError):
                async with asyncio.timeout(MAX_FRAME_SECONDS - MIN_FRAME_SECONDS):
                    await self.changed.wait()
            self.changed.clear()

    async def _load_missing_rows(self, app: App) -> None:
        """Load the ledger rows of runs known only from events: their task is not in the events."""
        if not (ids := self.tree.incomplete_ids()):
            return

        def step(tx: Transaction) -> list[Run]:
            return [run for each in ids if (run := tx.get_run(each)) is not None]

        with suppress(RetinueError):
            self.tree.update(await app.context.ledger.read(step))

    async def _sync_with_ledger(self, app: App) -> None:
        """Apply changes made by other processes, whose events do not arrive here."""

        def step(tx: Transaction) -> list[Run]:
            return [
                run for root in sorted(self.root_ids) for run in tx.find_runs(root=root, status=LIVE_STATUSES)
            ]

        known = set(self.tree.live)  # keep runs created while the ledger is being read
        with suppress(RetinueError):
            live_runs = await app.context.ledger.read(step)
            self.tree.update(live_runs)
            self.tree.remove(known - {run.id for run in live_runs})
