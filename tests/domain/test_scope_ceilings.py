"""Ceilings: each ceiling and each operator denial only narrows a scope; only a user grant widens it, by one file."""

from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from retinue.domain.agent import Agent, PathPatterns, ShellCommands
from retinue.domain.ceiling import OPERATOR, Ceiling, OperatorPolicy, parse_ceiling
from retinue.domain.permissions.scope import DEFAULT_DENIED_PATHS, DEFAULT_WRITABLE_PATHS, Scope
from retinue.domain.permissions.scope_builder import ScopeInputs, build_scope, inherited_ceiling
from retinue.domain.rules import Rule, literal_components, unescape_component

Globs = tuple[str, ...]
Access = Literal["read", "write"]

NAMES = ("read", "write", "bash", "todo_add")
PATHS = ("/w", "/w/a", "/w/a/b", "/w/.env", "/x/a", "/tmp/a", "/etc/shadow", "/home/r/ledger.db")
ACCESSES: tuple[Access, ...] = ("read", "write")
PAIRS: list[tuple[Access, str]] = [(access, path) for access in ACCESSES for path in PATHS]

tool_globs = st.none() | st.lists(
    st.sampled_from(("read", "write", "bash", "todo_*", "*", "r*", "[rw]*")), max_size=3
).map(tuple)
path_globs = st.none() | st.lists(
    st.sampled_from(("/**", "/w/**", "/w/a", "/w/a/**", "/x/**", "**/.env", "/tmp/**", "a/**", ".")),
    max_size=3,
).map(tuple)
deny_lists = path_globs.map(lambda some: some or ())


def absolute_only(globs: Globs | None) -> Globs | None:
    return None if globs is None else tuple(each for each in globs if each.startswith(("/", "**")))


ceilings = st.builds(
    Ceiling,
    set_by=st.sampled_from((OPERATOR, "above", "higher")),
    tools=tool_globs,
    capabilities=tool_globs,
    agents=tool_globs,
    read=path_globs.map(absolute_only),
    write=path_globs.map(absolute_only),
    deny=deny_lists.map(absolute_only).map(lambda some: some or ()),
    writable=st.booleans(),
)
agents = st.builds(
    Agent,
    name=st.just("a"),
    tool_allow=tool_globs,
    tool_deny=tool_globs,
    capability_allow=tool_globs,
    capability_deny=tool_globs,
    agent_allow=tool_globs,
    agent_deny=tool_globs,
    paths=st.none() | st.builds(PathPatterns, read=path_globs, write=path_globs, deny=path_globs),
    ceiling=st.none()
    | st.fixed_dictionaries(
        {},
        optional={
            "tools": tool_globs,
            "agents": tool_globs,
            "writable": st.booleans(),
            "paths": st.fixed_dictionaries({}, optional={"read": path_globs, "write": path_globs}),
        },
    ),
)
scope_inputs = st.builds(
    ScopeInputs,
    root=st.sampled_from(("/w", "/", "/tmp/ws")),
    writable=st.booleans(),
    tmp_folder=st.sampled_from(("", "/home/r/tmp/1")),
    is_child=st.booleans(),
    ceilings=st.lists(ceilings, max_size=2).map(tuple),
)
operator_policies = st.builds(
    OperatorPolicy,
    deny_tools=tool_globs.map(lambda some: some or ()),
    deny_paths=deny_lists,
    deny_agents=tool_globs.map(lambda some: some or ()),
    retinue_paths=st.just(("/home/r/**",)),
    ceiling=ceilings.map(lambda ceiling: replace(ceiling, set_by=OPERATOR)),
)
scopes = st.builds(build_scope, agents, scope_inputs, operator_policies)


def allowed_actions(scope: Scope) -> set[tuple[str, ...]]:
    """Return every action of a small set of tools, agents and paths that a scope allows."""
    return (
        {("tool", name) for name in NAMES if scope.check_tool(name).ok}
        | {("tagged", name) for name in NAMES if scope.check_tool("read", (name, "bash")).ok}
        | {("agent", name) for name in NAMES if scope.check_agent(name).ok}
        | {(access, path) for access in ACCESSES for path in PATHS if scope.check_path(path, access).ok}
    )


@given(scopes, ceilings)
def test_an_additional_ceiling_never_widens_a_scope(scope: Scope, ceiling: Ceiling):
    """Shows: T06."""
    for order in ((*scope.ceilings, ceiling), (ceiling, *scope.ceilings)):
        assert allowed_actions(replace(scope, ceilings=order)) <= allowed_actions(scope)


