"""Keys that other programs' definitions have and ours do not, each translated into native fields."""

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, cast

from retinue.agents import validators
from retinue.agents.dialects import tool_names
from retinue.agents.validators import Path, Wrong
from retinue.domain.agent import Role, Thinking
from retinue.domain.cli_agent import Misread, told
from retinue.domain.value import value
from retinue.domain.workspace import Isolation


class Verdict(StrEnum):
    HONOURED = "honoured"
    """Means here what it means there."""
    MAPPED = "mapped"
    """Says it in other words here."""
    KEPT = "kept"
    """Stored and shown, without effect."""
    REFUSED = "refused"
    """Cannot be had here."""


@value
class Said:
    """What one key comes to."""

    sets: Mapping[str, Any]
    """Native fields, nested as in a definition."""
    verdict: Verdict = Verdict.HONOURED
    note: str = ""
    denies: tuple[str, ...] = ()
    """Tools that this key takes away, whatever else is said."""
    read_only: bool = False
    """Nothing may be changed, whatever else is said of the workspace."""


Handler = Callable[[Any, Path], Said]

CLAUDE_MODELS = {
    "sonnet": "anthropic:claude-sonnet-4-5",
    "opus": "anthropic:claude-opus-4-5",
    "haiku": "anthropic:claude-haiku-4-5",
}
DRIVERS = (
    "openai", "openai-compatible", "anthropic", "local", "scripted", "external", "pydantic-ai",
    "claude-cli", "codex-cli", "pi-cli",
)  # fmt: skip
BACKENDS = {
    "claude": "anthropic",
    "anthropic": "anthropic",
    "chatgpt": "openai",
    "openai": "openai",
    **dict.fromkeys(
        ("ollama", "openrouter", "deepseek", "groq", "mistral", "llama-cpp", "lmstudio", "vllm", "xai"),
        "openai-compatible",
    ),
}
"""Names people give to a provider, in lower case."""


def model(value: Any, path: Path) -> Said:
    found = validators.word(value, path)
    if found == "inherit":
        return Said(sets={"model": None}, verdict=Verdict.MAPPED, note="the default model")
    if found in CLAUDE_MODELS:
        named = CLAUDE_MODELS[found]
        return Said(sets={"model": named}, verdict=Verdict.MAPPED, note=f"'{found}' is {named}")
    return Said(sets={"model": found})


def driver(value: Any, path: Path) -> Said:
    found = validators.word(value, path)
    if found in DRIVERS:
        return Said(sets={"driver": found})
    named = BACKENDS.get(found.lower())
    if named is None:
        raise Wrong(
            path, f"'{found[:60]}' is not a known driver{validators.hint(found, (*DRIVERS, *BACKENDS))}"
        )
    return Said(sets={"driver": named}, verdict=Verdict.MAPPED, note=f"'{found}' is the driver {named}")


def thinking(value: Any, path: Path) -> Said:
    if isinstance(value, bool):
        level = Thinking.MEDIUM if value else Thinking.OFF
        return Said(sets={"thinking": str(level)}, verdict=Verdict.MAPPED, note=f"as {level}")
    found = validators.text(value, path)
    other = {"max": "high", "xhigh": "high", "minimal": "low", "none": "off"}.get(found)
    if other is not None:
        return Said(sets={"thinking": other}, verdict=Verdict.MAPPED, note=f"'{found}' is {other}")
    return Said(sets={"thinking": validators.one_of([str(each) for each in Thinking])(value, path)})


def tool_allow(value: Any, path: Path) -> Said:
    if isinstance(value, dict):
        return _tool_map(validators.mapping(cast("Any", value), path), path)
    return _tool_list("tool_allow", value, path)


def tool_deny(value: Any, path: Path) -> Said:
    return _tool_list("tool_deny", value, path)


