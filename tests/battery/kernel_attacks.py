"""Attacks by commands on the kernel: privileges, system calls, devices, processes and resources."""

import os
import stat
from pathlib import Path

from attack import Family, bash, created_path_evidence
from target_machine import TargetMachine

PRIVILEGES = Family("mounts, namespaces, privileges")
KERNEL = Family("system calls")
DEVICES = Family("terminals and devices")
RESOURCES = Family("remaining processes and resource use")


# privileges


def _mount_evidence(machine: TargetMachine, _output: str) -> str:
    lines = Path("/proc/self/mountinfo").read_text()
    return "something was mounted" if f"{machine.top}/" in lines else ""


def _setid_evidence(machine: TargetMachine, _output: str) -> str:
    for folder, folders, files in os.walk(machine.ws):
        for name in (*folders, *files):
            status = Path(folder, name).lstat()
            if status.st_mode & (stat.S_ISUID | stat.S_ISGID) and stat.S_ISREG(status.st_mode):
                return f"{name} has a set-id bit"
    return ""


def _capability_evidence(machine: TargetMachine, _output: str) -> str:
    place = machine.ws / "e"
    return (
        "a program got capabilities"
        if place.exists() and "security.capability" in os.listxattr(place)
        else ""
    )


def _chown_evidence(machine: TargetMachine, _output: str) -> str:
    place = machine.ws / "e"
    return "a file belongs to another user" if place.exists() and place.stat().st_uid == 12345 else ""


def _large_file_evidence(machine: TargetMachine, _output: str) -> str:
    place = machine.ws / "large"
    return "the file is 3 GB" if place.exists() and place.stat().st_size > 2 << 30 else ""


def _device_evidence(machine: TargetMachine, _output: str) -> str:
    for path in machine.ws.rglob("*"):
        mode = path.lstat().st_mode
        if stat.S_ISBLK(mode) or stat.S_ISCHR(mode):
            return "a device was created"
    return ""


