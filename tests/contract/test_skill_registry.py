"""The skill registry: skill folders of the user and of trusted projects, and problems in them."""

import os
from pathlib import Path

import pytest

from retinue.agents.skills import SkillRegistry
from retinue.agents.trust import TrustStore, scan_project
from retinue.domain.skill import Skill
from retinue.errors import NotFound

NOTES_TEXT = "---\nname: notes\ndescription: Keeps notes.\n---\nSay `notes add WORDS`.\n"


def write_skill(
    base: Path, name: str, text: str = "---\ndescription: Does it.\n---\n", *, command: str = ""
) -> Path:
    folder = base / name
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text(text)
    file = folder / (command or name)
    file.parent.mkdir(exist_ok=True)
    file.write_text("#!/bin/sh\necho done\n")
    file.chmod(0o755)
    return folder


class SkillSetup:
    """A user's skills, a project with its own, and the trust store."""

    def __init__(self, root: Path) -> None:
        self.user_skills = root / "config" / "skills"
        self.project = root / "project"
        self.project_skills = self.project / ".retinue" / "skills"
        self.project_skills.mkdir(parents=True)
        self.trust_store = TrustStore(root / "home" / "trust.json")
        self.skills = SkillRegistry(user_dir=self.user_skills, trust=self.trust_store)
        self.project_path = str(self.project)

    def trust_project(self) -> None:
        self.trust_store.add(scan_project(self.project_path), unique_suffix="t")

    def names(self, *, from_project_only: bool = False) -> list[str]:
        return [
            skill.name for skill in self.skills.all(self.project_path, from_project_only=from_project_only)
        ]


@pytest.fixture
def setup(tmp_path: Path) -> SkillSetup:
    return SkillSetup(tmp_path.resolve())


def test_a_folder_with_a_skill_file_and_a_command_is_a_skill(setup: SkillSetup):
    folder = write_skill(setup.user_skills, "notes", NOTES_TEXT)
    assert setup.skills.all() == (
        Skill(name="notes", description="Keeps notes.", folder=str(folder), cli=str(folder / "notes")),
    )
    write_skill(
        setup.user_skills,
        "mail",
        "---\ndescription: Mails.\ncli: bin/mail-cli\n---\n",
        command="bin/mail-cli",
    )
    mail, notes = setup.skills.all()
    assert (mail.cli, notes.file) == (f"{setup.user_skills}/mail/bin/mail-cli", f"{folder}/SKILL.md")
    assert setup.skills.get("mail") == mail
    (folder / "SKILL.md").write_text(NOTES_TEXT.replace("Keeps", "Loses"))
    assert setup.skills.get("notes").description == "Loses notes.", "an edit is effective at once"
    with pytest.raises(NotFound, match="did you mean 'notes'"):
        setup.skills.get("note")


def test_a_missing_or_empty_skill_folder_has_no_skills(setup: SkillSetup):
    assert (
        setup.skills.all(),
        setup.skills.all(setup.project_path),
        setup.skills.find_broken(setup.project_path),
    ) == ((), (), [])
    setup.user_skills.mkdir(parents=True)
    (setup.user_skills / "README.md").write_text("no skill")
    (setup.user_skills / ".git").mkdir()
    assert (setup.skills.all(), setup.skills.find_broken()) == ((), [])


