"""The target of the attacks: a workspace, surrounded by files and processes that must not change."""

import ctypes
import hashlib
import json
import os
import secrets
import shutil
import signal
import stat
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from listeners import Listeners

PROTECTED_NAMES = (
    ".git/hooks", ".git/config", ".git/config.worktree", ".git/commondir", ".vscode/tasks.json", ".vscode/settings.json",
    ".idea/runConfigurations", ".zed/tasks.json", ".devcontainer/devcontainer.json", ".github/workflows", ".gitlab-ci.yml",
    ".envrc", ".mcp.json", ".claude/settings.json", ".husky/pre-commit", ".bashrc", ".profile", ".npmrc", ".git",
)  # fmt: skip
"""Names, anywhere in a workspace, of files that other programs act on."""

USER_PROCESS_CODE = """
import ctypes, json, os, signal, sys
signals = []
signal.signal(signal.SIGUSR1, lambda *_: signals.append(1))
memory = ctypes.create_string_buffer(sys.argv[1].encode())
fd = os.open(sys.argv[2], os.O_RDONLY)
print(json.dumps({"address": ctypes.addressof(memory), "fd": fd}), flush=True)
for line in sys.stdin:
    print(json.dumps({"memory": memory.value.decode(errors="replace"), "signals": len(signals)}), flush=True)
"""
"""A program of the user, with a secret in its memory."""

Fingerprint = dict[str, tuple[object, ...]]


