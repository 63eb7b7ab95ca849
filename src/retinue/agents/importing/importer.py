"""Check and import agent definitions written for other programs."""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from msgspec import Struct
from msgspec.structs import replace

from retinue.agents import definition_file, validators
from retinue.agents.dialects import tool_names
from retinue.agents.dialects.key_translators import KeySupport
from retinue.agents.fields import (
    FIELD_NAMES,
    KEY_ALIASES,
    KNOWN_KEYS,
    OUTPUT_SCHEMA,
    FieldResult,
    PartialDefinition,
    interpret_fields,
    merge_definitions,
)
from retinue.agents.importing import names, nested_maps, scanner
from retinue.agents.sources import built_in_texts, load_problem, with_prompt_from_file
from retinue.agents.validators import InvalidValue
from retinue.domain.agent import Agent
from retinue.errors import BadDefinition
from retinue.storage.json_schema import find_schema_error

MAX_VALUE_CHARS = 120
PROVIDER_SETTINGS_PROBLEM = (
    "driver_settings: an imported definition cannot set which server is used, which key it receives, or how a "
    "program is started; remove that, import the definition, and add it yourself"
)
_SERVER_KEYS = frozenset(("base_url", "baseUrl", "api_key_env", "apiKeyEnv", "extraArgs", "wrapper", "hosts"))
_SECRET_KEYS = ("api_key", "apikey", "api-key", "token", "password", "secret")
_LIMITING_KEYS = frozenset(
    (
        "tool_allow", "tool_deny", "capability_allow", "capability_deny", "agent_allow", "agent_deny",
        "skill_allow", "skill_deny", "paths", "workspace", "ceiling", "defaultWorkspace", "permissionOverrides",
        "isolation", "subagents", "permission", "permissions", "groups", "agents", "readonly", "readOnly", "read_only",
        "read-only", "canEdit", "can_edit", "enable_write_tools", "disable", "disabled",
        "allowed_paths", "allowedPaths", "denied_paths", "deniedPaths", "forbidden_paths", "blocked_paths",
        "disallowed_paths", "file_access", "network_access", "spawns",
    )
)  # fmt: skip
"""Fields that limit permissions: one that cannot be interpreted must not be ignored."""
_AMBIGUOUS_KEYS = ("type", "capabilities", "mode", "triggers")
_AGENT_KEYS = frozenset(
    (
        "prompt", "promptPath", "model", "fallback_models", "driver", "chat", "temperature", "max_tokens", "max_turns", "tool_allow",
        "tool_deny", "roles", "mode", "groups", "triggers", "workspace", "defaultWorkspace", "permissionOverrides",
        "extends", "notes", "paths", "skill_allow",
    )
)  # fmt: skip
"""Fields that are typical of agent definitions. A name and a description are not: many files have them."""


class FieldVerdict(Struct, frozen=True, kw_only=True):
    field: str
    """The key as written in the source."""
    shown_value: str
    verdict: KeySupport
    note: str = ""


class DefinitionCheck(Struct, frozen=True, kw_only=True):
    """The check of one foreign definition."""

    path: Path
    ok: bool
    """True if it can be imported."""
    name: str
    dialect: str
    fields: tuple[FieldVerdict, ...] = ()
    problems: tuple[str, ...] = ()
    repaired_keys: tuple[str, ...] = ()
    """Keys whose value is not valid YAML and was taken as plain text."""
    is_skipped: bool = False
    """True if it is not a definition, only another file in the same folder."""
    kind: str = ""
    """What the file is if it is skipped as no agent: skill, command, rule, plugin and so on; empty for a definition."""
    owner: Path | None = None
    """The skill or plugin that such a file belongs to; the file itself if it stands alone."""
    load_problem: str = ""
    """The reason why the file would not load without an import; empty if it would."""


class ImportResult(Struct, frozen=True, kw_only=True):
    """A check, and the file that was written, or None."""

    check: DefinitionCheck
    target: Path | None = None
    name: str = ""


def check_definitions(path: Path | str) -> list[DefinitionCheck]:
    """Check every definition in a file or folder.

    Never raises; an unreadable file is reported as a problem.
    """
    return [checked for checked, _ in _check_path(Path(path))]


