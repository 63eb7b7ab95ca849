"""Legitimate actions that must work: a sandbox that blocks everything would pass all attacks too."""

from collections.abc import Callable
from dataclasses import dataclass

from attack import PYTHON, Attack, ToolUse, bash, tool_use
from target_machine import TargetMachine


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    name: str
    turns: tuple[tuple[ToolUse, ...], ...]
    has_worked: Callable[[TargetMachine, str], bool]
    agent: str = "attacker"

    @property
    def as_attack(self) -> Attack:
        return Attack(family="control", name=self.name, turns=self.turns, agent=self.agent)


def _file_has_text(name: str, text: str) -> Callable[[TargetMachine, str], bool]:
    def check(machine: TargetMachine, _output: str) -> bool:
        path = machine.ws / name
        return path.is_file() and path.read_text() == text

    return check


CONTROLS = (
    Control(name="a command writes in the workspace", turns=((bash("echo words > made"),),), has_worked=_file_has_text("made", "words\n")),
    Control(name="a command reads the workspace", turns=((bash("cat src/app.py"),),), has_worked=lambda _machine, output: "print('app')" in output),
    Control(name="the write tool", turns=((tool_use("write", path="deep/er/made", content="words\n"),),), has_worked=_file_has_text("deep/er/made", "words\n")),
    Control(name="the read tool", turns=((tool_use("read", path="notes.txt"),),), has_worked=lambda _machine, output: "plain words" in output),
    Control(name="the edit tool", turns=((tool_use("edit", path="notes.txt", old="plain", new="other"),),), has_worked=_file_has_text("notes.txt", "other words\n")),
    Control(name="python", turns=((bash(f"{PYTHON} -c 'open(\"made\", \"w\").write(str(6 * 7))'"),),), has_worked=_file_has_text("made", "42")),
    Control(name="files in the private /tmp persist", turns=((bash("echo lasting > /tmp/c-@nonce@"),), (bash("cat /tmp/c-@nonce@ > made; rm /tmp/c-@nonce@"),)), has_worked=_file_has_text("made", "lasting\n")),
    Control(name="git", turns=((bash("echo x > made; git add made; git commit -qm two; git log --oneline | wc -l > made"),),), has_worked=_file_has_text("made", "2\n")),
    Control(name="the grep tool", turns=((tool_use("grep", pattern="words", path="."),),), has_worked=lambda _machine, output: "notes.txt" in output),
    Control(name="pipes, jobs and exit codes", turns=((bash("(sleep 0.01; echo b) & wait; seq 1000 | sort -rn | head -1 > made; exit 3"),),), has_worked=lambda machine, output: "[exit 3, " in output and _file_has_text("made", "1000\n")(machine, output)),
    Control(name="a narrow scope can write its own folder", turns=((bash("cat pub/page.txt > pub/made"),),), agent="narrow", has_worked=_file_has_text("pub/made", "public words\n")),
    Control(name="a scope with deny rules can write other files", turns=((bash("mv notes.txt sub/made; echo more >> sub/made"),),), agent="fenced", has_worked=_file_has_text("sub/made", "plain words\nmore\n")),
    Control(name="the glob and ls tools", turns=((tool_use("ls", path="."), tool_use("glob", pattern="*.txt", path=".")),), has_worked=lambda _machine, output: "notes.txt" in output and "src" in output),
)  # fmt: skip
