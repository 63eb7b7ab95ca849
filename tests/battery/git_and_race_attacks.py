"""Attacks on files that other programs act on, and races between check and use."""

import ctypes
import os
import threading
from collections.abc import Callable
from typing import Any

from attack import Family, ToolUse, bash, python, tool_use
from target_machine import TargetMachine

PROTECTED_FILES = Family("protected files")
RACES = Family("races")

PAYLOAD = "touch @outside@/pwned"


def _use_git(machine: TargetMachine) -> None:
    """Run git in the workspace, as the user would."""
    for folder in (
        machine.ws,
        machine.ws / "sub",
        machine.ws / "new",
        machine.ws / "n\new",
        machine.ws / "src",
    ):
        if folder.is_dir():
            machine.run_git("status", "--short", cwd=folder)
            machine.run_git("commit", "--allow-empty", "-qm", "more", cwd=folder)


_HOOK = f"printf '#!/bin/sh\\n{PAYLOAD}\\n'"
_EVIL = f"printf '[core]\\nrepositoryformatversion = 0\\nfsmonitor = {PAYLOAD}; false\\n'"
for _name, _command in {
    "a hook": f"{_HOOK} > .git/hooks/pre-commit; chmod +x .git/hooks/pre-commit",
    "a hook by another name for the folder": f"cd .git; mv hooks h; mkdir hooks; {_HOOK} > hooks/pre-commit; chmod +x hooks/pre-commit",
    "a setting": f"git config core.fsmonitor '{PAYLOAD}; false'",
    "a setting, written": f"{_EVIL} >> .git/config",
    "a setting, moved into place": f"{_EVIL} > c; mv -f c .git/config; cp c .git/config; ln -sf ../c .git/config",
    "settings of a worktree": f"{_EVIL} > .git/config.worktree",
    "another common folder": f"git init -q --bare b; {_EVIL} >> b/config; echo ../b > .git/commondir",
    "another repository in its place": f"mv .git .g2; rm -rf .git; git init -q .; {_EVIL} > .git/config",
    "a pointer in its place": f"git init -q --bare b; {_EVIL} >> b/config; rm -rf .git; echo 'gitdir: b' > .git",
    "a new repository": f"mkdir new; git init -q new; {_EVIL} > new/.git/config",
    "a new repository, moved into place": f"git init -q x; {_EVIL} > x/.git/config; mkdir new; mv x/.git new/g; mv new/g new/.git",
    "a new repository by a link": f"git init -q --bare b; {_EVIL} >> b/config; mkdir new; ln -s ../b new/.git",
    "a new repository by a pointer": f"git init -q --bare b; {_EVIL} >> b/config; mkdir new; echo 'gitdir: ../b' > new/.git",
    "a new repository that cannot be listed": f"mkdir new; git init -q new; {_EVIL} > new/.git/config; chmod 0311 new/.git",
    "a new repository in a folder that cannot be listed": f"mkdir new; git init -q new; {_EVIL} > new/.git/config; chmod 0311 new",
    "a new repository in a folder of an odd name": f"mkdir \"$(printf 'n\\new')\"; cd n*; git init -q .; {_EVIL} > .git/config",
    "a setting that an included file gives": f"{_EVIL} > inc; git config include.path ../inc; printf '[include]\\npath = ../inc\\n' >> .git/config",
}.items():  # fmt: skip
    PROTECTED_FILES.sh(_name, _command, after=_use_git)
