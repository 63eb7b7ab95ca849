"""The catalogue of agents: every place that defines one, merged, live, and closed to tricks."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from retinue.agents.definition_file import parse_preset
from retinue.agents.fields import interpret_fields
from retinue.agents.registry import BUILT_IN, INLINE, FileAgentRegistry, InlineDefinition
from retinue.domain.agent import Agent, Role, preset_hash
from retinue.domain.rules import Rule
from retinue.errors import BadDefinition, NotFound, Refused


class Place:
    """A user's folder of definitions, and the catalogue that looks at it."""

    def __init__(self, root: Path, **options: Any) -> None:
        self.dir = root / "agents"
        self.dir.mkdir(parents=True, exist_ok=True)
        self.catalogue = FileAgentRegistry(user_dir=self.dir, **options)

    def write(self, name: str, text: str) -> Path:
        path = self.dir / name
        path.write_text(text)
        return path

    def agent(self, name: str) -> Agent:
        return self.catalogue.get(name).agent


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def inline(**keys: Any) -> InlineDefinition:
    partial, readings = interpret_fields(keys)
    assert not [each for each in readings if each.error]
    return InlineDefinition(name=partial["name"], partial=partial)


def test_a_file_dropped_into_the_folder_is_an_agent_at_once(place: Place):
    """Shows: B005, B006."""
    assert "scout" not in place.catalogue.agent_names()
    place.write("scout.md", "---\ndescription: Looks\ntools: [read]\n---\nLook.\n")
    assert "scout" in place.catalogue.agent_names()
    assert place.agent("scout") == Agent(
        name="scout", description="Looks", tool_allow=("read",), prompt="Look."
    )


def test_an_edit_counts_on_the_next_call_and_nothing_is_read_twice(place: Place):
    """Shows: B011, B043."""
    path = place.write("scout.md", "---\nname: scout\n---\nFirst.\n")
    assert place.agent("scout").prompt == "First."
    os.utime(path, (1_000_000_000, 1_000_000_000))
    assert place.agent("scout").prompt == "First."
    reads = place.catalogue.files_read
    assert place.agent("scout").prompt == "First."
    assert place.catalogue.files_read == reads
    for prompt in ("Secnd.", "Third.", "Forth."):
        # Same inode, same size, and perhaps the same tick of the file system's clock.
        path.write_text(f"---\nname: scout\n---\n{prompt}\n")
        assert place.agent("scout").prompt == prompt
    path.unlink()
    with pytest.raises(NotFound):
        place.agent("scout")


def test_saving_makes_the_next_call_see_it(place: Place):
    """Shows: B044."""
    place.catalogue.save("scout", "---\nname: scout\n---\nOne.\n")
    assert place.agent("scout").prompt == "One."
    place.catalogue.save("scout", "---\nname: scout\n---\nTwo.\n")
    assert place.agent("scout").prompt == "Two."
    with pytest.raises(BadDefinition, match="names itself 'other'"):
        place.catalogue.save("scout", "---\nname: other\n---\n")
    with pytest.raises(BadDefinition):
        place.catalogue.save("scout", "---\ntolls: x\n---\n")
    assert place.agent("scout").prompt == "Two."
    assert [each.name for each in place.dir.iterdir()] == ["scout.md"]


def test_an_unknown_agent_is_not_found_and_the_nearest_is_named(place: Place):
    """Shows: B008."""
    with pytest.raises(NotFound) as caught:
        place.catalogue.get("resercher")
    assert str(caught.value) == "Agent 'resercher' not found; did you mean 'researcher'?"
    with pytest.raises(NotFound, match=r"^Agent 'zzzzzz' not found$"):
        place.catalogue.get("zzzzzz")


@pytest.mark.parametrize("name", ["../general", "a/b", ".", "", "General", "x\x00", "x\n"])
def test_what_is_no_name_is_not_found(place: Place, name: str):
    """Shows: D07."""
    with pytest.raises(NotFound):
        place.catalogue.get(name)


