"""Who has a skill, what that opens, and what becomes of its plugin's tools: the scope says it, and nobody else."""

from typing import Any

import pytest
from msgspec.structs import replace

from retinue.domain.agent import Agent, PathPatterns, ShellCommands, ToolExposure
from retinue.domain.ceiling import OPERATOR, Ceiling, OperatorPolicy
from retinue.domain.permissions.scope import Scope
from retinue.domain.permissions.scope_builder import ScopeInputs, build_scope
from retinue.domain.skill import Skill

BOUNDS = OperatorPolicy(closed_paths=("/cfg/**", "/home/r/**"))


def skill(plugin: str) -> Skill:
    folder = f"/cfg/skills/{plugin}"
    return Skill(name=plugin, description="Does it.", folder=folder, cli=f"{folder}/{plugin}")


NOTES, LISTS, MAIL = skill("notes"), skill("lists"), skill("mail")


def compiled(*, bounds: OperatorPolicy = BOUNDS, **said: Any) -> Scope:
    wished: dict[str, Any] = {"tool_exposure": ToolExposure.MIXED} | said
    agent = Agent(name="a", **wished)
    return build_scope(agent, ScopeInputs(root="/w"), bounds).with_skills((NOTES, LISTS, MAIL))


def has(scope: Scope) -> list[str]:
    return [each.name for each in scope.available_skills]


@pytest.mark.parametrize(
    ("said", "left"),
    [
        ({}, ["notes", "lists", "mail"]),
        ({"skill_allow": ("notes", "l*")}, ["notes", "lists"]),
        ({"skill_deny": ("l*",)}, ["notes", "mail"]),
        ({"skill_allow": ("*s",), "skill_deny": ("notes",)}, ["lists"]),
        ({"skill_allow": ()}, []),
        ({"tool_exposure": ToolExposure.SKILLS}, ["notes", "lists", "mail"]),
        ({"tool_exposure": ToolExposure.TOOLS, "skill_allow": ("*",)}, []),
        ({"tool_deny": ("bash",)}, []),
        ({"paths": PathPatterns(deny=("/cfg/skills/mail/**",))}, ["notes", "lists"]),
        ({"paths": PathPatterns(deny=("**/SKILL.md",))}, []),
        ({"paths": PathPatterns(deny=("**/notes/notes",))}, ["lists", "mail"]),
    ],
)
def test_an_agent_has_the_skills_that_its_lists_allow_and_can_use(said: dict[str, Any], left: list[str]):
    """Deny after allow, by the plugin's name; a skill that could not be used is none."""
    assert has(compiled(**said)) == left


def test_a_ceiling_holds_skills_by_their_names_and_their_folders_by_what_it_denies():
    assert has(compiled(bounds=replace(BOUNDS, ceiling=Ceiling(set_by=OPERATOR, skills=("n*",))))) == [
        "notes"
    ]
    above = Ceiling(set_by="above", read=("/w/**",), deny=("**/lists/**",))
    scope = build_scope(
        Agent(name="a", tool_exposure=ToolExposure.SKILLS), ScopeInputs(root="/w", ceilings=(above,)), BOUNDS
    ).with_skills((NOTES, LISTS))
    assert has(scope) == ["notes"]
    assert scope.check_path(NOTES.file).ok
    assert scope.check_skill(LISTS).rule == "the ceiling of above denies **/lists/**"
    inner = replace(scope, ceilings=(replace(above, deny=("**/secret",)),))
    assert (inner.check_path(NOTES.file).ok, inner.check_path("/cfg/skills/notes/secret").ok) == (True, False)
    assert above.as_json() == Ceiling(set_by="above", read=("/w/**",), deny=("**/lists/**",)).as_json()
    assert "skills" not in above.as_json()


def test_a_skills_folder_is_open_for_reading_and_nothing_beside_it():
    scope = compiled(skill_allow=("notes",), paths=PathPatterns(read=("/**",), write=("/**",)))
    for name in ("/cfg/skills/notes", NOTES.file, "/cfg/skills/notes/lib/a.py"):
        assert scope.check_path(name).ok, name
        assert scope.check_path(name, "write").rule == "always closed /cfg/**"
    for name in ("/cfg/config.toml", "/cfg/skills", LISTS.file, "/cfg/skills/notes2/SKILL.md", "/home/r/x"):
        assert scope.check_path(name).rule.startswith("always closed"), name
    assert scope.check_path("/cfg/skills/notes/.ssh/id").rule == "always closed **/.ssh/**"
    assert (
        not compiled(tool_exposure=ToolExposure.TOOLS, paths=PathPatterns(read=("/**",)))
        .check_path(NOTES.file)
        .ok
    )


def test_a_child_that_lost_its_paths_and_an_agent_whose_commands_are_not_held_have_no_skills():
    agent = Agent(name="a", tool_exposure=ToolExposure.SKILLS)
    child = build_scope(agent, ScopeInputs(root="/w", is_child=True), BOUNDS)
    assert child.check_skill(NOTES).rule == "no_scope_config"
    loose = replace(compiled(), shell_blocked_reason="the sandbox is none")
    assert loose.check_skill(NOTES).rule == "it has no bash to use it with"


def test_what_the_operator_denies_now_takes_skills_away():
    scope = compiled()
    assert has(scope.with_operator_denials(replace(BOUNDS, deny_tools=("bash",)))) == []
    assert has(scope.with_operator_denials(replace(BOUNDS, deny_paths=("/cfg/skills/mail/**",)))) == [
        "notes",
        "lists",
    ]
    assert scope.with_operator_denials(BOUNDS) is scope


def test_tools_of_a_plugin_are_exposed_as_the_definition_says():
    for exposure, notes, others, none in (
        (ToolExposure.TOOLS, True, True, True),
        (ToolExposure.MIXED, False, True, True),
        (ToolExposure.SKILLS, False, False, True),
    ):
        scope = compiled(tool_exposure=exposure, skill_allow=("notes",))
        assert [scope.check_plugin_exposed(each).ok for each in ("notes", "mail", "")] == [
            notes,
            others,
            none,
        ], exposure
    mixed = compiled(tool_deny=("bash",))
    assert mixed.check_plugin_exposed("notes").ok, "what cannot be used as a skill stays a tool"


def test_skills_are_part_of_what_a_scope_is():
    assert compiled().hash != compiled(skill_allow=("notes",)).hash
    plain = Agent(name="a")
    before = build_scope(plain, ScopeInputs(root="/w"), BOUNDS)
    assert before.with_skills((NOTES,)).hash == before.hash


def test_a_users_skill_can_be_granted_by_its_name_and_a_projects_cannot():
    """What stands in a project's folder may be changed by who works there; the user's is closed to every agent."""
    theirs = replace(
        MAIL, folder="/w/.retinue/skills/mail", cli="/w/.retinue/skills/mail/mail", source="project"
    )
    rules = ShellCommands(allow=("notes list", "mail", "lists"))
    scope = compiled(shell_commands=rules, skill_deny=("lists",)).with_skills((NOTES, LISTS, theirs))
    for text, granted in (
        (f"{NOTES.cli} list", True),
        (f"{NOTES.cli} add milk", False),
        (f"{NOTES.cli} list; rm x", False),
        ("/elsewhere/notes list", False),
        (LISTS.cli, False),
        (theirs.cli, False),
        ("mail", True),
    ):
        assert scope.check_command_preapproved(text).ok is granted, text
