"""The part of a repository's configuration that git needs to read the repository, and that runs nothing."""

import os
import re
import stat

_SAFE_KEYS = {
    "core": frozenset(
        {
            "repositoryformatversion", "filemode", "bare", "symlinks", "ignorecase", "precomposeunicode", "autocrlf",
            "eol", "safecrlf", "logallrefupdates", "sparsecheckout", "sparsecheckoutcone", "sharedrepository",
        }
    ),
    "extensions": frozenset({"objectformat", "refstorage", "compatobjectformat", "preciousobjects"}),
}  # fmt: skip
_SECTION = re.compile(r"\s*\[\s*(\w+)\s*\]\s*")
_SETTING = re.compile(r"\s*(\w+)\s*=\s*([A-Za-z0-9_.-]{1,64})\s*")
_MAX_BYTES = 1_000_000


def read_safe_config(path: str) -> bytes:
    """Return a new configuration with the safe settings of this one; empty if it cannot be read.

    A setting that is not written plainly on a line of its own is left out.
    """
    found: dict[str, dict[str, str]] = {}
    section = ""
    for line in _read_lines(path):
        if line.lstrip().startswith("["):
            match = _SECTION.fullmatch(line)
            section = match[1].lower() if match else ""
        elif (match := _SETTING.fullmatch(line)) and match[1].lower() in _SAFE_KEYS.get(section, ()):
            found.setdefault(section, {})[match[1].lower()] = match[2]
    lines = (
        line
        for name, settings in found.items()
        for line in (f"[{name}]", *(f"\t{key} = {value}" for key, value in settings.items()))
    )
    return "".join(f"{line}\n" for line in lines).encode()


def _read_lines(path: str) -> list[str]:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return []
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return []
        return os.read(fd, _MAX_BYTES).decode(errors="replace").split("\n")
    except OSError:
        return []
    finally:
        os.close(fd)
