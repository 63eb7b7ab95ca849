"""The doctor: where files and ledger disagree, both sides are told, and nothing is changed."""

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
    async with retinue.open(config=config) as found:
        yield found


async def wrong(app: retinue.App) -> list[str]:
    return [finding.message for finding in await app.repair.diagnose() if finding.status != "ok"]


async def test_a_sound_home_gives_nothing_to_do(app: retinue.App, tmp_path: Path):
    await app.run("Hello.", workspace=tmp_path)
    assert await wrong(app) == []


async def test_a_folder_that_is_no_skill_is_told_and_so_is_text_that_hides_in_one(
    app: retinue.App, tmp_path: Path
):
    for name, text in (("half", "---\n---\n"), ("notes", "---\ndescription: No\u200btes.\n---\n")):
        folder = tmp_path / "config" / "skills" / name
        folder.mkdir(parents=True)
        (folder / "SKILL.md").write_text(text)
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
    hides, lacks = await wrong(app)
    assert "skill notes: 1 invisible characters" in hides
    assert "half/SKILL.md: has no description" in lacks
    assert "1 skill" in [finding.message for finding in await app.repair.diagnose()]


async def test_words_that_somebody_took_out_are_told_with_the_run_that_said_them(
    app: retinue.App, tmp_path: Path
):
    """Shows: P18."""
    run = await app.run("Hello.", workspace=tmp_path)
    file = Path(run.transcript_path)
    head = file.read_text().partition("<!-- user")[0]
    file.write_text(head)
    [what] = await wrong(app)
    assert run.id in what
    assert run.transcript_path in what
    assert file.read_text() == head


async def test_words_that_the_ledger_does_not_know_stand(app: retinue.App, tmp_path: Path):
    """Shows: P18."""
    run = await app.run("Hello.", workspace=tmp_path)
    file = Path(run.transcript_path)
    file.write_text(file.read_text().replace(run.id, "01UNKNOWN"))
    told = await wrong(app)
    assert any("mentions 1 runs that are not in the ledger" in what for what in told)
    again = await app.run("And now?", session=run.session_id)
    assert again.text == "Two."


async def test_an_unreadable_conversation_is_named_with_its_line(app: retinue.App, tmp_path: Path):
    run = await app.run("Hello.", workspace=tmp_path)
    file = Path(run.transcript_path)
    broken = file.read_text().replace("<!-- agent id", "<!-- agent =id")
    file.write_text(broken)
    assert any(f"{run.transcript_path}:6" in what for what in await wrong(app))
    assert file.read_text() == broken


async def test_a_cleared_conversation_is_no_disagreement(app: retinue.App, tmp_path: Path):
    run = await app.run("Hello.", workspace=tmp_path)
    await app.sessions.clear(run.session_id)
    assert await wrong(app) == []
