"""Attacks on git folders: the user runs git afterwards, and git must start and overwrite nothing for the attacker."""

from pathlib import Path

from attack import PYTHON, Family, bash, tool_use
from target_machine import TargetMachine

GIT_FOLDERS = Family("git folders")

PAYLOAD = "touch @outside@/pwned"
_EVIL_CONFIG = f"printf '[core]\\nrepositoryformatversion = 0\\nfsmonitor = {PAYLOAD}; false\\n'"
_HOOK = f"printf '#!/bin/sh\\n{PAYLOAD}\\n'"
_EVIL_REPOSITORY = f"git init -q --bare evil; {_EVIL_CONFIG} >> evil/config; mv evil/HEAD evil/H"
"""A repository that git does not recognise yet, so that nothing moves its settings aside."""

_GIT_COMMANDS = (
    ("status", "--short"),
    ("diff",),
    ("log", "--oneline", "-3"),
    ("commit", "--allow-empty", "-qm", "x; touch pwned"),
    ("checkout", "--", "."),
    ("restore", "."),
    ("add", "notes.txt"),
    ("rebase", "--continue"),
    ("commit", "--allow-empty", "-qm", "more"),
)  # fmt: skip


def _make_repositories(machine: TargetMachine) -> None:
    """Give the workspace a linked worktree, a submodule, a nested repository and a bare one."""
    machine.run_git("worktree", "add", "-q", "linked")
    machine.run_git(
        "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(machine.top / "template"), "module"
    )
    machine.run_git("clone", "-q", str(machine.top / "template"), "inner")
    machine.run_git("clone", "-q", "--bare", str(machine.top / "template"), "bare.git")
    machine.run_git("commit", "-qm", "module")


def _use_git_everywhere(machine: TargetMachine) -> None:
    """Run git as the user would, in every folder in which it finds a repository."""
    for top in (machine.ws, *(machine.home / "worktrees").glob("*")):
        folders = (path for pattern in ("*", "*/*.git") for path in top.glob(pattern) if path.is_dir())
        for folder in (top, *(path for path in folders if _may_be_repository(path))):
            for arguments in _GIT_COMMANDS:
                machine.run_git(*arguments, cwd=folder)


def _may_be_repository(folder: Path) -> bool:
    return any((folder / name).exists() for name in (".git", "HEAD"))


def _overwritten_target(machine: TargetMachine, _output: str) -> str:
    """Return evidence that the user's own git command wrote through a link."""
    text = (machine.outside / "target").read_bytes()
    return "" if text == b"untouched\n" else "a file outside was overwritten"


_CRAFT_INDEX = f"""
import hashlib, os, struct, sys, zlib
script = b'#!/bin/sh\\n{PAYLOAD}\\n'
blob = b'blob %d\\0' % len(script) + script
name = hashlib.sha1(blob).hexdigest()
os.makedirs('.git/objects/' + name[:2], exist_ok=True)
with open('.git/objects/' + name[:2] + '/' + name[2:], 'wb') as file: file.write(zlib.compress(blob))
version, paths = int(sys.argv[1]), sorted(os.fsencode(path) for path in sys.argv[2:])
entries, offsets = b'', []
for path in paths:
    offsets.append(12 + len(entries))
    entry = struct.pack('>10I', 0, 0, 0, 0, 0, 0, 0o100755, 0, 0, 0) + bytes.fromhex(name)
    entry += struct.pack('>H', min(len(path), 0xFFF))
    entry += b'\\0' + path + b'\\0' if version == 4 else path + b'\\0' * (8 - (62 + len(path)) % 8)
    entries += entry
index = struct.pack('>4sII', b'DIRC', version, len(paths)) + entries
index += hashlib.sha1(index).digest()
with open('.git/index.lock', 'wb') as file: file.write(index)
os.rename('.git/index.lock', '.git/index')
"""


_OWN = "export own=$(git rev-parse --absolute-git-dir);"
"""Shell command that finds git's folder for the worktree in which it is run."""


def _craft_index(version: int, path: str, *, own: bool = False) -> str:
    """Return a command that writes an index; with `own`, that of the worktree in which it is run."""
    code = _CRAFT_INDEX
    if own:
        code = code.replace("'.git/objects", "os.environ['own'] + '/../../objects")
        code = code.replace("'.git/index", "os.environ['own'] + '/index")
    return f"rm -f .git/hooks/*; {PYTHON} -I - {version} {path} <<'PYTHON_ENDS'\n{code}\nPYTHON_ENDS\n"