@given(scopes)
def test_a_scope_is_the_intersection_of_its_own_rules_with_each_ceiling(scope: Scope):
    """Shows: T06."""
    alone = replace(scope, ceilings=())
    each = [allowed_actions(replace(alone, ceilings=(ceiling,))) for ceiling in scope.ceilings]
    assert allowed_actions(scope) == allowed_actions(alone).intersection(*each)


@given(agents, operator_policies)
def test_operator_denials_only_narrow_a_scope(agent: Agent, policy: OperatorPolicy):
    """Shows: L024."""
    scope = build_scope(agent, ScopeInputs(root="/w"))
    narrowed = build_scope(agent, ScopeInputs(root="/w"), policy)
    assert allowed_actions(narrowed) <= allowed_actions(scope)
    assert not {
        name
        for name in NAMES
        if narrowed.check_tool(name).ok and Scope(operator_tools=narrowed.operator_tools).check_tool(name).ok
    } & {
        name
        for name in NAMES
        if not Scope(operator_tools=replace(narrowed.operator_tools, deny=policy.deny_tools))
        .check_tool(name)
        .ok
    }


def test_operator_denials_of_tools_paths_and_agents_apply_and_change_nothing_else():
    """Shows: L024."""
    agent = Agent(name="a", agent_allow=("*",), agent_deny=("x",))
    policy = OperatorPolicy(deny_tools=("bash",), deny_paths=("secret/",), deny_agents=("coder",))
    narrowed = build_scope(agent, ScopeInputs(root="/w"), policy)
    assert narrowed.check_tool("bash").rule == "operator deny bash"
    assert narrowed.check_path("/w/secret/a").rule == "deny /w/secret/**"
    assert narrowed.check_agent("coder").rule == "agents: deny coder"
    assert narrowed.agents.deny == ("x", "coder")
    assert (
        narrowed.check_tool("read").ok,
        narrowed.check_path("/w/a").ok,
        narrowed.check_agent("other").ok,
    ) == (
        True,
        True,
        True,
    )


@given(agents, scopes, agents)
def test_a_child_never_has_more_permissions_than_its_inherited_ceiling(
    parent_agent: Agent, parent_scope: Scope, child_agent: Agent
):
    """Shows: T06, L024."""
    inherited = inherited_ceiling(parent_agent, parent_scope, set_by="above")
    inputs = ScopeInputs(
        root=parent_scope.root, is_child=True, ceilings=(*parent_scope.ceilings[1:], inherited)
    )
    child = build_scope(
        child_agent,
        inputs,
        OperatorPolicy(retinue_paths=parent_scope.retinue_paths, ceiling=parent_scope.ceilings[0]),
    )
    parent = replace(parent_scope, tmp_folder="")
    for access, path in PAIRS:
        if child.check_path(path, access).ok:
            assert inherited.path_denial_reason(path, access) is None
            assert parent_agent.ceiling is not None or parent.check_path(path, access).ok
    for name in NAMES:
        if child.check_tool(name).ok:
            assert inherited.tool_denial_reason(name, ()) is None
        if child.check_agent(name).ok:
            assert inherited.agent_denial_reason(name) is None


@given(scopes, st.sampled_from(PATHS), st.sampled_from(ACCESSES))
def test_a_user_grant_for_a_file_opens_only_that_file(scope: Scope, path: str, access: Access):
    granted = scope.with_user_grant(path, access)
    assert allowed_actions(granted) - allowed_actions(scope) <= {(access, path)}
    verdict = granted.check_path(path, access)
    if scope.closing_rule(path) or not scope.has_paths:
        assert not verdict.ok
    firm = [
        each for each in scope.ceilings if each.is_operator_ceiling and each.path_denial_reason(path, access)
    ]
    if firm and not granted.is_private_tmp(path):
        assert not verdict.ok
    if access == "write" and not scope.writable and not granted.is_private_tmp(path):
        assert not verdict.ok


