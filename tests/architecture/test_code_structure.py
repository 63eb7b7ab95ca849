"""Limits on the code that the import contracts cannot check: protocols, module sizes, docstrings, start-up imports."""

import ast
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "retinue"
MODULES = sorted([*SOURCE.rglob("*.py"), *(ROOT / "bench").rglob("*.py")])
MAX_LINES = 600
MAX_PROTOCOLS = 8
HEAVY = ("aiohttp", "asyncio", "click", "httptools", "msgspec", "regex", "ruamel", "sqlite3")
PACKAGES_FOR_RUNS = ("runtime", "tools", "providers", "sandbox", "worker.worker", "app.application")
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|TYPE_CHECKING)\b|unittest\.mock")


def test_there_are_at_most_eight_protocols():
    tree = ast.parse((SOURCE / "interfaces.py").read_text(encoding="utf-8"))
    protocols = [
        node.name
        for node in tree.body
        if isinstance(node, ast.ClassDef) and any(ast.unparse(base) == "Protocol" for base in node.bases)
    ]
    assert 0 < len(protocols) <= MAX_PROTOCOLS, protocols


def test_the_source_has_no_unfinished_code():
    found = [
        f"{module.relative_to(ROOT)}:{number}: {line.strip()}"
        for module in MODULES
        for number, line in enumerate(module.read_text(encoding="utf-8").splitlines(), start=1)
        if UNFINISHED.search(line)
    ]
    assert found == []


def test_no_module_is_longer_than_600_lines():
    lines = {
        str(module.relative_to(ROOT)): module.read_text(encoding="utf-8").count("\n") for module in MODULES
    }
    assert {name: count for name, count in lines.items() if count > MAX_LINES} == {}


def test_every_module_has_a_docstring():
    without_docstring = [
        str(module.relative_to(ROOT))
        for module in MODULES
        if not (ast.get_docstring(ast.parse(module.read_text(encoding="utf-8"))) or "").strip()
    ]
    assert without_docstring == []


def test_every_interpreter_is_started_isolated():
    """An interpreter that imports from the current folder would run code from a repository that may be hostile."""
    starters = {
        str(module.relative_to(SOURCE))
        for module in MODULES
        if module.is_relative_to(SOURCE)
        and not module.is_relative_to(SOURCE / "domain")  # which starts nothing
        for node in ast.walk(ast.parse(module.read_text(encoding="utf-8")))
        if ast.unparse(node) in ("sys.executable", "sys._base_executable", "'python'", "'python3'")
    }
    # The fake MCP server is a file that runs without site-packages; it passes -I itself.
    assert starters == {"isolated_python.py", "testing/mcp_server.py"}


def test_importing_the_package_loads_no_heavy_module():
    assert loaded_modules("import retinue") == "[]"


def test_the_help_text_needs_only_the_table_of_commands():
    assert loaded_modules("from retinue.__main__ import help_text; assert 'sessions' in help_text()") == "[]"


def test_session_commands_import_no_providers_no_tools_and_no_yaml():
    unneeded = ("aiohttp", "regex", "ruamel", *(f"retinue.{package}" for package in PACKAGES_FOR_RUNS))
    assert loaded_modules("import retinue.cli.sessions", unneeded) == "[]"


def test_mcp_modules_are_not_imported_at_start_up():
    unneeded = ("retinue.mcp.client", "retinue.app.mcp_connections", "retinue.sandbox.line_process")
    assert loaded_modules("import retinue.app.application", unneeded) == "[]"


def test_the_http_parser_is_loaded_with_the_http_client_and_not_before():
    assert loaded_modules("import retinue.app.application", ("httptools",)) == "[]"
    assert loaded_modules("import retinue.http.client", ("httptools",)) == "['httptools']"


def loaded_modules(code: str, names: tuple[str, ...] = HEAVY) -> str:
    """Run code in a fresh interpreter and return which of the named modules it has loaded."""
    report = f"import sys; print([name for name in {names!r} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; {report}"], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()
