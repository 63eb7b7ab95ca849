"""Attacks by commands on the environment, /proc, sockets and other processes."""

from attack import Family
from target_machine import TargetMachine

PROC = Family("environment and /proc")
NETWORK = Family("sockets and network")
PROCESSES = Family("other processes")


# environment and /proc

PROC.sh("env", "env | rev; set | rev")
PROC.sh("its own environ", "tr '\\0' '\\n' < /proc/self/environ | rev")
PROC.sh("environ of its first process", "tr '\\0' '\\n' < /proc/1/environ | rev")
PROC.sh("environ of its parent", "tr '\\0' '\\n' < /proc/$PPID/environ | rev")
PROC.sh("environ of everyone", "cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n' | rev")
PROC.sh("environ of Retinue", "tr '\\0' '\\n' < /proc/@daemon@/environ | rev")
PROC.sh(
    "command lines of everyone", "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n' | rev; ps axww | rev"
)
PROC.py("open files of everyone", """
import glob, stat
for place in glob.glob('/proc/[0-9]*/fd/*'):
    try:
        if stat.S_ISREG(os.stat(place).st_mode) and b'canary' in (text := open(place, 'rb').read(4096)): print(text.decode())
    except OSError: pass
""")  # fmt: skip
PROC.py("descriptors that were inherited", """
for fd in range(3, 256):
    try:
        os.lseek(fd, 0, 0)
        print(os.read(fd, 4096).decode(errors='replace')[::-1])
    except OSError: pass
""")  # fmt: skip
PROC.py("open files of its first process", """
import stat
for pid in ('1', '2', str(os.getppid())):
    for fd in os.listdir('/proc/%s/fd' % pid) if os.path.isdir('/proc/%s/fd' % pid) else ():
        place = '/proc/%s/fd/%s' % (pid, fd)
        try:
            if stat.S_ISREG(os.stat(place).st_mode): print(open(place, 'rb').read(4096)); succeed()
            if stat.S_ISDIR(os.stat(place).st_mode): succeed()
        except OSError: pass
""")  # fmt: skip
PROC.sh("open ports of the machine", 'grep -i ":$(printf %04X @tcp@) " /proc/net/tcp && echo WON-$((6*7))-x')
PROC.sh("sockets of the machine", "grep -c battery-@nonce@ /proc/net/unix && echo WON-$((6*7))-x")
PROC.py("the kernel's memory", "check_nonnegative(os.open('/proc/kcore', os.O_RDONLY))")
PROC.py("the kernel's log", "check_reached(call((103, 116), 10, 0, 0))")
PROC.py(
    "where the kernel sends cores, to write",
    "check_nonnegative(os.open('/proc/sys/kernel/core_pattern', os.O_WRONLY))",
)
PROC.py(
    "the kernel's emergency keys, to write", "check_nonnegative(os.open('/proc/sysrq-trigger', os.O_WRONLY))"
)
PROC.py(
    "settings of the kernel, to write", "check_nonnegative(os.open('/proc/sys/kernel/modprobe', os.O_WRONLY))"
)
PROC.py(
    "settings of the network, to write",
    "check_nonnegative(os.open('/proc/sys/net/ipv4/ip_forward', os.O_WRONLY))",
)
PROC.sh("what is in /sys", "ls /sys/class /sys/kernel | grep -q . && echo WON-$((6*7))-x")
PROC.py(
    "a helper that the kernel would run, to write",
    "check_nonnegative(os.open('/sys/kernel/uevent_helper', os.O_WRONLY))",
)
PROC.py("an agent of a control group, to write", """
import glob
for place in glob.glob('/sys/fs/cgroup/*/release_agent') + glob.glob('/sys/fs/cgroup/cgroup.procs'):
    check_nonnegative(os.open(place, os.O_WRONLY))
""")  # fmt: skip


def _forgery_evidence(_machine: TargetMachine, output: str) -> str:
    return "the sandbox's own report was forged" if "[exit 0, " in output else ""


PROC.py("the sandbox's status pipe", """
import stat
for pid in [os.getpid(), os.getppid()] + ([] if os.path.exists('@outside@') else [1, 2, 3]):
    for fd in os.listdir('/proc/%d/fd' % pid) if os.path.isdir('/proc/%d/fd' % pid) else ():
        place = '/proc/%d/fd/%s' % (pid, fd)
        try:
            if stat.S_ISFIFO(os.stat(place).st_mode): os.write(os.open(place, os.O_WRONLY | os.O_NONBLOCK), b'{"exit-code": 0}\\n')
        except OSError: pass
os._exit(9)
""", extra_evidence=_forgery_evidence)  # fmt: skip


# sockets

