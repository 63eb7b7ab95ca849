"""Runs programs that take turns by themselves: each in its session's cell where the machine can hold it so, with a home
of its own, and a hatch to the few hosts it needs. At most one lives for a session."""

import asyncio
import os
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from retinue.domain.cli_agent import Gone, Program, Seat
from retinue.domain.permissions.scope import Scope
from retinue.domain.rules import named
from retinue.domain.sandbox_level import Level
from retinue.errors import Failed
from retinue.sandbox import egress_proxy
from retinue.sandbox.bubblewrap import ENVIRONMENT, strict
from retinue.sandbox.cli_agent_process import HOME, Guest, Installed, installed
from retinue.sandbox.cli_agents.home_files import written
from retinue.sandbox.command import Cell
from retinue.sandbox.landlock import supervised
from retinue.sandbox.line_process import environment
from retinue.sandbox.probe import Found, Probe
from retinue.sandbox.process import Streamed

GRACE = 2.0
"""Seconds between the request to end and the end."""
SHIMS = ".retinue/bin"
"""In its home: where a wrapper finds the program that it is to start."""
LAST_WORDS = 8_000
"""Bytes of its standard error that are kept: the newest."""


@dataclass(slots=True)
class _Heard:
    """Passes on what a program says."""

    take: Callable[[bytes], None]

    def close(self) -> None:
        """What was said was passed on."""


class _Ring:
    """The newest of what comes, however much that is."""

    def __init__(self) -> None:
        self._kept = bytearray()

    def take(self, piece: bytes) -> None:
        self._kept += piece[-LAST_WORDS:]
        del self._kept[:-LAST_WORDS]

    def close(self) -> None:
        """It stays to be read."""

    @property
    def text(self) -> str:
        return bytes(self._kept).decode("utf-8", "replace").strip()


class Hosting:
    """`homes` is a folder of our own, for the programs' homes; `records` one for what must outlive a kill."""

    def __init__(self, probe: Probe, env: Mapping[str, str], *, homes: str, records: str) -> None:
        self._probe = probe
        self._env = env
        self._homes = os.path.realpath(homes)
        self._records = records
        self._live: dict[str, Streamed] = {}

    async def seat(self, session: str) -> Seat:
        """A home that a held program could write is never that of one that nothing holds."""
        level = await self._probe.level()
        held = level is Level.STRICT
        home = f"{self._homes}/{session}/{'held' if held else 'free'}"
        return Seat(level=level, home=home, seen=HOME if held else home)

    async def run(
        self, program: Program, *, session: str, scope: Scope, seat: Seat, said: Callable[[bytes], None]
    ) -> Gone:
        found = await self._probe.found()
        complaints = _Ring()
        cell = await asyncio.to_thread(self._cell, program, scope, seat, found)
        try:
            if (other := self._live.get(session)) is not None:
                await other.end()
            live = self._live[session] = Streamed(cell, _Heard(said), complaints)
            opened = partial(egress_proxy.opened, hosts=program.hosts, forwards=program.forwards)
            try:
                code, notes = await live.over(opened)
            finally:
                if self._live.get(session) is live:
                    del self._live[session]
        finally:
            if cell.gate >= 0:
                os.close(cell.gate)
        if live.unwanted:
            raise Failed(f"{program.binary} was ended: another turn of its conversation began")
        if code is None and not live.killed:
            why = " ".join(complaints.text.split())[-1000:] or "it does not say why"
            raise Failed(f"{program.binary} was not started: its sandbox cannot be made ({why})")
        return Gone(exit=code, complaint=complaints.text, notes=notes)

    def _cell(self, program: Program, scope: Scope, seat: Seat, found: Found) -> Cell:
        held = seat.level is Level.STRICT
        own = self._installed(program.binary, scope, program.install)
        argv = (own.path, *program.argv)
        files = dict(program.files)
        path = own.beside
        if program.wrapper:
            by = self._installed(program.wrapper, scope, "")
            files[f"{SHIMS}/{program.binary}"] = f'#!/bin/sh\nexec {shlex.quote(own.path)} "$@"\n'
            argv = (by.path, program.binary, *program.argv)
            path = (f"{seat.seen}/{SHIMS}", *by.beside, *own.beside)
            own = replace(own, laid={**own.laid, **by.laid})
        _made_ready(program.binary, seat.home, files)
        cwd = _workdir(program, scope)
        if not held:
            usual = self._env.get("PATH", os.defpath)
            more = {**program.env, "HOME": seat.home, "TERM": "dumb", "PATH": os.pathsep.join((*path, usual))}
            cell = supervised(argv, cwd=cwd or scope.root, env=environment(self._env, (), more), shut=None)
            return replace(cell, apart=True, grace=GRACE)
        hatches = egress_proxy.variables(egress_proxy.proxy_port(program.forwards))
        inside = os.pathsep.join((*path, ENVIRONMENT["PATH"]))
        env = {"PATH": inside, **hatches, **program.env}
        guest = Guest(argv=argv, env=env, home=seat.home, laid=own.laid, cwd=cwd, grace=GRACE)
        return self._held(guest, scope, found)

    def _held(self, guest: Guest, scope: Scope, found: Found) -> Cell:
        try:
            return strict(scope, "", bwrap=found.bwrap, records=self._records, guest=guest)
        except BaseException:
            if guest.gate >= 0:
                os.close(guest.gate)
            raise

    def _installed(self, binary: str, scope: Scope, install: str) -> Installed:
        """What is laid into the cell with it holds nothing of the person's or ours."""
        house = ("/" + "/".join(named(each)) for each in scope.house)
        around = tuple(
            map(os.path.realpath, (scope.root, self._homes, *house, self._env.get("HOME") or "/root"))
        )
        found = installed(binary, self._env.get("PATH", os.defpath), around)
        if found is None:
            how = f"install it with `{install}`" if install else "write the whole path of a program"
            raise Failed(f"{binary} is not installed here, or not on the PATH: {how}")
        return found


def _made_ready(binary: str, home: str, files: Mapping[str, str]) -> None:
    try:
        os.makedirs(home, mode=0o700, exist_ok=True)  # noqa: PTH103
        for name, text in files.items():
            written(home, name, text, mode=0o700 if name.startswith(f"{SHIMS}/") else 0o600)
    except OSError as error:
        raise Failed(f"the home of {binary} cannot be made ready: {error.strerror}") from error


def _workdir(program: Program, scope: Scope) -> str:
    """Where it begins; empty: wherever a command of this scope does."""
    wanted = os.path.realpath(os.path.join(scope.root, program.workdir))  # noqa: PTH118
    verdict = scope.path(wanted, "read")
    if verdict.ok and os.path.isdir(wanted):  # noqa: PTH112
        return wanted
    if program.workdir:
        why = verdict.rule if not verdict.ok else "it is no folder"
        raise Failed(f"{program.binary} cannot work in {wanted} ({why}): mend chat.config.workdir")
    return ""
