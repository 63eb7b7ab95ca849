"""MCP tools that a person has approved, pinned with their hash in `<home>/mcp.json`."""

import json
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from retinue.domain.mcp import HINT_NAMES, McpTool, PinnedTool
from retinue.errors import Failed, NotFound
from retinue.storage.file_io import FileStamp, file_stamp, read_file, replace_file, write_error
from retinue.storage.file_lock import file_lock

PinsByServer = Mapping[str, Mapping[str, PinnedTool]]
"""Server → tool name → pinned tool."""


class McpPinStore:
    """Store of pinned MCP tools, read again whenever its file changed.

    Trust changes take effect at once in every process.
    """

    def __init__(self, path: Path, *, unique_suffix: Callable[[], str]) -> None:
        self._path = os.fspath(path)
        self._token = unique_suffix
        self._loaded_stamp: FileStamp | None = None
        self._pins: PinsByServer = {}

    def stamp(self) -> FileStamp | None:
        """Return the file's stamp, which differs after every change."""
        return file_stamp(self._path)

    def all(self) -> PinsByServer:
        """Return all pins. An unreadable file is an error: nothing is trusted or forgotten by mistake."""
        stamp = self.stamp()
        if stamp is None:
            return {}
        if stamp != self._loaded_stamp:
            self._pins, self._loaded_stamp = _load_pins(self._path), stamp
        return self._pins

    def for_server(self, server: str) -> Mapping[str, PinnedTool]:
        return self.all().get(server, {})

    def trust(self, server: str, tools: Sequence[McpTool]) -> None:
        """Pin exactly these tools of a server, replacing its earlier pins."""
        with self._locked_update() as pins:
            pins[server] = {tool.name: PinnedTool(tool=tool) for tool in tools}

    def distrust(self, server: str) -> None:
        if not self.for_server(server):
            raise NotFound(
                f"No tool of the MCP server {server} is trusted. List the servers with `retinue mcp list`."
            )
        with self._locked_update() as pins:
            pins.pop(server, None)

    def mark_changed(self, server: str, pin: PinnedTool, new_hash: str) -> None:
        """Record that a tool no longer matches its pin; it is refused until a person reviews it.

        Concurrently replaced pins are kept.
        """
        if self.for_server(server).get(pin.tool.name) != pin:
            return
        with self._locked_update() as pins:
            tools = dict(pins.get(server, {}))
            if tools.get(pin.tool.name) == pin:
                pins[server] = {**tools, pin.tool.name: PinnedTool(tool=pin.tool, changed_hash=new_hash)}

    @contextmanager
    def _locked_update(self) -> Generator[dict[str, Mapping[str, PinnedTool]]]:
        """Read, yield and write back all pins under a lock, so that no other process writes in between."""
        try:
            Path(self._path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with file_lock(f"{self._path}.lock"):
                pins = dict(self.all())
                yield pins
                text = json.dumps(_pins_to_json(pins), indent=2) + "\n"
                replace_file(self._path, text.encode(), token=self._token())
        except OSError as error:
            raise write_error(self._path, error) from error


def _pins_to_json(pins: PinsByServer) -> dict[str, Any]:
    return {
        server: {
            name: {
                "sha256": pin.tool.hash,
                **({"changed": pin.changed_hash} if pin.changed_hash else {}),
                "description": pin.tool.description,
                "hints": dict(pin.tool.hints),
                "schema": pin.tool.schema,
            }
            for name, pin in sorted(tools.items())
        }
        for server, tools in sorted(pins.items())
        if tools
    }


def _load_pins(path: str) -> PinsByServer:
    try:
        document: Any = json.loads(read_file(path))
        return {
            server: {name: _parse_pin(name, facts) for name, facts in tools.items()}
            for server, tools in cast("dict[str, dict[str, dict[str, Any]]]", document).items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Failed(f"{path} cannot be read ({error}). Repair or remove it.") from error


def _parse_pin(name: str, facts: Mapping[str, Any]) -> PinnedTool:
    """Parse one pin; an entry that does not match its own hash is marked as changed, so it is refused."""
    hints: Mapping[str, Any] = facts.get("hints") or {}
    tool = McpTool(
        name=name,
        description=str(facts["description"]),
        schema=dict(facts["schema"]),
        hints={hint: bool(hints[hint]) for hint in HINT_NAMES if hint in hints},
    )
    changed = str(facts.get("changed") or "")
    return PinnedTool(
        tool=tool, changed_hash=changed if facts["sha256"] == tool.hash else changed or tool.hash
    )
