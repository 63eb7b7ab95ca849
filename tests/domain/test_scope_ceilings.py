"""Rights only shrink: own, within every ceiling above, under what the operator denies; only a person widens, by one file."""

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
Wish = Literal["read", "write"]

NAMES = ("read", "write", "bash", "todo_add")
REALS = ("/w", "/w/a", "/w/a/b", "/w/.env", "/x/a", "/tmp/a", "/etc/shadow", "/home/r/ledger.db")
WISHES: tuple[Wish, ...] = ("read", "write")
PAIRS: list[tuple[Wish, str]] = [(wish, real) for wish in WISHES for real in REALS]

tool_globs = st.none() | st.lists(
    st.sampled_from(("read", "write", "bash", "todo_*", "*", "r*", "[rw]*")), max_size=3
).map(tuple)
path_globs = st.none() | st.lists(
    st.sampled_from(("/**", "/w/**", "/w/a", "/w/a/**", "/x/**", "**/.env", "/tmp/**", "a/**", ".")),
    max_size=3,
).map(tuple)
denies = path_globs.map(lambda some: some or ())


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
    deny=denies.map(absolute_only).map(lambda some: some or ()),
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
grounds = st.builds(
    ScopeInputs,
    root=st.sampled_from(("/w", "/", "/tmp/ws")),
    writable=st.booleans(),
    tmp_folder=st.sampled_from(("", "/home/r/tmp/1")),
    is_child=st.booleans(),
    ceilings=st.lists(ceilings, max_size=2).map(tuple),
)
bounds = st.builds(
    OperatorPolicy,
    deny_tools=tool_globs.map(lambda some: some or ()),
    deny_paths=denies,
    deny_agents=tool_globs.map(lambda some: some or ()),
    closed_paths=st.just(("/home/r/**",)),
    ceiling=ceilings.map(lambda one: replace(one, set_by=OPERATOR)),
)
scopes = st.builds(build_scope, agents, grounds, bounds)


def may(scope: Scope) -> set[tuple[str, ...]]:
    """Everything out of our little world that a scope lets through."""
    return (
        {("tool", name) for name in NAMES if scope.check_tool(name).ok}
        | {("tagged", name) for name in NAMES if scope.check_tool("read", (name, "bash")).ok}
        | {("agent", name) for name in NAMES if scope.check_agent(name).ok}
        | {(wish, real) for wish in WISHES for real in REALS if scope.check_path(real, wish).ok}
    )


@given(scopes, ceilings)
def test_a_ceiling_more_never_widens(scope: Scope, ceiling: Ceiling):
    """Shows: T06."""
    for order in ((*scope.ceilings, ceiling), (ceiling, *scope.ceilings)):
        assert may(replace(scope, ceilings=order)) <= may(scope)


@given(scopes)
def test_effective_is_ones_own_within_each_ceiling(scope: Scope):
    """Shows: T06."""
    alone = replace(scope, ceilings=())
    each = [may(replace(alone, ceilings=(ceiling,))) for ceiling in scope.ceilings]
    assert may(scope) == may(alone).intersection(*each)


@given(scopes, bounds)
def test_what_the_operator_denies_now_only_narrows(scope: Scope, now: OperatorPolicy):
    """Shows: L024."""
    under = scope.with_operator_denials(now)
    assert may(under) <= may(scope)
    assert under.with_operator_denials(now) == under
    assert not {
        name
        for name in NAMES
        if under.check_tool(name).ok and Scope(operator_tools=under.operator_tools).check_tool(name).ok
    } & {
        name
        for name in NAMES
        if not Scope(operator_tools=replace(under.operator_tools, deny=now.deny_tools)).check_tool(name).ok
    }
    assert (under is scope) == (may(under) == may(scope) and under.hash == scope.hash)