def _tool_list(name: str, value: Any, path: Path) -> Said:
    written = validators.names(value, path)
    for at, each in enumerate(written):
        if "(" in each:
            raise Wrong(
                (*path, at),
                f"'{each[:60]}' limits what a tool may be called with; name the tool alone, "
                "and say with shell_commands which commands need not ask",
            )
    ours = tool_names.translated(written)
    if ours == written:
        return Said(sets={name: ours})
    changed = [f"{each} is {tool_names.ours(each)}" for each in written if tool_names.ours(each) != each]
    return Said(sets={name: ours}, verdict=Verdict.MAPPED, note=", ".join(changed))


_TOOL_DETAIL = validators.table(
    {
        "enabled": validators.flag,
        "mode": validators.one_of(("read", "write", "execute")),
        "notes": validators.text,
    }
)


def _tool_map(found: Mapping[str, Any], path: Path) -> Said:
    """Either switches (`write: false`), or details (`bash: {enabled: true, mode: read}`), which list what there is."""
    if all(isinstance(each, bool) for each in found.values()):
        return _switches(found)
    if any(isinstance(each, list) for each in found.values()):
        raise Wrong(path, "groups the tools under names of its own; write one list of the tools it may use")
    details = {
        tool_names.ours(name): _TOOL_DETAIL(each, (*path, name))
        for name, each in found.items()
        if each is not None
    }
    allowed = tuple(name for name, each in details.items() if each.get("enabled") is not False)
    kept = {
        name: {key: word for key, word in each.items() if key != "enabled"} for name, each in details.items()
    }
    kept = {name: each for name, each in kept.items() if each}
    sets: dict[str, Any] = {"tool_allow": allowed}
    if kept:
        sets["notes"] = {"tools": kept}
    return Said(sets=sets, verdict=Verdict.MAPPED, note=f"tool_allow: {', '.join(allowed) or 'nothing'}")


def _switches(found: Mapping[str, bool]) -> Said:
    """Switches change a full set of tools; only `"*": false` empties it first."""
    on = tool_names.translated(tuple(name for name, each in found.items() if each and name != "*"))
    off = tool_names.translated(tuple(name for name, each in found.items() if not each and name != "*"))
    if found.get("*") is False:
        return Said(
            sets={"tool_allow": on}, verdict=Verdict.MAPPED, note=f"tool_allow: {', '.join(on) or 'nothing'}"
        )
    note = f"tool_deny: {', '.join(off)}" if off else "every tool stays on"
    return Said(sets={}, denies=off, verdict=Verdict.MAPPED, note=note)


def driver_settings(value: Any, path: Path) -> dict[str, Any]:
    """A key itself has no place here: a definition is copied into every session's folder."""
    found = validators.open_map(value, path)
    for key in ("api_key", "apiKey"):
        if key in found:
            raise Wrong(
                (*path, key), "holds a key; put it into the environment and write api_key_env: ITS_NAME"
            )
    return found


def program_settings(named: str | None, said: Mapping[str, Any] | None, path: Path) -> None:
    """Wrong where the settings of an agent that is a program cannot be used."""
    try:
        told(named or "", said or {})
    except Misread as wrong:
        raise Wrong((*path, wrong.key), str(wrong), of=" ") from wrong


_CHAT = validators.table(
    {"provider": driver, "model": model, "config": driver_settings, "models": validators.patterns}
)


def chat(value: Any, path: Path) -> Said:
    found = _CHAT(value, path)
    sets: dict[str, Any] = {}
    for key in ("provider", "model"):
        if key in found:
            sets |= (
                found[key].sets if found[key] is not None else {"driver" if key == "provider" else key: None}
            )
    if "config" in found:
        sets["driver_settings"] = found["config"]
        program_settings(sets.get("driver"), found["config"], (*path, "config"))
    if found.get("models"):
        sets["notes"] = {"chat_models": list(found["models"])}
    return Said(sets=sets, verdict=Verdict.MAPPED, note="driver, model and driver_settings")