PROTECTED_FILES.sh(
    "a new repository, completed by the next command",
    "mkdir -p new; git init -q new; mv new/.git new/g",
    f"{_EVIL} > new/g/config; mv new/g new/.git",
    after=_use_git,
)
PROTECTED_FILES.sh(
    "a new repository, opened by the next command",
    f"mkdir new; git init -q new; {_EVIL} > new/.git/config; chmod 0 new",
    "chmod 0755 new; ls new",
    after=_use_git,
)
PROTECTED_FILES.calls(
    "a hook by the write tool",
    (tool_use("write", path=".git/hooks/pre-commit", content=f"#!/bin/sh\n{PAYLOAD}\n"),),
    (bash("chmod +x .git/hooks/pre-commit"),),
    after=_use_git,
)
PROTECTED_FILES.calls(
    "a setting by the edit tool",
    (tool_use("edit", path=".git/config", old="core", new="evil"),),
    after=_use_git,
)
PROTECTED_FILES.calls(
    "a setting by the write tool, through a link",
    (bash("ln -s .git/config c"),),
    (tool_use("write", path="c", content=f"[core]\nfsmonitor = {PAYLOAD}\n"),),
    after=_use_git,
)
for _name, _command in {
    "an editor's tasks": "echo evil > .vscode/tasks.json",
    "an editor's tasks, moved into place": "mkdir v; echo evil > v/tasks.json; mv .vscode v0; mv v .vscode",
    "an editor's tasks, by moving the folder around": "mv nested n2; mkdir -p nested/.vscode; echo evil > nested/.vscode/tasks.json",
    "an editor's new settings": "echo evil > .vscode/settings.json; mkdir -p src/.vscode; echo evil > src/.vscode/tasks.json",
    "another editor's": "mkdir -p .idea/runConfigurations .zed; echo evil > .idea/runConfigurations/e.xml; echo evil > .zed/tasks.json",
    "a workflow": "echo evil > .github/workflows/ci.yml; echo evil > .github/workflows/new.yml; echo evil > .gitlab-ci.yml",
    "a container for editors": "mkdir .devcontainer; echo evil > .devcontainer/devcontainer.json",
    "shell start-up files": f"echo '{PAYLOAD}' > .envrc; echo '{PAYLOAD}' > .bashrc; echo evil > .profile",
    "configuration of other agents": "mkdir .claude; echo evil > .claude/settings.json; echo evil > .mcp.json",
    "configuration of package managers": "echo evil > .npmrc; mkdir .husky; echo evil > .husky/pre-commit",
    "in a folder that cannot be listed": "mkdir new; mkdir new/.vscode; echo evil > new/.vscode/tasks.json; echo evil > new/.envrc; chmod 0311 new new/.vscode",
}.items():  # fmt: skip
    PROTECTED_FILES.sh(_name, _command)
PROTECTED_FILES.calls(
    "an editor's tasks by the file tools",
    (
        tool_use("write", path=".vscode/tasks.json", content="evil"),
        tool_use("write", path="deep/.vscode/tasks.json", content="evil"),
        tool_use("write", path=".envrc", content="evil"),
    ),
)
PROTECTED_FILES.sh(
    "programs planted for the next command",
    f"for n in bash sh bwrap git stat env; do {_HOOK} > $n; chmod +x $n; done; echo '{PAYLOAD}' >> $HOME/.bashrc; echo '{PAYLOAD}' > .bash_profile; echo 'import os; os.system(\"{PAYLOAD}\")' > sitecustomize.py; cp sitecustomize.py msgspec.py",
    "true; git status; bash -c true",
    after=_use_git,
)


def _add_malicious_git_config(machine: TargetMachine) -> None:
    """Make the repository malicious: its hooks and filters run a program."""
    payload = f"touch {machine.outside}/pwned"
    for name in ("post-checkout", "post-index-change", "reference-transaction"):
        place = machine.ws / ".git/hooks" / name
        place.write_text(f"#!/bin/sh\n{payload}\n")
        place.chmod(0o755)
    with (machine.ws / ".git/config").open("a") as config:
        config.write(f'[core]\nfsmonitor = "{payload}; false"\n[filter "e"]\nsmudge = "{payload}; cat"\n')
    (machine.ws / ".git/info").mkdir(exist_ok=True)
    (machine.ws / ".git/info/attributes").write_text("* filter=e\n")


PROTECTED_FILES.sh(
    "a malicious repository, for a worktree",
    "git status; true",
    before=_add_malicious_git_config,
    agent="treed",
)
PROTECTED_FILES.sh(
    "a malicious repository, for a command",
    "git status; git checkout -q -b evil; true",
    before=_add_malicious_git_config,
)


