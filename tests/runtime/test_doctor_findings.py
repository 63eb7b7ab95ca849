"""The findings of `retinue doctor`: where files and ledger disagree, without changing either."""

import json
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

import retinue
from retinue.config.load import load_config


@pytest.fixture
async def app(tmp_path: Path) -> AsyncGenerator[retinue.App]:
    script = tmp_path / "script.json"
    script.write_text(json.dumps(["One.", "Two.", "Three."]))
    config = load_config(
        {
            "RETINUE_HOME": str(tmp_path / "home"),
            "RETINUE_CONFIG": str(tmp_path / "config"),
            "RETINUE_MODEL": f"scripted:{script}",
        }
    )
    async with retinue.open(config=config) as opened:
        yield opened


async def problems(app: retinue.App) -> list[str]:
    return [finding.message for finding in await app.repair.diagnose() if finding.status != "ok"]


async def test_a_consistent_home_has_no_findings(app: retinue.App, tmp_path: Path):
    await app.run("Hello.", workspace=tmp_path)
    assert await problems(app) == []


async def test_an_invalid_skill_folder_and_hidden_characters_in_a_skill_are_reported(
    app: retinue.App, tmp_path: Path
):
    for name, text in (("half", "---\n---\n"), ("notes", "---\ndescription: No\u200btes.\n---\n")):
        folder = tmp_path / "config" / "skills" / name
        folder.mkdir(parents=True)
        (folder / "SKILL.md").write_text(text)
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
    hidden_text, missing_description = await problems(app)
    assert "skill notes: 1 invisible character in its" in hidden_text
    assert "half/SKILL.md: has no description" in missing_description
    assert "1 skill" in [finding.message for finding in await app.repair.diagnose()]


async def test_a_message_removed_from_a_transcript_is_reported_with_its_run(app: retinue.App, tmp_path: Path):
    """Shows: P18."""
    run = await app.run("Hello.", workspace=tmp_path)
    transcript = Path(run.transcript_path)
    header = transcript.read_text().partition("<!-- user")[0]
    transcript.write_text(header)
    [message] = await problems(app)
    assert run.id in message
    assert run.transcript_path in message
    assert transcript.read_text() == header


async def test_messages_of_runs_that_the_ledger_does_not_know_are_reported_and_kept(
    app: retinue.App, tmp_path: Path
):
    """Shows: P18."""
    run = await app.run("Hello.", workspace=tmp_path)
    transcript = Path(run.transcript_path)
    transcript.write_text(transcript.read_text().replace(run.id, "01UNKNOWN"))
    messages = await problems(app)
    assert any("mentions 1 run that is not in the ledger" in message for message in messages)
    later_run = await app.run("And now?", session=run.session_id)
    assert later_run.text == "Two."


async def test_an_unreadable_transcript_is_reported_with_its_line(app: retinue.App, tmp_path: Path):
    run = await app.run("Hello.", workspace=tmp_path)
    transcript = Path(run.transcript_path)
    broken = transcript.read_text().replace("<!-- agent id", "<!-- agent =id")
    transcript.write_text(broken)
    assert any(f"{run.transcript_path}:6" in message for message in await problems(app))
    assert transcript.read_text() == broken


async def test_a_cleared_session_is_not_a_finding(app: retinue.App, tmp_path: Path):
    run = await app.run("Hello.", workspace=tmp_path)
    await app.sessions.clear(run.session_id)
    assert await problems(app) == []
