"""Fixtures for all tests: one event loop, an isolated environment, and made-up secrets."""

import os
import random
import string
from pathlib import Path

import pytest
from environment import create_environment
from hypothesis import HealthCheck, settings
from planted_secret import PlantedSecret

REMOVED_PREFIXES = ("RETINUE_", "OPENAI_", "ANTHROPIC_")

# Failed assertions in these modules of tests/harness are explained like those in tests.
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

# A variable of the person who runs the tests must not lead a test to a real model, a real home or a proxy.
for _name in [
    name for name in os.environ if name.startswith(REMOVED_PREFIXES) or name.lower().endswith("_proxy")
]:
    del os.environ[_name]


# A busy machine must not fail a test. In CI, hypothesis generates the same examples each time.
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
    """An environment for a process of Retinue, with an empty home, data and configuration folder."""
    return create_environment(tmp_path)


@pytest.fixture(scope="session")
def planted_secrets() -> dict[str, PlantedSecret]:
    """Secrets of every known form, generated here so that no file in the repository seems to contain one."""
    rng = random.Random(16)
    letters, hex_digits = string.ascii_letters + string.digits, "0123456789abcdef"
    token_letters, base64 = letters + "_-", letters + "+/"

    def make_token(length: int, alphabet: str = letters) -> str:
        return "".join(rng.choices(alphabet, k=length - 2)) + "7e"

    tokens = {
        "openai": f"sk-{make_token(48)}",
        "openai project": f"sk-proj-{make_token(120, token_letters)}",
        "anthropic": f"sk-ant-api03-{make_token(95, token_letters)}",
        "github person": f"ghp_{make_token(36)}",
        "github app": f"ghs_{make_token(36)}",
        "github oauth": f"gho_{make_token(36)}",
        "github fine": f"github_pat_{make_token(22)}_{make_token(59)}",
        "gitlab": f"glpat-{make_token(20, token_letters)}",
        "slack": f"xoxb-{make_token(12, '0123456789')}-{make_token(24)}",
        "aws id": f"AKIA{make_token(16, 'ABCDEFGHIJKLMNOP').upper()}",
        "aws session": f"ASIA{make_token(16, 'ABCDEFGHIJKLMNOP').upper()}",
        "google": f"AIza{make_token(35, token_letters)}",
        "stripe": f"sk_live_{make_token(24)}",
        "stripe restricted": f"rk_live_{make_token(24)}",
        "npm": f"npm_{make_token(36)}",
        "pypi": f"pypi-AgEIcHlwaS5vcmc{make_token(70, token_letters)}",
        "hugging face": f"hf_{make_token(34)}",
        "jwt": f"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.{make_token(43, token_letters)}",
        "digitalocean": f"dop_v1_{make_token(64, hex_digits)}",
        "sendgrid": f"SG.{make_token(22, token_letters)}.{make_token(43, token_letters)}",
    }
    pem_line = "-----{} RSA PRIVATE KEY-----"
    body = "\n".join(make_token(64, base64) for _ in range(12))
    key = f"{pem_line.format('BEGIN')}\n{body}\n{pem_line.format('END')}"
    return {name: PlantedSecret(secret=token) for name, token in tokens.items()} | {
        "telegram": PlantedSecret(before="bot 123456789:", secret=f"AA{make_token(33, token_letters)}"),
        "aws secret": PlantedSecret(before="aws_secret_access_key = ", secret=make_token(40, base64)),
        "url": PlantedSecret(before="https://bob:", secret="c0rrect-horse", after="@example.org/x"),
        "bearer": PlantedSecret(before="Authorization: Bearer ", secret=make_token(32)),
        "basic": PlantedSecret(before="Authorization: Basic ", secret=make_token(24)),
        "azure": PlantedSecret(
            before="AccountName=x;AccountKey=", secret=f"{make_token(86, base64)}==", after=";Endpoint"
        ),
        "settings": PlantedSecret(before="DB_PASSWORD=", secret="hunter2-hunter2", after="\n"),
        "quoted": PlantedSecret(before='export API_KEY="', secret=make_token(20), after='"'),
        "private key": PlantedSecret(secret=key),
        "cut private key": PlantedSecret(secret=key[:300]),
    }
