"""Rights only shrink: own, within every ceiling above, under what the operator denies; only a person widens, by one file."""

from dataclasses import replace
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.domain.agent import Agent, Paths, ShellCommands
from retinue.domain.ceiling import OPERATOR, Bounds, Ceiling, ceiling_of
from retinue.domain.permissions.scope import DEFAULT_DENY, DEFAULT_WRITE, Scope
from retinue.domain.permissions.scope_builder import Ground, compile_scope, handed_on
from retinue.domain.rules import Rule, named, unescaped

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
    by=st.sampled_from((OPERATOR, "above", "higher")),
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
    paths=st.none() | st.builds(Paths, read=path_globs, write=path_globs, deny=path_globs),
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
    Ground,
    root=st.sampled_from(("/w", "/", "/tmp/ws")),
    writable=st.booleans(),
    tmp=st.sampled_from(("", "/home/r/tmp/1")),
    child=st.booleans(),
    ceilings=st.lists(ceilings, max_size=2).map(tuple),
)
bounds = st.builds(
    Bounds,
    deny_tools=tool_globs.map(lambda some: some or ()),
    deny_paths=denies,
    deny_agents=tool_globs.map(lambda some: some or ()),
    closed=st.just(("/home/r/**",)),
    ceiling=ceilings.map(lambda one: replace(one, by=OPERATOR)),
)
scopes = st.builds(compile_scope, agents, grounds, bounds)


