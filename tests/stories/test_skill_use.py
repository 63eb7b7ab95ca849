"""Skills: folders in the configuration or a project, whose commands only agents with the skill can run."""

import re
from pathlib import Path

from user_machine import UserMachine, spawn_and_wait

import retinue
from retinue.testing.replies import text_reply, tool_call_reply

COMMAND = '#!/bin/sh\ncase "$1" in add) shift; echo "$*" >> notes.txt;; esac\ncat notes.txt\n'


@retinue.tool(effect="read", plugin="notes")
async def notes_list() -> str:
    """List the notes."""
    return "none"


@retinue.tool(effect="read", plugin="mail")
async def mail_read() -> str:
    """Read the mail."""
    return "none"


@retinue.tool(effect="read")
async def weather() -> str:
    """Report the weather."""
    return "fine"


TOOLS = [notes_list, mail_read, weather]
TOOL_NAMES = {"notes_list", "mail_read", "weather"}
SECTION = re.compile(r"^- (\S+): (.*)\n  SKILL\.md: (.*)\n  CLI: (.*)$", re.MULTILINE)


def write_skill(folder: Path, name: str, description: str = "Keeps notes in a file.") -> Path:
    folder /= name
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text(
        f"---\nname: {name}\ndescription: {description}\n---\n`{name} add WORDS`\n"
    )
    (folder / name).write_text(COMMAND)
    (folder / name).chmod(0o755)
    return folder


def prompt_skills(system: str) -> dict[str, tuple[str, ...]]:
    """Return the skills in a prompt, with their description and two paths."""
    return {name: tuple(rest) for name, *rest in SECTION.findall(system)}


async def test_only_agents_with_a_skill_can_run_its_command_through_bash(machine: UserMachine):
    """The tools, the prompt and the permissions agree.

    Shows: C063, C066, C073.
    """
    folder = Path(machine.env["RETINUE_CONFIG"]) / "skills"
    notes, mail = write_skill(folder, "notes"), write_skill(folder, "mail", "Reads\n  mail.")
    write_skill(folder, "mess")
    machine.write_config(approvals="auto")
    machine.write_agent("plain")
    machine.write_agent(
        "mixed", "tool_exposure: mixed\nskill_allow: [notes, 'm*']\nskill_deny: [mail, mess]\n"
    )
    machine.write_agent("keeper", "toolExposure: skills\nskillAllowlist: ['*']\nskillDenylist: [mess]\n")
    command = f"{notes}/notes add buy milk"
    read_calls = [("read", {"path": f"{notes}/SKILL.md"}), ("bash", {"command": f"cat {mail}/SKILL.md"})]
    script = [
        tool_call_reply(*read_calls, ("bash", {"command": command}), ("notes_list", {})),
        text_reply("Done."),
    ] * 3
    async with machine.serve_models(script) as server, machine.open(tools=TOOLS) as app:
        for agent in ("plain", "mixed", "keeper"):
            run = await app.run("Note it", agent=agent, workspace=machine.folder)
            assert run.status == "done", run.error
    plain, _, mixed, _, skills, _ = server.requests
    offered_tools = [TOOL_NAMES & set(machine.tool_names(each)) for each in (plain, mixed, skills)]
    assert offered_tools == [TOOL_NAMES, {"mail_read", "weather"}, {"weather"}]
    assert all("bash" in machine.tool_names(each) for each in (plain, mixed, skills))
    prompts = [machine.system_prompt(each) for each in (plain, mixed, skills)]
    assert "CLI" not in prompts[0]
    assert list(prompt_skills(prompts[1])) == ["notes"]
    skills_in_prompt = prompt_skills(prompts[2])
    assert skills_in_prompt == {
        "mail": ("Reads mail.", f"{mail}/SKILL.md", f"{mail}/mail"),
        "notes": ("Keeps notes in a file.", f"{notes}/SKILL.md", f"{notes}/notes"),
    }
    assert all(Path(path).is_file() for _, *paths in skills_in_prompt.values() for path in paths)
    for prompt in prompts[1:]:
        assert (
            prompt.index("Available tools:")
            < prompt.index("Available CLI skills:")
            < prompt.index("Available agents")
        )
        assert "through bash" in prompt
    answers = [machine.request_texts(request)[-4:] for request in server.requests[1::2]]
    assert ["always closed" in each[0] for each in answers] == [True, False, False]
    assert ["mail add WORDS" in each[1] for each in answers] == [False, False, True]
    assert ["buy milk" in each[2] for each in answers] == [False, True, True]
    assert answers[0][3] == "none"
    assert all('"tool_not_allowed"' in each[3] for each in answers[1:])
    assert "use the skill notes instead" in answers[1][3]
    assert (machine.folder / "notes.txt").read_text() == "buy milk\n" * 2


