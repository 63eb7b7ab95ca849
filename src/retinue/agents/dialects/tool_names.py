"""Native names for the tool names of other programs."""

NATIVE_NAMES: dict[str, str] = {
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
"""Exact spellings only: a user's own tool named `read_mail` or `Task2` matches none of these."""

NARROWER_TOOLS = frozenset(
    ("NotebookRead", "NotebookEdit", "MultiEdit", "BashOutput", "KillShell", "KillBash", "TodoRead")
)
"""Tools that do only a part of their native tool's work: denying one must not deny the native tool."""

_SEARCH_TOOLS = ("grep", "glob", "ls")
_EDIT_TOOLS = ("edit", "write")

TOOLS_BY_FOREIGN_NAME: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("search", "codebase"), _SEARCH_TOOLS),
    **dict.fromkeys(("editFiles", "edit_files", "file_editor"), _EDIT_TOOLS),
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
"""Names that mean native tools only in another program's definition; a user's own tool may have them."""

_TOOL_CATEGORIES = ("search", "read", "edit", "execute", "web", "agent", "todo", "vscode")
"""Tool categories that some programs write before the name: `search/codebase`."""

BUILT_IN_TOOLS = frozenset(
    (
        "read", "write", "edit", "ls", "glob", "grep", "bash", "web_fetch", "todo", "ask_user",
        "request_scope_expansion", "inbox", "PersistentAgent", "agent", "agent_ask", "explore", "plan",
        "agents_message", "agents_list", "spawn_subagent", "request_review", "sessions_spawn", "sessions_list",
        "message_user", "ask_for_help", "submit_for_review",
    )
)  # fmt: skip
"""Tools that a definition may name before the user's own tools are known."""

WRITING_TOOLS = ("write", "edit", "bash")
"""Tools that no read-only agent may use."""


_MCP_PREFIX = "mcp__"
"""Prefix of MCP tool names in other programs."""


def native_tool_name(name: str) -> str:
    """Return the native name of a tool.

    `mcp__github__search` becomes github.search, and `mcp__github` all tools of the server.
    """
    if name.startswith(_MCP_PREFIX) and name != _MCP_PREFIX:
        server, _, tool = name.removeprefix(_MCP_PREFIX).partition("__")
        return f"{server or '*'}.{tool or '*'}"
    return NATIVE_NAMES.get(name, name)


def native_tool_names(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the native names without duplicates, in the order written."""
    return tuple(dict.fromkeys(native_tool_name(name) for name in names))


def tools_for_foreign_name(name: str) -> tuple[str, ...]:
    """Return the native tools for a name from another program; the name itself if there are none."""
    category, slash, inner = name.partition("/")
    if slash and category in _TOOL_CATEGORIES:
        return TOOLS_BY_FOREIGN_NAME.get(inner, (name,))
    return TOOLS_BY_FOREIGN_NAME.get(name) or (native_tool_name(name),)