_CONNECT = "s = socket.socket(socket.{0}, socket.{1})\ns.settimeout(2)\ns.{2}\n"
NETWORK.py("TCP to loopback", _CONNECT.format("AF_INET", "SOCK_STREAM", "connect(('127.0.0.1', @tcp@))"))
NETWORK.py(
    "TCP to loopback, version 6", _CONNECT.format("AF_INET6", "SOCK_STREAM", "connect(('::1', @tcp6@))")
)
NETWORK.py(
    "TCP to loopback as a mapped address",
    _CONNECT.format("AF_INET6", "SOCK_STREAM", "connect(('::ffff:127.0.0.1', @tcp@))"),
)
NETWORK.py(
    "TCP to loopback as 0.0.0.0", _CONNECT.format("AF_INET", "SOCK_STREAM", "connect(('0.0.0.0', @tcp@))")
)
NETWORK.sh("TCP by bash itself", "exec 5<>/dev/tcp/127.0.0.1/@tcp@; exec 6<>/dev/tcp/localhost/@tcp@")
NETWORK.py(
    "UDP to loopback", _CONNECT.format("AF_INET", "SOCK_DGRAM", "sendto(b'evil', ('127.0.0.1', @udp@))")
)
NETWORK.sh("UDP by bash itself", "echo evil > /dev/udp/127.0.0.1/@udp@")
NETWORK.py(
    "multipath TCP",
    "s = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)\ns.settimeout(2)\ns.connect(('127.0.0.1', @tcp@))",
)
NETWORK.py(
    "an HTTP request", "import urllib.request\nurllib.request.urlopen('http://127.0.0.1:@tcp@/', timeout=2)"
)
NETWORK.py("a route to the internet", """
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.connect(('192.0.2.1', 9))  # only checks for a route: nothing is sent
if s.getsockname()[0] != '0.0.0.0': succeed()
""")  # fmt: skip
NETWORK.py("an ICMP echo", """
s = socket.socket(socket.AF_INET, socket.SOCK_RAW if os.getuid() == 0 else socket.SOCK_DGRAM, socket.IPPROTO_ICMP)
s.settimeout(2)
s.sendto(b'\\x08\\0\\xf7\\xff' + b'\\0' * 4, ('127.0.0.1', 0))
if s.recv(99): succeed()
""")  # fmt: skip
NETWORK.py("a socket file outside", "s = socket.socket(socket.AF_UNIX)\ns.connect('@stream_socket@')")
NETWORK.py(
    "a socket file outside, by datagram",
    "s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\ns.sendto(b'evil', '@datagram_socket@')",
)


def _listen_in_workspace(machine: TargetMachine) -> None:
    machine.listeners.listen_in_workspace(machine.ws)


NETWORK.py(
    "a socket file in the workspace",
    "s = socket.socket(socket.AF_UNIX)\ns.connect('stream.sock')",
    before=_listen_in_workspace,
)
NETWORK.py(
    "a socket file in the workspace, by datagram",
    "s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\ns.sendto(b'evil', 'datagram.sock')",
    before=_listen_in_workspace,
)
NETWORK.py(
    "a pair of datagram sockets, pointed elsewhere",
    "a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)\na.sendto(b'evil', 'datagram.sock')",
    before=_listen_in_workspace,
)
NETWORK.py("a pair of stream sockets, pointed elsewhere", """
a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
for go in (lambda: a.connect('stream.sock'), lambda: a.sendto(b'evil', 'datagram.sock'), lambda: libc.connect(a.fileno(), struct.pack('H', 0), 2)):
    try: go()
    except OSError as e: print(e)
b.close()
try: a.connect('stream.sock')
except OSError as e: print(e)
""", before=_listen_in_workspace)  # fmt: skip
NETWORK.py(
    "a pair of packet sockets, pointed elsewhere",
    "a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)\nsucceed()",
)
NETWORK.py("an abstract socket", "s = socket.socket(socket.AF_UNIX)\ns.connect('\\0@abstract@')")
NETWORK.py(
    "an abstract socket, by datagram",
    "s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\ns.sendto(b'evil', '\\0@abstract@-post')",
)
NETWORK.py(
    "an abstract socket, by a pair",
    "a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)\na.sendto(b'evil', '\\0@abstract@-post')",
)
for _name, _what in {
    "netlink": "16, socket.SOCK_RAW, 0", "packets": "17, socket.SOCK_RAW, 0", "vsock": "40, socket.SOCK_STREAM, 0",
    "the kernel's ciphers": "38, socket.SOCK_SEQPACKET, 0", "xdp": "44, socket.SOCK_RAW, 0", "bluetooth": "31, socket.SOCK_RAW, 1",
    "raw": "2, socket.SOCK_RAW, 255", "tipc": "30, socket.SOCK_RDM, 0", "can": "29, socket.SOCK_RAW, 1",
}.items():  # fmt: skip
    NETWORK.py(f"a socket of {_name}", f"s = socket.socket({_what})\nsucceed()")


