"""The files that a shell command uses, as far as they can be derived from its text.

The names are guesses: every word that may be a name is tried, and names of missing files are ignored. The sandbox, not
this module, decides which files a command can open.
"""

import posixpath
import re
from collections.abc import Iterator
from itertools import pairwise

from retinue.domain.permissions.shell_commands import possible_file_names

MAX_WORDS = 256
"""Words of a command that are tried as file names."""
MAX_FOLDERS = 8
"""Folders of a command in which its words are tried."""
MAX_NESTED = 4

DEFAULT_FILES: dict[str, tuple[str, ...]] = {
    "make": ("GNUmakefile", "makefile", "Makefile"),
    "gmake": ("GNUmakefile", "makefile", "Makefile"),
    "just": ("justfile", "Justfile", ".justfile"),
    "task": ("Taskfile.yml", "Taskfile.yaml"),
    "ninja": ("build.ninja",),
    "cmake": ("CMakeLists.txt", "CMakePresets.json"),
    "npm": ("package.json",),
    "npx": ("package.json",),
    "yarn": ("package.json",),
    "pnpm": ("package.json",),
    "bun": ("package.json",),
    "node": ("package.json", "index.js"),
    "deno": ("deno.json", "deno.jsonc"),
    "pytest": ("conftest.py", "pytest.ini", "pyproject.toml", "tox.ini", "setup.cfg"),
    "tox": ("tox.ini", "pyproject.toml"),
    "nox": ("noxfile.py",),
    "invoke": ("tasks.py",),
    "pip": ("setup.py", "pyproject.toml", "setup.cfg"),
    "uv": ("pyproject.toml",),
    "poetry": ("pyproject.toml",),
    "cargo": ("Cargo.toml", "build.rs"),
    "rake": ("Rakefile", "rakefile"),
    "bundle": ("Gemfile",),
    "ant": ("build.xml",),
    "mvn": ("pom.xml",),
    "gradle": ("build.gradle", "build.gradle.kts", "settings.gradle", "settings.gradle.kts"),
    "docker": ("Dockerfile", "compose.yaml", "docker-compose.yml"),
    "docker-compose": ("compose.yaml", "docker-compose.yml"),
    "vagrant": ("Vagrantfile",),
}
"""Files that programs read although the command does not name them, by program."""

_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh"})
_WRAPPERS = frozenset(
    {"env", "nice", "ionice", "nohup", "setsid", "stdbuf", "time", "timeout", "command", "exec", "builtin", "sudo"}
)  # fmt: skip
_KEYWORDS = frozenset(
    {"if", "then", "else", "elif", "fi", "while", "until", "do", "done", "esac", "{", "}", "!"}
)
_LOOPS = frozenset({"for", "case", "select", "function"})
_DYNAMIC_PROGRAMS = frozenset({"eval", "xargs", "parallel"})
_RECURSIVE_PROGRAMS = frozenset({"grep", "egrep", "fgrep", "cp", "diff", "rm", "chmod", "chown", "chgrp"})
_PLAIN_PROGRAMS = _RECURSIVE_PROGRAMS | {
    "[", "base64", "basename", "cat", "cd", "cmp", "column", "comm", "cut", "date", "df", "dirname", "du", "echo",
    "exit", "export", "expr", "false", "file", "find", "fold", "head", "hostname", "id", "join", "kill", "ln", "ls",
    "md5sum", "mkdir", "mktemp", "mv", "nl", "od", "paste", "popd", "printf", "ps", "pushd", "pwd", "readlink",
    "realpath", "rev", "rmdir", "sed", "seq", "set", "sha1sum", "sha256sum", "sleep", "sort", "split", "stat",
    "strings", "tac", "tail", "tee", "test", "touch", "tr", "tree", "true", "type", "umask", "uname", "uniq", "unset",
    "wait", "wc", "which", "whoami", "xxd", "yes",
}  # fmt: skip
"""Programs that use the files in their arguments and no others."""