def may(scope: Scope) -> set[tuple[str, ...]]:
    """Everything out of our little world that a scope lets through."""
    return (
        {("tool", name) for name in NAMES if scope.tool(name).ok}
        | {("tagged", name) for name in NAMES if scope.tool("read", (name, "bash")).ok}
        | {("agent", name) for name in NAMES if scope.agent(name).ok}
        | {(wish, real) for wish in WISHES for real in REALS if scope.path(real, wish).ok}
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
def test_what_the_operator_denies_now_only_narrows(scope: Scope, now: Bounds):
    """Shows: L024."""
    under = scope.under(now)
    assert may(under) <= may(scope)
    assert under.under(now) == under
    assert not {
        name for name in NAMES if under.tool(name).ok and Scope(operator=under.operator).tool(name).ok
    } & {
        name
        for name in NAMES
        if not Scope(operator=replace(under.operator, deny=now.deny_tools)).tool(name).ok
    }
    assert (under is scope) == (may(under) == may(scope) and under.hash == scope.hash)


def test_every_kind_of_live_deny_is_obeyed_and_nothing_else_is_lost():
    """Shows: L024."""
    scope = compile_scope(Agent(name="a", agent_allow=("*",), agent_deny=("x",)), Ground(root="/w"))
    under = scope.under(Bounds(deny_tools=("bash",), deny_paths=("secret/",), deny_agents=("coder",)))
    assert under.tool("bash").rule == "operator deny bash"
    assert under.path("/w/secret/a").rule == "deny /w/secret/**"
    assert under.agent("coder").rule == "agents: deny coder"
    assert under.agents.deny == ("x", "coder")
    assert (under.tool("read").ok, under.path("/w/a").ok, under.agent("other").ok) == (True, True, True)
    for one in (Bounds(deny_tools=("b",)), Bounds(deny_paths=("b",)), Bounds(deny_agents=("b",))):
        assert scope.under(one) != scope
    assert scope.under(Bounds()) is scope


@given(agents, scopes, agents)
def test_a_child_never_has_what_its_parent_could_not_hand_on(above: Agent, rights: Scope, below: Agent):
    """Shows: T06, L024."""
    handed = handed_on(above, rights, by="above")
    ground = Ground(root=rights.root, child=True, ceilings=(*rights.ceilings[1:], handed))
    child = compile_scope(below, ground, Bounds(closed=rights.house, ceiling=rights.ceilings[0]))
    parent = replace(rights, tmp="")
    for wish, real in PAIRS:
        if child.path(real, wish).ok:
            assert handed.path(real, wish) is None
            assert above.ceiling is not None or parent.path(real, wish).ok
    for name in NAMES:
        if child.tool(name).ok:
            assert handed.tool(name, ()) is None
        if child.agent(name).ok:
            assert handed.agent(name) is None


@given(scopes, st.sampled_from(REALS), st.sampled_from(WISHES))
def test_a_file_allowed_once_opens_that_file_and_no_other(scope: Scope, real: str, wish: Wish):
    wider = scope.plus(real, wish)
    assert may(wider) - may(scope) <= {(wish, real)}
    verdict = wider.path(real, wish)
    if scope.shut(real) or not scope.configured:
        assert not verdict.ok
    firm = [each for each in scope.ceilings if each.firm and each.path(real, wish)]
    if firm and not wider.private(real):
        assert not verdict.ok
    if wish == "write" and not scope.writable and not wider.private(real):
        assert not verdict.ok


def test_a_persons_word_lifts_what_a_session_could_not_hand_on_and_never_a_deny_or_the_operators_ceiling():
    scope = Scope(read=("/w/**",), root="/w", ceilings=(Ceiling(by="above", read=("/w/a",)),))
    assert not scope.path("/w/b").ok
    assert scope.plus("/w/b", "read").path("/w/b").ok
    assert not scope.plus("/w/b", "read").path("/w/b", "write").ok
    assert not scope.plus("/w/b", "read").path("/w/c").ok
    firm = replace(scope, ceilings=(Ceiling(by=OPERATOR, read=("/w/a",)),))
    assert firm.plus("/w/b", "read").path("/w/b").rule == "the ceiling allows read only in /w/a"
    denied = replace(scope, ceilings=(Ceiling(by="above", deny=("/w/b",)),))
    assert denied.path("/w/b").rule == "the ceiling of above denies /w/b"
    assert denied.plus("/w/b", "read").path("/w/b").rule == "the ceiling of above denies /w/b"
    own = replace(scope, deny=("/w/b",))
    assert own.plus("/w/b", "read").path("/w/b").rule == "deny /w/b"


@pytest.mark.parametrize("name", ["/w/a*", "/w/[a]", "/w/?", "/w/a\\b", "/w/**"])
def test_a_file_with_globs_in_its_name_opens_only_itself(name: str):
    for wish in WISHES:
        wider = Scope(root="/w").plus(name, wish)
        assert wider.path(name, wish).ok
        assert not [real for real in REALS if wider.path(real, wish).ok]
    once = Scope(root="/w", write=("/w/**",)).plus("/w/a", "write")
    assert (once.grants_write("/w/a"), once.grants_write("/w/b")) == (True, False)
    assert not Scope(root="/w").plus("/w/a", "read").grants_write("/w/a")


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
    {"by": "b"},
]


def test_the_hash_differs_with_everything_that_a_verdict_rests_on():
    """Shows: T10."""
    changes: list[dict[str, Any]] = [
        *({"ceilings": (replace(Ceiling(by="a"), **facts),)} for facts in FACTS),
        {"read": ("/a",)}, {"write": ("/a",)}, {"granted": ("/a",)}, {"deny": ("/a",)}, {"closed": ()},
        {"guarded": ()}, {"house": ("/a",)}, {"root": "/a"}, {"made": True}, {"tmp": "/a"}, {"writable": False},
        {"configured": False}, {"commands": ShellCommands(allow=("a",))}, {"commands": ShellCommands(deny=("a",))},
        {"lifted": Paths(read=("/a",))}, {"lifted": Paths(write=("/a",))}, {},
    ]  # fmt: skip
    hashes = [replace(Scope(), **change).hash for change in changes]
    assert len(set(hashes)) == len(changes)
    assert Scope(label="other").hash == Scope().hash


@given(scopes, scopes)
def test_scopes_of_one_hash_give_the_same_verdicts(one: Scope, other: Scope):
    if one.hash == other.hash:
        assert may(one) == may(other)