_WORKSPACE = validators.table(
    {
        "mode": validators.one_of(("inherit", "shared", "sandbox", "custom")),
        "customPath": validators.word,
        "allowWrites": validators.flag,
        "label": validators.text,
    }
)


def default_workspace(value: Any, path: Path) -> Said:
    found = _WORKSPACE(value, path)
    workspace: dict[str, Any] = {}
    if "mode" in found:
        workspace["isolation"] = "shared" if found["mode"] == "inherit" else found["mode"]
    if "customPath" in found:
        workspace["path"] = found["customPath"]
    if "allowWrites" in found:
        workspace["writable"] = found["allowWrites"]
    sets: dict[str, Any] = {"workspace": workspace}
    if found.get("label"):
        sets["notes"] = {"workspace_label": found["label"]}
    return Said(sets=sets, verdict=Verdict.MAPPED, note="workspace")


_OVERRIDES = validators.table(dict.fromkeys(("allowWrites", "allowShell", "allowNetwork"), validators.flag))


def permission_overrides(value: Any, path: Path) -> Said:
    """What is switched off is taken away; what is switched on is only not taken away."""
    found = _OVERRIDES(value, path)
    sets: dict[str, Any] = {}
    if found.get("allowWrites") is not None:
        sets["workspace"] = {"writable": found["allowWrites"]}
    tools = (("allowShell", "bash"), ("allowNetwork", "web_fetch"))
    denies = tuple(tool for key, tool in tools if found.get(key) is False)
    return Said(sets=sets, denies=denies, verdict=Verdict.MAPPED, note="workspace.writable and tool_deny")


_SUBAGENTS = validators.table(
    dict.fromkeys(("allowAgents", "allow_agents"), validators.names)
    | {"model": validators.word, "thinking": validators.word}
)


def subagents(value: Any, path: Path) -> Said:
    found = _SUBAGENTS(value, path)
    sets: dict[str, Any] = {}
    for key in ("allowAgents", "allow_agents"):
        if key in found:
            sets["agent_allow"] = found[key]
    kept = {key: found[key] for key in ("model", "thinking") if found.get(key)}
    if kept:
        sets["notes"] = {"subagents": kept}
    return Said(sets=sets, verdict=Verdict.MAPPED, note="agent_allow; the model is set in the configuration")


def isolation(value: Any, path: Path) -> Said:
    if value == "worktree":
        return Said(
            sets={"workspace": {"isolation": "sandbox", "writable": True}},
            verdict=Verdict.MAPPED,
            note="a sandboxed workspace",
        )
    found = validators.one_of([str(each) for each in Isolation])(value, path)
    return Said(sets={"workspace": {"isolation": found}}, verdict=Verdict.MAPPED, note="workspace.isolation")


def _reading_only() -> Said:
    return Said(sets={}, denies=tool_names.WRITING, read_only=True, verdict=Verdict.MAPPED, note="read-only")


def read_only(value: Any, path: Path) -> Said:
    if validators.flag(value, path):
        return _reading_only()
    return Said(sets={}, verdict=Verdict.KEPT, note="takes nothing away")


def may_write(value: Any, path: Path) -> Said:
    if validators.flag(value, path):
        return Said(sets={}, verdict=Verdict.KEPT, note="takes nothing away")
    return Said(sets={}, denies=("write", "edit"), verdict=Verdict.MAPPED, note="tool_deny: write, edit")


def sandbox_mode(value: Any, path: Path) -> Said:
    found = validators.word(value, path)
    if found == "read-only":
        return _reading_only()
    if found == "workspace-write":
        return Said(
            sets={"notes": {"sandbox_mode": found}}, verdict=Verdict.KEPT, note="calls ask as they always do"
        )
    raise Wrong(path, f"'{found[:40]}' would open more than a definition may; remove it")


