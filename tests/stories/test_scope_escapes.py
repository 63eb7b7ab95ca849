"""Attempts to escape a scope: private addresses, archives, agents of other runtimes, and what Landlock leaves open."""

import asyncio
import io
import json
import os
import stat
import subprocess
import tarfile
import zipfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from user_machine import UserMachine

from retinue.sandbox.landlock import abi_version
from retinue.testing.replies import text_reply, tool_call_reply


@asynccontextmanager
async def record_connections() -> AsyncGenerator[tuple[int, list[bytes]]]:
    """Serve on loopback, and record what every connection sends."""
    received: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.append(await reader.read(4096))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 6\r\n\r\nsecret")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], received
    finally:
        server.close()
        await server.wait_closed()


# the web


async def test_web_fetch_does_not_exist_unless_the_configuration_allows_hosts(machine: UserMachine):
    """Shows: S06."""
    machine.write_config(approvals="auto")
    async with (
        record_connections() as (port, received),
        machine.serve_models(
            [tool_call_reply(("web_fetch", {"url": f"http://localhost:{port}/"})), text_reply("No.")]
        ) as server,
    ):
        await machine("run", "Fetch")
        listed = (await machine("tools", "list", "--json")).json
    assert "web_fetch" not in machine.tool_names(server.requests[0])
    assert "web_fetch" not in json.dumps(listed)
    assert json.loads(machine.tool_results(server.requests[1])[0])["error"] == "unknown_tool"
    assert received == []


async def test_private_addresses_are_not_fetched_even_if_the_configuration_allows_them(
    machine: UserMachine,
):
    """Shows: S06, S07."""
    async with record_connections() as (port, received):
        machine.write_config(
            approvals="auto",
            web_fetch={"hosts": [f"http://localhost:{port}", f"http://*.localhost:{port}", "*"]},
        )
        urls = [
            f"http://localhost:{port}/", f"http://LOCALHOST:{port}/", f"http://localhost:{port}#example.org/",
            f"http://127.0.0.1:{port}/", f"http://[::1]:{port}/", f"http://2130706433:{port}/", f"http://localhost.:{port}/",
            f"http://example.org@localhost:{port}/", f"http://localhost:{port}\r\nHost: example.org/", f"http://other.invalid:{port}/",
            f"http://localhost:{port}/ ",
        ]  # fmt: skip
        script = [tool_call_reply(*[("web_fetch", {"url": url}) for url in urls]), text_reply("No.")]
        async with machine.serve_models(script) as server:
            await machine("run", "Fetch")
    assert "web_fetch" in machine.tool_names(server.requests[0])
    results = machine.tool_results(server.requests[1])
    refused = [json.loads(each) for each in results if each.startswith("{")]
    assert {each["error"] for each in refused} == {"host_not_allowed"}
    assert [each["resource"] for each in refused] == [*urls[:3], urls[9]]
    assert all("has an address in a private network" in each["message"] for each in refused[:3])
    assert "web_fetch.hosts" in refused[3]["message"]
    assert all(each.startswith("The URL ") for each in results if not each.startswith("{"))
    assert received == []


@pytest.mark.parametrize(
    ("ceiling", "policy", "code"), [({"network": False}, "auto", 0), (None, "ask", 6), (None, "deny", 0)]
)
async def test_a_fetch_requires_approval_and_a_ceiling_without_network_removes_the_tool(
    machine: UserMachine, ceiling: dict[str, bool] | None, policy: str, code: int
):
    """Shows: S06, T08."""
    async with record_connections() as (port, received):
        machine.write_config(
            approvals=policy,
            web_fetch={"hosts": [f"http://localhost:{port}"]},
            **({"ceiling": ceiling} if ceiling else {}),
        )
        script = [tool_call_reply(("web_fetch", {"url": f"http://localhost:{port}/"})), text_reply("No.")]
        async with machine.serve_models(script) as server:
            ran = await machine("run", "--json", "Fetch")
    assert ran.code == code
    assert ("web_fetch" in machine.tool_names(server.requests[0])) == (ceiling is None)
    if code == 0:
        result = json.loads(machine.tool_results(server.requests[1])[0])
        assert result["success"] is False
        assert ("denies network access" in result["message"]) == (ceiling is not None)
    assert received == []


@pytest.mark.parametrize("bad", ["127.0.0.1", "https://user@example.org", "example.org/path", "**"])
async def test_an_invalid_host_in_the_configuration_is_refused_at_the_start_with_its_key(
    machine: UserMachine, bad: str
):
    """Shows: S06."""
    machine.write_config(web_fetch={"hosts": ["docs.example.org", bad]})
    async with machine.serve_models([]):
        refused = await machine("run", "Hi")
    assert (refused.code, "web_fetch.hosts[1]" in refused.err, bad in refused.err) == (2, True, True)


# archives