def test_a_broken_file_is_not_listed_and_its_reason_is_told(place: Place):
    """Shows: B007, D13."""
    path = place.write("scout.md", "---\nname: scout\ntolls: [read]\n---\n")
    assert "scout" not in place.catalogue.agent_names()
    with pytest.raises(
        NotFound, match=r"^Agent 'scout' not found: .*scout\.md:3: tolls: is not a known field"
    ):
        place.catalogue.get("scout")
    assert [str(each) for each in place.catalogue.find_broken()] == [
        f"{path}:3: tolls: is not a known field; did you mean 'tools'?"
    ]


def test_a_broken_file_never_uncovers_the_built_in_below_it(place: Place):
    place.write("general.md", "---\ntools: [read\n---\nMine.\n")
    with pytest.raises(NotFound, match="Agent 'general' not found"):
        place.catalogue.get("general")


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("scout.md", "---\nname: other\n---\n", "the file is called 'scout' and the agent in it 'other'"),
        ("My Agent.md", "---\n---\n", "is not called like an agent"),
        ("scout.md", "just words", "has no front matter"),
        ("scout.json", "[1]", "must be one JSON object"),
        ("scout.json", '{"name": "scout", "name": "scout"}', "'name' is said twice"),
        ("scout.json", "[" * 50_000, "nested deeper than 32 levels"),
        ("scout.json", '{"temperature": NaN}', "NaN is not a number"),
        ("scout.json", "{,}", "is not JSON"),
        ("scout.md", "---\n---\n" + "x" * 300_000, "is larger than 256 KiB"),
        ("scout.md", "---\na: " + "x" * 70_000 + "\n---\n", "is larger than 64 KiB"),
        ("scout.md", "---\nname: scout\n---\n\x00", "holds a NUL character"),
    ],
)
def test_what_is_broken_is_said_in_one_sentence(place: Place, name: str, text: str, says: str):
    """Shows: D06."""
    place.write(name, text)
    (bad,) = place.catalogue.find_broken()
    assert says in str(bad)
    assert str(place.dir / name) in str(bad)
    assert "\n" not in str(bad)


def test_a_binary_file_is_no_text(place: Place):
    """Shows: D06."""
    (place.dir / "scout.md").write_bytes(b"---\nname: \xff\xfe\n---\n")
    (bad,) = place.catalogue.find_broken()
    assert bad.problem == "is not text in UTF-8; save it in that encoding"


def test_links_are_not_followed(place: Place, tmp_path: Path):
    """Shows: D12."""
    secret = tmp_path / "secret.md"
    secret.write_text("---\nname: soft\n---\nSecret.\n")
    (place.dir / "soft.md").symlink_to(secret)
    os.link(secret, place.dir / "hard.md")
    os.mkfifo(place.dir / "pipe.md")
    (place.dir / "folder.md").mkdir()
    said = sorted(str(each).removeprefix(f"{place.dir}/") for each in place.catalogue.find_broken())
    assert said == [
        "folder.md: is not a file",
        "hard.md: has a second name (hard link) and is not read; put a copy there",
        "pipe.md: is not a file",
        "soft.md: is a symbolic link, which is not followed; put the file itself there",
    ]
    assert not {"soft", "hard", "pipe", "folder"} & set(place.catalogue.agent_names())


def test_markdown_and_json_of_one_name_are_one_too_many(place: Place):
    place.write("scout.md", "---\n---\nHi\n")
    place.write("scout.json", "{}")
    assert "scout.json beside it defines the same agent" in str(place.catalogue.find_broken()[0])


