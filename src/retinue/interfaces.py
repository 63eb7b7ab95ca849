"""What the runtime needs of the world: eight protocols, and the bundle that carries them."""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Any, Protocol, TypeVar

from retinue.domain.agent import Agent, Defined, Paths
from retinue.domain.approval import Answer, Approval, State, Touch
from retinue.domain.ceiling import Bounds, Wish
from retinue.domain.clock import Chance
from retinue.domain.delivery import Delivery
from retinue.domain.delivery import State as Delivered
from retinue.domain.event import Event
from retinue.domain.io_results import Found, Opened, Ran, Written
from retinue.domain.model_turn import Delta, Model, Reply, Request
from retinue.domain.permissions.scope import Scope
from retinue.domain.run import Reason, Run, Status
from retinue.domain.runtime_settings import Settled
from retinue.domain.sandbox_level import Level
from retinue.domain.session import Born, NewSession, Session
from retinue.domain.side_effect import Deed
from retinue.domain.skill import Skill
from retinue.domain.tool import ToolFacts
from retinue.domain.transcript import Called, Entry, Returned
from retinue.domain.value import value
from retinue.domain.watch import Interjection, Watch
from retinue.domain.workspace import Workspace

T = TypeVar("T")


class Driver(Protocol):
    """Who takes a turn."""

    async def turn(self, request: Request, heard: Callable[[Delta], None]) -> Reply:
        """One finished reply, or ModelFailed. `heard` gets the pieces as they come."""
        ...

    async def close(self) -> None: ...


class Conversation(Protocol):
    """A session held open by this process: its entries as the file has them, and the only way to add to it."""

    session: Session
    memo: dict[str, Any]
    torn: str | None
    """Where a torn tail was put when this was opened, if there was one."""

    @property
    def entries(self) -> Sequence[Entry]: ...

    @property
    def abridged(self) -> bool:
        """The file is too long to be held: `entries` are its newest, beginning where an exchange does."""
        ...

    async def earlier(self, run: str) -> Sequence[Entry]:
        """A run's own entries that stand before those held; from then on they are not added again either."""
        ...

    async def append(self, *entries: Entry, sync: bool = True) -> None:
        """All of them in one write, on disk when this returns; an entry already there by id is not added again. Without
        `sync` on disk with the next ones, or at rest. A cancellation passes on when that is done or known not to be."""

    async def refresh(self) -> bool:
        """Reads the file anew if a person changed it; True when the entries are other than they were.
        What this process appended and a save dropped is appended again."""
        ...

    def typed(self) -> str:
        """What a person wrote below the open user line, blank when nothing."""
        ...

    async def take_typed(self, said: Entry) -> None:
        """The typed text becomes this entry: nothing is written twice."""

    async def rest(self) -> None:
        """The conversation is idle: it ends with an open user line."""

    async def log_tool(self, called: Called, returned: Returned) -> None:
        """Adds a heading to tools.org; derived, not synced."""


class Store(Protocol):
    """Conversations as folders."""

    async def create(self, new: NewSession) -> Session:
        """The folder appears complete or not at all."""
        ...

    async def find(self, ref: str) -> Session:
        """By id, slug, alias, `<slug>/<branch>`, path of the folder or of session.md, or unambiguous prefix."""
        ...

    async def sessions(self, *, agent: str | None = None, children: bool = True) -> list[Session]:
        """Newest first by updated_at."""
        ...

    def open(self, session: Session) -> AbstractAsyncContextManager[Conversation]:
        """Takes the session's lock; Held names who has it."""
        ...

    async def preset(self, session: Session) -> tuple[Agent, str]:
        """The definition in the session's own preset.md, and the hash of its text."""
        ...

    async def change(self, session: Session, **facts: Any) -> Session:
        """Replaces facts of session.json: name, pinned_at, attributes, preset_hash, aliases, lifted."""
        ...

    async def delete(self, session: Session) -> str:
        """Put aside under a name that nothing finds; says where."""
        ...

    async def recent(self, session: Session, *, after: str = "", before: str = "", limit: int) -> list[Entry]:
        """Entries as the file has them, without its lock: the first after one, the last before one, or the newest.
        NotFound: there is none of that name."""
        ...

    async def widen(self, session: Session, touch: Touch, pattern: str) -> None:
        """Adds one pattern to what the session's own preset.md lets it read, write or run; the rest of the file
        stays to the letter, and what is there already is not added again."""


class Agents(Protocol):
    """Definitions, live: an edit counts on the next call."""

    def get(self, name: str, at: str | None = None) -> Defined:
        """`at`: the folder where somebody works, whose project may add names. NotFound names the nearest."""
        ...

    def all(self, at: str | None = None) -> list[Defined]: ...