def test_every_kind_of_live_deny_is_obeyed_and_nothing_else_is_lost():
    """Shows: L024."""
    scope = build_scope(Agent(name="a", agent_allow=("*",), agent_deny=("x",)), ScopeInputs(root="/w"))
    under = scope.with_operator_denials(
        OperatorPolicy(deny_tools=("bash",), deny_paths=("secret/",), deny_agents=("coder",))
    )
    assert under.check_tool("bash").rule == "operator deny bash"
    assert under.check_path("/w/secret/a").rule == "deny /w/secret/**"
    assert under.check_agent("coder").rule == "agents: deny coder"
    assert under.agents.deny == ("x", "coder")
    assert (under.check_tool("read").ok, under.check_path("/w/a").ok, under.check_agent("other").ok) == (
        True,
        True,
        True,
    )
    for one in (
        OperatorPolicy(deny_tools=("b",)),
        OperatorPolicy(deny_paths=("b",)),
        OperatorPolicy(deny_agents=("b",)),
    ):
        assert scope.with_operator_denials(one) != scope
    assert scope.with_operator_denials(OperatorPolicy()) is scope


@given(agents, scopes, agents)
def test_a_child_never_has_what_its_parent_could_not_hand_on(above: Agent, rights: Scope, below: Agent):
    """Shows: T06, L024."""
    handed = inherited_ceiling(above, rights, set_by="above")
    ground = ScopeInputs(root=rights.root, is_child=True, ceilings=(*rights.ceilings[1:], handed))
    child = build_scope(
        below, ground, OperatorPolicy(closed_paths=rights.retinue_paths, ceiling=rights.ceilings[0])
    )
    parent = replace(rights, tmp_folder="")
    for wish, real in PAIRS:
        if child.check_path(real, wish).ok:
            assert handed.path_objection(real, wish) is None
            assert above.ceiling is not None or parent.check_path(real, wish).ok
    for name in NAMES:
        if child.check_tool(name).ok:
            assert handed.tool_objection(name, ()) is None
        if child.check_agent(name).ok:
            assert handed.agent_objection(name) is None


@given(scopes, st.sampled_from(REALS), st.sampled_from(WISHES))
def test_a_file_allowed_once_opens_that_file_and_no_other(scope: Scope, real: str, wish: Wish):
    wider = scope.with_user_grant(real, wish)
    assert may(wider) - may(scope) <= {(wish, real)}
    verdict = wider.check_path(real, wish)
    if scope.closing_rule(real) or not scope.has_paths:
        assert not verdict.ok
    firm = [each for each in scope.ceilings if each.is_operator_ceiling and each.path_objection(real, wish)]
    if firm and not wider.is_private_tmp(real):
        assert not verdict.ok
    if wish == "write" and not scope.writable and not wider.is_private_tmp(real):
        assert not verdict.ok


def test_a_persons_word_lifts_what_a_session_could_not_hand_on_and_never_a_deny_or_the_operators_ceiling():
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
def test_a_file_with_globs_in_its_name_opens_only_itself(name: str):
    for wish in WISHES:
        wider = Scope(root="/w").with_user_grant(name, wish)
        assert wider.check_path(name, wish).ok
        assert not [real for real in REALS if wider.check_path(real, wish).ok]
    once = Scope(root="/w", write=("/w/**",)).with_user_grant("/w/a", "write")
    assert (once.is_write_preapproved("/w/a"), once.is_write_preapproved("/w/b")) == (True, False)
    assert not Scope(root="/w").with_user_grant("/w/a", "read").is_write_preapproved("/w/a")


