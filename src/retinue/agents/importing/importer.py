"""Definitions that were written for other programs: checked field by field, and brought over into files of ours."""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from retinue.agents import definition_file, validators
from retinue.agents.dialects import tool_names
from retinue.agents.dialects.key_aliases import Verdict
from retinue.agents.fields import ALIASES, KNOWN, NATIVE, Partial, Reading, interpret, merged
from retinue.agents.importing import names, nested_maps, scanner
from retinue.agents.sources import as_it_stands, built_in_texts, prompted
from retinue.agents.validators import Wrong
from retinue.domain.agent import Agent
from retinue.domain.value import value
from retinue.errors import BadDefinition

MAX_SHOWN = 120
STRANGE = (
    "driver_settings: a definition from elsewhere does not say which server is asked, which key it gets, or how a "
    "program is started; take that out, import it, and add it yourself"
)
_SERVER = frozenset(("base_url", "baseUrl", "api_key_env", "apiKeyEnv", "extraArgs", "wrapper", "hosts"))
_KEYS = ("api_key", "apikey", "api-key", "token", "password", "secret")
_LIMITING = frozenset(
    (
        "tool_allow", "tool_deny", "capability_allow", "capability_deny", "agent_allow", "agent_deny",
        "skill_allow", "skill_deny", "paths", "workspace", "ceiling", "defaultWorkspace", "permissionOverrides",
        "isolation", "subagents", "permission", "permissions", "groups", "agents", "readonly", "readOnly", "read_only",
        "read-only", "canEdit", "can_edit", "enable_write_tools", "disable", "disabled",
        "allowed_paths", "allowedPaths", "denied_paths", "deniedPaths", "forbidden_paths", "blocked_paths",
        "disallowed_paths", "file_access", "network_access", "spawns",
    )
)  # fmt: skip
"""Fields that take rights away: one that cannot be understood cannot be left out either."""
_ELSEWHERE = ("type", "capabilities", "mode", "triggers")
_TELLING = frozenset(
    (
        "prompt", "promptPath", "model", "driver", "chat", "temperature", "max_tokens", "max_turns", "tool_allow",
        "tool_deny", "roles", "mode", "groups", "triggers", "workspace", "defaultWorkspace", "permissionOverrides",
        "extends", "notes", "paths", "skill_allow",
    )
)  # fmt: skip
"""Fields that hardly anything but an agent has; a name and a description are in every second file."""


@value
class FieldVerdict:
    field: str
    """The key as it stands in the source."""
    value_shown: str
    verdict: Verdict
    note: str = ""


@value
class Checked:
    """What becomes of one foreign definition."""

    path: Path
    ok: bool
    """Whether it can be imported."""
    name: str
    dialect: str
    fields: tuple[FieldVerdict, ...] = ()
    problems: tuple[str, ...] = ()
    mended: tuple[str, ...] = ()
    """Keys whose value is no YAML as written, and was taken as plain text."""
    passed_over: bool = False
    """Whether it is no definition at all, only a file that lies beside some in a folder."""
    stands: str = ""
    """Why the file would not load as it stands, without an import; empty when it would."""


@value
class Imported:
    """A check, and the file that was written; None where nothing was."""

    checked: Checked
    target: Path | None = None
    name: str = ""


def check(path: Path | str) -> list[Checked]:
    """Every definition in a file or folder. Never raises: what cannot be read is a problem of its own."""
    return [checked for checked, _ in _judged(Path(path))]


def import_(path: Path | str, user_dir: Path) -> list[Imported]:
    """Writes a definition of ours for each that is usable. Never overwrites: a name that is taken gets a number."""
    taken = {*built_in_texts()}
    found: list[Imported] = []
    for checked, agent in _judged(Path(path)):
        if agent is None:
            problems = checked.problems or (STRANGE,)
            found.append(Imported(checked=replace(checked, ok=False, problems=problems)))
            continue
        try:
            target = _write(agent, user_dir, taken)
        except OSError as error:
            problem = f"cannot be written to {user_dir}: {error.strerror}"
            found.append(Imported(checked=replace(checked, ok=False, problems=(*checked.problems, problem))))
            continue
        found.append(Imported(checked=checked, target=target, name=target.stem))
    return found


