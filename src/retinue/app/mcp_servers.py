"""Servers as the application has them: their tools beside the others, and what a person decided about them. None is
started before something is asked of it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from retinue.agents.validators import hint
from retinue.config.load import Config
from retinue.domain.clock import Chance
from retinue.domain.mcp_tool import Compared, Offer, Pin, Server, Stand, compared
from retinue.domain.tool import spelled
from retinue.errors import NotFound, Usage
from retinue.interfaces import Tool
from retinue.mcp.pins import Pins
from retinue.storage.file_io import Stamp
from retinue.tools.mcp_tool import Ask, served


class Servers:
    """The MCP servers of the configuration. Lists and runs go by what was trusted, which is on disk."""

    def __init__(self, config: Config, own: Mapping[str, Tool], chance: Chance) -> None:
        self._config = config
        self._own = own
        # As with models: what was trusted counts in a home that is forgotten too.
        self._pins = Pins(config.models / "mcp.json", token=chance.uuid)
        self._how = {each.name: each for each in config.mcp}
        self._stamp: Stamp | None = None
        self._table: dict[str, Tool] | None = None

    def tools(self) -> Mapping[str, Tool]:
        """All tools, those of servers included; live, so that what a person trusts counts at once."""
        return _Live(self._now) if self._how else self._own

    def rows(self) -> list[dict[str, Any]]:
        """Each server of the configuration, without starting it."""
        return [
            {
                "name": how.name,
                "command": [how.command, *how.args] if how.command else None,
                "url": how.url or None,
                "found": self._serving.program(how) is not None,
                "trusted": sorted(name for name, pin in pins.items() if not pin.changed),
                "changed": sorted(name for name, pin in pins.items() if pin.changed),
                "left_out": sorted(
                    f"{how.name}.{name}" for name in pins if f"{how.name}.{name}" not in table
                ),
                "believe_hints": how.believe_hints,
            }
            for table in (self._now(),)
            for how in self._how.values()
            for pins in (self._pins.of(how.name),)
        ]

    async def look(self, server: str) -> list[Compared]:
        """What it offers now, beside what was trusted. Starts it."""
        how = self._known(server)
        return compared(await self._serving.server(how).offers(), self._pins.of(server))

    def trust(self, server: str, seen: Sequence[Compared]) -> list[str]:
        """Exactly what was seen is trusted from now on, and nothing else of this server. Says what that is."""
        chosen = [each.now for each in seen if each.now is not None and not each.problem]
        if not chosen:
            raise Usage(f"there is nothing here of {server} that could be trusted")
        self._pins.trust(server, chosen)
        return [each.name for each in chosen]

    def distrust(self, server: str) -> None:
        """Also of one that is not in the configuration any more."""
        self._pins.distrust(server)

    async def close(self) -> None:
        if "_serving" in self.__dict__:
            await self._serving.close()

    def _now(self) -> dict[str, Tool]:
        stamp = self._pins.stamp()
        if self._table is None or stamp != self._stamp:
            self._stamp, self._table = stamp, self._made()
        return self._table

    def _made(self) -> dict[str, Tool]:
        """No tool of a server takes a name that another has, nor one that a model could not tell from it."""
        table = dict(self._own)
        taken = {spelled(name) for name in table}
        for how in self._how.values():
            for pin in self._pins.of(how.name).values():
                tool = served(how.name, pin, self._asking(how), believe_hints=how.believe_hints)
                name = tool.spec.name
                if spelled(name) not in taken and not pin.offer.problem():
                    table[name] = tool
                    taken.add(spelled(name))
        return table

    def _asking(self, how: Server) -> Ask:
        async def ask(pin: Pin, arguments: Mapping[str, Any]) -> str:
            return await self._serving.server(how).call(pin, arguments)

        return ask

    def _marked(self, server: str, found: Compared) -> None:
        """What is only gone may come back as it was."""
        if found.pinned is not None and found.stand is not Stand.GONE:
            now = "unfit" if found.now is None or found.problem else found.now.hash
            self._pins.changed(server, Pin(offer=found.pinned), now)

    @cached_property
    def _serving(self):
        from retinue.app.mcp_connections import Serving

        return Serving(self._config, self._marked)

    def _known(self, server: str) -> Server:
        if server not in self._how:
            known = hint(server, self._how) if self._how else "; the configuration names none under mcp"
            raise NotFound(f"there is no MCP server {server!r}{known}")
        return self._how[server]


class _Live(Mapping[str, Tool]):
    """A table that is looked up anew each time."""

    def __init__(self, now: Callable[[], Mapping[str, Tool]]) -> None:
        self._now = now

    def __getitem__(self, name: str) -> Tool:
        return self._now()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._now())

    def __len__(self) -> int:
        return len(self._now())


def as_json(found: Compared) -> dict[str, Any]:
    """One tool for programs: as it is, and as it was trusted."""
    return {
        "name": found.name,
        "stand": str(found.stand),
        "problem": found.problem or None,
        "now": _facts(found.now),
        "trusted": _facts(found.pinned),
    }


def _facts(offer: Offer | None) -> dict[str, Any] | None:
    if offer is None:
        return None
    return {"description": offer.description, "schema": offer.schema, "hints": dict(offer.hints)}
