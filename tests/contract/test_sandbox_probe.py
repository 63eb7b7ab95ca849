"""Which level a machine has: found out by trying, with the reason and the remedy for each that it lacks."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from retinue.domain.permissions.scope import Scope
from retinue.domain.sandbox_level import SandboxLevel
from retinue.errors import Failed
from retinue.sandbox import devices, process, seccomp
from retinue.sandbox.bubblewrap import bubblewrap_command
from retinue.sandbox.landlock import (
    abi_version,
    allowed_trees,
    handled_rights,
    launcher_command,
    minimal_environment,
    ruleset_attributes,
)
from retinue.sandbox.probe import SandboxProbe

NEXT = SandboxLevel.LANDLOCK if abi_version() else SandboxLevel.NONE
"""What this machine has when there is no bubblewrap."""


ABLE = 'if [ "$1" = --help ]; then exec echo --bind-fd; fi; '
"""So much must be said of what it can do before it is tried."""


def fake(folder: Path, text: str) -> str:
    path = folder / "bwrap"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


async def test_the_system_s_own_bubblewrap_gives_the_tightest_level():
    found = await SandboxProbe().result()
    assert found.level is SandboxLevel.STRICT, [
        f"{each.reason}: {each.remedy}" for each in found.missing_levels
    ]
    assert found.missing_levels == ()


async def test_without_bubblewrap_the_next_level_holds_and_the_remedy_is_named(tmp_path: Path):
    """Shows: S16."""
    found = await SandboxProbe(bwrap_paths=[str(tmp_path / "bwrap")]).result()
    assert found.level is NEXT
    assert [(each.level, each.reason, each.remedy) for each in found.missing_levels][:1] == [
        (SandboxLevel.STRICT, "bubblewrap is not installed", "apt-get install bubblewrap")
    ]


async def test_a_bubblewrap_that_may_make_no_namespace_is_found_out_by_trying(tmp_path: Path):
    """Shows: S16."""
    words = "bwrap: No permissions to create a new namespace"
    place = fake(tmp_path, f"{ABLE}echo '{words}' >&2; exit 1")
    found = await SandboxProbe(bwrap_paths=[place]).result()
    assert found.level is NEXT
    assert words in found.missing_levels[0].reason
    assert found.missing_levels[0].remedy


async def test_a_bubblewrap_that_others_could_have_put_there_is_not_used(tmp_path: Path):
    place = Path(fake(tmp_path, 'touch "$(dirname "$0")/hit"; exit 1'))
    place.chmod(0o777)
    found = await SandboxProbe(bwrap_paths=[str(place)]).result()
    assert found.missing_levels[0].reason == "bubblewrap is not installed"
    assert not (tmp_path / "hit").exists()


@pytest.mark.parametrize("most", [SandboxLevel.LANDLOCK, SandboxLevel.NONE])
async def test_an_operator_can_ask_for_less_and_is_told_so(most: SandboxLevel):
    """Shows: S17."""
    found = await SandboxProbe(max_level=most).result()
    assert found.level.is_at_least(most) is (abi_version() > 0 or most is SandboxLevel.NONE)
    assert not found.level.is_at_least(SandboxLevel.STRICT)
    assert found.missing_levels[0].reason == f"RETINUE_SANDBOX={most} asks for less"


async def test_it_is_tried_once(tmp_path: Path):
    place = fake(tmp_path, 'echo x >> "$(dirname "$0")/tries"; ' + ABLE + "exit 1")
    probe = SandboxProbe(bwrap_paths=[place])
    assert await probe.level() is await probe.level()
    await probe.result()
    tries = (tmp_path / "tries").read_text().split()
    assert len(tries) == 2  # one that asks what it can do, one trial


async def test_a_bubblewrap_that_lays_folders_by_name_is_not_strict(tmp_path: Path):
    """Whoever exchanges a folder for a link in that moment would be followed. The one here can do all but that.

    Shows: S16.
    """
    real = shutil.which("bwrap")
    older = f'if [ "$1" = --help ]; then {real} --help | grep -v bind-fd; exit; fi; exec {real} "$@"'
    found = await SandboxProbe(bwrap_paths=[place := fake(tmp_path, older)]).result()
    assert found.level is NEXT
    assert found.missing_levels[0].reason == f"{place} has no --bind-fd, so it lays folders by name"
    assert "bubblewrap 0.10 or newer" in found.missing_levels[0].remedy
    with pytest.raises(Failed, match="lays folders by name"):
        bubblewrap_command(Scope(root="/usr"), "true", bwrap=place)


async def test_where_user_namespaces_are_refused_by_the_kernel_the_level_falls_and_says_why():
    """The probe itself runs behind a filter that refuses namespaces, as in a container.

    Shows: S16.
    """
    code = seccomp.build_filter()
    assert code is not None
    program = (
        "import asyncio; from retinue.sandbox.probe import SandboxProbe; f = asyncio.run(SandboxProbe().result()); "
        "print(f.level, f.missing_levels[0].level, f.missing_levels[0].reason, f.missing_levels[0].remedy, sep='|')"
    )
    everything = {
        "attr": ruleset_attributes(abi_version()),
        "rules": [("/", handled_rights(abi_version()))],
        "filter": code,
    }
    cell = launcher_command(
        (sys.executable, "-c", program),
        cwd="/",
        env=minimal_environment(home="/", tmp=""),
        restrictions=everything,
    )
    there = devices.acquire_devices()  # behind the filter none can be made, which would be another reason
    ended = await process.run_command(cell, 60)
    there.release()
    level, lacking, why, do = ended.output.text().strip().split("|")
    assert (level, lacking) == (NEXT, SandboxLevel.STRICT)
    assert "namespace" in why
    assert do


def test_a_command_that_is_not_run_costs_nothing():
    """Nothing is tried before a command is asked for."""
    script = "import retinue.sandbox.probe as p; p.SandboxProbe(); print('quiet')"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "quiet\n"


@pytest.mark.parametrize(("version", "bits"), [(1, 13), (2, 14), (3, 15), (4, 15), (5, 16), (6, 16), (7, 16)])
def test_each_kernel_is_asked_only_for_what_it_knows(version: int, bits: int):
    assert handled_rights(version) == (1 << bits) - 1


def test_only_whole_trees_that_every_ceiling_allows_are_opened(tmp_path: Path):
    home = tmp_path.resolve()
    for name in ("ws/src", "ws/docs", "other"):
        (home / name).mkdir(parents=True)
    (home / "link").symlink_to("/etc")
    scope = Scope(
        root=f"{home}/ws",
        read=(f"{home}/ws/**", f"{home}/other/*.py", f"{home}/link/**", "/**", "**/x/**", "/tmp/**"),
        deny=(f"{home}/ws/docs/**",),
    )
    assert allowed_trees(scope, "read") == [f"{home}/ws"]
    assert allowed_trees(scope, "write") == []
