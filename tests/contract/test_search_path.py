"""Programs are found on PATH independently of the current folder."""

from pathlib import Path

import pytest

from retinue.search_path import find_executable


@pytest.mark.parametrize("entry", [".", "", "bin", "./bin", "../work/bin"])
def test_a_program_of_the_current_folder_is_not_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entry: str
):
    folder, installed = tmp_path / "work", tmp_path / "installed"
    for each in (folder, folder / "bin", installed):
        each.mkdir()
        (each / "uv").write_text("#!/bin/sh\n")
        (each / "uv").chmod(0o755)
    monkeypatch.chdir(folder)
    assert find_executable("uv", {"PATH": entry}) is None
    assert find_executable("uv", {"PATH": f"{entry}:{installed}"}) == str(installed / "uv")
    assert find_executable("bin/uv", {"PATH": entry}) is None