def test_a_controller_without_tools_may_have_others_act():
    """Shows: T07."""
    controller = Agent(name="c", tool_allow=(), ceiling={"tools": ("bash", "read")})
    rights = compile_scope(controller, Ground(root="/w"))
    assert not rights.tool("bash").ok
    handed = handed_on(controller, rights, by="c")
    executor = compile_scope(
        Agent(name="e", paths=Paths(read=("/w/**",))), Ground(root="/w", child=True, ceilings=(handed,))
    )
    assert executor.tool("bash").ok
    assert executor.tool("write").rule == "the ceiling of c's tools: nothing allows it"
    silent = Agent(name="c", tool_allow=(), tool_deny=("*",), capability_allow=())
    assert handed_on(silent, compile_scope(silent, Ground(root="/w")), by="c").tool("bash", ("x",)) is None


def test_what_is_handed_on_is_the_definitions_ceiling_and_else_ones_own_paths():
    """Shows: T06, T07, L024."""
    narrow = Agent(name="n", paths=Paths(read=("src/**",), write=("out/**",), deny=("**/.env",)))
    rights = compile_scope(narrow, Ground(root="/w", writable=False))
    assert handed_on(narrow, rights, by="n") == Ceiling(
        by="n",
        read=("/w/src/**",),
        write=("/w/out/**",),
        deny=("**/.env",),
        writable=False,
    )
    said = replace(
        narrow, ceiling={"paths": {"read": ["/**"], "write": [], "deny": ["x", "**/.env"]}, "writable": True}
    )
    assert handed_on(said, rights, by="n") == Ceiling(
        by="n", read=("/**",), write=(), deny=("**/.env", "/w/x"), writable=True
    )
    shut = replace(
        narrow, ceiling={"writable": False, "network": False, "capabilities": ["a"], "agents": ["b"]}
    )
    handed = handed_on(shut, replace(rights, writable=True), by="n")
    assert (handed.writable, handed.network, handed.capabilities, handed.agents) == (
        False,
        False,
        ("a",),
        ("b",),
    )
    assert handed_on(replace(narrow, ceiling={"tools": []}), rights, by="n").writable is False


def test_a_ceiling_as_it_is_written_is_the_ceiling():
    said = {
        "tools": ["a"], "capabilities": ["b"], "agents": ["c"], "writable": False, "network": True,
        "paths": {"read": ["r", "/x/"], "write": [], "deny": ["d"]},
    }  # fmt: skip
    ceiling = ceiling_of(said, by="s", root="/w")
    assert ceiling == Ceiling(
        by="s", tools=("a",), capabilities=("b",), agents=("c",), writable=False, network=True,
        read=("/w/r", "/x/**"), write=(), deny=("/w/d",),
    )  # fmt: skip
    assert ceiling_of(ceiling.facts(), by="s", root="/elsewhere") == ceiling
    assert ceiling.facts()["by"] == "s"
    assert ceiling_of(None, by="s", root="/w") == Ceiling(by="s")
    assert ceiling_of({"paths": None, "writable": None}, by="s", root="/w") == Ceiling(by="s")


OBJECTIONS: list[tuple[Ceiling, str, Wish, str | None]] = [
    (Ceiling(by=OPERATOR), "/w/a", "write", None),
    (Ceiling(by=OPERATOR, deny=("/w/A",)), "/w/a", "read", "the ceiling denies /w/A"),
    (Ceiling(by="s", writable=False), "/w/a", "write", "the ceiling of s lets nothing be written"),
    (Ceiling(by="s", writable=False), "/w/a", "read", None),
    (Ceiling(by="s", read=()), "/w/a", "read", "the ceiling of s allows read only in nothing"),
    (Ceiling(by="s", read=()), "/w/a", "write", None),
    (Ceiling(by="s", write=("/x", "/y")), "/w/a", "write", "the ceiling of s allows write only in /x, /y"),
    (Ceiling(by="s", write=("/w/**",)), "/w/a", "write", None),
    (Ceiling(by="s", read=("/w/A",)), "/w/a", "read", "the ceiling of s allows read only in /w/A"),
    (Ceiling(by="s", read=("/tmp/**",)), "/tmp/a", "read", "the ceiling of s allows read only in nothing"),
    (Ceiling(by="s", read=("/tmp/a/**",)), "/tmp/a/b", "read", None),
    (Ceiling(by="s", read=("/tmp/**",)), "/w/a", "read", "the ceiling of s allows read only in /tmp/**"),
]


