"""The chat command: an interactive conversation with slash commands."""

import asyncio
import re
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping

import click

from retinue.app import App
from retinue.app.permissions import DEFAULT_AGENT
from retinue.app.run_options import RunOptions, SpawnOptions
from retinue.app.submit import REVIEW_COMMAND, is_review_agent
from retinue.app.workspace_folder import current_folder
from retinue.cli.command import ALLOW_HOME_OPTION, FORGET_OPTION, exit_code, run_output, with_app
from retinue.cli.follow import follow_run, status_sentence
from retinue.cli.live_chat import LiveChat
from retinue.cli.options import Command
from retinue.cli.run_waiter import load_run_trees
from retinue.cli.tools import TOOL_COLUMNS, tool_as_json
from retinue.cli.ui.tables import SESSION_COLUMNS
from retinue.cli.ui.terminal import Terminal, one_line
from retinue.cli.user_prompts import line_unless_set, read_line
from retinue.cli.watch import watcher_title
from retinue.domain.agent import Agent, AgentDefinition, Role
from retinue.domain.model_selection import model_label
from retinue.domain.run import Run, Status
from retinue.domain.session import Session, session_as_json
from retinue.domain.watch import interjection_text
from retinue.errors import NotFound, Refused, RetinueError, UsageError, UserUnavailable

SLASH_TRIGGER = "slash"
"""The trigger recorded for runs that a slash command started."""
GREETING = "Type /help for the commands. Alt-Enter adds a line, Ctrl-C stops an answer, Ctrl-D exits."
PROMPT = "> "
INTERRUPTS_TO_QUIT = 2
"""Number of consecutive Ctrl-C presses that end a chat on a terminal without a live prompt."""
MAX_TITLE_CHARS = 60
IMMEDIATE_COMMANDS = frozenset({"help", "bg", "agents", "sessions", "tools", "path", "quit", "exit"})
"""Commands that do not wait for the foreground answer."""
_COMMAND_NAME = re.compile(r"[\w-]+")


@click.command(cls=Command)
@click.argument("session", required=False)
@click.option("--agent", metavar="A", help="Agent to use (default: general).")
@click.option("--model", metavar="M", help="Model to use, as provider:model.")
@ALLOW_HOME_OPTION
@FORGET_OPTION
@with_app(executes_runs=True)
async def chat(
    app: App,
    terminal: Terminal,
    session: str | None,
    agent: str | None,
    model: str | None,
    *,
    allow_home: bool,
) -> int:
    """Start an interactive conversation with an agent.

    Continues SESSION if it is given; otherwise the first message starts a new session. On a terminal, you can
    type while agents work: messages are sent after the answer. Type /help for the commands. With --json, the
    runs are printed as one array at the end.
    """
    loop = ChatLoop(app, terminal, agent=agent, model=model, allow_home=allow_home)
    if session is not None:
        if agent is not None:
            raise UsageError("--agent cannot be combined with SESSION: a session has its own agent")
        await loop.use_session(await app.sessions.find(session))
    elif agent is not None:
        loop.visible_agent(agent)
    code = await loop.run()
    if terminal.json:
        terminal.print_json([run_output(app, run) for run in loop.runs])
    return code


class ChatEnded(Exception):
    """Raised when the user ends the chat."""


