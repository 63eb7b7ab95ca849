"""The strict cell and files with several names: what one name closes, another does not open."""

import os
from pathlib import Path

import pytest
from msgspec.structs import replace
from strict_sandbox import RunInSandbox

from retinue.domain.ceiling import OPERATOR, Ceiling
from retinue.domain.permissions.scope import Scope
from retinue.domain.rules import escape_glob


@pytest.mark.parametrize("writable", [True, False])
@pytest.mark.parametrize("by", ["deny", "ceiling"])
def test_a_denied_file_is_not_read_by_its_other_name(
    scope: Scope, workspace: Path, run_in_sandbox: RunInSandbox, writable: bool, by: str
):
    (workspace / ".env").write_text("SECRET")
    os.link(workspace / ".env", workspace / "src/other")
    os.link(workspace.parent / "outside/secret", workspace / "far")
    closed = (
        replace(scope, deny=("**/.env",))
        if by == "deny"
        else replace(scope, ceilings=(Ceiling(set_by=OPERATOR, deny=("**/.env",)),))
    )
    bound = replace(closed, writable=writable)
    for _ in range(2):
        came = run_in_sandbox(
            bound, "cat src/app.py; cat .env src/other far; echo x > src/other; mv src s2; ln far near"
        )
        assert came.text.startswith("print('app')")
        assert "SECRET" not in came.text
    assert (workspace / ".env").read_text() == "SECRET"


def test_a_file_that_has_a_name_outside_is_read_and_not_changed(
    scope: Scope, workspace: Path, run_in_sandbox: RunInSandbox
):
    secret = workspace.parent / "outside/secret"
    os.link(secret, workspace / "src/shared")
    came = run_in_sandbox(
        scope, "cat src/shared; echo evil > src/shared; chmod 777 src/shared; rm -f src/shared"
    )
    assert came.text.startswith("SECRET")
    assert came.text.count("Read-only") == 2
    assert "busy" in came.text
    assert secret.read_text() == "SECRET"


def test_a_file_whose_names_are_all_in_the_workspace_is_like_any_other(
    scope: Scope, workspace: Path, run_in_sandbox: RunInSandbox
):
    """As compilers make them: what one command links, the next one replaces."""
    bound = replace(scope, deny=("**/.env",))
    run_in_sandbox(bound, "mkdir out && echo one > out/a && ln out/a b")
    came = run_in_sandbox(bound, "cat b && echo two > b && cat out/a && rm out/a && ls out")
    assert came.text == "one\ntwo\n"
    assert came.exit == 0


def test_a_file_that_is_named_outright_is_read_whatever_its_other_names(
    scope: Scope, workspace: Path, run_in_sandbox: RunInSandbox
):
    os.link(workspace.parent / "outside/secret", workspace / "known")
    os.link(workspace.parent / "outside/secret", workspace / "unknown")
    bound = replace(scope, deny=("**/.env",), read=(*scope.read, escape_glob(str(workspace / "known"))))
    came = run_in_sandbox(bound, "cat known; cat unknown; echo x > known")
    assert came.text.count("SECRET") == 1
    alone = replace(bound, read=(f"{workspace}/k*", escape_glob(str(workspace / "known"))), write=())
    assert run_in_sandbox(alone, "cat known").text == "SECRET"
    assert "SECRET" not in run_in_sandbox(replace(alone, read=(f"{workspace}/*n",)), "cat known unknown").text


def test_installers_may_give_a_file_many_names(scope: Scope, workspace: Path, run_in_sandbox: RunInSandbox):
    (workspace / ".venv/lib").mkdir(parents=True)
    os.link(workspace.parent / "outside/secret", workspace / ".venv/lib/part.py")
    assert run_in_sandbox(replace(scope, deny=("**/.env",)), "cat .venv/lib/part.py").text == "SECRET"


def test_a_denied_file_is_not_read_by_a_name_that_other_programs_obey(
    scope: Scope, workspace: Path, run_in_sandbox: RunInSandbox
):
    """Such names are readable, and so would be what else they name."""
    (workspace / ".env").write_text("SECRET")
    (workspace / ".github/workflows").mkdir(parents=True)
    os.link(workspace / ".env", workspace / ".mcp.json")
    os.link(workspace / ".env", workspace / ".github/workflows/ci.yml")
    came = run_in_sandbox(replace(scope, deny=("**/.env",)), "cat .mcp.json .github/workflows/ci.yml")
    assert "SECRET" not in came.text
    assert came.text.count("Permission denied") == 2