def test_fields_are_merged_one_by_one_and_each_tells_its_source(tmp_path: Path):
    """Shows: D007, T05."""
    place = Place(
        tmp_path, inline=[inline(id="oracle", model="gpt-5", triggers={"slash": ["/o"]}, tools=None)]
    )
    path = place.write(
        "oracle.json", json.dumps({"temperature": 0.1, "defaultWorkspace": {"allowWrites": False}})
    )
    found = place.catalogue.get("oracle")
    assert (found.agent.model, found.agent.temperature, found.agent.tool_allow) == ("gpt-5", 0.1, None)
    assert found.agent.triggers.slash == ("/o",)
    assert found.agent.prompt.startswith("You are asked when somebody is stuck")
    assert found.agent.roles == (Role.SUBTASK,)
    assert {key: found.sources[key] for key in ("model", "temperature", "tool_allow", "prompt", "roles")} == {
        "model": INLINE,
        "temperature": str(path),
        "tool_allow": INLINE,
        "prompt": BUILT_IN,
        "roles": BUILT_IN,
    }
    assert parse_preset(found.preset, "preset.md") == found.agent


def test_front_matter_alone_changes_fields_and_a_body_starts_anew(place: Place):
    place.write("explorer.md", "---\nmodel: gpt-5\n---\n")
    assert place.agent("explorer").tool_allow == ("read", "ls", "glob", "grep")
    place.write("explorer.md", "---\nmodel: gpt-5\n---\nMine alone.\n")
    found = place.catalogue.get("explorer")
    assert found.agent == Agent(name="explorer", model="gpt-5", prompt="Mine alone.")


def test_the_preset_is_the_file_itself_when_one_markdown_file_says_it_all(place: Place):
    text = "---\n# mine\nbackend: Claude\nmodel:   claude-3-7-sonnet-20250219\ntemperature: 0.3\n---\n\nWork.  \n"
    place.write("executor.md", text)
    found = place.catalogue.get("executor")
    assert (found.preset, found.hash) == (text, preset_hash(text))
    assert (found.agent.driver, found.agent.model, found.agent.temperature) == (
        "anthropic",
        "claude-3-7-sonnet-20250219",
        0.3,
    )
    assert place.catalogue.get("planner").preset == place.catalogue.built_in_definitions()["planner"]


def test_an_agent_extends_another_deeply_and_null_clears(place: Place):
    """Shows: C094, T05."""
    place.write(
        "base.md",
        "---\ndescription: Base\ntools: [read, write]\ntemperature: 0.5\npaths:\n  read: [/a]\n  deny: [/b]\n---\nBase words.\n",
    )
    place.write("child.md", "---\nextends: base\ntemperature: null\npaths:\n  read: [/c]\n---\n")
    found = place.catalogue.get("child")
    child = found.agent
    assert (child.name, child.prompt, child.tool_allow, child.temperature) == (
        "child",
        "Base words.",
        ("read", "write"),
        None,
    )
    assert child.paths is not None
    assert (child.paths.read, child.paths.deny) == (("/c",), ("/b",))
    assert found.sources["description"] == str(place.dir / "base.md")
    assert parse_preset(found.preset, "preset.md") == child
    place.write("base.md", "---\ntools: [read]\n---\nNew words.\n")
    assert place.agent("child").prompt == "New words."


def test_extending_in_a_circle_is_an_error_with_the_chain(place: Place):
    """Shows: C094."""
    for name, base in (("a", "b"), ("b", "c"), ("c", "a")):
        place.write(f"{name}.md", f"---\nextends: {base}\n---\n")
    with pytest.raises(NotFound, match="extends itself: a → b → c → a"):
        place.catalogue.get("a")
    place.write("d.md", "---\nextends: nobody\n---\n")
    with pytest.raises(NotFound, match="extends 'nobody', and there is no such agent"):
        place.catalogue.get("d")


def test_the_prompt_may_stand_in_a_file_beside_the_definition(place: Place):
    """Shows: D006."""
    place.write("coach.json", json.dumps({"id": "coach", "promptPath": "coach.txt", "model": "gpt-5"}))
    assert "there is no file" in str(place.catalogue.find_broken()[0])
    place.write("coach.txt", "Coach them.\n")
    assert place.agent("coach").prompt == "Coach them."
    place.write("coach.txt", "Coach them well.\n")
    assert place.agent("coach").prompt == "Coach them well."
    for outside in ("../secret", "/etc/hostname"):
        place.write("coach.json", json.dumps({"promptPath": outside}))
        assert "must be a file below" in str(place.catalogue.find_broken()[0])


