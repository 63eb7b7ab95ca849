"""The protocol of codex: `codex exec --json`."""

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

VENDOR_URL = ("openai", MODEL_APIS["openai"].base_url)
_CALL_ITEMS = {
    "command_execution": "command",
    "file_change": "changes",
    "mcp_tool_call": "arguments",
    "web_search": "query",
    "collab_tool_call": "prompt",
}
"""Item types that are tool calls, and the key of their arguments."""

_DISABLED_FEATURES = ("apps", "plugins", "remote_plugin", "daemon_auto_start")
"""Features that download or start something; none works in the sandbox, and each try takes time."""


def _build_args(invocation: Invocation) -> tuple[str, ...]:
    resume_args = ("resume", invocation.conversation_id) if invocation.is_resume else ()
    return ("exec", "--json", *invocation.extra_args, *resume_args, invocation.message)


def _read_event(event: Mapping[str, Any], builder: CliReplyBuilder) -> None:
    kind = event.get("type")
    if kind == "thread.started":
        builder.conversation_id = str(event.get("thread_id") or "")
    elif kind in ("item.started", "item.updated", "item.completed"):
        _read_item(as_object(event.get("item")), builder, is_completed=kind == "item.completed")
    elif kind == "turn.completed":
        usage = as_object(event.get("usage"))
        builder.usage = Usage(
            input=as_count(usage.get("input_tokens")), output=as_count(usage.get("output_tokens"))
        )
        builder.is_finished = True
    elif kind == "turn.failed":
        builder.error = content_text(as_object(event.get("error")).get("message")) or "no error message"
        builder.is_finished = True
    elif kind == "error":
        # codex retries after some of these: the end of the turn tells whether it failed.
        builder.last_warning = content_text(event.get("message"))


def _read_item(item: Mapping[str, Any], builder: CliReplyBuilder, *, is_completed: bool) -> None:
    kind, call_id = str(item.get("type")), str(item.get("id"))
    if kind == "agent_message":
        if is_completed:
            builder.add_message(str(item.get("text") or ""))
    elif kind == "reasoning":
        builder.add_thinking(f"{item.get('text') or ''}\n" if is_completed else "")
    elif kind in _CALL_ITEMS:
        arguments_key = _CALL_ITEMS[kind]
        tool = (
            ".".join(filter(None, (item.get("server"), item.get("tool"))))
            if kind == "mcp_tool_call"
            else kind
        )
        builder.start_tool_call(call_id, tool, {arguments_key: item.get(arguments_key)})
        if is_completed:
            builder.finish_tool_call(call_id, _result_text(item), ok=_is_success(item))


def _result_text(item: Mapping[str, Any]) -> str:
    if "aggregated_output" in item:
        return f"{item.get('aggregated_output') or ''}\n[exit {item.get('exit_code')}]".strip()
    if item.get("changes"):
        changes = [as_object(each) for each in item["changes"] if isinstance(each, dict)]
        return "\n".join(f"{each.get('kind')} {each.get('path')}" for each in changes)
    error_text = content_text(as_object(item.get("error")).get("message"))
    return error_text or content_text(item.get("result")) or str(item.get("status") or "")


def _is_success(item: Mapping[str, Any]) -> bool:
    return item.get("status") not in ("failed", "declined") and item.get("exit_code") in (None, 0)


def _build_home_files(home_settings: HomeSettings) -> Mapping[str, str]:
    """Return the home files; inside the sandbox, codex's own sandbox is turned off, as it would fail."""
    lines = ['cli_auth_credentials_store = "file"', "check_for_update_on_startup = false"]
    if url := home_settings.vendor_urls.get("openai"):
        lines.append(f"openai_base_url = {json.dumps(url)}")
    if home_settings.is_sandboxed:
        lines += ['sandbox_mode = "danger-full-access"', 'approval_policy = "never"']
    lines += [
        "[analytics]",
        "enabled = false",
        "[features]",
        *(f"{each} = false" for each in _DISABLED_FEATURES),
    ]
    lines += [f"[projects.{json.dumps(home_settings.cwd)}]", 'trust_level = "trusted"']
    return {".codex/AGENTS.md": home_settings.prompt, ".codex/config.toml": "\n".join([*lines, ""])}


CODEX_PROTOCOL = CliProtocol(
    build_args=_build_args,
    read_event=_read_event,
    build_home_files=_build_home_files,
    accepts_conversation_id=False,
    extra_hosts=("chatgpt.com:443",),
    vendor="openai",
    key_variable="CODEX_API_KEY",
    base_env={},
    command_words=frozenset(["resume", "fork", "review", "help"]),
    credential_variables={"CODEX_API_KEY": VENDOR_URL},
    startup_fixes={"--skip-git-repo-check": ("--skip-git-repo-check",)},
    model_flags=("--model", "-m"),
    thinking_args=("-c", "model_reasoning_effort={}"),
    thinking_levels={"off": "minimal", "max": "xhigh"},
)
create_provider: CreateProvider = partial(create_cli_provider, CODEX_PROTOCOL)