PRIVILEGES.sh(
    "a file system over a folder", "mount -t tmpfs none @outside@/folder", extra_evidence=_mount_evidence
)
PRIVILEGES.sh(
    "a bind mount of a folder outside",
    "mkdir m; mount --bind @outside@ m; cat m/secret",
    extra_evidence=_mount_evidence,
)
PRIVILEGES.py(
    "unmounting the mask of a closed file",
    "check_reached(libc.umount2(b'vault', 2))\nprint(open('vault/gold').read())",
)
PRIVILEGES.sh(
    "remounting a read-only mount",
    "[ -e @outside@ ] || mount -o remount,rw /usr; [ -e @outside@ ] || mount -o remount,bind,rw /usr; echo > /usr/.battery-@nonce@",
    extra_evidence=created_path_evidence("/usr/.battery-@nonce@"),
)
PRIVILEGES.py("a mount by fsopen", "check_reached(call(430, b'tmpfs', 0))")
PRIVILEGES.py("a mount copy by open_tree", "check_reached(call(428, -100, b'/', 1))")
PRIVILEGES.py("mount_setattr", "check_reached(call(442, -1, b'', 0x1000, b'\\0' * 32, 32))")
PRIVILEGES.py("a user namespace", "check_reached(call((272, 97), 0x10000000))")
PRIVILEGES.sh("a user namespace by a program", "unshare -Ur true && echo WON-$((6*7))-x")
PRIVILEGES.py(
    "a user namespace by clone",
    "pid = call((56, 220), 0x10000000 | 17, 0, 0, 0, 0)\nif pid == 0: os._exit(0)\nif pid > 0: succeed()",
)
PRIVILEGES.py(
    "a user namespace by clone3",
    "args = struct.pack('8Q', 0x10000000, 0, 0, 0, 17, 0, 0, 0)\npid = call(435, args, 64)\nif pid == 0: os._exit(0)\nif pid > 0: succeed()",
)
PRIVILEGES.py(
    "the namespace of another process",
    "fd = os.open('/proc/@pid@/ns/mnt', os.O_RDONLY)\ncheck_reached(call((308, 268), fd, 0))",
)
PRIVILEGES.py(
    "the namespace of another process by pidfd",
    "fd = os.pidfd_open(@pid@)\ncheck_reached(call((308, 268), fd, 0x20000))",
)
PRIVILEGES.py(
    "the namespace of its first process",
    "fd = os.open('/proc/1/ns/mnt', os.O_RDONLY)\ncheck_reached(call((308, 268), fd, 0))",
)
PRIVILEGES.py("chroot", "check_reached(libc.chroot(b'.'))")
PRIVILEGES.py("pivot_root", "check_reached(call((155, 41), b'.', b'.'))")
PRIVILEGES.py("setuid to root", "os.setuid(0)\nif os.access('@outside@', os.F_OK): succeed()")
PRIVILEGES.py("capset", """
header, data = struct.pack('Ii', 0x20080522, 0), struct.pack('6I', *[0xffffffff] * 6)
call((126, 91), header, data)
for line in open('/proc/self/status'):
    if line.startswith('CapEff') and int(line.split()[1], 16): succeed()
""")  # fmt: skip
PRIVILEGES.sh(
    "su, sudo and pkexec",
    "su -c 'cat @outside@/secret' < /dev/null; sudo -n cat @outside@/secret; pkexec cat @outside@/secret < /dev/null",
)
PRIVILEGES.sh(
    "a set-user-id file",
    "cp /bin/true e; chmod 4755 e; chmod u+s e; install -m 6755 /bin/true f",
    extra_evidence=_setid_evidence,
)
PRIVILEGES.py(
    "a set-user-id file, at creation",
    "os.umask(0)\nfor n, go in enumerate((lambda p: os.open(p, os.O_CREAT | os.O_WRONLY, 0o6755), lambda p: call(85, p.encode(), 0o6755), lambda p: os.mknod(p, 0o106755), lambda p: libc.openat(-100, p.encode(), os.O_CREAT, 0o4755))):\n  try: go('e%d' % n)\n  except OSError: pass",
    extra_evidence=_setid_evidence,
)
PRIVILEGES.py("a set-user-id file, by other system calls", """
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
""", extra_evidence=_setid_evidence)  # fmt: skip
PRIVILEGES.py(
    "file capabilities",
    "open('e', 'w').close()\nos.setxattr('e', 'security.capability', struct.pack('<5I', 0x02000001, 0xffffffff, 0, 0xffffffff, 0))",
    extra_evidence=_capability_evidence,
)
PRIVILEGES.py(
    "chown to another user",
    "open('e', 'w').close()\nos.chown('e', 12345, 12345)",
    extra_evidence=_chown_evidence,
)


# the kernel

for _name, _code in {
    "io_uring": "check_reached(call(425, 4, b'\\0' * 256))",
    "io_uring's other calls": "check_reached(call(427, -1, 0, 0, 0))",
    "bpf": "check_reached(call((321, 280), 0, struct.pack('5I', 2, 4, 4, 1, 0) + b'\\0' * 100, 120))",
    "perf": "check_reached(call((298, 241), struct.pack('II', 1, 112) + b'\\0' * 32 + struct.pack('Q', 0x60) + b'\\0' * 64, 0, -1, -1, 0))",
    "userfaultfd": "check_reached(call((323, 282), 1))",
    "fanotify": "check_reached(call((300, 262), 0x200, 0))",
    "kexec": "check_reached(call((246, 104), 0, -1, 0, 0xffff0000))",
    "kexec by file": "check_reached(call((320, 294), -1, -1, 0, 0, 0))",
    "a module": "check_reached(call((175, 105), 0, 0, b''))",
    "a module by file": "check_reached(call((313, 273), -1, b'', 0))",
    "removing a module": "check_reached(call((176, 106), b'battery_no_such_module', 0o4000))",
    "reboot with a wrong magic number": "check_reached(call((169, 142), 1, 2, 3, 0))",
    "swapping": "check_reached(call((167, 224), b'/nonexistent/battery', 0))",
    "accounting": "check_reached(call((163, 89), b'/nonexistent/battery'))",
    "the clock": "check_reached(call((227, 112), 0, struct.pack('qq', -1, -1)))",
    "the machine's name": "name = os.uname().nodename.encode()\ncheck_reached(call((170, 161), name, len(name)))",
    "iopl": "check_reached(call(172, 3) if not ARM else -1)",
    "modify_ldt": "check_reached(call(154, 0, b'\\0' * 64, 64) if not ARM else -1)",
    "quotas": "check_reached(call((179, 60), 0x80000700, b'/dev/vda', 0, b'\\0' * 64))",
    "vhangup": "check_reached(call((153, 58)))",
    "lookup_dcookie": "check_reached(call((212, 18), 0, b'\\0' * 64, 64) if not ARM else -1)",
    "x32 system call numbers": "check_reached(call(0x40000000 + 39))",
}.items():  # fmt: skip
    KERNEL.py(_name, _code)