FACTS: list[dict[str, Any]] = [
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


def test_the_hash_differs_with_everything_that_a_verdict_rests_on():
    """Shows: T10."""
    changes: list[dict[str, Any]] = [
        *({"ceilings": (replace(Ceiling(set_by="a"), **facts),)} for facts in FACTS),
        {"read": ("/a",)}, {"write": ("/a",)}, {"preapproved_writes": ("/a",)}, {"deny": ("/a",)}, {"closed_paths": ()},
        {"guarded_paths": ()}, {"retinue_paths": ("/a",)}, {"root": "/a"}, {"is_worktree": True}, {"tmp_folder": "/a"}, {"writable": False},
        {"has_paths": False}, {"shell_commands": ShellCommands(allow=("a",))}, {"shell_commands": ShellCommands(deny=("a",))},
        {"user_grants": PathPatterns(read=("/a",))}, {"user_grants": PathPatterns(write=("/a",))}, {},
    ]  # fmt: skip
    hashes = [replace(Scope(), **change).hash for change in changes]
    assert len(set(hashes)) == len(changes)
    assert Scope(workspace_label="other").hash == Scope().hash


@given(scopes, scopes)
def test_scopes_of_one_hash_give_the_same_verdicts(one: Scope, other: Scope):
    if one.hash == other.hash:
        assert may(one) == may(other)


def test_a_controller_without_tools_may_have_others_act():
    """Shows: T07."""
    controller = Agent(name="c", tool_allow=(), ceiling={"tools": ("bash", "read")})
    rights = build_scope(controller, ScopeInputs(root="/w"))
    assert not rights.check_tool("bash").ok
    handed = inherited_ceiling(controller, rights, set_by="c")
    executor = build_scope(
        Agent(name="e", paths=PathPatterns(read=("/w/**",))),
        ScopeInputs(root="/w", is_child=True, ceilings=(handed,)),
    )
    assert executor.check_tool("bash").ok
    assert executor.check_tool("write").rule == "the ceiling of c's tools: nothing allows it"
    silent = Agent(name="c", tool_allow=(), tool_deny=("*",), capability_allow=())
    assert (
        inherited_ceiling(silent, build_scope(silent, ScopeInputs(root="/w")), set_by="c").tool_objection(
            "bash", ("x",)
        )
        is None
    )


def test_what_is_handed_on_is_the_definitions_ceiling_and_else_ones_own_paths():
    """Shows: T06, T07, L024."""
    narrow = Agent(name="n", paths=PathPatterns(read=("src/**",), write=("out/**",), deny=("**/.env",)))
    rights = build_scope(narrow, ScopeInputs(root="/w", writable=False))
    assert inherited_ceiling(narrow, rights, set_by="n") == Ceiling(
        set_by="n",
        read=("/w/src/**",),
        write=("/w/out/**",),
        deny=("**/.env",),
        writable=False,
    )
    said = replace(
        narrow, ceiling={"paths": {"read": ["/**"], "write": [], "deny": ["x", "**/.env"]}, "writable": True}
    )
    assert inherited_ceiling(said, rights, set_by="n") == Ceiling(
        set_by="n", read=("/**",), write=(), deny=("**/.env", "/w/x"), writable=True
    )
    shut = replace(
        narrow, ceiling={"writable": False, "network": False, "capabilities": ["a"], "agents": ["b"]}
    )
    handed = inherited_ceiling(shut, replace(rights, writable=True), set_by="n")
    assert (handed.writable, handed.network, handed.capabilities, handed.agents) == (
        False,
        False,
        ("a",),
        ("b",),
    )
    assert inherited_ceiling(replace(narrow, ceiling={"tools": []}), rights, set_by="n").writable is False


def test_a_ceiling_as_it_is_written_is_the_ceiling():
    said = {
        "tools": ["a"], "capabilities": ["b"], "agents": ["c"], "writable": False, "network": True,
        "paths": {"read": ["r", "/x/"], "write": [], "deny": ["d"]},
    }  # fmt: skip
    ceiling = parse_ceiling(said, set_by="s", root="/w")
    assert ceiling == Ceiling(
        set_by="s", tools=("a",), capabilities=("b",), agents=("c",), writable=False, network=True,
        read=("/w/r", "/x/**"), write=(), deny=("/w/d",),
    )  # fmt: skip
    assert parse_ceiling(ceiling.as_json(), set_by="s", root="/elsewhere") == ceiling
    assert ceiling.as_json()["by"] == "s"
    assert parse_ceiling(None, set_by="s", root="/w") == Ceiling(set_by="s")
    assert parse_ceiling({"paths": None, "writable": None}, set_by="s", root="/w") == Ceiling(set_by="s")


OBJECTIONS: list[tuple[Ceiling, str, Wish, str | None]] = [
    (Ceiling(set_by=OPERATOR), "/w/a", "write", None),
    (Ceiling(set_by=OPERATOR, deny=("/w/A",)), "/w/a", "read", "the ceiling denies /w/A"),
    (Ceiling(set_by="s", writable=False), "/w/a", "write", "the ceiling of s lets nothing be written"),
    (Ceiling(set_by="s", writable=False), "/w/a", "read", None),
    (Ceiling(set_by="s", read=()), "/w/a", "read", "the ceiling of s allows read only in nothing"),
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
        "the ceiling of s allows read only in nothing",
    ),
    (Ceiling(set_by="s", read=("/tmp/a/**",)), "/tmp/a/b", "read", None),
    (Ceiling(set_by="s", read=("/tmp/**",)), "/w/a", "read", "the ceiling of s allows read only in /tmp/**"),
]


