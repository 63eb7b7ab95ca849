"""A home folder is the workspace of an agent only if a person allows it."""

import json
import os
import pwd
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from user_machine import UserMachine

from retinue import daemon_client
from retinue.testing.replies import text_reply


@pytest.fixture
def home(machine: UserMachine) -> Path:
    """Make the machine's folder the home folder of its user."""
    machine.env["HOME"] = str(machine.folder)
    return machine.folder


async def post(machine: UserMachine, path: str, **body: Any) -> dict[str, Any]:
    """Send a request over the local socket; return the body, or the text of an error as `refused`."""
    connector = aiohttp.UnixConnector(str(machine.home / daemon_client.SOCKET_NAME))
    async with (
        aiohttp.ClientSession(connector=connector) as client,
        client.post(f"http://localhost{path}", json=body) as response,
    ):
        answer = await response.json()
    return answer if response.ok else {"refused": answer["error"]["message"], "status": response.status}


@pytest.mark.parametrize("named", ["the environment", "the user database", "a folder that contains it"])
async def test_a_command_refuses_a_home_folder_and_what_contains_it_without_the_option(
    machine: UserMachine, home: Path, named: str
):
    user_home = pwd.getpwuid(os.getuid()).pw_dir
    folder = {"the environment": ".", "the user database": user_home}.get(named, str(Path(user_home).parent))
    async with machine.serve_models([text_reply("Hi.")] * 4):
        workspace = str((home / folder).resolve())
        refused = await machine("run", "--json", "--workspace", folder, "Hi")
        assert (refused.code, refused.json["error"]["code"]) == (3, "refused")
        message = refused.json["error"]["message"]
        assert message.startswith(f"The workspace would be {workspace}, which ")
        assert "--allow-home" in message
        assert (await machine("sessions", "list", "--json")).json == []
        allowed = await machine("run", "--json", "--workspace", folder, "--allow-home", "Hi")
        assert (allowed.code, allowed.json["status"]) == (0, "done")
        assert (await machine("send", allowed.json["session_id"], "More")).code == 0
        (home / "project").mkdir()
        assert (await machine("run", "--json", "--workspace", "project", "Hi")).code == 0


async def test_root_needs_the_option_for_the_home_folders_of_other_people(machine: UserMachine):
    """Another user cannot read them anyway."""
    others = [each.pw_dir for each in pwd.getpwall() if 1000 <= each.pw_uid < 65534 and each.pw_dir != "/"]
    homes = [folder for folder in others if Path(folder).is_dir()] if os.getuid() == 0 else []
    async with machine.serve_models([text_reply("Hi.")] * (2 * len(homes) + 1)):
        for folder in {each for home in homes for each in (home, str(Path(home).parent))}:
            refused = await machine("run", "--json", "--workspace", folder, "Hi")
            assert refused.code == 3, (folder, refused.out)
            assert "home folder" in refused.json["error"]["message"]
        assert (await machine("run", "--json", "Hi")).code == 0


async def test_chat_spawn_and_background_runs_refuse_a_home_folder_without_the_option(
    machine: UserMachine, home: Path
):
    (home / "project").mkdir()
    async with machine.serve_models([text_reply("Hi.")] * 6):
        assert "--allow-home" in (await machine("chat", stdin=b"Hi\n")).err
        assert "Hi." in (await machine("chat", "--allow-home", stdin=b"Hi\n")).out
        assert (await machine("run", "--background", "Hi")).code == 3
        parent = (await machine("run", "--json", "--workspace", "project", "Hi")).json["session_id"]
        spawn = ("spawn", "--parent", parent, "--agent", "general", "--workspace", str(home))
        refused = await machine(*spawn, "Hi")
        assert (refused.code, "--allow-home" in refused.err) == (3, True)
        assert (await machine(*spawn, "--allow-home", "Hi")).code == 0
    await machine("serve", "--stop")


async def test_the_api_refuses_a_home_folder_without_its_field_or_the_option_of_the_daemon(
    machine: UserMachine, home: Path
):
    machine.write_agent("general")
    async with machine.serve_models([text_reply("Hi.")] * 4):
        async with machine.daemon():
            assert "allow_home" in (await post(machine, "/api/sessions", agent="general"))["refused"]
            named = await post(machine, "/api/sessions", agent="general", workspace=str(home))
            assert "allow_home" in named["refused"]
            allowed = await post(machine, "/api/sessions", agent="general", allow_home=True)
            assert json.loads((Path(allowed["path"]).parent / "session.json").read_text())["workspace"][
                "root"
            ] == str(home)
            message = {"content": "Hi", "session": "create"}
            path = "/api/agents/general/messages"
            assert "allow_home" in (await post(machine, path, **message))["refused"]
            assert (await post(machine, path, **message, allow_home=True))["status"] == "complete"
        detached = await machine("serve", "--detach", "--port", "0")
        assert "This folder is or contains your home folder" in detached.err
        await machine("serve", "--stop")
        process = await machine.start("serve", "--port", "0", "--allow-home")
        while await daemon_client.ping_daemon(machine.home) is None:
            assert process.returncode is None
        assert "id" in str(await post(machine, "/api/sessions", agent="general"))
        await machine.kill(process)


async def test_a_definition_may_name_a_home_folder_itself(machine: UserMachine, home: Path):
    machine.write_agent("keeper", f"workspace: {{isolation: custom, path: '{home}'}}\n")
    async with machine.serve_models([text_reply("Hi.")]):
        assert (await machine("run", "--agent", "keeper", "Hi")).code == 0