KERNEL.py("32-bit system calls (int 0x80)", """
if ARM: raise SystemExit
import mmap
code = mmap.mmap(-1, 4096, prot=7)
code.write(bytes.fromhex('53b814000000cd805bc3'))  # getpid, by int 0x80
run = ctypes.CFUNCTYPE(ctypes.c_long)(ctypes.addressof(ctypes.c_char.from_buffer(code)))
if run() > 0: succeed()
""")  # fmt: skip


def _key_evidence(machine: TargetMachine, _output: str) -> str:
    return (
        "a key was added to the user's keyring"
        if f"battery-{machine.nonce}" in Path("/proc/keys").read_text()
        else ""
    )


KERNEL.py(
    "the user's keyring",
    "id = call((248, 217), b'user', b'battery-@nonce@', b'evil', 4, -4)\nif id > 0:\n  succeed()\n  call((250, 219), 15, id, 2)",
    extra_evidence=_key_evidence,
)
KERNEL.py("keyctl", "check_reached(call((250, 219), 0, -4, 0))")
KERNEL.py("request_key", "check_reached(call((249, 218), b'user', b'battery-none', 0, -4))")


# terminals and devices

DEVICES.sh("writing to the user's terminal", "echo evil > @pts@")
DEVICES.py(
    "typing into the user's terminal",
    "fd = os.open('@pts@', os.O_RDWR | os.O_NOCTTY)\nfor char in b'evil\\n': fcntl.ioctl(fd, 0x5412, bytes([char]))",
)
DEVICES.py(
    "taking the user's terminal",
    "os.setsid() if os.getsid(0) != os.getpid() else 0\nfd = os.open('@pts@', os.O_RDWR)\nfcntl.ioctl(fd, 0x540E, 1)\nsucceed()",
)
DEVICES.py("typing into any terminal", "a, b = os.openpty()\ncheck_reached(call((16, 29), b, 0x5412, b'x'))")
DEVICES.py(
    "typing, with a 64-bit ioctl number",
    "a, b = os.openpty()\ncheck_reached(call((16, 29), b, 0x100005412, b'x'))",
)
DEVICES.py("TIOCLINUX paste", "a, b = os.openpty()\ncheck_reached(call((16, 29), b, 0x541C, b'\\x02'))")
DEVICES.py("the controlling terminal", "check_nonnegative(os.open('/dev/tty', os.O_RDWR))")
DEVICES.py(
    "the machine's console",
    "\nfor name in ('console', 'tty0', 'tty1', 'ttyS0'):\n  try: check_nonnegative(os.open('/dev/' + name, os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK))\n  except OSError: pass",
)
DEVICES.py(
    "memory, disks and tunnels",
    "\nfor name in ('mem', 'kmem', 'port', 'kmsg', 'vda', 'sda', 'nvme0n1', 'loop-control', 'fuse', 'kvm', 'net/tun', 'uinput', 'vhost-net'):\n  try: check_nonnegative(os.open('/dev/' + name, os.O_RDONLY | os.O_NONBLOCK))\n  except OSError: pass",
)
DEVICES.py(
    "mknod of a disk",
    "os.mknod('d', 0o060600, os.makedev(254, 0))\nprint(os.read(os.open('d', os.O_RDONLY), 16))",
    extra_evidence=_device_evidence,
)
DEVICES.py("mknod of /dev/mem", "os.mknod('m', 0o020600, os.makedev(1, 1))", extra_evidence=_device_evidence)
DEVICES.py(
    "a device in /tmp",
    "os.mknod('/tmp/battery-dev', 0o020600, os.makedev(1, 3))\nsucceed()\nos.unlink('/tmp/battery-dev')",
)