def import_definitions(path: Path | str, user_dir: Path) -> list[ImportResult]:
    """Write a native definition for each usable one. Never overwrites: a name already taken gets a number."""
    taken = {*built_in_texts()}
    results: list[ImportResult] = []
    for checked, agent in _check_path(Path(path)):
        if agent is None:
            problems = checked.problems or (PROVIDER_SETTINGS_PROBLEM,)
            results.append(ImportResult(check=replace(checked, ok=False, problems=problems)))
            continue
        try:
            target = _write_definition(agent, user_dir, taken)
        except OSError as error:
            problem = f"cannot be written to {user_dir}: {error.strerror}"
            results.append(
                ImportResult(check=replace(checked, ok=False, problems=(*checked.problems, problem)))
            )
            continue
        results.append(ImportResult(check=checked, target=target, name=target.stem))
    return results


def _check_path(path: Path) -> list[tuple[DefinitionCheck, Agent | None]]:
    if not os.path.lexists(path):
        return [
            (
                DefinitionCheck(
                    path=path, ok=False, name="", dialect="none", problems=("the file does not exist",)
                ),
                None,
            )
        ]
    if not path.is_dir():
        return [
            _check_definition(replace(each, is_other_file=False)) for each in scanner.read_definitions(path)
        ]
    root = Path(os.path.abspath(path))  # noqa: PTH100  (the parts of the path as given, without links resolved)
    checks: list[tuple[DefinitionCheck, Agent | None]] = []
    for file in scanner.definition_files(path):
        if other := scanner.identify_other_file(root / file.relative_to(path), root):
            checks.append((_check_of_skipped_file(file, other), None))
            continue
        checks += [_check_definition(_mark_unrelated_file(each)) for each in scanner.read_definitions(file)]
    return checks


def _check_of_skipped_file(file: Path, other: scanner.OtherFile) -> DefinitionCheck:
    return DefinitionCheck(
        path=file,
        ok=False,
        name="",
        dialect="none",
        problems=(f"is not an agent ({other.kind}); name the file itself to import it anyway",),
        is_skipped=True,
        kind=other.kind,
        owner=other.owner,
    )


def _mark_unrelated_file(definition: scanner.FoundDefinition) -> scanner.FoundDefinition:
    """Mark a file in a folder that is not an agent: `package.json` has a name and a description too."""
    is_markdown = definition.path.suffix.lower() in scanner.MARKDOWN
    if (
        is_markdown
        or definition.problem
        or definition.location
        or any(KEY_ALIASES.get(key, key) in _AGENT_KEYS for key in definition.keys)
    ):
        return definition
    problem = "is not a definition: it has no field of an agent; name the file itself to import it anyway"
    return scanner.FoundDefinition(path=definition.path, problem=problem, is_other_file=True)


def _check_definition(definition: scanner.FoundDefinition) -> tuple[DefinitionCheck, Agent | None]:
    # A slash in the name of a collection's item must not look like a folder.
    display_path = (
        definition.path.with_name(f"{definition.path.name}#{definition.location.replace('/', ':')}")
        if definition.location
        else definition.path
    )
    if definition.problem:
        checked = DefinitionCheck(
            path=display_path,
            ok=False,
            name="",
            dialect="none",
            problems=(definition.problem,),
            is_skipped=definition.is_other_file,
        )
        return checked, None
    normalized = names.normalize_keys(definition.keys, definition.repaired_keys, definition.path.stem)
    partial, results = interpret_fields(normalized.keys)
    problems = [
        *_find_problems(results, normalized),
        *_schema_problems(partial),
        *nested_maps.suspicious_keys(definition.keys),
    ]
    load_problem = _native_load_problem(definition)
    has_server_settings = bool(_SERVER_KEYS & (partial.get("driver_settings") or {}).keys())
    if has_server_settings and load_problem:
        problems.append(PROVIDER_SETTINGS_PROBLEM)
    name = str(partial.pop("name", None) or validators.slugify(definition.path.stem) or "agent")
    agent: Agent | None = None
    try:
        agent = _build_agent(
            definition,
            merge_definitions(partial, _unknown_keys_as_notes(results, normalized.extra_notes)),
            name,
        )
    except (InvalidValue, BadDefinition) as error:
        problems.append(str(error))
    checked = DefinitionCheck(
        path=display_path,
        load_problem=load_problem,
        ok=not problems,
        name=name,
        dialect=_detect_dialect(definition.keys),
        fields=_field_verdicts(definition.keys, results, normalized),
        problems=tuple(problems),
        repaired_keys=definition.repaired_keys,
    )
    return checked, None if problems or has_server_settings else agent


