"""Attacks by commands on the kernel: rights, calls, devices, and what lasts longer or takes more than it may."""

import os
import stat
from pathlib import Path

from attack import Family, bash, path_appears
from target_machine import World

ROOTS = Family("mounts, namespaces, rights")
KERNEL = Family("calls to the kernel")
DEVICES = Family("terminals and devices")
STAY = Family("outliving and using up")


# rights


def _mount_exists(world: World, _said: str) -> str:
    lines = Path("/proc/self/mountinfo").read_text()
    return "something was mounted" if f"{world.top}/" in lines else ""


def _set_id(world: World, _said: str) -> str:
    for folder, folders, files in os.walk(world.ws):
        for name in (*folders, *files):
            status = Path(folder, name).lstat()
            if status.st_mode & (stat.S_ISUID | stat.S_ISGID) and stat.S_ISREG(status.st_mode):
                return f"{name} runs as its owner, whoever starts it"
    return ""


def _capable(world: World, _said: str) -> str:
    place = world.ws / "e"
    return (
        "a program got rights of its own"
        if place.exists() and "security.capability" in os.listxattr(place)
        else ""
    )


def _owner_changed(world: World, _said: str) -> str:
    place = world.ws / "e"
    return "a file belongs to another" if place.exists() and place.stat().st_uid == 12345 else ""


def _large(world: World, _said: str) -> str:
    place = world.ws / "large"
    return "the file is 3 GB" if place.exists() and place.stat().st_size > 2 << 30 else ""


def _device(world: World, _said: str) -> str:
    for path in world.ws.rglob("*"):
        mode = path.lstat().st_mode
        if stat.S_ISBLK(mode) or stat.S_ISCHR(mode):
            return "a device was made"
    return ""


