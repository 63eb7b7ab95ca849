"""What other programs call the tools that Retinue has under its own names."""

OURS: dict[str, str] = {
    "Read": "read",
    "NotebookRead": "read",
    "Write": "write",
    "Edit": "edit",
    "MultiEdit": "edit",
    "NotebookEdit": "edit",
    "Glob": "glob",
    "Grep": "grep",
    "LS": "ls",
    "Bash": "bash",
    "BashOutput": "bash",
    "KillShell": "bash",
    "WebFetch": "web_fetch",
    "webfetch": "web_fetch",
    "Task": "agent",
    "Agent": "agent",
    "TodoWrite": "todo",
    "TodoRead": "todo",
    "todowrite": "todo",
    "todoread": "todo",
    "AskUserQuestion": "ask_user",
}
"""Spelled exactly so: a tool of one's own named `read_mail` or `Task2` is none of these."""

BUILT_IN = frozenset(
    (
        "read", "write", "edit", "ls", "glob", "grep", "bash", "web_fetch", "todo", "ask_user",
        "request_scope_expansion", "inbox", "PersistentAgent", "agent", "agent_ask", "explore", "plan",
        "agents_message", "agents_list", "spawn_subagent", "request_review", "sessions_spawn", "sessions_list",
        "message_user", "ask_for_help", "submit_for_review",
    )
)  # fmt: skip
"""Tools that a definition may name before any of the user's own are known."""

READ_ONLY = ("read", "ls", "glob", "grep")
WRITING = ("write", "edit", "bash")
"""What no read-only agent may have."""


def ours(name: str) -> str:
    return OURS.get(name, name)


def translated(names: tuple[str, ...]) -> tuple[str, ...]:
    """Our names, each once, in the order they were written."""
    return tuple(dict.fromkeys(ours(name) for name in names))
