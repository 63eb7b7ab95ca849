"""The protocol of pi: `pi --mode json`, with the conversation in a given file."""

import json
from collections.abc import Mapping
from functools import partial
from typing import Any

from retinue.domain.providers import MODEL_APIS
from retinue.domain.run import Usage
from retinue.providers.cli.protocol import CliProtocol, HomeSettings, Invocation
from retinue.providers.cli.provider import create_cli_provider
from retinue.providers.cli.reply_parser import CliReplyBuilder, as_count, as_object, content_text
from retinue.providers.interface import CreateProvider


def _build_args(invocation: Invocation) -> tuple[str, ...]:
    resume_args = ("--continue",) if invocation.is_resume else ()
    file = f"{invocation.home}/{invocation.conversation_id}.jsonl"
    return (
        "--mode",
        "json",
        "--session",
        file,
        *resume_args,
        *invocation.extra_args,
        "-p",
        invocation.message,
    )


def _read_event(event: Mapping[str, Any], builder: CliReplyBuilder) -> None:
    kind = event.get("type")
    if kind == "message_update":
        _read_stream_event(as_object(event.get("assistantMessageEvent")), builder)
    elif kind == "message_end":
        _read_message(as_object(event.get("message")), builder)
    elif kind == "tool_execution_start":
        builder.start_tool_call(
            str(event.get("toolCallId")), str(event.get("toolName") or ""), as_object(event.get("args"))
        )
    elif kind == "tool_execution_end":
        failed = event.get("isError") is True
        builder.finish_tool_call(
            str(event.get("toolCallId")), content_text(event.get("result")), ok=not failed
        )
    elif kind == "agent_end":
        builder.is_finished = True


def _read_stream_event(event: Mapping[str, Any], builder: CliReplyBuilder) -> None:
    if event.get("type") == "text_delta":
        builder.add_text_delta(str(event.get("delta") or ""))
    elif event.get("type") == "thinking_delta":
        builder.add_thinking(str(event.get("delta") or ""))


def _read_message(message: Mapping[str, Any], builder: CliReplyBuilder) -> None:
    """Read a message; the last reply decides, because pi may retry after a failed one."""
    if message.get("role") != "assistant":
        return
    builder.model = str(message.get("model") or builder.model)
    usage = as_object(message.get("usage"))
    input_tokens = sum(as_count(usage.get(each)) for each in ("input", "cacheRead", "cacheWrite"))
    builder.usage = builder.usage + Usage(input=input_tokens, output=as_count(usage.get("output")))
    content = message.get("content")
    blocks: list[Any] = content if isinstance(content, list) else []  # pyright: ignore[reportUnknownVariableType]  (the program's JSON)
    builder.add_message(content_text([each for each in blocks if as_object(each).get("type") == "text"]))
    failed = message.get("stopReason") in ("error", "aborted")
    builder.error = (str(message.get("errorMessage") or "") or "no error message") if failed else ""


def _build_home_files(home_settings: HomeSettings) -> Mapping[str, str]:
    files = {".pi/agent/AGENTS.md": home_settings.prompt}
    if home_settings.vendor_urls:
        servers = {
            "providers": {vendor: {"baseUrl": url} for vendor, url in home_settings.vendor_urls.items()}
        }
        files[".pi/agent/models.json"] = json.dumps(servers)
    return files


PI_PROTOCOL = CliProtocol(
    build_args=_build_args,
    read_event=_read_event,
    build_home_files=_build_home_files,
    accepts_conversation_id=True,
    base_env={"PI_SKIP_VERSION_CHECK": "1", "PI_TELEMETRY": "0", "PI_OFFLINE": "1"},
    command_prefixes=("/", "@"),
    credential_variables={
        "ANTHROPIC_API_KEY": ("anthropic", MODEL_APIS["anthropic"].base_url),
        "ANTHROPIC_OAUTH_TOKEN": ("anthropic", MODEL_APIS["anthropic"].base_url),
        "OPENAI_API_KEY": ("openai", MODEL_APIS["openai"].base_url),
        "GEMINI_API_KEY": ("google", "https://generativelanguage.googleapis.com"),
        "OPENROUTER_API_KEY": ("openrouter", "https://openrouter.ai"),
        "GROQ_API_KEY": ("groq", "https://api.groq.com"),
        "XAI_API_KEY": ("xai", "https://api.x.ai"),
        "MISTRAL_API_KEY": ("mistral", "https://api.mistral.ai"),
        "DEEPSEEK_API_KEY": ("deepseek", "https://api.deepseek.com"),
        "CEREBRAS_API_KEY": ("cerebras", "https://api.cerebras.ai"),
        "ZAI_API_KEY": ("zai", "https://api.z.ai"),
    },
    thinking_args=("--thinking", "{}"),
    thinking_levels={"max": "xhigh"},
)
create_provider: CreateProvider = partial(create_cli_provider, PI_PROTOCOL)
