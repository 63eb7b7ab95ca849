"""A daemon in the test process, with a home of its own and a scripted model."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from api_fixture import ApiClient, OpenApi, serve_app, write_definitions

import retinue
from retinue import daemon_client
from retinue.app.composition import defer_question
from retinue.interfaces import Tool
from retinue.testing.fake_model_server import FakeModelServer, Script
from retinue.testing.replies import text_reply


@pytest.fixture
def api(tmp_path: Path, isolated_env: dict[str, str]) -> OpenApi:

    @asynccontextmanager
    async def open_api(
        script: Script | None = None,
        *,
        tools: Sequence[Tool] = (),
        agents: dict[str, str] | None = None,
        settings: str = "",
    ) -> AsyncGenerator[ApiClient]:
        config = Path(isolated_env["RETINUE_CONFIG"])
        write_definitions(config, agents or {})
        (config / "config.toml").write_text(settings)
        workspace = tmp_path / "work"
        workspace.mkdir(exist_ok=True)
        async with FakeModelServer(script or (lambda _request: text_reply("ok"))) as server:
            env = isolated_env | {"OPENAI_BASE_URL": f"{server.url}/v1", "OPENAI_API_KEY": "sk-test"}
            async with retinue.open(env=env, tools=tools, ask=defer_question) as app, serve_app(app):
                with daemon_client.socket_path(app.config.home) as socket:
                    connector = aiohttp.UnixConnector(socket, limit=0)
                    async with aiohttp.ClientSession("http://daemon", connector=connector) as http:
                        yield ApiClient(
                            app=app, home=app.config.home, workspace=workspace, http=http, server=server
                        )

    return open_api
