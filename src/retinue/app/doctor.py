"""What is well on this machine, what is not, and what to do about it. Looks only: what is mended is mended elsewhere."""

import os
import platform
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from retinue.app.composition import check_model
from retinue.config.load import Config
from retinue.domain.agent import Agent
from retinue.domain.model_selection import NO_MODEL, labelled, model_for
from retinue.domain.run import Run, Status
from retinue.domain.sandbox_level import Lack, Level
from retinue.domain.sanitize import hidden
from retinue.domain.session import Session
from retinue.domain.skill import Skill
from retinue.domain.value import value
from retinue.errors import BadDefinition, RetinueError
from retinue.ledger.journal_mode import is_shared, kind_of
from retinue.ledger.repair import damage
from retinue.sandbox.files.openat2 import best_opener, walk_open
from retinue.sessions.scan import Survey
from retinue.sessions.store import FileStore
from retinue.storage.token_store import FILE, Tokens


@value
class Finding:
    level: str
    """ok, warn, bad, or mended just now."""
    what: str
    do: str = ""


def the_machine(config: Config) -> list[Finding]:
    """The programs and places everything rests on."""
    opener = "a walk, component by component" if best_opener() is walk_open else "openat2"
    return [
        Finding(
            level="ok", what=f"Python {platform.python_version()} on {platform.system()} {platform.release()}"
        ),
        Finding(level="ok", what=f"files are opened below the workspace by {opener}"),
        _home(config.home),
        *_keys(config.home),
        Finding(level="ok", what=f"configuration in {config.file or config.folder}"),
        _model(config),
    ]


def the_sandbox(level: Level, lacks: Sequence[Lack], minimum: Level) -> list[Finding]:
    """How tightly commands are held here, and what keeps them from being held more tightly."""
    found = [Finding(level="ok", what=f"commands are held by the sandbox at level {level}")]
    if not level.reaches(minimum):
        what = f"no command is run: the sandbox is {level}, and sandbox.minimum is {minimum}"
        found = [Finding(level="bad", what=what, do="see below, or ask for less in the configuration")]
    elif level is not Level.STRICT:
        what = f"commands are held by the sandbox at level {level} only: each of them asks a person"
        found = [Finding(level="warn", what=what, do="see below")]
    return found + [
        Finding(level="warn", what=f"sandbox level {lack.level} is missing: {lack.why}", do=lack.do)
        for lack in lacks
    ]


def the_definitions(broken: Sequence[BadDefinition], agents: Sequence[Agent]) -> list[Finding]:
    return [
        Finding(level="ok", what=f"{len(agents)} agents"),
        *(
            Finding(
                level="warn",
                what=f"{agent.name}: {count} invisible characters in what it is told",
                do="look for hidden text in its definition: `retinue agents check FILE`",
            )
            for agent in agents
            if (count := hidden(f"{agent.description}{agent.prompt}"))
        ),
        *(
            Finding(level="bad", what=str(error), do="mend the file: until then the agent is not there")
            for error in broken
        ),
    ]


def the_skills(broken: Sequence[BadDefinition], skills: Sequence[Skill]) -> list[Finding]:
    """Nothing where there are none: few have any."""
    count = f"{len(skills)} skill{'' if len(skills) == 1 else 's'}"
    return [
        *(Finding(level="ok", what=what) for what in (count,) if skills),
        *(
            Finding(
                level="warn",
                what=f"the skill {skill.plugin}: {hides} invisible characters in what agents are told of it",
                do=f"look for hidden text in {skill.file}",
            )
            for skill in skills
            if (hides := hidden(skill.description))
        ),
        *(Finding(level="bad", what=str(error), do="until then it is no skill") for error in broken),
    ]


