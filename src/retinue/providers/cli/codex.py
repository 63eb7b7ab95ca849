"""codex: `codex exec --json`."""

import json
from collections.abc import Mapping
from typing import Any

from retinue.domain.run import Usage
from retinue.providers.cli.protocol import Instructions, Speech, Words
from retinue.providers.cli.reply_parser import Account, count, table, text_of

SERVED = ("openai", "https://api.openai.com/v1")
_ACTS = {
    "command_execution": "command",
    "file_change": "changes",
    "mcp_tool_call": "arguments",
    "web_search": "query",
    "collab_tool_call": "prompt",
}
"""Items that are calls, and what of them is their arguments."""

_UNASKED = ("apps", "plugins", "remote_plugin", "daemon_auto_start")
"""What it would fetch or start before it begins: nothing of it is to be had in a cell, and each try takes time."""


def _argv(words: Words) -> tuple[str, ...]:
    again = ("resume", words.id) if words.resumes else ()
    return ("exec", "--json", *words.extra, *again, words.text)


def _read(event: Mapping[str, Any], account: Account) -> None:
    kind = event.get("type")
    if kind == "thread.started":
        account.id = str(event.get("thread_id") or "")
    elif kind in ("item.started", "item.updated", "item.completed"):
        _item(table(event.get("item")), account, over=kind == "item.completed")
    elif kind == "turn.completed":
        usage = table(event.get("usage"))
        account.usage = Usage(
            input=count(usage.get("input_tokens")), output=count(usage.get("output_tokens"))
        )
        account.over = True
    elif kind == "turn.failed":
        account.trouble = text_of(table(event.get("error")).get("message")) or "it does not say why"
        account.over = True
    elif kind == "error":
        # It tries again after some of these by itself: whether the turn failed is said at its end.
        account.complaint = text_of(event.get("message"))


def _item(item: Mapping[str, Any], account: Account, *, over: bool) -> None:
    kind, name = str(item.get("type")), str(item.get("id"))
    if kind == "agent_message":
        if over:
            account.message(str(item.get("text") or ""))
    elif kind == "reasoning":
        account.thought(f"{item.get('text') or ''}\n" if over else "")
    elif kind in _ACTS:
        about = _ACTS[kind]
        tool = (
            ".".join(filter(None, (item.get("server"), item.get("tool"))))
            if kind == "mcp_tool_call"
            else kind
        )
        account.began(name, tool, {about: item.get(about)})
        if over:
            account.ended(name, _outcome(item), ok=_went_well(item))


def _outcome(item: Mapping[str, Any]) -> str:
    if "aggregated_output" in item:
        return f"{item.get('aggregated_output') or ''}\n[exit {item.get('exit_code')}]".strip()
    if item.get("changes"):
        changes = [table(each) for each in item["changes"] if isinstance(each, dict)]
        return "\n".join(f"{each.get('kind')} {each.get('path')}" for each in changes)
    failed = text_of(table(item.get("error")).get("message"))
    return failed or text_of(item.get("result")) or str(item.get("status") or "")


def _went_well(item: Mapping[str, Any]) -> bool:
    return item.get("status") not in ("failed", "declined") and item.get("exit_code") in (None, 0)


def _files(given: Instructions) -> Mapping[str, str]:
    """Where the cell holds it, a sandbox of its own inside would only fail."""
    lines = ['cli_auth_credentials_store = "file"', "check_for_update_on_startup = false"]
    if url := given.urls.get("openai"):
        lines.append(f"openai_base_url = {json.dumps(url)}")
    if given.held:
        lines += ['sandbox_mode = "danger-full-access"', 'approval_policy = "never"']
    lines += ["[analytics]", "enabled = false", "[features]", *(f"{each} = false" for each in _UNASKED)]
    lines += [f"[projects.{json.dumps(given.cwd)}]", 'trust_level = "trusted"']
    return {".codex/AGENTS.md": given.prompt, ".codex/config.toml": "\n".join([*lines, ""])}


CODEX = Speech(
    argv=_argv,
    read=_read,
    files=_files,
    mints=False,
    also=("chatgpt.com:443",),
    maker="openai",
    key_variable="CODEX_API_KEY",
    quiet={},
    keys={"CODEX_API_KEY": SERVED},
    mends={"--skip-git-repo-check": ("--skip-git-repo-check",)},
)
