"""Definitions that keep their limits inside maps of their own: what stands there counts as if it stood alone."""

import json
from pathlib import Path
from typing import Any

import pytest

from retinue.agents.importing.importer import DefinitionCheck, check_definitions, import_definitions
from retinue.agents.registry import FileAgentRegistry
from retinue.domain.agent import Agent, PathPatterns

GUARDED = """---
name: glance
metadata:
  description: Looks, and touches nothing.
  mood: calm
capabilities:
  allowed_tools: [Read, Grep]
  restricted_tools: [Bash, Task]
  patience: 9
constraints:
  allowed_paths: [src/**, /etc/**]
  forbidden_paths: [src/vault/]
---
Look around.
"""


def one(path: Path) -> DefinitionCheck:
    (found,) = check_definitions(path)
    return found


def verdicts(checked: DefinitionCheck) -> dict[str, tuple[str, str]]:
    return {each.field: (str(each.verdict), each.note) for each in checked.fields}


def brought(path: Path, target: Path) -> Agent:
    (found,) = import_definitions(path, target)
    assert found.target is not None, found.check.problems
    return FileAgentRegistry(user_dir=target).get(found.name).agent


def test_limits_inside_maps_are_held_and_the_maps_are_kept(tmp_path: Path):
    path = tmp_path / "glance.md"
    path.write_text(GUARDED)
    agent = brought(path, tmp_path / "agents")
    assert agent.tool_allow == ("read", "grep")
    assert agent.tool_deny == ("bash", "agent")
    assert agent.agent_deny == ("*",)
    assert agent.paths == PathPatterns(read=("src/**",), write=("src/**",), deny=("src/vault/**",))
    assert agent.description == "Looks, and touches nothing."
    assert agent.notes["capabilities"]["patience"] == 9
    assert agent.notes["metadata"]["mood"] == "calm"


def test_a_map_that_holds_limits_gets_one_verdict_which_names_them(tmp_path: Path):
    path = tmp_path / "glance.md"
    path.write_text(GUARDED)
    checked = one(path)
    said = verdicts(checked)
    assert [each.field for each in checked.fields] == ["name", "metadata", "capabilities", "constraints"]
    assert said["capabilities"][0] == "mapped"
    assert said["capabilities"][1] == (
        "allowed_tools is tool_allow (Read is read, Grep is grep); "
        "restricted_tools is tool_deny (Bash is bash, Task is agent; agent_deny: *); "
        "the rest is kept among the notes"
    )
    assert "left out, being outside the workspace: /etc/**" in said["constraints"][1]


@pytest.mark.parametrize(
    ("keys", "facts"),
    [
        ({"capabilities": {"tools": ["Read"], "model": "opus"}}, {"tool_allow": ("read",), "model": "anthropic:claude-opus-4-5"}),
        ({"configuration": {"tools": "Read, LS"}}, {"tool_allow": ("read", "ls")}),
        ({"security": {"readonly": True}}, {"tool_deny": ("write", "edit", "bash")}),
        ({"whatever": {"disallowedTools": ["Write"]}}, {"tool_deny": ("write",), "tool_allow": None}),
        ({"capabilities": {"network_access": False}}, {"tool_deny": ("web_fetch",)}),
        ({"capabilities": {"file_access": {"read_paths": ["./"]}}}, {"paths": PathPatterns(read=("./**",))}),
        ({"dependencies": {"tools": ["docker"]}}, {"tool_allow": None}),
        ({"routing": {"paths": ["/api/"]}}, {"paths": None}),
        ({"model": "haiku", "capabilities": {"model": "opus"}}, {"model": "anthropic:claude-haiku-4-5"}),
        ({"capabilities": {"tools": None}}, {"tool_allow": None}),
    ],
)  # fmt: skip
def test_only_what_speaks_of_rights_is_lifted(tmp_path: Path, keys: dict[str, Any], facts: dict[str, Any]):
    path = tmp_path / "sample.json"
    path.write_text(json.dumps({"name": "sample", "prompt": "Be good.", **keys}))
    assert [each.field for each in one(path).fields] == ["name", "prompt", *keys]
    agent = brought(path, tmp_path / "agents")
    assert {key: getattr(agent, key) for key in facts} == facts


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"capabilities": {"tools": 7}}, "capabilities.tools: must be a list, and is a number"),
        ({"constraints": {"allowed_paths": "src"}}, "constraints.allowed_paths: must be a list, and is text"),
        (
            {"tools": ["Read"], "capabilities": {"allowed_tools": ["Bash"]}},
            "capabilities.allowed_tools: is the same setting as 'tools'; keep one of the two",
        ),
        (
            {"tools": ["Read"], "config": {"tools": ["Bash"]}},
            "config.tools: is the same setting as 'tools'; keep one of the two",
        ),
        (
            {"tools": {"first": ["a"], "second": ["b"]}},
            "tools: groups the tools under names of its own; write one list of the tools it may use",
        ),
        (
            {"constraints": {"forbiden_paths": ["x"]}},
            "constraints.forbiden_paths: is not known; did you mean 'forbidden_paths'?",
        ),
        (
            {"Capabilities": {"Allowed_Tools": ["x"]}},
            "Capabilities.Allowed_Tools: is not known; did you mean 'allowed_tools'?",
        ),
        (
            {"policy": [{"first": {"disallowed_tools": ["Bash"]}}]},
            "policy[0].first.disallowed_tools: takes rights away and stands too deep; write it at the top",
        ),
    ],
)
def test_a_limit_inside_a_map_that_is_not_clear_is_a_problem_named_by_its_place(
    tmp_path: Path, keys: dict[str, Any], problem: str
):
    path = tmp_path / "sample.json"
    path.write_text(json.dumps({"name": "sample", **keys}))
    assert one(path).problems == (problem,)
    assert import_definitions(path, tmp_path / "agents")[0].target is None


def test_an_agent_whose_prompt_cannot_be_read_is_not_imported_without_it(tmp_path: Path):
    path = tmp_path / "sample.json"
    path.write_text(json.dumps({"name": "sample", "instructions": {"base": "Be good."}}))
    assert "instructions: must be text" in one(path).problems[0]
    path.write_text(json.dumps({"name": "sample", "instructions": "Be good.", "system": "Be bad."}))
    assert one(path).problems == ("system: is the same setting as 'instructions'; keep one of the two",)


def test_a_prompt_that_is_the_name_of_a_file_is_that_file(tmp_path: Path):
    (tmp_path / "long.md").write_text("Be very good.\n")
    path = tmp_path / "sample.json"
    path.write_text(json.dumps({"name": "sample", "prompt": "long.md"}))
    assert brought(path, tmp_path / "agents").prompt == "Be very good."
    path.write_text(json.dumps({"name": "sample", "prompt": "gone.md"}))
    assert "there is no file" in one(path).problems[0]
