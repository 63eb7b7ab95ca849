"""Files that other programs obey: an agent with `approvals = "auto"` changes none without a person."""

import shlex

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
