"""A cloned repository with files that are named like Python modules: no command may run them.

The interpreters start cold, as for a user, because it is their start that is tested.
"""

import json
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import pytest
from user_machine import UserMachine

import retinue
from retinue import daemon_client

COMMAND = str(Path(sys.executable).with_name("retinue"))
HOSTILE = """\
import os, sys
with open({marker!r}, "a") as marker:
    marker.write(f"{{__file__}} in {{sys.orig_argv}}\\n")
"""
NAMES = (
    "retinue/__init__.py", "retinue/__main__.py", "pip/__init__.py", "pip/__main__.py", "sitecustomize.py",
    "usercustomize.py", "runpy.py", "asyncio.py", "json.py", "msgspec.py", "subprocess.py", "xllamacpp.py",
)  # fmt: skip
FAKE_PIP = """\
import json, os, sys
with open({log!r}, "w") as log:
    json.dump({{"argv": sys.argv[1:], "env": dict(os.environ), "cwd": os.getcwd(), "isolated": sys.flags.isolated}}, log)
sys.exit("ERROR: no registry")
"""
SCRIPT = {
    "general": [
        {"text": "I look.", "tools": [{"name": "bash", "args": {"command": "ls"}}]},
        "There is a retinue here.",
    ]
}


@pytest.fixture
def hostile_machine(machine: UserMachine) -> UserMachine:
    """A machine whose current folder holds hostile modules; each of them would leave a line in `marker`."""
    for name in NAMES:
        path = machine.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(HOSTILE.format(marker=str(machine.folder / "marker")))
    script = machine.folder / "script.json"
    script.write_text(json.dumps(SCRIPT))
    machine.env["RETINUE_MODEL"] = f"scripted:{script}"
    machine.write_config(approvals="auto")
    return machine


def run_cold(
    machine: UserMachine,
    *arguments: str,
    command: Sequence[str] = (COMMAND,),
    folder: Path | None = None,
    **env: str,
) -> "subprocess.CompletedProcess[str]":
    done = subprocess.run(
        [*command, *arguments], cwd=folder or machine.folder, env=machine.env | env, capture_output=True, text=True, check=False
    )  # fmt: skip
    marker = machine.folder / "marker"
    assert not marker.exists(), f"{marker.read_text()}{done.stderr}"
    return done


def create_installation(folder: Path, log: Path) -> str:
    """Create an environment with this Retinue, a pip that fails, and no weights; return its interpreter."""
    packages = folder / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
    (packages / "pip").mkdir(parents=True)
    (packages / "pip" / "__init__.py").touch()
    (packages / "pip" / "__main__.py").write_text(FAKE_PIP.format(log=str(log)))
    used = [sysconfig.get_path("purelib"), str(Path(retinue.__file__).parents[1])]
    (packages / "retinue.pth").write_text("\n".join(used))
    (folder / "bin").mkdir()
    (folder / "bin" / "python").symlink_to(sys.executable)
    base = Path(sys.base_prefix) / "bin"
    (folder / "pyvenv.cfg").write_text(f"home = {base}\ninclude-system-site-packages = false\n")
    return str(folder / "bin" / "python")


def test_the_marker_shows_a_hostile_module_that_is_executed(hostile_machine: UserMachine):
    with pytest.raises(AssertionError, match="retinue/__init__"):
        run_cold(hostile_machine, "-m", "retinue", "--version", command=(sys.executable,))


def test_a_run_with_a_shell_command_executes_no_module_of_the_folder(hostile_machine: UserMachine):
    done = run_cold(hostile_machine, "run", "--json", "What is here?")
    assert json.loads(done.stdout)["text"] == "There is a retinue here.", done.stderr
    done = run_cold(hostile_machine, "run", "What is here?", command=(sys.executable, "-P", "-m", "retinue"))
    assert "There is a retinue here." in done.stdout, done.stderr


def test_a_daemon_executes_no_module_of_the_folder(hostile_machine: UserMachine):
    assert run_cold(hostile_machine, "run", "--background", "What is here?").returncode == 0
    assert run_cold(hostile_machine, "wait", "latest").returncode in (0, 7)
    assert run_cold(hostile_machine, "serve", "--stop").returncode == 0
    assert run_cold(hostile_machine, "serve", "--detach").returncode == 0
    assert run_cold(hostile_machine, "serve", "--stop").returncode == 0


def test_the_process_of_the_local_model_executes_no_module_of_the_folder(hostile_machine: UserMachine):
    done = run_cold(hostile_machine, "run", "--timeout", "60", "Hi.", RETINUE_MODEL="local:smollm2")
    assert "has ended" not in done.stderr
    assert (done.returncode == 0) == ("installed" not in done.stderr), done.stderr


@pytest.mark.parametrize("flags", [["-P"], []], ids=["-P -m", "-m"])
def test_a_download_executes_no_module_of_the_folder_and_passes_no_keys_on(
    hostile_machine: UserMachine, tmp_path: Path, flags: list[str]
):
    log = tmp_path / "pip.json"
    python = create_installation(tmp_path / "installation", log)
    hostile_machine.env |= {
        "OPENAI_API_KEY": "sk-0123456789abcdef",
        "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
    }
    if (
        not flags
    ):  # `python -m retinue` itself imports from the current folder: only what is started then is tested
        for name in set(NAMES) - {"pip/__init__.py", "pip/__main__.py", "xllamacpp.py"}:
            (hostile_machine.folder / name).unlink()
        (hostile_machine.folder / "retinue").rmdir()
    done = run_cold(hostile_machine, "models", "pull", command=(python, *flags, "-m", "retinue"))
    assert "the package registry cannot be reached" in done.stderr
    received = json.loads(log.read_text())
    assert (received["argv"][0], received["isolated"]) == ("download", 1)
    assert Path(received["cwd"]).is_relative_to(hostile_machine.home)
    assert received["env"]["PIP_INDEX_URL"] == "http://127.0.0.1:9/simple"
    assert "OPENAI_API_KEY" not in received["env"]


