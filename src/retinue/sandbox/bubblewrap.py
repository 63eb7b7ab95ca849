"""The strict cell: a command in a root of its own, built up from nothing by the system's bubblewrap."""

import os
import platform
import re
import resource
import subprocess
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import field
from functools import lru_cache, partial

from retinue.domain.permissions.scope import Scope
from retinue.domain.tmp_paths import TMP
from retinue.domain.value import value
from retinue.errors import Failed
from retinue.sandbox import cgroup
from retinue.sandbox.cleanup import Before
from retinue.sandbox.cli_agent_process import HOME, Guest, brought
from retinue.sandbox.command import Cell
from retinue.sandbox.devices import Lent, lent
from retinue.sandbox.file_snapshot import begun, swept, told
from retinue.sandbox.files.messages import shown
from retinue.sandbox.mountpoints import made_ready
from retinue.sandbox.mounts import SYSTEM, How, Mount, Plan, planned
from retinue.sandbox.protected_file_monitor import attend
from retinue.sandbox.seccomp import program

PLACES = ("/usr/bin/bwrap", "/bin/bwrap", "/usr/local/bin/bwrap")
"""Where the system keeps it: never looked for along a PATH, and some systems let only this one make namespaces."""

NEWER = "install bubblewrap 0.10 or newer, or your system's update of an older one that has `--bind-fd`"

_OTHER_TMP = "/var/tmp"  # noqa: S108
"""The same as /tmp in there, unless something of the machine's is laid below it: nothing is laid through a link."""

UID = 1000
NAME = "agent"
HOST = "cell"
SMALL = 67_108_864
LARGE = 536_870_912
"""Bytes of memory that a folder which lasts only as long as the command may take."""

ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin",
    "HOME": TMP, "TMPDIR": TMP, "USER": NAME, "LOGNAME": NAME, "SHELL": "/bin/sh", "LANG": "C.UTF-8",
    "TERM": "dumb", "EMAIL": f"{NAME}@localhost",
}  # fmt: skip

LIMITS = (
    ("c", resource.RLIMIT_CORE, 0, 1),
    ("f", resource.RLIMIT_FSIZE, 1_073_741_824, 1024),
    ("v", resource.RLIMIT_AS, 34_359_738_368, 1024),
    ("d", resource.RLIMIT_DATA, 4_294_967_296, 1024),
    ("n", resource.RLIMIT_NOFILE, 4096, 1),
    ("u", resource.RLIMIT_NPROC, 512, 1),
)
"""The shell's letter, the limit, its value, and the unit that the shell counts in."""

OF_A_GUEST = {"v": None, "d": 34_359_738_368, "u": 2048, "f": 4_294_967_296}
"""Other limits of a program that is no command: engines like its own reserve far more memory than they use."""

_IN_SH = {"u": ("p", 1), "f": ("f", 512)}
"""Where a plain shell has another letter or unit than bash."""

_NOTHING_OPEN = """\
tries=0; while :; do
open=; for fd in /proc/1/fd/* /proc/self/fd/*; do if [ -d "$fd" ]; then open=$fd; fi; done
if [ -z "$open" ]; then break; fi
tries=$((tries+1)); if [ $tries -gt 2000 ]; then
echo "a folder of the machine is open in the sandbox: this bubblewrap cannot be used" >&2; exit 126; fi
done
"""
"""A folder of the machine that is open in there is a way out. Bubblewrap's own first process holds one, the machine's
/proc, and closes it only after the command's has begun: that is waited for, and anything that stays open is refused."""

_MANY = 8192
"""Processes, where those of the whole user are counted."""