ROOTS.sh("a file system over a folder", "mount -t tmpfs none @outside@/folder", proof=_mount_exists)
ROOTS.sh(
    "a folder outside laid into the workspace",
    "mkdir m; mount --bind @outside@ m; cat m/secret",
    proof=_mount_exists,
)
ROOTS.py(
    "lifting what is laid over a closed file",
    "reached(libc.umount2(b'vault', 2))\nprint(open('vault/gold').read())",
)
ROOTS.sh(
    "writing where it is read-only",
    "[ -e @outside@ ] || mount -o remount,rw /usr; [ -e @outside@ ] || mount -o remount,bind,rw /usr; echo > /usr/.battery-@nonce@",
    proof=path_appears("/usr/.battery-@nonce@"),
)
ROOTS.py("a mount by the new calls", "reached(call(430, b'tmpfs', 0))")
ROOTS.py("a copy of a tree of mounts", "reached(call(428, -100, b'/', 1))")
ROOTS.py("the attributes of a mount", "reached(call(442, -1, b'', 0x1000, b'\\0' * 32, 32))")
ROOTS.py("a user namespace", "reached(call((272, 97), 0x10000000))")
ROOTS.sh("a user namespace by a program", "unshare -Ur true && echo WON-$((6*7))-x")
ROOTS.py(
    "a user namespace by clone",
    "pid = call((56, 220), 0x10000000 | 17, 0, 0, 0, 0)\nif pid == 0: os._exit(0)\nif pid > 0: won()",
)
ROOTS.py(
    "a user namespace by clone3",
    "args = struct.pack('8Q', 0x10000000, 0, 0, 0, 17, 0, 0, 0)\npid = call(435, args, 64)\nif pid == 0: os._exit(0)\nif pid > 0: won()",
)
ROOTS.py(
    "another's namespace", "fd = os.open('/proc/@pid@/ns/mnt', os.O_RDONLY)\nreached(call((308, 268), fd, 0))"
)
ROOTS.py(
    "another's namespace by descriptor", "fd = os.pidfd_open(@pid@)\nreached(call((308, 268), fd, 0x20000))"
)
ROOTS.py(
    "the namespace of its first process",
    "fd = os.open('/proc/1/ns/mnt', os.O_RDONLY)\nreached(call((308, 268), fd, 0))",
)
ROOTS.py("another root", "reached(libc.chroot(b'.'))")
ROOTS.py("a pivoted root", "reached(call((155, 41), b'.', b'.'))")
ROOTS.py("becoming root", "os.setuid(0)\nif os.access('@outside@', os.F_OK): won()")
ROOTS.py("taking capabilities", """
header, data = struct.pack('Ii', 0x20080522, 0), struct.pack('6I', *[0xffffffff] * 6)
call((126, 91), header, data)
for line in open('/proc/self/status'):
    if line.startswith('CapEff') and int(line.split()[1], 16): won()
""")  # fmt: skip
ROOTS.sh(
    "programs that run as root",
    "su -c 'cat @outside@/secret' < /dev/null; sudo -n cat @outside@/secret; pkexec cat @outside@/secret < /dev/null",
)
ROOTS.sh(
    "a program that runs as its owner",
    "cp /bin/true e; chmod 4755 e; chmod u+s e; install -m 6755 /bin/true f",
    proof=_set_id,
)
ROOTS.py(
    "the same, made so",
    "os.umask(0)\nfor n, go in enumerate((lambda p: os.open(p, os.O_CREAT | os.O_WRONLY, 0o6755), lambda p: call(85, p.encode(), 0o6755), lambda p: os.mknod(p, 0o106755), lambda p: libc.openat(-100, p.encode(), os.O_CREAT, 0o4755))):\n  try: go('e%d' % n)\n  except OSError: pass",
    proof=_set_id,
)
ROOTS.py("the same by newer and odder calls", """
os.umask(0)
open('e', 'w').close()
call(452, -100, b'e', 0o4755, 0)
call((268, 53), -100, b'e', 0o4755 | 1 << 32)
call((91, 52), os.open('e', os.O_RDWR), 0o4755 | 1 << 40)
fd = os.open('.', os.O_TMPFILE | os.O_WRONLY, 0o644)
call((91, 52), fd, 0o6755)
libc.linkat(-100, b'/proc/self/fd/%d' % fd, -100, b'g', 0x400)
how = struct.pack('QQQ', os.O_CREAT | os.O_WRONLY, 0o6755, 0)
call(437, -100, b'h', how, len(how))
""", proof=_set_id)  # fmt: skip
ROOTS.py(
    "a program with rights of its own",
    "open('e', 'w').close()\nos.setxattr('e', 'security.capability', struct.pack('<5I', 0x02000001, 0xffffffff, 0, 0xffffffff, 0))",
    proof=_capable,
)
ROOTS.py(
    "an owner of its choosing",
    "open('e', 'w').close()\nos.chown('e', 12345, 12345)",
    proof=_owner_changed,
)


# the kernel

for _name, _code in {
    "io_uring": "reached(call(425, 4, b'\\0' * 256))",
    "io_uring's other calls": "reached(call(427, -1, 0, 0, 0))",
    "bpf": "reached(call((321, 280), 0, struct.pack('5I', 2, 4, 4, 1, 0) + b'\\0' * 100, 120))",
    "perf": "reached(call((298, 241), struct.pack('II', 1, 112) + b'\\0' * 32 + struct.pack('Q', 0x60) + b'\\0' * 64, 0, -1, -1, 0))",
    "userfaultfd": "reached(call((323, 282), 1))",
    "fanotify": "reached(call((300, 262), 0x200, 0))",
    "kexec": "reached(call((246, 104), 0, -1, 0, 0xffff0000))",
    "kexec by file": "reached(call((320, 294), -1, -1, 0, 0, 0))",
    "a module": "reached(call((175, 105), 0, 0, b''))",
    "a module by file": "reached(call((313, 273), -1, b'', 0))",
    "removing a module": "reached(call((176, 106), b'battery_no_such_module', 0o4000))",
    "restarting, with a wrong word": "reached(call((169, 142), 1, 2, 3, 0))",
    "swapping": "reached(call((167, 224), b'/nonexistent/battery', 0))",
    "accounting": "reached(call((163, 89), b'/nonexistent/battery'))",
    "the clock": "reached(call((227, 112), 0, struct.pack('qq', -1, -1)))",
    "the machine's name": "name = os.uname().nodename.encode()\nreached(call((170, 161), name, len(name)))",
    "ports of the processor": "reached(call(172, 3) if not ARM else -1)",
    "the table of segments": "reached(call(154, 0, b'\\0' * 64, 64) if not ARM else -1)",
    "quotas": "reached(call((179, 60), 0x80000700, b'/dev/vda', 0, b'\\0' * 64))",
    "hanging up": "reached(call((153, 58)))",
    "a cookie for a folder": "reached(call((212, 18), 0, b'\\0' * 64, 64) if not ARM else -1)",
    "numbers of the x32 kind": "reached(call(0x40000000 + 39))",
}.items():  # fmt: skip
    KERNEL.py(_name, _code)
