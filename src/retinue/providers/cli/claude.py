"""claude: `claude -p` with its stream of JSON lines."""

from collections.abc import Mapping
from typing import Any

import msgspec

from retinue.domain.run import Usage
from retinue.providers.cli.protocol import Instructions, Speech, Words
from retinue.providers.cli.reply_parser import Account, count, table, text_of

SERVED = ("anthropic", "https://api.anthropic.com")


def _argv(words: Words) -> tuple[str, ...]:
    which = "--resume" if words.resumes else "--session-id"
    head = ("-p", "--verbose", "--output-format", "stream-json", "--include-partial-messages")
    return (*head, *words.extra, which, words.id, words.text)


def _read(event: Mapping[str, Any], account: Account) -> None:
    """What agents of its own say and do is theirs: only what they came to is told here."""
    if event.get("parent_tool_use_id"):
        return
    kind = event.get("type")
    if kind == "stream_event":
        _piece(table(event.get("event")), account)
    elif kind == "assistant":
        _message(table(event.get("message")), account)
    elif kind == "user":
        for block in _blocks(event.get("message")):
            if block.get("type") == "tool_result":
                name, failed = str(block.get("tool_use_id")), block.get("is_error") is True
                account.ended(name, text_of(block.get("content")), ok=not failed)
    elif kind == "system" and event.get("subtype") == "init":
        account.id = str(event.get("session_id") or account.id)
        account.model = str(event.get("model") or account.model)
    elif kind == "result":
        _result(event, account)


def _piece(event: Mapping[str, Any], account: Account) -> None:
    delta = table(event.get("delta"))
    if delta.get("type") == "text_delta":
        account.piece(str(delta.get("text") or ""))
    elif delta.get("type") == "thinking_delta":
        account.thought(str(delta.get("thinking") or ""))


def _message(message: Mapping[str, Any], account: Account) -> None:
    account.model = str(message.get("model") or account.model)
    for block in _blocks(message):
        if block.get("type") == "text":
            account.message(str(block.get("text") or ""))
        elif block.get("type") == "tool_use":
            account.began(str(block.get("id")), str(block.get("name") or ""), table(block.get("input")))


def _result(event: Mapping[str, Any], account: Account) -> None:
    """A failed login calls itself a success: only `is_error` says what it is."""
    account.id = str(event.get("session_id") or account.id)
    usage = table(event.get("usage"))
    read = sum(
        count(usage.get(each))
        for each in ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    )
    account.usage = Usage(input=read, output=count(usage.get("output_tokens")))
    said = str(event.get("result") or "")
    subtype = str(event.get("subtype") or "")
    if event.get("is_error") is True or subtype.startswith("error"):
        account.trouble = said or text_of(event.get("errors")) or subtype or "it does not say why"
    account.last = said or None
    account.over = True


def _blocks(message: Any) -> list[Mapping[str, Any]]:
    content = table(message).get("content")
    if not isinstance(content, list):
        return []
    return [table(each) for each in content]  # pyright: ignore[reportUnknownVariableType]  (a program's own JSON)


def _files(given: Instructions) -> Mapping[str, str]:
    """Where the cell holds it, its own questions would only be answered with no."""
    settings: dict[str, Any] = {"includeCoAuthoredBy": False}
    if given.held:
        settings["permissions"] = {"defaultMode": "bypassPermissions"}
        settings["skipDangerousModePermissionPrompt"] = True
    return {
        ".claude/CLAUDE.md": given.prompt,
        ".claude/settings.json": msgspec.json.encode(settings).decode(),
    }


CLAUDE = Speech(
    argv=_argv,
    read=_read,
    files=_files,
    mints=True,
    maker="anthropic",
    url_variable="ANTHROPIC_BASE_URL",
    key_variable="ANTHROPIC_API_KEY",
    quiet={
        "DISABLE_AUTOUPDATER": "1",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_TELEMETRY": "1",
        "DISABLE_ERROR_REPORTING": "1",
    },
    held={"IS_SANDBOX": "1"},
    keys={
        "ANTHROPIC_API_KEY": SERVED,
        "ANTHROPIC_AUTH_TOKEN": SERVED,
        "CLAUDE_CODE_OAUTH_TOKEN": SERVED,
    },
)
