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
    "KillBash": "bash",
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

_FINDING = ("grep", "glob", "ls")
_CHANGING = ("edit", "write")

BORROWED: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("search", "codebase"), _FINDING),
    **dict.fromkeys(("editFiles", "edit_files", "file_editor"), _CHANGING),
    **dict.fromkeys(
        ("read_file", "readFile", "read_files", "read_many_files", "view_file", "file_read", "view"), ("read",)
    ),
    **dict.fromkeys(
        ("write_file", "write_to_file", "create_file", "createFile", "file_write", "new_file"), ("write",)
    ),
    **dict.fromkeys(
        (
            "edit_file", "replace", "replace_in_file", "replace_string_in_file", "str_replace", "apply_diff",
            "apply_patch", "patch", "insert_content", "search_and_replace", "multiedit", "file_edit",
        ),
        ("edit",),
    ),
    **dict.fromkeys(
        (
            "grep_search", "search_file_content", "search_files", "codebase_search", "semantic_search", "textSearch",
            "usages", "list_code_usages",
        ),
        ("grep",),
    ),
    **dict.fromkeys(("file_search", "fileSearch", "find_by_name", "find", "glob_search"), ("glob",)),
    **dict.fromkeys(("list_dir", "list_directory", "listDirectory", "list_files", "list"), ("ls",)),
    **dict.fromkeys(
        (
            "run_shell_command", "run_command", "execute_command", "run_in_terminal", "run_terminal_cmd",
            "runCommands", "runInTerminal", "runTests", "runTasks", "getTerminalOutput", "get_terminal_output",
            "terminalLastCommand", "execute", "exec", "shell", "terminal",
        ),
        ("bash",),
    ),
    **dict.fromkeys(
        ("fetch", "web", "fetch_content", "fetch_webpage", "read_url_content", "webFetch"), ("web_fetch",)
    ),
    **dict.fromkeys(("todos", "write_todos", "update_todo_list"), ("todo",)),
    **dict.fromkeys(("question", "ask_followup_question", "askQuestions"), ("ask_user",)),
    **dict.fromkeys(("task", "new_task", "runSubagent"), ("agent",)),
}  # fmt: skip
"""Names that only mean our tools in a definition of another program: here a tool of one's own may be called so."""

_SHELVES = ("search", "read", "edit", "execute", "web", "agent", "todo", "vscode")
"""Some write the kind of a tool before its name: `search/codebase`."""

BUILT_IN = frozenset(
    (
        "read", "write", "edit", "ls", "glob", "grep", "bash", "web_fetch", "todo", "ask_user",
        "request_scope_expansion", "inbox", "PersistentAgent", "agent", "agent_ask", "explore", "plan",
        "agents_message", "agents_list", "spawn_subagent", "request_review", "sessions_spawn", "sessions_list",
        "message_user", "ask_for_help", "submit_for_review",
    )
)  # fmt: skip
"""Tools that a definition may name before any of the user's own are known."""

WRITING = ("write", "edit", "bash")
"""What no read-only agent may have."""


_SERVED = "mcp__"
"""How others begin the name of a tool that a server brings."""


def ours(name: str) -> str:
    """`mcp__github__search` is github.search here, and `mcp__github` is all that the server brings."""
    if name.startswith(_SERVED) and name != _SERVED:
        server, _, tool = name.removeprefix(_SERVED).partition("__")
        return f"{server or '*'}.{tool or '*'}"
    return OURS.get(name, name)


def translated(names: tuple[str, ...]) -> tuple[str, ...]:
    """Our names, each once, in the order they were written."""
    return tuple(dict.fromkeys(ours(name) for name in names))


def borrowed(name: str) -> tuple[str, ...]:
    """Our tools for a name in a definition of another program; the name itself where we have none."""
    shelf, slash, inner = name.partition("/")
    if slash and shelf in _SHELVES:
        return BORROWED.get(inner, (name,))
    return BORROWED.get(name) or (ours(name),)
