"""Check this machine, its data and the configuration, without changing anything."""

import os
import platform
import stat
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from msgspec import Struct

from retinue.app.composition import check_model
from retinue.app.home_sizes import HomeSizes, format_bytes
from retinue.config.load import Config
from retinue.domain.agent import Agent
from retinue.domain.limits import RetentionSettings
from retinue.domain.model_selection import NO_MODEL_MESSAGE, model_label, select_model
from retinue.domain.number_format import format_count
from retinue.domain.run import Run, Status
from retinue.domain.sandbox_level import MissingLevel, SandboxLevel
from retinue.domain.sanitize import count_hidden
from retinue.domain.session import Session
from retinue.domain.skill import Skill
from retinue.errors import BadDefinition, RetinueError
from retinue.isolated_python import relative_entries
from retinue.ledger.journal_mode import detect_filesystem_type, is_shared_filesystem
from retinue.ledger.repair import find_damage
from retinue.providers.model_catalog import catalog_date, find_end
from retinue.sandbox.cgroup import can_limit_memory
from retinue.sandbox.files.openat2 import best_opener, walk_open
from retinue.sessions.scan import SessionScan
from retinue.sessions.store import FileStore
from retinue.storage.token_store import TOKENS_FILE, TokenStore

MAX_CATALOG_AGE = timedelta(days=180)
MAX_CHECKED_BYTES = 1_000_000
"""Size of a configuration file above which `doctor` does not search for keys."""


class Finding(Struct, frozen=True, kw_only=True):
    """A line of the report."""

    status: str
    """ok, warn, bad, or repaired (just now)."""
    message: str
    advice: str = ""


def machine_findings(config: Config, redact: Callable[[str], str]) -> list[Finding]:
    """Check Python, the home folder, credentials, the configuration and the default model."""
    opener = (
        "one folder at a time, because openat2 is not available"
        if best_opener() is walk_open
        else "by openat2"
    )
    return [
        Finding(
            status="ok",
            message=f"Python {platform.python_version()} on {platform.system()} {platform.release()}",
        ),
        *_import_path_findings(os.environ),
        Finding(status="ok", message=f"file access: paths are resolved {opener}"),
        _home_finding(config.home),
        *_credential_findings(config.home),
        *_exposed_key_findings(config, redact),
        Finding(status="ok", message=f"configuration: {config.file or config.config_dir}"),
        _default_model_finding(config),
    ]


def model_findings(config: Config, agents: Sequence[Agent], today: date) -> list[Finding]:
    """Warn of models that their vendors shut down, and of an old list of prices."""
    default = config.default_model()
    users: dict[str, list[str]] = {}
    for agent in agents:
        with suppress(RetinueError):  # reported elsewhere
            model = select_model(agent, None, default, config.providers, config.fallback_models)
            for each in model.candidates:
                users.setdefault(each.full_name, []).append(agent.name)
    if default is not None:
        users.setdefault(default, [])
    findings = [
        _end_finding(model, end, names if model != default else [], today)
        for model, names in users.items()
        if (end := find_end(model, config.providers)) is not None
    ]
    if today - catalog_date() > MAX_CATALOG_AGE:
        message = f"model prices: the list that comes with Retinue is of {catalog_date()}"
        advice = "update Retinue, or set `prices` in the configuration"
        findings.append(Finding(status="warn", message=message, advice=advice))
    return findings


def _end_finding(model: str, end: date, agents: Sequence[str], today: date) -> Finding:
    user = f"model of {', '.join(agents)}" if agents else "default model"
    verb = "is" if end >= today else "was"
    provider = model.partition(":")[0]
    return Finding(
        status="warn",
        message=f"{user}: {model} {verb} shut down by its vendor on {end}",
        advice=f"choose another model: `retinue models list {provider}`",
    )


def sandbox_findings(
    level: SandboxLevel, missing_levels: Sequence[MissingLevel], minimum: SandboxLevel
) -> list[Finding]:
    """Report the sandbox level and what would be needed for a higher one."""
    found = [Finding(status="ok", message=f"sandbox: {level}")]
    if not level.is_at_least(minimum):
        message = f"sandbox: {level}, but sandbox.minimum is {minimum}: no command can run"
        found = [
            Finding(
                status="bad",
                message=message,
                advice="see below, or lower sandbox.minimum in the configuration",
            )
        ]
    elif level is not SandboxLevel.STRICT:
        message = f"sandbox: {level}; every command requires approval"
        found = [Finding(status="warn", message=message, advice="see below")]
    if level is not SandboxLevel.NONE:
        found.append(_memory_limit_finding())
    return found + [
        Finding(
            status="warn",
            message=f"sandbox level {missing.level} is not available: {missing.reason}",
            advice=f"{missing.remedy}; processes that are running try it again every minute"
            if missing.is_retried
            else missing.remedy,
        )
        for missing in missing_levels
    ]


def _memory_limit_finding() -> Finding:
    if can_limit_memory():
        return Finding(status="ok", message="memory of a command: at most 4 GB in total")
    return Finding(
        status="warn",
        message="memory of a command: at most 4 GB for each of its processes, not in total",
        advice="run Retinue in a systemd user service, or as another user who may create control groups",
    )