# remaining processes and resource use

_SLEEP = "sleep @token@"
for _name, _command in {
    "in the background": f"{_SLEEP} & disown",
    "in its own session": f"setsid {_SLEEP} > /dev/null 2>&1 &",
    "ignoring SIGHUP": f"nohup {_SLEEP} > /dev/null 2>&1 &",
    "forked twice": f"( ( setsid nohup {_SLEEP} > /dev/null 2>&1 < /dev/null & ) & )",
    "ignoring every signal that can be ignored": f"(trap '' TERM HUP INT QUIT PIPE; setsid bash -c 'trap \"\" TERM HUP INT; while :; do {_SLEEP}; done') > /dev/null 2>&1 &",
    "stopped": f"{_SLEEP} & kill -STOP $!",
    "killing its parents": f"setsid {_SLEEP} > /dev/null 2>&1 & kill -9 $PPID; [ -e @outside@ ] || kill -9 1",
    "started by at and systemd-run": f"echo '{_SLEEP}' | at now; systemd-run --user {_SLEEP}",
}.items():  # fmt: skip
    RESOURCES.sh(_name, _command)
RESOURCES.py(
    "as its own subreaper",
    "libc.prctl(36, 1, 0, 0, 0)\nlibc.prctl(1, 0, 0, 0, 0)\nif os.fork() == 0:\n  os.setsid()\n  if os.fork() == 0: os.execvp('sleep', ['sleep', '@token@'])\n  os._exit(0)\nos._exit(0)",
)
RESOURCES.py(
    "undumpable",
    "libc.prctl(4, 0, 0, 0, 0)\nif os.fork() == 0:\n  os.setsid()\n  libc.prctl(4, 0, 0, 0, 0)\n  os.execvp('sleep', ['sleep', '@token@'])\nos._exit(0)",
)
RESOURCES.calls("beyond its timeout", (bash(f"(trap '' TERM; setsid {_SLEEP}) & {_SLEEP}", 1),))
RESOURCES.py("very many processes", """
made = []
try:
    for _ in range(700):
        pid = os.fork()
        if pid == 0:
            signal.pause()
        made.append(pid)
    succeed()
except BlockingIOError: pass
for pid in made: os.kill(pid, 9)
""")  # fmt: skip
RESOURCES.py(
    "much memory",
    "import mmap\nm = mmap.mmap(-1, 6 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\nsucceed()",
)
RESOURCES.py(
    "a very large file",
    "os.truncate(os.open('large', os.O_CREAT | os.O_WRONLY, 0o600), 3 << 30)",
    extra_evidence=_large_file_evidence,
)
RESOURCES.py(
    "much shared memory",
    "f = open('/dev/shm/battery-@nonce@', 'wb')\nfor _ in range(80): f.write(b'x' * (1 << 20))\nf.flush()\nsucceed()",
    extra_evidence=created_path_evidence("/dev/shm/battery-@nonce@"),
)
RESOURCES.py("very many open files", "f = [os.open('/dev/null', 0) for _ in range(4500)]\nsucceed()")


def _peak_memory_mb() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) // 1024


def _record_peak_memory(machine: TargetMachine) -> None:
    machine.placeholders["peak"] = str(_peak_memory_mb())


def _memory_evidence(machine: TargetMachine, _output: str) -> str:
    more = _peak_memory_mb() - int(machine.placeholders["peak"])
    return f"Retinue used {more} MB more" if more > 64 else ""


RESOURCES.sh(
    "very much output",
    "head -c 300000000 /dev/zero | tr '\\0' x; yes | head -c 100000000",
    before=_record_peak_memory,
    extra_evidence=_memory_evidence,
)
RESOURCES.calls(
    "output without end", (bash("yes evil", 1),), before=_record_peak_memory, extra_evidence=_memory_evidence
)
