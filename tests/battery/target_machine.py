"""What the attacks are aimed at: a workspace, and around it everything that must stay as it is, with ways to see if it did."""

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

OBEYED = (
    ".git/hooks", ".git/config", ".git/config.worktree", ".git/commondir", ".vscode/tasks.json", ".vscode/settings.json",
    ".idea/runConfigurations", ".zed/tasks.json", ".devcontainer/devcontainer.json", ".github/workflows", ".gitlab-ci.yml",
    ".envrc", ".mcp.json", ".claude/settings.json", ".husky/pre-commit", ".bashrc", ".profile", ".npmrc", ".git",
)  # fmt: skip
"""Names that other programs obey, wherever in a workspace they stand."""

KEEPER = """
import ctypes, json, os, signal, sys
told = []
signal.signal(signal.SIGUSR1, lambda *_: told.append(1))
held = ctypes.create_string_buffer(sys.argv[1].encode())
fd = os.open(sys.argv[2], os.O_RDONLY)
print(json.dumps({"address": ctypes.addressof(held), "fd": fd}), flush=True)
for line in sys.stdin:
    print(json.dumps({"held": held.value.decode(errors="replace"), "told": len(told)}), flush=True)
"""
"""A program of the person's own, with something in its memory."""

Print = dict[str, tuple[object, ...]]