def definition_findings(broken: Sequence[BadDefinition], agents: Sequence[Agent]) -> list[Finding]:
    return [
        Finding(status="ok", message=format_count(len(agents), "agent")),
        *(
            Finding(
                status="warn",
                message=f"{agent.name}: {format_count(count, 'invisible character')} in its prompt or description",
                advice="check its definition for hidden text: `retinue agents check FILE`",
            )
            for agent in agents
            if (count := count_hidden(f"{agent.description}{agent.prompt}"))
        ),
        *(
            Finding(
                status="bad",
                message=str(error),
                advice="repair the file; until then the agent is not available",
            )
            for error in broken
        ),
    ]


def skill_findings(broken: Sequence[BadDefinition], skills: Sequence[Skill]) -> list[Finding]:
    """Report skills and broken skill files; nothing if there are none, which is the usual case."""
    count = format_count(len(skills), "skill")
    return [
        *(Finding(status="ok", message=message) for message in (count,) if skills),
        *(
            Finding(
                status="warn",
                message=f"skill {skill.name}: {format_count(hidden_count, 'invisible character')} in its description",
                advice=f"check {skill.file} for hidden text",
            )
            for skill in skills
            if (hidden_count := count_hidden(skill.description))
        ),
        *(
            Finding(
                status="bad",
                message=str(error),
                advice="repair the file; until then the skill is not available",
            )
            for error in broken
        ),
    ]


