"""Child sessions: each has its own folder and configuration, and at most the permissions of its parent."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from msgspec.structs import replace
from user_machine import UserMachine, spawn_and_wait, wait_until

from retinue.app.run_options import SpawnOptions
from retinue.domain.delivery import DeliveryState
from retinue.domain.permissions.scope import DEFAULT_DENIED_PATHS
from retinue.domain.transcript import ToolResult
from retinue.errors import Failed, NotFound, Refused
from retinue.interfaces import Call, Transaction
from retinue.storage import strict_yaml
from retinue.testing.fake_model_server import CapturedRequest
from retinue.testing.replies import FakeResponse, text_reply, tool_call_reply
from retinue.tools.define import tool

EXPLORER = """\
description: Finds things.
model: anthropic:claude-3-7-sonnet-20250219
temperature: 0.3
tools: [read, ls]
"""


def front_matter_of(preset: Path) -> Any:
    return strict_yaml.load_yaml(preset.read_text().split("---\n")[1], str(preset))


async def test_a_child_session_has_its_own_folder_below_its_parents_branch(machine: UserMachine):
    """Shows: A017, A018, A019, A020, A021, A022, A025, A028, A029, A059, A084."""
    machine.write_agent("scout", EXPLORER)
    (machine.folder / "note.txt").write_text("hello")
    script = [text_reply("Hello."), tool_call_reply(("read", {"path": "note.txt"})), text_reply("Found it.")]
    async with machine.serve_models(script):
        parent = (await machine("run", "--json", "Hi")).json
        spawned = await machine(
            "spawn", "--json", "--parent", parent["slug"], "--agent", "scout", "--description", "Find Module!",
            "--allowed-paths", f"{machine.folder}/**", "Find the module",
        )  # fmt: skip
    assert (spawned.code, spawned.json["text"]) == (0, "Found it.")
    folder = Path(spawned.json["path"]).parent
    assert folder.parent == machine.sessions / parent["slug"] / "branches" / "main" / "agents"
    assert re.fullmatch(r"scout-\d{14}-find-module-", folder.name)
    assert spawned.json["slug"] == folder.name
    names = {path.name for path in folder.iterdir()}
    assert names >= {"session.md", "preset.md", "scope-plan.yml", "tools.org", "session.json"}
    assert not names & {"branches", "current"}
    paths = front_matter_of(folder / "preset.md")["paths"]
    assert paths == {
        "read": [f"{machine.folder}/**"],
        "write": ["/tmp/**"],
        "deny": list(DEFAULT_DENIED_PATHS),
    }
    assert list(DEFAULT_DENIED_PATHS) == ["**/.git/**", "**/runtime/**", "**/.env", "**/node_modules/**"]
    plan = strict_yaml.load_yaml((folder / "scope-plan.yml").read_text(), "plan")
    assert plan == {
        "version": "3.0",
        "session_id": folder.name,
        "created": plan["created"],
        "updated": plan["created"],
        "type": "agent",
        "parent_session_id": parent["slug"],
        "preset": "scout",
    }
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", plan["created"])
    tools = (folder / "tools.org").read_text()
    assert len(re.findall(r"^\* ", tools, re.MULTILINE)) == 1
    assert "note.txt" in tools
    shown = (await machine("sessions", "show", "--json", f"{folder.name}/main")).json
    assert (shown["key"], shown["branch"], shown["path"]) == (
        f"{folder.name}/main",
        "main",
        f"{folder}/session.md",
    )
    assert (shown["type"], shown["parent_session_id"], shown["depth"]) == ("agent", parent["slug"], 1)
    shown = (await machine("sessions", "show", "--json", parent["slug"])).json
    assert (shown["type"], shown["parent_session_id"]) == ("branch", None)


async def test_a_child_session_is_created_below_the_current_branch(machine: UserMachine):
    """Shows: A017."""
    async with machine.serve_models([text_reply("a"), text_reply("b")]), machine.open() as app:
        parent = await app.run("Hi", workspace=machine.folder)
        branched = await app.sessions.branch(parent.slug, name="try")
        run = await spawn_and_wait(app, parent.slug, "explorer")
    assert Path(run.transcript_path).parent.parent == Path(branched.path) / "agents"


async def test_children_cannot_be_nested_deeper_than_the_limit(machine: UserMachine):
    async with machine.serve_models([text_reply(str(n)) for n in range(9)]), machine.open() as app:
        deepest = await app.run("Hi", workspace=machine.folder)
        for depth in (1, 2, 3):
            deepest = await spawn_and_wait(app, deepest.slug, "explorer", f"Go {depth}")
            assert (deepest.depth, (await app.sessions.find(deepest.slug)).depth) == (depth, depth)
        before = machine.read_files()
        with pytest.raises(Refused, match="at depth 3 cannot have a child: the maximum depth is 3"):
            await app.runs.spawn("Go", SpawnOptions(parent=deepest.slug, agent="explorer"))
        assert machine.read_files() == before


async def test_two_children_spawned_in_the_same_second_get_different_names(machine: UserMachine):
    """Shows: A022."""
    async with (
        machine.serve_models([text_reply("a"), text_reply("b"), text_reply("c")]),
        machine.open() as app,
    ):
        parent = await app.run("Hi", workspace=machine.folder)
        runs = [
            await app.runs.spawn("Go", SpawnOptions(parent=parent.slug, agent="explorer", description="x"))
            for _ in range(2)
        ]
        done = [await app.runs.wait(run.id) for run in runs]
    assert len({run.slug for run in done}) == 2


async def test_a_childs_preset_is_an_exact_copy_of_its_template_except_for_the_paths(machine: UserMachine):
    """Shows: A023, A026, A027."""
    plain = machine.write_agent(
        "plain", "description: Plain.  # kept\n\nmodel: 'openai:x'\n", "Line.\n\n\tTab ---\n"
    )
    pathed = machine.write_agent("pathed", 'paths:\n  read: ["/old/**"]\n# after\nmodel: openai:x\n')
    main = machine.write_agent("main", "paths:\n  read: ['docs/**', '/srv/*.md']\n")
    async with machine.serve_models([text_reply(str(n)) for n in range(9)]), machine.open() as app:
        parent = await app.run("Hi", agent="main", workspace=machine.folder)
        presets: dict[str, str] = {}
        paths: dict[str, Path] = {}
        for name in ("plain", "pathed"):
            run = await spawn_and_wait(app, parent.slug, name)
            paths[name] = Path(run.transcript_path).parent / "preset.md"
            presets[name] = paths[name].read_text()
        section = 'paths:\n  read:\n    - "docs/**"\n    - "/srv/*.md"\n  write:\n    - "/tmp/**"\n  deny:\n'
        section += "".join(f'    - "{pattern}"\n' for pattern in DEFAULT_DENIED_PATHS)
        assert presets["plain"] == plain.read_text().replace(
            "model: 'openai:x'\n", f"model: 'openai:x'\n{section}"
        )
        assert presets["pathed"] == pathed.read_text().replace('paths:\n  read: ["/old/**"]\n', section)
        main.write_text(main.read_text().replace("docs/**", "other/**"))
        (Path(parent.transcript_path).parent / "preset.md").write_text(main.read_text())
        assert {name: path.read_text() for name, path in paths.items()} == presets


async def test_an_unknown_template_is_reported_and_creates_nothing(machine: UserMachine):
    """Shows: A024, B008."""
    async with machine.serve_models([text_reply("Hi.")]) as server, machine.open() as app:
        parent = await app.run("Hi", workspace=machine.folder)
        with pytest.raises(NotFound) as missing:
            await app.runs.spawn("Go", SpawnOptions(parent=parent.slug, agent="nobody-known"))
        assert str(missing.value) == "Preset template not found: nobody-known (checked .md and .org)"
        with pytest.raises(NotFound, match=r"^Agent 'nobody-known' not found$"):
            await app.run("Go", agent="nobody-known")
        assert not (Path(parent.transcript_path).parent / "agents").exists()
        assert len(await app.sessions.list()) == 1
        assert len(server.requests) == 1


async def test_a_child_uses_nothing_of_its_parents_configuration(machine: UserMachine):
    """Shows: A031, A032, A034, A035, A036."""
    machine.write_agent("main", "model: openai:gpt-parent\ntemperature: 0.9\n", "You are the PARENT.")
    machine.write_agent("scout", EXPLORER, "You are the SCOUT.")
    (machine.folder / "a.txt").write_text("needle")
    script = [
        text_reply("Hi."),
        text_reply("Overridden."),
        tool_call_reply(("grep", {"pattern": "needle"}), text="I try."),
        text_reply("I may not."),
    ]
    async with machine.serve_models(script) as server, machine.open() as app:
        parent = await app.run("Secret of the parent", agent="main", workspace=machine.folder)
        await app.run("More", session=parent.slug, model="openai:gpt-override")
        run = await spawn_and_wait(app, parent.slug, "scout", "Go and look")
        entries = await app.sessions.entries(run.session_id)
    original, override, first, second = server.requests
    assert (original.path, original.body["model"], original.body["temperature"]) == (
        "/chat/completions",
        "gpt-parent",
        0.9,
    )
    assert override.body["model"] == "gpt-override"
    for request in (first, second):
        assert request.path.endswith("/messages")
        assert (request.body["model"], request.body["temperature"]) == ("claude-3-7-sonnet-20250219", 0.3)
        assert machine.tool_names(request) == ["ls", "read"]
        assert "SCOUT" in machine.system_prompt(request)
        assert b"PARENT" not in request.raw_body
        assert b"Secret of the parent" not in request.raw_body
    refused = [entry for entry in entries if isinstance(entry, ToolResult)]
    assert 'Tool \\"grep\\" is not allowed' in refused[0].text
    assert "needle" not in machine.request_texts(second)[-1]
    assert "grep" in machine.tool_names(original)


async def test_a_child_uses_the_preset_in_its_own_folder(machine: UserMachine):
    """Shows: A033, A038, C15."""
    template = machine.write_agent("scout", "model: openai:first\ntools: [read]\n", "Be brief.")
    async with machine.serve_models([text_reply(str(n)) for n in range(4)]) as server, machine.open() as app:
        parent = await app.run("Hi", workspace=machine.folder)
        child = await spawn_and_wait(app, parent.slug, "scout")
        preset = Path(child.transcript_path).parent / "preset.md"
        template.write_text(template.read_text().replace("openai:first", "openai:template"))
        preset.write_text(
            preset.read_text().replace("openai:first", "openai:edited").replace("[read]", "[ls]")
        )
        await app.run("Again", session=child.transcript_path)
        assert [request.body["model"] for request in server.requests[1:]] == ["first", "edited"]
        assert [machine.tool_names(request) for request in server.requests[1:]] == [["read"], ["ls"]]
        text = preset.read_text()
        for bad in (
            text[:20],
            text.replace("tools:", "tools: ["),
            text.replace("name: scout", "nmae: scout"),
            None,
        ):
            if bad is None:
                preset.unlink()
            else:
                preset.write_text(bad)
            with pytest.raises(Failed, match=f"^Failed to load preset from {re.escape(str(preset.parent))}"):
                await app.run("Again", session=child.slug)
        assert len(server.requests) == 3


async def test_a_truncated_preset_never_widens_a_childs_scope(machine: UserMachine):
    """Shows: P13."""
    machine.write_agent("scout", 'tools: [read]\ntool_deny: ["ls"]\nmodel: openai:m\n', "Look.")
    async with machine.serve_models([text_reply("a"), text_reply("b")]), machine.open() as app:
        parent = await app.run("Hi", workspace=machine.folder)
        child = await spawn_and_wait(app, parent.slug, "scout", allowed_paths=["/srv/**"])
        preset = Path(child.transcript_path).parent / "preset.md"
        text = preset.read_text()
        before = await app.permissions.scope(session=child.session_id)
        for size in range(len(text)):
            preset.write_text(text[:size])
            try:
                after = await app.permissions.scope(session=child.session_id)
            except Failed as error:
                assert "Failed to load preset" in str(error)  # noqa: PT017  (the other outcome is as good)
            else:
                assert (after.hash, size > text.rindex("---")) == (before.hash, True)


async def test_the_first_tool_call_of_a_child_carries_the_childs_own_session(machine: UserMachine):
    """Shows: A037, L003."""
    (machine.folder / "x").write_text("of the workspace")
    callers: list[tuple[str, ...]] = []

    @tool(effect="read")
    def whoami(call: Call) -> str:
        """Says who calls."""
        callers.append(
            (call.session.slug, call.session.path, call.session.branch, call.session.parent_slug or "")
        )
        return "you"

    script = [
        text_reply("Hi."),
        tool_call_reply(("whoami", {}), ("read", {"path": "./x"})),
        text_reply("Me."),
    ]
    async with machine.serve_models(script) as server, machine.open(tools=[whoami]) as app:
        parent = await app.run("Hi", workspace=machine.folder)
        run = await spawn_and_wait(app, parent.slug, "general", "Who?")
    assert callers == [(run.slug, str(Path(run.transcript_path).parent), "main", parent.slug)]
    assert "of the workspace" in machine.request_texts(server.requests[2])


async def test_a_newly_written_template_can_be_spawned_without_a_restart(machine: UserMachine):
    """Shows: A004."""
    async with machine.serve_models([text_reply("Hi."), text_reply("New.")]) as server, machine.open() as app:
        parent = await app.run("Hi", workspace=machine.folder)
        assert "fresh" not in app.agents.registry.agent_names()
        machine.write_agent("fresh", "description: New here.\nmodel: openai:fresh\n", "You are new.")
        assert "fresh" in app.agents.registry.agent_names()
        run = await spawn_and_wait(app, parent.slug, "fresh")
    assert (run.text, server.requests[1].body["model"]) == ("New.", "fresh")
    assert json.loads((Path(run.transcript_path).parent / "session.json").read_text())["agent"] == "fresh"


async def test_a_model_override_for_one_message_is_not_inherited_by_a_child(machine: UserMachine):
    """Shows: A036."""
    machine.write_agent("main", "model: openai:gpt-parent\n", "You lead.")
    machine.write_agent("scout", "model: openai:gpt-scout\n", "You look.")
    async with machine.serve_models(
        [text_reply("Hi."), text_reply("Now other."), text_reply("Seen.")]
    ) as server:
        session = (await machine("run", "--agent", "main", "Begin", "--json")).json["slug"]
        assert (await machine("send", session, "Go on", "--model", "openai:gpt-override")).code == 0
        spawned = await machine("spawn", "--parent", session, "--agent", "scout", "Look around")
        assert (spawned.code, "Seen." in spawned.out) == (0, True)
    assert [request.body["model"] for request in server.requests] == [
        "gpt-parent",
        "gpt-override",
        "gpt-scout",
    ]


async def test_spawn_leaves_its_result_in_the_transcript_of_the_parent(machine: UserMachine):
    """Shows: D017, D021."""
    machine.write_agent("helper", "", "You help.\n")
    replies = [text_reply("Hello."), text_reply("The lock is missing."), text_reply("I see.")]
    async with machine.serve_models(replies) as server:
        parent = (await machine("run", "--json", "Begin.")).json
        spawned = await machine("spawn", "--parent", parent["slug"], "--agent", "helper", "Find it.")
        assert spawned.code == 0, spawned.err
        transcript = Path(parent["path"]).read_text()
        assert transcript.count("The lock is missing.") == 1
        await machine("send", parent["slug"], "What was found?")
        assert "The lock is missing." in str(server.requests[-1].messages)
    assert Path(parent["path"]).read_text().count("The lock is missing.") == 1
    (row,) = (await machine("inbox", "--json")).json
    assert (row["delivery"], row["recipient"]) == ("delivered", parent["slug"])
    assert (await machine("doctor")).code == 0


async def test_the_result_of_a_child_started_from_python_is_in_the_transcript_of_the_parent(
    machine: UserMachine,
):
    machine.write_agent("helper", "", "You help.\n")
    async with (
        machine.serve_models([text_reply("Hello."), text_reply("The lock is missing.")]) as server,
        machine.open() as app,
    ):
        parent = await app.run("Begin.")
        await spawn_and_wait(app, parent.slug, "helper", "Find it.")
        assert Path(parent.transcript_path).read_text().count("The lock is missing.") == 1
        assert len(server.requests) == 2
        await app.sessions.delete(parent.slug)


async def test_a_result_that_could_not_be_written_is_added_by_the_next_process_that_resumes_work(
    machine: UserMachine,
):
    machine.write_agent("helper", "", "You help.\n")
    async with machine.serve_models([text_reply("Hello."), text_reply("The lock is missing.")]):
        parent = (await machine("run", "--json", "Begin.")).json
        transcript = Path(parent["path"])
        before_draft = transcript.read_text()
        transcript.write_text(before_draft + "An unsent thought")
        await machine("spawn", "--parent", parent["slug"], "--agent", "helper", "Find it.")
        assert transcript.read_text() == before_draft + "An unsent thought"
        transcript.write_text(before_draft)
        await machine("runs", "resume")
        await machine("runs", "resume")
    assert transcript.read_text().count("The lock is missing.") == 1
    (row,) = (await machine("inbox", "--json")).json
    assert row["delivery"] == "delivered"


async def test_a_crash_after_a_result_was_written_adds_it_no_second_time(machine: UserMachine):
    machine.write_agent("helper", "", "You help.\n")
    async with (
        machine.serve_models([text_reply("Hello."), text_reply("The lock is missing.")]),
        machine.open() as app,
    ):
        parent = await app.run("Begin.")
        await spawn_and_wait(app, parent.slug, "helper", "Find it.")

        def forget_delivery(tx: Transaction) -> None:
            """Leave the ledger as a process does that dies before it marks the delivery."""
            (delivery,) = tx.find_deliveries(session=parent.session_id)
            tx.update_delivery(replace(delivery, state=DeliveryState.PENDING, taken_by="", delivered_at=None))

        await app.context.ledger.write(forget_delivery)
        await app.runs.resume()
        (row,) = await app.inbox.list(parent.slug)
    assert Path(parent.transcript_path).read_text().count("The lock is missing.") == 1
    assert row["delivery"] == "delivered"


async def test_the_result_of_a_child_reaches_its_parent_once_although_the_daemon_was_killed(
    machine: UserMachine,
):
    machine.write_agent("helper", "", "You help.\n")
    gate = asyncio.Event()

    async def answer(request: CapturedRequest) -> FakeResponse:
        if "Find it." not in str(request.messages):
            return text_reply("Hello.")
        await gate.wait()
        return text_reply("The lock is missing.")

    async with machine.serve_models(answer):
        parent = (await machine("run", "--json", "Begin.")).json
        transcript = Path(parent["path"])
        async with machine.daemon() as process:
            connector = aiohttp.UnixConnector(str(machine.home / "daemon.sock"))
            async with aiohttp.ClientSession(connector=connector) as client:
                url = f"http://localhost/api/sessions/{parent['session_id']}/children"
                async with client.post(url, json={"agent": "helper", "content": "Find it."}) as response:
                    assert response.status == 201
            await machine.wait_for_requests(2)
            await machine.kill(process)
        assert "The lock is missing." not in transcript.read_text()
        gate.set()
        async with machine.daemon():
            await wait_until(lambda: "The lock is missing." in transcript.read_text())
        async with machine.daemon():
            await machine("runs", "list")
    assert transcript.read_text().count("The lock is missing.") == 1
    (row,) = (await machine("inbox", "--json")).json
    assert row["delivery"] == "delivered"
