"""The table of commands; each command is imported on use, so that the help needs only this file."""

import gc
import sys

from retinue import __version__

_GC_THRESHOLD = 100_000
"""New objects before a garbage collection. Commands load and list much without cycles, and end soon."""

COMMANDS = {
    "Talk": {
        "run": ("one task for an agent; waits and streams the answer", "retinue.cli.run:run"),
        "chat": ("talk with an agent, line by line", "retinue.cli.chat:chat"),
        "send": ("one more message to a session", "retinue.cli.run:send"),
        "spawn": ("a child of a session, with its own paths", "retinue.cli.run:spawn"),
        "wait": ("until runs have ended", "retinue.cli.wait:wait"),
        "attach": ("follow what happens in a session", "retinue.cli.attach:attach"),
    },
    "Conversations": {
        "sessions": (
            "list, show, open, branch, clear, delete, rename, pin, unpin, export",
            "retinue.cli.sessions:sessions",
        ),
    },
    "Runs": {
        "runs": ("list, show, cancel, interrupt, detach, resume, history", "retinue.cli.runs:runs"),
        "subagent": ("the same as runs", "retinue.cli.runs:runs"),
        "watch": (
            "SESSION, list: an agent hears what is said there, and speaks up",
            "retinue.cli.watch:watch",
        ),
        "unwatch": ("SESSION: send those away who watch it", "retinue.cli.watch:unwatch"),
        "inbox": (
            "what agents that were handed work are at, and what they left",
            "retinue.cli.inbox:inbox",
        ),
    },
    "Agents": {
        "agents": ("list, show, check, import, delete", "retinue.cli.agents:agents"),
        "approvals": (
            "list, show, answer: what agents ask before they act",
            "retinue.cli.approvals:approvals",
        ),
        "scope": ("show, test: what a session may touch, and why", "retinue.cli.scope:scope"),
        "trust": (
            "PATH, list, remove: which projects may add agents and skills of their own",
            "retinue.cli.trust:trust",
        ),
        "tools": ("list, with what each agent may use and why", "retinue.cli.tools:tools"),
        "mcp": (
            "list, show, trust, distrust: servers that bring tools",
            "retinue.cli.mcp:mcp",
        ),
        "skills": (
            "list, show: commands with a text that says how, and who has them",
            "retinue.cli.skills:skills",
        ),
        "pool": (
            "list, stats, clear: agents that others can still ask more",
            "retinue.cli.pool:pool",
        ),
    },
    "Machine": {
        "serve": ("a daemon that works runs in the background", "retinue.cli.serve:serve"),
        "tokens": (
            "add, list, remove: keys for programs that may do less",
            "retinue.cli.tokens:tokens",
        ),
        "doctor": ("what is well, what is not, and what to do", "retinue.cli.doctor:doctor"),
        "models": (
            "list, pull: which can be asked, and a small one for this machine",
            "retinue.cli.models:models",
        ),
        "demo": ("agents at work on this machine; needs no key", "retinue.cli.demo:demo"),
        "torture": ("kill agents in every way there is, and see", "retinue.cli.torture:torture"),
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
    lines.append("retinue COMMAND --help says more. --home and --json may also stand after the command.")
    return "\n".join(lines)


def main() -> None:
    arguments = sys.argv[1:]
    if not arguments or (len(arguments) == 1 and arguments[0] in HELP_ARGUMENTS):
        sys.stdout.write(help_text() + "\n")
        return
    if arguments == ["--version"]:
        sys.stdout.write(f"retinue {__version__}\n")
        return
    gc.set_threshold(_GC_THRESHOLD)
    from retinue.cli.main import run_cli

    targets = {name: target for commands in COMMANDS.values() for name, (_, target) in commands.items()}
    sys.exit(run_cli(targets, help_text(), arguments, daemon_path="retinue.server.daemon:serve"))


if __name__ == "__main__":
    main()
