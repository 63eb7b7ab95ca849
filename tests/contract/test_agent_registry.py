"""The agent registry: built-in, user and inline definitions, their merging and their checks."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from retinue.agents.definition_file import parse_preset
from retinue.agents.fields import interpret_fields
from retinue.agents.registry import BUILT_IN, INLINE, FileAgentRegistry, InlineDefinition
from retinue.domain.agent import Agent, Role, preset_hash
from retinue.domain.rules import Rule
from retinue.errors import BadDefinition, NotFound, Refused


class AgentFolder:
    """A user's folder of definitions, and the registry that reads it."""

    def __init__(
        self,
        root: Path,
        *,
        inline: Sequence[InlineDefinition] = (),
        ceiling: Mapping[str, Any] | None = None,
    ) -> None:
        self.dir = root / "agents"
        self.dir.mkdir(parents=True, exist_ok=True)
        self.registry = FileAgentRegistry(user_dir=self.dir, inline=inline, ceiling=ceiling)

    def write(self, name: str, text: str) -> Path:
        path = self.dir / name
        path.write_text(text)
        return path

    def agent(self, name: str) -> Agent:
        return self.registry.get(name).agent


@pytest.fixture
def folder(tmp_path: Path) -> AgentFolder:
    return AgentFolder(tmp_path)


def make_inline(**keys: Any) -> InlineDefinition:
    partial, readings = interpret_fields(keys)
    assert not [reading for reading in readings if reading.error]
    return InlineDefinition(name=partial["name"], partial=partial)


def test_a_new_file_in_the_folder_is_an_agent_at_once(folder: AgentFolder):
    """Shows: B005, B006."""
    assert "scout" not in folder.registry.agent_names()
    folder.write("scout.md", "---\ndescription: Looks\ntools: [read]\n---\nLook.\n")
    assert "scout" in folder.registry.agent_names()
    assert folder.agent("scout") == Agent(
        name="scout", description="Looks", tool_allow=("read",), prompt="Look."
    )


def test_an_edited_file_is_read_again_and_an_unchanged_one_is_not(folder: AgentFolder):
    """Shows: B011, B043."""
    path = folder.write("scout.md", "---\nname: scout\n---\nFirst.\n")
    assert folder.agent("scout").prompt == "First."
    reads = -1
    while reads != folder.registry.files_read:  # until the stamp is old enough to be trusted
        reads = folder.registry.files_read
        assert folder.agent("scout").prompt == "First."
    assert folder.agent("scout").prompt == "First."
    assert folder.registry.files_read == reads
    for prompt in ("Secnd.", "Third.", "Forth."):
        # Same inode, same size, and perhaps the same file-system timestamp.
        path.write_text(f"---\nname: scout\n---\n{prompt}\n")
        assert folder.agent("scout").prompt == prompt
    stats = path.stat()
    path.write_text("---\nname: scout\n---\nFifth.\n")
    os.utime(path, ns=(stats.st_atime_ns, stats.st_mtime_ns))
    assert folder.agent("scout").prompt == "Fifth."
    path.unlink()
    with pytest.raises(NotFound):
        folder.agent("scout")


def test_a_saved_definition_is_used_at_once_and_an_invalid_one_refused(folder: AgentFolder):
    """Shows: B044."""
    folder.registry.save("scout", "---\nname: scout\n---\nOne.\n")
    assert folder.agent("scout").prompt == "One."
    folder.registry.save("scout", "---\nname: scout\n---\nTwo.\n")
    assert folder.agent("scout").prompt == "Two."
    with pytest.raises(BadDefinition, match="has the name 'other'"):
        folder.registry.save("scout", "---\nname: other\n---\n")
    with pytest.raises(BadDefinition):
        folder.registry.save("scout", "---\ntolls: x\n---\n")
    assert folder.agent("scout").prompt == "Two."
    assert [each.name for each in folder.dir.iterdir()] == ["scout.md"]


def test_an_unknown_agent_is_not_found_and_a_similar_name_is_suggested(folder: AgentFolder):
    """Shows: B008."""
    with pytest.raises(NotFound) as error_info:
        folder.registry.get("resercher")
    assert str(error_info.value) == "Agent 'resercher' not found; did you mean 'researcher'?"
    with pytest.raises(NotFound, match=r"^Agent 'zzzzzz' not found$"):
        folder.registry.get("zzzzzz")