@pytest.mark.parametrize(("ceiling", "real", "wish", "objection"), OBJECTIONS)
def test_an_objection_names_whose_it_is(ceiling: Ceiling, real: str, wish: Wish, objection: str | None):
    assert ceiling.path_objection(real, wish) == objection


def test_where_tmp_is_the_workspace_a_ceilings_pattern_of_it_counts():
    assert Ceiling(set_by="s", read=("/tmp/**",)).path_objection("/tmp/a", "read", own_tmp=False) is None
    scope = Scope(root="/tmp", read=("/tmp/**",), ceilings=(Ceiling(set_by="s", read=("/tmp/**",)),))
    assert scope.check_path("/tmp/a").ok


def test_a_ceiling_speaks_for_tools_capabilities_and_agents():
    """Shows: T06."""
    ceiling = Ceiling(set_by="s", tools=("r*",), capabilities=("f.*",), agents=("c",))
    assert ceiling.tool_objection("read", ("f.read", "f.write")) is None
    assert ceiling.tool_objection("bash", ()) == "the ceiling of s's tools: nothing allows it"
    assert (
        ceiling.tool_objection("read", ("f.read", "m.w"))
        == "the ceiling of s's capability m.w: nothing allows it"
    )
    assert ceiling.agent_objection("c") is None
    assert ceiling.agent_objection("d") == "the ceiling of s's agents: nothing allows it"
    scope = Scope(ceilings=(Ceiling(set_by="o"), ceiling))
    assert scope.check_tool("bash").rule == "the ceiling of s's tools: nothing allows it"
    assert scope.check_agent("d").rule == "the ceiling of s's agents: nothing allows it"
    assert (scope.check_tool("read").rule, scope.check_agent("c").rule) == ("in scope", "in scope")
    assert scope.check_tool("system_time").rule == "the runtime's own"