class Tx(Protocol):
    """One step's view of the ledger, alone in its savepoint."""

    def run(self, run_id: str, *, family: bool = False) -> Run | None:
        """With `family`, its children's ids are read too."""
        ...

    def run_by_key(self, ask_key: str) -> Run | None: ...
    def add_run(self, run: Run) -> None: ...
    def set_run(self, run: Run) -> None: ...
    def runs(  # noqa: PLR0913  (one filter each)
        self,
        *,
        status: Sequence[Status] | None = None,
        session: str | None = None,
        root: str | None = None,
        parent_run: str | None = None,
        top_only: bool = False,
        prefix: str | None = None,
        reason: Reason | None = None,
        awaited: bool | None = None,
        begun: bool | None = None,
        due: datetime | None = None,
        family: bool = False,
        limit: int | None = None,
    ) -> list[Run]:
        """Newest first by created_at; equal times newest id first. `begun`: whether they were ever taken up; `due`:
        those whose wake_at has come by then."""
        ...

    def at_work_for(self, run_id: str, *, awaited: bool | None = None) -> bool:
        """Whether any run is live that this one asked for."""
        ...

    def holds(self, run_id: str, session: str) -> bool:
        """Whether anything keeps a run from simply ending: somebody it asked is at work, something lies there for its
        session that nobody has heard, or a question of it is open."""
        ...

    def owners(self, status: Sequence[Status]) -> set[str]: ...
    def count(
        self, status: Status | None = None, *, root: str | None = None, requester: str | None = None
    ) -> int: ...
    def delivery(self, delivery_id: str) -> Delivery | None: ...
    def add_delivery(self, delivery: Delivery) -> None:
        """One for each end: a second of the same run is an error."""

    def set_delivery(self, delivery: Delivery) -> None: ...
    def deliveries(
        self,
        *,
        run: str | None = None,
        by: str | None = None,
        session: str | None = None,
        state: Sequence[Delivered] | None = None,
        answers: bool | None = None,
        uncleared: bool = False,
        limit: int | None = None,
    ) -> list[Delivery]:
        """Oldest first. `uncleared`: those whose session was not to be kept and is still there."""
        ...

    def approval(self, approval_id: str) -> Approval | None: ...
    def add_approval(self, approval: Approval) -> None: ...
    def set_approval(self, approval: Approval) -> None: ...
    def approvals(
        self,
        *,
        run: str | None = None,
        call: str | None = None,
        state: Sequence[State] | None = None,
        prefix: str | None = None,
    ) -> list[Approval]:
        """Oldest first."""
        ...

    def deed(self, call: str) -> Deed | None: ...
    def set_deed(self, deed: Deed) -> None:
        """Adds it, or replaces the one of the same call."""

    def deeds(self, run: str) -> list[Deed]:
        """Oldest first."""
        ...

    def set_watch(self, watch: Watch) -> None:
        """Adds it, or replaces the one of the same id; so does the next."""

    def watches(
        self, *, session: str | None = None, watcher: str | None = None, on: bool | None = None
    ) -> list[Watch]:
        """Oldest first."""
        ...

    def set_interjection(self, said: Interjection) -> None: ...
    def interjections(
        self,
        *,
        session: str | None = None,
        call: str | None = None,
        run: str | None = None,
        open_: bool | None = None,
        prefix: str = "",
        limit: int | None = None,
    ) -> list[Interjection]:
        """Oldest first, and of more than `limit` the newest. `prefix`: of the id."""
        ...

    def emit(self, event: Event) -> None:
        """A durable event, numbered when the step commits."""

    def events(self, *, after: int = 0, session: str | None = None, limit: int = 1000) -> list[Event]: ...
    def last_seq(self) -> int:
        """The number of the newest event; 0: there is none."""
        ...


class Ledger(Protocol):
    """Runs and their events. Holds no rules: a step is a plain function in runtime/."""

    async def do(self, step: Callable[[Tx], T], then: Callable[[T], None] | None = None) -> T:
        """Runs the step in the next group commit; when this returns it is on disk. `then` is told what it came to as
        soon as it is, and before this returns: also where nobody waits for it any more."""
        ...

    async def look(self, step: Callable[[Tx], T]) -> T:
        """The same view, for reading only."""
        ...


