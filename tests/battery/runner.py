"""Plays attacks through the real product: a scripted model, the gate, the tools, the sandbox; a person answers what is asked."""

import asyncio
import json
import sys
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from attack import PYTHON, WON, Attack, Use
from target_machine import Print, World

import retinue
from retinue.app.run_options import RunOptions
from retinue.domain.run import WaitReason
from retinue.domain.sandbox_level import SandboxLevel

AGENTS = {
    "attacker": "",
    "fenced": "paths:\n  deny: ['**/.env', 'private/**', 'Caf\u00e9.key', '**/.git/**']\n",
    "narrow": "paths:\n  read: ['pub/**', '*.txt']\n  write: ['pub/**']\n",
    "reader": "workspace:\n  writable: false\n",
    "treed": "workspace:\n  isolation: sandbox\n",
}
TIMEOUT_S = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    attack: Attack
    evidence: tuple[str, ...]
    """Empty: it did not work."""
    said: str
    ms: int


@dataclass(slots=True, kw_only=True)
class Play:
    """One product, opened once; each attack is a conversation of its own."""

    world: World
    most: SandboxLevel
    app: retinue.App = field(init=False)
    level: SandboxLevel = field(init=False)
    _stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    _count: int = 0

    async def __aenter__(self) -> Self:
        world = self.world
        world.facts |= {"python": sys.executable, "package": str(Path(retinue.__file__).parent)}
        (world.config / "agents").mkdir()
        assert PYTHON.startswith("/usr/"), "the attacks need a Python in /usr: apt-get install python3"
        for name, front in AGENTS.items():
            (world.config / f"agents/{name}.md").write_text(f"---\nname: {name}\n{front}---\n\nYou attack.\n")
        hosts = [f"http://localhost:{world.facts['tcp']}", f"http://localhost:{world.facts['tcp6']}", "*"]
        settings = {
            "approvals": "auto",
            "deny": {"paths": ["vault/**"]},
            "web_fetch": {"hosts": hosts},
        }
        (world.config / "config.json").write_text(json.dumps(settings))
        env = {
            "PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(world.user), "RETINUE_CONFIG": str(world.config),
            "RETINUE_HOME": str(world.home), "RETINUE_SANDBOX": str(self.most), "OPENAI_API_KEY": world.secrets["environment"],
        }  # fmt: skip
        self.app = await self._stack.enter_async_context(retinue.open(env=env))
        self.level = await self.app.context.runtime.sandbox.detect_level()
        await self._victim()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    async def _victim(self) -> None:
        """Another session, with words and a file in its /tmp."""
        self.world.fresh()
        words = self.world.secrets["session"]
        run = await self.app.run(
            f"Keep {words} to yourself", agent="attacker", workspace=self.world.ws, model=self._script([])
        )
        session = await self.app.sessions.find(run.session_id)
        place = self.world.home / "tmp" / session.id
        place.mkdir(mode=0o700, parents=True)
        (place / "note").write_text(self.world.secrets["tmp"])
        self.world.facts |= {"victim": str(session.path), "victim_tmp": str(place)}
        self.world.keep()

    async def run(self, attack: Attack) -> Outcome:
        world = self.world
        world.fresh()
        if attack.before is not None:
            attack.before(world)
        before = world.fingerprint()
        loop = asyncio.get_running_loop()
        started = loop.time()
        try:
            async with asyncio.timeout(TIMEOUT_S):
                said = await self.run_turns(attack)
        finally:
            if attack.after is not None:
                await asyncio.to_thread(attack.after, world)
        ms = round((loop.time() - started) * 1000)
        evidence = self._evidence(attack, before, said)
        if evidence:
            world.repair()
        return Outcome(attack=attack, evidence=tuple(evidence), said=said, ms=ms)

    async def run_turns(self, attack: Attack) -> str:
        """Run the turns of an attack and return all tool results."""
        script = self._script([list(turn) for turn in attack.turns])
        try:
            run = await self.app.runs.start(
                "Attack", RunOptions(agent=attack.agent, workspace=self.world.ws, model=script)
            )
        except retinue.RetinueError as refused:
            return str(refused)
        run = await self.app.runs.wait(run.id)
        while run.waiting_for is WaitReason.APPROVAL:
            for asked in await self.app.approvals.pending_ids(run):
                about = await self.app.approvals.find(asked)
                yes = about.access == "run" and self.level is not SandboxLevel.STRICT
                await self.app.approvals.answer(asked, "allow" if yes else "deny")
            run = await self.app.runs.wait(run.id)
        entries = await self.app.sessions.entries(run.session_id)
        return (
            "\n".join(each.text for each in entries if isinstance(each, retinue.ToolResult))
            + f"\n{run.error or ''}"
        )

    def _script(self, turns: list[list[Use]]) -> str:
        self._count += 1
        facts = self.world.facts
        bare = self.most is SandboxLevel.NONE
        calls = [[use.bare(facts) if bare else use.tool_call(facts) for use in turn] for turn in turns]
        replies: list[Any] = [{"text": f"Step {n}.", "tools": turn} for n, turn in enumerate(calls)]
        place = self.world.top / f"script-{self._count}.json"
        place.write_text(json.dumps([*replies, {"text": "done"}]))
        return f"scripted:{place}"

    def _evidence(self, attack: Attack, before: Print, said: str) -> list[str]:
        world = self.world
        known = () if attack.agent in ("fenced", "narrow") else ("deny",)
        found = [
            f"the secret {name!r} was told"
            for name, value in world.secrets.items()
            if name not in known and _contains_secret(value, said)
        ]
        after = world.fingerprint()
        changed = sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))
        found += [f"{path.removeprefix(str(world.top))} was changed" for path in changed[:5]]
        found += world.listeners.visitors()
        found += [damage] if (damage := world.program_damage()) else []
        found += [f"{len(alive)} processes outlived it"] if (alive := world.living()) else []
        found += ["the kernel let it"] if WON in said else []
        if attack.proof is not None and (more := attack.proof(world, said)):
            found.append(more)
        return found


def _contains_secret(secret: str, said: str) -> bool:
    return secret in said or secret[::-1] in said or secret.encode().hex() in said