@pytest.mark.parametrize("name", ["../general", "a/b", ".", "", "General", "x\x00", "x\n"])
def test_an_invalid_agent_name_is_not_found(folder: AgentFolder, name: str):
    """Shows: D07."""
    with pytest.raises(NotFound):
        folder.registry.get(name)


def test_a_broken_file_is_not_listed_and_its_problem_is_reported(folder: AgentFolder):
    """Shows: B007, D13."""
    path = folder.write("scout.md", "---\nname: scout\ntolls: [read]\n---\n")
    assert "scout" not in folder.registry.agent_names()
    with pytest.raises(
        NotFound, match=r"^Agent 'scout' not found: .*scout\.md:3: tolls: is not a known field"
    ):
        folder.registry.get("scout")
    assert [str(each) for each in folder.registry.find_broken()] == [
        f"{path}:3: tolls: is not a known field; did you mean 'tools'?"
    ]


def test_a_broken_file_never_falls_back_to_the_built_in_agent(folder: AgentFolder):
    folder.write("general.md", "---\ntools: [read\n---\nMine.\n")
    with pytest.raises(NotFound, match="Agent 'general' not found"):
        folder.registry.get("general")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("scout.md", "---\nname: other\n---\n", "the file name 'scout' and the agent's name 'other'"),
        ("My Agent.md", "---\n---\n", "is not a valid agent name"),
        ("scout.md", "just words", "has no front matter"),
        ("scout.json", "[1]", "must be one JSON object"),
        ("scout.json", '{"name": "scout", "name": "scout"}', "'name' occurs twice"),
        ("scout.json", "[" * 50_000, "nested deeper than 32 levels"),
        ("scout.json", '{"temperature": NaN}', "NaN is not a valid number"),
        ("scout.json", "{,}", "is not valid JSON"),
        ("scout.md", "---\n---\n" + "x" * 300_000, "is larger than 256 KiB"),
        ("scout.md", "---\na: " + "x" * 70_000 + "\n---\n", "is larger than 64 KiB"),
        ("scout.md", "---\nname: scout\n---\n\x00", "contains a NUL character"),
    ],
)
def test_a_broken_definition_is_reported_in_one_line_with_its_path(
    folder: AgentFolder, name: str, text: str, message: str
):
    """Shows: D06."""
    folder.write(name, text)
    (broken,) = folder.registry.find_broken()
    assert message in str(broken)
    assert str(folder.dir / name) in str(broken)
    assert "\n" not in str(broken)


def test_a_binary_file_is_reported_as_no_utf8_text(folder: AgentFolder):
    """Shows: D06."""
    (folder.dir / "scout.md").write_bytes(b"---\nname: \xff\xfe\n---\n")
    (broken,) = folder.registry.find_broken()
    assert broken.problem == "is not UTF-8 text; save it in UTF-8"


def test_links_and_special_files_are_not_read(folder: AgentFolder, tmp_path: Path):
    """Shows: D12."""
    secret = tmp_path / "secret.md"
    secret.write_text("---\nname: soft\n---\nSecret.\n")
    (folder.dir / "soft.md").symlink_to(secret)
    os.link(secret, folder.dir / "hard.md")
    os.mkfifo(folder.dir / "pipe.md")
    (folder.dir / "folder.md").mkdir()
    problems = sorted(str(each).removeprefix(f"{folder.dir}/") for each in folder.registry.find_broken())
    assert problems == [
        "folder.md: is not a regular file",
        "hard.md: has a second name (hard link), so it is not read; replace it with a copy",
        "pipe.md: is not a regular file",
        "soft.md: is a symbolic link, which is not followed; replace it with the file itself",
    ]
    assert not {"soft", "hard", "pipe", "folder"} & set(folder.registry.agent_names())


def test_a_markdown_and_a_json_file_with_the_same_name_are_refused(folder: AgentFolder):
    folder.write("scout.md", "---\n---\nHi\n")
    folder.write("scout.json", "{}")
    assert "scout.json in the same folder defines the same agent" in str(folder.registry.find_broken()[0])