for _name, _command in {
    "another common folder for a worktree": f"{_EVIL_REPOSITORY}; mv evil/H evil/HEAD; for d in .git/worktrees/*; do echo $PWD/evil > $d/commondir; done",
    "another common folder for a worktree, moved into place": f"{_EVIL_REPOSITORY}; mv evil/H evil/HEAD; cp -r .git/worktrees w; for d in w/*; do echo $PWD/evil > $d/commondir; done; rm -rf .git/worktrees; mv w .git/worktrees; mv -f w/linked .git/worktrees/",
    "settings of a worktree": f"for d in .git/worktrees/*; do {_EVIL_CONFIG} > $d/config.worktree; rm $d/gitdir; done; {_EVIL_CONFIG} > .git/config.worktree",
    "another folder for a worktree": f"{_EVIL_REPOSITORY}; mv evil/H evil/HEAD; rm linked/.git; echo \"gitdir: $PWD/evil\" > linked/.git",
    "settings of a submodule": f"{_EVIL_CONFIG} >> .git/modules/module/config; {_EVIL_CONFIG} > c; mv -f c .git/modules/module/config",
    "a hook of a submodule": f"mkdir -p .git/modules/module/hooks; {_HOOK} > .git/modules/module/hooks/post-commit; chmod +x .git/modules/module/hooks/*",
    "another common folder for a submodule": f"{_EVIL_REPOSITORY}; mv evil/H evil/HEAD; echo $PWD/evil > .git/modules/module/commondir",
    "another folder for a submodule": f"{_EVIL_REPOSITORY}; mv evil/H evil/HEAD; echo \"gitdir: $PWD/evil\" > module/.git",
    "a new folder for submodules": f"mv .git/modules .git/m; mkdir -p .git/modules/module; git init -q --bare .git/modules/module; {_EVIL_CONFIG} >> .git/modules/module/config",
    "settings of a nested repository": f"{_EVIL_CONFIG} >> inner/.git/config; echo ../../evil > inner/.git/commondir; {_HOOK} > inner/.git/hooks/post-commit; chmod +x inner/.git/hooks/*",
    "another nested repository in its place": f"mv inner i2; git init -q inner; {_EVIL_CONFIG} >> inner/.git/config; mv i2/.git i2/g; mkdir i2/.git; cp -r i2/g/* i2/.git; {_EVIL_CONFIG} >> i2/.git/config",
    "settings of a bare repository": f"{_EVIL_CONFIG} >> bare.git/config; {_EVIL_CONFIG} > c; mv -f c bare.git/config; printf 'bare = false\\nworktree = .\\n' >> bare.git/config",
    "a bare repository in a folder": f"{_EVIL_REPOSITORY}; mv evil/H evil/HEAD; printf 'bare = false\\nworktree = .\\n' >> evil/config",
    "a bare repository in two folders": f"mkdir half; cd half; {_EVIL_REPOSITORY}; cp -r evil/* .; rm -rf evil; printf 'bare = false\\nworktree = .\\n' >> config; mv H HEAD; rm -rf objects refs; git init -q --bare ../rest; echo ../rest > commondir",
    "the workspace as a bare repository": f"{_EVIL_REPOSITORY}; mv evil/* .; mv H HEAD; printf 'bare = false\\nworktree = .\\n' >> config; echo broken > .git/HEAD; rm -f .git/HEAD",
    "the workspace as a bare repository, by a link": f"{_EVIL_REPOSITORY}; mv evil/* .; mv H HEAD; printf 'bare = false\\nworktree = .\\n' >> config; ln -sf nowhere .git/HEAD",
    "an unfinished rebase": f"mkdir -p .git/rebase-merge; cd .git/rebase-merge; git rev-parse HEAD | tee onto orig-head > done; echo refs/heads/master > head-name; echo 'exec {PAYLOAD}' > git-rebase-todo; touch interactive; echo 1 > msgnum; echo 2 > end",
    "an index that lists a hook": _craft_index(2, ".git/hooks/post-checkout notes.txt"),
    "an index that lists a hook, compressed": _craft_index(4, ".git/hooks/post-checkout"),
    "an index that lists a hook in capitals": _craft_index(2, ".GIT/hooks/post-checkout .git/hooks/post-checkout"),
    "an index that lists a file outside": _craft_index(2, "../outside/pwned"),
    "an index that lists an absolute file": _craft_index(2, "@outside@/pwned"),
    "an index that lists settings of a nested repository": _craft_index(2, "inner/.git/hooks/post-checkout"),
}.items():  # fmt: skip
    GIT_FOLDERS.sh(_name, _command, before=_make_repositories, after=_use_git_everywhere)