def test_general_is_written_if_missing_and_left_alone_if_there(place: Place):
    """Shows: B009."""
    place.catalogue.ensure_general_agent()
    path = place.dir / "general.md"
    assert path.read_text() == place.catalogue.built_in_definitions()["general"]
    assert [each.name for each in place.dir.iterdir()] == ["general.md"]
    assert path.stat().st_nlink == 1
    path.write_text("---\nname: general\n---\nMine.\n")
    place.catalogue.ensure_general_agent()
    assert place.agent("general").prompt == "Mine."


def test_general_and_built_ins_cannot_be_deleted(tmp_path: Path):
    """Shows: B010."""
    place = Place(tmp_path, inline=[inline(id="notes")])
    place.catalogue.ensure_general_agent()
    for name, says in (
        ("general", "cannot be deleted"),
        ("oracle", "is built in"),
        ("notes", "configuration file"),
    ):
        with pytest.raises(Refused, match=says):
            place.catalogue.delete(name)
    with pytest.raises(NotFound):
        place.catalogue.delete("nobody")
    place.write("scout.md", "broken")
    place.catalogue.delete("scout")
    assert [each.name for each in place.dir.iterdir()] == ["general.md"]


def test_what_exceeds_the_operators_ceiling_is_clipped_and_told(tmp_path: Path):
    """Shows: D11."""
    ceiling = {"tools": ("read", "todo_*", "grep"), "agents": ("scout*",), "writable": False}
    place = Place(tmp_path, ceiling=ceiling)
    place.write("wide.md", "---\ntools: [read, bash, 'todo_*', 'gr?p']\nagent_allow: ['*']\n---\nHi.\n")
    found = place.catalogue.get("wide")
    assert found.agent.tool_allow == ("read", "todo_*", "grep")
    assert found.agent.agent_allow == ("scout*",)
    assert found.agent.workspace.writable is False
    assert found.removed_by_ceiling == (
        "tool_allow: bash, gr?p taken away by the operator's ceiling",
        "agent_allow: * taken away by the operator's ceiling",
        "workspace.writable: taken away by the operator's ceiling",
    )
    assert parse_preset(found.preset, "preset.md") == found.agent
    place.write("all.md", "---\nname: all\n---\nHi.\n")
    assert place.agent("all").tool_allow == ceiling["tools"]


READ_ONLY = {"explorer", "planner", "researcher", "oracle", "reviewer", "pair"}


def test_the_built_in_agents_are_there_and_worth_having(place: Place):
    found = {each.agent.name: each.agent for each in place.catalogue.list_definitions()}
    assert set(found) == READ_ONLY | {"general", "executor", "orchestrator", "builder"}
    assert place.catalogue.find_broken() == []
    for agent in found.values():
        assert agent.description
        assert 15 <= len(agent.prompt.splitlines()) <= 40
    assert found["general"].tool_allow is None
    for name in READ_ONLY:
        rule = Rule(allow=found[name].tool_allow)
        assert found[name].workspace.writable is False
        assert not [tool for tool in ("write", "edit", "bash") if rule.allows(tool)]
    assert found["pair"].roles == (Role.WATCHER, Role.SUBTASK)
    assert found["pair"].triggers.hotkeys == ("Ctrl+Shift+P",)
    slashes = {name: found[name].triggers.slash for name in ("oracle", "reviewer", "pair", "orchestrator")}
    assert slashes == {
        "oracle": ("/oracle",),
        "reviewer": ("/review",),
        "pair": ("/pair",),
        "orchestrator": ("/orchestrate",),
    }
    assert found["orchestrator"].roles == (Role.ORCHESTRATOR, Role.SUBTASK)
    assert found["builder"].workspace.writable is True
