"""Git repositories in the folders of a test, without the settings of this machine's user."""

import os
import subprocess
from pathlib import Path


def run_git(folder: Path, *arguments: str) -> str:
    """Run git in a folder, and return what it printed."""
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), "GIT_CONFIG_GLOBAL": "/dev/null"}
    env |= {f"GIT_{who}_{what}": "a@b" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    done = subprocess.run(
        ["git", *arguments], cwd=folder, env=env, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def create_repository(folder: Path) -> None:
    """Create a repository on the branch `main`, and commit all files of the folder."""
    run_git(folder, "init", "--quiet", "--initial-branch", "main")
    commit_all(folder)


def commit_all(folder: Path) -> None:
    run_git(folder, "add", "--all")
    run_git(folder, "commit", "--quiet", "--message", "Change")