class ChatLoop:
    """An interactive conversation and its current session, which is created by the first message."""

    def __init__(
        self, app: App, terminal: Terminal, *, agent: str | None, model: str | None, allow_home: bool
    ) -> None:
        self.app = app
        self.terminal = terminal
        self.agent = agent
        self.model = model
        self.allow_home = allow_home
        self.session: Session | None = None
        self.runs: list[Run] = []
        self.shown_interjections: set[str] = set()
        """Ids of the watcher messages that the user has already seen."""
        self.live: LiveChat | None = None
        """The live prompt; None without a terminal that can show one."""
        self.background_runs: set[str] = set()
        """Ids of the answers that were moved to the background."""

    async def run(self) -> int:
        """Read and execute lines until the user leaves, and return the exit code.

        With standard input from a script, the code is that of the last failure.
        """
        if self.terminal.supports_live_prompt:
            await self._run_live()
            return 0
        code = 0
        is_terminal = sys.stdin.isatty() and self.terminal.out.isatty() and not self.terminal.json
        read = self._read_terminal_line if is_terminal else _read_script_line
        if is_terminal:
            self._greet()
        while (line := await read()) is not None:
            line_code = await self._handle_line(line)
            if line_code is None:
                break
            code = line_code or code
        return 0 if is_terminal else code

    async def _run_live(self) -> None:
        self.live = LiveChat(
            self.app,
            self.terminal,
            commands=self._slash_commands,
            is_immediate=lambda text: text.startswith("/") and text[1:].split(" ")[0] in IMMEDIATE_COMMANDS,
            titles=self._agent_titles(),
        )
        self._greet()

        async def handle_line(line: str) -> bool:
            return await self._handle_line(line) is not None

        await self.live.run(handle_line)

    def _greet(self) -> None:
        self.terminal.print_note(GREETING)
        model_name = self.model or self.app.config.default_model() or ""
        if model_name.startswith("local:"):
            self.terminal.print_note(
                f"{model_label(model_name)}: it is for demonstrations, and its answers are often wrong",
                colour="33",
            )

    async def _handle_line(self, line: str) -> int | None:
        """Execute a line and return its exit code, or None if it ends the chat."""
        try:
            return await self._dispatch_line(line)
        except ChatEnded:
            return None
        except RetinueError as error:
            self.terminal.print_note(str(error), colour="31")
            return error.exit_code

    async def _read_terminal_line(self) -> str | None:
        """Read a line on a terminal that cannot show a live prompt; None at the end of the input."""
        loop = asyncio.get_running_loop()
        for attempt in range(INTERRUPTS_TO_QUIT):
            if attempt:
                self.terminal.print_note("\n(press Ctrl-C again, or Ctrl-D, to exit)")
            self.terminal.print_text(PROMPT)
            interrupted = asyncio.Event()
            loop.add_signal_handler(signal.SIGINT, interrupted.set)
            try:
                if (line := await line_unless_set(read_line(), interrupted)) is not None:
                    return line
            except UserUnavailable:
                break
            finally:
                loop.remove_signal_handler(signal.SIGINT)
        self.terminal.print_line()
        return None

    async def use_session(self, session: Session) -> None:
        """Continue the conversation in this session."""
        self.session = session
        self.agent = session.agent
        snippet = f": {one_line(session.last_snippet, 80)}" if session.last_snippet else ""
        self.terminal.print_note(f"{self._agent_title(session.agent)} in {session.slug}{snippet}")

    async def _dispatch_line(self, line: str) -> int:
        if not line.strip():
            return 0
        if not line.startswith("/"):
            return await self._send_message(line)
        name = (re.match(r"\S*", line[1:]) or [""])[0]
        argument = line[1 + len(name) :]
        if "\n" in line and not _COMMAND_NAME.fullmatch(name):
            return await self._send_message(line)  # a pasted text that begins with a path
        if (command := CHAT_COMMANDS.get(name)) is not None:
            await command[1](self, argument.strip())
            return 0
        return await self._run_agent_command(name, argument.strip())

    async def _send_message(self, text: str) -> int:
        session = self.session
        reference = None if session is None else session.path
        return await self._follow_run(
            lambda: self.app.runs.start(
                text,
                RunOptions(agent=self.agent, session=reference, model=self.model, allow_home=self.allow_home),
            ),
            keep_session=session is None,
        )

    async def _run_agent_command(self, name: str, text: str) -> int:
        """Run an agent's own slash command: start that agent as a child of this session."""
        agent = self._agent_for_slash(name)
        if not text and agent in self.app.watchers.eligible_agents():
            await self._toggle_watcher(agent)
            return 0
        is_review = name == REVIEW_COMMAND
        if not text and not is_review:
            raise UsageError(f"The task is missing. Type /{name} TEXT, with the task for {agent}.")
        parent = self.session
        if parent is None and is_review:
            parent = self.session = await self.app.sessions.create(self.agent or "general")
        if parent is None:
            return await self._follow_run(
                lambda: self.app.runs.start(
                    text,
                    RunOptions(
                        agent=agent, model=self.model, trigger=SLASH_TRIGGER, allow_home=self.allow_home
                    ),
                ),
                keep_session=False,
            )
        return await self._follow_run(
            lambda: self.app.runs.spawn(
                text,
                SpawnOptions(
                    parent=parent.path,
                    agent=agent,
                    model=self.model,
                    trigger=SLASH_TRIGGER,
                    in_conversation=True,
                ),
            ),
            keep_session=False,
        )

    async def _toggle_watcher(self, agent: str) -> None:
        """Start or stop a watcher on this session; its slash command without text does this."""
        session = self._current_session()
        if any(each.agent == agent for each in await self.app.watchers.list(session.path)):
            await self.app.watchers.remove(session.path, agent=agent)
            self.terminal.print_note(f"{self.terminal.agent_titles.title(agent)} stopped watching")
            return
        watch = await self.app.watchers.add(session.path, agent=agent, trigger=SLASH_TRIGGER)
        self.terminal.print_note(f"{watcher_title(watch, self.terminal)} watching")

    def _agent_for_slash(self, name: str) -> str:
        for defined in self._visible_agents():
            if name in {slash.removeprefix("/") for slash in defined.agent.triggers.slash}:
                return defined.agent.name
        raise UsageError(
            f"Unknown command /{name}. Type /help for the commands, or start the line with a space to send it to the agent."
        )

    async def _follow_run(self, start_run: Callable[[], Awaitable[Run]], *, keep_session: bool) -> int:
        await self._show_interjections(already_printed=False)

        async def start() -> Run:
            run = await start_run()
            if keep_session:
                self.session = await self.app.sessions.find(run.session_id)
                self.agent = run.agent
            return run

        if self.live is None:
            run = await follow_run(self.app, self.terminal, start)
            await self._show_interjections(already_printed=True)
        else:
            run = await self.live.follow(start)
        self.runs.append(run)
        if run.status.is_live and (run.waits_for_background or run.id in self.background_runs):
            return 0
        if run.status is not Status.DONE:
            self.terminal.print_note(
                status_sentence(run, await load_run_trees(self.app, [run]), self.terminal.agent_titles.title),
                colour="31",
            )
        return exit_code(run)

    async def _show_interjections(self, *, already_printed: bool) -> None:
        """Show unread watcher messages before the next answer.

        Messages that arrived while a run was followed are printed already, and are only marked as shown.
        """
        if (session := self.session) is None:
            return
        for interjection in await self.app.context.ledger.read(
            lambda tx: tx.find_interjections(session=session.id, open_=True)
        ):
            is_shown = interjection.id in self.shown_interjections or (
                self.live is not None and interjection.id in self.live.printer.shown_interjections
            )
            if not is_shown and not already_printed:
                self.terminal.print_note(
                    f"{interjection.agent} {interjection.severity}: {one_line(interjection_text(interjection), 600)}",
                    colour="33",
                )
            self.shown_interjections.add(interjection.id)

    def _current_session(self) -> Session:
        if self.session is None:
            raise NotFound("No session yet. Your first message starts one.")
        return self.session

    async def show_help(self, _argument: str) -> None:
        for name, (description, _) in CHAT_COMMANDS.items():
            self.terminal.print_line(f"  /{name:<13}{description}")
        for defined in self._visible_agents():
            for slash in defined.agent.triggers.slash:
                self.terminal.print_line(
                    f"  /{slash.removeprefix('/'):<13}{_slash_command_help(defined.agent)}"
                )

    async def quit(self, _argument: str) -> None:
        raise ChatEnded

    async def switch_agent(self, argument: str) -> None:
        """Switch to an agent's latest session, or a new one, and send it the text after the name."""
        if not argument:
            self.terminal.print_line(self._agent_title(self.agent or DEFAULT_AGENT))
            return
        name, _, message = argument.partition(" ")
        self.visible_agent(name)
        sessions = await self.app.sessions.list(agent=name, children=False)
        self.agent, self.session = name, None
        if sessions:
            await self.use_session(sessions[0])
        if message.strip():
            await self._send_message(message.strip())

    async def list_agents(self, _argument: str) -> None:
        titles = self._agent_titles()
        for defined in self._visible_agents(current_folder()):
            agent = defined.agent
            texts = [one_line(text, 90) for text in (titles.get(agent.name), agent.description) if text]
            self.terminal.print_line(f"  {agent.name:<14}{': '.join(texts)}")

    async def list_sessions(self, _argument: str) -> None:
        rows = [session_as_json(session) for session in (await self.app.sessions.list(children=False))[:20]]
        self._print_list(
            lambda: self.terminal.print_table(rows, SESSION_COLUMNS, empty_note="No sessions yet.")
        )

    async def open_session(self, argument: str) -> None:
        if not argument:
            raise UsageError("The session is missing. Type /open SESSION.")
        await self.use_session(await self.app.sessions.find(argument))

    async def start_new_session(self, _argument: str) -> None:
        self.session = None

    async def list_tools(self, _argument: str) -> None:
        session_path = None if self.session is None else self.session.path
        tools = await self.app.permissions.tool_verdicts(
            agent=None if session_path else self.agent, session=session_path
        )
        rows = [tool_as_json(tool, verdict) for tool, verdict in tools]
        self._print_list(lambda: self.terminal.print_table(rows, TOOL_COLUMNS, empty_note="No tools."))

    async def show_path(self, _argument: str) -> None:
        self.terminal.print_line(f"{self._current_session().path}/session.md")

    async def clear_session(self, _argument: str) -> None:
        self.session = await self.app.sessions.clear(self._current_session().path)
        self.terminal.print_note("All messages were removed. The session stays.")

    async def rename_session(self, argument: str) -> None:
        if not argument:
            raise UsageError("The name is missing. Type /rename NAME.")
        self.session = await self.app.sessions.rename(self._current_session().path, argument)

    async def move_to_background(self, _argument: str) -> None:
        run = None if self.live is None else self.live.detach_front()
        if run is None:
            raise UsageError(
                "There is no answer to move to the background. Use /bg while an answer is in progress."
            )
        self.background_runs.add(run.id)
        self.terminal.print_note(
            f"{self._agent_title(run.agent)} continues in the background, and its answer will be shown here. "
            "Your next messages to this session wait for it; /new starts another session."
        )

    def visible_agent(self, name: str) -> Agent:
        """Return the agent with this name.

        Raises:
            NotFound: There is no such agent.
            Refused: Its definition hides it.
        """
        agent = self.app.agents.registry.get(name, current_folder()).agent
        if not agent.ui_visible:
            raise Refused(f"Agent not accessible: {name}. Its definition sets `ui_visible: false`.")
        return agent

    def _visible_agents(self, folder: str | None = None) -> list[AgentDefinition]:
        definitions = self.app.agents.registry.list_definitions(folder)
        return [each for each in definitions if each.agent.ui_visible and each.agent.is_supported]

    def _agent_titles(self) -> dict[str, str]:
        """Return the display names, by agent, of agents whose display name differs from their name."""
        agents = [each.agent for each in self.app.agents.registry.list_definitions(current_folder())]
        return {
            each.name: one_line(each.title, MAX_TITLE_CHARS)
            for each in agents
            if each.title.casefold() != each.name
        }

    def _agent_title(self, name: str) -> str:
        """Return the agent's name, preceded by its display name if that differs."""
        title = self._agent_titles().get(name)
        return f"{title} ({name})" if title else name

    def _slash_commands(self) -> list[str]:
        own = [f"/{name}" for name in CHAT_COMMANDS]
        agents = [
            f"/{slash.removeprefix('/')}"
            for defined in self._visible_agents()
            for slash in defined.agent.triggers.slash
        ]
        return [*own, *agents]

    def _print_list(self, print_rows: Callable[[], None]) -> None:
        """Print a list for people; with --json only the final value is printed."""
        if not self.terminal.json:
            print_rows()