def _judged(path: Path) -> list[tuple[Checked, Agent | None]]:
    if not os.path.lexists(path):
        return [
            (Checked(path=path, ok=False, name="", dialect="none", problems=("there is no such file",)), None)
        ]
    walked = path.is_dir()
    return [
        _judge(_told(found) if walked else replace(found, other=False))
        for file in scanner.files(path)
        for found in scanner.read(file)
    ]


def _told(found: scanner.Found) -> scanner.Found:
    """In a folder there are files of other kinds: `package.json` has a name and a description too."""
    markdown = found.path.suffix.lower() in scanner.MARKDOWN
    if (
        markdown
        or found.problem
        or found.place
        or any(ALIASES.get(key, key) in _TELLING for key in found.keys)
    ):
        return found
    say = "is no definition: nothing in it tells of an agent; name the file itself to take it as one"
    return scanner.Found(path=found.path, problem=say, other=True)


def _judge(found: scanner.Found) -> tuple[Checked, Agent | None]:
    # A name in a collection is no folder, whatever is written in it.
    where = (
        found.path.with_name(f"{found.path.name}#{found.place.replace('/', ':')}")
        if found.place
        else found.path
    )
    if found.problem:
        checked = Checked(
            path=where,
            ok=False,
            name="",
            dialect="none",
            problems=(found.problem,),
            passed_over=found.other,
        )
        return checked, None
    ready = names.prepared(found.keys, found.mended, found.path.stem)
    partial, readings = interpret(ready.keys)
    problems = [*_problems(readings, ready), *nested_maps.doubtful(found.keys)]
    stands = _as_it_stands(found)
    strange = bool(_SERVER & (partial.get("driver_settings") or {}).keys())
    if strange and stands:
        problems.append(STRANGE)
    name = str(partial.pop("name", None) or validators.slugged(found.path.stem) or "agent")
    agent: Agent | None = None
    try:
        agent = _agent(found, merged(partial, _kept(readings, ready.kept)), name)
    except (Wrong, BadDefinition) as error:
        problems.append(str(error))
    checked = Checked(
        path=where,
        stands=stands,
        ok=not problems,
        name=name,
        dialect=_dialect(found.keys),
        fields=_verdicts(found.keys, readings, ready),
        problems=tuple(problems),
        mended=found.mended,
    )
    return checked, None if problems or strange else agent


def _problems(readings: list[Reading], ready: names.Prepared) -> Iterator[str]:
    """What cannot be left out and cannot be had. An agent without its prompt is another agent."""
    for each in readings:
        if each.wrong is not None and (_limits(each.key) or ALIASES.get(each.key, each.key) == "prompt"):
            yield _placed(str(each.wrong), each.key, ready)
        elif _near_limit(each):
            yield f"{each.key}: is not a known field{_meant(each.key)}"


def _placed(problem: str, key: str, ready: names.Prepared) -> str:
    """A thing that was lifted out of a map is named by where it stands."""
    if key not in ready.lifted:
        return problem
    lifted = ready.lifted[key]
    return f"{lifted.holder}.{lifted.inner}{problem.removeprefix(key)}"


def _verdicts(
    source: Mapping[str, Any], readings: list[Reading], ready: names.Prepared
) -> tuple[FieldVerdict, ...]:
    """One for each key of the source, whatever it came to."""
    said = {each.key: each for each in readings}
    return tuple(
        _settled(key, value, *ready.settled[key])
        if key in ready.settled
        else _verdict(said[key], value, ready.notes.get(key, ""))
        if key in said
        else _opened(key, value, said, ready)
        for key, value in source.items()
    )


def _opened(holder: str, value: Any, said: Mapping[str, Reading], ready: names.Prepared) -> FieldVerdict:
    """What became of a map out of which things were lifted."""
    notes: list[str] = []
    wrong = False
    for key, each in ready.lifted.items():
        if each.holder != holder:
            continue
        reading = said.get(key)
        wrong = wrong or (reading is not None and reading.wrong is not None)
        native = ALIASES.get(key, key)
        told = (reading.note if reading is not None else "", ready.notes.get(key, ""))
        words = "; ".join(one for one in told if one and one != f"as {native}")
        meant = f" is {native}" if native in NATIVE and native != each.inner else ""
        notes.append(f"{each.inner}{meant}" + (f" ({words})" if words else ""))
    verdict = Verdict.REFUSED if wrong else Verdict.MAPPED
    say = f"{'; '.join(notes)}; the rest is kept among the notes"
    return FieldVerdict(field=holder, value_shown=_shown(value), verdict=verdict, note=say)