_FOLDER_ARGUMENT = re.compile(
    r"""(?:(?<![\w./-])(?:cd|pushd)(?:\s+-[LPe@-]+)*\s+|(?<!\S)(?:-C\s*|--(?:directory|prefix|cwd|chdir)(?:\s+|=)))"""
    r"""["']?([^\s;|&<>()"'`$]+)"""
)
_PYTHON = re.compile(r"(?:python|pypy)[\d.]*")
_MODULE_ARGUMENT = re.compile(
    r"(?<![\w.-])(?:python|pypy)[\d.]*\s+(?:-[WX]\s+\S+\s+|-\w+\s+)*?-m\s*([A-Za-z_][\w.]*)"
)
_FOLDER_PROGRAMS = frozenset({"cd", "pushd"})
_SED_ADDRESS = r"(?:\d+|\$|/[^/]*/)"
_PLAIN_SED_SCRIPT = re.compile(
    rf"{_SED_ADDRESS}?(?:,\+?{_SED_ADDRESS})?(?:!?[pdq=]|s([/|#,@:])(?:(?!\1).)*\1(?:(?!\1).)*\1[gIip\d]*)"
)
"""A script that only prints, deletes or replaces lines: others can run commands and use other files."""
_HEREDOC = re.compile(r"(?<!<)<<-?\s*(?:'([^'\n]+)'|\"([^\"\n]+)\"|([\w.-]+))")
_REDIRECTION = re.compile(r"[<>]+(?:(&(?:\d+|-))|[|&]?[ \t]*)")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=")
_SEARCH_PATH = re.compile(r"(?:LD_\w+|(?:\w+_)?PATH)(?:\+?=.*)?", re.DOTALL)
"""A variable that decides which file a program or library of a certain name is."""
_WRAPPER_ARGUMENT = re.compile(r"-.*|\d[\d.]*[smhd]?|[A-Za-z_]\w*=.*", re.DOTALL)
_SHELL_COMMAND_OPTION = re.compile(r"-[a-z]*c")
_RECURSIVE_OPTION = re.compile(r"-[A-Za-z]*[rR][A-Za-z]*|--recursive|--dereference-recursive|-a|--archive")
_INCLUDE = re.compile(r"^[ \t]*(?:-include|sinclude|include)[ \t]+([^#\n]+)", re.MULTILINE)
_BRACES = re.compile(r"([^\s{}]*)\{([^\s{}]*,[^\s{}]*)\}([^\s{}]*)")


def working_folders(command: str) -> list[str]:
    """Return the folders that a command may work in, relative to the workspace: `.`, and where it goes from there."""
    folders = ["."]
    for named in _FOLDER_ARGUMENT.findall(command):
        for folder in list(folders):
            joined = posixpath.join(folder, named)
            if joined not in folders and len(folders) < MAX_FOLDERS:
                folders.append(joined)
    return folders


def used_names(command: str) -> list[str]:
    """Return every name of a file that a command may use: its words, and what its programs read by default."""
    words = possible_file_names(command)[:MAX_WORDS]
    braces = [
        f"{before}{middle}{after}"
        for before, inner, after in (found for word in words for found in _BRACES.findall(word))
        for middle in inner.split(",")
    ]
    defaults = [name for word in words for name in DEFAULT_FILES.get(posixpath.basename(word), ())]
    scripts: list[str] = []
    if "node" in words:
        scripts = [f"{word}{end}" for word in words for end in (".js", ".mjs", ".cjs", "/index.js")]
    if any(_PYTHON.fullmatch(posixpath.basename(word)) for word in words):
        scripts += [f"{word}/__main__.py" for word in words]
    modules = [name for module in _MODULE_ARGUMENT.findall(command) for name in _module_files(module)]
    return list(dict.fromkeys((*words, *braces, *defaults, *modules, *scripts)))


def _module_files(module: str) -> Iterator[str]:
    parts = module.split(".")
    for end in range(1, len(parts)):
        yield f"{'/'.join(parts[:end])}/__init__.py"
    path = "/".join(parts)
    yield from (f"{path}.py", f"{path}/__init__.py", f"{path}/__main__.py")