def test_a_user_grant_overrides_a_parents_ceiling_but_no_deny_rule_and_no_operator_ceiling():
    scope = Scope(read=("/w/**",), root="/w", ceilings=(Ceiling(set_by="above", read=("/w/a",)),))
    assert not scope.check_path("/w/b").ok
    assert scope.with_user_grant("/w/b", "read").check_path("/w/b").ok
    assert not scope.with_user_grant("/w/b", "read").check_path("/w/b", "write").ok
    assert not scope.with_user_grant("/w/b", "read").check_path("/w/c").ok
    firm = replace(scope, ceilings=(Ceiling(set_by=OPERATOR, read=("/w/a",)),))
    assert (
        firm.with_user_grant("/w/b", "read").check_path("/w/b").rule == "the ceiling allows read only in /w/a"
    )
    denied = replace(scope, ceilings=(Ceiling(set_by="above", deny=("/w/b",)),))
    assert denied.check_path("/w/b").rule == "the ceiling of above denies /w/b"
    assert (
        denied.with_user_grant("/w/b", "read").check_path("/w/b").rule == "the ceiling of above denies /w/b"
    )
    own = replace(scope, deny=("/w/b",))
    assert own.with_user_grant("/w/b", "read").check_path("/w/b").rule == "deny /w/b"


@pytest.mark.parametrize("name", ["/w/a*", "/w/[a]", "/w/?", "/w/a\\b", "/w/**"])
def test_a_user_grant_for_a_name_with_wildcards_opens_only_that_file(name: str):
    for access in ACCESSES:
        granted = Scope(root="/w").with_user_grant(name, access)
        assert granted.check_path(name, access).ok
        assert not [path for path in PATHS if granted.check_path(path, access).ok]
    granted = Scope(root="/w", write=("/w/**",)).with_user_grant("/w/a", "write")
    assert (granted.is_write_preapproved("/w/a"), granted.is_write_preapproved("/w/b")) == (True, False)
    assert not Scope(root="/w").with_user_grant("/w/a", "read").is_write_preapproved("/w/a")


CEILING_FIELDS: list[dict[str, Any]] = [
    {},
    {"tools": ("a",)},
    {"capabilities": ("a",)},
    {"agents": ("a",)},
    {"read": ("/a",)},
    {"write": ("/a",)},
    {"deny": ("/a",)},
    {"writable": False},
    {"network": False},
    {"network": True},
    {"tools": ()},
    {"set_by": "b"},
]


def test_the_scope_hash_covers_every_field_that_a_decision_depends_on():
    """Shows: T10."""
    changes: list[dict[str, Any]] = [
        *({"ceilings": (replace(Ceiling(set_by="a"), **facts),)} for facts in CEILING_FIELDS),
        {"read": ("/a",)}, {"write": ("/a",)}, {"preapproved_writes": ("/a",)}, {"deny": ("/a",)}, {"closed_paths": ()},
        {"guarded_paths": ()}, {"retinue_paths": ("/a",)}, {"root": "/a"}, {"is_worktree": True}, {"tmp_folder": "/a"}, {"writable": False},
        {"has_paths": False}, {"shell_commands": ShellCommands(allow=("a",))}, {"shell_commands": ShellCommands(deny=("a",))},
        {"user_grants": PathPatterns(read=("/a",))}, {"user_grants": PathPatterns(write=("/a",))}, {},
    ]  # fmt: skip
    hashes = [replace(Scope(), **change).hash for change in changes]
    assert len(set(hashes)) == len(changes)
    assert Scope(workspace_label="other").hash == Scope().hash


@given(scopes, scopes)
def test_scopes_with_the_same_hash_make_the_same_decisions(one: Scope, other: Scope):
    if one.hash == other.hash:
        assert allowed_actions(one) == allowed_actions(other)


def test_an_agent_without_tools_can_give_tools_to_its_children_by_its_ceiling():
    """Shows: T07."""
    controller = Agent(name="c", tool_allow=(), ceiling={"tools": ("bash", "read")})
    parent_scope = build_scope(controller, ScopeInputs(root="/w"))
    assert not parent_scope.check_tool("bash").ok
    inherited = inherited_ceiling(controller, parent_scope, set_by="c")
    executor = build_scope(
        Agent(name="e", paths=PathPatterns(read=("/w/**",))),
        ScopeInputs(root="/w", is_child=True, ceilings=(inherited,)),
    )
    assert executor.check_tool("bash").ok
    assert executor.check_tool("write").rule == "the ceiling of c's tools: nothing allows it"
    without_tools = Agent(name="c", tool_allow=(), tool_deny=("*",), capability_allow=())
    assert (
        inherited_ceiling(
            without_tools, build_scope(without_tools, ScopeInputs(root="/w")), set_by="c"
        ).tool_denial_reason("bash", ("x",))
        is None
    )


