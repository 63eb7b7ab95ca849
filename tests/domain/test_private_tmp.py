"""The agent's own /tmp, as the rules see it: `/tmp/**` never means what other programs keep there."""

import pytest
from msgspec.structs import replace

from retinue.domain.ceiling import Ceiling
from retinue.domain.permissions.scope import DEFAULT_WRITABLE_PATHS, Scope
from retinue.domain.rules import literal_components
from retinue.domain.tmp_paths import without_private_tmp

OWN = Scope(
    read=("/ws/**", "/tmp/**"),
    write=DEFAULT_WRITABLE_PATHS,
    preapproved_writes=DEFAULT_WRITABLE_PATHS,
    root="/ws",
    tmp_folder="/home/tmp/1",
)


def test_without_a_folder_of_its_own_a_pattern_of_tmp_reaches_nothing():
    """Shows: F18."""
    nobodys = replace(OWN, tmp_folder="")
    assert OWN.check_path("/tmp/x", "write").ok
    assert not nobodys.check_path("/tmp/x", "write").ok
    assert not nobodys.check_path("/tmp/x").ok
    assert not nobodys.is_write_preapproved("/tmp/x")


@pytest.mark.parametrize("root", ["/tmp/ws", "/tmp/a/ws"])
def test_a_workspace_below_tmp_is_not_opened_by_the_right_to_write_to_tmp(root: str):
    """Shows: F18."""
    scope = replace(OWN, root=root, read=(f"{root}/**", "/tmp/**"))
    assert scope.check_path(f"{root}/x").ok
    assert not scope.check_path(f"{root}/x", "write").ok
    assert scope.is_private_tmp("/tmp/x")
    assert not scope.is_private_tmp(f"{root}/x")
    assert scope.is_private_tmp(f"{root}2/x")
    wider = replace(scope, write=(f"{root}/**", *DEFAULT_WRITABLE_PATHS))
    assert wider.check_path(f"{root}/x", "write").ok
    assert not wider.is_write_preapproved(f"{root}/x")
    assert wider.is_write_preapproved("/tmp/x")
    assert not replace(wider, writable=False).check_path(f"{root}/x", "write").ok
    assert replace(wider, writable=False).check_path("/tmp/x", "write").ok


def test_a_workspace_that_is_tmp_itself_is_the_real_one():
    scope = replace(OWN, root="/tmp", read=("/tmp/**",))
    assert not scope.is_private_tmp("/tmp/x")
    assert scope.check_path("/tmp/x", "write").ok
    assert not scope.is_write_preapproved("/tmp/x")
    bound = replace(scope, ceilings=(Ceiling(set_by="above", read=("/tmp/**",)),))
    assert bound.check_path("/tmp/x").ok
    assert not replace(bound, root="/ws", tmp_folder="").check_path("/tmp/x").ok


def test_a_longer_pattern_names_a_real_place_and_ceilings_hold_there():
    scope = replace(OWN, read=(*OWN.read, "/tmp/build/**", "/tmp/one.txt"))
    assert not scope.is_private_tmp("/tmp/build/x")
    assert not scope.is_private_tmp("/tmp/one.txt")
    assert scope.check_path("/tmp/build/x").ok
    under = replace(scope, ceilings=(Ceiling(set_by="above", read=("/ws/**", "/tmp/**")),))
    assert under.check_path("/tmp/x").ok
    assert not under.check_path("/tmp/build/x").ok
    assert "above allows read only in /ws/**" in under.check_path("/tmp/build/x").rule


def test_what_a_pattern_names_outright_ends_at_its_first_glob():
    assert literal_components("/tmp/a\\*b/c*/d") == ("tmp", "a*b")
    assert literal_components("**/x") == ()
    assert literal_components("/a/b") == ("a", "b")
    assert without_private_tmp(("/tmp/**", "/tmp/*/x", "/tmp", "/tmp/a/**", "/**", "/tmpfiles/**")) == (
        "/tmp/a/**", "/**", "/tmpfiles/**",
    )  # fmt: skip