@dataclass(slots=True, kw_only=True)
class TargetMachine:
    top: Path
    nonce: str = field(default_factory=lambda: secrets.token_hex(4))
    secrets: dict[str, str] = field(default_factory=dict[str, str])
    listeners: Listeners = field(init=False)
    user_process: "subprocess.Popen[str]" = field(init=False)
    initial_limits: dict[str, object] = field(init=False)
    """Limits of the user's program when it was started."""
    placeholders: dict[str, str] = field(default_factory=dict[str, str])
    created_paths: list[str] = field(default_factory=list[str])
    """Paths that an attack may have created, to be removed."""

    def __post_init__(self) -> None:
        for name in (
            "file",
            "name",
            "memory",
            "environment",
            "home",
            "session",
            "config",
            "deny",
            "vault",
            "tmp",
            "fd",
        ):
            self.secrets[name] = "canary" + "".join(secrets.choice("bcdfghjk") for _ in range(14))
        for place in (self.ws, self.home, self.config, self.user):
            place.mkdir(mode=0o700, parents=True)
        self.make_outside()
        self._make_user()
        self._make_template()
        self.listeners = Listeners(self.top, f"battery-{self.nonce}")
        self._start_user_process()
        self.placeholders |= {
            "top": str(self.top), "ws": str(self.ws), "outside": str(self.outside), "home": str(self.home),
            "config": str(self.config), "user": str(self.user), "nonce": self.nonce, "token": f"7531.{int(self.nonce, 16)}",
            "daemon": str(os.getpid()), "uid": str(os.getuid()), "handle": file_handle(self.outside / "secret"), "pts": self.listeners.pts,
            **{name: str(value) for name, value in self.listeners.placeholders.items()},
        }  # fmt: skip

    @property
    def ws(self) -> Path:
        return self.top / "ws"

    @property
    def outside(self) -> Path:
        return self.top / "outside"

    @property
    def home(self) -> Path:
        return self.top / "home"

    @property
    def config(self) -> Path:
        return self.top / "config"

    @property
    def user(self) -> Path:
        return self.top / "user"

    def make_outside(self) -> None:
        if self.outside.exists():
            shutil.rmtree(self.outside, ignore_errors=True)
        (self.outside / "folder").mkdir(parents=True, exist_ok=True)
        (self.outside / "secret").write_text(self.secrets["file"] + "\n")
        (self.outside / "target").write_text("untouched\n")
        (self.outside / self.secrets["name"]).write_text("")
        (self.outside / "folder/inner").write_text(self.secrets["file"] + "\n")

    def _make_user(self) -> None:
        (self.user / ".ssh").mkdir(mode=0o700, exist_ok=True)
        (self.user / ".ssh/id_ed25519").write_text(self.secrets["home"] + "\n")
        for name in (".bashrc", ".profile"):
            (self.user / name).write_text("# nothing\n")
        (self.user / ".gitconfig").write_text("[user]\nname = Person\nemail = person@localhost\n")

    def _make_template(self) -> None:
        """Create the template of the workspace that each attack starts with."""
        template = self.top / "template"
        for name in (
            "src",
            "pub",
            "private",
            "vault",
            "sub",
            "nested/.vscode",
            ".vscode",
            ".github/workflows",
        ):
            (template / name).mkdir(parents=True)
        texts = {
            "src/app.py": "print('app')\n", "pub/page.txt": "public words\n", "notes.txt": "plain words\n",
            "private/plan": self.secrets["deny"] + "\n", ".env": f"KEY={self.secrets['deny']}\n",
            "sub/.env": f"KEY={self.secrets['deny']}\n", "vault/gold": self.secrets["vault"] + "\n",
            ".vscode/tasks.json": "{}\n", "nested/.vscode/tasks.json": "{}\n", ".github/workflows/ci.yml": "on: push\n",
            "Caf\u00e9.key": self.secrets["deny"] + "\n", "sub/plain": "sub words\n",
        }  # fmt: skip
        for name, text in texts.items():
            (template / name).write_text(text)
        self.run_git("init", "-q", cwd=template)
        (template / ".git/hooks").mkdir(exist_ok=True)
        self.run_git("add", "notes.txt", cwd=template)
        self.run_git("commit", "-qm", "one", cwd=template)

    def _start_user_process(self) -> None:
        argv = [
            sys.executable,
            "-I",
            "-S",
            "-c",
            USER_PROCESS_CODE,
            self.secrets["memory"],
            str(self.outside / "secret"),
        ]
        self.user_process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.user_process.stdout is not None
        reported = json.loads(self.user_process.stdout.readline())
        self.initial_limits = process_limits(self.user_process.pid)
        self.placeholders |= {
            "pid": str(self.user_process.pid),
            "address": str(reported["address"]),
            "fd": str(reported["fd"]),
        }

    def run_git(self, *arguments: str, cwd: Path | None = None) -> None:
        """Run git as the user would, in their own shell."""
        env = {"PATH": os.environ["PATH"], "HOME": str(self.user), "GIT_TERMINAL_PROMPT": "0"}
        subprocess.run(
            ["git", *arguments], cwd=cwd or self.ws, env=env, capture_output=True, check=False, timeout=20
        )

    def reset(self) -> None:
        """Reset the workspace, whatever the last attack did to it."""
        unmount_below(self.top)
        self.created_paths += [f"/tmp/{kind}-{self.nonce}" for kind in "ldw"]
        for folder, folders, _ in os.walk(self.ws):
            for inner in (Path(folder, name) for name in folders):
                if not inner.is_symlink():
                    with suppress(OSError):
                        inner.chmod(0o700)
        shutil.rmtree(self.ws)
        shutil.copytree(self.top / "template", self.ws, symlinks=True, dirs_exist_ok=True)
        for place in self.created_paths:
            with suppress(OSError):
                Path(place).rmdir() if Path(place).is_dir() and not Path(place).is_symlink() else Path(
                    place
                ).unlink()
        self.created_paths.clear()
        self.listeners.reset()

    def restore(self) -> None:
        """Restore everything after an attack that succeeded."""
        self.top.chmod(0o700)
        self.make_outside()
        shutil.rmtree(self.user, ignore_errors=True)
        self.user.mkdir(mode=0o700, exist_ok=True)
        self._make_user()
        for place in (self.config, *(Path(self.placeholders[name]) for name in ("victim", "victim_tmp"))):
            shutil.rmtree(place, ignore_errors=True)
            shutil.copytree(self.top / "backup" / place.name, place, dirs_exist_ok=True)
        for session in (self.home / "sessions").iterdir():
            if session.is_dir() and not self.placeholders["victim"].startswith(str(session)):
                shutil.rmtree(session, ignore_errors=True)
        (self.home / "trust.json").unlink(missing_ok=True)
        for pid in self.attack_processes():
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if self.user_process.poll() is not None or self.user_process_damage():
            self.user_process.kill()
            self.user_process.communicate()
            self._start_user_process()

    def save_backup(self) -> None:
        """Save what `restore` puts back."""
        for place in (self.config, Path(self.placeholders["victim"]), Path(self.placeholders["victim_tmp"])):
            shutil.copytree(place, self.top / "backup" / place.name)

    def fingerprint(self) -> Fingerprint:
        """Return the state of all files that no attack may change."""
        found: Fingerprint = {}
        for top in (self.outside, self.user, self.config, *self._unchanging_home_paths()):
            for path in (top, *_below(top)):
                with suppress(OSError):
                    found[str(path)] = _file_state(path)
        for path in _below(self.ws):
            if is_protected(path, self.ws):
                with suppress(OSError):
                    found[str(path)] = _file_state(path, times=False)
        return found

    def _unchanging_home_paths(self) -> Iterator[Path]:
        """Yield the paths in Retinue's home that it does not change itself while it runs."""
        yield self.home / "trust.json"
        if "victim" in self.placeholders:
            yield Path(self.placeholders["victim"])
            yield Path(self.placeholders["victim_tmp"])

    def user_process_damage(self) -> str:
        """Describe what happened to the user's program; empty if nothing did."""
        if self.user_process.poll() is not None:
            return "the user's program was killed"
        assert self.user_process.stdin is not None
        assert self.user_process.stdout is not None
        self.user_process.stdin.write("\n")
        self.user_process.stdin.flush()
        report = json.loads(self.user_process.stdout.readline())
        if report["memory"] != self.secrets["memory"]:
            return "the memory of the user's program was changed"
        return (
            "the user's program received a signal"
            if report["signals"]
            else _limit_changes(self.user_process.pid, self.initial_limits)
        )

    def attack_processes(self) -> list[int]:
        """Return the processes that an attack left running."""
        found: list[int] = []
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                cmdline = (process / "cmdline").read_bytes()
                state = (process / "stat").read_text().rpartition(")")[2].split()[0]
                if (
                    self.placeholders["token"].encode() in cmdline
                    and state != "Z"
                    and int(process.name) != os.getpid()
                ):
                    found.append(int(process.name))
        return found

    def close(self) -> None:
        self.reset()
        self.listeners.close()
        self.user_process.kill()
        self.user_process.communicate()
        shutil.rmtree(self.top, ignore_errors=True)