def test_the_inherited_ceiling_is_the_definitions_ceiling_or_else_the_parents_own_paths():
    """Shows: T06, T07, L024."""
    narrow = Agent(name="n", paths=PathPatterns(read=("src/**",), write=("out/**",), deny=("**/.env",)))
    parent_scope = build_scope(narrow, ScopeInputs(root="/w", writable=False))
    assert inherited_ceiling(narrow, parent_scope, set_by="n") == Ceiling(
        set_by="n",
        read=("/w/src/**",),
        write=("/w/out/**",),
        deny=("**/.env",),
        writable=False,
    )
    with_ceiling = replace(
        narrow, ceiling={"paths": {"read": ["/**"], "write": [], "deny": ["x", "**/.env"]}, "writable": True}
    )
    assert inherited_ceiling(with_ceiling, parent_scope, set_by="n") == Ceiling(
        set_by="n", read=("/**",), write=(), deny=("**/.env", "/w/x"), writable=True
    )
    restricted = replace(
        narrow, ceiling={"writable": False, "network": False, "capabilities": ["a"], "agents": ["b"]}
    )
    inherited = inherited_ceiling(restricted, replace(parent_scope, writable=True), set_by="n")
    assert (inherited.writable, inherited.network, inherited.capabilities, inherited.agents) == (
        False,
        False,
        ("a",),
        ("b",),
    )
    assert (
        inherited_ceiling(replace(narrow, ceiling={"tools": []}), parent_scope, set_by="n").writable is False
    )


def test_a_ceiling_survives_a_round_trip_through_json():
    fields = {
        "tools": ["a"], "capabilities": ["b"], "agents": ["c"], "writable": False, "network": True,
        "paths": {"read": ["r", "/x/"], "write": [], "deny": ["d"]},
    }  # fmt: skip
    ceiling = parse_ceiling(fields, set_by="s", root="/w")
    assert ceiling == Ceiling(
        set_by="s", tools=("a",), capabilities=("b",), agents=("c",), writable=False, network=True,
        read=("/w/r", "/x/**"), write=(), deny=("/w/d",),
    )  # fmt: skip
    assert parse_ceiling(ceiling.as_json(), set_by="s", root="/elsewhere") == ceiling
    assert ceiling.as_json()["by"] == "s"
    assert parse_ceiling(None, set_by="s", root="/w") == Ceiling(set_by="s")
    assert parse_ceiling({"paths": None, "writable": None}, set_by="s", root="/w") == Ceiling(set_by="s")


DENIALS: list[tuple[Ceiling, str, Access, str | None]] = [
    (Ceiling(set_by=OPERATOR), "/w/a", "write", None),
    (Ceiling(set_by=OPERATOR, deny=("/w/A",)), "/w/a", "read", "the ceiling denies /w/A"),
    (Ceiling(set_by="s", writable=False), "/w/a", "write", "the ceiling of s denies all writes"),
    (Ceiling(set_by="s", writable=False), "/w/a", "read", None),
    (Ceiling(set_by="s", read=()), "/w/a", "read", "the ceiling of s allows no read access"),
    (Ceiling(set_by="s", read=()), "/w/a", "write", None),
    (
        Ceiling(set_by="s", write=("/x", "/y")),
        "/w/a",
        "write",
        "the ceiling of s allows write only in /x, /y",
    ),
    (Ceiling(set_by="s", write=("/w/**",)), "/w/a", "write", None),
    (Ceiling(set_by="s", read=("/w/A",)), "/w/a", "read", "the ceiling of s allows read only in /w/A"),
    (
        Ceiling(set_by="s", read=("/tmp/**",)),
        "/tmp/a",
        "read",
        "the ceiling of s allows no read access",
    ),
    (Ceiling(set_by="s", read=("/tmp/a/**",)), "/tmp/a/b", "read", None),
    (Ceiling(set_by="s", read=("/tmp/**",)), "/w/a", "read", "the ceiling of s allows read only in /tmp/**"),
]


@pytest.mark.parametrize(("ceiling", "path", "access", "denial"), DENIALS)
def test_a_denial_names_the_owner_of_the_ceiling(
    ceiling: Ceiling, path: str, access: Access, denial: str | None
):
    assert ceiling.path_denial_reason(path, access) == denial


