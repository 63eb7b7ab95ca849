"""Who has a skill, what that opens, and what becomes of its plugin's tools: the scope says it, and nobody else."""

from dataclasses import replace
from typing import Any

import pytest

from retinue.domain.agent import Agent, Exposure, Paths, ShellCommands
from retinue.domain.ceiling import OPERATOR, Bounds, Ceiling
from retinue.domain.permissions.scope import Scope
from retinue.domain.permissions.scope_builder import Ground, compile_scope
from retinue.domain.skill import Skill

BOUNDS = Bounds(closed=("/cfg/**", "/home/r/**"))


def skill(plugin: str) -> Skill:
    folder = f"/cfg/skills/{plugin}"
    return Skill(plugin=plugin, description="Does it.", folder=folder, cli=f"{folder}/{plugin}")


NOTES, LISTS, MAIL = skill("notes"), skill("lists"), skill("mail")


def compiled(*, bounds: Bounds = BOUNDS, **said: Any) -> Scope:
    wished: dict[str, Any] = {"tool_exposure": Exposure.MIXED} | said
    agent = Agent(name="a", **wished)
    return compile_scope(agent, Ground(root="/w"), bounds).having((NOTES, LISTS, MAIL))


def has(scope: Scope) -> list[str]:
    return [each.plugin for each in scope.shelf]


@pytest.mark.parametrize(
    ("said", "left"),
    [
        ({}, ["notes", "lists", "mail"]),
        ({"skill_allow": ("notes", "l*")}, ["notes", "lists"]),
        ({"skill_deny": ("l*",)}, ["notes", "mail"]),
        ({"skill_allow": ("*s",), "skill_deny": ("notes",)}, ["lists"]),
        ({"skill_allow": ()}, []),
        ({"tool_exposure": Exposure.SKILLS}, ["notes", "lists", "mail"]),
        ({"tool_exposure": Exposure.TOOLS, "skill_allow": ("*",)}, []),
        ({"tool_deny": ("bash",)}, []),
        ({"paths": Paths(deny=("/cfg/skills/mail/**",))}, ["notes", "lists"]),
        ({"paths": Paths(deny=("**/SKILL.md",))}, []),
        ({"paths": Paths(deny=("**/notes/notes",))}, ["lists", "mail"]),
    ],
)
def test_an_agent_has_the_skills_that_its_lists_allow_and_can_use(said: dict[str, Any], left: list[str]):
    """Deny after allow, by the plugin's name; a skill that could not be used is none."""
    assert has(compiled(**said)) == left


def test_a_ceiling_holds_skills_by_their_names_and_their_folders_by_what_it_denies():
    assert has(compiled(bounds=replace(BOUNDS, ceiling=Ceiling(by=OPERATOR, skills=("n*",))))) == ["notes"]
    above = Ceiling(by="above", read=("/w/**",), deny=("**/lists/**",))
    scope = compile_scope(
        Agent(name="a", tool_exposure=Exposure.SKILLS), Ground(root="/w", ceilings=(above,)), BOUNDS
    ).having((NOTES, LISTS))
    assert has(scope) == ["notes"]
    assert scope.path(NOTES.file).ok
    assert scope.skill(LISTS).rule == "the ceiling of above denies **/lists/**"
    inner = replace(scope, ceilings=(replace(above, deny=("**/secret",)),))
    assert (inner.path(NOTES.file).ok, inner.path("/cfg/skills/notes/secret").ok) == (True, False)
    assert above.facts() == Ceiling(by="above", read=("/w/**",), deny=("**/lists/**",)).facts()
    assert "skills" not in above.facts()


def test_a_skills_folder_is_open_for_reading_and_nothing_beside_it():
    scope = compiled(skill_allow=("notes",), paths=Paths(read=("/**",), write=("/**",)))
    for name in ("/cfg/skills/notes", NOTES.file, "/cfg/skills/notes/lib/a.py"):
        assert scope.path(name).ok, name
        assert scope.path(name, "write").rule == "always closed /cfg/**"
    for name in ("/cfg/config.toml", "/cfg/skills", LISTS.file, "/cfg/skills/notes2/SKILL.md", "/home/r/x"):
        assert scope.path(name).rule.startswith("always closed"), name
    assert scope.path("/cfg/skills/notes/.ssh/id").rule == "always closed **/.ssh/**"
    assert not compiled(tool_exposure=Exposure.TOOLS, paths=Paths(read=("/**",))).path(NOTES.file).ok


def test_a_child_that_lost_its_paths_and_an_agent_whose_commands_are_not_held_have_no_skills():
    agent = Agent(name="a", tool_exposure=Exposure.SKILLS)
    child = compile_scope(agent, Ground(root="/w", child=True), BOUNDS)
    assert child.skill(NOTES).rule == "no_scope_config"
    loose = replace(compiled(), unheld="the sandbox is none")
    assert loose.skill(NOTES).rule == "it has no bash to use it with"


def test_what_the_operator_denies_now_takes_skills_away():
    scope = compiled()
    assert has(scope.under(replace(BOUNDS, deny_tools=("bash",)))) == []
    assert has(scope.under(replace(BOUNDS, deny_paths=("/cfg/skills/mail/**",)))) == ["notes", "lists"]
    assert scope.under(BOUNDS) is scope


def test_tools_of_a_plugin_are_exposed_as_the_definition_says():
    for exposure, notes, others, none in (
        (Exposure.TOOLS, True, True, True),
        (Exposure.MIXED, False, True, True),
        (Exposure.SKILLS, False, False, True),
    ):
        scope = compiled(tool_exposure=exposure, skill_allow=("notes",))
        assert [scope.exposes(each).ok for each in ("notes", "mail", "")] == [notes, others, none], exposure
    mixed = compiled(tool_deny=("bash",))
    assert mixed.exposes("notes").ok, "what cannot be used as a skill stays a tool"


def test_skills_are_part_of_what_a_scope_is():
    assert compiled().hash != compiled(skill_allow=("notes",)).hash
    plain = Agent(name="a")
    before = compile_scope(plain, Ground(root="/w"), BOUNDS)
    assert before.having((NOTES,)).hash == before.hash


def test_a_users_skill_can_be_granted_by_its_name_and_a_projects_cannot():
    """What stands in a project's folder may be changed by who works there; the user's is closed to every agent."""
    theirs = replace(
        MAIL, folder="/w/.retinue/skills/mail", cli="/w/.retinue/skills/mail/mail", source="project"
    )
    rules = ShellCommands(allow=("notes list", "mail", "lists"))
    scope = compiled(shell_commands=rules, skill_deny=("lists",)).having((NOTES, LISTS, theirs))
    for text, granted in (
        (f"{NOTES.cli} list", True),
        (f"{NOTES.cli} add milk", False),
        (f"{NOTES.cli} list; rm x", False),
        ("/elsewhere/notes list", False),
        (LISTS.cli, False),
        (theirs.cli, False),
        ("mail", True),
    ):
        assert scope.grants_command(text).ok is granted, text
