"""Adding a provider takes one file and one row of the provider table."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import retinue
from retinue.domain.providers import PROVIDERS
from retinue.providers.registry import load_function

SOURCE = Path(retinue.__file__).parent

TOY_FILE = '''
"""A provider that answers with what it was given."""

from collections.abc import Callable

from retinue.domain.model_turn import Model, ModelReply, ModelRequest, ReplyDelta
from retinue.providers.interface import ProviderServices, ProviderSettings, server_access


def create_provider(model: Model, settings: ProviderSettings, _services: ProviderServices) -> "ToyProvider":
    access = server_access(model, settings)
    return ToyProvider(f"{model.name} at {access.base_url} with {access.api_key}")


class ToyProvider:
    def __init__(self, text: str) -> None:
        self._text = text

    async def request_reply(self, request: ModelRequest, on_delta: Callable[[ReplyDelta], None]) -> ModelReply:
        return ModelReply(text=self._text)

    async def close(self) -> None: ...
'''

TOY_ROW = """
    ProviderSpec(
        name="toy",
        create="retinue.providers.toy:create_provider",
        aliases=("toy-compatible",),
        foreign_names={"toybox": "toy"},
        model_pattern="toy",
        default_model_name="toy-1",
        api=ModelApi(base_url="https://toy.example", env_prefix="TOY_"),
    ),
"""

RunRetinue = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def retinue_with_toy(tmp_path: Path, isolated_env: dict[str, str]) -> RunRetinue:
    """Copy the package, add the toy provider, and return a function that runs a command of the copy."""
    copy = tmp_path / "source" / "retinue"
    shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns("static", "trials"))
    (copy / "providers" / "toy.py").write_text(TOY_FILE)
    table = copy / "domain" / "providers.py"
    before, rows, after = table.read_text().partition("\n_ROWS = (\n")
    table.write_text(before + rows + TOY_ROW + after)

    def run(*args: str, **variables: str) -> subprocess.CompletedProcess[str]:
        env = isolated_env | {"PYTHONPATH": str(copy.parent)} | variables
        command = [sys.executable, "-m", "retinue", *args]
        return subprocess.run(command, capture_output=True, text=True, env=env, cwd=tmp_path, check=False)

    return run


def test_a_model_of_a_new_provider_runs_with_its_key(retinue_with_toy: RunRetinue):
    key = {"TOY_API_KEY": "k"}
    assert _reply(retinue_with_toy("run", "hello", **key)) == "toy-1 at https://toy.example with k"
    named = retinue_with_toy(
        "run", "--model", "toy-compatible:other", "hello", TOY_BASE_URL="http://127.0.0.1:9"
    )
    assert _reply(named).startswith("other at http://127.0.0.1:9 with")
    guessed = retinue_with_toy("run", "--model", "toy-2", "hello", **key)
    assert _reply(guessed).startswith("toy-2 at")


def test_a_new_provider_is_listed_checked_and_named_in_errors(retinue_with_toy: RunRetinue):
    listed = json.loads(retinue_with_toy("models", "list", "--json").stdout)
    states = {row["model"]: row["state"] for row in listed}
    assert (states["toy:toy-1"], states["openai:gpt-5.6-terra"]) == (
        "no key: set TOY_API_KEY",
        "no key: set OPENAI_API_KEY",
    )
    assert "default model: toy:toy-1" in retinue_with_toy("doctor", TOY_API_KEY="k").stdout
    refused = retinue_with_toy("run", "--model", "toy:x", "hello")
    assert refused.returncode != 0
    assert "No API key for toy:x. Set TOY_API_KEY." in refused.stderr


def test_definitions_and_configuration_accept_a_new_provider(
    retinue_with_toy: RunRetinue, isolated_env: dict[str, str]
):
    folder = Path(isolated_env["RETINUE_CONFIG"])
    (folder / "config.toml").write_text(
        '[providers.toy]\nbase_url = "https://file.example"\napi_key = "f"\n'
        '[[agents]]\nname = "player"\ndriver = "toybox"\nmodel = "m"\n'
    )
    answered = retinue_with_toy("run", "--agent", "player", "hello")
    assert _reply(answered) == "m at https://file.example with f"


@pytest.mark.parametrize("name", PROVIDERS)
def test_the_functions_of_every_row_exist(name: str):
    spec = PROVIDERS[name]
    references: Sequence[str] = [each for each in (spec.create, spec.check, spec.list_models) if each]
    assert [each for each in references if not callable(load_function(each))] == []


def test_no_provider_is_imported_before_a_model_of_it_is_used():
    modules = sorted({spec.create.partition(":")[0] for spec in PROVIDERS.values()})
    code = (
        "import sys, retinue.app.application, retinue.providers.registry; "
        f"print([name for name in {modules!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def _reply(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
