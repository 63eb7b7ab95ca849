"""Talking: a line from the person, an answer from the agent, until one of them leaves."""

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import click

from retinue.app import App
from retinue.cli.command import FORGETTING, exit_code, on_app
from retinue.cli.follow import ending, followed
from retinue.cli.options import Command
from retinue.cli.run_waiter import family
from retinue.cli.tools import COLUMNS as TOOL_COLUMNS
from retinue.cli.tools import tool_json
from retinue.cli.ui.line_editor import Prompt
from retinue.cli.ui.tables import SESSION_COLUMNS
from retinue.cli.ui.terminal import Terminal, one_line
from retinue.domain.agent import Agent, Role
from retinue.domain.model_selection import labelled
from retinue.domain.run import Run, Status, as_json
from retinue.domain.session import Session
from retinue.domain.session import as_json as session_as_json
from retinue.domain.watch import words_of
from retinue.errors import NotFound, RetinueError, Usage

SLASH = "slash"
"""What set off a run that a slash command began."""
GREETING = "/help lists the commands, Ctrl-C stops an answer, Ctrl-D leaves."


@click.command(cls=Command)
@click.argument("session", required=False)
@click.option("--agent", metavar="A", help="Whom to talk with; general when nobody is named.")
@click.option("--model", metavar="M", help="The model, as driver:model.")
@FORGETTING
@on_app(quiet=True)
async def chat(
    app: App, terminal: Terminal, session: str | None, agent: str | None, model: str | None
) -> int:
    """Talk with an agent, line by line. With SESSION the conversation goes on; else the first line begins one.

    /help inside lists the commands. With --json the runs are printed as an array at the end.
    """
    talk = Talk(app, terminal, agent=agent, model=model)
    if session is not None:
        if agent is not None:
            raise Usage("--agent and SESSION exclude each other: a session has its own agent")
        await talk.take(await app.session(session))
    elif agent is not None:
        app.agents.get(agent, str(Path.cwd()))
    code = await talk.go_on()
    if terminal.json:
        terminal.value([as_json(run) for run in talk.runs])
    return code


class Leave(Exception):
    """The person is done."""


