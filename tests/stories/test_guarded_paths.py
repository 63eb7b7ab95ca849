"""Files that other programs obey: an agent with `approvals = "auto"` changes none without a person."""

import shlex

from git_repository import create_repository, run_git
from user_machine import UserMachine

from retinue.testing.replies import text_reply, tool_call_reply

NAMES = (
    "AGENTS.md",
    "sub/CLAUDE.md",
    "my.code-workspace",
    ".venv/lib/python3.11/site-packages/evil.pth",
    "sitecustomize.py",
    ".pre-commit-config.yaml",
    ".cargo/config.toml",
    "mise.toml",
    ".dir-locals.el",
    "Jenkinsfile",
    ".cursor/rules/all.mdc",
    ".github/copilot-instructions.md",
    ".vim/plugin/x.vim",
    ".lazy.lua",
    ".python-version",
    ".github/dependabot.yml",
    ".config/kitty/kitty.conf",
    ".local/share/applications/x.desktop",
    "tools/bazel",
    "mcp.json",
    ".agent/rules/x.md",
)
ORDINARY = ("Makefile", "package.json", "src/main.py", "conftest.py", "model.pth", ".editorconfig")


async def test_writing_a_file_that_another_program_obeys_requires_a_person_even_with_auto(
    machine: UserMachine,
):
    """Shows: S11."""
    machine.write_config(approvals="auto")
    writes = tool_call_reply(*(("write", {"path": name, "content": "x"}) for name in NAMES))
    async with machine.serve_models([writes, text_reply("Done.")]):
        run = await machine("run", "--json", "Write it")
        assert (run.code, run.json["waiting_for"]) == (6, "approval")
        approvals = (await machine("approvals", "list", "--json")).json
        assert sorted(each["resource"] for each in approvals) == sorted(
            str(machine.folder / name) for name in NAMES
        )
        assert all("obeys this file" in each["reason"] for each in approvals)
        assert not any((machine.folder / name).exists() for name in NAMES)
        allowed = next(each for each in approvals if each["resource"].endswith("AGENTS.md"))
        await machine("approvals", "answer", allowed["id"], "allow")
    assert [name for name in NAMES if (machine.folder / name).exists()] == ["AGENTS.md"]


async def test_ordinary_source_files_are_written_without_a_person(machine: UserMachine):
    machine.write_config(approvals="auto")
    writes = tool_call_reply(*(("write", {"path": name, "content": "x"}) for name in ORDINARY))
    async with machine.serve_models([writes, text_reply("Done.")]):
        assert (await machine("run", "--json", "Write them")).code == 0
    assert all((machine.folder / name).read_text() == "x" for name in ORDINARY)


async def test_a_command_changes_creates_and_moves_no_file_that_another_program_obeys(machine: UserMachine):
    """Shows: S11, S12, S13."""
    machine.write_config(approvals="auto")
    (machine.folder / "old").mkdir()
    for name in NAMES:
        (machine.folder / "old" / name).parent.mkdir(parents=True, exist_ok=True)
        (machine.folder / "old" / name).write_text("mine")
    commands = [
        *(f"echo x > old/{shlex.quote(name)}" for name in NAMES),
        "mv old older",
        "rm -rf old",
        *(f"mkdir -p new/$(dirname {name}) && echo x > new/{shlex.quote(name)}" for name in NAMES),
        "mkdir -p late && echo x > late/rules && mkdir late/rules.d && mv late .cursor",
        "echo x > plain && mv plain AGENTS.md",
        "ln -s plain CLAUDE.md",
        *(f"echo x > {name}" for name in ("Makefile", "model.pth")),
        "true",
    ]
    bash = tool_call_reply(("bash", {"command": "\n".join(commands)}))
    async with machine.serve_models([bash, text_reply("Done.")]):
        assert (await machine("run", "--json", "Run it")).code == 0
    assert [(machine.folder / "old" / name).read_text() for name in NAMES] == ["mine"] * len(NAMES)
    assert [name for name in NAMES if (machine.folder / "new" / name).exists()] == []
    assert [
        name
        for name in (".cursor", "AGENTS.md", "CLAUDE.md")
        if (machine.folder / name).is_symlink() or (machine.folder / name).exists()
    ] == []
    assert [(machine.folder / name).read_text() for name in ("Makefile", "model.pth")] == ["x\n"] * 2


CONFIGURED = {
    "core.hooksPath": ("tools/githooks", "tools/githooks/pre-commit"),
    "include.path": ("../settings/team.gitconfig", "settings/team.gitconfig"),
    "filter.clean.clean": ("sh ./scripts/clean.sh %f", "scripts/clean.sh"),
    "diff.odd.textconv": ("scripts/show", "scripts/show"),
    "alias.ship": ("!'bin/ship it' now && python3 ship.py", "ship.py"),
}
"""Settings of a repository, each with a value and a file that git executes or reads because of it."""


async def test_what_the_configuration_of_the_repository_makes_git_execute_requires_a_person(
    machine: UserMachine,
):
    """Shows: S11."""
    machine.write_config(approvals="auto")
    create_empty_files(machine, [path for _, path in CONFIGURED.values()])
    create_repository(machine.folder)
    for name, (value, _) in CONFIGURED.items():
        run_git(machine.folder, "config", name, value)
    paths = [path for _, path in CONFIGURED.values()]
    commands = [f"echo x > {path}; true" for path in paths]
    script = [
        tool_call_reply(
            *(("bash", {"command": each}) for each in [*commands, "mv tools old; echo x > ordinary"])
        ),
        tool_call_reply(*(("write", {"path": path, "content": "x"}) for path in paths)),
        text_reply("Done."),
    ]
    async with machine.serve_models(script):
        run = await machine("run", "--json", "Write it")
        assert (run.code, run.json["waiting_for"]) == (6, "approval")
        approvals = (await machine("approvals", "list", "--json")).json
    assert sorted(each["resource"] for each in approvals) == sorted(
        str(machine.folder / each) for each in paths
    )
    assert all("git obeys this file" in each["reason"] for each in approvals)
    assert {path: (machine.folder / path).read_text() for path in paths} == dict.fromkeys(paths, "")
    assert (machine.folder / "ordinary").read_text() == "x\n"


def create_empty_files(machine: UserMachine, paths: list[str]) -> None:
    for each in paths:
        (machine.folder / each).parent.mkdir(parents=True, exist_ok=True)
        (machine.folder / each).touch()