@pytest.mark.parametrize(("ceiling", "real", "wish", "objection"), OBJECTIONS)
def test_an_objection_names_whose_it_is(ceiling: Ceiling, real: str, wish: Wish, objection: str | None):
    assert ceiling.path(real, wish) == objection


def test_where_tmp_is_the_workspace_a_ceilings_pattern_of_it_counts():
    assert Ceiling(by="s", read=("/tmp/**",)).path("/tmp/a", "read", own_tmp=False) is None
    scope = Scope(root="/tmp", read=("/tmp/**",), ceilings=(Ceiling(by="s", read=("/tmp/**",)),))
    assert scope.path("/tmp/a").ok


def test_a_ceiling_speaks_for_tools_capabilities_and_agents():
    """Shows: T06."""
    ceiling = Ceiling(by="s", tools=("r*",), capabilities=("f.*",), agents=("c",))
    assert ceiling.tool("read", ("f.read", "f.write")) is None
    assert ceiling.tool("bash", ()) == "the ceiling of s's tools: nothing allows it"
    assert ceiling.tool("read", ("f.read", "m.w")) == "the ceiling of s's capability m.w: nothing allows it"
    assert ceiling.agent("c") is None
    assert ceiling.agent("d") == "the ceiling of s's agents: nothing allows it"
    scope = Scope(ceilings=(Ceiling(by="o"), ceiling))
    assert scope.tool("bash").rule == "the ceiling of s's tools: nothing allows it"
    assert scope.agent("d").rule == "the ceiling of s's agents: nothing allows it"
    assert (scope.tool("read").rule, scope.agent("c").rule) == ("in scope", "in scope")
    assert scope.tool("system_time").rule == "the runtime's own"


COMPILED: list[tuple[Paths | None, dict[str, Any], dict[str, Any]]] = [
    (None, {}, {"read": ("/w/**",), "write": ("/w/**",), "granted": (), "deny": ()}),
    (None, {"tmp": "/t"}, {"read": ("/w/**", "/tmp/**"), "write": ("/w/**", "/tmp/**"), "granted": DEFAULT_WRITE}),
    (None, {"child": True}, {"read": ("/w/**",), "write": (), "configured": False}),
    (Paths(), {"child": True, "tmp": "/t"}, {"write": ("/w/**", "/tmp/**"), "granted": DEFAULT_WRITE}),
    (Paths(write=()), {"child": True, "tmp": "/t"}, {"write": (), "granted": (), "configured": True}),
    (Paths(), {"tmp": "/t"}, {"write": ("/w/**", "/tmp/**"), "granted": DEFAULT_WRITE}),
    (Paths(write=()), {"tmp": "/t"}, {"read": ("/w/**",), "write": (), "granted": ()}),
    (Paths(write=("a",)), {"tmp": "/t"}, {"read": ("/w/**",), "write": ("/w/a",), "granted": ("/w/a",)}),
    (Paths(write=("/tmp/**", "a")), {}, {"read": ("/w/**",), "write": ("/w/a",), "granted": ("/w/a",)}),
    (Paths(write=("/tmp/**",)), {"tmp": "/t"}, {"read": ("/w/**", "/tmp/**"), "write": DEFAULT_WRITE}),
    (Paths(read=()), {"tmp": "/t"}, {"read": ("/tmp/**",)}),
    (Paths(read=("a/", "**/b")), {}, {"read": ("/w/a/**", "**/b"), "write": ("/w/**",)}),
    (Paths(deny=DEFAULT_DENY), {}, {"deny": DEFAULT_DENY}),
    (None, {"made": True, "label": "l", "writable": False}, {"made": True, "label": "l", "writable": False}),
    (None, {"lifted": Paths(read=("/x",))}, {"lifted": Paths(read=("/x",))}),
]  # fmt: skip


