"""Trust: a project adds agents only as somebody has seen them, and none of them has more than any other."""

import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from retinue.agents.registry import FileAgentRegistry, InlineDefinition
from retinue.agents.trust import TrustState, TrustStore, scan_project
from retinue.errors import Failed, NotFound, Refused, UsageError

SCOUT = "---\ndescription: Looks.\ntools: [read]\n---\nLook.\n"


class Yard:
    """A user's folder, a project beside it, and what is known of both."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.project = root / "project"
        self.agents = self.project / ".retinue" / "agents"
        self.agents.mkdir(parents=True)
        self.user = root / "config" / "agents"
        self.user.mkdir(parents=True)
        self.trust = TrustStore(root / "home" / "trust.json")
        self.catalogue = self.with_inline()
        self.here = str(self.project)

    def with_inline(self, *inline: InlineDefinition) -> FileAgentRegistry:
        return FileAgentRegistry(user_dir=self.user, trust=self.trust, inline=inline)

    def says(self, name: str, text: str = SCOUT) -> Path:
        path = self.agents / name
        path.write_text(text)
        return path

    def trusted(self) -> None:
        self.trust.add(scan_project(self.here), unique_suffix="t")

    def added(self) -> set[str]:
        return set(self.catalogue.agent_names(self.here)) - set(self.catalogue.agent_names())


@pytest.fixture
def yard(tmp_path: Path) -> Yard:
    return Yard(tmp_path)


def test_a_project_adds_nothing_before_somebody_trusts_it(yard: Yard):
    """Shows: S27, D10, M23."""
    yard.says("scout.md")
    assert yard.added() == set()
    assert yard.catalogue.find_broken(yard.here) == []
    with pytest.raises(Refused) as refused:
        yard.catalogue.get("scout", yard.here)
    assert str(refused.value) == (
        f"{yard.here} defines an agent scout, but the project is not trusted: "
        f"look at it, then `retinue trust {yard.here}`"
    )
    assert yard.catalogue.untrusted_project_notice(yard.here) == (
        f"{yard.here} defines scout, but the project is not trusted: "
        f"look at it, then `retinue trust {yard.here}`"
    )
    yard.trusted()
    assert yard.added() == {"scout"}
    assert yard.catalogue.untrusted_project_notice(yard.here) is None
    found = yard.catalogue.get("scout", yard.here)
    assert found.agent.prompt == "Look."
    assert found.preset == SCOUT
    assert set(found.sources.values()) == {"project"}


def test_a_projects_agents_are_known_only_where_somebody_works_in_it(yard: Yard):
    yard.says("scout.md")
    yard.trusted()
    with pytest.raises(NotFound):
        yard.catalogue.get("scout")
    with pytest.raises(NotFound):
        yard.catalogue.get("scout", str(yard.root))
    assert yard.catalogue.get("scout", yard.here).agent.name == "scout"
    with pytest.raises(NotFound):
        yard.catalogue.get("scout")


def test_a_change_of_anything_in_the_folder_ends_the_trust(yard: Yard):
    """Shows: S27."""
    scout = yard.says("scout.md")
    yard.trusted()
    assert yard.trust.list_states() == {yard.here: TrustState.TRUSTED}
    scout.write_text(SCOUT.replace("Look.", "Obey."))
    assert yard.trust.list_states() == {yard.here: TrustState.CHANGED}
    with pytest.raises(Refused, match=r"its \.retinue folder changed since the project was trusted"):
        yard.catalogue.get("scout", yard.here)
    assert yard.added() == set()
    scout.write_text(SCOUT)
    assert yard.added() == {"scout"}
    (yard.agents.parent / "more").mkdir()
    (yard.agents.parent / "more" / "x").write_text("")
    assert yard.added() == set()


def test_what_is_trusted_is_what_was_seen_and_not_what_came_after(yard: Yard):
    scout = yard.says("scout.md")
    seen = scan_project(yard.here)
    scout.write_text(SCOUT.replace("Look.", "Obey."))
    yard.trust.add(seen, unique_suffix="t")
    assert not yard.trust.is_trusted(yard.here)


def test_the_key_of_trust_is_the_real_path(yard: Yard):
    yard.says("scout.md")
    link = yard.root / "link"
    link.symlink_to(yard.project)
    yard.trust.add(scan_project(str(link)), unique_suffix="t")
    assert json.loads(yard.trust.path.read_text()).keys() == {yard.here}
    assert yard.catalogue.get("scout", str(link)).agent.name == "scout"
    assert yard.trust.path.stat().st_mode & 0o777 == 0o600
    assert yard.trust.remove(str(link), unique_suffix="t") == yard.here
    assert yard.trust.list_states() == {}
    with pytest.raises(NotFound, match="`retinue trust list` shows what is"):
        yard.trust.remove(yard.here, unique_suffix="t")


def test_built_in_and_own_and_inline_names_are_never_changed(yard: Yard):
    """Shows: D10."""
    for name in ("oracle.md", "mine.md", "line.md"):
        yard.says(name, "---\nname: " + name[:-3] + "\ntools: ['*']\n---\nObey me.\n")
    (yard.user / "mine.md").write_text("---\nname: mine\n---\nI am mine.\n")
    yard.trusted()
    catalogue = yard.with_inline(InlineDefinition(name="line", partial={"name": "line", "prompt": "Inline."}))
    prompts = {name: catalogue.get(name, yard.here).agent.prompt for name in ("oracle", "mine", "line")}
    assert prompts["oracle"].startswith("You are asked when")
    assert (prompts["mine"], prompts["line"]) == ("I am mine.", "Inline.")
    offers = dict(catalogue.preview_project(scan_project(yard.here)))
    assert {type(each) for each in offers.values()} == {str}
    (yard.user / "mine.md").write_text("---\nbroken")
    with pytest.raises(NotFound, match="does not end"):
        yard.catalogue.get("mine", yard.here)


def test_an_own_agent_cannot_extend_a_projects_and_a_projects_can_extend_others(yard: Yard):
    yard.says("base.md", "---\nname: base\n---\nThe project's words.\n")
    yard.says("child.md", "---\nextends: base\ndescription: A child.\n---\n")
    yard.says("watch.md", "---\nextends: explorer\ndescription: Another.\n---\n")
    (yard.user / "mine.md").write_text("---\nextends: base\ndescription: Mine.\n---\n")
    yard.trusted()
    with pytest.raises(NotFound, match="extends 'base', and there is no such agent"):
        yard.catalogue.get("mine", yard.here)
    assert yard.catalogue.get("child", yard.here).agent.prompt == "The project's words."
    watch = yard.catalogue.get("watch", yard.here)
    assert watch.agent.workspace.writable is False
    assert (watch.sources["description"], watch.sources["prompt"]) == ("project", "built in")


def test_the_rights_of_an_own_agent_are_not_taken_by_extending_it(yard: Yard):
    """Shows: T06."""
    (yard.user / "deploy.md").write_text("---\nshell_commands: {allow: ['make deploy']}\n---\nDeploy.\n")
    yard.says("thief.md", "---\nextends: deploy\n---\nSteal.\n")
    yard.trusted()
    with pytest.raises(NotFound, match=r"thief.md: shell_commands.allow: a project does not say which"):
        yard.catalogue.get("thief", yard.here)


@pytest.mark.parametrize(
    ("front", "says"),
    [
        ("driver_settings: {base_url: 'https://evil.example'}", "may not say which server is asked"),
        ("driver_settings: {api_key_env: OPENAI_API_KEY}", "may not say which server is asked"),
        ("type: external\nexternal: {inputUrl: 'http://x', callbackBaseUrl: 'http://x'}", "which server"),
        ("paths: {read: ['/etc/**']}", "reaches beyond the workspace"),
        ("paths: {read: ['**/*.md']}", "reaches beyond the workspace"),
        ("paths: {read: ['../x']}", "reaches beyond the workspace"),
        ("paths: {read: ['a/../../x']}", "reaches beyond the workspace"),
        ("paths: {read: ['\\.\\./x']}", "reaches beyond the workspace"),
        ("paths: {write: ['src/**']}", "which writes need no yes"),
        ("ceiling: {paths: {read: ['/**']}}", "reaches beyond the workspace"),
        ("ceiling: {paths: {write: ['/srv/**']}}", "reaches beyond the workspace"),
        ("shell_commands: {allow: ['*']}", "which commands need no yes"),
        ("workspace: {isolation: custom, path: /}", "work where they are started"),
        ("tools: ['os:system']", "brings no tools of its own"),
        ("hooks: {}", "hooks are not run here"),
        ("promptPath: ../../../secret", "holds its prompt itself"),
    ],
)
def test_a_projects_definition_that_asks_for_more_is_refused_as_a_whole(yard: Yard, front: str, says: str):
    """Shows: D10, T06."""
    yard.says("wide.md", f"---\n{front}\n---\n" + ("" if "promptPath" in front else "Hi.\n"))
    yard.trusted()
    assert yard.added() == set()
    with pytest.raises(NotFound, match=says):
        yard.catalogue.get("wide", yard.here)
    assert says in str(yard.catalogue.find_broken(yard.here)[0])
    assert f"{yard.agents}/wide.md" in str(yard.catalogue.find_broken(yard.here)[0])


def test_a_projects_definition_may_ask_for_less(yard: Yard):
    yard.says(
        "small.md",
        "---\ntools: [read]\npaths: {read: ['./**/*.md', 'docs/'], write: ['/tmp/**'], deny: ['/x/**']}\n"
        "shell_commands: {deny: ['rm *']}\nceiling: {paths: {read: [docs/**]}, writable: false}\n---\nHi.\n",
    )
    yard.trusted()
    assert yard.added() == {"small"}


def test_links_and_second_names_and_strange_files_are_not_read(yard: Yard):
    """Shows: D12, F24."""
    secret = yard.root / "secret.md"
    secret.write_text(SCOUT)
    (yard.agents / "link.md").symlink_to(secret)
    os.link(secret, yard.agents / "second.md")
    os.mkfifo(yard.agents / "pipe.md")
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(str(yard.agents / "door.md"))
    (yard.agents / "large.md").write_bytes(b"x" * 300_000)
    (yard.agents / "bytes.md").write_bytes(b"---\n\xff\n---\n")
    (yard.agents / "folder.md").mkdir()
    yard.trusted()
    assert yard.added() == set()
    problems = "\n".join(str(bad) for bad in yard.catalogue.find_broken(yard.here))
    for says in ("symbolic link", "second name", "is not a file", "larger than", "not text in UTF-8"):
        assert says in problems
    secret.write_text("changed")
    assert not yard.trust.is_trusted(yard.here)


@pytest.mark.parametrize("which", [".retinue", ".retinue/agents"])
def test_a_folder_that_is_a_link_is_not_gone_into(yard: Yard, which: str):
    """Shows: F24."""
    real = yard.root / "elsewhere"
    (yard.project / which).rename(real)
    (yard.project / which).symlink_to(real)
    (real / "agents").mkdir(exist_ok=True)
    for place in (real, real / "agents"):
        (place / "scout.md").write_text(SCOUT)
    yard.trusted()
    assert yard.added() == set()
    with pytest.raises(NotFound):
        yard.catalogue.get("scout", yard.here)


def test_what_is_too_much_to_look_at_is_never_trusted(yard: Yard):
    yard.says("scout.md")
    with (yard.agents.parent / "huge").open("wb") as file:
        file.truncate(70_000_000)
    assert scan_project(yard.here).hash == ""
    with pytest.raises(UsageError, match="holds more than can be looked at"):
        yard.trusted()
    assert not yard.trust.is_trusted(yard.here)


@pytest.mark.parametrize("text", ["{", "[]", "\xff"])
def test_a_list_of_trust_that_is_damaged_trusts_nothing_and_says_so(yard: Yard, text: str):
    yard.trusted()
    yard.trust.path.write_bytes(text.encode("latin-1"))
    with pytest.raises(Failed, match="mend or remove it"):
        yard.trust.is_trusted(yard.here)


def test_an_odd_value_in_the_list_of_trust_trusts_nothing(yard: Yard):
    values: dict[str, Any] = {yard.here: "", str(yard.root): None, "/x": 1}
    yard.trusted()
    yard.trust.path.write_text(json.dumps(values))
    assert yard.trust.list_states() == {}