def test_fields_are_merged_and_each_records_its_source(tmp_path: Path):
    """Shows: D007, T05."""
    folder = AgentFolder(
        tmp_path, inline=[make_inline(id="oracle", model="gpt-5", triggers={"slash": ["/o"]}, tools=None)]
    )
    path = folder.write(
        "oracle.json", json.dumps({"temperature": 0.1, "defaultWorkspace": {"allowWrites": False}})
    )
    definition = folder.registry.get("oracle")
    assert (definition.agent.model, definition.agent.temperature, definition.agent.tool_allow) == (
        "gpt-5",
        0.1,
        None,
    )
    assert definition.agent.triggers.slash == ("/o",)
    assert definition.agent.prompt.startswith("You are asked when another agent is stuck")
    assert definition.agent.roles == (Role.SUBTASK,)
    assert {
        key: definition.sources[key] for key in ("model", "temperature", "tool_allow", "prompt", "roles")
    } == {
        "model": INLINE,
        "temperature": str(path),
        "tool_allow": INLINE,
        "prompt": BUILT_IN,
        "roles": BUILT_IN,
    }
    assert parse_preset(definition.preset, "preset.md") == definition.agent


def test_front_matter_alone_changes_fields_and_a_body_replaces_the_whole_definition(folder: AgentFolder):
    folder.write("explorer.md", "---\nmodel: gpt-5\n---\n")
    assert folder.agent("explorer").tool_allow == ("read", "ls", "glob", "grep")
    folder.write("explorer.md", "---\nmodel: gpt-5\n---\nMine alone.\n")
    definition = folder.registry.get("explorer")
    assert definition.agent == Agent(name="explorer", model="gpt-5", prompt="Mine alone.")


def test_the_preset_of_a_single_markdown_file_is_its_exact_text(folder: AgentFolder):
    text = "---\n# mine\nbackend: Claude\nmodel:   claude-3-7-sonnet-20250219\ntemperature: 0.3\n---\n\nWork.  \n"
    folder.write("executor.md", text)
    definition = folder.registry.get("executor")
    assert (definition.preset, definition.hash) == (text, preset_hash(text))
    assert (definition.agent.driver, definition.agent.model, definition.agent.temperature) == (
        "anthropic",
        "claude-3-7-sonnet-20250219",
        0.3,
    )
    assert folder.registry.get("planner").preset == folder.registry.built_in_definitions()["planner"]


def test_an_extending_agent_merges_nested_fields_and_null_clears_a_field(folder: AgentFolder):
    """Shows: C094, T05."""
    folder.write(
        "base.md",
        "---\ndescription: Base\ntools: [read, write]\ntemperature: 0.5\npaths:\n  read: [/a]\n  deny: [/b]\n---\nBase words.\n",
    )
    folder.write("child.md", "---\nextends: base\ntemperature: null\npaths:\n  read: [/c]\n---\n")
    definition = folder.registry.get("child")
    child = definition.agent
    assert (child.name, child.prompt, child.tool_allow, child.temperature) == (
        "child",
        "Base words.",
        ("read", "write"),
        None,
    )
    assert child.paths is not None
    assert (child.paths.read, child.paths.deny) == (("/c",), ("/b",))
    assert definition.sources["description"] == str(folder.dir / "base.md")
    assert parse_preset(definition.preset, "preset.md") == child
    folder.write("base.md", "---\ntools: [read]\n---\nNew words.\n")
    assert folder.agent("child").prompt == "New words."


def test_a_cycle_of_extends_is_an_error_with_the_chain(folder: AgentFolder):
    """Shows: C094."""
    for name, base in (("a", "b"), ("b", "c"), ("c", "a")):
        folder.write(f"{name}.md", f"---\nextends: {base}\n---\n")
    with pytest.raises(NotFound, match="extends itself: a → b → c → a"):
        folder.registry.get("a")
    folder.write("d.md", "---\nextends: nobody\n---\n")
    with pytest.raises(NotFound, match="extends 'nobody', but there is no such agent"):
        folder.registry.get("d")


