"""pi: `pi --mode json`, which keeps a conversation in a file that it is told."""

import json
from collections.abc import Mapping
from typing import Any

from retinue.domain.run import Usage
from retinue.providers.cli.protocol import Instructions, Speech, Words
from retinue.providers.cli.reply_parser import Account, count, table, text_of


def _argv(words: Words) -> tuple[str, ...]:
    again = ("--continue",) if words.resumes else ()
    file = f"{words.home}/{words.id}.jsonl"
    return ("--mode", "json", "--session", file, *again, *words.extra, "-p", words.text)


def _read(event: Mapping[str, Any], account: Account) -> None:
    kind = event.get("type")
    if kind == "message_update":
        _piece(table(event.get("assistantMessageEvent")), account)
    elif kind == "message_end":
        _message(table(event.get("message")), account)
    elif kind == "tool_execution_start":
        account.began(
            str(event.get("toolCallId")), str(event.get("toolName") or ""), table(event.get("args"))
        )
    elif kind == "tool_execution_end":
        failed = event.get("isError") is True
        account.ended(str(event.get("toolCallId")), text_of(event.get("result")), ok=not failed)
    elif kind == "agent_end":
        account.over = True


def _piece(event: Mapping[str, Any], account: Account) -> None:
    if event.get("type") == "text_delta":
        account.piece(str(event.get("delta") or ""))
    elif event.get("type") == "thinking_delta":
        account.thought(str(event.get("delta") or ""))


def _message(message: Mapping[str, Any], account: Account) -> None:
    """The last reply decides: after one that failed pi may have tried again by itself."""
    if message.get("role") != "assistant":
        return
    account.model = str(message.get("model") or account.model)
    usage = table(message.get("usage"))
    read = sum(count(usage.get(each)) for each in ("input", "cacheRead", "cacheWrite"))
    account.usage = account.usage + Usage(input=read, output=count(usage.get("output")))
    content = message.get("content")
    blocks: list[Any] = content if isinstance(content, list) else []  # pyright: ignore[reportUnknownVariableType]  (a program's own JSON)
    account.message(text_of([each for each in blocks if table(each).get("type") == "text"]))
    failed = message.get("stopReason") in ("error", "aborted")
    account.trouble = (str(message.get("errorMessage") or "") or "it does not say why") if failed else ""


def _files(given: Instructions) -> Mapping[str, str]:
    files = {".pi/agent/AGENTS.md": given.prompt}
    if given.urls:
        servers = {"providers": {maker: {"baseUrl": url} for maker, url in given.urls.items()}}
        files[".pi/agent/models.json"] = json.dumps(servers)
    return files


PI = Speech(
    argv=_argv,
    read=_read,
    files=_files,
    mints=True,
    quiet={"PI_SKIP_VERSION_CHECK": "1", "PI_TELEMETRY": "0", "PI_OFFLINE": "1"},
    keys={
        "ANTHROPIC_API_KEY": ("anthropic", "https://api.anthropic.com"),
        "ANTHROPIC_OAUTH_TOKEN": ("anthropic", "https://api.anthropic.com"),
        "OPENAI_API_KEY": ("openai", "https://api.openai.com/v1"),
        "GEMINI_API_KEY": ("google", "https://generativelanguage.googleapis.com"),
        "OPENROUTER_API_KEY": ("openrouter", "https://openrouter.ai"),
        "GROQ_API_KEY": ("groq", "https://api.groq.com"),
        "XAI_API_KEY": ("xai", "https://api.x.ai"),
        "MISTRAL_API_KEY": ("mistral", "https://api.mistral.ai"),
        "DEEPSEEK_API_KEY": ("deepseek", "https://api.deepseek.com"),
        "CEREBRAS_API_KEY": ("cerebras", "https://api.cerebras.ai"),
        "ZAI_API_KEY": ("zai", "https://api.z.ai"),
    },
)
