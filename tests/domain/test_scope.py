"""Scope: deny wins, a missing list is no restriction, and an empty list allows nothing."""

from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.domain.agent import Agent, PathPatterns
from retinue.domain.ceiling import OPERATOR, Ceiling, OperatorPolicy
from retinue.domain.glob import matches
from retinue.domain.permissions.protected_paths import ALWAYS_CLOSED_PATHS
from retinue.domain.permissions.scope import Scope
from retinue.domain.permissions.scope_builder import ScopeInputs, build_scope
from retinue.domain.rules import Rule, absolute_patterns, escape_glob, subtree_pattern

Globs = tuple[str, ...]


def make_scope(*, root: str = "/w", operator: dict[str, Globs] | None = None, **agent_fields: Any) -> Scope:
    denied = operator or {}
    policy = OperatorPolicy(
        deny_tools=denied.get("tools", ()),
        deny_paths=denied.get("paths", ()),
        deny_agents=denied.get("agents", ()),
    )
    return build_scope(Agent(name="a", **agent_fields), ScopeInputs(root=root), policy)


TOOLS = ("reading_list_add", "reading_list_delete", "todo_add", "todo_x_delete", "bash")

TOOL_CASES: list[tuple[Globs | None, Globs | None, tuple[str, ...]]] = [
    (None, None, TOOLS),
    ((), None, ()),
    (None, (), TOOLS),
    (("*",), None, TOOLS),
    (("**",), None, TOOLS),
    (("reading_list_*",), None, ("reading_list_add", "reading_list_delete")),
    (("reading_list_*",), ("reading_list_delete",), ("reading_list_add",)),
    (("reading_list_*", "bash"), None, ("reading_list_add", "reading_list_delete", "bash")),
    (("todo_*",), None, ("todo_add", "todo_x_delete")),
    (("todo_?",), None, ()),
    (None, ("*_delete",), ("reading_list_add", "todo_add", "bash")),
    (None, ("*",), ()),
    (("bash",), ("bash",), ()),
    (("[br]*",), None, ("reading_list_add", "reading_list_delete", "bash")),
    (("BASH",), None, ()),
    (None, ("BASH",), TOOLS),
    (("bash ",), None, ()),
    (("",), None, ()),
]


@pytest.mark.parametrize(("allow", "deny", "expected"), TOOL_CASES)
def test_a_tool_must_match_the_allow_list_and_not_the_deny_list(
    allow: Globs | None, deny: Globs | None, expected: tuple[str, ...]
):
    """Shows: C055, C056, C057, C058, T04, T05."""
    scope = make_scope(tool_allow=allow, tool_deny=deny)
    assert tuple(name for name in TOOLS if scope.check_tool(name).ok) == expected


CAPABILITY_CASES: list[tuple[Globs | None, Globs | None, Globs, bool]] = [
    (None, None, ("lists.read",), True),
    (None, None, (), True),
    (("lists.read",), None, ("lists.read",), True),
    (("lists.read",), None, ("lists.read", "lists.write"), False),
    (("lists.*",), None, ("lists.read", "lists.write"), True),
    (("lists.read", "lists.write"), None, ("lists.read", "lists.write"), True),
    (("mail.*",), None, ("lists.read",), False),
    ((), None, ("lists.read",), False),
    (("mail.*",), None, (), True),
    ((), None, (), True),
    (None, ("lists.write",), ("lists.read", "lists.write"), False),
    (None, ("lists.write",), ("lists.read",), True),
    (None, ("*",), ("lists.read",), False),
    (None, ("*",), (), True),
    (("*",), ("lists.write",), ("lists.write",), False),
    (("lists.*",), ("*.write",), ("lists.read",), True),
]


@pytest.mark.parametrize(("allow", "deny", "capabilities", "expected"), CAPABILITY_CASES)
def test_every_capability_of_a_tool_must_be_allowed_and_none_denied(
    allow: Globs | None, deny: Globs | None, capabilities: Globs, expected: bool
):
    """Shows: C060, C061, C062, T03, T05."""
    assert (
        make_scope(capability_allow=allow, capability_deny=deny).check_tool("x", capabilities).ok is expected
    )