async def test_the_system_prompt_of_a_session_changes_only_when_a_skill_changes(machine: UserMachine):
    folder = Path(machine.env["RETINUE_CONFIG"]) / "skills"
    notes = write_skill(folder, "notes")
    machine.write_agent("keeper", "tool_exposure: mixed\n")
    async with (
        machine.serve_models([text_reply("One."), text_reply("Two."), text_reply("Three.")]) as server,
        machine.open() as app,
    ):
        first = await app.run("One", agent="keeper", workspace=machine.folder)
        await app.run("Two", session=first.slug)
        (notes / "SKILL.md").write_text("---\ndescription: Other.\n---\n")
        await app.run("Three", session=first.slug)
    one, two, three = map(machine.system_prompt, server.requests)
    assert one == two
    assert prompt_skills(three)["notes"][0] == "Other."


async def test_commands_show_the_skills_and_which_agents_have_them(machine: UserMachine):
    folder = Path(machine.env["RETINUE_CONFIG"]) / "skills"
    notes = write_skill(folder, "notes")
    (folder / "half").mkdir()
    machine.write_agent("keeper", "tool_exposure: mixed\nskill_deny: [deploy]\n")
    machine.write_agent("mute", "tool_exposure: skills\ntools: [read]\n")
    deploy = write_skill(machine.folder / ".retinue" / "skills", "deploy", "Puts it out.")
    before = await machine("skills", "list", "--json")
    assert [row["name"] for row in before.json] == ["notes"]
    assert f"{folder}/half: has no SKILL.md" in before.err
    assert "defines the skills deploy, but you have not trusted it" in before.err
    shown = await machine("trust", "--yes", ".")
    assert f"{deploy}/deploy" in shown.out
    assert "Read it before" in shown.out
    rows = {row["name"]: row for row in (await machine("skills", "list", "--agent", "keeper", "--json")).json}
    assert {name: (row["available"], row["rule"], row["source"]) for name, row in rows.items()} == {
        "deploy": (False, "skills: deny deploy", "project"),
        "notes": (True, "no list", "user"),
    }
    assert (await machine("skills", "show", "notes", "--json")).json == {
        "name": "notes", "description": "Keeps notes in a file.", "file": f"{notes}/SKILL.md",
        "cli": f"{notes}/notes", "source": "user", "tools": [], "agents": ["keeper"],
    }  # fmt: skip
    assert "did you mean 'notes'" in (await machine("skills", "show", "notse")).err
    mute = await machine("agents", "show", "mute")
    assert "not available: the skill notes (using it requires the tool bash)" in mute.out
    keeper = (await machine("agents", "show", "keeper", "--json")).json
    assert (keeper["skills"], keeper["unavailable_skills"]) == (["notes"], {"deploy": "skills: deny deploy"})


async def test_an_agent_of_a_project_has_its_skills_and_a_child_has_the_skills_of_its_own_definition(
    machine: UserMachine,
):
    """Skills of a parent or of the user are not inherited."""
    folder = Path(machine.env["RETINUE_CONFIG"]) / "skills"
    write_skill(folder, "notes")
    deploy = write_skill(machine.folder / ".retinue" / "skills", "deploy", "Puts it out.")
    agents = machine.folder / ".retinue" / "agents"
    agents.mkdir()
    (agents / "postman.md").write_text("---\ndescription: Posts.\ntool_exposure: skills\n---\nYou post.\n")
    machine.write_agent("boss", "tools: [PersistentAgent]\n")
    machine.write_agent("clerk", "tool_exposure: mixed\nskill_allow: [notes]\n")
    machine.write_config(approvals="auto", ceiling={"skills": ["notes", "deploy"]})
    command = tool_call_reply(
        ("bash", {"command": f"cd /tmp; {folder}/notes/notes add milk; cat {deploy}/SKILL.md"})
    )
    async with machine.serve_models(
        [text_reply("Hi."), command, text_reply("Done."), command, text_reply("Done.")]
    ) as server:
        assert (await machine("trust", "--yes", ".")).code == 0
        async with machine.open() as app:
            boss = await app.run("Hi", agent="boss", workspace=machine.folder)
            child = await spawn_and_wait(app, boss.slug, "clerk", "Note it")
            assert child.status == "done", child.error
            posted = await app.run("Post it", agent="postman", workspace=machine.folder)
            assert posted.status == "done", posted.error
    assert list(prompt_skills(machine.system_prompt(server.requests[1]))) == ["notes"]
    assert "milk" in machine.request_texts(server.requests[2])[-1]
    assert list(prompt_skills(machine.system_prompt(server.requests[3]))) == ["deploy"]
    last_result = machine.request_texts(server.requests[4])[-1]
    assert "deploy add WORDS" in last_result
    assert "milk" not in last_result
