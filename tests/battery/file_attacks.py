"""Attacks by commands on files outside the workspace: read, write, and change metadata."""

import os
from pathlib import Path

from attack import Family, created_path_evidence, ctime_evidence
from target_machine import TargetMachine

READ = Family("read outside")
WRITE = Family("write outside")
METADATA = Family("metadata outside")

_WALK = "import os\nfor fd in range(3, 64):\n  for up in range(12):\n    for path in ('../' * up + '@outside@/secret'[1:], '@outside@/secret'[1:]):\n      try: print(open(os.open(path, os.O_RDONLY, dir_fd=fd)).read())\n      except OSError: pass"


def _shadow_evidence(_machine: TargetMachine, output: str) -> str:
    place = Path("/etc/shadow")
    lines = place.read_text().splitlines() if os.access(place, os.R_OK) else []
    return "the machine's passwords were read" if any(line and line in output for line in lines) else ""


def _machine_id_evidence(_machine: TargetMachine, output: str) -> str:
    place = Path("/etc/machine-id")
    text = place.read_text().strip() if place.exists() else ""
    return "the machine's id was read" if text and text in output else ""


READ.sh("by its full name", "cat @outside@/secret")
READ.sh("by ..", "cat ../outside/secret; cd src; cat ../../outside/secret")
READ.sh("through a link", "ln -s @outside@/secret l; cat l")
READ.sh("through a linked folder", "ln -s ../outside l; cat l/secret l/./secret l/folder/../secret")
READ.sh("through a chain of links", "ln -s .. a; ln -s a/outside b; ln -s b c; cat c/secret")
READ.sh("a link in one command, read in the next", "ln -s @outside@ planted", "cat planted/secret")
READ.sh("a hard link", "ln @outside@/secret h; cat h")
READ.sh("through /proc/self/root", "cat /proc/self/root@outside@/secret")
READ.sh("through /proc/1/root", "cat /proc/1/root@outside@/secret /proc/1/cwd/../outside/secret")
READ.sh(
    "through the folder of any process",
    "cat /proc/[0-9]*/cwd/../outside/secret /proc/[0-9]*/root@outside@/secret",
)
READ.sh("through any open descriptor of any process",
        "for f in /proc/[0-9]*/fd/*; do cat $f@outside@/secret $f/../outside/secret; done 2>/dev/null; true")  # fmt: skip
READ.sh("through /dev/fd", "cat /dev/fd/*/../outside/secret; exec 9</; cat /dev/fd/9@outside@/secret")
READ.sh(
    "bubblewrap's old root",
    "cat /oldroot@outside@/secret /newroot@outside@/secret /.oldroot@outside@/secret",
)
READ.sh(
    "found by its name",
    "find /var /tmp /home /root /mnt /opt -xdev -maxdepth 5 -path '*outside/secret' -exec cat {} + 2>/dev/null; true",
)
READ.sh("by tar", "tar -C / -cf - @outside@ 2>/dev/null | tr -d '\\0'")
READ.sh("the names beside the workspace", "ls -laR ..")
READ.sh("the user's keys", "cat @user@/.ssh/id_ed25519 ~/.ssh/id_ed25519 $HOME/.ssh/*")
READ.sh("the machine's passwords", "cat /etc/shadow /etc/gshadow", extra_evidence=_shadow_evidence)
READ.sh(
    "the machine's id", "cat /etc/machine-id /var/lib/dbus/machine-id", extra_evidence=_machine_id_evidence
)
READ.py("through every open descriptor", _WALK)
READ.py("by openat2", """
how = struct.pack('QQQ', os.O_RDONLY, 0, 0)
fd = call(437, -100, b'@outside@/secret', how, len(how))
if fd >= 0: print(os.read(fd, 99))
""")  # fmt: skip
READ.py("by a file handle", """
handle = ctypes.create_string_buffer(bytes.fromhex('@handle@'))
for place in ('.', '/usr', '/tmp', '/'):
    fd = call((304, 265), os.open(place, os.O_RDONLY), handle, os.O_RDONLY)
    if fd >= 0: print(os.read(fd, 99).decode())
""")  # fmt: skip
READ.py("through /proc/self/cwd", """
os.chdir('/proc/self/cwd')
for _ in range(40):
    os.chdir('..')
    try: print(open('.' + '@outside@/secret').read())
    except OSError: pass
""")  # fmt: skip

