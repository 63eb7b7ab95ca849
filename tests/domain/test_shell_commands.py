"""Preapproved shell commands: one program with plain arguments, and nothing that only resembles it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.domain.agent import ShellCommands
from retinue.domain.permissions.scope import Scope
from retinue.domain.permissions.shell_commands import check_preapproved, denied_text, possible_file_names

GIT = ShellCommands(allow=("git", "ls", "git log **", "env", "xargs", "find", "sed", "awk", "true"))

PLAIN = [
    "git status",
    "git  status   --short",
    "git\tlog",
    "  git status  ",
    "ls",
    "ls -la src/retinue",
    "git log src/a.py",
    "find . -name a.py",
    "git show HEAD^",
    "git push origin a:b",
    "ls a,b +x 50% you@host",
]

COMPLEX = [
    "git status; rm x",
    "git status && rm x",
    "git status || rm x",
    "git status & rm x",
    "git status | sh",
    "git status |& sh",
    "git status\nrm x",
    "git status\r\nrm x",
    "git status\rrm x",
    "git log > /etc/x",
    "git log >> x",
    "git log 2>&1",
    "git log < x",
    "git log << EOF",
    "git log <<< x",
    "git $(rm x)",
    "git `rm x`",
    "git <(rm x)",
    "git >(rm x)",
    "git ${IFS}rm",
    "git $HOME",
    "git $'a\\nb'",
    "{ git; rm x; }",
    "(git; rm x)",
    "git {a,b}",
    "git *",
    "git a?",
    "git [ab]",
    "git !!",
    "! git",
    "git ~/x",
    "git # x",
    "git \\; rm x",
    "git 'a b'",
    'git "a b"',
    "X=1 git status",
    "PATH=. git status",
    "git -c alias.x=!sh x",
    "./git status",
    "/usr/bin/git status",
    "bin/git status",
    "env -S 'rm x'",
    "xargs -I{} sh",
    "find . -exec rm {} ;",
    "sed -e 's/x/y/w out'",
    "awk 'BEGIN{system(\"rm x\")}'",
    "git\0status",
    "git\x0bstatus",
    "git\x0cstatus",
    "git\x1cstatus",
    "git\x1b[2Jstatus",
    "git\x7fstatus",
    "git\u00a0status",
    "git\u2003status",
    "git\u2028rm x",
    "git\u0085rm",
    "git status\u202e",
    "git st\u200batus",
    "g\u0456t status",
    "\uff47\uff49\uff54 status",
    "",
    "   ",
    "\n",
    "function git",
    "if true",
    "; ".join(["true"] * 51),
    "\n".join(["true"] * 51),
]


@pytest.mark.parametrize("command", PLAIN)
def test_one_program_with_plain_arguments_is_preapproved(command: str):
    """Shows: S20."""
    assert check_preapproved(command, GIT).ok


@pytest.mark.parametrize("command", COMPLEX)
def test_a_command_with_shell_syntax_is_never_preapproved(command: str):
    """Shows: S20, S21, S22, S23."""
    assert not check_preapproved(command, GIT).ok


PATTERNS: list[tuple[str, str, bool]] = [
    ("git", "git push", True),
    ("git", "gitk", False),
    ("git", "legit", False),
    ("g?t", "git push", True),
    ("git*", "gitk", True),
    ("git status", "git status", True),
    ("git status", "git  status", True),
    ("git status", "git status -s", False),
    ("git status *", "git status -s", True),
    ("git status *", "git status", False),
    ("git diff *", "git diff a/b", False),
    ("git diff **", "git diff a/b", True),
    ("make test", "make tests", False),
    ("GIT", "git status", False),
    ("", "git", False),
    (" ", "git", False),
    ("**", "git", True),
]


@pytest.mark.parametrize(("pattern", "command", "expected"), PATTERNS)
def test_a_pattern_without_spaces_matches_the_program_and_a_pattern_with_spaces_the_whole_command(
    pattern: str, command: str, expected: bool
):
    verdict = check_preapproved(command, ShellCommands(allow=(pattern,)))
    assert verdict.ok is expected
    assert verdict.rule == (
        f"shell_commands allow {pattern}" if expected else "no pattern of shell_commands allows it"
    )


def test_a_single_star_preapproves_everything_and_a_double_star_only_plain_commands():
    for command in ("git status; rm x", "\n", "./x"):
        preapproved = check_preapproved(command, ShellCommands(allow=("ls", "*")))
        assert (preapproved.ok, preapproved.rule) == (True, "shell_commands allow *")
        refused = check_preapproved(command, ShellCommands(allow=("**",)))
        assert refused.rule == "shell_commands cover only one program with literal arguments"


@pytest.mark.parametrize(
    "rules", [None, ShellCommands(), ShellCommands(allow=()), ShellCommands(deny=("x",))]
)
def test_without_allow_patterns_no_command_is_preapproved(rules: ShellCommands | None):
    for command in ("git status", "git status; ls"):
        verdict = check_preapproved(command, rules)
        assert (verdict.ok, verdict.rule) == (False, "not preapproved by any shell_commands rule")


BLOCKED: list[tuple[str, str, bool]] = [
    ("rm -rf", "rm -rf /", True),
    ("rm -rf", "echo a; rm   -rf /", True),
    ("rm -rf", "rm\t-rf /", True),
    ("rm -rf", "rm\n-rf /", True),
    ("rm -rf", "rm \\\n -rf /", False),
    ("rm  -rf", "rm -rf /", True),
    (" rm -rf\n", "rm -rf /", True),
    ("rm -rf", "rm -r -f /", False),
    ("curl", "a curly thing", True),
    ("", "anything", False),
    ("  ", "any thing", False),
]


@pytest.mark.parametrize(("text", "command", "expected"), BLOCKED)
def test_a_denied_text_blocks_a_command_at_any_position_and_with_any_spacing(
    text: str, command: str, expected: bool
):
    rules = ShellCommands(allow=("*",), deny=("never", text))
    assert denied_text(command, rules) == (text if expected else None)
    verdict = Scope(shell_commands=rules).check_command(command)
    assert (verdict.ok, verdict.rule) == (
        (False, f"shell_commands deny {text}") if expected else (True, "nothing denies it")
    )


def test_without_a_deny_list_no_command_is_blocked():
    for rules in (None, ShellCommands(), ShellCommands(deny=())):
        assert denied_text("rm -rf /", rules) is None
        assert Scope(shell_commands=rules).check_command("rm -rf /").ok


@given(st.text(min_size=1, max_size=40))
def test_a_preapproved_command_has_no_character_with_a_meaning_for_the_shell(text: str):
    """Shows: S20."""
    if check_preapproved(f"git {text}", GIT).ok:
        assert text.isascii()
        assert not set(text) & set(";&|<>`$(){}[]*?!~#\\'\"=\n\r\0")
        assert all(char.isprintable() or char == "\t" for char in text)


@pytest.mark.parametrize(
    ("command", "names"),
    [
        ("sh run.sh", ["run.sh"]),
        ("./run.sh --fast", ["./run.sh"]),
        ("sh run.sh;ls|sh b.sh>c.txt", ["run.sh", "b.sh", "c.txt"]),
        ("sh 'my script.sh'", ["my script.sh"]),
        ('bash -c "sh run.sh && sh b.sh"', ["run.sh", "b.sh"]),
        ("make --file=build.mk", ["build.mk"]),
        ("A=run.sh sh b.sh", ["run.sh", "b.sh"]),
        ("echo $(cat run.sh) `cat b.sh` <c.txt", ["run.sh", "b.sh", "c.txt"]),
        ("sh run.sh # b.sh", ["run.sh", "b.sh"]),
        ("sh run.sh 'never closed b.sh", ["run.sh", "b.sh"]),
        ("sh my\\ script.sh", ["my script.sh"]),
    ],
)
def test_possible_file_names_include_every_file_a_command_could_mean(command: str, names: list[str]):
    """Shows: T10."""
    file_names = possible_file_names(command)
    assert set(names) <= set(file_names)
    assert "" not in file_names


@given(st.text())
def test_possible_file_names_accept_any_text(command: str):
    file_names = possible_file_names(command)
    assert len(file_names) == len(set(file_names))
    assert bool(file_names) or not command.strip(" \t\r\n;|&<>()`'\"=$") or not command.split()
