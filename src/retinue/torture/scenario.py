"""The agent tree under test: its agents, their tasks, the fake model's replies, and what must come of them."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

ScriptedCall = tuple[str, Mapping[str, Any]]

MARK_CALL: ScriptedCall = ("mark", {})
SIGN_CALL: ScriptedCall = ("sign", {})
_POSITION_PATTERN = re.compile(r"\[\[([0-9A-Za-z./-]+)\]\]")
_TOKEN_PATTERN = re.compile(r"word\(([0-9A-Za-z./-]+)#(\d+)\.(\d+)\)")

ReplyToken = tuple[str, int, int]
"""Identifies a reply: the position of the agent, the turn, and the attempt."""


NOTE_FILE = "note.txt"
"""File that an agent writes in a worktree of its own."""
COMMANDS_FILE = "commands.log"
"""File in the shared workspace to which shell commands append a line each."""
COMMAND_SCRIPT = "step.sh"
COMMAND_SCRIPT_TEXT = f'sleep 0.5\necho "$1" >> {COMMANDS_FILE}\n'
FULL_TREE = "deep"
"""The largest tree; it needs git, and a sandbox for commands."""
BARE_TREE = "bare"
"""The same tree without worktree and commands."""
LONG_TREE = "long"
"""One agent with a long task."""


def agent_definitions() -> list[dict[str, Any]]:
    """Return the agents, each with all spawning tools listed, as agents below the top level must."""
    tools = ["mark", "sign", "agent", "spawn_subagent", "sessions_spawn", "PersistentAgent"]
    shared = [
        {"name": name, "description": "Works.", "prompt": f"You are {name}.", "tools": tools}
        for name in ("lead", "one", "two", "three", "four")
    ]
    shell = {"tools": [*tools, "bash"], "shell_commands": {"allow": ["sh"]}}
    worktree = {"tools": ["write"], "workspace": {"isolation": "sandbox", "writable": True}}
    return [
        *shared,
        {"name": "five", "description": "Works.", "prompt": "You are five."} | shell,
        {"name": "six", "description": "Works.", "prompt": "You are six."} | worktree,
    ]


def note_text(position: str) -> str:
    return f"note of {position}\n"


def expected_calls(tree: str) -> dict[str, list[str]]:
    """Return the tools that must be called at each position of a tree, in order."""
    found: dict[str, list[str]] = {}
    pending = [f"{tree}/lead"]
    while pending:
        position = pending.pop()
        turns = (scripted_calls(position, turn) for turn in range(len(_script(position))))
        calls = [call for turn in turns for call in turn]
        found[position] = [tool for tool, _ in calls]
        pending += [child for _, args in calls if (child := _child_position(args))]
    return found


def expected_reply_counts(tree: str) -> dict[str, tuple[int, int]]:
    """Return how many replies each position of a tree must have, at least and at most.

    Each child in the background may end after its parent's last reply, and then asks for one more.
    """
    counts: dict[str, tuple[int, int]] = {}
    for position in expected_calls(tree):
        script = _script(position)
        background = sum(
            tool == "sessions_spawn" or args.get("returnMode") == "background"
            for calls in script
            for tool, args in calls
        )
        counts[position] = (len(script) + 1, len(script) + 1 + background)
    return counts


def _child_position(args: Mapping[str, Any]) -> str | None:
    tasks = (position_in(each) for each in args.values() if isinstance(each, str))
    return next(filter(None, tasks), None)


def _script(position: str) -> Sequence[Sequence[ScriptedCall]]:
    tree, _, path = position.partition("/")
    return _SCRIPTS[tree.split("-")[0]].get(path.rpartition(".")[2], ())


def task_text(position: str) -> str:
    """Return a task that names its position in the tree.

    The model identifies the agent by it, in whichever process the agent runs.
    """
    return f"Do your part. [[{position}]]"


def position_in(text: str) -> str | None:
    match = _POSITION_PATTERN.search(text)
    return match and match.group(1)


def reply_token(position: str, turn: int, attempt: int) -> str:
    """Return the text that identifies one reply wherever it is quoted later."""
    return f"word({position}#{turn}.{attempt})"


def reply_tokens_in(text: str) -> list[ReplyToken]:
    return [(position, int(turn), int(attempt)) for position, turn, attempt in _TOKEN_PATTERN.findall(text)]


def scripted_calls(position: str, turn: int) -> Sequence[ScriptedCall]:
    """Return the calls the model makes at this position and turn; none for its last reply."""
    script = _script(position)
    if turn >= len(script):
        return ()
    return [(tool, _fill_tasks(args, position)) for tool, args in script[turn]]


def _fill_tasks(args: Mapping[str, Any], position: str) -> dict[str, Any]:
    """Replace each `@x` by the task for the position x below this one, and `%` by a text that names this one."""

    def fill(value: Any) -> Any:
        if not isinstance(value, str):
            return value
        if value.startswith("@"):
            return task_text(f"{position}.{value[1:]}")
        return value.replace("%note", note_text(position)).replace("%position", position)

    return {name: fill(value) for name, value in args.items()}


def _agent_call(name: str, label: str) -> ScriptedCall:
    return ("agent", {"agent_name": name, "task_prompt": f"@{label}"})


def _subagent_call(name: str, label: str, mode: str = "blocking") -> ScriptedCall:
    return ("spawn_subagent", {"agentId": name, "prompt": f"@{label}", "returnMode": mode, "label": label})


def _session_spawn_call(label: str) -> ScriptedCall:
    return ("sessions_spawn", {"task": f"@{label}", "label": label})


def _persistent_agent_call(name: str, label: str) -> ScriptedCall:
    return ("PersistentAgent", {"preset": name, "description": label, "prompt": f"@{label}"})


_WRITE_CALL: ScriptedCall = ("write", {"path": NOTE_FILE, "content": "%note"})


def _bash_call(label: str) -> ScriptedCall:
    return ("bash", {"command": f"sh {COMMAND_SCRIPT} %position-{label}"})


LONG_TURNS = 16
"""Turns of the agent that is long enough to be killed several times, and to make progress in between."""
_LONG_SCRIPT: Sequence[Sequence[ScriptedCall]] = [
    [("mark", {"label": f"{turn}"})] for turn in range(LONG_TURNS)
]

_DEEP: Mapping[str, Sequence[Sequence[ScriptedCall]]] = {
    "lead": [[_agent_call("one", "one"), _session_spawn_call("worker")], [MARK_CALL]],
    "worker": _LONG_SCRIPT,
    "one": [[MARK_CALL], [_subagent_call("two", "two")]],
    "two": [
        [_persistent_agent_call("three", "three"), _subagent_call("five", "five", "background")],
        [MARK_CALL],
    ],
    "five": [[MARK_CALL]],
    "three": [[_agent_call("four", "four")]],
    "four": [
        [MARK_CALL, MARK_CALL],
        [SIGN_CALL],
        [SIGN_CALL],
    ],  # the second one requires an approval of its own
}

_SCRIPTS: Mapping[str, Mapping[str, Sequence[Sequence[ScriptedCall]]]] = {
    # Four levels through every delegation tool, two of them in the background, with an approval at the bottom.
    BARE_TREE: _DEEP,
    FULL_TREE: {
        **_DEEP,
        "one": [[MARK_CALL], [_subagent_call("two", "two")], [_subagent_call("six", "six")]],
        "five": [[_bash_call("a")], [_bash_call("b")], [MARK_CALL], [_bash_call("c")]],
        "six": [[_WRITE_CALL]],
    },
    # The same depth without concurrency, so that each run makes the same calls in the same order.
    "chain": {
        "lead": [[_agent_call("one", "one")], [_session_spawn_call("worker")]],
        "worker": [[MARK_CALL]],
        "one": [[MARK_CALL], [_subagent_call("two", "two")]],
        "two": [[_agent_call("three", "three")]],
        "three": [[_subagent_call("four", "four")]],
        "four": [[MARK_CALL]],
    },
    LONG_TREE: {"lead": _LONG_SCRIPT},
    # A parent that waits for a background worker.
    "pair": {"lead": [[_session_spawn_call("worker")]], "worker": [[MARK_CALL]]},
}