def disabled(value: Any, path: Path) -> Said:
    if validators.flag(value, path):
        raise Wrong(path, "is switched off where it comes from; remove this field to use it here")
    return Said(sets={}, verdict=Verdict.KEPT, note="takes nothing away")


def agents(value: Any, path: Path) -> Said:
    """Which others it may call, by the names they have there."""
    named = tuple(
        each if "*" in each else validators.slugged(each) or each for each in validators.names(value, path)
    )
    say = f"agent_allow: {', '.join(named) or 'nobody'}"
    return Said(sets={"agent_allow": named}, verdict=Verdict.MAPPED, note=say)


_GROUPS: dict[str, tuple[str, ...]] = {
    "read": ("read", "ls", "glob", "grep"),
    "edit": ("write", "edit"),
    "write": ("write", "edit"),
    "command": ("bash",),
    "execute": ("bash",),
    "browser": ("web_fetch",),
    "mcp": ("*.*",),
    "modes": ("agent",),
    "subtasks": ("agent",),
    "questions": ("ask_user",),
}
"""Tools that are granted by the group; every mode may also ask and keep a list."""


def groups(value: Any, path: Path) -> Said:
    """A group that is limited to certain files is left out: what it is limited to cannot be held here."""
    allowed: list[str] = []
    left: list[str] = []
    for at, each in enumerate(validators.listed(lambda item, _: item)(value, path)):
        first: Any = each[0] if isinstance(each, list) and each else each  # pyright: ignore[reportUnknownVariableType]  (a list as it was written)
        named = validators.one_of(tuple(_GROUPS))(first, (*path, at))
        if isinstance(each, list):
            left.append(named)
        else:
            allowed += _GROUPS[named]
    kept = tuple(dict.fromkeys((*allowed, "ask_user", "todo")))
    say = f"tool_allow: {', '.join(kept)}"
    say += f"; left out, being limited to some files: {', '.join(left)}" if left else ""
    return Said(sets={"tool_allow": kept}, verdict=Verdict.MAPPED, note=say)


def permission_mode(value: Any, path: Path) -> Said:
    found = validators.word(value, path)
    if found == "plan":
        return _reading_only()
    if found in ("default", "manual"):
        return Said(
            sets={"notes": {"permissionMode": found}},
            verdict=Verdict.KEPT,
            note="calls ask as they always do",
        )
    raise Wrong(path, f"'{found[:40]}' would answer approvals in advance; a definition cannot, so remove it")


def mode(value: Any, path: Path) -> Said:
    roles = {
        "primary": (Role.PRIMARY,),
        "subagent": (Role.SUBTASK,),
        "all": (Role.PRIMARY, Role.SUBTASK),
    }
    found = validators.one_of(tuple(roles))(value, path)
    named = tuple(str(each) for each in roles[found])
    return Said(sets={"roles": named}, verdict=Verdict.MAPPED, note=f"roles: {', '.join(named)}")


def hidden(value: Any, path: Path) -> Said:
    shown = not validators.flag(value, path)
    return Said(sets={"ui_visible": shown}, verdict=Verdict.MAPPED, note="ui_visible, the other way round")


_TRIGGERS = validators.table(
    {"slash": validators.names, "hotkeys": validators.patterns, "hotkey": validators.word}
)


def triggers(value: Any, path: Path) -> Said:
    found = _TRIGGERS(value, path)
    one = found.pop("hotkey", None)
    if one is not None:
        found["hotkeys"] = (*(found.get("hotkeys") or ()), one)
    return Said(sets={"triggers": found})


def kept(name: str) -> Handler:
    """A key that is stored among the notes."""

    def read(value: Any, path: Path) -> Said:
        return Said(
            sets={"notes": {name: validators.anything(value, path)}},
            verdict=Verdict.KEPT,
            note="kept for show",
        )

    return read


def refused(why: str) -> Handler:
    def read(value: Any, path: Path) -> Said:  # noqa: ARG001  (every reader takes the same two)
        raise Wrong(path, why)

    return read
