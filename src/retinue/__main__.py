"""The table of commands; each command is imported on use, so that the help needs only this file."""

import gc
import sys

from retinue import __version__
from retinue.isolated_python import remove_current_folder

_GC_THRESHOLD = 100_000
"""New objects before a garbage collection. Commands load and list much without cycles, and end soon."""

COMMANDS = {
    "Talk": {
        "run": ("give an agent one task and stream its answer", "retinue.cli.run:run"),
        "chat": ("start an interactive conversation", "retinue.cli.chat:chat"),
        "send": ("send a message to a session", "retinue.cli.run:send"),
        "spawn": ("start a sub-agent below a session, with its own paths", "retinue.cli.run:spawn"),
        "wait": ("wait until runs have ended", "retinue.cli.wait:wait"),
        "attach": ("follow a session live", "retinue.cli.attach:attach"),
    },
    "Conversations": {
        "sessions": (
            "list, show, open, branch, clear, delete, restore, rename, pin, unpin, export sessions",
            "retinue.cli.sessions:sessions",
        ),
    },
    "Runs": {
        "runs": ("list, show, cancel, interrupt, detach, resume runs; history", "retinue.cli.runs:runs"),
        "subagent": ("another name for runs", "retinue.cli.runs:runs"),
        "watch": (
            "let an agent monitor a session and comment",
            "retinue.cli.watch:watch",
        ),
        "unwatch": ("stop the watchers of a session", "retinue.cli.watch:unwatch"),
        "inbox": (
            "status and results of delegated tasks",
            "retinue.cli.inbox:inbox",
        ),
    },
    "Agents": {
        "agents": ("list, show, check, import, delete agents", "retinue.cli.agents:agents"),
        "approvals": (
            "list, show, answer approval requests",
            "retinue.cli.approvals:approvals",
        ),
        "scope": ("show and test the permissions of a session", "retinue.cli.scope:scope"),
        "trust": (
            "manage projects that may add agents and skills",
            "retinue.cli.trust:trust",
        ),
        "tools": ("list the tools, and which of them an agent can use", "retinue.cli.tools:tools"),
        "mcp": (
            "list, show, trust, distrust MCP servers and their tools",
            "retinue.cli.mcp:mcp",
        ),
        "skills": (
            "list and show skills: commands with instructions",
            "retinue.cli.skills:skills",
        ),
        "pool": (
            "manage the pool of agents that can get another task",
            "retinue.cli.pool:pool",
        ),
    },
    "Machine": {
        "serve": ("run the daemon, which executes runs and serves the web page", "retinue.cli.serve:serve"),
        "tokens": (
            "manage API tokens with limited permissions",
            "retinue.cli.tokens:tokens",
        ),
        "doctor": ("check this machine, its configuration and its data", "retinue.cli.doctor:doctor"),
        "models": (
            "list the available models; download a small local one",
            "retinue.cli.models:models",
        ),
        "demo": ("watch agents work with a local model; needs no API key", "retinue.cli.demo:demo"),
        "torture": ("crash-test the runtime", "retinue.cli.torture:torture"),
    },
}
"""Maps group → command → summary, and the module and name to import."""

HELP_ARGUMENTS = ("-h", "--help", "help")


def help_text() -> str:
    """Return the help of the whole command."""
    lines = ["Usage: retinue [--home DIR] [--json] COMMAND …", ""]
    for group, commands in COMMANDS.items():
        lines.append(group)
        lines += [f"  {name:<10}{summary}" for name, (summary, _) in commands.items()]
        lines.append("")
    lines.append('Run "retinue COMMAND --help" for details. --home and --json can also follow the command.')
    return "\n".join(lines)


def main() -> None:
    arguments = sys.argv[1:]
    if not arguments or (len(arguments) == 1 and arguments[0] in HELP_ARGUMENTS):
        sys.stdout.write(help_text() + "\n")
        return
    if arguments == ["--version"]:
        sys.stdout.write(f"retinue {__version__}\n")
        return
    remove_current_folder()
    gc.set_threshold(_GC_THRESHOLD)
    from retinue.cli.main import run_cli

    targets = {name: target for commands in COMMANDS.values() for name, (_, target) in commands.items()}
    sys.exit(run_cli(targets, help_text(), arguments, daemon_path="retinue.server.daemon:serve"))


if __name__ == "__main__":
    main()
