"""Servers at work: each started, or reached, by the first who asks something of it, and ended with the application."""

from collections.abc import Callable, Mapping

from retinue import __version__
from retinue.config.load import Config
from retinue.domain.mcp_tool import Compared, Server
from retinue.errors import Failed
from retinue.mcp.client import Client
from retinue.mcp.connection import Running
from retinue.mcp.http_transport import Posted
from retinue.mcp.stdio_transport import Piped
from retinue.sandbox.line_process import environment, found, start

Marked = Callable[[str, Compared], None]


class Serving:
    """One of each server, whoever calls it."""

    def __init__(self, config: Config, marked: Marked) -> None:
        self._config = config
        self._marked = marked
        self._running: dict[str, Running] = {}

    def server(self, how: Server) -> Running:
        if how.name not in self._running:
            self._running[how.name] = Running(
                how, self._opened, version=__version__, changed=lambda found: self._marked(how.name, found)
            )
        return self._running[how.name]

    def program(self, how: Server) -> str | None:
        """Where it is: its program or its address; None: nowhere."""
        return how.url or found(how.command, self._environment(how))

    async def close(self) -> None:
        for each in self._running.values():
            await each.close()

    async def _opened(self, how: Server) -> Client:
        return self._posted(how) if how.url else await self._piped(how)

    def _posted(self, how: Server) -> Client:
        """A server elsewhere. HTTP is loaded when the first is asked."""
        from retinue.providers.http.message_exchange import Mailbox

        headers = dict(how.headers)
        if how.bearer_env:
            if not (key := self._config.env.get(how.bearer_env, "").strip()):
                raise Failed(f"the MCP server {how.name} needs a key: set {how.bearer_env}")
            headers["Authorization"] = f"Bearer {key}"
        return Posted(how.name, Mailbox(how.url, headers))

    async def _piped(self, how: Server) -> Client:
        """In a folder of its own where nothing else is said: never in a workspace, whose files could steer it."""
        where = self.program(how)
        if where is None:
            raise Failed(f"the MCP server {how.name} cannot be started: there is no program {how.command}")
        place = self._config.home / "mcp" / how.name
        if how.cwd is None:
            for folder in (place.parent.parent, place.parent, place):
                folder.mkdir(mode=0o700, exist_ok=True)
        client, env, cwd = Piped(how.name), self._environment(how), how.cwd or str(place)
        client.line = await start((where, *how.args), env=env, cwd=cwd, heard=client.heard, lost=client.lost)
        return client

    def _environment(self, how: Server) -> Mapping[str, str]:
        return environment(self._config.env, how.inherit, how.env)
