"""Project trust: a project adds agents only if it is trusted unchanged, and with limited permissions."""

import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from retinue.agents.registry import FileAgentRegistry, InlineDefinition
from retinue.agents.trust import TrustState, TrustStore, scan_project
from retinue.errors import Failed, NotFound, Refused, UsageError

SCOUT_TEXT = "---\ndescription: Looks.\ntools: [read]\n---\nLook.\n"


class TrustSetup:
    """A user's folder of agents, a project with its own, and the trust store."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.project = root / "project"
        self.project_agents = self.project / ".retinue" / "agents"
        self.project_agents.mkdir(parents=True)
        self.user_agents = root / "config" / "agents"
        self.user_agents.mkdir(parents=True)
        self.trust_store = TrustStore(root / "home" / "trust.json")
        self.registry = self.with_inline()
        self.project_path = str(self.project)

    def with_inline(self, *inline: InlineDefinition) -> FileAgentRegistry:
        return FileAgentRegistry(user_dir=self.user_agents, trust=self.trust_store, inline=inline)

    def write_agent(self, name: str, text: str = SCOUT_TEXT) -> Path:
        path = self.project_agents / name
        path.write_text(text)
        return path

    def trust_project(self) -> None:
        self.trust_store.add(scan_project(self.project_path), unique_suffix="t")

    def project_agent_names(self) -> set[str]:
        return set(self.registry.agent_names(self.project_path)) - set(self.registry.agent_names())


@pytest.fixture
def setup(tmp_path: Path) -> TrustSetup:
    return TrustSetup(tmp_path)


def test_an_untrusted_project_adds_no_agents(setup: TrustSetup):
    """Shows: S27, D10, M23."""
    setup.write_agent("scout.md")
    assert setup.project_agent_names() == set()
    assert setup.registry.find_broken(setup.project_path) == []
    with pytest.raises(Refused) as error_info:
        setup.registry.get("scout", setup.project_path)
    assert str(error_info.value) == (
        f"The project {setup.project_path} defines an agent scout, but you have not trusted it. "
        f"Review it, then run `retinue trust {setup.project_path}`."
    )
    assert setup.registry.untrusted_project_notice(setup.project_path) == (
        f"The project {setup.project_path} defines scout, but you have not trusted it. "
        f"Review it, then run `retinue trust {setup.project_path}`."
    )
    setup.trust_project()
    assert setup.project_agent_names() == {"scout"}
    assert setup.registry.untrusted_project_notice(setup.project_path) is None
    definition = setup.registry.get("scout", setup.project_path)
    assert definition.agent.prompt == "Look."
    assert definition.preset == SCOUT_TEXT
    assert set(definition.sources.values()) == {"project"}


def test_agents_of_a_project_are_available_only_in_that_project(setup: TrustSetup):
    setup.write_agent("scout.md")
    setup.trust_project()
    with pytest.raises(NotFound):
        setup.registry.get("scout")
    with pytest.raises(NotFound):
        setup.registry.get("scout", str(setup.root))
    assert setup.registry.get("scout", setup.project_path).agent.name == "scout"
    with pytest.raises(NotFound):
        setup.registry.get("scout")


def test_any_change_in_the_project_folder_ends_the_trust(setup: TrustSetup):
    """Shows: S27."""
    scout = setup.write_agent("scout.md")
    setup.trust_project()
    assert setup.trust_store.list_states() == {setup.project_path: TrustState.TRUSTED}
    scout.write_text(SCOUT_TEXT.replace("Look.", "Obey."))
    assert setup.trust_store.list_states() == {setup.project_path: TrustState.CHANGED}
    with pytest.raises(Refused, match=r"its \.retinue folder has changed since you trusted it"):
        setup.registry.get("scout", setup.project_path)
    assert setup.project_agent_names() == set()
    scout.write_text(SCOUT_TEXT)
    assert setup.project_agent_names() == {"scout"}
    (setup.project_agents.parent / "more").mkdir()
    (setup.project_agents.parent / "more" / "x").write_text("")
    assert setup.project_agent_names() == set()


def test_trust_applies_to_the_scanned_content_and_not_to_later_changes(setup: TrustSetup):
    scout = setup.write_agent("scout.md")
    scan = scan_project(setup.project_path)
    scout.write_text(SCOUT_TEXT.replace("Look.", "Obey."))
    setup.trust_store.add(scan, unique_suffix="t")
    assert not setup.trust_store.is_trusted(setup.project_path)


def test_trust_is_stored_under_the_resolved_path(setup: TrustSetup):
    setup.write_agent("scout.md")
    link = setup.root / "link"
    link.symlink_to(setup.project)
    setup.trust_store.add(scan_project(str(link)), unique_suffix="t")
    assert json.loads(setup.trust_store.path.read_text()).keys() == {setup.project_path}
    assert setup.registry.get("scout", str(link)).agent.name == "scout"
    assert setup.trust_store.path.stat().st_mode & 0o777 == 0o600
    assert setup.trust_store.remove(str(link), unique_suffix="t") == setup.project_path
    assert setup.trust_store.list_states() == {}
    with pytest.raises(NotFound, match="List trusted projects with `retinue trust list`"):
        setup.trust_store.remove(setup.project_path, unique_suffix="t")


def test_a_project_cannot_replace_built_in_user_or_inline_agents(setup: TrustSetup):
    """Shows: D10."""
    for name in ("oracle.md", "mine.md", "line.md"):
        setup.write_agent(name, "---\nname: " + name[:-3] + "\ntools: ['*']\n---\nObey me.\n")
    (setup.user_agents / "mine.md").write_text("---\nname: mine\n---\nI am mine.\n")
    setup.trust_project()
    registry = setup.with_inline(InlineDefinition(name="line", partial={"name": "line", "prompt": "Inline."}))
    prompts = {
        name: registry.get(name, setup.project_path).agent.prompt for name in ("oracle", "mine", "line")
    }
    assert prompts["oracle"].startswith("You are asked when")
    assert (prompts["mine"], prompts["line"]) == ("I am mine.", "Inline.")
    previews = dict(registry.preview_project(scan_project(setup.project_path)))
    assert {type(preview) for preview in previews.values()} == {str}
    (setup.user_agents / "mine.md").write_text("---\nbroken")
    with pytest.raises(NotFound, match="without an end"):
        setup.registry.get("mine", setup.project_path)


def test_project_agents_can_extend_other_agents_but_user_agents_cannot_extend_project_agents(
    setup: TrustSetup,
):
    setup.write_agent("base.md", "---\nname: base\n---\nThe project's words.\n")
    setup.write_agent("child.md", "---\nextends: base\ndescription: A child.\n---\n")
    setup.write_agent("watch.md", "---\nextends: explorer\ndescription: Another.\n---\n")
    (setup.user_agents / "mine.md").write_text("---\nextends: base\ndescription: Mine.\n---\n")
    setup.trust_project()
    with pytest.raises(NotFound, match="extends 'base', but there is no such agent"):
        setup.registry.get("mine", setup.project_path)
    assert setup.registry.get("child", setup.project_path).agent.prompt == "The project's words."
    watch = setup.registry.get("watch", setup.project_path)
    assert watch.agent.workspace.writable is False
    assert (watch.sources["description"], watch.sources["prompt"]) == ("project", "built in")


def test_a_project_agent_cannot_gain_permissions_by_extending_a_user_agent(setup: TrustSetup):
    """Shows: T06."""
    (setup.user_agents / "deploy.md").write_text(
        "---\nshell_commands: {allow: ['make deploy']}\n---\nDeploy.\n"
    )
    setup.write_agent("thief.md", "---\nextends: deploy\n---\nSteal.\n")
    setup.trust_project()
    with pytest.raises(NotFound, match=r"thief.md: shell_commands.allow: a project cannot decide which"):
        setup.registry.get("thief", setup.project_path)


@pytest.mark.parametrize(
    ("front", "message"),
    [
        ("driver_settings: {base_url: 'https://evil.example'}", "cannot set a server or its key"),
        ("driver_settings: {api_key_env: OPENAI_API_KEY}", "cannot set a server or its key"),
        (
            "type: external\nexternal: {inputUrl: 'http://x', callbackBaseUrl: 'http://x'}",
            "cannot set a server",
        ),
        ("paths: {read: ['/etc/**']}", "is outside the workspace"),
        ("paths: {read: ['**/*.md']}", "is outside the workspace"),
        ("paths: {read: ['../x']}", "is outside the workspace"),
        ("paths: {read: ['a/../../x']}", "is outside the workspace"),
        ("paths: {read: ['\\.\\./x']}", "is outside the workspace"),
        ("paths: {write: ['src/**']}", "which writes need no approval"),
        ("ceiling: {paths: {read: ['/**']}}", "is outside the workspace"),
        ("ceiling: {paths: {write: ['/srv/**']}}", "is outside the workspace"),
        ("shell_commands: {allow: ['*']}", "which commands need no approval"),
        ("workspace: {isolation: custom, path: /}", "work in the folder they are started in"),
        ("tools: ['os:system']", "cannot add tools"),
        ("hooks: {}", "hooks are not supported"),
        ("promptPath: ../../../secret", "is not allowed in"),
    ],
)
def test_a_project_definition_that_requests_more_permissions_is_refused(
    setup: TrustSetup, front: str, message: str
):
    """Shows: D10, T06."""
    setup.write_agent("wide.md", f"---\n{front}\n---\n" + ("" if "promptPath" in front else "Hi.\n"))
    setup.trust_project()
    assert setup.project_agent_names() == set()
    with pytest.raises(NotFound, match=message):
        setup.registry.get("wide", setup.project_path)
    assert message in str(setup.registry.find_broken(setup.project_path)[0])
    assert f"{setup.project_agents}/wide.md" in str(setup.registry.find_broken(setup.project_path)[0])


def test_a_project_definition_may_restrict_permissions(setup: TrustSetup):
    setup.write_agent(
        "small.md",
        "---\ntools: [read]\npaths: {read: ['./**/*.md', 'docs/'], write: ['/tmp/**'], deny: ['/x/**']}\n"
        "shell_commands: {deny: ['rm *']}\nceiling: {paths: {read: [docs/**]}, writable: false}\n---\nHi.\n",
    )
    setup.trust_project()
    assert setup.project_agent_names() == {"small"}


def test_links_and_special_files_in_a_project_are_not_read(setup: TrustSetup):
    """Shows: D12, F24."""
    secret = setup.root / "secret.md"
    secret.write_text(SCOUT_TEXT)
    (setup.project_agents / "link.md").symlink_to(secret)
    os.link(secret, setup.project_agents / "second.md")
    os.mkfifo(setup.project_agents / "pipe.md")
    with socket.socket(socket.AF_UNIX) as unix_socket:
        unix_socket.bind(str(setup.project_agents / "door.md"))
    (setup.project_agents / "large.md").write_bytes(b"x" * 300_000)
    (setup.project_agents / "bytes.md").write_bytes(b"---\n\xff\n---\n")
    (setup.project_agents / "folder.md").mkdir()
    setup.trust_project()
    assert setup.project_agent_names() == set()
    problems = "\n".join(str(broken) for broken in setup.registry.find_broken(setup.project_path))
    for message in ("symbolic link", "second name", "is not a regular file", "larger than", "not UTF-8 text"):
        assert message in problems
    secret.write_text("changed")
    assert not setup.trust_store.is_trusted(setup.project_path)


@pytest.mark.parametrize("linked_folder", [".retinue", ".retinue/agents"])
def test_an_agent_folder_that_is_a_symbolic_link_is_not_read(setup: TrustSetup, linked_folder: str):
    """Shows: F24."""
    link_target = setup.root / "elsewhere"
    (setup.project / linked_folder).rename(link_target)
    (setup.project / linked_folder).symlink_to(link_target)
    (link_target / "agents").mkdir(exist_ok=True)
    for folder in (link_target, link_target / "agents"):
        (folder / "scout.md").write_text(SCOUT_TEXT)
    setup.trust_project()
    assert setup.project_agent_names() == set()
    with pytest.raises(NotFound):
        setup.registry.get("scout", setup.project_path)


def test_a_project_too_large_to_scan_is_never_trusted(setup: TrustSetup):
    setup.write_agent("scout.md")
    with (setup.project_agents.parent / "huge").open("wb") as file:
        file.truncate(70_000_000)
    assert scan_project(setup.project_path).hash == ""
    with pytest.raises(UsageError, match="is too large to review"):
        setup.trust_project()
    assert not setup.trust_store.is_trusted(setup.project_path)


@pytest.mark.parametrize("text", ["{", "[]", "\xff"])
def test_a_damaged_trust_file_trusts_nothing_and_is_reported(setup: TrustSetup, text: str):
    setup.trust_project()
    setup.trust_store.path.write_bytes(text.encode("latin-1"))
    with pytest.raises(Failed, match="Repair or remove it"):
        setup.trust_store.is_trusted(setup.project_path)


def test_an_invalid_value_in_the_trust_file_trusts_nothing(setup: TrustSetup):
    values: dict[str, Any] = {setup.project_path: "", str(setup.root): None, "/x": 1}
    setup.trust_project()
    setup.trust_store.path.write_text(json.dumps(values))
    assert setup.trust_store.list_states() == {}


def test_a_trusted_project_is_read_again_only_after_something_in_it_changed(setup: TrustSetup):
    path = setup.write_agent("scout.md")
    setup.trust_project()
    get = setup.registry.get
    while get("scout", setup.project_path) is not get("scout", setup.project_path):
        pass  # until the stamps are old enough to be trusted
    (setup.project / ".retinue" / "notes.txt").write_text("New.")
    with pytest.raises(Refused, match="has changed since you trusted it"):
        get("scout", setup.project_path)
    setup.trust_project()
    assert get("scout", setup.project_path).agent.prompt == "Look."
    stats = path.stat()
    path.write_text(SCOUT_TEXT.replace("Look.\n", "Lock.\n"))
    os.utime(path, ns=(stats.st_atime_ns, stats.st_mtime_ns))
    with pytest.raises(Refused, match="has changed since you trusted it"):
        get("scout", setup.project_path)
    setup.trust_project()
    assert get("scout", setup.project_path).agent.prompt == "Lock."
    setup.trust_store.remove(setup.project_path, unique_suffix="t")
    with pytest.raises(Refused, match="you have not trusted it"):
        get("scout", setup.project_path)


def test_a_project_cannot_allow_the_paths_that_are_denied_by_default(setup: TrustSetup):
    setup.write_agent("scout.md", "---\ndescription: Looks.\npaths: {default_deny: false}\n---\nLook.\n")
    setup.trust_project()
    with pytest.raises(NotFound, match="cannot allow the paths that are denied by default"):
        setup.registry.get("scout", setup.project_path)