@pytest.mark.parametrize(
    ("allow", "deny", "expected"),
    [
        (None, None, ("coder", "researcher", "reviewer")),
        ((), None, ()),
        (("re*",), None, ("researcher", "reviewer")),
        (("re*",), ("reviewer",), ("researcher",)),
        (None, ("re*",), ("coder",)),
    ],
)
def test_agent_lists_follow_the_same_rule_as_tool_lists(
    allow: Globs | None, deny: Globs | None, expected: Globs
):
    """Shows: C064, T05."""
    agents = make_scope(agent_allow=allow, agent_deny=deny).agents
    assert tuple(name for name in ("coder", "researcher", "reviewer") if agents.allows(name)) == expected


def test_runtime_tools_pass_every_list_except_the_operators():
    """Shows: C059."""
    agent_fields: dict[str, Any] = {"tool_allow": ("todo_*",), "tool_deny": ("*",), "capability_allow": ()}
    assert make_scope(**agent_fields).check_tool("system_time", ("x",)).ok
    assert not make_scope(**agent_fields).check_tool("todo_add").ok
    assert not make_scope(**agent_fields, operator={"tools": ("system_*",)}).check_tool("system_time").ok


def test_operator_denials_override_every_list():
    scope = make_scope(
        tool_allow=("*",), operator={"tools": ("bash",), "agents": ("root",), "paths": ("/w/x/**",)}
    )
    assert scope.check_tool("bash").rule == "operator deny bash"
    assert not scope.agents.allows("root")
    assert not scope.check_path("/w/x/y").ok


def test_a_decision_names_the_rule_that_made_it():
    scope = make_scope(tool_allow=("todo_*",), tool_deny=("todo_x*",), capability_deny=("net.*",))
    assert [scope.check_tool(name).rule for name in ("todo_x", "bash")] == [
        "tools: deny todo_x*",
        "tools: nothing allows it",
    ]
    assert scope.check_tool("todo_a", ("net.out",)).rule == "capability net.out: deny net.*"
    assert scope.check_tool("todo_a").rule == "in scope"
    assert Rule(allow=("a*",)).check("ab").rule == "allow a*"
    assert Rule().check("ab").rule == "no list"


NAMES = st.text("ab_", min_size=1, max_size=5)
LISTS = st.none() | st.lists(st.text("ab_*?", max_size=4), max_size=4).map(tuple)


@given(allow=LISTS, deny=LISTS, more=LISTS, name=NAMES)
def test_a_longer_deny_list_never_allows_more(
    allow: Globs | None, deny: Globs | None, more: Globs | None, name: str
):
    """Shows: T04."""
    before = Rule(allow=allow, deny=deny or ()).allows(name)
    after = Rule(allow=allow, deny=(deny or ()) + (more or ())).allows(name)
    assert before or not after


@given(allow=LISTS, deny=LISTS, name=NAMES)
def test_a_rule_allows_a_name_that_its_allow_list_matches_and_its_deny_list_does_not(
    allow: Globs | None, deny: Globs | None, name: str
):
    """Shows: T04, T05."""
    denied = any(matches(pattern, name) for pattern in deny or ())
    allowed = allow is None or any(matches(pattern, name) for pattern in allow)
    assert Rule(allow=allow, deny=deny or ()).allows(name) == (allowed and not denied)


