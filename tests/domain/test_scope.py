"""Scope: deny wins, absence is no restriction, an empty list is nothing, and one function decides."""

from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.domain.agent import Agent, Paths
from retinue.domain.ceiling import OPERATOR, Bounds, Ceiling
from retinue.domain.glob import matches
from retinue.domain.permissions.protected_paths import ALWAYS_CLOSED
from retinue.domain.permissions.scope import Scope
from retinue.domain.permissions.scope_builder import Ground, compile_scope
from retinue.domain.rules import Rule, absolute, below, literal

Globs = tuple[str, ...]


def scope_of(*, root: str = "/w", operator: dict[str, Globs] | None = None, **lists: Any) -> Scope:
    said = operator or {}
    bounds = Bounds(
        deny_tools=said.get("tools", ()), deny_paths=said.get("paths", ()), deny_agents=said.get("agents", ())
    )
    return compile_scope(Agent(name="a", **lists), Ground(root=root), bounds)


ALL = ("reading_list_add", "reading_list_delete", "todo_add", "todo_x_delete", "bash")

TOOLS: list[tuple[Globs | None, Globs | None, tuple[str, ...]]] = [
    (None, None, ALL),
    ((), None, ()),
    (None, (), ALL),
    (("*",), None, ALL),
    (("**",), None, ALL),
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
    (None, ("BASH",), ALL),
    (("bash ",), None, ()),
    (("",), None, ()),
]


@pytest.mark.parametrize(("allow", "deny", "expected"), TOOLS)
def test_tools_must_match_the_allow_list_and_then_not_the_deny_list(
    allow: Globs | None, deny: Globs | None, expected: tuple[str, ...]
):
    """Shows: C055, C056, C057, C058, T04, T05."""
    scope = scope_of(tool_allow=allow, tool_deny=deny)
    assert tuple(name for name in ALL if scope.tool(name).ok) == expected


