"""Which tool, or none: by how likely its word is after examples, beyond how likely it is anyway.

A model this small names the right tool in four of ten cases. Which word it finds likelier than without any request
says more: about nine of ten.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

from retinue.domain.tool import ToolSpec
from retinue.domain.value import value

SPEAK = "answer"
"""The word for no tool at all."""
EMPTY = ("", "N/A", "[MASK]")
"""Requests that ask for nothing: what is likely after them, is likely anyway."""
TOP = 400
"""So many of the likeliest pieces are looked at."""
REQUEST = 600
RESULT = 90
"""Characters of a request, and of a result, that the choice is made by."""
SHOTS = 3

Likelihoods = Callable[[str, str], Awaitable[Mapping[str, float]]]
"""What would come after the second text, piece by piece, by its logarithmic likelihood. The first is its beginning,
which other questions share."""

Asking = Callable[[str], Awaitable[Mapping[str, float]]]


@value
class Word:
    """A word that stands for tools, of which the first that is there is meant, and requests that ask for it."""

    word: str
    tools: tuple[str, ...]
    shots: tuple[str, ...]


WORDS: tuple[Word, ...] = (
    Word(
        word="ask",
        tools=("agent", "spawn_subagent", "agents_message", "sessions_spawn", "PersistentAgent"),
        shots=(
            "Ask one agent about x.md and another agent about y.md",
            "Give a.md and b.md to an agent each",
            "Ask a researcher to look at z.md",
        ),
    ),
    Word(
        word="read",
        tools=("read",),
        shots=("Show me notes.txt", "Read plan.md and tell me what it says", "read a.md"),
    ),
    Word(
        word="list",
        tools=("ls",),
        shots=("Which files are there?", "List the files", "What is in the folder docs?"),
    ),
    Word(
        word="search",
        tools=("grep",),
        shots=("Find the word error in the files", "Where does the word price occur?", "Search for main"),
    ),
    Word(
        word="run",
        tools=("bash",),
        shots=("Run the tests", "Start the program main.py", "Run make"),
    ),
    Word(
        word="write",
        tools=("write",),
        shots=("Save hello to a.txt", "Make a file b.md with a short poem", "Write a report to out.md"),
    ),
)
SPEAKING = ("Good morning!", "What is the capital of France?", "Tell me a story")
SEEN = (
    ("Read plan.md and tell me what it says", "We meet at noon."),
    ("Which files are there?", "a.txt b.txt"),
    ("Ask an agent about k.md", "It is about kites."),
)
"""Requests whose results are there already: now they are answered."""

BEYOND = frozenset(
    [
        "agent_ask",
        "agents_list",
        "sessions_list",
        "explore",
        "plan",
        "request_review",
        "inbox",
        "ask_user",
        "request_scope_expansion",
        "edit",
        "glob",
        "web_fetch",
        "todo",
    ]
)
"""Built-in tools that so small a model is not offered: it would not know when."""


@value
class Menu:
    """What can be chosen in one conversation, and the examples it is chosen by. It is the same for all agents that
    have the same tools, so the model reads it once."""

    tools: Mapping[str, str]
    """Word → the tool it means; the word for speaking means none."""
    fresh: str
    """Examples for a request nothing was done for yet."""
    seen: str
    """The same, and some more for one that has results."""


def menu(tools: Sequence[ToolSpec]) -> Menu:
    there = {tool.name: tool for tool in tools}
    found: dict[str, str] = {}
    shots: dict[str, tuple[str, ...]] = {}
    for each in WORDS:
        if meant := next((name for name in each.tools if name in there), ""):
            found[each.word], shots[each.word] = meant, each.shots
    known = {name for each in WORDS for name in each.tools} | BEYOND
    for tool in tools:
        if tool.name not in known and tool.name not in found and not tool.name.startswith("system_"):
            found[tool.name], shots[tool.name] = tool.name, (_first_sentence(tool.description),)
    found[SPEAK], shots[SPEAK] = "", SPEAKING
    fresh = "".join(
        _example(requests[shot], word)
        for shot in range(SHOTS)
        for word, requests in shots.items()
        if shot < len(requests)
    )
    seen = "".join(_example(_with(asked, result), SPEAK) for asked, result in SEEN)
    return Menu(tools=found, fresh=fresh, seen=fresh + seen)


async def chosen(menu: Menu, request: str, results: Sequence[str], ask: Likelihoods, usual: "Usual") -> str:
    """The name of a tool; empty: speak."""
    if len(menu.tools) == 1:
        return ""
    examples = menu.seen if results else menu.fresh
    said = _with(_short(request, REQUEST), _short(" ".join(results), RESULT) if results else "")

    async def asked(text: str) -> Mapping[str, float]:
        return await ask(menu.fresh, text)

    found = await likely(_question(examples, said), menu.tools, asked)
    anyway = await usual.after(examples, menu.tools, asked)
    return menu.tools[max(found, key=lambda word: found[word] - anyway[word])]


class Usual:
    """How likely each word is when nothing is asked: found once for the same examples."""

    def __init__(self) -> None:
        self._known: dict[str, Mapping[str, float]] = {}

    async def after(self, examples: str, words: Iterable[str], ask: Asking) -> Mapping[str, float]:
        if examples not in self._known:
            words = list(words)
            each = [await likely(_question(examples, empty), words, ask) for empty in EMPTY]
            self._known[examples] = {word: sum(one[word] for one in each) / len(each) for word in words}
        return self._known[examples]


async def likely(prompt: str, words: Iterable[str], ask: Asking) -> dict[str, float]:
    """How likely each word comes next. A word is judged by its first piece; words that share it, by what follows."""
    found = dict.fromkeys(words, 0.0)
    open_: dict[str, list[str]] = {"": list(found)}
    while open_:
        begun, group = open_.popitem()
        pieces = await ask(prompt + begun)
        unlikely = min(pieces.values(), default=0.0) - 1
        sharing: dict[str, list[str]] = {}
        for word in group:
            rest = f" {word}"[len(begun) :]
            piece = max((each for each in pieces if each and rest.startswith(each)), key=len, default="")
            found[word] += pieces[piece] if piece else unlikely
            if piece and piece != rest:
                sharing.setdefault(piece, []).append(word)
        open_ |= {begun + piece: several for piece, several in sharing.items() if len(several) > 1}
    return found


def _example(request: str, word: str) -> str:
    return f"Request: {request}\nAction: {word}\n\n"


def _question(examples: str, request: str) -> str:
    return f"{examples}Request: {request}\nAction:"


def _with(request: str, result: str) -> str:
    return f"{request}\nResult: {result}" if result else request


def _short(text: str, limit: int) -> str:
    """On one line; of a longer text its beginning and its end."""
    flat = " ".join(text.split())
    return flat if len(flat) <= limit else f"{flat[: limit // 2]} … {flat[-limit // 2 :]}"


def _first_sentence(text: str) -> str:
    return " ".join(text.split()).partition(". ")[0][:120]