@pytest.mark.parametrize(("paths", "ground", "expected"), COMPILED)
def test_a_definition_and_a_place_make_a_scope(
    paths: Paths | None, ground: dict[str, Any], expected: dict[str, Any]
):
    """Shows: A013, A016, A086, A091, L003."""
    scope = compile_scope(Agent(name="a", paths=paths), Ground(root="/w", **ground))
    assert {key: getattr(scope, key) for key in expected} == expected
    assert (scope.root, scope.tmp) == ("/w", ground.get("tmp", ""))


def test_everything_the_operator_says_is_compiled_in():
    """Shows: L024."""
    above = Ceiling(by="above", read=("/q/**",))
    bounds = Bounds(
        deny_tools=("t",), deny_paths=("p/",), deny_agents=("g",), closed=("/home/**",),
        ceiling=Ceiling(by=OPERATOR, read=("r",), write=("w/",), deny=("d",), tools=("x",)),
    )  # fmt: skip
    agent = Agent(
        name="a", agent_allow=("*",), agent_deny=("n",), capability_allow=("c",), capability_deny=("e",),
        tool_allow=("u",), tool_deny=("v",), paths=Paths(deny=("o",)), shell_commands=ShellCommands(allow=("ls",)),
    )  # fmt: skip
    scope = compile_scope(agent, Ground(root="/w", ceilings=(above,)), bounds)
    assert scope.operator.deny == ("t",)
    assert scope.deny == ("/w/o", "/w/p/**")
    assert (scope.agents.allow, scope.agents.deny) == (("*",), ("n", "g"))
    assert (scope.tools.allow, scope.tools.deny) == (("u",), ("v",))
    assert (scope.capabilities.allow, scope.capabilities.deny) == (("c",), ("e",))
    assert scope.house == ("/home/**",)
    assert scope.commands == ShellCommands(allow=("ls",))
    assert scope.ceilings == (
        Ceiling(by=OPERATOR, read=("/w/r",), write=("/w/w/**",), deny=("/w/d",), tools=("x",)),
        above,
    )
    bare = compile_scope(Agent(name="a"), Ground(root="/w"))
    assert bare.ceilings == (Ceiling(by=OPERATOR),)
    assert (bare.tools.allow, bare.tools.deny, bare.agents.allow, bare.agents.deny) == (None, (), None, ())


def test_what_other_programs_obey_is_changed_only_where_a_grant_names_it():
    root = "/home/u/.retinue/worktrees/1"
    wide = Scope(root=root, write=(f"{root}/**",), granted=(f"{root}/**",))
    assert wide.grants_write(f"{root}/src/a")
    for name in (".git", ".GIT", ".vscode/x", "a/.github/workflows/ci.yml", ".envrc"):
        assert wide.guards(f"{root}/{name}")
        assert not wide.grants_write(f"{root}/{name}")
        assert wide.path(f"{root}/{name}", "write").ok
        assert wide.plus(f"{root}/{name}", "write").grants_write(f"{root}/{name}")
    named = (f"{root}/.vscode/**",)
    granted = replace(wide, write=wide.write + named, granted=named)
    assert granted.grants_write(f"{root}/.vscode/x")
    assert not granted.grants_write(f"{root}/.vscode/.envrc")
    assert not Scope(root="/w", write=DEFAULT_WRITE, tmp="/t").guards("/tmp/.envrc")


