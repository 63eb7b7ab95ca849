"""The environment of a process in a test: nothing of this machine's user, and a home of the test's own."""

import os
import sys
from pathlib import Path

INHERITED_VARIABLES = ("PATH", "LANG", "LC_ALL", "TMPDIR", "COVERAGE_PROCESS_START")
FOLDERS = {"HOME": "user", "RETINUE_HOME": "home", "RETINUE_CONFIG": "config"}


def create_environment(root: Path) -> dict[str, str]:
    """Create empty home, data and configuration folders below `root`, and return an environment that names them."""
    for name in FOLDERS.values():
        (root / name).mkdir(mode=0o700, exist_ok=True)
    inherited = {name: os.environ[name] for name in INHERITED_VARIABLES if name in os.environ}
    inherited["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), inherited.get("PATH", os.defpath)))
    return inherited | {variable: str(root / name) for variable, name in FOLDERS.items()}