def write_evil_archives(folder: Path, outside: Path) -> None:
    """Write archives with members that lead out: upwards, absolute, and through links of earlier members."""
    up = os.path.relpath(outside, folder)
    with tarfile.open(folder / "evil.tar", "w") as tar:

        def member(name: str, data: bytes = b"evil\n", **more: Any) -> None:
            info = tarfile.TarInfo(name)
            info.size = 0 if more else len(data)
            for key, value in more.items():
                setattr(info, key, value)
            tar.addfile(info, None if more else io.BytesIO(data))

        member("plain.txt", b"plain\n")
        member(f"{up}/up.txt")
        member(f"{outside}/absolute.txt")
        member("way", type=tarfile.SYMTYPE, linkname=str(outside))
        member("way/through.txt")
        member("target", type=tarfile.SYMTYPE, linkname=f"{up}/secret")
        member("hard", type=tarfile.LNKTYPE, linkname=f"{outside}/secret")
        member("hard")
        member(".git/hooks/post-checkout")
        member(".vscode/tasks.json", b"{}\n")
        member("pipe", type=tarfile.FIFOTYPE)
        member("device", type=tarfile.CHRTYPE, devmajor=1, devminor=3)
    with zipfile.ZipFile(folder / "evil.zip", "w") as packed:
        for name in ("plain.txt", f"{up}/up.txt", f"{outside}/absolute.txt", "way/through.txt", ".envrc"):
            packed.writestr(name, "evil\n")
        link = zipfile.ZipInfo("way2")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        packed.writestr(link, str(outside))


UNPACK_PROGRAM = """
import os, tarfile, zipfile
for member in (tar := tarfile.open('evil.tar')).getmembers():
    try: tar.extract(member)
    except Exception as error: print(member.name, error)
for member in (packed := zipfile.ZipFile('evil.zip')).infolist():
    try:
        os.makedirs(os.path.dirname(member.filename) or '.', exist_ok=True)
        if member.external_attr >> 28 == 10: os.symlink(packed.read(member), member.filename)
        else: open(member.filename, 'wb').write(packed.read(member))
    except Exception as error: print(member.filename, error)
"""


async def test_unpacking_an_evil_archive_changes_nothing_outside_the_workspace(machine: UserMachine):
    """Archives are unpacked by sandboxed commands: tar with its checks switched off, and a program that has none.

    The file tools then follow none of the unpacked links out of the scope.

    Shows: F22.
    """
    machine.write_config(approvals="auto")
    outside = machine.folder.parent / "outside"
    outside.mkdir()
    (outside / "secret").write_text("canary-7c1f\n")
    write_evil_archives(machine.folder, outside)
    before = {path.name: path.stat() for path in (outside, outside / "secret")}
    control = machine.folder.parent / "control"
    for place in (control / "work", control / "outside"):
        place.mkdir(parents=True)
    write_evil_archives(control / "work", control / "outside")
    await asyncio.to_thread(
        subprocess.run, ["tar", "-xPf", "evil.tar"], cwd=control / "work", check=False, capture_output=True
    )
    assert {"up.txt", "absolute.txt", "through.txt"} <= {
        path.name for path in (control / "outside").iterdir()
    }
    replies = [
        tool_call_reply(
            (
                "bash",
                {"command": "tar -xPf evil.tar --unlink-first; tar -xPf evil.tar; cat way/* target hard"},
            )
        ),
        tool_call_reply(
            ("bash", {"command": f'/usr/bin/python3 -I -c "{UNPACK_PROGRAM}"; cat way/* way2/* target hard'})
        ),
        tool_call_reply(
            *[("read", {"path": path}) for path in ("way/secret", "target", "way2/secret", "hard")],
            *[("write", {"path": path, "content": "evil"}) for path in ("way/new", "way2/new", "target")],
            ("read", {"path": "plain.txt"}),
        ),
        text_reply("Unpacked."),
    ]
    async with machine.serve_models(replies) as server:
        ran = await machine("run", "--json", "Unpack")
    assert (ran.code, ran.json["sandbox"]) == (0, "strict")
    results = machine.tool_results(server.requests[3])
    assert "canary-7c1f" not in "".join(results)
    assert "plain" in results[-1] or "evil" in results[-1]
    assert sorted(path.name for path in outside.iterdir()) == ["secret"]
    assert (outside / "secret").read_text() == "canary-7c1f\n"
    for path in (outside, outside / "secret"):
        now, then = path.stat(), before[path.name]
        assert (now.st_mtime_ns, now.st_ctime_ns, now.st_nlink) == (
            then.st_mtime_ns,
            then.st_ctime_ns,
            then.st_nlink,
        )
    for name in (".git/hooks/post-checkout", ".vscode/tasks.json", ".envrc", "pipe"):
        assert not os.path.lexists(machine.folder / name), name
    assert (machine.folder / "plain.txt").exists()
    assert not any(stat.S_ISCHR(path.lstat().st_mode) for path in machine.folder.rglob("*"))


# other runtimes

DELEGATION_ARGUMENTS = {
    "spawn_subagent": {"agentId": "@", "prompt": "Go"},
    "agents_message": {"agentId": "@", "content": "Go"},
    "agent": {"agent_name": "@", "task_prompt": "Go"},
}