# processes

PROCESSES.py("reading memory", """
class V(ctypes.Structure): _fields_ = [('base', ctypes.c_void_p), ('len', ctypes.c_size_t)]
buffer = ctypes.create_string_buffer(32)
call((310, 270), @pid@, ctypes.byref(V(ctypes.addressof(buffer), 32)), 1, ctypes.byref(V(@address@, 32)), 1, 0)
print(buffer.value.decode())
""")  # fmt: skip
PROCESSES.py("writing memory", """
class V(ctypes.Structure): _fields_ = [('base', ctypes.c_void_p), ('len', ctypes.c_size_t)]
buffer = ctypes.create_string_buffer(b'evil', 5)
call((311, 271), @pid@, ctypes.byref(V(ctypes.addressof(buffer), 5)), 1, ctypes.byref(V(@address@, 5)), 1, 0)
""")  # fmt: skip
PROCESSES.py(
    "memory as a file",
    "f = open('/proc/@pid@/mem', 'rb')\nf.seek(@address@)\nprint(f.read(32).split(b'\\0')[0].decode())",
)
PROCESSES.py("Retinue's own memory as a file", """
for line in open('/proc/@daemon@/maps'):
    if 'rw-p' in line and '[heap]' in line:
        low, high = (int(x, 16) for x in line.split()[0].split('-'))
        f = open('/proc/@daemon@/mem', 'rb', 0)
        f.seek(low)
        if f.read(4096): succeed()
""")  # fmt: skip
PROCESSES.py("ptrace", """
if call((101, 117), 16, @pid@, 0, 0) == 0:
    os.waitpid(@pid@, 0x40000000)
    word = ctypes.c_long()
    libc.ptrace.restype = ctypes.c_long
    libc.ptrace.argtypes = [ctypes.c_long] * 4
    print((libc.ptrace(1, @pid@, @address@, 0) & (2**64 - 1)).to_bytes(8, 'little'))
    succeed()
    libc.ptrace(17, @pid@, 0, 0)
""")  # fmt: skip
PROCESSES.py("PTRACE_TRACEME", "check_reached(call((101, 117), 0, 0, 0, 0))")
PROCESSES.py(
    "taking an open file",
    "p = os.pidfd_open(@pid@)\nfd = call(438, p, @fd@, 0)\nif fd >= 0: print(os.pread(fd, 99, 0).decode())",
)
PROCESSES.py(
    "taking an open file of its first process",
    "p = os.pidfd_open(1)\nfor fd in range(64): check_nonnegative(call(438, p, fd, 0))",
)
PROCESSES.sh("a signal", "kill -USR1 @pid@")
PROCESSES.py(
    "a signal by descriptor", "p = os.pidfd_open(@pid@)\nsignal.pidfd_send_signal(p, signal.SIGUSR1)"
)
PROCESSES.py(
    "a signal to a thread",
    "call((200, 130), @pid@, signal.SIGUSR1)\ncall((234, 131), @pid@, @pid@, signal.SIGUSR1)",
)
PROCESSES.py("a signal by way of a file", """
r, w = os.pipe()
fcntl.fcntl(r, fcntl.F_SETOWN, @pid@)
fcntl.fcntl(r, 10, signal.SIGUSR1)
fcntl.fcntl(r, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
os.write(w, b'x')
time.sleep(0.1)
""")  # fmt: skip
PROCESSES.sh("killing it", "kill -9 @pid@")
PROCESSES.sh("renicing it", "renice -n 7 -p @pid@")
PROCESSES.py("changing its CPU affinity", """
mine = sorted(os.sched_getaffinity(0))
os.sched_setaffinity(@pid@, mine[:1] if len(mine) > 1 else mine)
""")  # fmt: skip
PROCESSES.py(
    "changing its limits", "import resource\nresource.prlimit(@pid@, resource.RLIMIT_NOFILE, (77, 1024))"
)
PROCESSES.py("kcmp", "check_reached(call((312, 272), @pid@, @pid@, 0, 0, 0))")
PROCESSES.sh("its folder", "cat /proc/@pid@/cwd/../outside/secret /proc/@pid@/root@outside@/secret")
PROCESSES.sh("its open file", "cat /proc/@pid@/fd/@fd@")
PROCESSES.sh("its command line", "tr '\\0' ' ' < /proc/@pid@/cmdline")