COMPILED: list[tuple[PathPatterns | None, dict[str, Any], dict[str, Any]]] = [
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


@pytest.mark.parametrize(("paths", "ground", "expected"), COMPILED)
def test_a_definition_and_a_place_make_a_scope(
    paths: PathPatterns | None, ground: dict[str, Any], expected: dict[str, Any]
):
    """Shows: A013, A016, A086, A091, L003."""
    scope = build_scope(Agent(name="a", paths=paths), ScopeInputs(root="/w", **ground))
    assert {key: getattr(scope, key) for key in expected} == expected
    assert (scope.root, scope.tmp_folder) == ("/w", ground.get("tmp_folder", ""))


def test_everything_the_operator_says_is_compiled_in():
    """Shows: L024."""
    above = Ceiling(set_by="above", read=("/q/**",))
    bounds = OperatorPolicy(
        deny_tools=("t",), deny_paths=("p/",), deny_agents=("g",), closed_paths=("/home/**",),
        ceiling=Ceiling(set_by=OPERATOR, read=("r",), write=("w/",), deny=("d",), tools=("x",)),
    )  # fmt: skip
    agent = Agent(
        name="a", agent_allow=("*",), agent_deny=("n",), capability_allow=("c",), capability_deny=("e",),
        tool_allow=("u",), tool_deny=("v",), paths=PathPatterns(deny=("o",)), shell_commands=ShellCommands(allow=("ls",)),
    )  # fmt: skip
    scope = build_scope(agent, ScopeInputs(root="/w", ceilings=(above,)), bounds)
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
    bare = build_scope(Agent(name="a"), ScopeInputs(root="/w"))
    assert bare.ceilings == (Ceiling(set_by=OPERATOR),)
    assert (bare.tools.allow, bare.tools.deny, bare.agents.allow, bare.agents.deny) == (None, (), None, ())


def test_what_other_programs_obey_is_changed_only_where_a_grant_names_it():
    root = "/home/u/.retinue/worktrees/1"
    wide = Scope(root=root, write=(f"{root}/**",), preapproved_writes=(f"{root}/**",))
    assert wide.is_write_preapproved(f"{root}/src/a")
    for name in (".git", ".GIT", ".vscode/x", "a/.github/workflows/ci.yml", ".envrc"):
        assert wide.is_guarded(f"{root}/{name}")
        assert not wide.is_write_preapproved(f"{root}/{name}")
        assert wide.check_path(f"{root}/{name}", "write").ok
        assert wide.with_user_grant(f"{root}/{name}", "write").is_write_preapproved(f"{root}/{name}")
    named = (f"{root}/.vscode/**",)
    granted = replace(wide, write=wide.write + named, preapproved_writes=named)
    assert granted.is_write_preapproved(f"{root}/.vscode/x")
    assert not granted.is_write_preapproved(f"{root}/.vscode/.envrc")
    assert not Scope(root="/w", write=DEFAULT_WRITABLE_PATHS, tmp_folder="/t").is_guarded("/tmp/.envrc")


def test_a_made_workspace_is_open_though_it_lies_in_retinues_own_folder():
    home = Scope(root="/h/worktrees/1", read=("/**",), retinue_paths=("/h/**",))
    made = replace(home, is_worktree=True)
    assert home.check_path("/h/worktrees/1/a").rule == "always closed /h/**"
    assert made.check_path("/h/worktrees/1/a").ok
    for closed in ("/h/worktrees/2/a", "/h/worktrees/12", "/h/ledger.db", "/h"):
        assert made.closing_rule(closed) == "always closed /h/**"
    assert made.closing_rule("/h/worktrees/1/.ssh/id") == "always closed **/.ssh/**"
    assert replace(made, deny=("**/A",)).closing_rule("/h/worktrees/1/a") == "deny **/A"


def test_the_operators_word_is_called_the_same_everywhere():
    assert str(Ceiling(set_by=OPERATOR)) == "the ceiling"
    assert OPERATOR == "the configuration"


def test_a_component_is_named_outright_unless_it_holds_a_glob():
    assert literal_components("/tmp/a~b/c d/*") == ("tmp", "a~b", "c d")
    assert [unescape_component(part) for part in ("a*", "a?", "[a]", "a\\*", "a\\", "\\\\", "")] == [
        None, None, None, "a*", "a\\", "\\", "",
    ]  # fmt: skip


def test_only_names_below_tmp_are_the_agents_own_and_free_of_ceilings():
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
    for wish in WISHES:
        assert scope.check_path("/tmp/a", wish).ok
        assert not scope.check_path("/w/a", wish).ok
        assert not scope.check_path("/t/a", wish).ok


def test_a_scope_that_nobody_filled_in_is_that_of_the_top_without_a_place():
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


def test_below_the_top_others_are_started_only_where_the_definition_says_so():
    assert Scope().can_delegate("door") is True
    assert Scope(depth=1).can_delegate("door") is False
    assert Scope(depth=1, is_orchestrator=True).can_delegate("door") is True
    assert Scope(depth=1, tools=Rule(allow=("door",))).can_delegate("door") is True
    assert Scope(depth=1, tools=Rule(allow=("do*",))).can_delegate("door") is False


def test_a_scope_spares_the_commands_that_its_definition_names():
    scope = Scope(shell_commands=ShellCommands(allow=("git",)))
    assert (scope.check_command_preapproved("git status").ok, scope.check_command_preapproved("ls").ok) == (
        True,
        False,
    )


def test_a_workspace_stays_writable_when_a_person_adds_a_path_to_write():
    added = Agent(name="a", paths=PathPatterns(write=("/x",)))
    narrow = build_scope(added, ScopeInputs(root="/w"))
    kept = build_scope(added, ScopeInputs(root="/w", user_grants=PathPatterns(write=("/w/**", "/x"))))
    assert (narrow.write, kept.write, kept.preapproved_writes) == (("/x",), ("/w/**", "/x"), ("/x",))
    child = build_scope(
        added, ScopeInputs(root="/w", is_child=True, user_grants=PathPatterns(write=("/w/**", "/x")))
    )
    assert child.write == ("/x",)


def test_a_workspace_made_for_an_agent_is_written_without_asking():
    made = build_scope(Agent(name="a"), ScopeInputs(root="/h/1", is_worktree=True))
    assert made.preapproved_writes == ("/h/1/**",)
    assert made.is_write_preapproved("/h/1/a")
    said = build_scope(
        Agent(name="a", paths=PathPatterns(write=("out",))), ScopeInputs(root="/h/1", is_worktree=True)
    )
    assert said.preapproved_writes == ("/h/1/out",)
