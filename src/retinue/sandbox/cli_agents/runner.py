"""Run CLI agents: sandboxed where possible, each with its own home and an egress proxy.

At most one process is alive per session.
"""

import asyncio
import os
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from msgspec.structs import replace

from retinue.domain.cli_agent import CliAgentCommand, CliAgentSandbox, ProcessExit
from retinue.domain.permissions.scope import Scope
from retinue.domain.rules import literal_components
from retinue.domain.sandbox_level import SandboxLevel
from retinue.errors import Failed
from retinue.sandbox import egress_proxy
from retinue.sandbox.bubblewrap import COMMAND_ENVIRONMENT, bubblewrap_command
from retinue.sandbox.cli_agent_process import AGENT_HOME, CliAgentProcess, InstalledProgram, find_program
from retinue.sandbox.cli_agents.home_files import write_home_file
from retinue.sandbox.command import SandboxedCommand
from retinue.sandbox.landlock import launcher_command
from retinue.sandbox.line_process import build_environment
from retinue.sandbox.probe import ProbeResult, SandboxProbe
from retinue.sandbox.process import StreamedProcess

GRACE_S = 2.0
"""Seconds between SIGTERM and SIGKILL."""
WRAPPER_FOLDER = ".retinue/bin"
"""Folder in the home that contains the program for its wrapper."""
MAX_STDERR_BYTES = 8_000
"""Bytes of standard error that are kept: the newest."""


@dataclass(slots=True)
class _CallbackSink:
    """Pass a program's output to a callback."""

    write: Callable[[bytes], None]

    def close(self) -> None:
        """Nothing to do: all output was passed on."""


class _TailBuffer:
    """Keep the newest bytes of a stream."""

    def __init__(self) -> None:
        self._tail = bytearray()

    def write(self, piece: bytes) -> None:
        self._tail += piece[-MAX_STDERR_BYTES:]
        del self._tail[:-MAX_STDERR_BYTES]

    def close(self) -> None:
        """Nothing to do: the text stays readable."""

    @property
    def text(self) -> str:
        return bytes(self._tail).decode("utf-8", "replace").strip()