def test_a_made_workspace_is_open_though_it_lies_in_retinues_own_folder():
    home = Scope(root="/h/worktrees/1", read=("/**",), house=("/h/**",))
    made = replace(home, made=True)
    assert home.path("/h/worktrees/1/a").rule == "always closed /h/**"
    assert made.path("/h/worktrees/1/a").ok
    for closed in ("/h/worktrees/2/a", "/h/worktrees/12", "/h/ledger.db", "/h"):
        assert made.shut(closed) == "always closed /h/**"
    assert made.shut("/h/worktrees/1/.ssh/id") == "always closed **/.ssh/**"
    assert replace(made, deny=("**/A",)).shut("/h/worktrees/1/a") == "deny **/A"


def test_the_operators_word_is_called_the_same_everywhere():
    assert str(Ceiling(by=OPERATOR)) == "the ceiling"
    assert OPERATOR == "the configuration"


def test_a_component_is_named_outright_unless_it_holds_a_glob():
    assert named("/tmp/a~b/c d/*") == ("tmp", "a~b", "c d")
    assert [unescaped(part) for part in ("a*", "a?", "[a]", "a\\*", "a\\", "\\\\", "")] == [
        None, None, None, "a*", "a\\", "\\", "",
    ]  # fmt: skip


def test_only_names_below_tmp_are_the_agents_own_and_free_of_ceilings():
    """Shows: F18, T06."""
    scope = Scope(
        root="/w", read=("/**",), write=("/**",), tmp="/t", ceilings=(Ceiling(by="s", read=(), write=()),)
    )
    assert [scope.private(name) for name in ("/tmp", "/tmp/a", "/tmpx", "/w/a", "/", "/t/a")] == [
        True, True, False, False, False, False,
    ]  # fmt: skip
    for wish in WISHES:
        assert scope.path("/tmp/a", wish).ok
        assert not scope.path("/w/a", wish).ok
        assert not scope.path("/t/a", wish).ok


def test_a_scope_that_nobody_filled_in_is_that_of_the_top_without_a_place():
    assert Scope() == Scope(
        root="/", made=False, label="", tmp="", writable=True, configured=True, depth=0, orchestrates=False
    )
    assert Ground(root="/w") == Ground(
        root="/w",
        made=False,
        label="",
        tmp="",
        writable=True,
        child=False,
        depth=0,
        ceilings=(),
        lifted=Paths(),
    )


def test_below_the_top_others_are_started_only_where_the_definition_says_so():
    assert Scope().hands_on("door") is True
    assert Scope(depth=1).hands_on("door") is False
    assert Scope(depth=1, orchestrates=True).hands_on("door") is True
    assert Scope(depth=1, tools=Rule(allow=("door",))).hands_on("door") is True
    assert Scope(depth=1, tools=Rule(allow=("do*",))).hands_on("door") is False


def test_a_scope_spares_the_commands_that_its_definition_names():
    scope = Scope(commands=ShellCommands(allow=("git",)))
    assert (scope.grants_command("git status").ok, scope.grants_command("ls").ok) == (True, False)


def test_a_workspace_stays_writable_when_a_person_adds_a_path_to_write():
    added = Agent(name="a", paths=Paths(write=("/x",)))
    narrow = compile_scope(added, Ground(root="/w"))
    kept = compile_scope(added, Ground(root="/w", lifted=Paths(write=("/w/**", "/x"))))
    assert (narrow.write, kept.write, kept.granted) == (("/x",), ("/w/**", "/x"), ("/x",))
    child = compile_scope(added, Ground(root="/w", child=True, lifted=Paths(write=("/w/**", "/x"))))
    assert child.write == ("/x",)


def test_a_workspace_made_for_an_agent_is_written_without_asking():
    made = compile_scope(Agent(name="a"), Ground(root="/h/1", made=True))
    assert made.granted == ("/h/1/**",)
    assert made.grants_write("/h/1/a")
    said = compile_scope(Agent(name="a", paths=Paths(write=("out",))), Ground(root="/h/1", made=True))
    assert said.granted == ("/h/1/out",)
