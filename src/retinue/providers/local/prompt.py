"""Prompts for a small model: the task, its results, and a few earlier messages."""

import json
import re
from collections.abc import Sequence
from typing import Any, cast

from msgspec import Struct

from retinue.domain.system_prompt import SUBAGENT_PREAMBLE, first_message
from retinue.domain.transcript import Entry, Message, Notice, ToolCall, ToolResult

MAX_PROMPT_BYTES = 2400
"""Maximum bytes of conversation in a prompt.

Longer prompts take minutes to process and do not improve the answer.
"""
MAX_SYSTEM_BYTES = 240
MAX_REQUEST_BYTES = 800
DEFAULT_SYSTEM_PROMPT = "You are a helpful assistant."
ANSWER_EXAMPLES = """\
Request: read hens.md
Result: # Hens Hens lay an egg a day in spring. They sleep on perches and eat corn, which keeps them warm in winter.
Answer: Hens lay an egg a day in spring; they sleep on perches and eat corn.

Request: Which files are there?
Result: notes.txt plan.md src/
Answer: There are notes.txt, plan.md and the folder src.

Request: Ask a scout about clocks.md and a scout about ships.md.
Result: Clocks count the swings of a weight. / Ships float because they push water aside.
Answer: Clocks count the swings of a weight, and ships float because they push water aside.

"""
"""Examples of how to report results."""
MAX_RESULTS = 6
PER_RESULT_REQUEST = "Say what this says."
"""The request for each result if there are several."""


class ConversationState(Struct, frozen=True, kw_only=True):
    """The state of a conversation before a turn."""

    request: str
    """The last request."""
    results: tuple[str, ...]
    """Results of the calls made since."""
    made_calls: frozenset[tuple[str, str]]
    """Tool and arguments of those calls."""
    full_text: str
    """All texts, in order."""


def conversation_state(entries: Sequence[Entry]) -> ConversationState:
    request, results, texts = "", list[str](), list[str]()
    made_calls: set[tuple[str, str]] = set()
    for entry in entries:
        if isinstance(entry, ToolCall):
            made_calls.add((entry.tool, entry.args))
            continue
        texts.append(entry.text)
        if isinstance(entry, ToolResult):
            results.append(unwrap_result(entry.text) if entry.ok else f"error: {unwrap_result(entry.text)}")
        elif isinstance(entry, Notice):
            results.append(entry.text)
        elif entry.role == "user":
            request = entry.text.removeprefix(first_message(""))
            results.clear()
            made_calls.clear()
    return ConversationState(
        request=request, results=tuple(results), made_calls=frozenset(made_calls), full_text="\n".join(texts)
    )


def unwrap_result(text: str) -> str:
    """Return a result without its envelope: of a report only its text, without remarks in brackets."""
    if text.startswith("{"):
        try:
            report: Any = json.loads(text)
        except ValueError:
            report = None
        fields = cast("dict[str, Any]", report) if isinstance(report, dict) else {}
        text = next((fields[key] for key in _TEXT_KEYS if isinstance(fields.get(key), str)), text)
    if match := _FENCE.search(text):
        text = match[2]
    return _REMARK.sub("", text).strip()


_TEXT_KEYS = ("result", "summary", "text", "response", "error")
_FENCE = re.compile(r"^<<<(\w+)\n(.*)\n\1>>>$", re.MULTILINE | re.DOTALL)
_REMARK = re.compile(r"^\[[^\n]*\]$", re.MULTILINE)


def earlier_messages(entries: Sequence[Entry]) -> list[Message]:
    """Return the messages before the last request, without results."""
    messages = [entry for entry in entries if isinstance(entry, Message) and entry.text.strip()]
    last = max((index for index, each in enumerate(messages) if each.role == "user"), default=0)
    return messages[:last]