def the_servers(rows: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """Programs that bring tools: whether they are there, and what was trusted of them."""
    return [_server(row) for row in rows]


def _server(row: Mapping[str, Any]) -> Finding:
    who, trust = f"MCP server {row['name']}", f"retinue mcp trust {row['name']}"
    if not row["found"]:
        do = "install it, or write its whole path in the configuration: its tools fail until then"
        return Finding(level="bad", what=f"{who}: there is no program {row['command'][0]}", do=do)
    if row["changed"]:
        what = f"{who}: refused, because not what was trusted any more: {', '.join(row['changed'])}"
        return Finding(level="warn", what=what, do=f"look at them, and trust them again or not: {trust}")
    if row["left_out"]:
        what = (
            f"{who}: left out, because they are unfit or their names are taken: {', '.join(row['left_out'])}"
        )
        do = f"retinue mcp show {row['name']} says which; for a name that is taken, call the server otherwise"
        return Finding(level="warn", what=what, do=do)
    if not row["trusted"]:
        do = f"look at what it offers, and trust it: {trust}"
        return Finding(level="warn", what=f"{who}: nothing of it is trusted, so it brings no tools", do=do)
    count = len(row["trusted"])
    return Finding(level="ok", what=f"{who}: {count} tool{'' if count == 1 else 's'}")


def the_ledger(path: Path) -> list[Finding]:
    """Every page and every row is read."""
    found = damage(path)
    if found is None:
        return [Finding(level="ok", what=f"the ledger is sound: {path}")]
    do = "retinue doctor --repair keeps it aside and begins a new one"
    return [Finding(level="bad", what=f"the ledger is damaged ({found}): {path}", do=do)]


async def the_conversations(
    store: FileStore, sessions: Sequence[Session], runs: Sequence[Run]
) -> list[Finding]:
    """Files are the truth of what was said, the ledger of what ran: where they disagree, both sides are told."""
    findings = [Finding(level="ok", what=f"{len(sessions)} sessions, {len(runs)} runs")]
    known = {run.id for run in runs}
    said: dict[str, Survey] = {}
    for session in sessions:
        where = f"{session.path}/session.md"
        survey = await store.survey(session)
        said[session.id] = survey
        bad = [*survey.problems, *await store.problems(session)]
        findings += [
            Finding(level="bad", what=problem, do=f"mend {where}: it is left as it is") for problem in bad
        ]
        if strange := survey.runs - known:
            what = f"{where} tells of {len(strange)} runs that the ledger does not know"
            findings.append(Finding(level="warn", what=what, do="the words stand and go on as they are"))
        if _cleared(session):
            said.pop(session.id)
    return findings + _unsaid(said, runs)


def _unsaid(said: Mapping[str, Survey], runs: Sequence[Run]) -> list[Finding]:
    """What was taken out of a file stays out: a person may have wanted it so, and the run's record has the last word."""
    findings: list[Finding] = []
    for run in runs:
        if run.status is not Status.DONE or (survey := said.get(run.session_id)) is None:
            continue
        do = f"somebody took it out; `retinue runs show {run.id}` still has its last word"
        if run.id not in survey.runs:
            what = f"run {run.id} is done, and nothing of it stands in {run.path}"
            findings.append(Finding(level="warn", what=what, do=do))
        elif (there := survey.replies.get(run.id, 0)) < run.turns:
            what = f"run {run.id} is done, and of its {run.turns} replies {there} stand in {run.path}"
            findings.append(Finding(level="warn", what=what, do=do))
    return findings


def _cleared(session: Session) -> bool:
    return any(Path(session.path).glob("session.md.cleared-*"))


def _home(home: Path) -> Finding:
    if not home.exists():
        return Finding(level="ok", what=f"data will be in {home}")
    if stat.S_IMODE(home.stat().st_mode) & 0o077:
        return Finding(level="warn", what=f"others may look into {home}", do=f"chmod 700 {home}")
    if not os.access(home, os.W_OK):
        do = "let it be written to, or choose another with RETINUE_HOME; until then one can only look"
        return Finding(level="bad", what=f"nothing can be written to {home}", do=do)
    if is_shared(kind := kind_of(home)):
        what = f"{home} is on {kind}: others may stand behind its files, so the ledger is kept without a log"
        return Finding(level="warn", what=what, do="a disk of this machine is faster and safer: RETINUE_HOME")
    return Finding(level="ok", what=f"data in {home}")


def _keys(home: Path) -> list[Finding]:
    """What opens the daemon's port is for its owner's eyes only."""
    found: list[Finding] = []
    for path in (home / "token", home / FILE):
        if path.exists() and stat.S_IMODE(path.stat().st_mode) & 0o077:
            do = f"chmod 600 {path}; if others have looked, remove it: the daemon makes a new one"
            found.append(Finding(level="bad", what=f"others may read {path}, which opens the daemon", do=do))
    try:
        Tokens(home).all()
    except RetinueError as error:
        found.append(Finding(level="bad", what=str(error), do="until then none of its tokens opens anything"))
    return found


def _model(config: Config) -> Finding:
    default = config.default_model()
    if default is None:
        return Finding(level="warn", what="no default model", do=NO_MODEL)
    try:
        check_model(model_for(Agent(name="general"), None, default), config)
    except RetinueError as error:
        return Finding(level="bad", what=f"default model {default}", do=str(error))
    return Finding(level="ok", what=f"default model {labelled(default)}")
