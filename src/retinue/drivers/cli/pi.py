"""pi: `pi --mode json`, which keeps a conversation in a file that it is told."""

from collections.abc import Mapping
from typing import Any

from retinue.domain.run import Usage
from retinue.drivers.cli.account import Account, count, table, text_of
from retinue.drivers.cli.speech import Instructions, Speech, Words


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
    return {".pi/agent/AGENTS.md": given.prompt}


PI = Speech(
    argv=_argv,
    read=_read,
    files=_files,
    mints=True,
    url="",
    quiet={"PI_SKIP_VERSION_CHECK": "1", "PI_TELEMETRY": "0"},
    keys={
        "ANTHROPIC_API_KEY": "api.anthropic.com:443",
        "ANTHROPIC_OAUTH_TOKEN": "api.anthropic.com:443",
        "OPENAI_API_KEY": "api.openai.com:443",
        "GEMINI_API_KEY": "generativelanguage.googleapis.com:443",
        "OPENROUTER_API_KEY": "openrouter.ai:443",
        "GROQ_API_KEY": "api.groq.com:443",
        "XAI_API_KEY": "api.x.ai:443",
        "MISTRAL_API_KEY": "api.mistral.ai:443",
        "CEREBRAS_API_KEY": "api.cerebras.ai:443",
        "ZAI_API_KEY": "api.z.ai:443",
    },
)
