"""Tool choice for a small model, by comparing word probabilities with a baseline.

Asked directly, a model this small names the right tool in four of ten cases. The word whose probability rises
most, compared with an empty request, is right in about nine of ten.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

from msgspec import Struct

from retinue.domain.tool import ToolSpec

ANSWER_WORD = "answer"
"""The word for answering without a tool."""
EMPTY_REQUESTS = ("", "N/A", "[MASK]")
"""Requests without content, to measure how likely each word is in general."""
TOP_TOKENS = 400
"""Number of most likely tokens that are considered."""
MAX_REQUEST_CHARS = 600
MAX_PROMPT_RESULT_CHARS = 90
"""Characters of a request and of a result that the choice is based on."""
EXAMPLES_PER_WORD = 3

QueryLogprobs = Callable[[str, str], Awaitable[Mapping[str, float]]]
"""Query the log probabilities of the next token after the second text.

The first text is the prompt's shared prefix.
"""

QueryPrompt = Callable[[str], Awaitable[Mapping[str, float]]]


class ActionWord(Struct, frozen=True, kw_only=True):
    """A word that stands for tools, of which the first available one is used, with example requests."""

    word: str
    tools: tuple[str, ...]
    examples: tuple[str, ...]


ACTION_WORDS: tuple[ActionWord, ...] = (
    ActionWord(
        word="ask",
        tools=("agent", "spawn_subagent", "agents_message", "sessions_spawn", "PersistentAgent"),
        examples=(
            "Ask one agent about x.md and another agent about y.md",
            "Give a.md and b.md to an agent each",
            "Ask a researcher to look at z.md",
        ),
    ),
    ActionWord(
        word="read",
        tools=("read",),
        examples=("Show me notes.txt", "Read plan.md and tell me what it says", "read a.md"),
    ),
    ActionWord(
        word="list",
        tools=("ls",),
        examples=("Which files are there?", "List the files", "What is in the folder docs?"),
    ),
    ActionWord(
        word="search",
        tools=("grep",),
        examples=("Find the word error in the files", "Where does the word price occur?", "Search for main"),
    ),
    ActionWord(
        word="run",
        tools=("bash",),
        examples=("Run the tests", "Start the program main.py", "Run make"),
    ),
    ActionWord(
        word="write",
        tools=("write",),
        examples=("Save hello to a.txt", "Make a file b.md with a short poem", "Write a report to out.md"),
    ),
)
ANSWER_EXAMPLES = ("Good morning!", "What is the capital of France?", "Tell me a story")
RESULT_EXAMPLES = (
    ("Read plan.md and tell me what it says", "We meet at noon."),
    ("Which files are there?", "a.txt b.txt"),
    ("Ask an agent about k.md", "It is about kites."),
)
"""Requests whose results are already known, to be answered now."""

UNSUITABLE_TOOLS = frozenset(
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
"""Built-in tools not offered to a model this small, which would not know when to use them."""


class ToolChoices(Struct, frozen=True, kw_only=True):
    """The tools to choose from in one conversation, and the examples for the choice.

    The same for all agents with the same tools, so that the model reads it once.
    """

    tool_by_word: Mapping[str, str]
    """From each word to its tool; "" for answering."""
    examples: str
    """Examples for a request without results so far."""
    examples_with_results: str
    """The same, plus examples for a request with results."""


def build_choices(tools: Sequence[ToolSpec]) -> ToolChoices:
    available = {tool.name: tool for tool in tools}
    tool_by_word: dict[str, str] = {}
    examples_by_word: dict[str, tuple[str, ...]] = {}
    for each in ACTION_WORDS:
        if tool_name := next((name for name in each.tools if name in available), ""):
            tool_by_word[each.word], examples_by_word[each.word] = tool_name, each.examples
    known_names = {name for each in ACTION_WORDS for name in each.tools} | UNSUITABLE_TOOLS
    for tool in tools:
        if (
            tool.name not in known_names
            and tool.name not in tool_by_word
            and not tool.name.startswith("system_")
        ):
            tool_by_word[tool.name], examples_by_word[tool.name] = (
                tool.name,
                (_first_sentence(tool.description),),
            )
    tool_by_word[ANSWER_WORD], examples_by_word[ANSWER_WORD] = "", ANSWER_EXAMPLES
    examples = "".join(
        _format_example(requests[index], word)
        for index in range(EXAMPLES_PER_WORD)
        for word, requests in examples_by_word.items()
        if index < len(requests)
    )
    result_examples = "".join(
        _format_example(_append_result(request, result), ANSWER_WORD) for request, result in RESULT_EXAMPLES
    )
    return ToolChoices(
        tool_by_word=tool_by_word, examples=examples, examples_with_results=examples + result_examples
    )


async def choose_tool(
    choices: ToolChoices,
    request: str,
    results: Sequence[str],
    query_logprobs: QueryLogprobs,
    baseline: "LogprobBaseline",
) -> str:
    """Return the name of the chosen tool, or "" to answer."""
    if len(choices.tool_by_word) == 1:
        return ""
    examples = choices.examples_with_results if results else choices.examples
    request_text = _append_result(
        _shorten(request, MAX_REQUEST_CHARS),
        _shorten(" ".join(results), MAX_PROMPT_RESULT_CHARS) if results else "",
    )

    async def query(text: str) -> Mapping[str, float]:
        return await query_logprobs(choices.examples, text)

    logprobs = await measure_word_logprobs(
        _format_question(examples, request_text), choices.tool_by_word, query
    )
    baseline_logprobs = await baseline.measure(examples, choices.tool_by_word, query)
    return choices.tool_by_word[max(logprobs, key=lambda word: logprobs[word] - baseline_logprobs[word])]


class LogprobBaseline:
    """Log probabilities of the words for empty requests, measured once per set of examples."""

    def __init__(self) -> None:
        self._cache: dict[str, Mapping[str, float]] = {}

    async def measure(self, examples: str, words: Iterable[str], query: QueryPrompt) -> Mapping[str, float]:
        if examples not in self._cache:
            words = list(words)
            measurements = [
                await measure_word_logprobs(_format_question(examples, empty_request), words, query)
                for empty_request in EMPTY_REQUESTS
            ]
            self._cache[examples] = {
                word: sum(measurement[word] for measurement in measurements) / len(measurements)
                for word in words
            }
        return self._cache[examples]


async def measure_word_logprobs(prompt: str, words: Iterable[str], query: QueryPrompt) -> dict[str, float]:
    """Measure how likely each word comes next.

    A word is judged by its first token, and words that share it by what follows.
    """
    logprobs = dict.fromkeys(words, 0.0)
    undecided: dict[str, list[str]] = {"": list(logprobs)}
    while undecided:
        prefix, group = undecided.popitem()
        token_logprobs = await query(prompt + prefix)
        floor = min(token_logprobs.values(), default=0.0) - 1
        words_by_token: dict[str, list[str]] = {}
        for word in group:
            rest = f" {word}"[len(prefix) :]
            token = max(
                (each for each in token_logprobs if each and rest.startswith(each)), key=len, default=""
            )
            logprobs[word] += token_logprobs[token] if token else floor
            if token and token != rest:
                words_by_token.setdefault(token, []).append(word)
        undecided |= {prefix + token: shared for token, shared in words_by_token.items() if len(shared) > 1}
    return logprobs


def _format_example(request: str, word: str) -> str:
    return f"Request: {request}\nAction: {word}\n\n"


def _format_question(examples: str, request: str) -> str:
    return f"{examples}Request: {request}\nAction:"


def _append_result(request: str, result: str) -> str:
    return f"{request}\nResult: {result}" if result else request


def _shorten(text: str, limit: int) -> str:
    """Return the text on one line; of a longer text its beginning and its end."""
    single_line = " ".join(text.split())
    return (
        single_line
        if len(single_line) <= limit
        else f"{single_line[: limit // 2]} … {single_line[-limit // 2 :]}"
    )


def _first_sentence(text: str) -> str:
    return " ".join(text.split()).partition(". ")[0][:120]