class CliAgentRunner:
    """Runner of CLI agents.

    `homes_folder` contains the agents' homes; `records_folder` the command records that must survive a kill.
    """

    def __init__(
        self, probe: SandboxProbe, env: Mapping[str, str], *, homes_folder: str, records_folder: str
    ) -> None:
        self._probe = probe
        self._env = env
        self._homes_folder = os.path.realpath(homes_folder)
        self._records_folder = records_folder
        self._processes: dict[str, StreamedProcess] = {}

    async def prepare_home(self, session: str) -> CliAgentSandbox:
        """Return the session's home for the current sandbox level.

        A sandboxed and an unsandboxed process never share a home: the sandboxed one could write files that
        the other would run.
        """
        level = await self._probe.level()
        is_sandboxed = level is SandboxLevel.STRICT
        home = f"{self._homes_folder}/{session}/{'held' if is_sandboxed else 'free'}"
        return CliAgentSandbox(level=level, home=home, visible_home=AGENT_HOME if is_sandboxed else home)

    async def run(
        self,
        program: CliAgentCommand,
        *,
        session: str,
        scope: Scope,
        agent_sandbox: CliAgentSandbox,
        on_output: Callable[[bytes], None],
    ) -> ProcessExit:
        sandbox = await self._probe.result()
        stderr = _TailBuffer()
        command = await asyncio.to_thread(self._build_command, program, scope, agent_sandbox, sandbox)
        try:
            if (previous := self._processes.get(session)) is not None:
                await previous.terminate()
            process = self._processes[session] = StreamedProcess(command, _CallbackSink(on_output), stderr)
            open_network = partial(egress_proxy.open_egress, hosts=program.hosts, forwards=program.forwards)
            try:
                exit_code, notes = await process.wait(open_network)
            finally:
                if self._processes.get(session) is process:
                    del self._processes[session]
        finally:
            if command.start_gate_fd >= 0:
                os.close(command.start_gate_fd)
        if process.end_requested:
            raise Failed(f"{program.binary} was stopped: another turn of its conversation started")
        if exit_code is None and not process.was_killed:
            reason = " ".join(stderr.text.split())[-1000:] or "no error message"
            raise Failed(f"{program.binary} was not started: its sandbox cannot be created ({reason})")
        return ProcessExit(exit_code=exit_code, stderr_tail=stderr.text, notes=notes)

    def _build_command(
        self, program: CliAgentCommand, scope: Scope, home: CliAgentSandbox, sandbox: ProbeResult
    ) -> SandboxedCommand:
        is_sandboxed = home.level is SandboxLevel.STRICT
        installed_program = self._find_program(program.binary, scope, program.install)
        argv = (installed_program.path, *program.args)
        files = dict(program.files)
        path = installed_program.interpreter_folders
        if program.wrapper:
            wrapper = self._find_program(program.wrapper, scope, "")
            files[f"{WRAPPER_FOLDER}/{program.binary}"] = (
                f'#!/bin/sh\nexec {shlex.quote(installed_program.path)} "$@"\n'
            )
            argv = (wrapper.path, program.binary, *program.args)
            path = (
                f"{home.visible_home}/{WRAPPER_FOLDER}",
                *wrapper.interpreter_folders,
                *installed_program.interpreter_folders,
            )
            installed_program = replace(
                installed_program, mounts={**installed_program.mounts, **wrapper.mounts}
            )
        _prepare_home(program.binary, home.home, files)
        cwd = _working_folder(program, scope)
        if not is_sandboxed:
            system_path = self._env.get("PATH", os.defpath)
            variables = {
                **program.env,
                "HOME": home.home,
                "TERM": "dumb",
                "PATH": os.pathsep.join((*path, system_path)),
            }
            command = launcher_command(
                argv,
                cwd=cwd or scope.root,
                env=build_environment(self._env, (), variables),
                restrictions=None,
            )
            return replace(command, separate_stderr=True, sigterm_grace_s=GRACE_S)
        proxy = egress_proxy.proxy_variables(egress_proxy.proxy_port(program.forwards))
        sandbox_path = os.pathsep.join((*path, COMMAND_ENVIRONMENT["PATH"]))
        env = {"PATH": sandbox_path, **proxy, **program.env}
        process = CliAgentProcess(
            argv=argv,
            env=env,
            home=home.home,
            mounts=installed_program.mounts,
            cwd=cwd,
            sigterm_grace_s=GRACE_S,
        )
        return self._build_sandboxed(process, scope, sandbox)

    def _build_sandboxed(
        self, process: CliAgentProcess, scope: Scope, sandbox: ProbeResult
    ) -> SandboxedCommand:
        try:
            return bubblewrap_command(
                scope, "", bwrap=sandbox.bwrap_path, records_folder=self._records_folder, cli_agent=process
            )
        except BaseException:
            if process.start_gate_fd >= 0:
                os.close(process.start_gate_fd)
            raise

    def _find_program(self, binary: str, scope: Scope, install: str) -> InstalledProgram:
        """Find the program; its mounts never contain the user's or Retinue's own files."""
        own_folders = ("/" + "/".join(literal_components(each)) for each in scope.retinue_paths)
        private_folders = tuple(
            map(
                os.path.realpath,
                (scope.root, self._homes_folder, *own_folders, self._env.get("HOME") or "/root"),
            )
        )
        program = find_program(binary, self._env.get("PATH", os.defpath), private_folders)
        if program is None:
            hint = f"Install it with `{install}`." if install else "Set the absolute path of a program."
            raise Failed(f"{binary} is not installed or not on the PATH. {hint}")
        return program


def _prepare_home(binary: str, home: str, files: Mapping[str, str]) -> None:
    try:
        os.makedirs(home, mode=0o700, exist_ok=True)  # noqa: PTH103
        for name, text in files.items():
            write_home_file(home, name, text, mode=0o700 if name.startswith(f"{WRAPPER_FOLDER}/") else 0o600)
    except OSError as error:
        raise Failed(f"cannot create the home folder for {binary}: {error.strerror}") from error


def _working_folder(program: CliAgentCommand, scope: Scope) -> str:
    """Return the folder to start in; empty for the default folder of this scope's commands."""
    wanted = os.path.realpath(os.path.join(scope.root, program.workdir))  # noqa: PTH118
    verdict = scope.check_path(wanted, "read")
    if verdict.ok and os.path.isdir(wanted):  # noqa: PTH112
        return wanted
    if program.workdir:
        reason = verdict.rule if not verdict.ok else "it is not a folder"
        raise Failed(f"{program.binary} cannot work in {wanted} ({reason}). Change chat.config.workdir")
    return ""