_MADE_UP = {
    "/etc/passwd": f"{NAME}:x:{UID}:{UID}:{NAME}:{TMP}:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n",
    "/etc/group": f"{NAME}:x:{UID}:\nnogroup:x:65534:\n",
    "/etc/hosts": f"127.0.0.1 localhost {HOST}\n::1 localhost\n",
    "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}

_LAID = ("alternatives", "fonts", "java-11-openjdk", "java-17-openjdk", "java-21-openjdk", "pki/ca-trust/extracted",
         "pki/tls/certs", "ssl/certs")  # fmt: skip
_COPIED = ("debian_version", "ld.so.cache", "localtime", "os-release", "ssl/openssl.cnf")
"""What programs of the system look for in /etc; nothing in it is anybody's secret. A copy costs less than a mount."""

_COVER = {
    How.SEALED_FILE: ("--ro-bind", "/dev/null"),
    How.SEALED_FOLDER: ("--perms", "0000", "--size", "4096", "--tmpfs"),
    How.BLANK_FOLDER: ("--perms", "0555", "--size", "4096", "--tmpfs"),
}


@value
class _Fds:
    """Descriptors that the program is started with."""

    held: list[int] = field(default_factory=list[int])

    def of(self, text: bytes) -> str:
        """One that reads this text."""
        fd = os.memfd_create("retinue", os.MFD_CLOEXEC)
        self.held.append(fd)
        os.write(fd, text)
        os.lseek(fd, 0, os.SEEK_SET)
        return str(fd)

    def words(self, *options: str) -> str:
        """One that reads these options."""
        return self.of(b"".join(os.fsencode(word) + b"\0" for word in options))

    def at(self, mount: Mount) -> str:
        """One of exactly this file or folder: not of what a link has put in its way meanwhile. What goes wrong is told
        by the name that the command would know."""
        try:
            fd = os.open(mount.source, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            raise Failed(f"{shown(mount.at)} cannot be brought into the sandbox: {error.strerror}") from error
        self.held.append(fd)
        if os.readlink(f"/proc/self/fd/{fd}") != mount.source:  # noqa: PTH115
            raise Failed(f"{shown(mount.at)} was being moved while a command was made ready: try again")
        return str(fd)

    def close(self) -> None:
        for fd in self.held:
            with suppress(OSError):
                os.close(fd)


def found() -> str | None:
    """The system's own bubblewrap."""
    return next((place for place in PLACES if os.access(place, os.X_OK)), None)


def exact(bwrap: str) -> bool:
    """Whether it lays just those folders that are held open for it: one that goes by their names can be led astray."""
    return "--bind-fd" in _help(bwrap)


def strict(scope: Scope, command: str, *, bwrap: str, records: str = "", guest: Guest | None = None) -> Cell:
    """One command in a cell that holds what the scope allows and nothing else. Failed when it cannot be built. In the
    folder of records stands what was there before, so that a kill of ours does not lose it. A guest is a program that
    is brought along, and begins when its gate is opened: then `command` is nothing."""
    code = program(talks=guest is not None)
    if code is None:
        raise Failed("the system calls of this machine are not known: commands cannot be held strictly here")
    if "\0" in command:
        raise Failed("the command holds a NUL character, which no command can")
    if not exact(bwrap):
        raise Failed(f"{bwrap} lays folders by name, which can be exchanged meanwhile: {NEWER}")
    try:
        with ExitStack() as undone:
            fds = _Fds()
            undone.callback(fds.close)
            devices = lent()
            undone.callback(devices.over)
            earlier = swept(records)
            plan = planned(scope) if guest is None else brought(guest, planned(scope))
            made_ready(plan)
            own = _own(guest, fds)
            inner = fds.words(
                *_NAMESPACES,
                *_system(fds, devices),
                *_scoped(plan, fds, bwrap),
                *own,
                "--seccomp",
                fds.of(code),
            )
            group = cgroup.joined()
            undone.callback(cgroup.left, group)
            watch = begun(records, _before(scope, plan))
            undone.pop_all()
    except OSError as error:
        raise Failed(f"the sandbox for the command cannot be built: {error.strerror}") from error
    outer = ("/bin/sh", "-c", cgroup.JOIN, group) if group else ()

    def after() -> tuple[str, ...]:
        cgroup.left(group)
        devices.over()
        return (*told(earlier, plan.writable), *plan.notes, *watch.over())

    words = (*_shell(), command) if guest is None else (*_shell(OF_A_GUEST), *guest.argv)
    gate, grace = (guest.gate, guest.grace) if guest else (-1, 0.0)
    return Cell(
        argv=(*outer, bwrap, "--args", inner, "--", *words),
        env={},
        fds=tuple(fds.held),
        after=after,
        during=partial(attend, watch.before, plan.folders),
        head=len(outer) + 1,
        gate=gate,
        grace=grace,
        apart=guest is not None,
    )


def _own(guest: Guest | None, fds: _Fds) -> list[str]:
    """What only a guest has: variables, and the gate that it waits behind until its hatch is there."""
    if guest is None:
        return []
    read, guest_gate = os.pipe2(os.O_CLOEXEC)
    fds.held.append(read)
    guest.opens(guest_gate)
    env = {"HOME": HOME, **guest.env}
    return [
        "--block-fd", str(read),
        *(word for name, value in env.items() for word in ("--setenv", name, value)),
    ]  # fmt: skip


def _before(scope: Scope, plan: Plan) -> Before:
    return Before(scope=scope, writable=plan.writable, sight=dict(plan.sight), links=plan.links)


_NAMESPACES = (
    "--unshare-user", "--unshare-all", "--uid", str(UID), "--gid", str(UID), "--hostname", HOST,
    "--cap-drop", "ALL", "--new-session", "--die-with-parent", "--clearenv",
    *(word for name, value in ENVIRONMENT.items() for word in ("--setenv", name, value)),
)  # fmt: skip


def _system(fds: _Fds, devices: Lent) -> list[str]:
    """What every command finds: programs, a few files of /etc, its own /proc and /dev, and room that does not last."""
    words: list[str] = []
    for place in SYSTEM:
        if os.path.islink(place):  # noqa: PTH114
            words += ["--symlink", os.readlink(place), place]  # noqa: PTH115
        elif os.path.isdir(place):  # noqa: PTH112
            words += ["--ro-bind", place, place]
    for place, text in _MADE_UP.items():
        words += ["--file", fds.of(text.encode()), place]
    for name in _COPIED:
        if text := _copied(f"/etc/{name}"):
            words += ["--file", fds.of(text), f"/etc/{name}"]
    for name in _LAID:
        words += ["--ro-bind", f"/etc/{name}", f"/etc/{name}"] if os.path.isdir(f"/etc/{name}") else []  # noqa: PTH112
    words += ["--proc", "/proc", "--remount-ro", "/proc", "--dev", "/dev"]
    for name, place in devices.at.items():
        words += ["--dev-bind", place, f"/dev/{name}"]
    words += [*_room("/dev/shm", SMALL), "--remount-ro", "/dev"]  # noqa: S108
    return [*words, "--dir", "/run"]


def _copied(place: str) -> bytes:
    """The file's text as it is now; nothing if there is none."""
    try:
        status = os.stat(place)  # noqa: PTH116
    except OSError:
        return b""
    return _text(place, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=32)
def _text(place: str, _changed: int, size: int) -> bytes:
    with open(place, "rb") as file:  # noqa: PTH123
        return file.read(size)


def _scoped(plan: Plan, fds: _Fds, bwrap: str) -> list[str]:
    words = _laid(Mount(how=How.WRITE, at=TMP, source=plan.tmp), fds) if plan.tmp else _room(TMP, LARGE)
    if not any(mount.at.startswith(f"{_OTHER_TMP}/") or mount.at == _OTHER_TMP for mount in plan.mounts):
        words += ["--symlink", TMP, _OTHER_TMP]
    for mount in plan.mounts:
        words += _laid(mount, fds)
    if "--disable-userns" in _help(bwrap):
        words.append("--disable-userns")
    for mount in plan.mounts:
        words += ["--remount-ro", mount.at] if mount.how is How.FRAME else []
    return [*words, "--remount-ro", "/", "--chdir", plan.cwd]


def _laid(mount: Mount, fds: _Fds) -> list[str]:
    if mount.how is How.BLANK_FILE:
        return ["--perms", "0444", "--ro-bind-data", fds.of(b""), mount.at]
    if mount.how is How.FRAME:
        return _room(mount.at, SMALL)
    if (cover := _COVER.get(mount.how)) is not None:
        sealed = ["--remount-ro", mount.at] if "--tmpfs" in cover else []
        return [*cover, mount.at, *sealed]
    return ["--bind-fd" if mount.how is How.WRITE else "--ro-bind-fd", fds.at(mount), mount.at]


def _room(at: str, size: int) -> list[str]:
    return ["--perms", "0700", "--size", str(size), "--tmpfs", at]


def _shell(instead: Mapping[str, int | None] | None = None) -> tuple[str, ...]:
    """Makes sure that nothing leads out, sets the limits and becomes the shell of the command, which stays one word, or
    the guest that has limits of its own. In a namespace of its own the number of processes is counted anew; before Linux
    5.14 it was counted with all others of the user."""
    shell = "/bin/bash" if os.access("/bin/bash", os.X_OK) else "/bin/sh"
    other = {} if shell == "/bin/bash" else _IN_SH
    lines: list[str] = []
    for letter, which, usual, unit in LIMITS:
        if (limit := (instead or {}).get(letter, usual)) is None:
            continue
        most = _MANY if which == resource.RLIMIT_NPROC and not _counted_anew() else limit
        hard = resource.getrlimit(which)[1]
        value = most if hard == resource.RLIM_INFINITY else min(most, hard)
        flag, size = other.get(letter, (letter, unit))
        lines.append(f"ulimit -{flag} {value // size}")
    then = f'exec {shell} -c -- "$0"' if instead is None else 'exec "$0" "$@"'
    return (shell, "-c", f"{_NOTHING_OPEN}{' && '.join(lines)} && {then}")


@lru_cache(maxsize=1)
def _counted_anew() -> bool:
    numbers = re.match(r"(\d+)\.(\d+)", platform.release())
    return numbers is not None and (int(numbers[1]), int(numbers[2])) >= (5, 14)


@lru_cache(maxsize=8)
def _help(bwrap: str) -> str:
    """What this bubblewrap can do, in its own words; asked once."""
    asked = subprocess.run([bwrap, "--help"], env={}, capture_output=True, text=True, check=False)  # noqa: S603
    return asked.stdout + asked.stderr