class Engine(Protocol):
    """What drives runs: takes a run's id and returns at once."""

    def submit(self, run_id: str, *, taken: Born | bool = False, ahead: bool = False, lane: str = "") -> None:
        """`taken`: it is claimed already, in the step that made it, as this says. `ahead`: it was begun before and goes first.
        `lane`: whose runs are counted together."""

    async def wait(self, run_id: str) -> None:
        """Until the run has ended, whoever works it."""

    def heed(self) -> None:
        """Somebody wants something of runs here, and has written it down: it is looked for now."""

    def cancel(self, run_id: str) -> bool:
        """Stops this process's work on it; False when it is not ours."""
        ...

    def cancelled(self, run_id: str) -> bool:
        """Whether it was stopped by somebody, rather than by the end of this process."""
        ...


class Files(Protocol):
    """Files, already bound to one scope. Every path is judged by the real name of what was opened."""

    def read(self, path: str, *, max_bytes: int = ...) -> Opened: ...
    def list(self, path: str) -> "list[Found]": ...
    def walk(self, path: str, *, limit: int = ...) -> Iterator[Found]:
        """Regular files and links below a folder in a stable order, links not followed, refused ones left out.
        Of a file: the file itself, as `.`."""
        ...

    def name(self, path: str) -> str:
        """The real name that a path stands for now, unjudged: for a person to look at, never to open by."""
        ...

    def judge(self, path: str, wish: Wish) -> str:
        """The real name that this path stands for now, as the scope's rules know it: of a file that is there, or of
        one that would be made. OutOfScope names the rule."""
        ...

    def write(self, path: str, data: bytes, *, instead_of: bytes | None = None) -> Written:
        """The whole file, in one step: a reader sees the old one or the new one. Missing folders are made. With
        `instead_of`, only while that is still what the file holds; its mode stays."""
        ...

    def only(self, real: str) -> "Files":
        """The same, but nothing else than this one file can be written: what a person saw is what happens."""
        ...


Shell = Callable[[str, float], Awaitable[Ran]]
"""Runs one command for at most so many seconds, held by the sandbox to one scope."""


async def _nothing(_: str) -> None:
    return


@value
class Call:
    """Who is calling a tool, and what it may act through: already bound to the scope."""

    run: Run
    session: Session
    id: str
    """Of the call's entry: the key of its effect."""
    files: Files
    shell: Shell
    answer: Answer | None = None
    """What a person answered, when one was asked before this call."""
    ask: Callable[[str, Sequence[str]], Awaitable[str]]
    """Puts a question to a person; NobodyHere when there is none."""
    recorded: str = ""
    """What this very call wrote down before a crash; empty when it is made for the first time."""
    record: Callable[[str], Awaitable[None]] = _nothing
    """Writes down what will be, before it is: whether it was can be seen by that afterwards."""
    ports: "Ports | None" = None
    """Only for doors, which start other agents, and for tools that look at what became of them."""


Body = Callable[[Mapping[str, Any], Call], Awaitable[str]]


@value
class Tool(ToolFacts):
    """A name, a typed signature, what it touches, and one async function."""

    body: Body


@value
class Ports(Settled):
    """What a verb of the runtime acts through."""

    store: Store
    agents: Agents
    ledger: Ledger
    engine: Engine
    driver: Driver
    chance: Chance
    tools: Mapping[str, Tool]
    files: Callable[[Scope], Files]
    shell: Callable[[Scope], Shell]
    level: Callable[[], Awaitable[Level]]
    """How tightly commands are held here: found out once."""
    worktree: Callable[[str, str], Awaitable[tuple[str, str] | None]]
    """(folder, name) → a worktree of the repository around it, and that repository; None where there is none."""
    drop_worktree: Callable[[Workspace], Awaitable[bool]]
    """False when it stays, because it holds work that nobody has taken over."""
    tmp: Callable[[Session], str]
    """The real folder behind a session's /tmp; it need not exist yet."""
    emit: Callable[[Event], None]
    """A live event; durable ones reach it by themselves after their step's commit."""
    listened: Callable[[], bool] = lambda: True
    """Whether anybody hears live events: where nobody does, none is made."""
    ask: Callable[[str, Sequence[str]], Awaitable[str]]
    model: Callable[[Agent, str | None], Model]
    """The model an agent is to use, with the run's override."""
    bounds: Callable[[], Bounds]
    """What the operator says for every scope, now."""
    skills: Callable[[str, str], Sequence[Skill]] = lambda _agent, _at: ()
    """(agent, the folder it works in) → the skills there are for it there; its scope says which it has."""
    with_paths: Callable[[str, Paths], str]
    """A preset's text with its paths section replaced, the rest to the letter."""
    with_prompt: Callable[[str, str], str]
    """A preset's text with another system message, its fields to the letter."""
    owner: str
    worker: Callable[[], str]
    """Who works what begins here, or goes on because of what is done here: this process, or a daemon beside it."""
    alive: Callable[[str], bool]
    """Whether the process of this name lives."""
