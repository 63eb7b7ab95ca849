"""Import of definitions with restrictions inside nested maps."""

import json
from pathlib import Path
from typing import Any

import pytest
from agent_import import check_definition, field_verdicts, import_agent

from retinue.agents.importing.importer import import_definitions
from retinue.domain.agent import PathPatterns

RESTRICTED_AGENT = """---
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


def test_restrictions_in_nested_maps_are_applied_and_the_maps_are_kept_as_notes(tmp_path: Path):
    path = tmp_path / "glance.md"
    path.write_text(RESTRICTED_AGENT)
    agent = import_agent(path, tmp_path / "agents")
    assert agent.tool_allow == ("read", "grep")
    assert agent.tool_deny == ("bash", "agent")
    assert agent.agent_deny == ("*",)
    assert agent.paths == PathPatterns(read=("src/**",), write=("src/**",), deny=("src/vault/**",))
    assert agent.description == "Looks, and touches nothing."
    assert agent.notes["capabilities"]["patience"] == 9
    assert agent.notes["metadata"]["mood"] == "calm"


def test_a_map_with_restrictions_gets_one_verdict_that_names_them(tmp_path: Path):
    path = tmp_path / "glance.md"
    path.write_text(RESTRICTED_AGENT)
    check = check_definition(path)
    verdicts = field_verdicts(check)
    assert [each.field for each in check.fields] == ["name", "metadata", "capabilities", "constraints"]
    assert verdicts["capabilities"][0] == "mapped"
    assert verdicts["capabilities"][1] == (
        "allowed_tools is tool_allow (Read is read, Grep is grep); "
        "restricted_tools is tool_deny (Bash is bash, Task is agent; agent_deny: *); "
        "the rest is stored in the notes"
    )
    assert "left out, because outside the workspace: /etc/**" in verdicts["constraints"][1]


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"capabilities": {"tools": ["Read"], "model": "opus"}}, {"tool_allow": ("read",), "model": "anthropic:claude-opus-5-5"}),
        ({"configuration": {"tools": "Read, LS"}}, {"tool_allow": ("read", "ls")}),
        ({"security": {"readonly": True}}, {"tool_deny": ("write", "edit", "bash")}),
        ({"whatever": {"disallowedTools": ["Write"]}}, {"tool_deny": ("write",), "tool_allow": None}),
        ({"capabilities": {"network_access": False}}, {"tool_deny": ("web_fetch",)}),
        ({"capabilities": {"file_access": {"read_paths": ["./"]}}}, {"paths": PathPatterns(read=("./**",))}),
        ({"dependencies": {"tools": ["docker"]}}, {"tool_allow": None}),
        ({"routing": {"paths": ["/api/"]}}, {"paths": None}),
        ({"model": "haiku", "capabilities": {"model": "opus"}}, {"model": "anthropic:claude-haiku-5-5"}),
        ({"capabilities": {"tools": None}}, {"tool_allow": None}),
    ],
)  # fmt: skip
def test_only_keys_about_permissions_are_read_from_nested_maps(
    tmp_path: Path, keys: dict[str, Any], expected: dict[str, Any]
):
    path = tmp_path / "sample.json"
    path.write_text(json.dumps({"name": "sample", "prompt": "Be good.", **keys}))
    assert [each.field for each in check_definition(path).fields] == ["name", "prompt", *keys]
    agent = import_agent(path, tmp_path / "agents")
    assert {key: getattr(agent, key) for key in expected} == expected


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"capabilities": {"tools": 7}}, "capabilities.tools: must be a list, but is a number"),
        ({"constraints": {"allowed_paths": "src"}}, "constraints.allowed_paths: must be a list, but is text"),
        (
            {"tools": ["Read"], "capabilities": {"allowed_tools": ["Bash"]}},
            "capabilities.allowed_tools: is the same setting as 'tools'; remove one of the two",
        ),
        (
            {"tools": ["Read"], "config": {"tools": ["Bash"]}},
            "config.tools: is the same setting as 'tools'; remove one of the two",
        ),
        (
            {"tools": {"first": ["a"], "second": ["b"]}},
            "tools: groups the tools under other names; write one list of the allowed tools",
        ),
        (
            {"constraints": {"forbiden_paths": ["x"]}},
            "constraints.forbiden_paths: is not a known key; did you mean 'forbidden_paths'?",
        ),
        (
            {"Capabilities": {"Allowed_Tools": ["x"]}},
            "Capabilities.Allowed_Tools: is not a known key; did you mean 'allowed_tools'?",
        ),
        (
            {"policy": [{"first": {"disallowed_tools": ["Bash"]}}]},
            "policy[0].first.disallowed_tools: limits permissions, but is nested too deeply; move it to the top level",
        ),
    ],
)
def test_an_unclear_restriction_in_a_map_is_a_problem_with_its_path(
    tmp_path: Path, keys: dict[str, Any], problem: str
):
    path = tmp_path / "sample.json"
    path.write_text(json.dumps({"name": "sample", **keys}))
    assert check_definition(path).problems == (problem,)
    assert import_definitions(path, tmp_path / "agents")[0].target is None


def test_an_invalid_or_duplicate_prompt_is_a_problem(tmp_path: Path):
    path = tmp_path / "sample.json"
    path.write_text(json.dumps({"name": "sample", "instructions": {"base": "Be good."}}))
    assert "instructions: must be text" in check_definition(path).problems[0]
    path.write_text(json.dumps({"name": "sample", "instructions": "Be good.", "system": "Be bad."}))
    assert check_definition(path).problems == (
        "system: is the same setting as 'instructions'; remove one of the two",
    )


def test_a_prompt_that_is_a_file_name_is_read_from_that_file(tmp_path: Path):
    (tmp_path / "long.md").write_text("Be very good.\n")
    path = tmp_path / "sample.json"
    path.write_text(json.dumps({"name": "sample", "prompt": "long.md"}))
    assert import_agent(path, tmp_path / "agents").prompt == "Be very good."
    path.write_text(json.dumps({"name": "sample", "prompt": "gone.md"}))
    assert "does not exist" in check_definition(path).problems[0]