PATH_CASES: list[tuple[PathPatterns | None, str, Literal["read", "write"], bool]] = [
    (None, "/w", "read", True),
    (None, "/w/a/b", "read", True),
    (None, "/w/a", "write", True),
    (None, "/wx", "read", False),
    (None, "/etc/passwd", "read", False),
    (PathPatterns(), "/w/a", "read", True),
    (PathPatterns(read=()), "/w/a", "read", False),
    (PathPatterns(read=("src/**",)), "/w/src/a", "read", True),
    (PathPatterns(read=("src/**",)), "/w/src", "read", True),
    (PathPatterns(read=("src/**",)), "/w/a", "read", False),
    (PathPatterns(read=("./src/**",)), "/w/src/a", "read", True),
    (PathPatterns(read=("src/",)), "/w/src/a/b", "read", True),
    (PathPatterns(read=("src/",)), "/w/srcs", "read", False),
    (PathPatterns(read=(".",)), "/w", "read", True),
    (PathPatterns(read=(".",)), "/w/a", "read", False),
    (PathPatterns(read=("./",)), "/w/a", "read", True),
    (PathPatterns(read=("/data/**",)), "/data/x", "read", True),
    (PathPatterns(read=("**",)), "/etc/hosts", "read", True),
    (PathPatterns(read=("/**",)), "/etc/hosts", "read", True),
    (PathPatterns(read=("**",)), "/etc/shadow", "read", False),
    (PathPatterns(read=("**",)), "/home/u/.ssh/id", "read", False),
    (PathPatterns(read=("**",)), "/home/u/.SSH/id", "read", False),
    (PathPatterns(read=("**",)), "/proc/1/environ", "read", False),
    (PathPatterns(write=("out/**",)), "/w/out/a", "write", True),
    (PathPatterns(write=("out/**",)), "/w/a", "write", False),
    (PathPatterns(write=("out/**",)), "/w/a", "read", True),
    (PathPatterns(read=("out/**",), write=("in/**",)), "/w/in/a", "read", False),
    (PathPatterns(read=("**",), deny=("secret/**",)), "/w/secret/a", "read", False),
    (PathPatterns(read=("**",), deny=("secret/",)), "/w/secret/a", "read", False),
    (PathPatterns(read=("**",), deny=("secret/**",)), "/w/SECRET/a", "read", False),
    (PathPatterns(read=("**",), deny=("**/.env",)), "/w/a/.Env", "read", False),
    (PathPatterns(write=("**",), deny=("**/.git/**",)), "/w/.git/hooks/x", "write", False),
    (PathPatterns(read=("SRC/**",)), "/w/src/a", "read", False),
]


@pytest.mark.parametrize(("paths", "path", "access", "expected"), PATH_CASES)
def test_a_path_needs_a_pattern_that_allows_it_and_no_pattern_that_denies_it(
    paths: PathPatterns | None, path: str, access: Literal["read", "write"], expected: bool
):
    """Shows: T04, T05."""
    assert make_scope(paths=paths).check_path(path, access).ok is expected


def test_a_read_only_workspace_refuses_every_write_and_no_read():
    agent = Agent(name="a", paths=PathPatterns(read=("**",), write=("**",)))
    scope = build_scope(agent, ScopeInputs(root="/w", writable=False))
    assert scope.check_path("/w/a", "write").rule == "the workspace is read-only"
    assert scope.check_path("/w/a", "read").ok


def test_the_retinue_home_is_closed_in_every_scope():
    agent = Agent(name="a", paths=PathPatterns(read=("**",)))
    scope = build_scope(
        agent, ScopeInputs(root="/w"), OperatorPolicy(retinue_paths=(subtree_pattern("/w/home"),))
    )
    assert scope.check_path("/w/home/ledger.db").rule == "always closed /w/home/**"
    assert scope.closed_paths == ALWAYS_CLOSED_PATHS


@pytest.mark.parametrize("root", ["/", "/w", "/w/[a]", "/w/*", "/w\\x"])
def test_relative_patterns_start_at_the_workspace_whatever_its_name(root: str):
    path = f"{root.rstrip('/')}/src/a"
    scope = make_scope(root=root, paths=PathPatterns(read=("src/**",)), operator={"paths": ("src/a",)})
    assert matches(absolute_patterns(("src/**",), root)[0], path)
    assert not scope.check_path(path).ok
    assert scope.check_path(f"{root.rstrip('/')}/src/b").ok
    assert matches(subtree_pattern(root), path)


