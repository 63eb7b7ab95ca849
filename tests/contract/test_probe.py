"""Which level a machine has: found out by trying, with the reason and the remedy for each that it lacks."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from retinue.domain.permissions.scope import Scope
from retinue.domain.sandbox_level import Level
from retinue.errors import Failed
from retinue.sandbox import devices, process, seccomp
from retinue.sandbox.bubblewrap import strict
from retinue.sandbox.landlock import abi, attributes, environment, handled, supervised, trees
from retinue.sandbox.probe import Probe

NEXT = Level.LANDLOCK if abi() else Level.NONE
"""What this machine has when there is no bubblewrap."""


ABLE = 'if [ "$1" = --help ]; then exec echo --bind-fd; fi; '
"""So much must be said of what it can do before it is tried."""


def fake(folder: Path, text: str) -> str:
    path = folder / "bwrap"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


async def test_the_system_s_own_bubblewrap_gives_the_tightest_level():
    found = await Probe().found()
    assert found.level is Level.STRICT, [f"{each.why}: {each.do}" for each in found.lacks]
    assert found.lacks == ()


async def test_without_bubblewrap_the_next_level_holds_and_the_remedy_is_named(tmp_path: Path):
    """Shows: S16."""
    found = await Probe(places=[str(tmp_path / "bwrap")]).found()
    assert found.level is NEXT
    assert [(each.level, each.why, each.do) for each in found.lacks][:1] == [
        (Level.STRICT, "bubblewrap is not installed", "apt-get install bubblewrap")
    ]


async def test_a_bubblewrap_that_may_make_no_namespace_is_found_out_by_trying(tmp_path: Path):
    """Shows: S16."""
    words = "bwrap: No permissions to create a new namespace"
    place = fake(tmp_path, f"{ABLE}echo '{words}' >&2; exit 1")
    found = await Probe(places=[place]).found()
    assert found.level is NEXT
    assert words in found.lacks[0].why
    assert found.lacks[0].do


async def test_a_bubblewrap_that_others_could_have_put_there_is_not_used(tmp_path: Path):
    place = Path(fake(tmp_path, 'touch "$(dirname "$0")/hit"; exit 1'))
    place.chmod(0o777)
    found = await Probe(places=[str(place)]).found()
    assert found.lacks[0].why == "bubblewrap is not installed"
    assert not (tmp_path / "hit").exists()


@pytest.mark.parametrize("most", [Level.LANDLOCK, Level.NONE])
async def test_an_operator_can_ask_for_less_and_is_told_so(most: Level):
    """Shows: S17."""
    found = await Probe(most=most).found()
    assert found.level.reaches(most) is (abi() > 0 or most is Level.NONE)
    assert not found.level.reaches(Level.STRICT)
    assert found.lacks[0].why == f"RETINUE_SANDBOX={most} asks for less"


async def test_it_is_tried_once(tmp_path: Path):
    place = fake(tmp_path, 'echo x >> "$(dirname "$0")/tries"; ' + ABLE + "exit 1")
    probe = Probe(places=[place])
    assert await probe.level() is await probe.level()
    await probe.found()
    tries = (tmp_path / "tries").read_text().split()
    assert len(tries) == 2  # one that asks what it can do, one trial


async def test_a_bubblewrap_that_lays_folders_by_name_is_not_strict(tmp_path: Path):
    """Whoever exchanges a folder for a link in that moment would be followed. The one here can do all but that.

    Shows: S16.
    """
    real = shutil.which("bwrap")
    older = f'if [ "$1" = --help ]; then {real} --help | grep -v bind-fd; exit; fi; exec {real} "$@"'
    found = await Probe(places=[place := fake(tmp_path, older)]).found()
    assert found.level is NEXT
    assert found.lacks[0].why == f"{place} has no --bind-fd, so it lays folders by name"
    assert "bubblewrap 0.10 or newer" in found.lacks[0].do
    with pytest.raises(Failed, match="lays folders by name"):
        strict(Scope(root="/usr"), "true", bwrap=place)


async def test_where_user_namespaces_are_refused_by_the_kernel_the_level_falls_and_says_why():
    """The probe itself runs behind a filter that refuses namespaces, as in a container.

    Shows: S16.
    """
    code = seccomp.program()
    assert code is not None
    program = (
        "import asyncio; from retinue.sandbox.probe import Probe; f = asyncio.run(Probe().found()); "
        "print(f.level, f.lacks[0].level, f.lacks[0].why, f.lacks[0].do, sep='|')"
    )
    everything = {"attr": attributes(abi()), "rules": [("/", handled(abi()))], "filter": code}
    cell = supervised(
        (sys.executable, "-c", program), cwd="/", env=environment(home="/", tmp=""), shut=everything
    )
    there = devices.lent()  # behind the filter none can be made, which would be another reason
    ended = await process.run(cell, 60)
    there.over()
    level, lacking, why, do = ended.output.text().strip().split("|")
    assert (level, lacking) == (NEXT, Level.STRICT)
    assert "namespace" in why
    assert do


def test_a_command_that_is_not_run_costs_nothing():
    """Nothing is tried before a command is asked for."""
    script = "import retinue.sandbox.probe as p; p.Probe(); print('quiet')"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "quiet\n"


@pytest.mark.parametrize(("version", "bits"), [(1, 13), (2, 14), (3, 15), (4, 15), (5, 16), (6, 16), (7, 16)])
def test_each_kernel_is_asked_only_for_what_it_knows(version: int, bits: int):
    assert handled(version) == (1 << bits) - 1


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
    assert trees(scope, "read") == [f"{home}/ws"]
    assert trees(scope, "write") == []
