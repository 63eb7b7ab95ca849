"""Skills in a scope: which agents have a skill, which files it opens, and which plugin tools stay visible."""

from typing import Any

import pytest
from msgspec.structs import replace

from retinue.domain.agent import Agent, PathPatterns, ShellCommands, ToolExposure
from retinue.domain.ceiling import OPERATOR, Ceiling, OperatorPolicy
from retinue.domain.permissions.scope import Scope
from retinue.domain.permissions.scope_builder import ScopeInputs, build_scope
from retinue.domain.skill import Skill

BOUNDS = OperatorPolicy(retinue_paths=("/cfg/**", "/home/r/**"))


def skill(plugin: str) -> Skill:
    folder = f"/cfg/skills/{plugin}"
    return Skill(name=plugin, description="Does it.", folder=folder, cli=f"{folder}/{plugin}")


NOTES, LISTS, MAIL = skill("notes"), skill("lists"), skill("mail")


def scope_with_skills(*, bounds: OperatorPolicy = BOUNDS, **fields: Any) -> Scope:
    agent_fields: dict[str, Any] = {"tool_exposure": ToolExposure.MIXED} | fields
    agent = Agent(name="a", **agent_fields)
    return build_scope(agent, ScopeInputs(root="/w"), bounds).with_skills((NOTES, LISTS, MAIL))


def skill_names(scope: Scope) -> list[str]:
    return [each.name for each in scope.available_skills]


@pytest.mark.parametrize(
    ("fields", "expected"),
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
def test_an_agent_has_the_skills_that_its_lists_allow_and_it_can_use(
    fields: dict[str, Any], expected: list[str]
):
    """The deny list applies after the allow list, by plugin name; an unusable skill is not listed."""
    assert skill_names(scope_with_skills(**fields)) == expected


def test_a_ceiling_limits_skills_by_name_and_by_denied_paths():
    assert skill_names(
        scope_with_skills(bounds=replace(BOUNDS, ceiling=Ceiling(set_by=OPERATOR, skills=("n*",))))
    ) == ["notes"]
    above = Ceiling(set_by="above", read=("/w/**",), deny=("**/lists/**",))
    scope = build_scope(
        Agent(name="a", tool_exposure=ToolExposure.SKILLS), ScopeInputs(root="/w", ceilings=(above,)), BOUNDS
    ).with_skills((NOTES, LISTS))
    assert skill_names(scope) == ["notes"]
    assert scope.check_path(NOTES.file).ok
    assert scope.check_skill(LISTS).rule == "the ceiling of above denies **/lists/**"
    file_denied = replace(scope, ceilings=(replace(above, deny=("**/secret",)),))
    assert (file_denied.check_path(NOTES.file).ok, file_denied.check_path("/cfg/skills/notes/secret").ok) == (
        True,
        False,
    )
    assert above.as_json() == Ceiling(set_by="above", read=("/w/**",), deny=("**/lists/**",)).as_json()
    assert "skills" not in above.as_json()


def test_only_the_folder_of_an_available_skill_is_readable():
    scope = scope_with_skills(skill_allow=("notes",), paths=PathPatterns(read=("/**",), write=("/**",)))
    for name in ("/cfg/skills/notes", NOTES.file, "/cfg/skills/notes/lib/a.py"):
        assert scope.check_path(name).ok, name
        assert scope.check_path(name, "write").rule == "always closed /cfg/**"
    for name in ("/cfg/config.toml", "/cfg/skills", LISTS.file, "/cfg/skills/notes2/SKILL.md", "/home/r/x"):
        assert scope.check_path(name).rule.startswith("always closed"), name
    assert scope.check_path("/cfg/skills/notes/.ssh/id").rule == "always closed **/.ssh/**"
    assert (
        not scope_with_skills(tool_exposure=ToolExposure.TOOLS, paths=PathPatterns(read=("/**",)))
        .check_path(NOTES.file)
        .ok
    )


def test_a_child_without_paths_and_an_agent_without_a_sandbox_have_no_skills():
    agent = Agent(name="a", tool_exposure=ToolExposure.SKILLS)
    child = build_scope(agent, ScopeInputs(root="/w", is_child=True), BOUNDS)
    assert child.check_skill(NOTES).rule == "no_scope_config"
    unsandboxed = replace(scope_with_skills(), shell_blocked_reason="the sandbox is none")
    assert unsandboxed.check_skill(NOTES).rule == "using it requires the tool bash"


def test_an_operator_denial_removes_skills():
    def skills_under(policy: OperatorPolicy) -> list[str]:
        return skill_names(scope_with_skills(bounds=policy))

    assert skills_under(replace(BOUNDS, deny_tools=("bash",))) == []
    assert skills_under(replace(BOUNDS, deny_paths=("/cfg/skills/mail/**",))) == ["notes", "lists"]


def test_plugin_tools_are_visible_according_to_the_tool_exposure():
    for exposure, notes, others, none in (
        (ToolExposure.TOOLS, True, True, True),
        (ToolExposure.MIXED, False, True, True),
        (ToolExposure.SKILLS, False, False, True),
    ):
        scope = scope_with_skills(tool_exposure=exposure, skill_allow=("notes",))
        assert [scope.check_plugin_exposed(each).ok for each in ("notes", "mail", "")] == [
            notes,
            others,
            none,
        ], exposure
    without_bash = scope_with_skills(tool_deny=("bash",))
    assert without_bash.check_plugin_exposed("notes").ok, "what cannot be used as a skill stays a tool"


def test_the_scope_hash_includes_the_skills():
    assert scope_with_skills().hash != scope_with_skills(skill_allow=("notes",)).hash
    plain = Agent(name="a")
    before = build_scope(plain, ScopeInputs(root="/w"), BOUNDS)
    assert before.with_skills((NOTES,)).hash == before.hash


def test_a_user_skill_can_be_preapproved_by_name_and_a_project_skill_cannot():
    """Agents may change files in a project folder; the user's skill folder is closed to every agent."""
    project_skill = replace(
        MAIL, folder="/w/.retinue/skills/mail", cli="/w/.retinue/skills/mail/mail", source="project"
    )
    commands = ShellCommands(allow=("notes list", "mail", "lists"))
    scope = scope_with_skills(shell_commands=commands, skill_deny=("lists",)).with_skills(
        (NOTES, LISTS, project_skill)
    )
    for text, preapproved in (
        (f"{NOTES.cli} list", True),
        (f"{NOTES.cli} add milk", False),
        (f"{NOTES.cli} list; rm x", False),
        ("/elsewhere/notes list", False),
        (LISTS.cli, False),
        (project_skill.cli, False),
        ("mail", True),
    ):
        assert scope.check_command_preapproved(text).ok is preapproved, text