@dataclass(slots=True, kw_only=True)
class World:
    top: Path
    nonce: str = field(default_factory=lambda: secrets.token_hex(4))
    secrets: dict[str, str] = field(default_factory=dict[str, str])
    listeners: Listeners = field(init=False)
    user_program: "subprocess.Popen[str]" = field(init=False)
    held: dict[str, object] = field(init=False)
    """What the person's program was held to when it was started."""
    facts: dict[str, str] = field(default_factory=dict[str, str])
    spare: list[str] = field(default_factory=list[str])
    """Places of the machine that an attack may have made, to be taken away."""

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
        self._start_user_program()
        self.facts |= {
            "top": str(self.top), "ws": str(self.ws), "outside": str(self.outside), "home": str(self.home),
            "config": str(self.config), "user": str(self.user), "nonce": self.nonce, "token": f"7531.{int(self.nonce, 16)}",
            "daemon": str(os.getpid()), "uid": str(os.getuid()), "handle": handle_of(self.outside / "secret"), "pts": self.listeners.pts,
            **{name: str(value) for name, value in self.listeners.facts.items()},
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
        """What each attack finds in the workspace."""
        made = self.top / "template"
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
            (made / name).mkdir(parents=True)
        texts = {
            "src/app.py": "print('app')\n", "pub/page.txt": "public words\n", "notes.txt": "plain words\n",
            "private/plan": self.secrets["deny"] + "\n", ".env": f"KEY={self.secrets['deny']}\n",
            "sub/.env": f"KEY={self.secrets['deny']}\n", "vault/gold": self.secrets["vault"] + "\n",
            ".vscode/tasks.json": "{}\n", "nested/.vscode/tasks.json": "{}\n", ".github/workflows/ci.yml": "on: push\n",
            "Caf\u00e9.key": self.secrets["deny"] + "\n", "sub/plain": "sub words\n",
        }  # fmt: skip
        for name, text in texts.items():
            (made / name).write_text(text)
        self.git("init", "-q", cwd=made)
        (made / ".git/hooks").mkdir(exist_ok=True)
        self.git("add", "notes.txt", cwd=made)
        self.git("commit", "-qm", "one", cwd=made)

    def _start_user_program(self) -> None:
        words = [
            sys.executable,
            "-I",
            "-S",
            "-c",
            KEEPER,
            self.secrets["memory"],
            str(self.outside / "secret"),
        ]
        self.user_program = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.user_program.stdout is not None
        told = json.loads(self.user_program.stdout.readline())
        self.held = held_to(self.user_program.pid)
        self.facts |= {
            "pid": str(self.user_program.pid),
            "address": str(told["address"]),
            "fd": str(told["fd"]),
        }

    def git(self, *words: str, cwd: Path | None = None) -> None:
        """As the person would, in their own shell."""
        env = {"PATH": os.environ["PATH"], "HOME": str(self.user), "GIT_TERMINAL_PROMPT": "0"}
        subprocess.run(
            ["git", *words], cwd=cwd or self.ws, env=env, capture_output=True, check=False, timeout=20
        )

    def fresh(self) -> None:
        """The workspace as it was, whatever the last attack did to it."""
        unmount_all(self.top)
        self.spare += [f"/tmp/{kind}-{self.nonce}" for kind in "ldw"]
        for folder, folders, _ in os.walk(self.ws):
            for inner in (Path(folder, name) for name in folders):
                if not inner.is_symlink():
                    with suppress(OSError):
                        inner.chmod(0o700)
        shutil.rmtree(self.ws)
        shutil.copytree(self.top / "template", self.ws, symlinks=True, dirs_exist_ok=True)
        for place in self.spare:
            with suppress(OSError):
                Path(place).rmdir() if Path(place).is_dir() and not Path(place).is_symlink() else Path(
                    place
                ).unlink()
        self.spare.clear()
        self.listeners.forget()

    def repair(self) -> None:
        """After an attack that worked."""
        self.top.chmod(0o700)
        self.make_outside()
        shutil.rmtree(self.user, ignore_errors=True)
        self.user.mkdir(mode=0o700, exist_ok=True)
        self._make_user()
        for place in (self.config, *(Path(self.facts[name]) for name in ("victim", "victim_tmp"))):
            shutil.rmtree(place, ignore_errors=True)
            shutil.copytree(self.top / "kept" / place.name, place, dirs_exist_ok=True)
        for session in (self.home / "sessions").iterdir():
            if session.is_dir() and not self.facts["victim"].startswith(str(session)):
                shutil.rmtree(session, ignore_errors=True)
        (self.home / "trust.json").unlink(missing_ok=True)
        for pid in self.living():
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if self.user_program.poll() is not None or self.program_damage():
            self.user_program.kill()
            self.user_program.communicate()
            self._start_user_program()

    def keep(self) -> None:
        """What is put back after an attack that worked."""
        for place in (self.config, Path(self.facts["victim"]), Path(self.facts["victim_tmp"])):
            shutil.copytree(place, self.top / "kept" / place.name)

    def fingerprint(self) -> Print:
        """All that no attack may change."""
        found: Print = {}
        for top in (self.outside, self.user, self.config, *self._of_home()):
            for path in (top, *_below(top)):
                with suppress(OSError):
                    found[str(path)] = _facts(path)
        for path in _below(self.ws):
            if is_obeyed(path, self.ws):
                with suppress(OSError):
                    found[str(path)] = _facts(path, times=False)
        return found

    def _of_home(self) -> Iterator[Path]:
        """Of Retinue's own folder only what it does not change itself while it works."""
        yield self.home / "trust.json"
        if "victim" in self.facts:
            yield Path(self.facts["victim"])
            yield Path(self.facts["victim_tmp"])

    def program_damage(self) -> str:
        """Return what an attack changed in the user's program, or an empty text."""
        if self.user_program.poll() is not None:
            return "the person's program was ended"
        assert self.user_program.stdin is not None
        assert self.user_program.stdout is not None
        self.user_program.stdin.write("\n")
        self.user_program.stdin.flush()
        said = json.loads(self.user_program.stdout.readline())
        if said["held"] != self.secrets["memory"]:
            return "the memory of the person's program was changed"
        return (
            "the person's program got a signal"
            if said["told"]
            else _limits_of(self.user_program.pid, self.held)
        )

    def living(self) -> list[int]:
        """Processes of the machine that an attack left running."""
        found: list[int] = []
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                words = (process / "cmdline").read_bytes()
                state = (process / "stat").read_text().rpartition(")")[2].split()[0]
                if (
                    self.facts["token"].encode() in words
                    and state != "Z"
                    and int(process.name) != os.getpid()
                ):
                    found.append(int(process.name))
        return found

    def close(self) -> None:
        self.fresh()
        self.listeners.close()
        self.user_program.kill()
        self.user_program.communicate()
        shutil.rmtree(self.top, ignore_errors=True)


def is_obeyed(path: Path, ws: Path) -> bool:
    said = f"/{path.relative_to(ws)}"
    return any(said.endswith(f"/{name}") or f"/{name}/" in said for name in OBEYED[:-1]) or (
        path.name == ".git" and (path.is_symlink() or path.is_file())
    )


def _below(top: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(top):
        for name in (*folders, *files):
            yield Path(folder, name)


def _facts(path: Path, *, times: bool = True) -> tuple[object, ...]:
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


def held_to(pid: int) -> dict[str, object]:
    """What the kernel holds a process to, by what an attack on it would have done. It is what its starter was held to,
    which need not be the machine's default: whoever runs the battery may have been nice to others."""
    return {
        "slowed down": os.getpriority(os.PRIO_PROCESS, pid),
        "kept from processors": os.sched_getaffinity(pid),
        "given other limits": Path(f"/proc/{pid}/limits").read_text(),
    }


def _limits_of(pid: int, before: dict[str, object]) -> str:
    now = held_to(pid)
    done = [what for what, was in before.items() if now[what] != was]
    return f"the person's program was {' and '.join(done)}" if done else ""


def handle_of(path: Path) -> str:
    """What open_by_handle_at takes for this file: it is no secret, and can be guessed."""
    buffer = ctypes.create_string_buffer(8 + 128)
    struct.pack_into("Ii", buffer, 0, 128, 0)
    mount = ctypes.c_int()
    libc = ctypes.CDLL(None)
    if libc.name_to_handle_at(-100, os.fsencode(path), buffer, ctypes.byref(mount), 0):
        return "00"
    size = struct.unpack_from("I", buffer)[0]
    return buffer.raw[: 8 + size].hex()


def unmount_all(top: Path) -> None:
    """Unmount what an attack mounted below a folder, which is possible as root without a sandbox."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        place = line.split()[4]
        if place.startswith(f"{top}/"):
            subprocess.run(["umount", "-l", place], capture_output=True, check=True)
