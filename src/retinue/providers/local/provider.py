"""Provider for the small local model: chooses a tool and its arguments, or answers."""

import asyncio
import json
import os
from collections.abc import Callable, Mapping
from contextlib import aclosing, suppress
from pathlib import Path

from retinue.domain.model_turn import Model, ModelReply, ModelRequest, ReplyDelta, StopReason, UnsavedToolCall
from retinue.domain.run import Reason, Usage
from retinue.domain.tool import ToolSpec
from retinue.domain.transcript import public_entry_id
from retinue.errors import ModelFailed
from retinue.providers.interface import ProviderServices, ProviderSettings
from retinue.providers.local.model_process import ModelProcess, model_server_command
from retinue.providers.local.prompt import Prompt, build_prompts, conversation_state
from retinue.providers.local.tool_arguments import MAX_TOKENS, build_argument_prompt, parse_calls
from retinue.providers.local.tool_choice import TOP_TOKENS, LogprobBaseline, build_choices, choose_tool
from retinue.providers.local.weights import get_weights, weights_path
from retinue.providers.request_encoding import invalid_arguments_reason

LOADING_MESSAGE = "loading the demonstration model"
DEFAULT_MAX_TOKENS = 100
"""Tokens of an answer, or of each part of it, if the definition sets no limit."""
PART_SEPARATOR = "\n\n"
MAX_CONCURRENT_TURNS = 3
"""Turns taken concurrently; more would only slow each other down."""
KEEPALIVE_INTERVAL_S = 20.0
"""Interval at which a waiting turn reports that it is alive."""


def create_provider(model: Model, settings: ProviderSettings, _services: ProviderServices) -> "LocalProvider":
    weights = get_weights(model.name)
    process = ModelProcess(model_server_command(weights_path(settings.models_dir, weights), weights.sha256))
    return LocalProvider(weights.name, process, log_path=settings.env.get("RETINUE_LOCAL_LOG", ""))


class LocalProvider:
    """Provider for a local model.

    Its tool calls go through the same permission checks as those of any other model.
    """

    def __init__(self, name: str, process: ModelProcess, *, log_path: str = "") -> None:
        self._model_name = f"local:{name}"
        self._process = process
        self._baseline = LogprobBaseline()
        self._turn_slots = asyncio.Semaphore(MAX_CONCURRENT_TURNS)
        self._log_path = log_path
        """A file that gets one line before each request."""

    async def request_reply(
        self, request: ModelRequest, on_delta: Callable[[ReplyDelta], None]
    ) -> ModelReply:
        await self._acquire_slot(on_delta)
        try:
            return await self._build_reply(request, on_delta)
        finally:
            self._turn_slots.release()

    async def _acquire_slot(self, on_delta: Callable[[ReplyDelta], None]) -> None:
        """Wait for a free slot.

        Send keep-alive deltas meanwhile, so that the wait does not time out.
        """
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(KEEPALIVE_INTERVAL_S):
                    await self._turn_slots.acquire()
                    return
            on_delta(ReplyDelta(tool_arguments="…"))

    async def _build_reply(self, request: ModelRequest, on_delta: Callable[[ReplyDelta], None]) -> ModelReply:
        if self._log_path:
            _log_request(self._log_path, request)
        queries = _ModelQueries(self._process, on_delta)
        state = conversation_state(request.entries)
        tool = await choose_tool(
            build_choices(request.tools), state.request, state.results, queries.query_logprobs, self._baseline
        )
        if tool:
            spec = next(each for each in request.tools if each.name == tool)
            tool_calls = await queries.generate_calls(spec, state.request, state.full_text)
            # The model tends to repeat calls whose results it already has.
            if new_calls := tuple(
                call for call in tool_calls if (call.tool, call.arguments) not in state.made_calls
            ):
                return ModelReply(
                    text="",
                    tool_calls=new_calls,
                    model=self._model_name,
                    usage=queries.usage,
                    stop_reason=StopReason.TOOLS,
                )
        return await self._generate_answer(queries, request)

    async def _generate_answer(self, queries: "_ModelQueries", request: ModelRequest) -> ModelReply:
        texts, stop, omitted_chars = list[str](), StopReason.END, 0
        max_tokens = request.model.max_tokens or DEFAULT_MAX_TOKENS
        for prompts in build_prompts(request.system, request.entries):
            for prompt in prompts:
                text, stop = await queries.generate_text(
                    prompt, max_tokens, request.model.temperature, is_continuation=bool(texts)
                )
                texts += [text] if text else []
            omitted_chars = sum(prompt.omitted_chars for prompt in prompts)
            if texts:
                break
        text = PART_SEPARATOR.join(texts)
        notice = (
            f"the demonstration model did not read {omitted_chars:,} characters of the conversation"
            if omitted_chars
            else ""
        )
        return ModelReply(
            text=text, model=self._model_name, usage=queries.usage, stop_reason=stop, truncation_notice=notice
        )

    async def close(self) -> None:
        await self._process.close()


