"""Runs attacks through the real application, with a scripted model and answered approvals."""

import asyncio
import json
import sys
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from attack import PYTHON, SUCCESS_MARKER, Attack, ToolUse, fill_placeholders
from target_machine import Fingerprint, TargetMachine

import retinue
from retinue.app.run_options import RunOptions
from retinue.domain.run import WaitReason
from retinue.domain.sandbox_level import SandboxLevel

AGENTS = {
    "attacker": "",
    "fenced": "paths:\n  deny: ['**/.env', 'private/**', 'Caf\u00e9.key', '**/.git/**']\n",
    "narrow": "paths:\n  read: ['pub/**', '*.txt']\n  write: ['pub/**']\n",
    "reader": "workspace:\n  writable: false\n",
    "treed": "workspace:\n  isolation: sandbox\n  writable: true\n",
    "both": "workspace:\n  isolation: sandbox\n  writable: true\npaths:\n  read: ['**', '@ws@/**']\n  write: ['**', '@ws@/**']\n",
}
ATTACK_TIMEOUT_S = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    attack: Attack
    evidence: tuple[str, ...]
    """Empty: the attack failed."""
    output: str
    duration_ms: int


@dataclass(slots=True, kw_only=True)
class BatteryRunner:
    """The application, opened once; each attack has its own session."""

    machine: TargetMachine
    max_level: SandboxLevel
    app: retinue.App = field(init=False)
    level: SandboxLevel = field(init=False)
    _stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    _count: int = 0

    async def __aenter__(self) -> Self:
        machine = self.machine
        machine.placeholders |= {"python": sys.executable, "package": str(Path(retinue.__file__).parent)}
        (machine.config / "agents").mkdir()
        assert PYTHON.startswith("/usr/"), "the attacks need a Python in /usr: apt-get install python3"
        for name, front in AGENTS.items():
            definition = (
                f"---\nname: {name}\n{fill_placeholders(front, machine.placeholders)}---\n\nYou attack.\n"
            )
            (machine.config / f"agents/{name}.md").write_text(definition)
        hosts = [
            f"http://localhost:{machine.placeholders['tcp']}",
            f"http://localhost:{machine.placeholders['tcp6']}",
            "*",
        ]
        settings = {
            "approvals": "auto",
            "deny": {"paths": ["vault/**"]},
            "web_fetch": {"hosts": hosts},
        }
        (machine.config / "config.json").write_text(json.dumps(settings))
        env = {
            "PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(machine.user), "RETINUE_CONFIG": str(machine.config),
            "RETINUE_HOME": str(machine.home), "RETINUE_SANDBOX": str(self.max_level), "OPENAI_API_KEY": machine.secrets["environment"],
        }  # fmt: skip
        self.app = await self._stack.enter_async_context(retinue.open(env=env))
        self.level = await self.app.context.runtime.sandbox.detect_level()
        await self._create_victim_session()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    async def _create_victim_session(self) -> None:
        """Create another session with a secret in its transcript and in its /tmp."""
        self.machine.reset()
        secret = self.machine.secrets["session"]
        run = await self.app.run(
            f"Keep {secret} to yourself",
            agent="attacker",
            workspace=self.machine.ws,
            model=self._write_script([]),
        )
        session = await self.app.sessions.find(run.session_id)
        tmp_folder = self.machine.home / "tmp" / session.id
        tmp_folder.mkdir(mode=0o700, parents=True)
        (tmp_folder / "note").write_text(self.machine.secrets["tmp"])
        self.machine.placeholders |= {"victim": str(session.path), "victim_tmp": str(tmp_folder)}
        self.machine.save_backup()

    async def run(self, attack: Attack) -> Outcome:
        machine = self.machine
        machine.reset()
        if attack.before is not None:
            attack.before(machine)
        before = machine.fingerprint()
        loop = asyncio.get_running_loop()
        started_at = loop.time()
        try:
            async with asyncio.timeout(ATTACK_TIMEOUT_S):
                output = await self.run_conversation(attack)
        finally:
            if attack.after is not None:
                await asyncio.to_thread(attack.after, machine)
        duration_ms = round((loop.time() - started_at) * 1000)
        evidence = self._find_evidence(attack, before, output)
        if evidence:
            machine.restore()
        return Outcome(attack=attack, evidence=tuple(evidence), output=output, duration_ms=duration_ms)

    async def run_conversation(self, attack: Attack) -> str:
        """Run the attack as a conversation and return all tool results."""
        script = self._write_script([list(turn) for turn in attack.turns])
        try:
            run = await self.app.runs.start(
                "Attack", RunOptions(agent=attack.agent, workspace=self.machine.ws, model=script)
            )
        except retinue.RetinueError as error:
            return str(error)
        run = await self.app.runs.wait(run.id)
        while run.waiting_for is WaitReason.APPROVAL:
            for approval_id in await self.app.approvals.pending_ids(run):
                approval = await self.app.approvals.find(approval_id)
                is_allowed = approval.access == "run" and self.level is not SandboxLevel.STRICT
                await self.app.approvals.answer(approval_id, "allow" if is_allowed else "deny")
            run = await self.app.runs.wait(run.id)
        entries = await self.app.sessions.entries(run.session_id)
        return (
            "\n".join(each.text for each in entries if isinstance(each, retinue.ToolResult))
            + f"\n{run.error or ''}"
        )

    def _write_script(self, turns: list[list[ToolUse]]) -> str:
        self._count += 1
        placeholders = self.machine.placeholders
        use_shell = self.max_level is SandboxLevel.NONE
        calls = [
            [each.as_shell_call(placeholders) if use_shell else each.as_call(placeholders) for each in turn]
            for turn in turns
        ]
        replies: list[Any] = [{"text": f"Step {n}.", "tools": turn} for n, turn in enumerate(calls)]
        script_path = self.machine.top / f"script-{self._count}.json"
        script_path.write_text(json.dumps([*replies, {"text": "done"}]))
        return f"scripted:{script_path}"

    def _find_evidence(self, attack: Attack, before: Fingerprint, output: str) -> list[str]:
        machine = self.machine
        visible = () if attack.agent in ("fenced", "narrow") else ("deny",)
        found = [
            f"the secret {name!r} was revealed"
            for name, value in machine.secrets.items()
            if name not in visible and _contains_secret(value, output)
        ]
        after = machine.fingerprint()
        changed = sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))
        found += [f"{path.removeprefix(str(machine.top))} was changed" for path in changed[:5]]
        found += machine.listeners.activity()
        found += [damage] if (damage := machine.user_process_damage()) else []
        found += (
            [f"{len(alive)} processes are still running"] if (alive := machine.attack_processes()) else []
        )
        found += ["the attack reported success"] if SUCCESS_MARKER in output else []
        if attack.extra_evidence is not None and (more := attack.extra_evidence(machine, output)):
            found.append(more)
        return found


def _contains_secret(secret: str, output: str) -> bool:
    return secret in output or secret[::-1] in output or secret.encode().hex() in output