def test_the_prompt_may_be_in_a_file_next_to_the_definition(folder: AgentFolder):
    """Shows: D006."""
    folder.write("coach.json", json.dumps({"id": "coach", "promptPath": "coach.txt", "model": "gpt-5"}))
    assert "does not exist" in str(folder.registry.find_broken()[0])
    folder.write("coach.txt", "Coach them.\n")
    assert folder.agent("coach").prompt == "Coach them."
    folder.write("coach.txt", "Coach them well.\n")
    assert folder.agent("coach").prompt == "Coach them well."
    for outside in ("../secret", "/etc/hostname"):
        folder.write("coach.json", json.dumps({"promptPath": outside}))
        assert "must be a file below" in str(folder.registry.find_broken()[0])


def test_the_general_agent_is_written_only_if_missing(folder: AgentFolder):
    """Shows: B009."""
    folder.registry.ensure_general_agent()
    path = folder.dir / "general.md"
    assert path.read_text() == folder.registry.built_in_definitions()["general"]
    assert [each.name for each in folder.dir.iterdir()] == ["general.md"]
    assert path.stat().st_nlink == 1
    path.write_text("---\nname: general\n---\nMine.\n")
    folder.registry.ensure_general_agent()
    assert folder.agent("general").prompt == "Mine."


def test_general_built_in_and_inline_agents_cannot_be_deleted(tmp_path: Path):
    """Shows: B010."""
    folder = AgentFolder(tmp_path, inline=[make_inline(id="notes")])
    folder.registry.ensure_general_agent()
    for name, message in (
        ("general", "cannot be deleted"),
        ("oracle", "is built in"),
        ("notes", "configuration file"),
    ):
        with pytest.raises(Refused, match=message):
            folder.registry.delete(name)
    with pytest.raises(NotFound):
        folder.registry.delete("nobody")
    folder.write("scout.md", "broken")
    folder.registry.delete("scout")
    assert [each.name for each in folder.dir.iterdir()] == ["general.md"]


def test_rights_beyond_the_operator_ceiling_are_removed_and_reported(tmp_path: Path):
    """Shows: D11."""
    ceiling = {"tools": ("read", "todo_*", "grep"), "agents": ("scout*",), "writable": False}
    folder = AgentFolder(tmp_path, ceiling=ceiling)
    folder.write("wide.md", "---\ntools: [read, bash, 'todo_*', 'gr?p']\nagent_allow: ['*']\n---\nHi.\n")
    definition = folder.registry.get("wide")
    assert definition.agent.tool_allow == ("read", "todo_*", "grep")
    assert definition.agent.agent_allow == ("scout*",)
    assert definition.agent.workspace.writable is False
    assert definition.removed_by_ceiling == (
        "tool_allow: bash, gr?p removed by the operator's ceiling",
        "agent_allow: * removed by the operator's ceiling",
        "workspace.writable: removed by the operator's ceiling",
    )
    assert parse_preset(definition.preset, "preset.md") == definition.agent
    folder.write("all.md", "---\nname: all\n---\nHi.\n")
    assert folder.agent("all").tool_allow == ceiling["tools"]


READ_ONLY = {"explorer", "planner", "researcher", "oracle", "reviewer", "pair"}


def test_the_built_in_agents_have_prompts_roles_and_rights(folder: AgentFolder):
    agents = {each.agent.name: each.agent for each in folder.registry.list_definitions()}
    assert set(agents) == READ_ONLY | {"general", "executor", "orchestrator", "builder"}
    assert folder.registry.find_broken() == []
    for agent in agents.values():
        assert agent.description
        assert 15 <= len(agent.prompt.splitlines()) <= 40
    assert agents["general"].tool_allow is None
    for name in READ_ONLY:
        rule = Rule(allow=agents[name].tool_allow)
        assert agents[name].workspace.writable is False
        assert not [tool for tool in ("write", "edit", "bash") if rule.allows(tool)]
    assert agents["pair"].roles == (Role.WATCHER, Role.SUBTASK)
    assert agents["pair"].triggers.hotkeys == ("Ctrl+Shift+P",)
    slashes = {name: agents[name].triggers.slash for name in ("oracle", "reviewer", "pair", "orchestrator")}
    assert slashes == {
        "oracle": ("/oracle",),
        "reviewer": ("/review",),
        "pair": ("/pair",),
        "orchestrator": ("/orchestrate",),
    }
    assert agents["orchestrator"].roles == (Role.ORCHESTRATOR, Role.SUBTASK)
    assert agents["builder"].workspace.writable is True