def _agent(found: scanner.Found, partial: Partial, name: str) -> Agent:
    """The definition as ours; it must survive being written down and read again."""
    prompts = [text for text in (partial.get("prompt"), found.body, partial.get("prompt_path")) if text]
    if len(prompts) > 1:
        raise Wrong((), "has more than one prompt; keep one of them")
    if found.body:
        partial["prompt"] = found.body
    agent = definition_file.build(prompted(partial, found.path.parent, {}, str(found.path)), name)
    definition_file.parse_preset(definition_file.render(agent), str(found.path))
    return agent


def _limits(key: str) -> bool:
    return ALIASES.get(key, key) in _LIMITING


def _near_limit(reading: Reading) -> bool:
    """A misspelt field that takes rights away would leave an agent with all of them, were it only kept for show."""
    return reading.unknown and any(
        _limits(known) and validators.misspells(reading.key, known) for known in KNOWN
    )


def _meant(key: str) -> str:
    return validators.hint(key, KNOWN)


def _as_it_stands(found: scanner.Found) -> str:
    if found.place or found.path.suffix not in (".md", ".json"):
        return "is not a definition file of ours"
    bad = as_it_stands(found.path)
    return "" if bad is None else bad.problem


def _kept(readings: list[Reading], already: Mapping[str, Any]) -> Partial:
    """Keys that we do not know, among the notes."""
    unknown = {each.key: validators.anything(each.value, ()) for each in readings if _for_show(each)}
    return {"notes": {**already, **unknown}} if already or unknown else {}


def _for_show(reading: Reading) -> bool:
    """A word that means something else elsewhere is no mistake, and no loss either."""
    return reading.unknown or (reading.wrong is not None and reading.key in _ELSEWHERE)


def _settled(key: str, value: Any, verdict: Verdict, note: str) -> FieldVerdict:
    return FieldVerdict(field=key, value_shown=_shown(value), verdict=verdict, note=note)


def _verdict(reading: Reading, source: Any, note: str) -> FieldVerdict:
    verdict, say = reading.verdict, reading.note
    if reading.unknown:
        verdict, say = Verdict.KEPT, "no such field here; kept among the notes"
    elif _for_show(reading):
        verdict, say = Verdict.KEPT, f"{say}; kept among the notes"
    elif note and verdict is Verdict.HONOURED:
        verdict = Verdict.MAPPED
    said = "; ".join(each for each in (say, note) if each)
    return FieldVerdict(field=reading.key, value_shown=_shown(source), verdict=verdict, note=said)


def _hidden(value: Any) -> Any:
    """A key that somebody wrote into a definition is not shown again."""
    if not isinstance(value, dict):
        return value
    known = cast("dict[str, Any]", value)
    return {key: "…" if key.lower() in _KEYS else _hidden(each) for key, each in known.items()}


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(_hidden(value), ensure_ascii=False, default=str)
    flat = " ".join(text.split())
    return flat if len(flat) <= MAX_SHOWN else flat[: MAX_SHOWN - 1] + "…"


_DIALECTS: tuple[tuple[str, frozenset[str]], ...] = (
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
"""Which program a definition was written for, told by keys that only it uses."""


_CLAUDE_TOOLS = tuple(tool_names.OURS)
"""A tuple, because a wild list may hold what no set can be asked for."""


def _dialect(keys: Mapping[str, Any]) -> str:
    for name, telling in _DIALECTS:
        if telling & keys.keys():
            return name
    tools: Any = keys.get("tools")
    words = cast("list[Any]", names.TOOL.findall(tools) if isinstance(tools, str) else tools)
    claude = isinstance(tools, str | list) and any(each in _CLAUDE_TOOLS for each in words)
    if claude or keys.get("model") in ("sonnet", "opus", "haiku", "inherit"):
        return "claude-code"
    return "retinue" if set(keys) <= {*NATIVE, "tools"} else "other"


def _write(agent: Agent, user_dir: Path, taken: set[str]) -> Path:
    """Creates the file under the first free name."""
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
                file.write(definition_file.render(replace(agent, name=name)))
        except FileExistsError:
            continue
        return target