class Talk:
    """One person's conversation, with the session it is in now. The session begins with the first words."""

    def __init__(self, app: App, terminal: Terminal, *, agent: str | None, model: str | None) -> None:
        self.app = app
        self.terminal = terminal
        self.agent = agent
        self.model = model
        self.session: Session | None = None
        self.runs: list[Run] = []
        self.shown: set[str] = set()
        """What watchers said and the person has seen."""

    async def go_on(self) -> int:
        """Reads lines until the person leaves. A script on standard input hears of the last failure."""
        prompt = Prompt(terminal=self.terminal, words=[f"/{name}" for name in COMMANDS])
        if prompt.interactive:
            self.terminal.note(GREETING)
            speaks = self.model or self.app.config.default_model() or ""
            if speaks.startswith("local:"):
                self.terminal.note(f"{labelled(speaks)}: it shows how this works, not how well", colour="33")
        code = 0
        while (line := prompt.line()) is not None:
            try:
                code = await self._heard(line) or code
            except Leave:
                break
            except RetinueError as error:
                self.terminal.note(str(error), colour="31")
                code = error.exit_code
        return 0 if prompt.interactive else code

    async def take(self, session: Session) -> None:
        """The conversation goes on in this session."""
        self.session = session
        self.agent = session.agent
        last = f": {one_line(session.last_snippet, 80)}" if session.last_snippet else ""
        self.terminal.note(f"{session.agent} in {session.slug}{last}")

    async def _heard(self, line: str) -> int:
        if not line.strip():
            return 0
        if not line.startswith("/"):
            return await self._said(line)
        name, _, rest = line[1:].partition(" ")
        if (command := COMMANDS.get(name)) is not None:
            await command[1](self, rest.strip())
            return 0
        return await self._triggered(name, rest.strip())

    async def _said(self, text: str) -> int:
        before = self.session
        reference = None if before is None else before.path
        return await self._followed(
            lambda: self.app.start(text, agent=self.agent, session=reference, model=self.model),
            stay=before is None,
        )

    async def _triggered(self, name: str, text: str) -> int:
        """A definition's own slash command: that agent does it, as a child of this conversation."""
        agent = self._agent_of(name)
        if not text and agent in self.app.can_watch():
            await self._toggled(agent)
            return 0
        if not text:
            raise Usage(f"say what {agent} is to do: /{name} TEXT")
        above = self.session
        if above is None:
            return await self._followed(
                lambda: self.app.start(text, agent=agent, model=self.model, trigger=SLASH), stay=False
            )
        return await self._followed(
            lambda: self.app.spawn(text, parent=above.path, agent=agent, model=self.model, trigger=SLASH),
            stay=False,
        )

    async def _toggled(self, agent: str) -> None:
        """A watcher's slash command alone sets it beside this conversation, or sends it away."""
        here = self._here()
        if any(each.agent == agent for each in await self.app.watchers(here.path)):
            await self.app.unwatch(here.path, agent=agent)
            self.terminal.note(f"{agent} watches no more")
            return
        watch = await self.app.watch(here.path, agent=agent, trigger=SLASH)
        self.terminal.note(f"{watch.name} watching")

    def _agent_of(self, name: str) -> str:
        for defined in self.app.agents.all():
            if name in {slash.removeprefix("/") for slash in defined.agent.triggers.slash}:
                return defined.agent.name
        raise Usage(
            f"there is no /{name}: /help lists the commands; begin with a blank to say it to the agent"
        )

    async def _followed(self, born: Callable[[], Awaitable[Run]], *, stay: bool) -> int:
        await self._watchers(told=False)
        run = await followed(self.app, self.terminal, born)
        await self._watchers(told=True)
        self.runs.append(run)
        if stay:
            self.session = await self.app.session(run.session_id)
            self.agent = run.agent
        if run.status is not Status.DONE:
            self.terminal.note(ending(run, await family(self.app, [run])), colour="31")
        return exit_code(run)

    async def _watchers(self, *, told: bool) -> None:
        """What watchers said while nobody listened is shown before the next answer; what they say meanwhile is told."""
        if (here := self.session) is None:
            return
        for said in await self.app.ledger.look(lambda tx: tx.interjections(session=here.id, open_=True)):
            if said.id not in self.shown and not told:
                self.terminal.note(
                    f"{said.agent} {said.severity}: {one_line(words_of(said), 600)}", colour="33"
                )
            self.shown.add(said.id)

    def _here(self) -> Session:
        if self.session is None:
            raise NotFound("nothing was said yet: the first message begins the session")
        return self.session

    async def help(self, _rest: str) -> None:
        for name, (what, _) in COMMANDS.items():
            self.terminal.line(f"  /{name:<13}{what}")
        for defined in self.app.agents.all():
            for slash in defined.agent.triggers.slash:
                self.terminal.line(f"  /{slash.removeprefix('/'):<13}{_what(defined.agent)}")

    async def leave(self, _rest: str) -> None:
        raise Leave

    async def switch(self, rest: str) -> None:
        """To an agent's latest session, or a new one when it has none; words behind the name are said there at once."""
        if not rest:
            self.terminal.line(self.agent or "general")
            return
        name, _, words = rest.partition(" ")
        self.app.agents.get(name, str(Path.cwd()))
        found = await self.app.sessions(agent=name, children=False)
        self.agent, self.session = name, None
        if found:
            await self.take(found[0])
        if words.strip():
            await self._said(words.strip())

    async def agents(self, _rest: str) -> None:
        for defined in self.app.agents.all(str(Path.cwd())):
            self.terminal.line(f"  {defined.agent.name:<14}{one_line(defined.agent.description, 90)}")

    async def sessions(self, _rest: str) -> None:
        rows = [session_as_json(session) for session in (await self.app.sessions(children=False))[:20]]
        self._list(lambda: self.terminal.rows(rows, SESSION_COLUMNS, empty="no sessions yet"))

    async def open(self, rest: str) -> None:
        if not rest:
            raise Usage("say which: /open SESSION")
        await self.take(await self.app.session(rest))

    async def new(self, _rest: str) -> None:
        self.session = None

    async def tools(self, _rest: str) -> None:
        place = None if self.session is None else self.session.path
        found = await self.app.tools(agent=None if place else self.agent, session=place)
        rows = [tool_json(tool, verdict) for tool, verdict in found]
        self._list(lambda: self.terminal.rows(rows, TOOL_COLUMNS, empty="no tools are known"))

    async def path(self, _rest: str) -> None:
        self.terminal.line(f"{self._here().path}/session.md")

    async def clear(self, _rest: str) -> None:
        self.session = await self.app.clear(self._here().path)
        self.terminal.note("what was said is forgotten; the session stays")

    async def rename(self, rest: str) -> None:
        if not rest:
            raise Usage("say the name: /rename NAME")
        self.session = await self.app.rename(self._here().path, rest)

    def _list(self, shown: Callable[[], None]) -> None:
        """Lists are for people here: `--json` prints one value, at the end."""
        if not self.terminal.json:
            shown()


def _what(agent: Agent) -> str:
    """What its slash command does."""
    does = f"{agent.name} does it as a child"
    return f"{does}; alone, it watches, or no more" if Role.WATCHER in agent.roles else does


COMMANDS: Mapping[str, tuple[str, Callable[[Talk, str], Awaitable[None]]]] = {
    "help": ("this list", Talk.help),
    "agent": (
        "who answers; with a NAME, go to that agent's latest session; NAME TEXT says it there",
        Talk.switch,
    ),
    "agents": ("who there is", Talk.agents),
    "sessions": ("the latest conversations", Talk.sessions),
    "open": ("go on in SESSION", Talk.open),
    "new": ("begin a new conversation with the next message", Talk.new),
    "tools": ("what the agent may use, and why", Talk.tools),
    "path": ("the file this conversation is kept in", Talk.path),
    "rename": ("give this session a NAME", Talk.rename),
    "clear": ("forget what was said here", Talk.clear),
    "quit": ("leave", Talk.leave),
    "exit": ("leave", Talk.leave),
}