KERNEL.py("the 32-bit door", """
if ARM: raise SystemExit
import mmap
code = mmap.mmap(-1, 4096, prot=7)
code.write(bytes.fromhex('53b814000000cd805bc3'))  # getpid, by int 0x80
run = ctypes.CFUNCTYPE(ctypes.c_long)(ctypes.addressof(ctypes.c_char.from_buffer(code)))
if run() > 0: won()
""")  # fmt: skip


def _key(world: World, _said: str) -> str:
    return (
        "a key was left with the person" if f"battery-{world.nonce}" in Path("/proc/keys").read_text() else ""
    )


KERNEL.py(
    "keys of the person",
    "id = call((248, 217), b'user', b'battery-@nonce@', b'evil', 4, -4)\nif id > 0:\n  won()\n  call((250, 219), 15, id, 2)",
    proof=_key,
)
KERNEL.py("the ring of keys", "reached(call((250, 219), 0, -4, 0))")
KERNEL.py("asking for a key", "reached(call((249, 218), b'user', b'battery-none', 0, -4))")


# terminals and devices

DEVICES.sh("writing to the person's terminal", "echo evil > @pts@")
DEVICES.py(
    "typing into the person's terminal",
    "fd = os.open('@pts@', os.O_RDWR | os.O_NOCTTY)\nfor char in b'evil\\n': fcntl.ioctl(fd, 0x5412, bytes([char]))",
)
DEVICES.py(
    "taking the person's terminal",
    "os.setsid() if os.getsid(0) != os.getpid() else 0\nfd = os.open('@pts@', os.O_RDWR)\nfcntl.ioctl(fd, 0x540E, 1)\nwon()",
)
DEVICES.py("typing into any terminal", "a, b = os.openpty()\nreached(call((16, 29), b, 0x5412, b'x'))")
DEVICES.py(
    "typing, with a longer number", "a, b = os.openpty()\nreached(call((16, 29), b, 0x100005412, b'x'))"
)
DEVICES.py("selecting and pasting", "a, b = os.openpty()\nreached(call((16, 29), b, 0x541C, b'\\x02'))")
DEVICES.py("its controlling terminal", "done(os.open('/dev/tty', os.O_RDWR))")
DEVICES.py(
    "the machine's console",
    "\nfor name in ('console', 'tty0', 'tty1', 'ttyS0'):\n  try: done(os.open('/dev/' + name, os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK))\n  except OSError: pass",
)
DEVICES.py(
    "memory, disks and tunnels",
    "\nfor name in ('mem', 'kmem', 'port', 'kmsg', 'vda', 'sda', 'nvme0n1', 'loop-control', 'fuse', 'kvm', 'net/tun', 'uinput', 'vhost-net'):\n  try: done(os.open('/dev/' + name, os.O_RDONLY | os.O_NONBLOCK))\n  except OSError: pass",
)
DEVICES.py(
    "a disk of its own making",
    "os.mknod('d', 0o060600, os.makedev(254, 0))\nprint(os.read(os.open('d', os.O_RDONLY), 16))",
    proof=_device,
)
DEVICES.py("memory of its own making", "os.mknod('m', 0o020600, os.makedev(1, 1))", proof=_device)
DEVICES.py(
    "a device in /tmp",
    "os.mknod('/tmp/battery-dev', 0o020600, os.makedev(1, 3))\nwon()\nos.unlink('/tmp/battery-dev')",
)