async def _read_script_line() -> str | None:
    line = sys.stdin.readline()
    return line.rstrip("\n") if line else None


def _slash_command_help(agent: Agent) -> str:
    """Describe what an agent's slash command does."""
    text = f"start {one_line(agent.title, MAX_TITLE_CHARS)} as a sub-agent with the task TEXT"
    if is_review_agent(agent):
        return "review the changes since the last commit; TEXT says what to check most"
    return f"{text}; without TEXT: start or stop watching" if Role.WATCHER in agent.roles else text


CHAT_COMMANDS: Mapping[str, tuple[str, Callable[[ChatLoop, str], Awaitable[None]]]] = {
    "help": ("show this list", ChatLoop.show_help),
    "bg": ("let the answer continue in the background", ChatLoop.move_to_background),
    "agent": (
        "show the agent; NAME: continue that agent's latest session; NAME TEXT: send TEXT there",
        ChatLoop.switch_agent,
    ),
    "agents": ("list the agents", ChatLoop.list_agents),
    "sessions": ("list the latest sessions", ChatLoop.list_sessions),
    "open": ("continue SESSION", ChatLoop.open_session),
    "new": ("start a new session with the next message", ChatLoop.start_new_session),
    "tools": ("list the tools that the agent can use, and why", ChatLoop.list_tools),
    "path": ("print the path of this conversation's file", ChatLoop.show_path),
    "rename": ("rename this session to NAME", ChatLoop.rename_session),
    "clear": ("remove all messages of this session", ChatLoop.clear_session),
    "quit": ("exit the chat", ChatLoop.quit),
    "exit": ("exit the chat", ChatLoop.quit),
}