for _name in ("logs/HEAD", "index", "HEAD", "COMMIT_EDITMSG", "ORIG_HEAD", "refs/heads/master", "logs/refs/heads/master", "packed-refs", "AUTO_MERGE", "MERGE_MSG"):  # fmt: skip
    GIT_FOLDERS.sh(
        f"a link to a file outside at {_name}",
        f"ln -sfn @outside@/target .git/{_name}; ln -s @outside@/target l; mv -f l .git/{_name}",
        before=_make_repositories,
        after=_use_git_everywhere,
        extra_evidence=_overwritten_target,
    )

GIT_FOLDERS.sh(
    "a bare repository, completed by the next command",
    f"{_EVIL_REPOSITORY}; printf 'bare = false\\nworktree = .\\n' >> evil/config",
    "mv evil/H evil/HEAD",
    before=_make_repositories,
    after=_use_git_everywhere,
)
_LIST_REPOSITORY = "git update-index --add --cacheinfo 160000,$(git -C $p rev-parse HEAD),${p#./}"
"""Shell command that lists the repository $p as a submodule, so that `git status` is run in it too."""
_NEW_REPOSITORY = f"git init -q x; git -C x commit -q --allow-empty -m x; {_EVIL_CONFIG} >> x/.git/config"
GIT_FOLDERS.sh(
    "a repository in many closed folders, listed as a submodule by the next command",
    f"{_NEW_REPOSITORY}; mkdir -p p/.husky/.husky/.husky/.husky; mv x p/.husky/.husky/.husky/.husky; mv p .husky",
    f"p=$(find . -path '*/x/.git' -not -path './.git/*' -printf '%h\\n'); {_LIST_REPOSITORY}",
    before=_make_repositories,
    after=_use_git_everywhere,
)
GIT_FOLDERS.sh(
    "a repository in a path that is too long for the kernel, listed as a submodule",
    f"{_NEW_REPOSITORY}; p=./$(printf 'd%.0s' $(seq 99)); for n in $(seq 38); do p=$p/$(printf 'd%.0s' $(seq 99)); done;"
    f" p=$p/$(printf 'e%.0s' $(seq $((4045 - ${{#p}})))); mkdir -p $p; mv x $p; p=$p/x; {_LIST_REPOSITORY}",
    before=_make_repositories,
    after=_use_git_everywhere,
)
GIT_FOLDERS.calls(
    "a bare repository, completed by the write tool",
    (bash(f"{_EVIL_REPOSITORY}; printf 'bare = false\\nworktree = .\\n' >> evil/config"),),
    (tool_use("write", path="evil/HEAD", content="ref: refs/heads/master\n"),),
    before=_make_repositories,
    after=_use_git_everywhere,
)
GIT_FOLDERS.calls(
    "a bare repository by the write tool",
    *(
        (tool_use("write", path=f"evil/{name}", content=text),)
        for name, text in {
            "config": f"[core]\nbare = false\nworktree = .\nfsmonitor = {PAYLOAD}; false\n",
            "refs/heads/x": "", "objects/x": "", "HEAD": "ref: refs/heads/master\n",
        }.items()
    ),
    before=_make_repositories,
    after=_use_git_everywhere,
)  # fmt: skip
GIT_FOLDERS.calls(
    "a bare repository by calls of the write tool in one reply",
    (
        bash(
            f"mkdir evil; {_EVIL_CONFIG} > evil/config; printf 'bare = false\\nworktree = .\\n' >> evil/config"
        ),
    ),
    tuple(
        tool_use("write", path=f"evil/{name}", content="ref: refs/heads/master\n")
        for name in ("refs/heads/x", "objects/x", "objects/y", "HEAD")
    ),
    before=_make_repositories,
    after=_use_git_everywhere,
)
for _name, _path, _content in (
    ("settings of a bare repository", "bare.git/config", f"[core]\nbare = false\nworktree = .\nfsmonitor = {PAYLOAD}; false\n"),
    ("another common folder for a worktree", ".git/worktrees/linked/commondir", "../../../evil\n"),
    ("settings of a submodule", ".git/modules/module/config", f"[core]\nfsmonitor = {PAYLOAD}; false\n"),
    ("another common folder for a submodule", ".git/modules/module/commondir", "../../../evil\n"),
    ("another common folder", ".git/commondir", "../evil\n"),
    ("a task of a rebase", ".git/rebase-merge/git-rebase-todo", f"exec {PAYLOAD}\n"),
    ("another folder for a submodule", "module/.git", "gitdir: ../evil\n"),
    ("another folder for a worktree", "linked/.git", "gitdir: ../evil\n"),
):  # fmt: skip
    GIT_FOLDERS.calls(
        f"{_name} by the write tool",
        (bash(_EVIL_REPOSITORY),),
        (tool_use("write", path=_path, content=_content),),
        (bash("mv evil/H evil/HEAD"),),
        before=_make_repositories,
        after=_use_git_everywhere,
    )
