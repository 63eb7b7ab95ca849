"""Folders become skills, or say why they do not; a project's count when it is trusted, and take nobody's name."""

import os
from pathlib import Path

import pytest

from retinue.agents.skills import SkillRegistry
from retinue.agents.trust import TrustStore, scan_project
from retinue.domain.skill import Skill
from retinue.errors import NotFound

TEXT = "---\nname: notes\ndescription: Keeps notes.\n---\nSay `notes add WORDS`.\n"


def put(base: Path, name: str, text: str = "---\ndescription: Does it.\n---\n", *, command: str = "") -> Path:
    folder = base / name
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text(text)
    file = folder / (command or name)
    file.parent.mkdir(exist_ok=True)
    file.write_text("#!/bin/sh\necho done\n")
    file.chmod(0o755)
    return folder


class Yard:
    """A user's skills, a project with its own, and what is known of both."""

    def __init__(self, root: Path) -> None:
        self.user = root / "config" / "skills"
        self.project = root / "project"
        self.theirs = self.project / ".retinue" / "skills"
        self.theirs.mkdir(parents=True)
        self.trust = TrustStore(root / "home" / "trust.json")
        self.skills = SkillRegistry(user_dir=self.user, trust=self.trust)
        self.here = str(self.project)

    def trusted(self) -> None:
        self.trust.add(scan_project(self.here), unique_suffix="t")

    def names(self, *, foreign: bool = False) -> list[str]:
        return [each.name for each in self.skills.all(self.here, from_project_only=foreign)]


@pytest.fixture
def yard(tmp_path: Path) -> Yard:
    return Yard(tmp_path.resolve())


def test_a_folder_with_a_text_and_a_command_is_a_skill(yard: Yard):
    folder = put(yard.user, "notes", TEXT)
    assert yard.skills.all() == (
        Skill(name="notes", description="Keeps notes.", folder=str(folder), cli=str(folder / "notes")),
    )
    put(yard.user, "mail", "---\ndescription: Mails.\ncli: bin/mail-cli\n---\n", command="bin/mail-cli")
    mail, notes = yard.skills.all()
    assert (mail.cli, notes.file) == (f"{yard.user}/mail/bin/mail-cli", f"{folder}/SKILL.md")
    assert yard.skills.get("mail") == mail
    (folder / "SKILL.md").write_text(TEXT.replace("Keeps", "Loses"))
    assert yard.skills.get("notes").description == "Loses notes.", "an edit counts at once"
    with pytest.raises(NotFound, match="did you mean 'notes'"):
        yard.skills.get("note")


def test_where_there_is_no_folder_there_are_no_skills(yard: Yard):
    assert (yard.skills.all(), yard.skills.all(yard.here), yard.skills.find_broken(yard.here)) == ((), (), [])
    yard.user.mkdir(parents=True)
    (yard.user / "README.md").write_text("no skill")
    (yard.user / ".git").mkdir()
    assert (yard.skills.all(), yard.skills.find_broken()) == ((), [])


def test_what_is_no_skill_says_why_and_what_to_do(yard: Yard):
    """Nothing is taken for a skill that could not be used as one."""
    put(
        yard.user, "extra", "---\ndescription: D.\nlicense: MIT\nallowed-tools: Bash\nmetadata: {a: 1}\n---\n"
    )
    put(yard.user, "named", "---\nname: other\ndescription: D.\n---\n")
    put(yard.user, "Loud", "---\ndescription: D.\n---\n")
    put(yard.user, "silent", "---\nname: silent\n---\n")
    put(yard.user, "typo", "---\ndescription: D.\ndescripton: E.\n---\n")
    put(yard.user, "bare", "no front matter")
    put(yard.user, "away", "---\ndescription: D.\ncli: ../extra/extra\n---\n")
    put(yard.user, "gone").joinpath("gone").unlink()
    put(yard.user, "plain").joinpath("plain").chmod(0o644)
    linked = put(yard.user, "linked") / "linked"
    linked.unlink()
    linked.symlink_to("/bin/true")
    doubled = put(yard.user, "doubled") / "doubled"
    os.link(doubled, yard.user / "second")
    (yard.user / "empty").mkdir()
    (yard.user / "link").symlink_to(yard.user / "extra")
    assert [each.name for each in yard.skills.all()] == ["extra"]
    said = {
        str(each).removeprefix(f"{yard.user}/").split("/")[0].split(":")[0]: str(each)
        for each in yard.skills.find_broken()
    }
    words = {
        "named": "names itself 'other'", "Loud": "is not called like a plugin", "silent": "has no description",
        "typo": "descripton: is not a known key; did you mean 'description'?", "bare": "has no front matter",
        "away": "cli: '../extra/extra' must be a file in the skill's folder",
        "gone": "has no command: put it at", "plain": "chmod +x", "linked": "is a symbolic link",
        "doubled": "has a second name", "empty": "has no SKILL.md", "link": "is a symbolic link",
    }  # fmt: skip
    assert said.keys() == words.keys()
    for name, word in words.items():
        assert word in said[name], said[name]
    with pytest.raises(NotFound, match=r"Skill .empty. not found: .*has no SKILL\.md"):
        yard.skills.get("empty")


def test_a_projects_skills_count_when_it_is_trusted_and_take_nobodys_name(yard: Yard):
    put(yard.user, "notes", TEXT)
    (yard.user / "half").mkdir()
    for name in ("notes", "half", "deploy"):
        put(yard.theirs, name)
    (yard.theirs / "sly").symlink_to(yard.user / "notes")
    (yard.theirs / "odd").mkdir()
    (yard.theirs / "odd" / "SKILL.md").symlink_to("/etc/passwd")
    assert yard.names() == ["notes"]
    assert yard.skills.untrusted_project_notice(yard.here) == (
        f"{yard.here} brings the skills deploy, half, notes, odd, but the project is not trusted: look at it, "
        f"then `retinue trust {yard.here}`"
    )
    offered = dict(yard.skills.preview_project(scan_project(yard.here)))
    assert isinstance(offered["deploy"], Skill)
    assert {name for name, each in offered.items() if "a project changes none" in str(each)} == {
        "notes",
        "half",
    }
    assert "is a symbolic link" in str(offered["odd"])
    yard.trusted()
    assert yard.names() == ["deploy", "notes"]
    assert yard.skills.untrusted_project_notice(yard.here) is None
    deploy = yard.skills.get("deploy", yard.here)
    assert (deploy.source, deploy.cli) == ("project", f"{yard.theirs}/deploy/deploy")
    assert yard.skills.all() == (yard.skills.get("notes"),), "elsewhere only the user's own are there"
    assert yard.names(foreign=True) == ["deploy"], (
        "an agent that the project brought gets what the project brought"
    )
    (yard.theirs / "deploy" / "deploy").write_text("#!/bin/sh\necho changed\n")
    assert yard.names() == ["notes"], "what changed since somebody looked is trusted no more"
