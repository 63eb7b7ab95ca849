"""Runs the battery: every attack in turn, a legitimate action after every ten, and the figure at the end."""

# ruff: noqa: T201

import argparse
import asyncio
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attack import Attack
from controls import CONTROLS
from file_attacks import META, READ, WRITE
from git_and_race_attacks import GIT, RACES
from kernel_attacks import DEVICES, KERNEL, ROOTS, STAY
from process_and_network_attacks import LOOK, OTHERS, TALK
from runner import Outcome, Play
from target_machine import World
from tool_attacks import DENY, OWN, TOOLS, WEB

from retinue.domain.sandbox_level import SandboxLevel

FAMILIES = (
    READ,
    WRITE,
    META,
    LOOK,
    TALK,
    OTHERS,
    ROOTS,
    KERNEL,
    DEVICES,
    STAY,
    GIT,
    TOOLS,
    DENY,
    OWN,
    WEB,
    RACES,
)
EVERY = 10
ENVIRONMENT = "RETINUE_BATTERY"
"""Set in a process that was started anew: it carries a secret that an attack may find in its environment."""


def main() -> int:
    options = _parse_options()
    if ENVIRONMENT not in os.environ:
        _restart()
    report = asyncio.run(_run_attacks(options))
    if options.json:
        print(json.dumps(report, indent=2))
    else:
        _print_report(report)
    return 0 if _is_success(report) else 1


def _is_success(report: dict[str, Any]) -> bool:
    """Without a sandbox, most attacks must succeed: otherwise the attacks themselves are broken."""
    bare = report["level"] == SandboxLevel.NONE
    held = 2 * report["escapes"] > report["attacks"] if bare else not report["escapes"]
    return held and report["controls"] == report["controls_tried"]


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/battery", description=__doc__)
    parser.add_argument(
        "--level",
        default="strict",
        choices=[str(each) for each in SandboxLevel],
        help="the most the sandbox may hold",
    )
    parser.add_argument("--part", default="1/1", help="which share of the attacks, as 1/2")
    parser.add_argument("--only", default="", help="attacks whose family or name holds these words")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--show", action="store_true", help="what each attack heard back")
    return parser.parse_args()


def _restart() -> None:
    """Start this program again, with a known secret in its environment and an open file that a child would inherit."""
    env = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
    os.execve(
        sys.executable, [sys.executable, *sys.argv], env | {ENVIRONMENT: "canary" + os.urandom(8).hex()}
    )


def choose_attacks(options: argparse.Namespace) -> list[Attack]:
    every = [
        attack for family in FAMILIES for attack in family.attacks if _matches_filter(attack, options.only)
    ]
    share, _, of = options.part.partition("/")
    return every[int(share) - 1 :: int(of or 1)]


def _matches_filter(attack: Attack, words: str) -> bool:
    return words in attack.family or words in attack.name


async def _run_attacks(options: argparse.Namespace) -> dict[str, Any]:
    top = Path(tempfile.mkdtemp(prefix="retinue-battery-", dir="/var/tmp")).resolve()
    world = World(top=top)
    world.secrets["environment of the process"] = os.environ[ENVIRONMENT]
    inherited = os.open(world.outside / "secret", os.O_RDONLY)
    os.set_inheritable(inherited, True)
    world.facts["inherited"] = str(inherited)
    outcomes: list[Outcome] = []
    controls: list[tuple[str, bool]] = []
    try:
        async with Play(world=world, most=SandboxLevel(options.level)) as play:
            for number, attack in enumerate(choose_attacks(options)):
                if number % EVERY == 0:
                    controls.append(await _run_control(play, len(controls)))
                outcomes.append(await play.run(attack))
                if options.show:
                    print(
                        f"--- {attack.family}: {attack.name}: {outcomes[-1].evidence}\n{outcomes[-1].said}",
                        file=sys.stderr,
                    )
            controls.append(await _run_control(play, len(controls)))
            level = str(play.level)
    finally:
        world.close()
        os.close(inherited)
    return _make_report(level, outcomes, controls)


async def _run_control(play: Play, number: int) -> tuple[str, bool]:
    control = CONTROLS[number % len(CONTROLS)]
    play.world.fresh()
    said = await play.run_turns(control.as_attack)
    works = control.is_done(play.world, said)
    if not works:
        print(f"control failed: {control.name}: {said}", file=sys.stderr)
    return control.name, works


def _make_report(
    level: str, outcomes: Sequence[Outcome], controls: Sequence[tuple[str, bool]]
) -> dict[str, Any]:
    worked = [each for each in outcomes if each.evidence]
    tried, won = (Counter(each.attack.family for each in some) for some in (outcomes, worked))
    return {
        "level": level,
        "user": "root" if os.geteuid() == 0 else "user",
        "attacks": len(outcomes),
        "escapes": len(worked),
        "controls": sum(works for _, works in controls),
        "controls_tried": len(controls),
        "families": {name: {"attacks": tried[name], "escapes": won[name]} for name in tried},
        "escaped": [
            {"family": each.attack.family, "attack": each.attack.name, "evidence": each.evidence}
            for each in worked
        ],
        "held": [f"{each.attack.family}: {each.attack.name}" for each in outcomes if not each.evidence],
        "failed_controls": [name for name, works in controls if not works],
        "seconds": round(sum(each.ms for each in outcomes) / 1000, 1),
    }


def _print_report(report: dict[str, Any]) -> None:
    for family, count in report["families"].items():
        print(f"{family:32} {count['attacks']:4} attacks {count['escapes']:4} escapes")
    few = report["level"] == "none"
    print("\nnot worked, though nothing held it:" if few else "")
    for line in report["held"] if few else ():
        print(f"  {line}")
    for each in () if few else report["escaped"]:
        print(f"  ESCAPE {each['family']}: {each['attack']}: {'; '.join(each['evidence'])}")
    print(
        f"{report['attacks']} attacks, {report['escapes']} escapes, {report['controls']}/{report['controls_tried']} controls, "
        f"sandbox {report['level']}, as {report['user']}"
    )


if __name__ == "__main__":
    sys.exit(main())
