"""What every test may lean on: one event loop, and an environment that holds nothing of this machine's user."""

import os
import random
import string
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from planted_secret import PlantedSecret

REMOVED_PREFIXES = ("RETINUE_", "OPENAI_", "ANTHROPIC_")
INHERITED_VARIABLES = ("PATH", "LANG", "LC_ALL", "TMPDIR", "COVERAGE_PROCESS_START")

# Assertions in these modules of tests/harness explain themselves as those in tests do.
pytest.register_assert_rewrite(
    "agent_import",
    "api_fixture",
    "cli_fixture",
    "daemon_fixture",
    "page_fixture",
    "runtime_fixture",
    "terminal",
    "transcript_entries",
    "user_machine",
)

# No test may reach a real model or a real home because the person who runs it has them set.
for _name in [name for name in os.environ if name.startswith(REMOVED_PREFIXES)]:
    del os.environ[_name]


# A busy machine is not a failing test; where a build must say the same twice, so do the examples.
settings.register_profile(
    "retinue",
    deadline=None,
    derandomize="CI" in os.environ,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("retinue")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def isolated_env(tmp_path: Path) -> dict[str, str]:
    """An environment for a process of ours: its home, data and configuration are this test's own, and empty."""
    folders = {"HOME": "user", "RETINUE_HOME": "home", "RETINUE_CONFIG": "config"}
    for folder in folders.values():
        (tmp_path / folder).mkdir(mode=0o700, exist_ok=True)
    kept = {name: os.environ[name] for name in INHERITED_VARIABLES if name in os.environ}
    kept["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), kept.get("PATH", os.defpath)))
    return kept | {name: str(tmp_path / folder) for name, folder in folders.items()}


@pytest.fixture(scope="session")
def planted_secrets() -> dict[str, PlantedSecret]:
    """Keys of every known shape. They are made up here, so that no file of ours looks as if it held one."""
    chance = random.Random(16)
    letters, lower = string.ascii_letters + string.digits, "0123456789abcdef"
    word, base64 = letters + "_-", letters + "+/"

    def some(count: int, of: str = letters) -> str:
        return "".join(chance.choices(of, k=count - 2)) + "7e"

    tokens = {
        "openai": f"sk-{some(48)}",
        "openai project": f"sk-proj-{some(120, word)}",
        "anthropic": f"sk-ant-api03-{some(95, word)}",
        "github person": f"ghp_{some(36)}",
        "github app": f"ghs_{some(36)}",
        "github oauth": f"gho_{some(36)}",
        "github fine": f"github_pat_{some(22)}_{some(59)}",
        "gitlab": f"glpat-{some(20, word)}",
        "slack": f"xoxb-{some(12, '0123456789')}-{some(24)}",
        "aws id": f"AKIA{some(16, 'ABCDEFGHIJKLMNOP').upper()}",
        "aws session": f"ASIA{some(16, 'ABCDEFGHIJKLMNOP').upper()}",
        "google": f"AIza{some(35, word)}",
        "stripe": f"sk_live_{some(24)}",
        "stripe restricted": f"rk_live_{some(24)}",
        "npm": f"npm_{some(36)}",
        "pypi": f"pypi-AgEIcHlwaS5vcmc{some(70, word)}",
        "hugging face": f"hf_{some(34)}",
        "jwt": f"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.{some(43, word)}",
        "digitalocean": f"dop_v1_{some(64, lower)}",
        "sendgrid": f"SG.{some(22, word)}.{some(43, word)}",
    }
    armour = "-----{} RSA PRIVATE KEY-----"
    body = "\n".join(some(64, base64) for _ in range(12))
    key = f"{armour.format('BEGIN')}\n{body}\n{armour.format('END')}"
    return {name: PlantedSecret(secret=token) for name, token in tokens.items()} | {
        "telegram": PlantedSecret(before="bot 123456789:", secret=f"AA{some(33, word)}"),
        "aws secret": PlantedSecret(before="aws_secret_access_key = ", secret=some(40, base64)),
        "url": PlantedSecret(before="https://bob:", secret="c0rrect-horse", after="@example.org/x"),
        "bearer": PlantedSecret(before="Authorization: Bearer ", secret=some(32)),
        "basic": PlantedSecret(before="Authorization: Basic ", secret=some(24)),
        "azure": PlantedSecret(
            before="AccountName=x;AccountKey=", secret=f"{some(86, base64)}==", after=";Endpoint"
        ),
        "settings": PlantedSecret(before="DB_PASSWORD=", secret="hunter2-hunter2", after="\n"),
        "quoted": PlantedSecret(before='export API_KEY="', secret=some(20), after='"'),
        "private key": PlantedSecret(secret=key),
        "cut private key": PlantedSecret(secret=key[:300]),
    }
