"""Agents of a trusted project: rows of the API have their display names."""

from typing import Any

from api_fixture import OpenApi

from retinue.agents.trust import scan_project
from retinue.testing.replies import text_reply, tool_call_reply

SCOUT = "---\nname: scout\ndisplay_name: Trail Scout\n---\nYou scout.\n"
GUARD = "---\nname: guard\ndisplay_name: Night Guard\nroles: [watcher]\ntools: [read]\n---\nYou watch.\n"
CALL = ("write", {"path": "b.txt", "content": "x"})


def first_row(found: Any) -> Any:
    return found if "agent" in found else found[0]


async def test_rows_about_an_agent_of_a_trusted_project_have_its_display_name(api: OpenApi):
    async with api([tool_call_reply(CALL), text_reply("Done."), text_reply("Seen.")]) as client:
        folder = client.workspace / "project"
        (folder / ".retinue" / "agents").mkdir(parents=True)
        (folder / ".retinue" / "agents" / "scout.md").write_text(SCOUT)
        (folder / ".retinue" / "agents" / "guard.md").write_text(GUARD)
        client.app.trust.add(scan_project(str(folder)), unique_suffix="test")
        session = await client.create_session("scout", workspace=str(folder))
        slug = session["slug"]
        assert session["agent_display_name"] == "Trail Scout"
        await client.send_message(slug, "Begin.", mode="async")
        (approval,) = await client.wait_until("/api/approvals", bool)
        paths = ("/api/sessions", f"/api/sessions/{slug}", "/api/runs", f"/api/runs/{approval['run_id']}")
        for path in (*paths, "/api/approvals", f"/api/approvals/{approval['id']}"):
            row = first_row((await client.get(path)).json)
            assert (row["agent"], row["agent_display_name"]) == ("scout", "Trail Scout"), path
        assert (await client.get(f"/api/sessions/{slug}")).json["approvals"][0][
            "agent_display_name"
        ] == "Trail Scout"
        answered = await client.post(f"/api/approvals/{approval['id']}", {"answer": "allow"})
        assert answered.json["agent_display_name"] == "Trail Scout"
        await client.wait_for_run(approval["run_id"])
        child = await client.post(
            f"/api/sessions/{slug}/children", {"agent": "scout", "content": "Look.", "trigger": "slash"}
        )
        assert child.json["agent_display_name"] == "Trail Scout"
        await client.wait_for_run(child.json["run_id"])
        (item,) = (await client.get("/api/inbox", session=slug)).json
        assert (item["agentId"], item["agentDisplayName"]) == ("scout", "Trail Scout")
        watcher = await client.post(f"/api/sessions/{slug}/watchers", {"agent": "guard"})
        assert (watcher.json["name"], watcher.json["agent_display_name"]) == ("guard#1", "Night Guard")