# races: another session works in the same folder


def _swap_repeatedly(
    one: str, other: str, target: str
) -> tuple[Callable[[TargetMachine], None], Callable[[TargetMachine], None]]:
    """Return `before` and `after`: a thread repeatedly exchanges a folder and a symbolic link."""
    stopped = threading.Event()
    threads: list[threading.Thread] = []

    def before(machine: TargetMachine) -> None:
        names = os.fsencode(machine.ws / one), os.fsencode(machine.ws / other)
        (machine.ws / other).symlink_to(target.replace("@outside@", str(machine.outside)))
        swap = ctypes.CDLL(None).renameat2
        stopped.clear()

        def swap_until_stopped() -> None:
            while not stopped.is_set():
                swap(-100, names[0], -100, names[1], 2)

        threads.append(threading.Thread(target=swap_until_stopped, daemon=True))
        threads[-1].start()

    def after(machine: TargetMachine) -> None:
        stopped.set()
        threads.pop().join()

    return before, after


def _race(name: str, one: str, target: str, *turns: tuple[ToolUse, ...], **options: Any) -> None:
    before, after = _swap_repeatedly(one, "swapped", target)
    RACES.calls(name, *turns, before=before, after=after, **options)


_MANY = range(8)
_race(
    "read while a folder becomes a link",
    "sub",
    "../outside",
    *[tuple(tool_use("read", path="sub/" + "./" * (8 * m + n) + "secret") for n in _MANY) for m in range(6)],
)
_race(
    "write while a folder becomes a link",
    "sub",
    "../outside",
    *[tuple(tool_use("write", path=f"sub/w{n}", content="evil") for n in _MANY) for _ in range(3)],
)
_race(
    "write a new folder while one becomes a link",
    "sub",
    "../outside",
    *[tuple(tool_use("write", path=f"sub/d{n}{m}/w", content="evil") for n in _MANY) for m in range(3)],
)
_race(
    "grep while a folder becomes a link",
    "sub",
    "../outside",
    *[
        tuple(tool_use("grep", pattern="canary", path="sub/" + "./" * (8 * m + n)) for n in _MANY)
        for m in range(3)
    ],
)
_race(
    "commands while a folder becomes a link",
    "pub",
    "../outside",
    *[tuple(bash(f"cat pub/secret; echo evil > pub/evil; : {n} {m}") for m in range(2)) for n in range(6)],
    agent="narrow",
)
_race(
    "commands while a folder becomes a link to the machine's root",
    "pub",
    "/oldroot@outside@",
    *[tuple(bash(f"cat pub/secret; echo evil > pub/evil; : {n} {m}") for m in range(2)) for n in range(6)],
    agent="narrow",
)
_race(
    "masks while the folder around them becomes a link",
    "sub",
    "/oldroot@outside@",
    *[
        tuple(bash(f"cat sub/secret sub/.env; echo evil > sub/evil; : {n} {m}") for m in range(2))
        for n in range(6)
    ],
    agent="fenced",
)

_SWAP = "for _ in range({0}): libc.renameat2(-100, b'sub', -100, b'swapped', 2)"
RACES.calls(
    "a command that swaps while another begins",
    (bash("ln -s /oldroot@outside@ swapped"),),
    *[
        (
            python(_SWAP.format(60_000 + n)),
            *(bash(f"cat sub/secret sub/.env; echo evil > sub/evil; : {n} {m}") for m in range(2)),
        )
        for n in range(4)
    ],
    agent="fenced",
)
RACES.calls(
    "a command that swaps while files are read",
    (bash("ln -s ../outside swapped"),),
    (python(_SWAP.format(100_000)), *(tool_use("read", path="sub/" + "./" * n + "secret") for n in range(6))),
    (bash("cat sub/secret swapped/secret"),),
)
RACES.calls(
    "a closed path created while another command runs",
    (
        bash(f"sleep 0.2; mkdir -p new; git init -q new; {_EVIL} > new/.git/config"),
        bash("sleep 0.5; ls new/.git; cat new/.git/config"),
    ),
    after=_use_git,
)
