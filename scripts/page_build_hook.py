"""Build hook that refuses to build a wheel without the bundled page, which is not in git."""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

STATIC = "src/retinue/server/static"
REQUIRED_FILES = ("index.html", "app.js", "app.css", "licences.txt")


class CarryPage(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002
        """Abort if a file of the page is missing. An editable install may bundle the page later."""
        if version == "editable":
            return
        missing = [name for name in REQUIRED_FILES if not (Path(self.root) / STATIC / name).is_file()]
        if missing:
            self.app.abort(
                f"The page is not bundled: {', '.join(missing)} missing in {STATIC}. Run scripts/page, then build again."
            )
