"""Roots of patterns: the fast checks of a walk give the same answers as the scope."""

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
def test_is_readable_agrees_with_the_scope(path: str, read: tuple[str, ...], deny: tuple[str, ...]):
    scope = Scope(read=read, deny=deny + DEFAULT_DENIED_PATHS)
    assert is_readable(scope, path) == scope.check_path(path, "read").ok


@given(PATTERNS, PATHS, st.booleans())
def test_first_match_agrees_with_matching_each_pattern_separately(
    patterns: tuple[str, ...], path: str, ignore_case: bool
):
    patterns += tuple(pattern.removeprefix("/") for pattern in patterns)
    matching = (pattern for pattern in patterns if matches(pattern, path, ignore_case=ignore_case))
    assert first_match(patterns, path, ignore_case=ignore_case) == next(matching, None)


@given(PATHS, PATTERNS, PATTERNS)
def test_no_folder_with_readable_content_is_skipped(path: str, read: tuple[str, ...], deny: tuple[str, ...]):
    scope = Scope(read=read, deny=deny)
    if not is_readable(scope, path):
        return
    parts = path_components(path)
    parents = ["/" + "/".join(parts[:depth]) for depth in range(len(parts))]
    assert all(can_contain_readable(scope, folder) or is_denied(scope, folder) for folder in parents)


@given(PATHS)
def test_the_root_of_a_literal_pattern_is_the_folder_of_its_file(path: str):
    root = pattern_root(escape_glob(path))
    assert root.folder == path_components(path)[:-1]
    assert root.max_depth == 1


def test_a_lookup_starts_at_the_workspace_or_at_the_longest_folder_of_a_pattern():
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


def test_a_path_out_of_the_workspace_starts_at_the_root_of_a_pattern_that_covers_it():
    scope = Scope(read=("/ws/in/**", "/ws/**", "/**"), root="/ws/in")
    starts = {
        "/ws/in/a/../b": ("ws", "in"),
        "/ws/in/../x": ("ws",),
        "/ws/in/a/../../../etc/x": (),
        "/ws/in/../../../x": ("ws", "in"),
    }
    assert {path: lookup_root(scope, path_components(path)) for path in starts} == starts


def test_a_scope_without_patterns_reads_nothing_and_denies_closed_paths():
    scope = Scope(root="/ws")
    assert not can_contain_readable(scope, "/ws")
    assert not is_readable(scope, "/ws/a")
    assert is_denied(scope, "/home/u/.ssh/id")
    assert not is_denied(Scope(closed_paths=()), "/home/u/.ssh/id")
    assert scope.closed_paths == ALWAYS_CLOSED_PATHS


def test_an_ascii_name_has_one_unicode_form():
    assert unicode_forms("/ws/a") == ("/ws/a",)
    assert len(set(unicode_forms("/ws/caf\u00e9"))) == 2
