"""The environment of a crash test: a temporary home, its configuration, and the commands run in it."""

import asyncio
import json
import os
import signal
import subprocess
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from retinue import daemon_client
from retinue.app import open as open_app
from retinue.app.run_options import RunOptions
from retinue.domain.providers import MODEL_APIS
from retinue.errors import BUG_MESSAGE
from retinue.isolated_python import inherited_environment, module_command
from retinue.search_path import find_executable
from retinue.torture.counted_tools import EFFECTS_FILE, EFFECTS_VARIABLE, LINE_BYTES
from retinue.torture.home_reader import LedgerRows, read_ledger
from retinue.torture.scenario import (
    COMMAND_SCRIPT,
    COMMAND_SCRIPT_TEXT,
    COMMANDS_FILE,
    agent_definitions,
    task_text,
)

REMOVED_ENV_PREFIXES = ("RETINUE_", *(api.env_prefix for api in MODEL_APIS.values()))
TOOLS_MODULE = "retinue.torture.counted_tools"
TIMEOUT_S = 90.0
"""Time limit after which a command or run counts as hanging."""
POLL_SECONDS = 0.02
GIT = find_executable("git", os.environ)


@dataclass(slots=True)
class TortureEnvironment:
    """A home below `root`, with the side effects and outputs kept outside the runtime's control."""

    root: Path
    url: str
    max_live: int = 64
    processes: list[asyncio.subprocess.Process] = field(default_factory=list[asyncio.subprocess.Process])

    process_groups: set[int] = field(default_factory=set[int])
    """Processes started through a wrapper such as strace; killed together with it."""
    excused_outputs: set[str] = field(default_factory=set[str])
    """Error outputs of processes that ran out of memory, which may contain a traceback."""
    denied_calls: set[str] = field(default_factory=set[str])
    """Calls whose approval this test denied."""
    allowed_calls: set[str] = field(default_factory=set[str])
    """Calls that this test approved."""
    resumed_runs: set[str] = field(default_factory=set[str])
    """Runs that were suspended because this test killed them again and again; their open calls were closed,
    except those that delegate."""
    killed_commands: int = 0
    """Number of shell commands that this test killed."""
    trees: list[str] = field(default_factory=list[str])
    """Trees that were started."""

    def __post_init__(self) -> None:
        for folder in (self.root, self.home, self.config_dir, self.work_dir, self.output_dir):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        settings = {
            "agents": agent_definitions(),
            "tools": [f"{TOOLS_MODULE}:mark", f"{TOOLS_MODULE}:sign"],
            "limits": {"max_depth": 4, "max_live": self.max_live, "max_live_per_requester": self.max_live},
        }
        (self.config_dir / "config.json").write_text(json.dumps(settings), encoding="utf-8")
        (self.work_dir / COMMAND_SCRIPT).write_text(COMMAND_SCRIPT_TEXT, encoding="utf-8")

    def create_repository(self) -> None:
        """Make the working folder a git repository, so that agents can get worktrees."""
        identity = ("-c", "user.name=torture", "-c", "user.email=torture@localhost")
        for arguments in (
            ("init", "--quiet"),
            ("add", COMMAND_SCRIPT),
            (*identity, "commit", "--quiet", "-m", "-"),
        ):
            subprocess.run([GIT or "git", *arguments], cwd=self.work_dir, env=self.env, check=True)  # noqa: S603

    @property
    def home(self) -> Path:
        return self.root / "home"

    @property
    def config_dir(self) -> Path:
        return self.root / "config"

    @property
    def work_dir(self) -> Path:
        return self.root / "work"

    @property
    def output_dir(self) -> Path:
        return self.root / "output"

    @property
    def env(self) -> dict[str, str]:
        inherited = {
            name: value
            for name, value in inherited_environment().items()
            if not name.startswith(REMOVED_ENV_PREFIXES)
        }
        return inherited | {
            "HOME": str(self.root),
            "RETINUE_HOME": str(self.home),
            "RETINUE_CONFIG": str(self.config_dir),
            "RETINUE_MODEL": "openai:torture",
            "OPENAI_BASE_URL": self.url,
            "OPENAI_API_KEY": "torture-key-000",
            "NO_PROXY": "*",
            "no_proxy": "*",
            EFFECTS_VARIABLE: str(self.work_dir / EFFECTS_FILE),
        }

    async def start_command(
        self, *arguments: str, wrapper: tuple[str, ...] = ()
    ) -> asyncio.subprocess.Process:
        """Start a command and save its output in files; `wrapper` is put before it (strace)."""
        number = len(self.processes)
        with (
            (self.output_dir / f"{number:03}.out").open("wb") as stdout_file,
            (self.output_dir / f"{number:03}.err").open("wb") as stderr_file,
        ):
            process = await asyncio.create_subprocess_exec(
                *wrapper, *module_command("retinue", *arguments),
                stdin=asyncio.subprocess.DEVNULL, stdout=stdout_file, stderr=stderr_file, env=self.env, cwd=self.work_dir,
                start_new_session=bool(wrapper),
            )  # fmt: skip
            if wrapper:
                self.process_groups.add(process.pid)
        self.processes.append(process)
        return process

    def excuse_output(self, process: asyncio.subprocess.Process) -> None:
        """Ignore internal errors that this process reports, because it was given too little memory."""
        self.excused_outputs.add(f"{self.processes.index(process):03}.err")

    async def run_command(self, *arguments: str) -> int:
        """Run a command to its end and return its exit code."""
        process = await self.start_command(*arguments)
        return await self.wait_for_exit(process)

    async def has_commands(self) -> bool:
        """Return True if shell commands run in a strict sandbox here, and worktrees can be created."""
        number = len(self.processes)
        await self.run_command("doctor", "--json")
        report = (self.output_dir / f"{number:03}.out").read_text("utf-8", "replace")
        return "sandbox: strict" in report and GIT is not None

    async def wait_for_exit(self, process: asyncio.subprocess.Process) -> int:
        """Return the exit code; a command that exceeds the time limit is killed and returns -1."""
        try:
            return await asyncio.wait_for(process.wait(), TIMEOUT_S)
        except TimeoutError:
            await self.kill_process(process)
            return -1

    async def kill_process(self, process: asyncio.subprocess.Process) -> bool:
        """Kill a process and return whether it was still running."""
        was_running = process.returncode is None
        with suppress(ProcessLookupError):
            if was_running and process.pid in self.process_groups:
                os.killpg(process.pid, signal.SIGKILL)
            else:
                process.kill()
        await process.wait()
        return was_running and (process.returncode or 0) < 0

    async def close(self) -> None:
        for process in self.processes:
            if process.returncode is None:
                await self.kill_process(process)

    async def start_trees(self, *trees: str) -> None:
        """Start the first run of each tree and assign it to the running daemon."""
        self.trees += trees
        while (daemon := await daemon_client.ping_daemon(self.home)) is None:  # noqa: ASYNC110  (waits for another process to start)
            await asyncio.sleep(POLL_SECONDS)
        async with open_app(env=self.env) as app:
            for tree in trees:
                await app.runs.start(
                    task_text(f"{tree}/lead"),
                    RunOptions(agent="lead", workspace=self.work_dir, owner=daemon["owner"]),
                )
        await daemon_client.ping_daemon(self.home)

    async def wait_for_daemon(self, process: asyncio.subprocess.Process) -> None:
        """Wait until a daemon answers, or its process has ended."""
        while process.returncode is None and not await self.has_daemon():  # noqa: ASYNC110  (the same)
            await asyncio.sleep(POLL_SECONDS)

    async def answer_over_http(self, approval_id: str, answer: str) -> None:
        """Answer an approval through the daemon; without one, nothing happens."""
        await daemon_client.request_json(
            self.home, "POST", f"/api/approvals/{approval_id}", {"answer": answer}
        )

    async def has_daemon(self) -> bool:
        return await daemon_client.ping_daemon(self.home) is not None

    async def read_ledger(self) -> LedgerRows:
        """Return the rows of the ledger, read in a thread because another process may have it locked."""
        return await asyncio.to_thread(read_ledger, self.home)

    def effect_counts(self) -> Counter[str]:
        """Count the side effects of each call, from the file that only the tools write."""
        return Counter(line.split()[-1] for line in self._lines(EFFECTS_FILE))

    def command_counts(self) -> Counter[str]:
        """Count the shell commands that ran to their end, by their argument."""
        return Counter(self._lines(COMMANDS_FILE))

    def _lines(self, name: str) -> list[str]:
        try:
            return (self.work_dir / name).read_text(encoding="utf-8").split("\n")[:-1]
        except FileNotFoundError:
            return []

    def effects_written(self) -> int:
        """Return the number of side effects so far, by the size of that file."""
        try:
            return (self.work_dir / EFFECTS_FILE).stat().st_size // LINE_BYTES
        except FileNotFoundError:
            return 0

    def commands_with_internal_errors(self) -> list[str]:
        """Return the names of error outputs that contain a traceback or report an internal error."""
        error_files = sorted(self.output_dir.glob("*.err"))
        return [
            path.name
            for path in error_files
            if path.name not in self.excused_outputs
            and any(marker in path.read_text("utf-8", "replace") for marker in ("Traceback", BUG_MESSAGE))
        ]
