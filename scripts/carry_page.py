"""Keeps a wheel from being built without the page, which git does not hold: an empty daemon is noticed too late."""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

STATIC = "src/retinue/server/static"
NEEDED = ("index.html", "app.js", "app.css", "licences.txt")


class CarryPage(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002
        """An editable install finds the page in its place, also when it is bundled later."""
        if version == "editable":
            return
        missing = [name for name in NEEDED if not (Path(self.root) / STATIC / name).is_file()]
        if missing:
            self.app.abort(
                f"The page is not bundled ({STATIC} lacks {', '.join(missing)}): run scripts/page, then build again."
            )