class Prompt(Struct, frozen=True, kw_only=True):
    """A prompt and its sampling settings."""

    text: str
    shared_prefix: str
    """The beginning that this prompt shares with other prompts."""
    stop_strings: tuple[str, ...]
    repeat_penalty: float
    """Penalty for repeated words.

    A small model repeats itself without the penalty, and deviates from the results it reports with it.
    """
    omitted_chars: int
    """Characters of the conversation left out of the prompt."""


def build_prompts(system: str, entries: Sequence[Entry]) -> list[tuple[Prompt, ...]]:
    """Return the prompts to try in order, each in parts.

    First the results are reported in the style of the examples, which keeps to them. If there are none, or no
    text comes of that, the answer is free.
    """
    state = conversation_state(entries)
    chat = (chat_prompt(system, state, earlier_messages(entries)),)
    return [result_prompts(state), chat] if state.results else [chat]


def result_prompts(state: ConversationState) -> tuple[Prompt, ...]:
    """Return one prompt per result: given all at once, the model would report only the last."""
    request, omitted_chars = shorten_middle(" ".join(state.request.split()), MAX_REQUEST_BYTES)
    results = state.results[-MAX_RESULTS:]
    omitted_chars += sum(map(len, state.results[:-MAX_RESULTS]))
    max_bytes = (MAX_PROMPT_BYTES - len(request.encode())) // len(results)
    prompts: list[Prompt] = []
    for each in results:
        result, omitted = shorten_middle(" ".join(each.split()), max_bytes)
        prompt = f"{ANSWER_EXAMPLES}Request: {request if len(results) == 1 else PER_RESULT_REQUEST}\nResult: {result}\nAnswer:"
        prompts.append(
            Prompt(
                text=prompt,
                shared_prefix=ANSWER_EXAMPLES,
                stop_strings=("\n",),
                repeat_penalty=1.0,
                omitted_chars=omitted_chars + omitted,
            )
        )
        omitted_chars = 0
    return tuple(prompts)


def chat_prompt(system: str, state: ConversationState, earlier: Sequence[Message]) -> Prompt:
    request, omitted_chars = shorten_middle(state.request, MAX_REQUEST_BYTES)
    remaining_bytes = MAX_PROMPT_BYTES - len(request.encode())
    results, omitted = shorten_middle("\n\n".join(state.results), remaining_bytes // 2)
    omitted_chars += omitted
    remaining_bytes -= len(results.encode())
    messages: list[str] = []
    for each in reversed(earlier):
        text = _format_message("assistant" if each.role == "agent" else "user", each.text)
        if len(text.encode()) > remaining_bytes:
            omitted_chars += len(each.text)
            remaining_bytes = 0
        else:
            messages.insert(0, text)
            remaining_bytes -= len(text.encode())
    system_prompt = system.removeprefix(SUBAGENT_PREAMBLE).strip().partition("\n\n")[0]
    head = _format_message(
        "system", shorten_middle(system_prompt or DEFAULT_SYSTEM_PROMPT, MAX_SYSTEM_BYTES)[0]
    )
    last = _format_message("user", f"{request}\n\n{results}".strip())
    return Prompt(
        text=f"{head}{''.join(messages)}{last}<|im_start|>assistant\n",
        shared_prefix="",
        stop_strings=("<|im_end|>", "<|im_start|>"),
        repeat_penalty=1.1,
        omitted_chars=omitted_chars,
    )


def shorten_middle(text: str, max_bytes: int) -> tuple[str, int]:
    """Shorten a text in the middle to a number of bytes; also return the number of omitted characters."""
    text = text.replace("<|im_", "<| im_")  # other texts must not start a chat turn
    data = text.encode()
    if len(data) <= max_bytes:
        return text, 0
    half = max(0, max_bytes // 2 - 12)
    head, tail = data[:half].decode(errors="ignore"), data[len(data) - half :].decode(errors="ignore")
    omitted = len(text) - len(head) - len(tail)
    return f"{head} [… {omitted} characters left out …] {tail}", omitted


def _format_message(role: str, text: str) -> str:
    return f"<|im_start|>{role}\n{text.replace('<|im_', '<| im_')}<|im_end|>\n"