async def test_a_cli_agent_is_sandboxed_and_an_external_agent_refused_whichever_tool_starts_it(
    machine: UserMachine,
):
    """A CLI agent runs in the sandbox of its session; an external server cannot be sandboxed and receives no request.

    Shows: T09.
    """
    programs = machine.folder.parent / "bin"
    programs.mkdir()
    places = (machine.folder.parent, machine.folder)
    for name in ("claude", "codex", "pi"):
        touch_lines = "".join(f'touch "{place}/escaped-{name}"\n' for place in places)
        (programs / name).write_text(f"#!/bin/sh\n{touch_lines}echo here is {name} >&2\nexit 3\n")
        (programs / name).chmod(0o755)
        machine.write_agent(f"{name}-agent", f"driver: {name}-cli\n")
    path = f"{programs}{os.pathsep}{machine.env['PATH']}"
    machine.write_config(approvals="auto")
    machine.write_agent(
        "main",
        f"workspace: {{writable: false}}\ntools: [PersistentAgent, {', '.join(DELEGATION_ARGUMENTS)}]\n",
    )
    async with record_connections() as (port, received):
        machine.write_agent(
            "far-agent",
            f"type: external\nexternal: {{inputUrl: 'http://127.0.0.1:{port}/', callbackBaseUrl: 'http://127.0.0.1:{port}/'}}\n",
        )
        agents = ["claude-agent", "codex-agent", "pi-agent", "far-agent"]
        calls = [
            (tool, {key: agent if value == "@" else value for key, value in args.items()})
            for agent in agents
            for tool, args in DELEGATION_ARGUMENTS.items()
        ]
        async with machine.serve_models([tool_call_reply(*calls), text_reply("None of them.")]) as server:
            ran = (await machine("run", "--json", "--agent", "main", "Hand it on", PATH=path)).json
            spawn = ["spawn", "--json", "--parent", ran["slug"], "--agent"]
            children = [await machine(*spawn, agent, "Go", PATH=path) for agent in agents]
            assert [result.name for place in places for result in place.glob("escaped-*")] == []
            direct = [await machine("run", "--json", "--agent", agent, "Go", PATH=path) for agent in agents]
    results = machine.tool_results(server.requests[1])
    assert len(results) == len(calls)
    for (tool, args), result in zip(calls, results, strict=True):
        name = next(value for value in args.values() if value in agents).removesuffix("-agent")
        words = "not supported yet" if name == "far" else f"Read-only file system here is {name}"
        assert words in result, (tool, result)
    assert [result.code for result in (*children, *direct)] == [1, 1, 1, 2] * 2
    assert list(machine.folder.parent.glob("escaped-*")) == []
    assert received == []
    assert len(server.requests) == 2


# what Landlock leaves open


LOWER_LEVEL = "landlock" if abi_version() else "none"
CHANGE_FILE = "chmod 640 '{0}'; touch -d @86400 '{0}'; cat '{0}'; echo evil >>'{0}'"


async def test_below_strict_nothing_outside_changes_without_approval_of_that_command(machine: UserMachine):
    """Landlock does not restrict changes of modes, times and attributes of other files, as documented.

    So every command requires approval, and an approved one can change them. Contents stay protected even then.

    Shows: S19.
    """
    machine.write_config(approvals="auto")
    machine.write_agent("tester", "shell_commands: {allow: ['*']}\n")
    outside = machine.folder.parent / "outside"
    outside.write_text("canary-19ab\n")
    outside.chmod(0o600)
    before = outside.stat()
    call = tool_call_reply(("bash", {"command": CHANGE_FILE.format(outside)}))
    async with machine.serve_models([call, text_reply("No."), call, text_reply("Done.")]) as server:
        for answer in ("deny", "allow"):
            ran = await machine("run", "--json", "--agent", "tester", "Go", RETINUE_SANDBOX=LOWER_LEVEL)
            assert (ran.code, ran.json["waiting_for"]) == (6, "approval")
            assert outside.stat() == before
            [approval] = ran.json["approvals"]
            shown = (await machine("approvals", "show", approval, "--json", RETINUE_SANDBOX=LOWER_LEVEL)).json
            assert (shown["sandbox"], shown["resource"]) == (LOWER_LEVEL, CHANGE_FILE.format(outside))
            if answer == "allow":
                break
            await machine("approvals", "answer", approval, answer, RETINUE_SANDBOX=LOWER_LEVEL)
            assert outside.stat() == before
        await machine("approvals", "answer", approval, "allow", RETINUE_SANDBOX=LOWER_LEVEL)
    result = machine.tool_results(server.requests[-1])[-1]
    assert f", sandbox {LOWER_LEVEL}, " in result
    assert stat.S_IMODE(outside.stat().st_mode) == 0o640
    if LOWER_LEVEL == "landlock":
        assert outside.stat().st_mtime == 86400
        assert outside.read_text() == "canary-19ab\n"
        assert "canary-19ab" not in result
    page = (Path(__file__).parents[2] / "docs/explanation/sandbox.md").read_text()
    assert "the modes, times and attributes of files elsewhere can be changed" in page