def _log_request(log_path: str, request: ModelRequest) -> None:
    """Log process, agent and last entry, so that repeated requests can be counted from outside."""
    last_entry = public_entry_id(request.entries[-1]) if request.entries else ""
    line = json.dumps({"pid": os.getpid(), "agent": request.agent_name, "after": last_entry})
    with Path(log_path).open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")


class _ModelQueries:
    """The queries of one turn to the model, and their token usage."""

    def __init__(self, process: ModelProcess, on_delta: Callable[[ReplyDelta], None]) -> None:
        self._process = process
        self._on_delta = on_delta
        self._reported_tenths = -1
        self.usage = Usage()

    async def query_logprobs(self, shared_prefix: str, prompt: str) -> Mapping[str, float]:
        result = await self._process.query_logprobs(prompt, TOP_TOKENS, shared_prefix, self._report_loading)
        self._add_usage(result.input_tokens, result.output_tokens)
        self._on_delta(ReplyDelta(tool_arguments="?"))
        return result.logprobs

    async def generate_calls(
        self, tool: ToolSpec, request: str, full_text: str
    ) -> tuple[UnsavedToolCall, ...]:
        argument_prompt = build_argument_prompt(tool, request, full_text)
        texts: list[str] = []
        query = {"prompt": argument_prompt.text, "max_tokens": MAX_TOKENS, "grammar": argument_prompt.grammar}
        async with aclosing(
            self._process.generate_text(query, argument_prompt.shared_prefix, self._report_loading)
        ) as chunks:
            async for chunk in chunks:
                texts.append(chunk.text)
                self._add_usage(chunk.input_tokens, chunk.output_tokens)
                self._on_delta(ReplyDelta(tool_arguments=chunk.text))
        text = "".join(texts)
        if arguments_list := parse_calls(text):
            return tuple(
                UnsavedToolCall(
                    tool=tool.name, arguments=arguments, invalid_reason=invalid_arguments_reason(arguments)
                )
                for arguments in arguments_list
            )
        return (
            UnsavedToolCall(
                tool=tool.name, arguments=text.strip(), invalid_reason="its arguments were truncated"
            ),
        )

    async def generate_text(
        self, prompt: Prompt, max_tokens: int, temperature: float | None, *, is_continuation: bool
    ) -> tuple[str, StopReason]:
        """Generate text; if `is_continuation`, separate it from the text before."""
        texts: list[str] = []
        end_reason: str | None = None
        query = {
            "prompt": prompt.text,
            "max_tokens": max_tokens,
            "temperature": temperature or 0,
            "repeat_penalty": prompt.repeat_penalty,
            "stop_strings": prompt.stop_strings,
        }
        async with aclosing(
            self._process.generate_text(query, prompt.shared_prefix, self._report_loading)
        ) as chunks:
            async for chunk in chunks:
                end_reason = chunk.end_reason
                self._add_usage(chunk.input_tokens, chunk.output_tokens)
                if text := chunk.text if texts else chunk.text.lstrip():
                    self._on_delta(
                        ReplyDelta(text=PART_SEPARATOR + text if is_continuation and not texts else text)
                    )
                    texts.append(text)
        text = "".join(texts).strip()
        if not end_reason:
            raise ModelFailed("the local model ended without a stop reason", reason=Reason.INCOMPLETE)
        return text, StopReason.LENGTH if end_reason == "length" else StopReason.END

    def _add_usage(self, input_tokens: int, output_tokens: int) -> None:
        self.usage = Usage(input=self.usage.input + input_tokens, output=self.usage.output + output_tokens)

    def _report_loading(self, fraction: float) -> None:
        """Report loading progress as a bar of ten steps, once per step."""
        tenths = int(fraction * 10)
        if tenths != self._reported_tenths:
            self._reported_tenths = tenths
            self._on_delta(
                ReplyDelta(
                    wait_reason=f"{LOADING_MESSAGE} {'█' * tenths}{'░' * (10 - tenths)} {tenths * 10} %"
                )
            )