def mcp_server_findings(rows: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """Report for each MCP server whether its program exists and which of its tools are trusted."""
    return [_mcp_server_finding(row) for row in rows]


def _mcp_server_finding(row: Mapping[str, Any]) -> Finding:
    server_label, trust_command = f"MCP server {row['name']}", f"retinue mcp trust {row['name']}"
    if not row["command_found"]:
        advice = "install it, or give its full path in the configuration; until then its tools fail"
        return Finding(
            status="bad", message=f"{server_label}: program not found: {row['command'][0]}", advice=advice
        )
    if row["changed"]:
        message = f"{server_label}: tools refused because they changed since you trusted them: {', '.join(row['changed'])}"
        return Finding(
            status="warn",
            message=message,
            advice=f"review them and trust them again: {trust_command}",
        )
    if row["unavailable"]:
        message = f"{server_label}: tools not available, because they are invalid or their names are taken: {', '.join(row['unavailable'])}"
        advice = f"see `retinue mcp show {row['name']}`; if a name is taken, rename the server"
        return Finding(status="warn", message=message, advice=advice)
    if not row["trusted"]:
        advice = f"review its tools and trust them: {trust_command}"
        return Finding(
            status="warn",
            message=f"{server_label}: no trusted tools, so none are available",
            advice=advice,
        )
    return Finding(status="ok", message=f"{server_label}: {format_count(len(row['trusted']), 'tool')}")


def ledger_findings(path: Path) -> list[Finding]:
    """Check every page and row of the ledger."""
    damaged = find_damage(path)
    if damaged is None:
        return [Finding(status="ok", message=f"ledger: no damage found in {path}")]
    advice = "`retinue doctor --repair` keeps a copy and creates a new one"
    return [Finding(status="bad", message=f"ledger: damaged ({damaged}): {path}", advice=advice)]


async def session_findings(
    store: FileStore, sessions: Sequence[Session], runs: Sequence[Run], pruned_ids: AbstractSet[str]
) -> list[Finding]:
    """Compare session files with the ledger and report every disagreement.

    Files are authoritative for messages, the ledger for runs.
    """
    counts = f"{format_count(len(sessions), 'session')}, {format_count(len(runs), 'run')}"
    findings = [Finding(status="ok", message=counts)]
    known_run_ids = pruned_ids | {run.id for run in runs}
    scans: dict[str, SessionScan] = {}
    for session in sessions:
        path = f"{session.path}/session.md"
        scan = await store.scan(session)
        scans[session.id] = scan
        bad = [*scan.problems, *await store.problems(session)]
        findings += [
            Finding(
                status="bad", message=problem, advice=f"repair {path} by hand; Retinue does not change it"
            )
            for problem in bad
        ]
        if unknown_runs := scan.run_ids - known_run_ids:
            verb = "is" if len(unknown_runs) == 1 else "are"
            message = (
                f"{path} mentions {format_count(len(unknown_runs), 'run')} that {verb} not in the ledger"
            )
            findings.append(
                Finding(
                    status="warn",
                    message=message,
                    advice="nothing to do: the conversation stays as it is and can be continued",
                )
            )
        if _was_cleared(session):
            scans.pop(session.id)
    return findings + _missing_reply_findings(scans, runs)


def _missing_reply_findings(scans: Mapping[str, SessionScan], runs: Sequence[Run]) -> list[Finding]:
    """Report finished runs whose replies are missing from their files.

    Nothing is restored: a person may have removed them on purpose, and the run's record still has its final
    text.
    """
    findings: list[Finding] = []
    for run in runs:
        if run.status is not Status.DONE or (scan := scans.get(run.session_id)) is None:
            continue
        advice = f"the file was edited; `retinue runs show {run.id}` still has the result"
        if run.id not in scan.run_ids:
            message = f"run {run.id} is done, but {run.transcript_path} contains no entry from this run"
            findings.append(Finding(status="warn", message=message, advice=advice))
        elif (saved_replies := scan.replies.get(run.id, 0)) < run.turns:
            message = f"run {run.id} is done, but {run.transcript_path} has only {saved_replies} of its {run.turns} replies"
            findings.append(Finding(status="warn", message=message, advice=advice))
    return findings


def size_findings(sizes: HomeSizes, retention: RetentionSettings) -> list[Finding]:
    """Report the sizes of the home's parts, and a ledger that is larger than it should be."""
    findings = [Finding(status="ok", message=f"sizes: {sizes.describe()}")]
    if sizes.ledger > 1.5 * retention.ledger_bytes:
        message = f"the ledger has {format_bytes(sizes.ledger)}, more than retention.ledger_mb = {retention.ledger_mb:g}"
        advice = "`retinue doctor --repair` prunes ended runs; if the ledger is still too large after that, raise the limit"
        findings.append(Finding(status="warn", message=message, advice=advice))
    return findings


def _was_cleared(session: Session) -> bool:
    return any(Path(session.path).glob("session.md.cleared-*"))


def _home_finding(home: Path) -> Finding:
    if not home.exists():
        return Finding(status="ok", message=f"home: {home} (created on first use)")
    if stat.S_IMODE(home.stat().st_mode) & 0o077:
        return Finding(
            status="warn", message=f"home: other users can read {home}", advice=f"chmod 700 {home}"
        )
    if not os.access(home, os.W_OK):
        advice = "make it writable, or choose another one with RETINUE_HOME; until then Retinue can only read"
        return Finding(status="bad", message=f"home: {home} is not writable", advice=advice)
    if is_shared_filesystem(filesystem := detect_filesystem_type(home)):
        message = f"home: {home} is on {filesystem}, which may be shared, so the ledger does not use a write-ahead log"
        return Finding(
            status="warn",
            message=message,
            advice="set RETINUE_HOME to a folder on a local disk, which is faster and safer",
        )
    return Finding(status="ok", message=f"home: {home}")


def _credential_findings(home: Path) -> list[Finding]:
    """Report credential files of the daemon that other users can read, and tokens that cannot be read."""
    found: list[Finding] = []
    for path in (home / "token", home / TOKENS_FILE):
        if path.exists() and stat.S_IMODE(path.stat().st_mode) & 0o077:
            advice = f"chmod 600 {path}; if other users have read it, remove it: the daemon creates a new one"
            found.append(
                Finding(
                    status="bad",
                    message=f"other users can read {path}, which gives access to the daemon",
                    advice=advice,
                )
            )
    try:
        TokenStore(home).all()
    except RetinueError as error:
        found.append(
            Finding(status="bad", message=str(error), advice="until then its tokens are not accepted")
        )
    return found


def _exposed_key_findings(config: Config, redact: Callable[[str], str]) -> list[Finding]:
    """Report files of the configuration that contain a key and that other users can read."""
    folders = (config.config_dir, config.agents_dir)
    return [
        Finding(
            status="bad",
            message=f"other users can read {path}, which contains a key",
            advice=f"chmod 600 {path}; if other users have read it, replace the key",
        )
        for folder in folders
        for path in (sorted(folder.iterdir()) if folder.is_dir() else ())
        if _is_readable_by_others(path) and _contains_key(path, redact)
    ]


def _is_readable_by_others(path: Path) -> bool:
    try:
        status = path.stat()
    except OSError:
        return False
    is_small_file = stat.S_ISREG(status.st_mode) and status.st_size <= MAX_CHECKED_BYTES
    return is_small_file and bool(status.st_mode & (stat.S_IRGRP | stat.S_IROTH))


def _contains_key(path: Path, redact: Callable[[str], str]) -> bool:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return redact(text) != text


def _import_path_findings(env: Mapping[str, str]) -> list[Finding]:
    """Report a PYTHONPATH that makes every Python program import from the current folder."""
    if not relative_entries(env.get("PYTHONPATH", "")):
        return []
    advice = "remove the empty and relative entries; Retinue's own processes ignore them"
    message = "PYTHONPATH has an entry that means the current folder: Python programs import from there"
    return [Finding(status="warn", message=message, advice=advice)]


def _default_model_finding(config: Config) -> Finding:
    default = config.default_model()
    if default is None:
        return Finding(status="warn", message="default model: none", advice=NO_MODEL_MESSAGE)
    message, status = f"default model: {model_label(default)}", "bad"
    try:
        model = select_model(Agent(name="general"), None, default, config.providers, config.fallback_models)
        check_model(model.candidates[0], config)
        status = "warn"
        for each in model.fallbacks:
            check_model(each, config)
    except RetinueError as error:
        return Finding(status=status, message=message, advice=str(error))
    fallbacks = ", ".join(each.full_name for each in model.fallbacks)
    return Finding(status="ok", message=f"{message}, fallbacks: {fallbacks}" if fallbacks else message)
