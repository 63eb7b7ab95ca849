"""Files in a repository that its configuration tells git to execute or to read as configuration."""

# Paths are joined and compared as text here, as in git.
# ruff: noqa: PTH113, PTH118, PTH120

import os
import re
import shlex
from collections.abc import Iterable, Iterator
from functools import lru_cache

from retinue.domain.rules import Globs, escape_glob, subtree_pattern
from retinue.errors import RetinueError
from retinue.sandbox.git.repository import find_repository
from retinue.storage.file_io import FileStamp, file_stamp, read_file

MAX_CONFIG_BYTES = 1 << 20
_SECTION = re.compile(r"\s*\[\s*([A-Za-z0-9.-]+)(?:\s+\"(?:[^\"\\]|\\.)*\")?\s*\]")
_SETTING = re.compile(r"\s*([A-Za-z][A-Za-z0-9-]*)\s*(?:=\s*(.*))?$")
_CONTINUED_LINE = re.compile(r"\\\r?\n")
_VALUE_PART = re.compile(r"\\.|[\"#;]|[^\\\"#;]+")
_SEVERAL_WORDS = re.compile(r"[\s;|&]")
_NO_PATH = re.compile(r"[*?:<>|&;$`(){}~]|^-")
"""Words that are no path of a file in the repository: options, addresses, references, home folders."""


def configured_git_paths(root: str) -> Globs:
    """Return patterns of what the configuration of the repository around a folder makes git execute or include.

    `core.hooksPath` names a folder of hooks, `include.path` another file of configuration, and many settings a
    command, which may be a script in the repository. Only the repository's own files are read, as they are now.
    """
    try:
        repository = find_repository(root)
    except (RetinueError, OSError):
        return ()
    if repository is None:
        return ()
    folders = dict.fromkeys((repository.common_dir, repository.git_dir))
    files = [os.path.join(folder, name) for folder in folders for name in ("config", "config.worktree")]
    return tuple(
        dict.fromkeys(
            pattern
            for file in files
            if (stamp := file_stamp(file)) is not None
            for pattern in _paths_in_config(file, stamp, repository.top_level)
        )
    )


@lru_cache(maxsize=64)
def _paths_in_config(file: str, _stamp: FileStamp, top_level: str) -> Globs:
    """Return the patterns of one file, which is read again only if its stamp has changed."""
    try:
        text = read_file(file)[:MAX_CONFIG_BYTES].decode("utf-8", "surrogateescape")
    except OSError:
        return ()
    return tuple(
        pattern
        for section, name, value in _settings(text)
        for pattern in _patterns_of(section, name, value, top_level, os.path.dirname(file))
    )


def _settings(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield section, name and value of each setting, in lower case except the value."""
    section = ""
    for line in _CONTINUED_LINE.sub("", text).splitlines():
        rest = line
        while match := _SECTION.match(rest):
            section, rest = match[1].lower().partition(".")[0], rest[match.end() :]
        if section and (match := _SETTING.match(rest)) is not None:
            yield section, match[1].lower(), _decode_value(match[2] or "")


def _patterns_of(section: str, name: str, value: str, top_level: str, config_folder: str) -> Iterator[str]:
    if (section, name) == ("core", "hookspath"):
        for path in _inside(top_level, [value], top_level):
            yield subtree_pattern(path)
    elif section in ("include", "includeif"):
        for path in _inside(config_folder, [value], top_level):
            yield escape_glob(path)
    else:
        for path in _inside(top_level, [value, *_command_words(value)], top_level):
            if os.path.isfile(path):
                yield escape_glob(path)


def _decode_value(raw: str) -> str:
    """Return a value as git reads it: without quotes, escapes and comment."""
    pieces: list[str] = []
    is_quoted = False
    for match in _VALUE_PART.finditer(raw):
        part = match[0]
        if part == '"':
            is_quoted = not is_quoted
        elif part in "#;" and not is_quoted:
            break
        elif part[0] == "\\":
            pieces.append({"n": "\n", "t": "\t", "b": ""}.get(part[1:], part[1:]))
        else:
            pieces.append(part)
    return "".join(pieces).strip()


def _command_words(command: str) -> Iterator[str]:
    """Yield the words of a shell command, also of one inside another; a git alias begins with `!`."""
    lexer = shlex.shlex(command.lstrip("!"), posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    try:
        words = list(lexer)
    except ValueError:
        words = command.split()
    for word in words:
        yield word
        if word != command and _SEVERAL_WORDS.search(word):
            yield from _command_words(word)


def _inside(base: str, words: Iterable[str], top_level: str) -> Iterator[str]:
    """Yield the paths of words that are inside the repository's files, but not all of them."""
    for word in words:
        if (
            not word
            or "\0" in word
            or (_NO_PATH.search(word) and not os.path.lexists(os.path.join(base, word)))
        ):
            continue
        path = os.path.realpath(os.path.join(base, word))
        if path.startswith(f"{top_level}/"):
            yield path
