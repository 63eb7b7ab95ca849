"""The probe for the sandbox level of this machine, with reason and remedy for each missing level."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from retinue.app.doctor import sandbox_findings
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
from retinue.sandbox.probe import RETRY_S, SandboxProbe

LEVEL_WITHOUT_BWRAP = SandboxLevel.LANDLOCK if abi_version() else SandboxLevel.NONE
"""Level of this machine when bubblewrap is missing."""


BIND_FD_SUPPORT = 'if [ "$1" = --help ]; then exec echo --bind-fd; fi; '
"""Shell code that makes a fake bwrap claim support for --bind-fd in its help."""


def make_fake_bwrap(folder: Path, text: str) -> str:
    path = folder / "bwrap"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


async def test_the_installed_bubblewrap_gives_the_strict_level():
    result = await SandboxProbe().result()
    assert result.level is SandboxLevel.STRICT, [
        f"{level.reason}: {level.remedy}" for level in result.missing_levels
    ]
    assert result.missing_levels == ()


async def test_without_bubblewrap_the_next_level_is_used_and_the_remedy_is_named(tmp_path: Path):
    """Shows: S16."""
    result = await SandboxProbe(bwrap_paths=[str(tmp_path / "bwrap")]).result()
    assert result.level is LEVEL_WITHOUT_BWRAP
    assert [(level.level, level.reason, level.remedy) for level in result.missing_levels][:1] == [
        (SandboxLevel.STRICT, "bubblewrap is not installed", "apt-get install bubblewrap")
    ]


async def test_a_bubblewrap_that_cannot_create_a_namespace_is_detected_by_a_trial_run(tmp_path: Path):
    """Shows: S16."""
    message = "bwrap: No permissions to create a new namespace"
    bwrap = make_fake_bwrap(tmp_path, f"{BIND_FD_SUPPORT}echo '{message}' >&2; exit 1")
    result = await SandboxProbe(bwrap_paths=[bwrap]).result()
    assert result.level is LEVEL_WITHOUT_BWRAP
    assert message in result.missing_levels[0].reason
    assert result.missing_levels[0].remedy


async def test_a_bubblewrap_that_other_users_can_write_is_not_used(tmp_path: Path):
    bwrap = Path(make_fake_bwrap(tmp_path, 'touch "$(dirname "$0")/hit"; exit 1'))
    bwrap.chmod(0o777)
    result = await SandboxProbe(bwrap_paths=[str(bwrap)]).result()
    assert result.missing_levels[0].reason == "bubblewrap is not installed"
    assert not (tmp_path / "hit").exists()


@pytest.mark.parametrize("max_level", [SandboxLevel.LANDLOCK, SandboxLevel.NONE])
async def test_the_operator_can_choose_a_weaker_level_and_the_result_names_the_setting(
    max_level: SandboxLevel,
):
    """Shows: S17."""
    result = await SandboxProbe(max_level=max_level).result()
    assert result.level.is_at_least(max_level) is (abi_version() > 0 or max_level is SandboxLevel.NONE)
    assert not result.level.is_at_least(SandboxLevel.STRICT)
    assert result.missing_levels[0].reason == f"RETINUE_SANDBOX={max_level} limits the level"


async def test_bubblewrap_is_probed_once(tmp_path: Path):
    bwrap = make_fake_bwrap(tmp_path, 'echo x >> "$(dirname "$0")/calls"; ' + BIND_FD_SUPPORT + "exit 1")
    probe = SandboxProbe(bwrap_paths=[bwrap])
    assert await probe.level() is await probe.level()
    await probe.result()
    calls = (tmp_path / "calls").read_text().split()
    assert len(calls) == 2  # --help, and a trial run


async def test_a_bubblewrap_without_bind_fd_is_not_strict(tmp_path: Path):
    """Such a version mounts folders by name, so it would follow a folder that is replaced by a link meanwhile.

    Shows: S16.
    """
    installed = shutil.which("bwrap")
    old_version = (
        f'if [ "$1" = --help ]; then {installed} --help | grep -v bind-fd; exit; fi; exec {installed} "$@"'
    )
    result = await SandboxProbe(bwrap_paths=[bwrap := make_fake_bwrap(tmp_path, old_version)]).result()
    assert result.level is LEVEL_WITHOUT_BWRAP
    assert result.missing_levels[0].reason == f"{bwrap} has no --bind-fd, so it cannot mount folders safely"
    assert "bubblewrap 0.10 or newer" in result.missing_levels[0].remedy
    with pytest.raises(Failed, match="cannot mount folders safely"):
        bubblewrap_command(Scope(root="/usr"), "true", bwrap=bwrap)


async def test_without_user_namespaces_the_level_is_weaker_and_the_reason_is_named():
    """The probe itself runs behind a seccomp filter that refuses namespaces, as in a container.

    Shows: S16.
    """
    code = seccomp.build_filter(allow_inotify=True)
    assert code is not None
    program = (
        "import asyncio; from retinue.sandbox.probe import SandboxProbe; f = asyncio.run(SandboxProbe().result()); "
        "print(f.level, f.missing_levels[0].level, f.missing_levels[0].reason, f.missing_levels[0].remedy, sep='|')"
    )
    restrictions = {
        "attr": ruleset_attributes(abi_version()),
        "rules": [("/", handled_rights(abi_version()))],
        "filter": code,
    }
    command = launcher_command(
        (sys.executable, "-c", program),
        cwd="/",
        env=minimal_environment(home="/", tmp=""),
        restrictions=restrictions,
    )
    acquired = devices.acquire_devices()  # the filter prevents creating them, which would be another reason
    result = await process.run_command(command, 60)
    acquired.release()
    level, missing_level, reason, remedy = result.output.text().strip().split("|")
    assert (level, missing_level) == (LEVEL_WITHOUT_BWRAP, SandboxLevel.STRICT)
    assert "namespace" in reason
    assert remedy


def test_creating_a_probe_starts_no_program():
    script = "import retinue.sandbox.probe as p; p.SandboxProbe(); print('quiet')"
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert process.stdout == "quiet\n"


@pytest.mark.parametrize(("version", "bits"), [(1, 13), (2, 14), (3, 15), (4, 15), (5, 16), (6, 16), (7, 16)])
def test_only_the_rights_of_the_kernels_landlock_version_are_handled(version: int, bits: int):
    assert handled_rights(version) == (1 << bits) - 1


def test_landlock_opens_only_whole_folder_trees_that_patterns_name(tmp_path: Path):
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


@pytest.mark.parametrize("failure", ["exit 1", "kill -9 $$", "chmod"])
async def test_a_level_that_failed_is_tried_again_after_a_minute(tmp_path: Path, failure: str):
    """The first answer is kept for a minute, and a working level for good."""
    broken, seconds = tmp_path / "broken", [0.0]
    broken.touch()
    real = shutil.which("bwrap")
    bwrap = make_fake_bwrap(tmp_path, f'if [ -e {broken} ]; then {failure}; fi; exec {real} "$@"')
    if failure == "chmod":
        Path(bwrap).chmod(0o644)
    probe = SandboxProbe(bwrap_paths=[bwrap], monotonic=lambda: seconds[0])
    assert await probe.level() is LEVEL_WITHOUT_BWRAP
    broken.unlink()
    Path(bwrap).chmod(0o755)
    seconds[0] = RETRY_S - 1
    assert await probe.level() is LEVEL_WITHOUT_BWRAP
    seconds[0] = RETRY_S
    assert await probe.level() is SandboxLevel.STRICT
    broken.touch()
    seconds[0] = 100 * RETRY_S
    assert await probe.level() is SandboxLevel.STRICT


async def test_a_lower_level_that_was_requested_is_not_tried_again():
    seconds = [0.0]
    probe = SandboxProbe(max_level=SandboxLevel.NONE, monotonic=lambda: seconds[0])
    first = await probe.result()
    seconds[0] = 10 * RETRY_S
    assert await probe.result() is first


async def test_doctor_says_which_levels_are_tried_again(tmp_path: Path):
    for probe, is_retried in (
        (SandboxProbe(bwrap_paths=[str(tmp_path / "bwrap")]), True),
        (SandboxProbe(max_level=SandboxLevel.NONE), False),
    ):
        result = await probe.result()
        findings = sandbox_findings(result.level, result.missing_levels, SandboxLevel.NONE)
        [strict] = [each for each in findings if "level strict is not available" in each.message]
        assert ("try it again every minute" in strict.advice) is is_retried
