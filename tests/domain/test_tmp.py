"""The agent's own /tmp, as the rules see it: `/tmp/**` never means what other programs keep there."""

from dataclasses import replace

import pytest

from retinue.domain.ceiling import Ceiling
from retinue.domain.permissions.scope import DEFAULT_WRITE, Scope
from retinue.domain.rules import named
from retinue.domain.tmp_paths import elsewhere

OWN = Scope(
    read=("/ws/**", "/tmp/**"), write=DEFAULT_WRITE, granted=DEFAULT_WRITE, root="/ws", tmp="/home/tmp/1"
)


def test_without_a_folder_of_its_own_a_pattern_of_tmp_reaches_nothing():
    """Shows: F18."""
    nobodys = replace(OWN, tmp="")
    assert OWN.path("/tmp/x", "write").ok
    assert not nobodys.path("/tmp/x", "write").ok
    assert not nobodys.path("/tmp/x").ok
    assert not nobodys.grants_write("/tmp/x")


@pytest.mark.parametrize("root", ["/tmp/ws", "/tmp/a/ws"])
def test_a_workspace_below_tmp_is_not_opened_by_the_right_to_write_to_tmp(root: str):
    """Shows: F18."""
    scope = replace(OWN, root=root, read=(f"{root}/**", "/tmp/**"))
    assert scope.path(f"{root}/x").ok
    assert not scope.path(f"{root}/x", "write").ok
    assert scope.private("/tmp/x")
    assert not scope.private(f"{root}/x")
    assert scope.private(f"{root}2/x")
    wider = replace(scope, write=(f"{root}/**", *DEFAULT_WRITE))
    assert wider.path(f"{root}/x", "write").ok
    assert not wider.grants_write(f"{root}/x")
    assert wider.grants_write("/tmp/x")
    assert not replace(wider, writable=False).path(f"{root}/x", "write").ok
    assert replace(wider, writable=False).path("/tmp/x", "write").ok


def test_a_workspace_that_is_tmp_itself_is_the_real_one():
    scope = replace(OWN, root="/tmp", read=("/tmp/**",))
    assert not scope.private("/tmp/x")
    assert scope.path("/tmp/x", "write").ok
    assert not scope.grants_write("/tmp/x")
    bound = replace(scope, ceilings=(Ceiling(by="above", read=("/tmp/**",)),))
    assert bound.path("/tmp/x").ok
    assert not replace(bound, root="/ws", tmp="").path("/tmp/x").ok


def test_a_longer_pattern_names_a_real_place_and_ceilings_hold_there():
    scope = replace(OWN, read=(*OWN.read, "/tmp/build/**", "/tmp/one.txt"))
    assert not scope.private("/tmp/build/x")
    assert not scope.private("/tmp/one.txt")
    assert scope.path("/tmp/build/x").ok
    under = replace(scope, ceilings=(Ceiling(by="above", read=("/ws/**", "/tmp/**")),))
    assert under.path("/tmp/x").ok
    assert not under.path("/tmp/build/x").ok
    assert "above allows read only in /ws/**" in under.path("/tmp/build/x").rule


def test_what_a_pattern_names_outright_ends_at_its_first_glob():
    assert named("/tmp/a\\*b/c*/d") == ("tmp", "a*b")
    assert named("**/x") == ()
    assert named("/a/b") == ("a", "b")
    assert elsewhere(("/tmp/**", "/tmp/*/x", "/tmp", "/tmp/a/**", "/**", "/tmpfiles/**")) == (
        "/tmp/a/**", "/**", "/tmpfiles/**",
    )  # fmt: skip