def _find_problems(results: list[FieldResult], normalized: names.NormalizedKeys) -> Iterator[str]:
    """Yield errors that prevent an import.

    Limits cannot be dropped, and without its prompt an agent would be a different agent.
    """
    for each in results:
        if each.error is not None and (
            _is_limiting(each.key) or KEY_ALIASES.get(each.key, each.key) == "prompt"
        ):
            yield _with_source_location(str(each.error), each.key, normalized)
        elif _is_misspelled_limit(each):
            yield f"{each.key}: is not a known field{_known_key_hint(each.key)}"


def _schema_problems(partial: PartialDefinition) -> Iterator[str]:
    schema = partial.get(OUTPUT_SCHEMA)
    if schema is not None and (problem := find_schema_error(schema)):
        yield f"{OUTPUT_SCHEMA} {problem}"


def _with_source_location(problem: str, key: str, normalized: names.NormalizedKeys) -> str:
    """Name an extracted key by its place in the source."""
    if key not in normalized.extracted:
        return problem
    extracted = normalized.extracted[key]
    return f"{extracted.parent_key}.{extracted.inner_key}{problem.removeprefix(key)}"


def _field_verdicts(
    source: Mapping[str, Any], results: list[FieldResult], normalized: names.NormalizedKeys
) -> tuple[FieldVerdict, ...]:
    """Return one verdict per key of the source."""
    results_by_key = {each.key: each for each in results}
    return tuple(
        _decided_verdict(key, value, *normalized.verdicts[key])
        if key in normalized.verdicts
        else _field_verdict(results_by_key[key], value, normalized.notes.get(key, ""))
        if key in results_by_key
        else _map_verdict(key, value, results_by_key, normalized)
        for key, value in source.items()
    )


def _map_verdict(
    parent_key: str, value: Any, results_by_key: Mapping[str, FieldResult], normalized: names.NormalizedKeys
) -> FieldVerdict:
    """Return the verdict of a map from which keys were extracted."""
    notes: list[str] = []
    has_error = False
    for key, each in normalized.extracted.items():
        if each.parent_key != parent_key:
            continue
        result = results_by_key.get(key)
        has_error = has_error or (result is not None and result.error is not None)
        native = KEY_ALIASES.get(key, key)
        texts = (result.note if result is not None else "", normalized.notes.get(key, ""))
        detail = "; ".join(text for text in texts if text and text != f"as {native}")
        native_hint = f" is {native}" if native in FIELD_NAMES and native != each.inner_key else ""
        notes.append(f"{each.inner_key}{native_hint}" + (f" ({detail})" if detail else ""))
    verdict = KeySupport.REFUSED if has_error else KeySupport.MAPPED
    note = f"{'; '.join(notes)}; the rest is stored in the notes"
    return FieldVerdict(field=parent_key, shown_value=_format_value(value), verdict=verdict, note=note)


def _build_agent(definition: scanner.FoundDefinition, partial: PartialDefinition, name: str) -> Agent:
    """Build the native agent; it must survive being rendered and parsed again."""
    prompts = [text for text in (partial.get("prompt"), definition.body, partial.get("prompt_path")) if text]
    if len(prompts) > 1:
        raise InvalidValue((), "has more than one prompt; remove all but one")
    if definition.body:
        partial["prompt"] = definition.body
    agent = definition_file.build_agent(
        with_prompt_from_file(partial, definition.path.parent, {}, str(definition.path)), name
    )
    definition_file.parse_preset(definition_file.render_definition(agent), str(definition.path))
    return agent


def _is_limiting(key: str) -> bool:
    return KEY_ALIASES.get(key, key) in _LIMITING_KEYS


def _is_misspelled_limit(result: FieldResult) -> bool:
    """Return True for a misspelled limit; kept only as a note it would leave the agent unlimited."""
    return result.is_unknown and any(
        _is_limiting(known_key) and validators.is_misspelling(result.key, known_key)
        for known_key in KNOWN_KEYS
    )


def _known_key_hint(key: str) -> str:
    return validators.known_names_hint(key, KNOWN_KEYS)


def _native_load_problem(definition: scanner.FoundDefinition) -> str:
    if definition.location or definition.path.suffix not in (".md", ".json"):
        return "is not a Retinue definition file"
    error = load_problem(definition.path)
    return "" if error is None else error.problem


