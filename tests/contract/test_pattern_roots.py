"""How far patterns reach: the quick answers of a walk are the scope's own."""

from hypothesis import given
from hypothesis import strategies as st

from retinue.domain.glob import first_match, matches
from retinue.domain.permissions.protected_paths import ALWAYS_CLOSED_PATHS
from retinue.domain.permissions.scope import DEFAULT_DENIED_PATHS, Scope
from retinue.domain.rules import escape_glob
from retinue.sandbox.files.pattern_roots import (
    can_contain_readable,
    is_denied,
    is_readable,
    lookup_root,
    path_components,
    pattern_root,
    unicode_forms,
)

PARTS = st.sampled_from(
    [
        "src",
        "a",
        "b",
        ".git",
        ".GIT",
        ".env",
        ".ENV",
        "x.py",
        "*",
        "**",
        "[ab]",
        "*.py",
        ".ssh",
        "proc",
        "a[1]",
        "?",
    ]
)
PATHS = st.lists(PARTS, min_size=1, max_size=5).map(lambda parts: "/" + "/".join(parts))
PATTERNS = st.lists(PATHS, max_size=4).map(tuple)


@given(PATHS, PATTERNS, PATTERNS)
def test_what_a_walk_shows_is_what_the_scope_permits(path: str, read: tuple[str, ...], deny: tuple[str, ...]):
    scope = Scope(read=read, deny=deny + DEFAULT_DENIED_PATHS)
    assert is_readable(scope, path) == scope.check_path(path, "read").ok


@given(PATTERNS, PATHS, st.booleans())
def test_many_patterns_asked_in_one_go_answer_as_they_do_one_by_one(
    patterns: tuple[str, ...], path: str, ignore_case: bool
):
    patterns += tuple(pattern.removeprefix("/") for pattern in patterns)
    alone = (pattern for pattern in patterns if matches(pattern, path, ignore_case=ignore_case))
    assert first_match(patterns, path, ignore_case=ignore_case) == next(alone, None)


@given(PATHS, PATTERNS, PATTERNS)
def test_no_folder_is_passed_over_that_holds_something_readable(
    path: str, read: tuple[str, ...], deny: tuple[str, ...]
):
    scope = Scope(read=read, deny=deny)
    if not is_readable(scope, path):
        return
    parts = path_components(path)
    above = ["/" + "/".join(parts[:depth]) for depth in range(len(parts))]
    assert all(can_contain_readable(scope, folder) or is_denied(scope, folder) for folder in above)


@given(PATHS)
def test_a_literal_pattern_reaches_from_the_folder_of_the_file_it_names(path: str):
    found = pattern_root(escape_glob(path))
    assert found.folder == path_components(path)[:-1]
    assert found.max_depth == 1


def test_a_lookup_starts_at_the_workspace_else_at_the_longest_folder_a_pattern_names():
    scope = Scope(read=("/ws/**", "/data/**", "/data/big/*.csv", "/etc/hosts"), root="/ws")
    starts = {
        "/ws/a/b": ("ws",),
        "/data/x": ("data",),
        "/data/big/x.csv": ("data", "big"),
        "/etc/hosts": ("etc",),
        "/ws_evil/a": None,
        "/": None,
        "/ws/../ws/a": ("ws",),
        "/ws/../data/x": ("ws",),
        "/ws/a/../b": ("ws",),
        "/data/big/../x": ("data",),
    }
    assert {path: lookup_root(scope, path_components(path)) for path in starts} == starts


def test_a_way_out_of_the_workspace_starts_where_a_pattern_covers_all_of_it():
    scope = Scope(read=("/ws/in/**", "/ws/**", "/**"), root="/ws/in")
    starts = {
        "/ws/in/a/../b": ("ws", "in"),
        "/ws/in/../x": ("ws",),
        "/ws/in/a/../../../etc/x": (),
        "/ws/in/../../../x": ("ws", "in"),
    }
    assert {path: lookup_root(scope, path_components(path)) for path in starts} == starts


def test_a_scope_without_patterns_reaches_nothing_and_denies_what_is_closed():
    scope = Scope(root="/ws")
    assert not can_contain_readable(scope, "/ws")
    assert not is_readable(scope, "/ws/a")
    assert is_denied(scope, "/home/u/.ssh/id")
    assert not is_denied(Scope(closed_paths=()), "/home/u/.ssh/id")
    assert scope.closed_paths == ALWAYS_CLOSED_PATHS


def test_a_plain_name_has_one_form():
    assert unicode_forms("/ws/a") == ("/ws/a",)
    assert len(set(unicode_forms("/ws/caf\u00e9"))) == 2