CAPABILITIES: list[tuple[Globs | None, Globs | None, Globs, bool]] = [
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


@pytest.mark.parametrize(("allow", "deny", "tagged", "expected"), CAPABILITIES)
def test_every_capability_must_be_allowed_none_denied_and_a_tool_without_any_is_not_concerned(
    allow: Globs | None, deny: Globs | None, tagged: Globs, expected: bool
):
    """Shows: C060, C061, C062, T03, T05."""
    assert scope_of(capability_allow=allow, capability_deny=deny).tool("x", tagged).ok is expected


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
def test_agents_are_seen_by_the_same_rule(allow: Globs | None, deny: Globs | None, expected: Globs):
    """Shows: C064, T05."""
    agents = scope_of(agent_allow=allow, agent_deny=deny).agents
    assert tuple(name for name in ("coder", "researcher", "reviewer") if agents.permits(name)) == expected


def test_the_runtimes_own_tools_pass_every_list_but_the_operators():
    """Shows: C059."""
    lists: dict[str, Any] = {"tool_allow": ("todo_*",), "tool_deny": ("*",), "capability_allow": ()}
    assert scope_of(**lists).tool("system_time", ("x",)).ok
    assert not scope_of(**lists).tool("todo_add").ok
    assert not scope_of(**lists, operator={"tools": ("system_*",)}).tool("system_time").ok


def test_the_operators_word_is_above_every_list():
    scope = scope_of(
        tool_allow=("*",), operator={"tools": ("bash",), "agents": ("root",), "paths": ("/w/x/**",)}
    )
    assert scope.tool("bash").rule == "operator deny bash"
    assert not scope.agents.permits("root")
    assert not scope.path("/w/x/y").ok


def test_a_verdict_names_the_rule_that_decided():
    scope = scope_of(tool_allow=("todo_*",), tool_deny=("todo_x*",), capability_deny=("net.*",))
    assert [scope.tool(name).rule for name in ("todo_x", "bash")] == [
        "tools: deny todo_x*",
        "tools: nothing allows it",
    ]
    assert scope.tool("todo_a", ("net.out",)).rule == "capability net.out: deny net.*"
    assert scope.tool("todo_a").rule == "in scope"
    assert Rule(allow=("a*",)).verdict("ab").rule == "allow a*"
    assert Rule().verdict("ab").rule == "no list"


NAMES = st.text("ab_", min_size=1, max_size=5)
LISTS = st.none() | st.lists(st.text("ab_*?", max_size=4), max_size=4).map(tuple)


@given(allow=LISTS, deny=LISTS, more=LISTS, name=NAMES)
def test_a_longer_deny_list_never_allows_more(
    allow: Globs | None, deny: Globs | None, more: Globs | None, name: str
):
    """Shows: T04."""
    before = Rule(allow=allow, deny=deny or ()).permits(name)
    after = Rule(allow=allow, deny=(deny or ()) + (more or ())).permits(name)
    assert before or not after


@given(allow=LISTS, deny=LISTS, name=NAMES)
def test_a_rule_is_its_sentence(allow: Globs | None, deny: Globs | None, name: str):
    """Shows: T04, T05."""
    denied = any(matches(pattern, name) for pattern in deny or ())
    allowed = allow is None or any(matches(pattern, name) for pattern in allow)
    assert Rule(allow=allow, deny=deny or ()).permits(name) == (allowed and not denied)


PATHS: list[tuple[Paths | None, str, Literal["read", "write"], bool]] = [
    (None, "/w", "read", True),
    (None, "/w/a/b", "read", True),
    (None, "/w/a", "write", True),
    (None, "/wx", "read", False),
    (None, "/etc/passwd", "read", False),
    (Paths(), "/w/a", "read", True),
    (Paths(read=()), "/w/a", "read", False),
    (Paths(read=("src/**",)), "/w/src/a", "read", True),
    (Paths(read=("src/**",)), "/w/src", "read", True),
    (Paths(read=("src/**",)), "/w/a", "read", False),
    (Paths(read=("./src/**",)), "/w/src/a", "read", True),
    (Paths(read=("src/",)), "/w/src/a/b", "read", True),
    (Paths(read=("src/",)), "/w/srcs", "read", False),
    (Paths(read=(".",)), "/w", "read", True),
    (Paths(read=(".",)), "/w/a", "read", False),
    (Paths(read=("./",)), "/w/a", "read", True),
    (Paths(read=("/data/**",)), "/data/x", "read", True),
    (Paths(read=("**",)), "/etc/hosts", "read", True),
    (Paths(read=("/**",)), "/etc/hosts", "read", True),
    (Paths(read=("**",)), "/etc/shadow", "read", False),
    (Paths(read=("**",)), "/home/u/.ssh/id", "read", False),
    (Paths(read=("**",)), "/home/u/.SSH/id", "read", False),
    (Paths(read=("**",)), "/proc/1/environ", "read", False),
    (Paths(write=("out/**",)), "/w/out/a", "write", True),
    (Paths(write=("out/**",)), "/w/a", "write", False),
    (Paths(write=("out/**",)), "/w/a", "read", True),
    (Paths(read=("out/**",), write=("in/**",)), "/w/in/a", "read", False),
    (Paths(read=("**",), deny=("secret/**",)), "/w/secret/a", "read", False),
    (Paths(read=("**",), deny=("secret/",)), "/w/secret/a", "read", False),
    (Paths(read=("**",), deny=("secret/**",)), "/w/SECRET/a", "read", False),
    (Paths(read=("**",), deny=("**/.env",)), "/w/a/.Env", "read", False),
    (Paths(write=("**",), deny=("**/.git/**",)), "/w/.git/hooks/x", "write", False),
    (Paths(read=("SRC/**",)), "/w/src/a", "read", False),
]


@pytest.mark.parametrize(("paths", "real", "wish", "expected"), PATHS)
def test_a_path_needs_a_pattern_that_allows_it_and_none_that_denies_it(
    paths: Paths | None, real: str, wish: Literal["read", "write"], expected: bool
):
    """Shows: T04, T05."""
    assert scope_of(paths=paths).path(real, wish).ok is expected


def test_a_read_only_workspace_refuses_every_write_and_no_read():
    agent = Agent(name="a", paths=Paths(read=("**",), write=("**",)))
    scope = compile_scope(agent, Ground(root="/w", writable=False))
    assert scope.path("/w/a", "write").rule == "the workspace is read-only"
    assert scope.path("/w/a", "read").ok


def test_retinues_own_home_is_closed_whatever_the_scope_says():
    agent = Agent(name="a", paths=Paths(read=("**",)))
    scope = compile_scope(agent, Ground(root="/w"), Bounds(closed=(below("/w/home"),)))
    assert scope.path("/w/home/ledger.db").rule == "always closed /w/home/**"
    assert scope.closed == ALWAYS_CLOSED


@pytest.mark.parametrize("root", ["/", "/w", "/w/[a]", "/w/*", "/w\\x"])
def test_relative_patterns_start_at_the_workspace_whatever_it_is_called(root: str):
    real = f"{root.rstrip('/')}/src/a"
    scope = scope_of(root=root, paths=Paths(read=("src/**",)), operator={"paths": ("src/a",)})
    assert matches(absolute(("src/**",), root)[0], real)
    assert not scope.path(real).ok
    assert scope.path(f"{root.rstrip('/')}/src/b").ok
    assert matches(below(root), real)


@given(path=st.text(st.characters(codec="utf-8"), min_size=1, max_size=20))
def test_a_literal_path_means_only_itself(path: str):
    assert matches(literal(path), path)
    assert not matches(literal(path), path + "x")
    assert not matches(literal(path), "x" + path)


def test_the_hash_tells_scopes_apart_and_equal_ones_not():
    same = [scope_of(tool_allow=("b", "a")).hash, scope_of(tool_allow=("a", "b")).hash]
    assert same[0] == same[1]
    different: list[dict[str, Any]] = [
        {},
        {"tool_allow": ()},
        {"tool_deny": ("a",)},
        {"capability_allow": ()},
        {"agent_deny": ("a",)},
        {"paths": Paths(read=())},
        {"paths": Paths(write=("a",))},
        {"paths": Paths(deny=("a",))},
        {"root": "/x"},
        {"operator": {"tools": ("a",)}},
    ]
    assert len({scope_of(**facts).hash for facts in different}) == len(different)


def test_the_ceiling_holds_whatever_a_definition_asks_for():
    """Shows: D11."""
    wide = Agent(name="wide", paths=Paths(read=("/**",), write=("/**",)))
    ceiling = Ceiling(by=OPERATOR, read=("sub/**",), write=(), deny=("**/secret",))
    scope = compile_scope(wide, Ground(root="/w"), Bounds(ceiling=ceiling))
    assert scope.path("/w/sub/x").ok
    assert scope.path("/etc/hostname").rule == "the ceiling allows read only in /w/sub/**"
    assert not scope.path("/w/sub/secret").ok
    assert not scope.path("/w/sub/x", "write").ok
    shut = Bounds(ceiling=Ceiling(by=OPERATOR, writable=False))
    assert not compile_scope(wide, Ground(root="/w"), shut).path("/w/x", "write").ok


def test_a_child_whose_preset_lost_its_paths_has_none():
    """Shows: A091."""
    scope = compile_scope(Agent(name="kid"), Ground(root="/w", child=True))
    assert scope.path("/w/a").rule == "no_scope_config"
    assert compile_scope(Agent(name="kid"), Ground(root="/w")).path("/w/a").ok
    assert scope.hash != compile_scope(Agent(name="kid"), Ground(root="/w")).hash


@pytest.mark.parametrize(
    "path",
    ["/w/.git/config", "/w/.git/hooks/pre-commit", "/w/.vscode/tasks.json", "/w/.bashrc", "/w/a/.zshrc"],
)
def test_what_others_would_run_is_closed_to_every_agent(path: str):
    assert not scope_of().path(path).ok


def test_the_ceilings_tools_hold_for_whatever_preset_a_session_obeys():
    """Shows: D11."""
    bounds = Bounds(ceiling=Ceiling(by=OPERATOR, tools=("read",), capabilities=("files.*",)))
    scope = compile_scope(Agent(name="edited", tool_allow=("*",)), Ground(root="/w"), bounds)
    assert scope.tool("read", ["files.read"]).ok
    assert scope.tool("ls").rule == "the ceiling's tools: nothing allows it"
    assert scope.tool("read", ["mail.write"]).rule == "the ceiling's capability mail.write: nothing allows it"


def test_a_wide_grant_does_not_speak_for_what_other_programs_obey():
    """Shows: S11."""
    scope = scope_of(paths=Paths(write=("**",)))
    assert scope.grants_write("/w/src/a")
    for place in ("/w/.github/workflows/ci.yml", "/w/a/.VSCode/settings.json", "/w/.mcp.json", "/w/sub/.git"):
        assert scope.path(place, "write").ok
        assert not scope.grants_write(place)
    outright = scope_of(paths=Paths(write=("**", ".github/workflows/**")))
    assert outright.grants_write("/w/.github/workflows/ci.yml")
    assert not outright.grants_write("/w/.mcp.json")