def test_a_ceiling_pattern_for_tmp_applies_if_tmp_is_the_workspace():
    assert Ceiling(set_by="s", read=("/tmp/**",)).path_denial_reason("/tmp/a", "read", own_tmp=False) is None
    scope = Scope(root="/tmp", read=("/tmp/**",), ceilings=(Ceiling(set_by="s", read=("/tmp/**",)),))
    assert scope.check_path("/tmp/a").ok


@pytest.mark.parametrize(
    ("network", "capabilities", "denial"),
    [
        (False, ("network",), "the ceiling of s denies network access"),
        (False, ("f.read",), None),
        (True, ("network",), None),
        (None, ("network",), None),
    ],
)
def test_a_ceiling_without_network_denies_tools_that_need_it(
    network: bool | None, capabilities: tuple[str, ...], denial: str | None
):
    assert Ceiling(set_by="s", network=network).tool_denial_reason("web_fetch", capabilities) == denial


def test_a_ceiling_limits_tools_capabilities_and_agents():
    """Shows: T06."""
    ceiling = Ceiling(set_by="s", tools=("r*",), capabilities=("f.*",), agents=("c",))
    assert ceiling.tool_denial_reason("read", ("f.read", "f.write")) is None
    assert ceiling.tool_denial_reason("bash", ()) == "the ceiling of s's tools: nothing allows it"
    assert (
        ceiling.tool_denial_reason("read", ("f.read", "m.w"))
        == "the ceiling of s's capability m.w: nothing allows it"
    )
    assert ceiling.agent_denial_reason("c") is None
    assert ceiling.agent_denial_reason("d") == "the ceiling of s's agents: nothing allows it"
    scope = Scope(ceilings=(Ceiling(set_by="o"), ceiling))
    assert scope.check_tool("bash").rule == "the ceiling of s's tools: nothing allows it"
    assert scope.check_agent("d").rule == "the ceiling of s's agents: nothing allows it"
    assert (scope.check_tool("read").rule, scope.check_agent("c").rule) == ("in scope", "in scope")
    assert scope.check_tool("system_time").rule == "a tool of the runtime"


SCOPES_FROM_DEFINITIONS: list[tuple[PathPatterns | None, dict[str, Any], dict[str, Any]]] = [
    (None, {}, {"read": ("/w/**",), "write": ("/w/**",), "preapproved_writes": (), "deny": ()}),
    (None, {"tmp_folder": "/t"}, {"read": ("/w/**", "/tmp/**"), "write": ("/w/**", "/tmp/**"), "preapproved_writes": DEFAULT_WRITABLE_PATHS}),
    (None, {"is_child": True}, {"read": ("/w/**",), "write": (), "has_paths": False}),
    (PathPatterns(), {"is_child": True, "tmp_folder": "/t"}, {"write": ("/w/**", "/tmp/**"), "preapproved_writes": DEFAULT_WRITABLE_PATHS}),
    (PathPatterns(write=()), {"is_child": True, "tmp_folder": "/t"}, {"write": (), "preapproved_writes": (), "has_paths": True}),
    (PathPatterns(), {"tmp_folder": "/t"}, {"write": ("/w/**", "/tmp/**"), "preapproved_writes": DEFAULT_WRITABLE_PATHS}),
    (PathPatterns(write=()), {"tmp_folder": "/t"}, {"read": ("/w/**",), "write": (), "preapproved_writes": ()}),
    (PathPatterns(write=("a",)), {"tmp_folder": "/t"}, {"read": ("/w/**",), "write": ("/w/a",), "preapproved_writes": ("/w/a",)}),
    (PathPatterns(write=("/tmp/**", "a")), {}, {"read": ("/w/**",), "write": ("/w/a",), "preapproved_writes": ("/w/a",)}),
    (PathPatterns(write=("/tmp/**",)), {"tmp_folder": "/t"}, {"read": ("/w/**", "/tmp/**"), "write": DEFAULT_WRITABLE_PATHS}),
    (PathPatterns(read=()), {"tmp_folder": "/t"}, {"read": ("/tmp/**",)}),
    (PathPatterns(read=("a/", "**/b")), {}, {"read": ("/w/a/**", "**/b"), "write": ("/w/**",)}),
    (PathPatterns(deny=DEFAULT_DENIED_PATHS), {}, {"deny": DEFAULT_DENIED_PATHS}),
    (None, {"is_worktree": True, "workspace_label": "l", "writable": False}, {"is_worktree": True, "workspace_label": "l", "writable": False}),
    (None, {"user_grants": PathPatterns(read=("/x",))}, {"user_grants": PathPatterns(read=("/x",))}),
]  # fmt: skip