def _unknown_keys_as_notes(results: list[FieldResult], notes: Mapping[str, Any]) -> PartialDefinition:
    """Return unknown keys as notes."""
    unknown = {each.key: validators.json_value(each.value, ()) for each in results if _is_display_only(each)}
    return {"notes": {**notes, **unknown}} if notes or unknown else {}


def _is_display_only(result: FieldResult) -> bool:
    """Return True if the key is only stored: it is unknown, or means something else in other programs."""
    return result.is_unknown or (result.error is not None and result.key in _AMBIGUOUS_KEYS)


def _decided_verdict(key: str, value: Any, verdict: KeySupport, note: str) -> FieldVerdict:
    return FieldVerdict(field=key, shown_value=_format_value(value), verdict=verdict, note=note)


def _field_verdict(result: FieldResult, source: Any, note: str) -> FieldVerdict:
    verdict, field_note = result.verdict, result.note
    if result.is_unknown:
        verdict, field_note = KeySupport.KEPT, "unknown field; stored in the notes"
    elif _is_display_only(result):
        verdict, field_note = KeySupport.KEPT, f"{field_note}; stored in the notes"
    elif note and verdict is KeySupport.HONOURED:
        verdict = KeySupport.MAPPED
    full_note = "; ".join(each for each in (field_note, note) if each)
    return FieldVerdict(field=result.key, shown_value=_format_value(source), verdict=verdict, note=full_note)


def _without_secrets(value: Any) -> Any:
    """Replace API keys in a definition before it is displayed."""
    if not isinstance(value, dict):
        return value
    mapping = cast("dict[str, Any]", value)
    return {
        key: "…" if key.lower() in _SECRET_KEYS else _without_secrets(each) for key, each in mapping.items()
    }


def _format_value(value: Any) -> str:
    text = (
        value
        if isinstance(value, str)
        else json.dumps(_without_secrets(value), ensure_ascii=False, default=str)
    )
    flat = " ".join(text.split())
    return flat if len(flat) <= MAX_VALUE_CHARS else flat[: MAX_VALUE_CHARS - 1] + "…"


_DIALECT_KEYS: tuple[tuple[str, frozenset[str]], ...] = (
    ("roo", frozenset(("roleDefinition", "customInstructions", "groups"))),
    ("codex", frozenset(("developer_instructions", "sandbox_mode"))),
    ("copilot", frozenset(("handoffs", "target", "infer", "mcp-servers"))),
    ("cursor", frozenset(("readonly",))),
    ("agent-config", frozenset(("agentId", "toolAllowlist", "toolDenylist", "systemPrompt", "chat"))),
    ("profile", frozenset(("promptPath", "defaultWorkspace", "permissionOverrides"))),
    ("preset", frozenset(("backend",))),
    ("opencode", frozenset(("mode", "hidden", "permission"))),
    (
        "claude-code",
        frozenset(("disallowedTools", "permissionMode", "mcpServers", "hooks", "color", "maxTurns")),
    ),
)
"""Programs that write definitions, each recognised by keys that only it uses."""


_CLAUDE_TOOLS = tuple(tool_names.NATIVE_NAMES)
"""A tuple, because a foreign list may contain unhashable items."""


def _detect_dialect(keys: Mapping[str, Any]) -> str:
    for name, dialect_keys in _DIALECT_KEYS:
        if dialect_keys & keys.keys():
            return name
    tools: Any = keys.get("tools")
    listed_tools = cast("list[Any]", names.TOOL_PATTERN.findall(tools) if isinstance(tools, str) else tools)
    is_claude = isinstance(tools, str | list) and any(each in _CLAUDE_TOOLS for each in listed_tools)
    if is_claude or keys.get("model") in ("sonnet", "opus", "haiku", "inherit"):
        return "claude-code"
    return "retinue" if set(keys) <= {*FIELD_NAMES, "tools"} else "other"


def _write_definition(agent: Agent, user_dir: Path, taken: set[str]) -> Path:
    """Create the file under the first free name."""
    user_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    number = 1
    while True:
        name = agent.name if number == 1 else f"{agent.name[:59]}-{number}"
        number += 1
        target = user_dir / f"{name}.md"
        if name in taken or os.path.lexists(target.with_suffix(".json")):
            continue
        try:
            with target.open("x", encoding="utf-8", newline="") as file:
                file.write(definition_file.render_definition(replace(agent, name=name)))
        except FileExistsError:
            continue
        return target