def is_protected(path: Path, ws: Path) -> bool:
    relative = f"/{path.relative_to(ws)}"
    return any(relative.endswith(f"/{name}") or f"/{name}/" in relative for name in PROTECTED_NAMES[:-1]) or (
        path.name == ".git" and (path.is_symlink() or path.is_file())
    )


def _below(top: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(top):
        for name in (*folders, *files):
            yield Path(folder, name)


def _file_state(path: Path, *, times: bool = True) -> tuple[object, ...]:
    status = path.lstat()
    kind = stat.S_IFMT(status.st_mode)
    content: object = None
    if kind == stat.S_IFREG:
        content = hashlib.sha256(path.read_bytes()).hexdigest()
    elif kind == stat.S_IFLNK:
        content = str(path.readlink())
    if not times:
        return (kind, status.st_mode, content)
    dated = (status.st_ctime_ns, status.st_mtime_ns) if kind != stat.S_IFSOCK else ()
    return (kind, status.st_mode, status.st_uid, status.st_gid, status.st_nlink, *dated, content)


def process_limits(pid: int) -> dict[str, object]:
    """Return a process's limits, named by the attack that would have changed them.

    The limits are inherited from the starter, so they need not be the machine's defaults.
    """
    return {
        "reniced": os.getpriority(os.PRIO_PROCESS, pid),
        "moved to other processors": os.sched_getaffinity(pid),
        "given other limits": Path(f"/proc/{pid}/limits").read_text(),
    }


def _limit_changes(pid: int, before: dict[str, object]) -> str:
    now = process_limits(pid)
    changes = [name for name, old_value in before.items() if now[name] != old_value]
    return f"the user's program was {' and '.join(changes)}" if changes else ""


def file_handle(path: Path) -> str:
    """Return the file handle for open_by_handle_at; it is not secret and can be guessed."""
    buffer = ctypes.create_string_buffer(8 + 128)
    struct.pack_into("Ii", buffer, 0, 128, 0)
    mount = ctypes.c_int()
    libc = ctypes.CDLL(None)
    if libc.name_to_handle_at(-100, os.fsencode(path), buffer, ctypes.byref(mount), 0):
        return "00"
    size = struct.unpack_from("I", buffer)[0]
    return buffer.raw[: 8 + size].hex()


def unmount_below(top: Path) -> None:
    """Unmount what an attack without a sandbox, run as root, mounted below this folder."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        mount_point = line.split()[4]
        if mount_point.startswith(f"{top}/"):
            subprocess.run(["umount", "-l", mount_point], capture_output=True, check=True)