@pytest.mark.parametrize(("paths", "inputs", "expected"), SCOPES_FROM_DEFINITIONS)
def test_a_scope_is_built_from_a_definition_and_a_workspace(
    paths: PathPatterns | None, inputs: dict[str, Any], expected: dict[str, Any]
):
    """Shows: A013, A016, A086, A091, L003."""
    scope = build_scope(Agent(name="a", paths=paths), ScopeInputs(root="/w", **inputs))
    assert {key: getattr(scope, key) for key in expected} == expected
    assert (scope.root, scope.tmp_folder) == ("/w", inputs.get("tmp_folder", ""))


def test_a_scope_includes_every_part_of_the_operator_policy():
    """Shows: L024."""
    above = Ceiling(set_by="above", read=("/q/**",))
    policy = OperatorPolicy(
        deny_tools=("t",), deny_paths=("p/",), deny_agents=("g",), retinue_paths=("/home/**",),
        ceiling=Ceiling(set_by=OPERATOR, read=("r",), write=("w/",), deny=("d",), tools=("x",)),
    )  # fmt: skip
    agent = Agent(
        name="a", agent_allow=("*",), agent_deny=("n",), capability_allow=("c",), capability_deny=("e",),
        tool_allow=("u",), tool_deny=("v",), paths=PathPatterns(deny=("o",)), shell_commands=ShellCommands(allow=("ls",)),
    )  # fmt: skip
    scope = build_scope(agent, ScopeInputs(root="/w", ceilings=(above,)), policy)
    assert scope.operator_tools.deny == ("t",)
    assert scope.deny == ("/w/o", "/w/p/**")
    assert (scope.agents.allow, scope.agents.deny) == (("*",), ("n", "g"))
    assert (scope.tools.allow, scope.tools.deny) == (("u",), ("v",))
    assert (scope.capabilities.allow, scope.capabilities.deny) == (("c",), ("e",))
    assert scope.retinue_paths == ("/home/**",)
    assert scope.shell_commands == ShellCommands(allow=("ls",))
    assert scope.ceilings == (
        Ceiling(set_by=OPERATOR, read=("/w/r",), write=("/w/w/**",), deny=("/w/d",), tools=("x",)),
        above,
    )
    default = build_scope(Agent(name="a"), ScopeInputs(root="/w"))
    assert default.ceilings == (Ceiling(set_by=OPERATOR),)
    assert (default.tools.allow, default.tools.deny, default.agents.allow, default.agents.deny) == (
        None,
        (),
        None,
        (),
    )


def test_a_write_to_a_guarded_path_is_preapproved_only_if_a_grant_names_it():
    root = "/home/u/.retinue/worktrees/1"
    wide = Scope(root=root, write=(f"{root}/**",), preapproved_writes=(f"{root}/**",))
    assert wide.is_write_preapproved(f"{root}/src/a")
    for name in (".git", ".GIT", ".vscode/x", "a/.github/workflows/ci.yml", ".envrc"):
        assert wide.is_guarded(f"{root}/{name}")
        assert not wide.is_write_preapproved(f"{root}/{name}")
        assert wide.check_path(f"{root}/{name}", "write").ok
        assert wide.with_user_grant(f"{root}/{name}", "write").is_write_preapproved(f"{root}/{name}")
    named_patterns = (f"{root}/.vscode/**",)
    granted = replace(wide, write=wide.write + named_patterns, preapproved_writes=named_patterns)
    assert granted.is_write_preapproved(f"{root}/.vscode/x")
    assert not granted.is_write_preapproved(f"{root}/.vscode/.envrc")
    assert not Scope(root="/w", write=DEFAULT_WRITABLE_PATHS, tmp_folder="/t").is_guarded("/tmp/.envrc")


