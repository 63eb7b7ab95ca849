"""Inner layers use msgspec for values only; decoding stays at the edge."""

import ast
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "src" / "retinue"
INNER = [SOURCE / "domain", SOURCE / "runtime", SOURCE / "interfaces.py", SOURCE / "errors.py"]
VALUE_NAMES = {("msgspec", "Struct"), ("msgspec", "field")}


def test_inner_layers_import_only_values_from_msgspec():
    modules = [
        path for inner in INNER for path in ([inner] if inner.is_file() else sorted(inner.rglob("*.py")))
    ]
    imported = {
        (str(path.relative_to(SOURCE)), node.module, name.name)
        for path in modules
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("msgspec")
        for name in node.names
    }
    plain_imports = {
        str(path.relative_to(SOURCE))
        for path in modules
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Import)
        for name in node.names
        if name.name.startswith("msgspec")
    }
    assert plain_imports == set()
    assert [each for each in imported if each[1:] not in VALUE_NAMES and each[1] != "msgspec.structs"] == []