def test_an_unusable_skill_folder_is_reported_with_what_to_do(setup: SkillSetup):
    write_skill(
        setup.user_skills,
        "extra",
        "---\ndescription: D.\nlicense: MIT\nallowed-tools: Bash\nmetadata: {a: 1}\n---\n",
    )
    write_skill(setup.user_skills, "named", "---\nname: other\ndescription: D.\n---\n")
    write_skill(setup.user_skills, "Loud", "---\ndescription: D.\n---\n")
    write_skill(setup.user_skills, "silent", "---\nname: silent\n---\n")
    write_skill(setup.user_skills, "typo", "---\ndescription: D.\ndescripton: E.\n---\n")
    write_skill(setup.user_skills, "bare", "no front matter")
    write_skill(setup.user_skills, "away", "---\ndescription: D.\ncli: ../extra/extra\n---\n")
    write_skill(setup.user_skills, "gone").joinpath("gone").unlink()
    write_skill(setup.user_skills, "plain").joinpath("plain").chmod(0o644)
    link = write_skill(setup.user_skills, "linked") / "linked"
    link.unlink()
    link.symlink_to("/bin/true")
    command = write_skill(setup.user_skills, "doubled") / "doubled"
    os.link(command, setup.user_skills / "second")
    (setup.user_skills / "empty").mkdir()
    (setup.user_skills / "link").symlink_to(setup.user_skills / "extra")
    assert [skill.name for skill in setup.skills.all()] == ["extra"]
    problems = {
        str(each).removeprefix(f"{setup.user_skills}/").split("/")[0].split(":")[0]: str(each)
        for each in setup.skills.find_broken()
    }
    expected = {
        "named": "has the name 'other'", "Loud": "is not a valid name", "silent": "has no description",
        "typo": "descripton: is not a known key; did you mean 'description'?", "bare": "has no front matter",
        "away": "cli: '../extra/extra' must be a file in the skill's folder",
        "gone": "has no command; create", "plain": "chmod +x", "linked": "is a symbolic link",
        "doubled": "has a second name", "empty": "has no SKILL.md", "link": "is a symbolic link",
    }  # fmt: skip
    assert problems.keys() == expected.keys()
    for name, message in expected.items():
        assert message in problems[name], problems[name]
    with pytest.raises(NotFound, match=r"Skill .empty. not found: .*has no SKILL\.md"):
        setup.skills.get("empty")


def test_skills_of_a_project_need_trust_and_cannot_replace_skills_of_the_user(setup: SkillSetup):
    write_skill(setup.user_skills, "notes", NOTES_TEXT)
    (setup.user_skills / "half").mkdir()
    for name in ("notes", "half", "deploy"):
        write_skill(setup.project_skills, name)
    (setup.project_skills / "sly").symlink_to(setup.user_skills / "notes")
    (setup.project_skills / "odd").mkdir()
    (setup.project_skills / "odd" / "SKILL.md").symlink_to("/etc/passwd")
    assert setup.names() == ["notes"]
    assert setup.skills.untrusted_project_notice(setup.project_path) == (
        f"The project {setup.project_path} defines the skills deploy, half, notes, odd, but you have not trusted it. Review it, "
        f"then run `retinue trust {setup.project_path}`."
    )
    previews = dict(setup.skills.preview_project(scan_project(setup.project_path)))
    assert isinstance(previews["deploy"], Skill)
    assert {name for name, skill in previews.items() if "a project cannot change existing" in str(skill)} == {
        "notes",
        "half",
    }
    assert "is a symbolic link" in str(previews["odd"])
    setup.trust_project()
    assert setup.names() == ["deploy", "notes"]
    assert setup.skills.untrusted_project_notice(setup.project_path) is None
    deploy = setup.skills.get("deploy", setup.project_path)
    assert (deploy.source, deploy.cli) == ("project", f"{setup.project_skills}/deploy/deploy")
    assert setup.skills.all() == (setup.skills.get("notes"),), (
        "outside the project only the user's skills are available"
    )
    assert setup.names(from_project_only=True) == ["deploy"], (
        "an agent of the project gets only skills of the project"
    )
    (setup.project_skills / "deploy" / "deploy").write_text("#!/bin/sh\necho changed\n")
    assert setup.names() == ["notes"], "a skill that changed since it was trusted is not available"


def test_a_project_that_is_too_large_to_review_has_no_skills(setup: SkillSetup):
    write_skill(setup.project_skills, "tidy")
    (setup.project_skills / "/".join(["deep"] * 40)).mkdir(parents=True)
    assert setup.names() == []
    assert setup.skills.untrusted_project_notice(setup.project_path) is None
