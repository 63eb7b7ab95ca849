"""Agents, approval policy, deny rules, ceiling and prices, reread when the configuration file changes."""

import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any

from msgspec.structs import replace

from retinue.app.log_file import append_log_line
from retinue.config.load import LIVE_SETTINGS, Config, load_config
from retinue.domain.approval import ApprovalPolicy
from retinue.domain.ceiling import OPERATOR, OperatorPolicy, parse_ceiling
from retinue.domain.pricing import MIN_LONG_PROMPT_TOKENS, Price, find_for_model
from retinue.domain.rules import subtree_pattern
from retinue.domain.timestamps import iso_timestamp
from retinue.errors import RetinueError
from retinue.providers.model_catalog import find_model_facts

FileStamp = tuple[int, int, int, int] | None

UNREADABLE_STAMP: FileStamp = (-1, -1, -1, -1)
STAMP_SETTLE_NS = 2_000_000_000
"""Minimum age of a folder's last change.

A more recent change could be followed by another within one clock tick, with the same stamp.
"""
CONFIG_UNREADABLE = "The configuration cannot be read, so its previous rules still apply: {why}"
CONFIG_READABLE_AGAIN = "The configuration was read again. Its rules apply from now on."


class LiveConfig:
    """The agents, the policies and the prices that are currently set in the configuration file.

    A change takes effect as soon as the file is saved; the other settings need a restart. A file that cannot be read changes nothing: the
    last readable version stays in effect, and one warning is issued for each state of the file.
    """

    def __init__(self, config: Config, *, now: Callable[[], datetime]) -> None:
        self.on_warning: Callable[[str], None] = _ignore_warning
        """Receives warnings for the operator; they are logged in any case."""
        self._config = config
        self._now = now
        self._is_unreadable = False
        self._folder = os.fspath(config.config_dir)
        self._files = [os.fspath(config.config_dir / name) for name in ("config.toml", "config.json")]
        self._stamps: list[FileStamp] = []
        self._existing_files: list[tuple[str, FileStamp]] = []
        """The existing files.

        Another one can only appear with a change of the folder, because links are not followed.
        """
        self._folder_stamp: FileStamp = None
        self._read_stamps()
        self._operator_policy = operator_policy_from_config(config)

    def find_price(self, model: str) -> Price | None:
        """Return a model's price: as currently set in the file, else as in the list that comes with Retinue."""
        config = self.current()
        if (price := find_for_model(model, config.prices)) is not None:
            return price
        facts = find_model_facts(model, config.providers)
        return None if facts is None else facts.price

    def is_long_prompt(self, model: str, input_tokens: int) -> bool:
        """Return whether a request has the rates for long prompts."""
        if input_tokens <= MIN_LONG_PROMPT_TOKENS:
            return False
        price = self.find_price(model)
        return price is not None and price.is_long_prompt(input_tokens)

    def approval_policy(self) -> ApprovalPolicy:
        """Return the policy for approvals currently set in the file."""
        return ApprovalPolicy(self.current().approvals)

    def current(self) -> Config:
        """Return the configuration with the live settings as the file has them now."""
        if not self._is_unchanged():
            self._reload_if_changed()
        return self._config

    def __call__(self) -> OperatorPolicy:
        self.current()
        return self._operator_policy

    def _is_unchanged(self) -> bool:
        """Return True if nothing can have changed, by checking existing files and the folder only."""
        if self._folder_stamp is None or _file_stamp(self._folder) != self._folder_stamp:
            return False
        return all(_file_stamp(path) == stamp for path, stamp in self._existing_files)

    def _reload_if_changed(self) -> None:
        old_stamps = self._stamps
        self._read_stamps()
        if old_stamps != self._stamps:
            try:
                reloaded = load_config(
                    {**self._config.env, "RETINUE_CONFIG": os.fspath(self._config.config_dir)}
                )
            except (RetinueError, OSError) as error:
                self._is_unreadable = True
                self._warn(CONFIG_UNREADABLE.format(why=str(error).rstrip(".")))
                return
            if self._is_unreadable:
                self._is_unreadable = False
                self._warn(CONFIG_READABLE_AGAIN)
            changed = {name: getattr(reloaded, name) for name in LIVE_SETTINGS}
            if self._config.has_own_approvals:
                del changed["approvals"]
            self._config = replace(self._config, **changed)
            self._operator_policy = operator_policy_from_config(self._config)

    def _warn(self, message: str) -> None:
        append_log_line(
            self._config.home, {"at": iso_timestamp(self._now()), "level": "warn", "event": message}
        )
        with suppress(OSError):  # the receiver may be gone, which must not fail the permission check
            self.on_warning(message)

    def _read_stamps(self) -> None:
        """Read the stamps of the files and the folder.

        The stamp of a folder that changed a moment ago is not used yet: another change could leave it the
        same.
        """
        stamp = _file_stamp(self._folder)
        self._stamps = [_file_stamp(path) for path in self._files]
        self._existing_files = [
            each for each in zip(self._files, self._stamps, strict=True) if each[1] is not None
        ]
        is_settled = stamp is not None and not 0 <= time.time_ns() - stamp[1] < STAMP_SETTLE_NS
        self._folder_stamp = stamp if is_settled and UNREADABLE_STAMP not in (stamp, *self._stamps) else None


def _ignore_warning(_message: str) -> None: ...


def operator_policy_from_config(config: Config) -> OperatorPolicy:
    """Return the operator's deny rules and ceiling, with Retinue's own folders closed to every agent."""
    return OperatorPolicy(
        deny_tools=config.deny.get("tools", ()),
        deny_paths=config.deny.get("paths", ()),
        deny_agents=config.deny.get("agents", ()),
        retinue_paths=tuple(
            subtree_pattern(os.path.realpath(folder)) for folder in (config.home, config.config_dir)
        ),
        ceiling=replace(
            parse_ceiling(config.ceiling, set_by=OPERATOR, root="/"), **_relative_ceiling_paths(config)
        ),
    )


def _relative_ceiling_paths(config: Config) -> dict[str, Any]:
    """Return the ceiling's paths as written; they are relative to each session's workspace."""
    paths: Mapping[str, tuple[str, ...] | None] = (config.ceiling or {}).get("paths") or {}
    return {"read": paths.get("read"), "write": paths.get("write"), "deny": paths.get("deny") or ()}


def _file_stamp(path: str) -> FileStamp:
    """Return a file's stamp, or None if there is no such file.

    A file that cannot be examined may exist and deny something: it gets UNREADABLE_STAMP.
    """
    try:
        stats = os.stat(path)  # noqa: PTH116  (runs at every call: creating a Path costs more than the stat)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        return UNREADABLE_STAMP
    return stats.st_ino, stats.st_mtime_ns, stats.st_size, stats.st_ctime_ns