@given(path=st.text(st.characters(codec="utf-8"), min_size=1, max_size=20))
def test_an_escaped_path_matches_only_itself(path: str):
    assert matches(escape_glob(path), path)
    assert not matches(escape_glob(path), path + "x")
    assert not matches(escape_glob(path), "x" + path)


def test_different_scopes_have_different_hashes_and_equal_scopes_the_same_hash():
    same = [make_scope(tool_allow=("b", "a")).hash, make_scope(tool_allow=("a", "b")).hash]
    assert same[0] == same[1]
    different: list[dict[str, Any]] = [
        {},
        {"tool_allow": ()},
        {"tool_deny": ("a",)},
        {"capability_allow": ()},
        {"agent_deny": ("a",)},
        {"paths": PathPatterns(read=())},
        {"paths": PathPatterns(write=("a",))},
        {"paths": PathPatterns(deny=("a",))},
        {"root": "/x"},
        {"operator": {"tools": ("a",)}},
    ]
    assert len({make_scope(**fields).hash for fields in different}) == len(different)


def test_the_operator_ceiling_limits_every_definition():
    """Shows: D11."""
    wide = Agent(name="wide", paths=PathPatterns(read=("/**",), write=("/**",)))
    ceiling = Ceiling(set_by=OPERATOR, read=("sub/**",), write=(), deny=("**/secret",))
    scope = build_scope(wide, ScopeInputs(root="/w"), OperatorPolicy(ceiling=ceiling))
    assert scope.check_path("/w/sub/x").ok
    assert scope.check_path("/etc/hostname").rule == "the ceiling allows read only in /w/sub/**"
    assert not scope.check_path("/w/sub/secret").ok
    assert not scope.check_path("/w/sub/x", "write").ok
    read_only = OperatorPolicy(ceiling=Ceiling(set_by=OPERATOR, writable=False))
    assert not build_scope(wide, ScopeInputs(root="/w"), read_only).check_path("/w/x", "write").ok


def test_a_child_whose_preset_has_no_paths_may_access_no_path():
    """Shows: A091."""
    scope = build_scope(Agent(name="kid"), ScopeInputs(root="/w", is_child=True))
    assert scope.check_path("/w/a").rule == "no_scope_config"
    assert build_scope(Agent(name="kid"), ScopeInputs(root="/w")).check_path("/w/a").ok
    assert scope.hash != build_scope(Agent(name="kid"), ScopeInputs(root="/w")).hash


@pytest.mark.parametrize(
    "path",
    ["/w/.git/config", "/w/.git/hooks/pre-commit", "/w/.vscode/tasks.json", "/w/.bashrc", "/w/a/.zshrc"],
)
def test_files_that_other_programs_execute_are_closed_to_every_agent(path: str):
    assert not make_scope().check_path(path).ok


def test_the_tool_list_of_the_operator_ceiling_limits_an_edited_preset():
    """Shows: D11."""
    policy = OperatorPolicy(ceiling=Ceiling(set_by=OPERATOR, tools=("read",), capabilities=("files.*",)))
    scope = build_scope(Agent(name="edited", tool_allow=("*",)), ScopeInputs(root="/w"), policy)
    assert scope.check_tool("read", ["files.read"]).ok
    assert scope.check_tool("ls").rule == "the ceiling's tools: nothing allows it"
    assert (
        scope.check_tool("read", ["mail.write"]).rule
        == "the ceiling's capability mail.write: nothing allows it"
    )


def test_a_wide_grant_does_not_preapprove_writes_to_guarded_paths():
    """Shows: S11."""
    scope = make_scope(paths=PathPatterns(write=("**",)))
    assert scope.is_write_preapproved("/w/src/a")
    for path in ("/w/.github/workflows/ci.yml", "/w/a/.VSCode/settings.json", "/w/.mcp.json", "/w/sub/.git"):
        assert scope.check_path(path, "write").ok
        assert not scope.is_write_preapproved(path)
    named = make_scope(paths=PathPatterns(write=("**", ".github/workflows/**")))
    assert named.is_write_preapproved("/w/.github/workflows/ci.yml")
    assert not named.is_write_preapproved("/w/.mcp.json")
