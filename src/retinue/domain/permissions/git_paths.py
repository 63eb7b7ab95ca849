"""What a command may change in a git folder, by path relative to that folder."""

from collections.abc import Set as AbstractSet

from retinue.domain.ceiling import FileAccess
from retinue.domain.rules import Globs, escape_glob

GIT_FOLDER = ".git"

ASIDE_PREFIX = "taken-"
"""Prefix of the new names of files that were moved aside: no program acts on such a name."""

_ANY_SETTINGS: Globs = ("**/.git/config", "**/.git/config.worktree", "**/.git/hooks/**")
LIVE_FILES = frozenset(
    {"HEAD", "index", "ORIG_HEAD", "COMMIT_EDITMSG", "FETCH_HEAD", "AUTO_MERGE", "REBASE_HEAD"}
)
_LIVE_FOLDERS = ("objects", "logs", "refs/heads")
WORKTREES_FOLDER = "worktrees"
"""Folder with git's files for each worktree."""
SHARED_LIVE_FOLDERS = ("objects", "logs/refs/heads", "refs/heads")
"""Folders of a repository that git writes for a commit in any of its worktrees."""
_LOCK_SUFFIX = ".lock"
_OBJECTS_INFO, _ALTERNATES = "objects/info", ("objects/info/alternates", "objects/info/http-alternates")
"""Git reads objects from the folders that `alternates` names."""
_OBJECTS_PACK = "objects/pack"
"""Git moves old objects here, and adds no new ones for a commit: a command could only destroy them."""

_CONTROL_NAMES = frozenset(
    {
        "config", "config.worktree", "commondir", "hooks", "worktrees", "modules", "info", "remotes", "branches",
        "packed-refs", "refs",
    }
)  # fmt: skip
"""Names that mean something to git in any folder that git accepts as a repository."""

_STATE_PREFIXES = ("MERGE_", "CHERRY_PICK_", "REVERT_", "REBASE_", "BISECT_", "SQUASH_MSG")
_STATE_FOLDERS = frozenset({"rebase-merge", "rebase-apply", "sequencer"})
_INERT_NAMES = frozenset({"description", "info", "packed-refs", "refs", "shallow", "gc.log", "gc.pid"})

REPOSITORY_MARKERS = frozenset({"HEAD", "commondir", "objects", "refs"})
"""Names by which git recognises a repository."""


def program_settings(folder: str) -> Globs:
    """Return patterns of everything by which git starts other programs, for a git folder and those inside trees."""
    top = escape_glob(folder)
    names = ("config", "config.worktree", "hooks/**", "worktrees/*/config.worktree", "modules/**")
    return (*(f"{top}/{name}" for name in names), *_ANY_SETTINGS)


def is_git_folder_name(name: str) -> bool:
    """Some file systems ignore case, so git may accept any spelling there."""
    return name.lower() == GIT_FOLDER


def is_repository(names: AbstractSet[str]) -> bool:
    """Return whether git accepts a folder with these entries as a repository, whatever its own name."""
    return "HEAD" in names and ("commondir" in names or {"objects", "refs"} <= names)


def is_live(relative: str, *, is_folder: bool = False) -> bool:
    """Return whether `git add`, `git commit` and `git checkout` write this path of a git folder themselves."""
    if "/" not in relative and (relative in LIVE_FILES or relative.endswith(_LOCK_SUFFIX)):
        return not is_folder
    if not is_folder and relative in _LIVE_FOLDERS:
        return False
    return _is_below(relative, _LIVE_FOLDERS) and not _is_below(relative, (_OBJECTS_INFO, _OBJECTS_PACK))


def is_moved_aside(relative: str) -> bool:
    return relative.rpartition("/")[2].startswith(ASIDE_PREFIX)


def is_mixed_folder(relative: str) -> bool:
    """Return whether a folder of git holds both live and protected entries."""
    return relative in ("", "objects", _OBJECTS_INFO)


def holds_references(relative: str) -> bool:
    """Return whether git follows symbolic links here, and writes to their targets."""
    return _is_below(relative, ("refs", "logs"))


def holds_repositories(relative: str) -> bool:
    """Return whether git keeps the repositories of submodules and linked worktrees here."""
    return _is_below(relative, ("modules", "worktrees"))


def is_control_path(relative: str) -> bool:
    """Return whether git obeys this path in any repository, also in one that is not called `.git`."""
    return (
        relative.partition("/")[0] in _CONTROL_NAMES
        or is_operation_state(relative)
        or _is_below(relative, (_OBJECTS_INFO, _OBJECTS_PACK))
    )


def is_git_path(relative: str) -> bool:
    """Return whether git reads or writes this path of a repository."""
    return is_control_path(relative) or is_live(relative)


def is_operation_state(relative: str) -> bool:
    """Return whether this belongs to an unfinished merge, rebase, cherry-pick, revert or bisection."""
    return relative.startswith(_STATE_PREFIXES) or relative.partition("/")[0] in _STATE_FOLDERS


def is_inert_in_new_repository(relative: str) -> bool:
    """Return whether git creates this in a new repository and it makes git run nothing."""
    is_inert = relative.partition("/")[0] in _INERT_NAMES or _is_below(
        relative, (_OBJECTS_INFO, _OBJECTS_PACK)
    )
    return is_inert and relative not in _ALTERNATES


def common_git_dir(git_dir: str) -> str:
    """Return the folder that all worktrees share, from git's folder for one of them; empty if it is none."""
    return git_dir.rpartition(f"/{WORKTREES_FOLDER}/")[0]


def worktree_access(relative: str, name: str) -> FileAccess | None:
    """Return what a session may do with a path of the repository that its own worktree belongs to.

    The path is relative to the folder that all worktrees share; `name` is the own one's folder in `worktrees`.
    None for the folders of other worktrees. What belongs to the repository's own working folder is only read.
    """
    folder, _, rest = relative.partition("/")
    if folder == WORKTREES_FOLDER:
        own, _, rest = rest.partition("/")
        if own != name:
            return None
        return "write" if is_live(rest) else "read"
    return "write" if rest and _is_below(relative, SHARED_LIVE_FOLDERS) and is_live(relative) else "read"


def _is_below(relative: str, folders: tuple[str, ...]) -> bool:
    return any(relative == folder or relative.startswith(f"{folder}/") for folder in folders)