def runs_make(command: str) -> bool:
    """Return True if a command may run make, so that the files it names may be makefiles."""
    return any(posixpath.basename(word) in ("make", "gmake") for word in possible_file_names(command))


def make_includes(makefile: str) -> list[str]:
    """Return the names that a makefile includes, without those that it computes."""
    return [name for line in _INCLUDE.findall(makefile) for name in line.split() if "$" not in name]


def package_script_commands(command: str, scripts: dict[str, str]) -> list[str]:
    """Return the commands of package.json that a command runs: those that it names, with what runs around them."""
    words = set(possible_file_names(command)[:MAX_WORDS])
    names = {"test"} if words & {"t", "tst"} else set[str]()
    if words & {"install", "i", "ci", "add"}:
        names |= {"install", "prepare"}
    names |= words
    around = [f"{before}{name}" for name in sorted(names) for before in ("pre", "", "post")]
    return [scripts[name] for name in around if name in scripts]


def unknown_files_note(command: str, *, has_files: bool) -> str:
    """Return one sentence if it cannot be known which files a command uses; else an empty string."""
    compared = "only the listed files are compared" if has_files else "no file is compared"
    program = _unpredictable_program(command, 0)
    if program is None:
        return ""
    if not program:
        return f"This command chooses files while it runs, so it cannot be known which ones; {compared}."
    return f"It cannot be known which {'other ' if has_files else ''}files {program[:40]} uses; {compared}."


def _unpredictable_program(command: str, depth: int) -> str | None:
    """Return the first program whose files cannot be known; empty if the command computes names, None if neither."""
    text, bodies = _without_heredocs(command)
    commands, is_dynamic = _simple_commands(text)
    is_too_long = (
        len(possible_file_names(command)) > MAX_WORDS or len(working_folders(command)) >= MAX_FOLDERS
    )
    has_search_path = any(_SEARCH_PATH.fullmatch(word) for words in commands for word in words)
    if is_dynamic or is_too_long or has_search_path or depth > MAX_NESTED:
        return ""
    for words in commands:
        rest = _without_wrappers(words)
        if not rest:
            continue
        program, arguments = posixpath.basename(rest[0]), rest[1:]
        if program in _DYNAMIC_PROGRAMS or (
            program == "find" and any(a.startswith(("-exec", "-ok")) for a in arguments)
        ):
            return ""
        here_text = "\n".join(bodies) if bodies and len(commands) == 1 else None
        if program in _FOLDER_PROGRAMS and not _is_known_folder(command, arguments):
            return ""
        if program in _SHELLS and (nested := _shell_text(arguments, here_text)) is not None:
            found = _unpredictable_program(nested, depth + 1)
        elif program not in _PLAIN_PROGRAMS or "/" in rest[0]:
            found = rest[0] if "/" in rest[0] else program
        else:
            is_recursive = program in _RECURSIVE_PROGRAMS and any(map(_RECURSIVE_OPTION.fullmatch, arguments))
            found = program if is_recursive or (program == "sed" and not _is_plain_sed(arguments)) else None
        if found is not None:
            return found
    return None


def _is_known_folder(command: str, arguments: list[str]) -> bool:
    """Return True if `working_folders` has the folder that `cd` or `pushd` names."""
    named = [each for each in arguments if each == "-" or not each.startswith("-")]
    return named == ["-"] or (
        len(named) == 1
        and not named[0].startswith(("~", "{"))
        and named[0] in _FOLDER_ARGUMENT.findall(command)
    )


def _is_plain_sed(arguments: list[str]) -> bool:
    if any(re.match(r"-[a-zA-Z]*f|--file|-[a-zA-Z]*e.|--expression=", each) for each in arguments):
        return False
    scripts = [
        text for option, text in pairwise(arguments) if re.fullmatch(r"-[nErsz]*e|--expression", option)
    ]
    scripts = scripts or [each for each in arguments if not each.startswith("-")][:1]
    return all(_PLAIN_SED_SCRIPT.fullmatch(part.strip()) for each in scripts for part in each.split(";"))


