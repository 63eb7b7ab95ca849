"""The strict cell and files with several names: what one name closes, another does not open."""

import os
from pathlib import Path

import pytest
from msgspec.structs import replace
from strict_cell import RunInCell

from retinue.domain.ceiling import OPERATOR, Ceiling
from retinue.domain.permissions.scope import Scope
from retinue.domain.rules import escape_glob


@pytest.mark.parametrize("writable", [True, False])
@pytest.mark.parametrize("by", ["deny", "ceiling"])
def test_a_denied_file_is_not_read_by_its_other_name(
    scope: Scope, here: Path, in_cell: RunInCell, writable: bool, by: str
):
    (here / ".env").write_text("SECRET")
    os.link(here / ".env", here / "src/other")
    os.link(here.parent / "outside/secret", here / "far")
    closed = (
        replace(scope, deny=("**/.env",))
        if by == "deny"
        else replace(scope, ceilings=(Ceiling(set_by=OPERATOR, deny=("**/.env",)),))
    )
    bound = replace(closed, writable=writable)
    for _ in range(2):
        came = in_cell(
            bound, "cat src/app.py; cat .env src/other far; echo x > src/other; mv src s2; ln far near"
        )
        assert came.text.startswith("print('app')")
        assert "SECRET" not in came.text
    assert (here / ".env").read_text() == "SECRET"


def test_a_file_that_has_a_name_outside_is_read_and_not_changed(scope: Scope, here: Path, in_cell: RunInCell):
    secret = here.parent / "outside/secret"
    os.link(secret, here / "src/shared")
    came = in_cell(scope, "cat src/shared; echo evil > src/shared; chmod 777 src/shared; rm -f src/shared")
    assert came.text.startswith("SECRET")
    assert came.text.count("Read-only") == 2
    assert "busy" in came.text
    assert secret.read_text() == "SECRET"


def test_a_file_whose_names_are_all_in_the_workspace_is_like_any_other(
    scope: Scope, here: Path, in_cell: RunInCell
):
    """As compilers make them: what one command links, the next one replaces."""
    bound = replace(scope, deny=("**/.env",))
    in_cell(bound, "mkdir out && echo one > out/a && ln out/a b")
    came = in_cell(bound, "cat b && echo two > b && cat out/a && rm out/a && ls out")
    assert came.text == "one\ntwo\n"
    assert came.exit == 0


def test_a_file_that_is_named_outright_is_read_whatever_its_other_names(
    scope: Scope, here: Path, in_cell: RunInCell
):
    os.link(here.parent / "outside/secret", here / "known")
    os.link(here.parent / "outside/secret", here / "unknown")
    bound = replace(scope, deny=("**/.env",), read=(*scope.read, escape_glob(str(here / "known"))))
    came = in_cell(bound, "cat known; cat unknown; echo x > known")
    assert came.text.count("SECRET") == 1
    alone = replace(bound, read=(f"{here}/k*", escape_glob(str(here / "known"))), write=())
    assert in_cell(alone, "cat known").text == "SECRET"
    assert "SECRET" not in in_cell(replace(alone, read=(f"{here}/*n",)), "cat known unknown").text


def test_installers_may_give_a_file_many_names(scope: Scope, here: Path, in_cell: RunInCell):
    (here / ".venv/lib").mkdir(parents=True)
    os.link(here.parent / "outside/secret", here / ".venv/lib/part.py")
    assert in_cell(replace(scope, deny=("**/.env",)), "cat .venv/lib/part.py").text == "SECRET"


def test_a_denied_file_is_not_read_by_a_name_that_other_programs_obey(
    scope: Scope, here: Path, in_cell: RunInCell
):
    """Such names are readable, and so would be what else they name."""
    (here / ".env").write_text("SECRET")
    (here / ".github/workflows").mkdir(parents=True)
    os.link(here / ".env", here / ".mcp.json")
    os.link(here / ".env", here / ".github/workflows/ci.yml")
    came = in_cell(replace(scope, deny=("**/.env",)), "cat .mcp.json .github/workflows/ci.yml")
    assert "SECRET" not in came.text
    assert came.text.count("Permission denied") == 2
