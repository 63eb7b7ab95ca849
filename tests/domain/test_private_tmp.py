"""An agent's private /tmp in the permission rules: `/tmp/**` never gives access to other programs' files."""

import pytest
from msgspec.structs import replace

from retinue.domain.ceiling import Ceiling
from retinue.domain.permissions.scope import DEFAULT_WRITABLE_PATHS, Scope
from retinue.domain.rules import literal_components
from retinue.domain.tmp_paths import without_private_tmp

SCOPE = Scope(
    read=("/ws/**", "/tmp/**"),
    write=DEFAULT_WRITABLE_PATHS,
    preapproved_writes=DEFAULT_WRITABLE_PATHS,
    root="/ws",
    tmp_folder="/home/tmp/1",
)


def test_without_a_private_tmp_folder_the_tmp_pattern_allows_nothing():
    """Shows: F18."""
    without_folder = replace(SCOPE, tmp_folder="")
    assert SCOPE.check_path("/tmp/x", "write").ok
    assert not without_folder.check_path("/tmp/x", "write").ok
    assert not without_folder.check_path("/tmp/x").ok
    assert not without_folder.is_write_preapproved("/tmp/x")


@pytest.mark.parametrize("root", ["/tmp/ws", "/tmp/a/ws"])
def test_permission_to_write_tmp_does_not_open_a_workspace_below_tmp(root: str):
    """Shows: F18."""
    scope = replace(SCOPE, root=root, read=(f"{root}/**", "/tmp/**"))
    assert scope.check_path(f"{root}/x").ok
    assert not scope.check_path(f"{root}/x", "write").ok
    assert scope.is_private_tmp("/tmp/x")
    assert not scope.is_private_tmp(f"{root}/x")
    assert scope.is_private_tmp(f"{root}2/x")
    writable_root = replace(scope, write=(f"{root}/**", *DEFAULT_WRITABLE_PATHS))
    assert writable_root.check_path(f"{root}/x", "write").ok
    assert not writable_root.is_write_preapproved(f"{root}/x")
    assert writable_root.is_write_preapproved("/tmp/x")
    assert not replace(writable_root, writable=False).check_path(f"{root}/x", "write").ok
    assert replace(writable_root, writable=False).check_path("/tmp/x", "write").ok


def test_a_workspace_at_tmp_is_the_real_tmp():
    scope = replace(SCOPE, root="/tmp", read=("/tmp/**",))
    assert not scope.is_private_tmp("/tmp/x")
    assert scope.check_path("/tmp/x", "write").ok
    assert not scope.is_write_preapproved("/tmp/x")
    limited = replace(scope, ceilings=(Ceiling(set_by="above", read=("/tmp/**",)),))
    assert limited.check_path("/tmp/x").ok
    assert not replace(limited, root="/ws", tmp_folder="").check_path("/tmp/x").ok


def test_a_pattern_below_tmp_names_the_real_path_and_ceilings_apply_to_it():
    scope = replace(SCOPE, read=(*SCOPE.read, "/tmp/build/**", "/tmp/one.txt"))
    assert not scope.is_private_tmp("/tmp/build/x")
    assert not scope.is_private_tmp("/tmp/one.txt")
    assert scope.check_path("/tmp/build/x").ok
    limited = replace(scope, ceilings=(Ceiling(set_by="above", read=("/ws/**", "/tmp/**")),))
    assert limited.check_path("/tmp/x").ok
    assert not limited.check_path("/tmp/build/x").ok
    assert "above allows read only in /ws/**" in limited.check_path("/tmp/build/x").rule


def test_the_literal_part_of_a_pattern_ends_at_its_first_wildcard():
    assert literal_components("/tmp/a\\*b/c*/d") == ("tmp", "a*b")
    assert literal_components("**/x") == ()
    assert literal_components("/a/b") == ("a", "b")
    assert without_private_tmp(("/tmp/**", "/tmp/*/x", "/tmp", "/tmp/a/**", "/**", "/tmpfiles/**")) == (
        "/tmp/a/**", "/**", "/tmpfiles/**",
    )  # fmt: skip