def _shell_text(arguments: list[str], here_text: str | None) -> str | None:
    """Return the commands that a shell gets as an argument or from a here-document; None if they are in a file."""
    for option, text in pairwise(arguments):
        if _SHELL_COMMAND_OPTION.fullmatch(option):
            return text
    return here_text if all(each.startswith("-") for each in arguments) else None


def _without_wrappers(words: list[str]) -> list[str]:
    """Return a command without keywords, assignments and programs that start another one."""
    rest = list(words)
    while rest:
        if rest[0] in _LOOPS:
            return []
        if posixpath.basename(rest[0]) in _WRAPPERS:
            del rest[0]
            while rest and _WRAPPER_ARGUMENT.fullmatch(rest[0]):
                del rest[0]
        elif rest[0] in _KEYWORDS or _ASSIGNMENT.match(rest[0]):
            del rest[0]
        else:
            return rest
    return []


def _without_heredocs(text: str) -> tuple[str, list[str]]:
    """Return a command without its here-documents, and their texts."""
    lines: list[str] = []
    bodies: list[str] = []
    ends: list[str] = []
    for line in text.split("\n"):
        if ends:
            if line.strip() == ends[0]:
                del ends[0]
            else:
                bodies.append(line)
            continue
        ends = [single or double or bare for single, double, bare in _HEREDOC.findall(line)]
        lines.append(_HEREDOC.sub(" ", line))
    return "\n".join(lines), bodies


def _simple_commands(text: str) -> tuple[list[list[str]], bool]:
    """Split a line into simple commands and their words; True if it computes words while it runs."""
    splitter = _CommandSplitter(text)
    splitter.split()
    return [words for words in splitter.commands if words], splitter.is_dynamic


class _CommandSplitter:
    """Splits a shell line by its quotes and operators, without expanding anything."""

    def __init__(self, text: str) -> None:
        self.commands: list[list[str]] = [[]]
        self.is_dynamic = False
        self._text = text
        self._word: str | None = None
        self._is_target = False
        """The next word is the target of a redirection."""

    def split(self) -> None:
        position = 0
        while position < len(self._text) and not self.is_dynamic:
            position = self._read_piece(position)
        self._end_word()

    def _read_piece(self, position: int) -> int:
        text, char = self._text, self._text[position]
        if char == "\\":
            self._add(text[position + 1 : position + 2])
            return position + 2
        if char in "'\"":
            return self._read_quoted(position, char)
        if char == "#" and self._word is None:
            end = text.find("\n", position)
            return len(text) if end < 0 else end
        if char in "<>" or (char == "&" and text[position + 1 : position + 2] == ">"):
            return self._read_redirection(position + (char == "&"))
        if char in "$`":
            self.is_dynamic = True
        elif char in " \t":
            self._end_word()
        elif char in "\n;|&()":
            self._end_word()
            self.commands.append([])
        else:
            self._add(char)
        return position + 1

    def _read_quoted(self, position: int, quote: str) -> int:
        end = position + 1
        while end < len(self._text) and self._text[end] != quote:
            end += 2 if quote == '"' and self._text[end] == "\\" else 1
        inner = self._text[position + 1 : end]
        self.is_dynamic = end >= len(self._text) or (quote == '"' and any(char in inner for char in "$`"))
        self._add(inner)
        return end + 1

    def _read_redirection(self, position: int) -> int:
        if self._word is not None and self._word.isdigit():
            self._word = None
        self._end_word()
        found = _REDIRECTION.match(self._text, position)
        end = found.end() if found else position + 1
        self._is_target = found is not None and found[1] is None
        if self._text[end : end + 1] == "(":
            self.is_dynamic = True
        return end

    def _add(self, text: str) -> None:
        self._word = (self._word or "") + text

    def _end_word(self) -> None:
        if self._word is not None and not self._is_target:
            self.commands[-1].append(self._word)
        if self._word is not None:
            self._is_target = False
        self._word = None
