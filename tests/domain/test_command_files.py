"""The files of a command: what its text tells, and the sentence for what it does not tell."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.domain.permissions.command_files import (
    DEFAULT_FILES,
    make_includes,
    package_script_commands,
    unknown_files_note,
    used_names,
    working_folders,
)

DYNAMIC = "This command chooses files while it runs, so it cannot be known which ones; no file is compared."
PIECES = (
    "cd ",
    "sub",
    " && ",
    "'",
    '"',
    "$(",
    "`",
    "<<EOF\n",
    "EOF\n",
    "\\",
    ">",
    "(",
    ")",
    "sh -c ",
    "|",
    " ",
)


@pytest.mark.parametrize(
    "command",
    [
        "cat notes.txt",
        "cd sub && cat ../notes.txt > out.txt 2>&1",
        "ls -l *.txt | sort | head -n 3 &> list",
        "cat <<'EOF' > a.py\nimport os\nprint($HOME)\nEOF",
        "LANG=C env X=1 nice -n 5 wc -l a.txt",
        "bash -c 'cat a.txt && ls'",
        "sh <<X\ncat a.txt\nX",
        "if test -f a; then cat a; else echo '$x'; fi",
        "grep words a.txt # $(comment)",
        "find . -name '*.py'",
        "{ ls; pwd; }",
        "sed -n '2,5p' a.txt | sed -i.bak 's/a|b/c/g; /x/d' b.txt",
        "sed -E -e 's,a,b,' -e '$!d' a.txt",
        "cd 'sub' && cd - > /dev/null",
        "",
    ],
)
def test_nothing_is_said_about_a_command_whose_files_are_its_arguments(command: str):
    assert unknown_files_note(command, has_files=True) == ""


@pytest.mark.parametrize(
    "command",
    [
        "cat $FILE",
        'cat "$(ls)"',
        "cat `ls`",
        "ls | xargs cat",
        "find . -exec cat {} +",
        "eval cat a",
        "for f in *; do cat $f; done",
        "diff <(sort a) b",
        "bash -c 'cat $1' x",
        "cat 'unclosed",
        "'cd' sub; cat x",
        "c\\d sub; cat x",
        'cd "su"b; cat x',
        "cd >/dev/null sub; cat x",
        "cd 'my folder'; cat x",
        "cd ~/sub; cat x",
        "cd; cat x",
        "cd ''; cat x",
        "PATH=sub ls",
        "export PATH=sub; ls",
        "printf -v PATH sub; ls",
        "env LD_LIBRARY_PATH=sub ls",
        " ".join(f"word{number}" for number in range(300)),
    ],
)
def test_a_command_that_computes_names_is_reported(command: str):
    assert unknown_files_note(command, has_files=False) == DYNAMIC


@pytest.mark.parametrize(
    ("command", "program"),
    [
        ("sh run.sh", "sh"),
        ("cd sub && ./run.sh", "./run.sh"),
        ("cat a; make all", "make"),
        ("env X=1 python -m pkg", "python"),
        ("time npm run x", "npm"),
        ("timeout 5s node x.js", "node"),
        ("cat <<X | bash\nls\nX", "bash"),
        ("grep -r words .", "grep"),
        ("bash -c 'make'", "make"),
        (". ./env.sh", "."),
        ("git status", "git"),
    ],
)
def test_a_program_that_may_use_other_files_is_named(command: str, program: str):
    assert unknown_files_note(command, has_files=True) == (
        f"It cannot be known which other files {program} uses; only the listed files are compared."
    )


def test_the_folders_of_a_command_are_those_it_changes_to_one_after_the_other():
    assert working_folders("ls") == ["."]
    assert working_folders("cd a && cd ../b") == [".", "./a", "./../b", "./a/../b"]
    assert working_folders("make -C sub; npm --prefix=web run x; git -Cx log") == [
        ".", "./sub", "./web", "./sub/web", "./x", "./sub/x", "./web/x", "./sub/web/x",
    ]  # fmt: skip
    assert working_folders("bash -c \"cd 'a' && ls\"") == [".", "./a"]
    assert working_folders("cd $X; echo abcd x") == ["."]


def test_names_include_what_programs_read_by_default():
    for program, files in DEFAULT_FILES.items():
        assert set(files) <= set(used_names(f"cd sub && /usr/bin/{program} x"))
    for options in ("", "-I ", "-X utf8 ", "-W ignore -Xdev "):
        assert "a/b.py" in used_names(f"python3 {options}-m a.b")
    assert make_includes("include a.mk b/*.mk # x\n-include c\nsinclude $(X) d\nother e") == [
        "a.mk",
        "b/*.mk",
        "c",
        "d",
    ]
    scripts = {"prebuild": "1", "build": "2", "test": "3", "prepare": "4"}
    assert package_script_commands("npm run build", scripts) == ["1", "2"]
    assert package_script_commands("npm t", scripts) == ["3"]
    assert package_script_commands("npm ci", scripts) == ["4"]


@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=12).map("".join))
def test_any_text_can_be_examined(command: str):
    unknown_files_note(command, has_files=True)
    used_names(command)
    working_folders(command)


@pytest.mark.parametrize(
    "command",
    [
        "sed 's/.*/sh x.sh/e' data",
        "sed '1e sh x.sh' data",
        "sed -f x.sed data",
        "sed -nf x.sed data",
        "sed -e p -e 'r other' data",
        "sed --expression='w other' data",
    ],
)
def test_a_sed_script_that_may_run_commands_or_use_other_files_is_reported(command: str):
    assert "which other files sed uses" in unknown_files_note(command, has_files=True)
