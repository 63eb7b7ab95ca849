"""Attack the sandbox: run every attack, a legitimate action after every ten, and print a summary."""

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
from file_attacks import METADATA, READ, WRITE
from git_and_race_attacks import PROTECTED_FILES, RACES
from git_folder_attacks import GIT_FOLDERS
from kernel_attacks import DEVICES, KERNEL, PRIVILEGES, RESOURCES
from process_and_network_attacks import NETWORK, PROC, PROCESSES
from runner import BatteryRunner, Outcome
from target_machine import TargetMachine
from tool_attacks import DENY, RETINUE_FILES, TOOLS, WEB

from retinue.domain.sandbox_level import SandboxLevel

FAMILIES = (
    READ,
    WRITE,
    METADATA,
    PROC,
    NETWORK,
    PROCESSES,
    PRIVILEGES,
    KERNEL,
    DEVICES,
    RESOURCES,
    PROTECTED_FILES,
    GIT_FOLDERS,
    TOOLS,
    DENY,
    RETINUE_FILES,
    WEB,
    RACES,
)
ATTACKS_PER_CONTROL = 10
SECRET_VARIABLE = "RETINUE_BATTERY"
"""A secret in the environment of this process, which an attack may find; set by a restart."""


def main() -> int:
    args = _parse_args()
    if SECRET_VARIABLE not in os.environ:
        _restart_with_secret()
    report = asyncio.run(_run_battery(args))
    if args.json:
        print(json.dumps(report, indent=2))
    else:
        _print_report(report)
    return 0 if _is_passed(report) else 1


def _is_passed(report: dict[str, Any]) -> bool:
    """Return whether no attack escaped; without a sandbox, most must, or the attacks are broken."""
    has_no_sandbox = report["level"] == SandboxLevel.NONE
    is_expected = 2 * report["escapes"] > report["attacks"] if has_no_sandbox else not report["escapes"]
    return is_expected and report["controls"] == report["controls_tried"]


def _parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/battery", description=__doc__)
    parser.add_argument(
        "--level",
        default="strict",
        choices=[str(each) for each in SandboxLevel],
        help="strictest sandbox level to use",
    )
    parser.add_argument("--part", default="1/1", help="run one share of the attacks, such as 1/2")
    parser.add_argument("--only", default="", help="run attacks whose family or name contains this text")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--show", action="store_true", help="print the output of each attack")
    return parser.parse_args()


def _restart_with_secret() -> None:
    """Restart this program with a known secret in its environment."""
    env = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
    os.execve(
        sys.executable, [sys.executable, *sys.argv], env | {SECRET_VARIABLE: "canary" + os.urandom(8).hex()}
    )


def selected_attacks(args: argparse.Namespace) -> list[Attack]:
    matching = [attack for family in FAMILIES for attack in family.attacks if _is_selected(attack, args.only)]
    share, _, share_count = args.part.partition("/")
    return matching[int(share) - 1 :: int(share_count or 1)]


def _is_selected(attack: Attack, text: str) -> bool:
    return text in attack.family or text in attack.name


async def _run_battery(args: argparse.Namespace) -> dict[str, Any]:
    top = Path(tempfile.mkdtemp(prefix="retinue-battery-", dir="/var/tmp")).resolve()
    machine = TargetMachine(top=top)
    machine.secrets["environment of the process"] = os.environ[SECRET_VARIABLE]
    inherited = os.open(machine.outside / "secret", os.O_RDONLY)
    os.set_inheritable(inherited, True)
    machine.placeholders["inherited"] = str(inherited)
    outcomes: list[Outcome] = []
    controls: list[tuple[str, bool]] = []
    try:
        async with BatteryRunner(machine=machine, max_level=SandboxLevel(args.level)) as runner:
            for number, attack in enumerate(selected_attacks(args)):
                if number % ATTACKS_PER_CONTROL == 0:
                    controls.append(await _run_control(runner, len(controls)))
                outcomes.append(await runner.run(attack))
                if args.show:
                    print(
                        f"--- {attack.family}: {attack.name}: {outcomes[-1].evidence}\n{outcomes[-1].output}",
                        file=sys.stderr,
                    )
            controls.append(await _run_control(runner, len(controls)))
            level = str(runner.level)
    finally:
        machine.close()
        os.close(inherited)
    return _build_report(level, outcomes, controls)


async def _run_control(runner: BatteryRunner, number: int) -> tuple[str, bool]:
    control = CONTROLS[number % len(CONTROLS)]
    runner.machine.reset()
    output = await runner.run_conversation(control.as_attack)
    has_worked = control.has_worked(runner.machine, output)
    if not has_worked:
        print(f"control failed: {control.name}: {output}", file=sys.stderr)
    return control.name, has_worked


def _build_report(
    level: str, outcomes: Sequence[Outcome], controls: Sequence[tuple[str, bool]]
) -> dict[str, Any]:
    escaped = [each for each in outcomes if each.evidence]
    attack_counts, escape_counts = (
        Counter(each.attack.family for each in group) for group in (outcomes, escaped)
    )
    return {
        "level": level,
        "user": "root" if os.geteuid() == 0 else "user",
        "attacks": len(outcomes),
        "escapes": len(escaped),
        "controls": sum(has_worked for _, has_worked in controls),
        "controls_tried": len(controls),
        "families": {
            name: {"attacks": count, "escapes": escape_counts[name]} for name, count in attack_counts.items()
        },
        "escaped": [
            {"family": each.attack.family, "attack": each.attack.name, "evidence": each.evidence}
            for each in escaped
        ],
        "held": [f"{each.attack.family}: {each.attack.name}" for each in outcomes if not each.evidence],
        "failed_controls": [name for name, has_worked in controls if not has_worked],
        "seconds": round(sum(each.duration_ms for each in outcomes) / 1000, 1),
    }


def _print_report(report: dict[str, Any]) -> None:
    for family, count in report["families"].items():
        print(f"{family:32} {count['attacks']:4} attacks {count['escapes']:4} escapes")
    has_no_sandbox = report["level"] == "none"
    print("\nfailed although there is no sandbox:" if has_no_sandbox else "")
    for line in report["held"] if has_no_sandbox else ():
        print(f"  {line}")
    for each in () if has_no_sandbox else report["escaped"]:
        print(f"  ESCAPE {each['family']}: {each['attack']}: {'; '.join(each['evidence'])}")
    print(
        f"{report['attacks']} attacks, {report['escapes']} escapes, {report['controls']}/{report['controls_tried']} controls, "
        f"sandbox {report['level']}, as {report['user']}"
    )


if __name__ == "__main__":
    sys.exit(main())