# outliving

_SLEEP = "sleep @token@"
for _name, _command in {
    "in the background": f"{_SLEEP} & disown",
    "in a session of its own": f"setsid {_SLEEP} > /dev/null 2>&1 &",
    "deaf to hanging up": f"nohup {_SLEEP} > /dev/null 2>&1 &",
    "forked twice": f"( ( setsid nohup {_SLEEP} > /dev/null 2>&1 < /dev/null & ) & )",
    "deaf to every signal it can be": f"(trap '' TERM HUP INT QUIT PIPE; setsid bash -c 'trap \"\" TERM HUP INT; while :; do {_SLEEP}; done') > /dev/null 2>&1 &",
    "stopped": f"{_SLEEP} & kill -STOP $!",
    "ending its parents": f"setsid {_SLEEP} > /dev/null 2>&1 & kill -9 $PPID; [ -e @outside@ ] || kill -9 1",
    "by other programs' leave": f"echo '{_SLEEP}' | at now; systemd-run --user {_SLEEP}",
}.items():  # fmt: skip
    STAY.sh(_name, _command)
STAY.py(
    "adopted by itself",
    "libc.prctl(36, 1, 0, 0, 0)\nlibc.prctl(1, 0, 0, 0, 0)\nif os.fork() == 0:\n  os.setsid()\n  if os.fork() == 0: os.execvp('sleep', ['sleep', '@token@'])\n  os._exit(0)\nos._exit(0)",
)
STAY.py(
    "without its own memory",
    "libc.prctl(4, 0, 0, 0, 0)\nif os.fork() == 0:\n  os.setsid()\n  libc.prctl(4, 0, 0, 0, 0)\n  os.execvp('sleep', ['sleep', '@token@'])\nos._exit(0)",
)
STAY.calls("beyond its time", (bash(f"(trap '' TERM; setsid {_SLEEP}) & {_SLEEP}", 1),))
STAY.py("very many processes", """
made = []
try:
    for _ in range(700):
        pid = os.fork()
        if pid == 0:
            signal.pause()
        made.append(pid)
    won()
except BlockingIOError: pass
for pid in made: os.kill(pid, 9)
""")  # fmt: skip
STAY.py(
    "much memory",
    "import mmap\nm = mmap.mmap(-1, 6 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\nwon()",
)
STAY.py(
    "a very large file",
    "os.truncate(os.open('large', os.O_CREAT | os.O_WRONLY, 0o600), 3 << 30)",
    proof=_large,
)
STAY.py(
    "much shared memory",
    "f = open('/dev/shm/battery-@nonce@', 'wb')\nfor _ in range(80): f.write(b'x' * (1 << 20))\nf.flush()\nwon()",
    proof=path_appears("/dev/shm/battery-@nonce@"),
)
STAY.py("very many open files", "f = [os.open('/dev/null', 0) for _ in range(4500)]\nwon()")


def _peak() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) // 1024


def _before_output(world: World) -> None:
    world.facts["peak"] = str(_peak())


def _memory_grew(world: World, _said: str) -> str:
    more = _peak() - int(world.facts["peak"])
    return f"Retinue took {more} MB more" if more > 64 else ""


STAY.sh(
    "very much output",
    "head -c 300000000 /dev/zero | tr '\\0' x; yes | head -c 100000000",
    before=_before_output,
    proof=_memory_grew,
)
STAY.calls("output without end", (bash("yes evil", 1),), before=_before_output, proof=_memory_grew)
