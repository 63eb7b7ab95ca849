"""The protocol of claude: `claude -p` with JSON lines."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import msgspec

from retinue.domain.providers import MODEL_APIS
from retinue.domain.run import Usage
from retinue.providers.cli.protocol import CliProtocol, HomeSettings, Invocation
from retinue.providers.cli.provider import create_cli_provider
from retinue.providers.cli.reply_parser import CliReplyBuilder, as_count, as_object, content_text
from retinue.providers.interface import CreateProvider

VENDOR_URL = ("anthropic", MODEL_APIS["anthropic"].base_url)


def _build_args(invocation: Invocation) -> tuple[str, ...]:
    session_flag = "--resume" if invocation.is_resume else "--session-id"
    options = ("-p", "--verbose", "--output-format", "stream-json", "--include-partial-messages")
    return (*options, *invocation.extra_args, session_flag, invocation.conversation_id, invocation.message)


def _read_event(event: Mapping[str, Any], builder: CliReplyBuilder) -> None:
    """Read one event; output of claude's own sub-agents is skipped, only their results are recorded."""
    if event.get("parent_tool_use_id"):
        return
    kind = event.get("type")
    if kind == "stream_event":
        _read_stream_event(as_object(event.get("event")), builder)
    elif kind == "assistant":
        _read_message(as_object(event.get("message")), builder)
    elif kind == "user":
        for block in _content_blocks(event.get("message")):
            if block.get("type") == "tool_result":
                call_id, failed = str(block.get("tool_use_id")), block.get("is_error") is True
                builder.finish_tool_call(call_id, content_text(block.get("content")), ok=not failed)
    elif kind == "system" and event.get("subtype") == "init":
        builder.conversation_id = str(event.get("session_id") or builder.conversation_id)
        builder.model = str(event.get("model") or builder.model)
    elif kind == "result":
        _read_result(event, builder)


def _read_stream_event(event: Mapping[str, Any], builder: CliReplyBuilder) -> None:
    delta = as_object(event.get("delta"))
    if delta.get("type") == "text_delta":
        builder.add_text_delta(str(delta.get("text") or ""))
    elif delta.get("type") == "thinking_delta":
        builder.add_thinking(str(delta.get("thinking") or ""))


def _read_message(message: Mapping[str, Any], builder: CliReplyBuilder) -> None:
    builder.model = str(message.get("model") or builder.model)
    for block in _content_blocks(message):
        if block.get("type") == "text":
            builder.add_message(str(block.get("text") or ""))
        elif block.get("type") == "tool_use":
            builder.start_tool_call(
                str(block.get("id")), str(block.get("name") or ""), as_object(block.get("input"))
            )


def _read_result(event: Mapping[str, Any], builder: CliReplyBuilder) -> None:
    """Read the final event; `is_error` decides, because a failed login is reported as a success."""
    builder.conversation_id = str(event.get("session_id") or builder.conversation_id)
    usage = as_object(event.get("usage"))
    input_tokens = sum(
        as_count(usage.get(each))
        for each in ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    )
    builder.usage = Usage(
        input=input_tokens,
        output=as_count(usage.get("output_tokens")),
        cached=as_count(usage.get("cache_read_input_tokens")),
        cache_write=as_count(usage.get("cache_creation_input_tokens")),
    )
    result_text = str(event.get("result") or "")
    subtype = str(event.get("subtype") or "")
    if event.get("is_error") is True or subtype.startswith("error"):
        builder.error = result_text or content_text(event.get("errors")) or subtype or "no error message"
    builder.final_text = result_text or None
    builder.is_finished = True


def _content_blocks(message: Any) -> list[Mapping[str, Any]]:
    content = as_object(message).get("content")
    if not isinstance(content, list):
        return []
    return [as_object(each) for each in content]  # pyright: ignore[reportUnknownVariableType]  (the program's JSON)


def _build_home_files(home_settings: HomeSettings) -> Mapping[str, str]:
    """Return the home files; inside the sandbox, claude's own permission prompts are turned off.

    Nobody could answer them.
    """
    settings: dict[str, Any] = {"includeCoAuthoredBy": False}
    if home_settings.is_sandboxed:
        settings["permissions"] = {"defaultMode": "bypassPermissions"}
        settings["skipDangerousModePermissionPrompt"] = True
    return {
        ".claude/CLAUDE.md": home_settings.prompt,
        ".claude/settings.json": msgspec.json.encode(settings).decode(),
    }


CLAUDE_PROTOCOL = CliProtocol(
    build_args=_build_args,
    read_event=_read_event,
    build_home_files=_build_home_files,
    accepts_conversation_id=True,
    vendor="anthropic",
    url_variable="ANTHROPIC_BASE_URL",
    key_variable="ANTHROPIC_API_KEY",
    base_env={
        "DISABLE_AUTOUPDATER": "1",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_TELEMETRY": "1",
        "DISABLE_ERROR_REPORTING": "1",
    },
    sandboxed_env={"IS_SANDBOX": "1"},
    command_prefixes=("/",),
    credential_variables={
        "ANTHROPIC_API_KEY": VENDOR_URL,
        "ANTHROPIC_AUTH_TOKEN": VENDOR_URL,
        "CLAUDE_CODE_OAUTH_TOKEN": VENDOR_URL,
    },
)
create_provider: CreateProvider = partial(create_cli_provider, CLAUDE_PROTOCOL)