def test_the_scripted_demo_executes_no_module_of_the_folder(hostile_machine: UserMachine):
    assert run_cold(hostile_machine, "demo", "--scripted").returncode == 0


def test_the_crash_test_executes_no_module_of_the_folder(hostile_machine: UserMachine):
    options = ("--kills", "1", "--points", "0", "--running", "0")
    done = run_cold(hostile_machine, "torture", *options)
    assert "0 runs left unfinished" in done.stdout


@pytest.mark.parametrize("path", [".", ":/nowhere", "/nowhere:"])
def test_a_relative_entry_of_pythonpath_reaches_no_process_of_retinue(
    machine: UserMachine, tmp_path: Path, path: str
):
    """Python itself imports a sitecustomize from there, before Retinue starts; nothing else may be imported."""
    for name in ("pip/__init__.py", "pip/__main__.py", "xllamacpp.py", "parcels.py"):
        (machine.folder / name).parent.mkdir(exist_ok=True)
        (machine.folder / name).write_text(HOSTILE.format(marker=str(machine.folder / "marker")))
    python = create_installation(tmp_path / "installation", tmp_path / "pip.json")
    run_cold(machine, "models", "pull", command=(python, "-P", "-m", "retinue"), PYTHONPATH=path)
    assert json.loads((tmp_path / "pip.json").read_text())["isolated"] == 1
    machine.write_config(tools=["parcels:send"])
    done = run_cold(machine, "tools", "list", PYTHONPATH=path)
    assert "No module named 'parcels'" in done.stderr


def test_a_tool_is_found_on_an_absolute_entry_of_pythonpath_also_by_the_daemon(machine: UserMachine):
    (machine.folder / "parcels.py").write_text(
        "import retinue\n\n@retinue.tool(effect='read')\nasync def locate(number: str) -> str:\n"
        "    '''Locate a parcel.'''\n    return 'in ' + number\n"
    )
    machine.write_config(tools=["parcels:locate"])
    call = {"text": "I look.", "tools": [{"name": "locate", "args": {"number": "Oslo"}}]}
    (machine.folder / "script.json").write_text(json.dumps({"general": [call, "Found."]}))
    machine.env["PYTHONPATH"] = str(machine.folder)
    machine.env["RETINUE_MODEL"] = f"scripted:{machine.folder / 'script.json'}"
    assert run_cold(machine, "serve", "--detach").returncode == 0
    done = run_cold(machine, "run", "--json", "Where?")
    assert json.loads(done.stdout)["tool_calls"] == 1, done.stderr
    assert run_cold(machine, "serve", "--stop").returncode == 0


@pytest.fixture
def folder_on_path(machine: UserMachine) -> UserMachine:
    """A machine whose PATH begins with the current folder, where each of some programs leaves a line in `marker`."""
    for name in ("git", "strace"):
        program = machine.folder / name
        program.write_text(f'#!/bin/sh\necho "$0 $*" >> {machine.folder / "marker"}\n')
        program.chmod(0o755)
    machine.env["PATH"] = f".:{machine.env['PATH']}"
    return machine


def test_the_crash_test_runs_no_program_of_the_folder(folder_on_path: UserMachine):
    done = run_cold(folder_on_path, "torture", "--kills", "1", "--points", "0", "--running", "0")
    assert "0 runs left unfinished" in done.stdout, done.stderr


@pytest.mark.parametrize("arguments", [("serve", "--detach"), ("run", "--background", "Hi.")])
async def test_new_sessions_of_a_background_daemon_work_in_the_folder_where_it_was_started(
    hostile_machine: UserMachine, arguments: tuple[str, ...]
):
    assert run_cold(hostile_machine, *arguments).returncode == 0
    created = await daemon_client.request_json(
        hostile_machine.home, "POST", "/api/sessions", {"agent": "general"}
    )
    assert created is not None
    assert created["workspace"]["root"] == str(hostile_machine.folder)
    assert run_cold(hostile_machine, "serve", "--stop").returncode == 0


async def test_a_daemon_whose_folder_was_removed_still_serves_and_asks_for_a_workspace(machine: UserMachine):
    project = machine.folder / "project"
    project.mkdir()
    assert run_cold(machine, "serve", "--detach", folder=project).returncode == 0
    project.rmdir()
    agents = await daemon_client.request_json(machine.home, "GET", "/api/agents")
    assert agents is not None
    created = await daemon_client.request_json(machine.home, "POST", "/api/sessions", {"agent": "general"})
    assert created is None, "refused, instead of another folder"
    body = {"agent": "general", "workspace": str(machine.folder)}
    created = await daemon_client.request_json(machine.home, "POST", "/api/sessions", body)
    assert created is not None
    assert created["workspace"]["root"] == str(machine.folder)
    assert run_cold(machine, "serve", "--stop").returncode == 0