WRITE.sh("over a file", "echo evil > @outside@/target")
WRITE.sh("a new file", "echo evil > ../outside/new")
WRITE.sh("through a link", "ln -s ../outside/target l; echo evil >> l")
WRITE.sh("through a dangling link", "ln -s @outside@/made l; echo evil > l")
WRITE.sh("through a link of the command before", "ln -s ../outside planted", "echo evil > planted/new")
WRITE.sh("by moving", "echo evil > e; mv e @outside@/target")
WRITE.sh("by copying", "cp -r src @outside@/")
WRITE.sh("a folder", "mkdir -p @outside@/made/deep")
WRITE.sh("by removing", "rm -f @outside@/target; rm -rf ../outside/folder")
WRITE.sh("by truncating", "truncate -s 0 @outside@/target")
WRITE.sh("by moving it into the workspace", "mv @outside@/target .")
WRITE.sh("a new link", "ln -s /etc/passwd @outside@/l")
WRITE.sh("a new pipe", "mkfifo @outside@/pipe")
WRITE.sh(
    "a folder beside the workspace", "cd ..; mkdir ws2", extra_evidence=created_path_evidence("@top@/ws2")
)
WRITE.sh(
    "through /proc/1/root",
    "echo evil > /proc/1/root@outside@/target; echo evil > /proc/self/root@outside@/new",
)
WRITE.sh(
    "unpacked from an archive",
    "ln -s @outside@ up; tar -cf a.tar up; rm up; mkdir x; cd x; tar -xf ../a.tar; echo evil > up/new",
)
WRITE.sh(
    "/tmp of the machine",
    "echo evil > /tmp/battery-@nonce@",
    extra_evidence=created_path_evidence("/tmp/battery-@nonce@"),
)
WRITE.sh(
    "/var/tmp of the machine",
    "echo evil > /var/tmp/battery-@nonce@",
    extra_evidence=created_path_evidence("/var/tmp/battery-@nonce@"),
)
WRITE.sh(
    "shared memory",
    "echo evil > /dev/shm/battery-@nonce@",
    extra_evidence=created_path_evidence("/dev/shm/battery-@nonce@"),
)
for _path in ("/run/battery-@nonce@", "/run/lock/battery-@nonce@"):
    WRITE.sh(_path.rpartition("/")[0], f"echo evil > {_path}", extra_evidence=created_path_evidence(_path))
WRITE.sh(
    "a program in /usr/local/bin",
    "echo : > /usr/local/bin/.battery-@nonce@",
    extra_evidence=created_path_evidence("/usr/local/bin/.battery-@nonce@"),
)
WRITE.sh(
    "a file in /etc",
    "echo '#' > /etc/.battery-@nonce@",
    extra_evidence=created_path_evidence("/etc/.battery-@nonce@"),
)
WRITE.sh(
    "a cron job",
    "echo '#' > /etc/cron.d/.battery-@nonce@",
    extra_evidence=created_path_evidence("/etc/cron.d/.battery-@nonce@"),
)
WRITE.sh("the user's shell start-up files", "echo evil >> @user@/.bashrc; echo evil >> @user@/.profile")
WRITE.sh(
    "the user's autostart folder",
    "mkdir -p @user@/.config/autostart; echo evil > @user@/.config/autostart/e.desktop",
)
WRITE.sh(
    "the user's git configuration", "HOME=@user@ git config --global core.fsmonitor 'touch @outside@/pwned'"
)
WRITE.py("by an unnamed file (O_TMPFILE)", """
fd = os.open('@outside@', os.O_TMPFILE | os.O_WRONLY, 0o600)
os.write(fd, b'evil')
libc.linkat(-100, b'/proc/self/fd/%d' % fd, -100, b'@outside@/linked', 0x400)
""")  # fmt: skip
WRITE.py("by exchanging names", """
open('mine', 'w').write('evil')
libc.renameat2(-100, b'mine', -100, b'@outside@/target', 2)
""")  # fmt: skip

for _name, _command in {
    "mode": "chmod 0777 @outside@/target",
    "mode of the folder around": "chmod 0755 ..; chmod 0777 ../outside",
    "times": "touch -d 2001-01-01 @outside@/target",
    "times through a link": "ln -s ../outside/target l; touch -d 2001-01-01 l; touch -h -d 2001-01-01 l",
    "owner": "chown 12345 @outside@/target",
    "hard link count": "ln @outside@/target h",
    "mode through a link": "ln -s ../outside/target l; chmod 0777 l",
    "mode of everything": "chmod -R 0777 ../outside ../user",
}.items():
    METADATA.sh(_name, _command)
METADATA.py("extended attributes", "os.setxattr('@outside@/target', 'user.evil', b'1')")
METADATA.py(
    "extended attributes through a link",
    "os.symlink('../outside/target', 'l')\nos.setxattr('l', 'user.evil', b'1')",
)
METADATA.py(
    "access list",
    "os.setxattr('@outside@/target', 'system.posix_acl_access', struct.pack('<I', 2) + b''.join(struct.pack('<HHI', *e) for e in ((1, 6, 0xffffffff), (2, 7, 12345), (4, 0, 0xffffffff), (16, 7, 0xffffffff), (32, 0, 0xffffffff))))",
)
METADATA.py(
    "flags", "fcntl.ioctl(os.open('@outside@/target', os.O_RDONLY), 0x40086602, struct.pack('l', 0x80))"
)
METADATA.py(
    "mode through an O_PATH descriptor",
    "fd = os.open('@outside@/target', 0o10000000)\nos.chmod('/proc/self/fd/%d' % fd, 0o777)",
)
for _path in ("/dev/null", "/usr/bin/env", "/dev/urandom"):
    _before, _evidence = ctime_evidence(_path)
    _same = "666" if _path.startswith("/dev") else "755"
    METADATA.sh(f"mode of {_path}", f"chmod {_same} {_path}", before=_before, extra_evidence=_evidence)
_before, _evidence = ctime_evidence("/dev/null")
METADATA.sh(
    "mode of /dev/null through a masked file",
    "chmod 666 .vscode/tasks.json; touch .vscode/tasks.json; chmod 666 /dev/null",
    before=_before,
    extra_evidence=_evidence,
)
