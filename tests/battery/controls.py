"""Legitimate actions that must work, and be seen outside: a sandbox in which nothing works stops every attack too."""

from collections.abc import Callable
from dataclasses import dataclass

from attack import PYTHON, Attack, Use, bash, use
from target_machine import World


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    name: str
    turns: tuple[tuple[Use, ...], ...]
    is_done: Callable[[World, str], bool]
    agent: str = "attacker"

    @property
    def as_attack(self) -> Attack:
        return Attack(family="control", name=self.name, turns=self.turns, agent=self.agent)


def _file_has_text(name: str, text: str) -> Callable[[World, str], bool]:
    def check_file(world: World, _said: str) -> bool:
        place = world.ws / name
        return place.is_file() and place.read_text() == text

    return check_file


CONTROLS = (
    Control(name="a command writes in the workspace", turns=((bash("echo words > made"),),), is_done=_file_has_text("made", "words\n")),
    Control(name="a command reads the workspace", turns=((bash("cat src/app.py"),),), is_done=lambda _world, said: "print('app')" in said),
    Control(name="the write tool", turns=((use("write", path="deep/er/made", content="words\n"),),), is_done=_file_has_text("deep/er/made", "words\n")),
    Control(name="the read tool", turns=((use("read", path="notes.txt"),),), is_done=lambda _world, said: "plain words" in said),
    Control(name="the edit tool", turns=((use("edit", path="notes.txt", old="plain", new="other"),),), is_done=_file_has_text("notes.txt", "other words\n")),
    Control(name="python", turns=((bash(f"{PYTHON} -c 'open(\"made\", \"w\").write(str(6 * 7))'"),),), is_done=_file_has_text("made", "42")),
    Control(name="its own /tmp lasts", turns=((bash("echo lasting > /tmp/c-@nonce@"),), (bash("cat /tmp/c-@nonce@ > made; rm /tmp/c-@nonce@"),)), is_done=_file_has_text("made", "lasting\n")),
    Control(name="git", turns=((bash("echo x > made; git add made; git commit -qm two; git log --oneline | wc -l > made"),),), is_done=_file_has_text("made", "2\n")),
    Control(name="the grep tool", turns=((use("grep", pattern="words", path="."),),), is_done=lambda _world, said: "notes.txt" in said),
    Control(name="pipes, jobs and exit codes", turns=((bash("(sleep 0.01; echo b) & wait; seq 1000 | sort -rn | head -1 > made; exit 3"),),), is_done=lambda world, said: "[exit 3, " in said and _file_has_text("made", "1000\n")(world, said)),
    Control(name="a narrow scope still writes its own", turns=((bash("cat pub/page.txt > pub/made"),),), agent="narrow", is_done=_file_has_text("pub/made", "public words\n")),
    Control(name="a fenced scope still writes beside what is denied", turns=((bash("mv notes.txt sub/made; echo more >> sub/made"),),), agent="fenced", is_done=_file_has_text("sub/made", "plain words\nmore\n")),
    Control(name="the glob and ls tools", turns=((use("ls", path="."), use("glob", pattern="*.txt", path=".")),), is_done=lambda _world, said: "notes.txt" in said and "src" in said),
)  # fmt: skip