def test_a_worktree_is_open_although_it_is_inside_the_retinue_home():
    in_home = Scope(root="/h/worktrees/1", read=("/**",), retinue_paths=("/h/**",))
    worktree = replace(in_home, is_worktree=True)
    assert in_home.check_path("/h/worktrees/1/a").rule == "always closed /h/**"
    assert worktree.check_path("/h/worktrees/1/a").ok
    for closed in ("/h/worktrees/2/a", "/h/worktrees/12", "/h/ledger.db", "/h"):
        assert worktree.closing_rule(closed) == "always closed /h/**"
    assert worktree.closing_rule("/h/worktrees/1/.ssh/id") == "always closed **/.ssh/**"
    assert replace(worktree, deny=("**/A",)).closing_rule("/h/worktrees/1/a") == "deny **/A"


def test_the_operator_ceiling_has_one_name_everywhere():
    assert str(Ceiling(set_by=OPERATOR)) == "the ceiling"
    assert OPERATOR == "the configuration"


def test_a_path_component_is_literal_unless_it_has_a_wildcard():
    assert literal_components("/tmp/a~b/c d/*") == ("tmp", "a~b", "c d")
    assert [unescape_component(part) for part in ("a*", "a?", "[a]", "a\\*", "a\\", "\\\\", "")] == [
        None, None, None, "a*", "a\\", "\\", "",
    ]  # fmt: skip


def test_only_paths_below_tmp_are_private_and_exempt_from_ceilings():
    """Shows: F18, T06."""
    scope = Scope(
        root="/w",
        read=("/**",),
        write=("/**",),
        tmp_folder="/t",
        ceilings=(Ceiling(set_by="s", read=(), write=()),),
    )
    assert [scope.is_private_tmp(name) for name in ("/tmp", "/tmp/a", "/tmpx", "/w/a", "/", "/t/a")] == [
        True, True, False, False, False, False,
    ]  # fmt: skip
    for access in ACCESSES:
        assert scope.check_path("/tmp/a", access).ok
        assert not scope.check_path("/w/a", access).ok
        assert not scope.check_path("/t/a", access).ok


def test_a_default_scope_is_a_top_level_scope_at_the_root():
    assert Scope() == Scope(
        root="/",
        is_worktree=False,
        workspace_label="",
        tmp_folder="",
        writable=True,
        has_paths=True,
        depth=0,
        is_orchestrator=False,
    )
    assert ScopeInputs(root="/w") == ScopeInputs(
        root="/w",
        is_worktree=False,
        workspace_label="",
        tmp_folder="",
        writable=True,
        is_child=False,
        depth=0,
        ceilings=(),
        user_grants=PathPatterns(),
    )


def test_a_child_can_delegate_only_if_it_is_an_orchestrator_or_names_the_tool():
    assert Scope().can_delegate("door") is True
    assert Scope(depth=1).can_delegate("door") is False
    assert Scope(depth=1, is_orchestrator=True).can_delegate("door") is True
    assert Scope(depth=1, tools=Rule(allow=("door",))).can_delegate("door") is True
    assert Scope(depth=1, tools=Rule(allow=("do*",))).can_delegate("door") is False


def test_a_scope_preapproves_the_commands_of_its_definition():
    scope = Scope(shell_commands=ShellCommands(allow=("git",)))
    assert (scope.check_command_preapproved("git status").ok, scope.check_command_preapproved("ls").ok) == (
        True,
        False,
    )


def test_a_workspace_stays_writable_when_the_user_grants_another_write_path():
    agent = Agent(name="a", paths=PathPatterns(write=("/x",)))
    narrow = build_scope(agent, ScopeInputs(root="/w"))
    with_grant = build_scope(agent, ScopeInputs(root="/w", user_grants=PathPatterns(write=("/w/**", "/x"))))
    assert (narrow.write, with_grant.write, with_grant.preapproved_writes) == (
        ("/x",),
        ("/w/**", "/x"),
        ("/x",),
    )
    child = build_scope(
        agent, ScopeInputs(root="/w", is_child=True, user_grants=PathPatterns(write=("/w/**", "/x")))
    )
    assert child.write == ("/x",)


def test_writes_in_a_worktree_are_preapproved_unless_the_definition_names_write_paths():
    worktree = build_scope(Agent(name="a"), ScopeInputs(root="/h/1", is_worktree=True))
    assert worktree.preapproved_writes == ("/h/1/**",)
    assert worktree.is_write_preapproved("/h/1/a")
    with_paths = build_scope(
        Agent(name="a", paths=PathPatterns(write=("out",))), ScopeInputs(root="/h/1", is_worktree=True)
    )
    assert with_paths.preapproved_writes == ("/h/1/out",)