for _name, _command in {
    "its pointer": f"{_EVIL_REPOSITORY}; mv evil/H evil/HEAD; rm -f .git; echo \"gitdir: $PWD/evil\" > .git",
    "its pointer, moved aside": f"mv .git g; git init -q .; {_EVIL_CONFIG} >> .git/config",
    "a new repository": f"mkdir sub2; git init -q sub2; {_EVIL_CONFIG} >> sub2/.git/config; {_HOOK} > sub2/.git/hooks/post-commit; chmod +x sub2/.git/hooks/*",
    "a bare repository": f"{_EVIL_REPOSITORY}; mv evil/H evil/HEAD; printf 'bare = false\\nworktree = .\\n' >> evil/config",
    "another common folder": f"{_EVIL_REPOSITORY}; mv evil/H evil/HEAD; {_OWN} echo $PWD/evil > $own/commondir; cp -r $own o; echo $PWD/evil > o/commondir; rm -rf $own; mv o $own; mv -f o/* $own",
    "its settings": f"{_OWN} {_EVIL_CONFIG} > $own/config.worktree; {_EVIL_CONFIG} > $own/config; {_EVIL_CONFIG} >> $own/../../config; {_EVIL_CONFIG} > $own/../../config.worktree; {_EVIL_CONFIG} > c; mv -f c $own/config.worktree",
    "a hook": f"{_OWN} for d in $own $own/../..; do mkdir -p $d/hooks; {_HOOK} | tee $d/hooks/post-commit $d/hooks/post-index-change $d/hooks/post-checkout; chmod +x $d/hooks/*; done",
    "an unfinished rebase": f"{_OWN} mkdir -p $own/rebase-merge; git rev-parse HEAD | tee $own/rebase-merge/onto $own/rebase-merge/orig-head; cd $own/rebase-merge; echo refs/heads/master > head-name; echo 'exec {PAYLOAD}' > git-rebase-todo; touch interactive; echo 1 > msgnum; echo 2 > end",
    "a submodule": f"{_OWN} mkdir -p $own/modules/module $own/../../modules/module; {_EVIL_CONFIG} | tee $own/modules/module/config $own/../../modules/module/config",
    "objects elsewhere, and attributes": f"{_OWN} mkdir -p $own/info $own/objects/info; echo '* filter=e' | tee $own/info/attributes $own/../../info/attributes; echo @outside@ | tee $own/../../objects/info/alternates $own/objects/info/alternates",
    "an index that lists a hook": f"{_OWN} {_craft_index(2, '.git/hooks/post-checkout notes.txt', own=True)}",
    "an index that lists an absolute file": f"{_OWN} {_craft_index(4, '@outside@/pwned', own=True)}",
    "another worktree": f"{_OWN} for d in $own/../*/ $own/../linked/; do echo $PWD/evil > $d/commondir; {_EVIL_CONFIG} > $d/config.worktree; echo x > $d/HEAD; rm -f $d/index; done; {_EVIL_REPOSITORY}; mv evil/H evil/HEAD",
    "the repository of the user": f"{_OWN} cd $own/../..; mkdir .git; echo $PWD > .git/commondir; rm -f HEAD index; echo broken > HEAD; {_EVIL_CONFIG} > commondir; mv objects o; mv refs r",
}.items():  # fmt: skip
    for _agent, _place in (
        ("treed", "in a worktree of Retinue"),
        ("both", "in a worktree of Retinue, with the user's checkout"),
    ):
        GIT_FOLDERS.sh(
            f"{_place}: {_name}",
            _command,
            before=_make_repositories,
            after=_use_git_everywhere,
            agent=_agent,
        )
for _name in ("logs/HEAD", "index", "HEAD", "COMMIT_EDITMSG", "ORIG_HEAD", "AUTO_MERGE", "MERGE_MSG", "../../logs/refs/heads/master", "../../refs/heads/master", "../../packed-refs"):  # fmt: skip
    GIT_FOLDERS.sh(
        f"in a worktree of Retinue: a link to a file outside at {_name}",
        f"{_OWN} ln -sfn @outside@/target $own/{_name}; ln -s @outside@/target l; mv -f l $own/{_name}",
        before=_make_repositories,
        after=_use_git_everywhere,
        extra_evidence=_overwritten_target,
        agent="treed",
    )
for _path in (".git", "sub2/.git/config", "evil/.git"):
    GIT_FOLDERS.calls(
        f"in a worktree of Retinue: {_path} by the write tool",
        (tool_use("write", path=_path, content=f"[core]\nfsmonitor = {PAYLOAD}; false\n"),),
        after=_use_git_everywhere,
        agent="treed",
    )
