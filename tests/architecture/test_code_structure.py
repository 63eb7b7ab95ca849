"""The shape of the house, where the import contracts cannot see it."""

import ast
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "retinue"
MODULES = sorted([*SOURCE.rglob("*.py"), *(ROOT / "bench").rglob("*.py")])
MOST_LINES = 600
MOST_PROTOCOLS = 8
HEAVY = ("aiohttp", "asyncio", "click", "httptools", "msgspec", "regex", "ruamel", "sqlite3")
ROOMS_OF_RUNS = ("runtime", "tools", "providers", "sandbox", "worker.worker", "app.application")
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|TYPE_CHECKING)\b|unittest\.mock")


def test_the_world_is_asked_for_through_at_most_eight_protocols():
    tree = ast.parse((SOURCE / "interfaces.py").read_text(encoding="utf-8"))
    protocols = [
        node.name
        for node in tree.body
        if isinstance(node, ast.ClassDef) and any(ast.unparse(base) == "Protocol" for base in node.bases)
    ]
    assert 0 < len(protocols) <= MOST_PROTOCOLS, protocols


def test_nothing_in_the_source_is_left_for_later():
    found = [
        f"{module.relative_to(ROOT)}:{number}: {line.strip()}"
        for module in MODULES
        for number, line in enumerate(module.read_text(encoding="utf-8").splitlines(), start=1)
        if UNFINISHED.search(line)
    ]
    assert found == []


def test_no_module_outgrows_its_noun():
    lines = {
        str(module.relative_to(ROOT)): module.read_text(encoding="utf-8").count("\n") for module in MODULES
    }
    assert {name: count for name, count in lines.items() if count > MOST_LINES} == {}


def test_every_module_opens_with_a_sentence_that_says_why_it_exists():
    silent = [
        str(module.relative_to(ROOT))
        for module in MODULES
        if not (ast.get_docstring(ast.parse(module.read_text(encoding="utf-8"))) or "").strip()
    ]
    assert silent == []


def test_importing_the_package_is_light():
    assert _loaded("import retinue") == "[]"


def test_the_overview_of_commands_needs_nothing_but_its_table():
    assert _loaded("from retinue.__main__ import help_text; assert 'sessions' in help_text()") == "[]"


def test_keeping_conversations_needs_no_models_no_tools_and_no_yaml():
    unneeded = ("aiohttp", "regex", "ruamel", *(f"retinue.{room}" for room in ROOMS_OF_RUNS))
    assert _loaded("import retinue.cli.sessions", unneeded) == "[]"


def test_servers_that_bring_tools_cost_nothing_before_one_is_asked():
    unneeded = ("retinue.mcp.client", "retinue.app.mcp_connections", "retinue.sandbox.line_process")
    assert _loaded("import retinue.app.application", unneeded) == "[]"


def test_the_http_parser_is_loaded_with_the_http_client_and_not_before():
    assert _loaded("import retinue.app.application", ("httptools",)) == "[]"
    assert _loaded("import retinue.providers.http.client", ("httptools",)) == "['httptools']"


def _loaded(code: str, names: tuple[str, ...] = HEAVY) -> str:
    """Which of these modules a fresh interpreter has after some code."""
    tell = f"import sys; print([name for name in {names!r} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; {tell}"], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()
