"""Hard links in the strict sandbox: another name of a denied file does not open it."""

import os
from pathlib import Path

import pytest
from msgspec.structs import replace
from strict_sandbox import RunInSandbox

from retinue.domain.ceiling import OPERATOR, Ceiling
from retinue.domain.permissions.scope import Scope
from retinue.domain.rules import escape_glob


@pytest.mark.parametrize("writable", [True, False])
@pytest.mark.parametrize("denied_by", ["deny", "ceiling"])
def test_a_denied_file_cannot_be_read_through_a_hard_link(
    scope: Scope, workspace: Path, run_in_sandbox: RunInSandbox, writable: bool, denied_by: str
):
    (workspace / ".env").write_text("SECRET")
    os.link(workspace / ".env", workspace / "src/other")
    os.link(workspace.parent / "outside/secret", workspace / "far")
    denying = (
        replace(scope, deny=("**/.env",))
        if denied_by == "deny"
        else replace(scope, ceilings=(Ceiling(set_by=OPERATOR, deny=("**/.env",)),))
    )
    denying = replace(denying, writable=writable)
    for _ in range(2):
        result = run_in_sandbox(
            denying, "cat src/app.py; cat .env src/other far; echo x > src/other; mv src s2; ln far near"
        )
        assert result.output.startswith("print('app')")
        assert "SECRET" not in result.output
    assert (workspace / ".env").read_text() == "SECRET"


def test_a_file_with_a_hard_link_outside_the_workspace_is_read_only(
    scope: Scope, workspace: Path, run_in_sandbox: RunInSandbox
):
    secret = workspace.parent / "outside/secret"
    os.link(secret, workspace / "src/shared")
    result = run_in_sandbox(
        scope, "cat src/shared; echo evil > src/shared; chmod 777 src/shared; rm -f src/shared"
    )
    assert result.output.startswith("SECRET")
    assert result.output.count("Read-only") == 2
    assert "busy" in result.output
    assert secret.read_text() == "SECRET"


def test_a_file_whose_hard_links_are_all_in_the_workspace_is_readable_and_writable(
    scope: Scope, workspace: Path, run_in_sandbox: RunInSandbox
):
    """Compilers make such files: one command links them, and the next one replaces them."""
    denying = replace(scope, deny=("**/.env",))
    run_in_sandbox(denying, "mkdir out && echo one > out/a && ln out/a b")
    result = run_in_sandbox(denying, "cat b && echo two > b && cat out/a && rm out/a && ls out")
    assert result.output == "one\ntwo\n"
    assert result.exit_code == 0


def test_a_file_that_the_scope_names_exactly_is_readable_despite_hard_links(
    scope: Scope, workspace: Path, run_in_sandbox: RunInSandbox
):
    os.link(workspace.parent / "outside/secret", workspace / "known")
    os.link(workspace.parent / "outside/secret", workspace / "unknown")
    naming = replace(scope, deny=("**/.env",), read=(*scope.read, escape_glob(str(workspace / "known"))))
    result = run_in_sandbox(naming, "cat known; cat unknown; echo x > known")
    assert result.output.count("SECRET") == 1
    read_only = replace(naming, read=(f"{workspace}/k*", escape_glob(str(workspace / "known"))), write=())
    assert run_in_sandbox(read_only, "cat known").output == "SECRET"
    assert (
        "SECRET"
        not in run_in_sandbox(replace(read_only, read=(f"{workspace}/*n",)), "cat known unknown").output
    )


def test_a_hard_link_in_a_virtual_environment_is_readable(
    scope: Scope, workspace: Path, run_in_sandbox: RunInSandbox
):
    (workspace / ".venv/lib").mkdir(parents=True)
    os.link(workspace.parent / "outside/secret", workspace / ".venv/lib/part.py")
    assert run_in_sandbox(replace(scope, deny=("**/.env",)), "cat .venv/lib/part.py").output == "SECRET"


def test_a_denied_file_cannot_be_read_through_a_hard_link_at_a_guarded_path(
    scope: Scope, workspace: Path, run_in_sandbox: RunInSandbox
):
    """Guarded paths are readable, so a link there would make the denied file readable."""
    (workspace / ".env").write_text("SECRET")
    (workspace / ".github/workflows").mkdir(parents=True)
    os.link(workspace / ".env", workspace / ".mcp.json")
    os.link(workspace / ".env", workspace / ".github/workflows/ci.yml")
    result = run_in_sandbox(replace(scope, deny=("**/.env",)), "cat .mcp.json .github/workflows/ci.yml")
    assert "SECRET" not in result.output
    assert result.output.count("Permission denied") == 2


@pytest.mark.parametrize("deny", [(), ("**/secret",)])
@pytest.mark.parametrize("guarded", ["AGENTS.md", ".vscode/settings.json"])
def test_a_guarded_file_cannot_be_changed_through_a_hard_link(
    scope: Scope, workspace: Path, run_in_sandbox: RunInSandbox, guarded: str, deny: tuple[str, ...]
):
    (workspace / guarded).parent.mkdir(exist_ok=True)
    (workspace / guarded).write_text("mine")
    os.link(workspace / guarded, workspace / "src/other")
    result = run_in_sandbox(
        replace(scope, deny=deny), "cat src/other; echo evil > src/other; rm -f src/other"
    )
    assert "Read-only" in result.output
    assert (workspace / guarded).read_text() == "mine"


def test_a_file_of_a_read_only_folder_cannot_be_changed_through_a_hard_link(
    scope: Scope, workspace: Path, run_in_sandbox: RunInSandbox
):
    (workspace / "docs").mkdir()
    (workspace / "docs/page").write_text("mine")
    os.link(workspace / "docs/page", workspace / "src/other")
    narrow = replace(scope, write=(f"{workspace}/src/**",), deny=("**/secret",))
    result = run_in_sandbox(narrow, "cat src/other; echo evil > src/other; echo fine > src/new")
    assert result.output.startswith("mine")
    assert "Read-only" in result.output
    assert (workspace / "docs/page").read_text() == "mine"
    assert (workspace / "src/new").read_text() == "fine\n"
