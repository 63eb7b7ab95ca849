"""A session has a child: its own folder, its own configuration, and nothing of its parent's but a narrower view."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from user_machine import UserMachine

from retinue.app.run_options import SpawnOptions
from retinue.domain.permissions.scope import DEFAULT_DENIED_PATHS
from retinue.domain.transcript import ToolResult
from retinue.errors import Failed, NotFound, Refused
from retinue.interfaces import Call
from retinue.storage import strict_yaml
from retinue.testing.replies import text_reply, tool_call_reply
from retinue.tools.define import tool

EXPLORER = """\
description: Finds things.
model: anthropic:claude-3-7-sonnet-20250219
temperature: 0.3
tools: [read, ls]
"""


def front_of(preset: Path) -> Any:
    return strict_yaml.load_yaml(preset.read_text().split("---\n")[1], str(preset))


async def test_a_child_has_a_folder_of_its_own_below_its_parents_branch(machine: UserMachine):
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
    paths = front_of(folder / "preset.md")["paths"]
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
    above = (await machine("sessions", "show", "--json", parent["slug"])).json
    assert (above["type"], above["parent_session_id"]) == ("branch", None)


async def test_a_child_is_made_below_the_branch_that_is_current(machine: UserMachine):
    """Shows: A017."""
    async with machine.serve_models([text_reply("a"), text_reply("b")]), machine.open() as app:
        parent = await app.run("Hi", workspace=machine.folder)
        branched = await app.sessions.branch(parent.slug, name="try")
        run = await app.runs.wait(
            (await app.runs.spawn("Go", SpawnOptions(parent=parent.slug, agent="explorer"))).id
        )
    assert Path(run.transcript_path).parent.parent == Path(branched.path) / "agents"


async def test_children_of_children_end_at_the_limit_of_depth(machine: UserMachine):
    async with machine.serve_models([text_reply(str(n)) for n in range(9)]), machine.open() as app:
        above = await app.run("Hi", workspace=machine.folder)
        for depth in (1, 2, 3):
            above = await app.runs.wait(
                (await app.runs.spawn(f"Go {depth}", SpawnOptions(parent=above.slug, agent="explorer"))).id
            )
            assert (above.depth, (await app.sessions.find(above.slug)).depth) == (depth, depth)
        before = machine.read_files()
        with pytest.raises(Refused, match="at depth 3 cannot have a child: the maximum depth is 3"):
            await app.runs.spawn("Go", SpawnOptions(parent=above.slug, agent="explorer"))
        assert machine.read_files() == before


async def test_the_same_child_twice_in_a_second_gets_another_name(machine: UserMachine):
    """Shows: A022."""
    async with (
        machine.serve_models([text_reply("a"), text_reply("b"), text_reply("c")]),
        machine.open() as app,
    ):
        parent = await app.run("Hi", workspace=machine.folder)
        twins = [
            await app.runs.spawn("Go", SpawnOptions(parent=parent.slug, agent="explorer", description="x"))
            for _ in range(2)
        ]
        done = [await app.runs.wait(run.id) for run in twins]
    assert len({run.slug for run in done}) == 2


async def test_a_template_is_copied_to_the_letter_but_for_its_paths(machine: UserMachine):
    """Shows: A023, A026, A027."""
    plain = machine.write_agent(
        "plain", "description: Plain.  # kept\n\nmodel: 'openai:x'\n", "Line.\n\n\tTab ---\n"
    )
    pathed = machine.write_agent("pathed", 'paths:\n  read: ["/old/**"]\n# after\nmodel: openai:x\n')
    main = machine.write_agent("main", "paths:\n  read: ['docs/**', '/srv/*.md']\n")
    async with machine.serve_models([text_reply(str(n)) for n in range(9)]), machine.open() as app:
        parent = await app.run("Hi", agent="main", workspace=machine.folder)
        kept: dict[str, str] = {}
        places: dict[str, Path] = {}
        for name in ("plain", "pathed"):
            run = await app.runs.wait(
                (await app.runs.spawn("Go", SpawnOptions(parent=parent.slug, agent=name))).id
            )
            places[name] = Path(run.transcript_path).parent / "preset.md"
            kept[name] = places[name].read_text()
        section = 'paths:\n  read:\n    - "docs/**"\n    - "/srv/*.md"\n  write:\n    - "/tmp/**"\n  deny:\n'
        section += "".join(f'    - "{pattern}"\n' for pattern in DEFAULT_DENIED_PATHS)
        assert kept["plain"] == plain.read_text().replace(
            "model: 'openai:x'\n", f"model: 'openai:x'\n{section}"
        )
        assert kept["pathed"] == pathed.read_text().replace('paths:\n  read: ["/old/**"]\n', section)
        main.write_text(main.read_text().replace("docs/**", "other/**"))
        (Path(parent.transcript_path).parent / "preset.md").write_text(main.read_text())
        assert {name: place.read_text() for name, place in places.items()} == kept


async def test_an_unknown_template_is_named_and_leaves_nothing_behind(machine: UserMachine):
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


async def test_nothing_of_the_parents_configuration_reaches_the_child(machine: UserMachine):
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
        run = await app.runs.wait(
            (await app.runs.spawn("Go and look", SpawnOptions(parent=parent.slug, agent="scout"))).id
        )
        entries = await app.sessions.entries(run.session_id)
    mine, override, first, second = server.requests
    assert (mine.path, mine.body["model"], mine.body["temperature"]) == (
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
    assert "grep" in machine.tool_names(mine)


async def test_a_child_obeys_the_file_in_its_own_folder(machine: UserMachine):
    """Shows: A033, A038, C15."""
    template = machine.write_agent("scout", "model: openai:first\ntools: [read]\n", "Be brief.")
    async with machine.serve_models([text_reply(str(n)) for n in range(4)]) as server, machine.open() as app:
        parent = await app.run("Hi", workspace=machine.folder)
        child = await app.runs.wait(
            (await app.runs.spawn("Go", SpawnOptions(parent=parent.slug, agent="scout"))).id
        )
        preset = Path(child.transcript_path).parent / "preset.md"
        template.write_text(template.read_text().replace("openai:first", "openai:template"))
        preset.write_text(
            preset.read_text().replace("openai:first", "openai:edited").replace("[read]", "[ls]")
        )
        await app.run("Again", session=child.transcript_path)
        assert [request.body["model"] for request in server.requests[1:]] == ["first", "edited"]
        assert [machine.tool_names(request) for request in server.requests[1:]] == [["read"], ["ls"]]
        torn = preset.read_text()
        for bad in (
            torn[:20],
            torn.replace("tools:", "tools: ["),
            torn.replace("name: scout", "nmae: scout"),
            None,
        ):
            if bad is None:
                preset.unlink()
            else:
                preset.write_text(bad)
            with pytest.raises(Failed, match=f"^Failed to load preset from {re.escape(str(preset.parent))}"):
                await app.run("Again", session=child.slug)
        assert len(server.requests) == 3


async def test_a_torn_definition_never_gives_a_child_more(machine: UserMachine):
    """Shows: P13."""
    machine.write_agent("scout", 'tools: [read]\ntool_deny: ["ls"]\nmodel: openai:m\n', "Look.")
    async with machine.serve_models([text_reply("a"), text_reply("b")]), machine.open() as app:
        parent = await app.run("Hi", workspace=machine.folder)
        child = await app.runs.wait(
            (
                await app.runs.spawn(
                    "Go", SpawnOptions(parent=parent.slug, agent="scout", allowed_paths=["/srv/**"])
                )
            ).id
        )
        preset = Path(child.transcript_path).parent / "preset.md"
        whole = preset.read_text()
        before = await app.permissions.scope(session=child.session_id)
        for size in range(len(whole)):
            preset.write_text(whole[:size])
            try:
                after = await app.permissions.scope(session=child.session_id)
            except Failed as error:
                assert "Failed to load preset" in str(error)  # noqa: PT017  (the other outcome is as good)
            else:
                assert (after.hash, size > whole.rindex("---")) == (before.hash, True)


async def test_a_child_knows_who_it_is_from_its_first_call_on(machine: UserMachine):
    """Shows: A037, L003."""
    (machine.folder / "x").write_text("of the workspace")
    seen: list[tuple[str, ...]] = []

    @tool(effect="read")
    def whoami(call: Call) -> str:
        """Says who calls."""
        seen.append(
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
        run = await app.runs.wait(
            (await app.runs.spawn("Who?", SpawnOptions(parent=parent.slug, agent="general"))).id
        )
    assert seen == [(run.slug, str(Path(run.transcript_path).parent), "main", parent.slug)]
    assert "of the workspace" in machine.request_texts(server.requests[2])


async def test_a_new_template_can_be_started_at_once(machine: UserMachine):
    """Shows: A004."""
    async with machine.serve_models([text_reply("Hi."), text_reply("New.")]) as server, machine.open() as app:
        parent = await app.run("Hi", workspace=machine.folder)
        assert "fresh" not in app.agents.registry.agent_names()
        machine.write_agent("fresh", "description: New here.\nmodel: openai:fresh\n", "You are new.")
        assert "fresh" in app.agents.registry.agent_names()
        run = await app.runs.wait(
            (await app.runs.spawn("Go", SpawnOptions(parent=parent.slug, agent="fresh"))).id
        )
    assert (run.text, server.requests[1].body["model"]) == ("New.", "fresh")
    assert json.loads((Path(run.transcript_path).parent / "session.json").read_text())["agent"] == "fresh"
