"""Choose the run that ``--ckpt_path last`` means: the newest one of this config among those that share its folder.

Runs are in a folder that the first config file names. What else a run was started with, other files and the command
line, is recorded in its checkpoints, and in its ``config.yaml`` before the first of them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from lightning.pytorch.utilities import rank_zero_only

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.parsing import load_yaml
from gspo_lightning.resume.changes import Change, changes, forbidden
from gspo_lightning.resume.find import candidates, has_checkpoint, newest_run, runs_in
from gspo_lightning.resume.folders import METADATA
from gspo_lightning.resume.reading import read_tensors

log = logging.getLogger(__name__)

CONFIG = "config.yaml"
"""File of a run folder with the settings of its last start, without the names of the files they came from."""
_SECTIONS = ("seed_everything", "plugins", "trainer", "model", "data")
_LINKED = {"model": ("seed",), "data": ("seed", "plugins")}
"""Settings that repeat others, and that ``config.yaml`` leaves out."""
_SHOWN = 3


@dataclass(frozen=True)
class Start:
    """A run as it was last started."""

    run: Path
    config: Mapping[str, Any] | None
    """Its settings; None if nothing records them, as in a folder that was made a moment ago."""
    folder: str | None
    """Its working directory; None if that is not recorded."""
    has_checkpoint: bool

    def differences(self, config: Mapping[str, Any]) -> list[Change]:
        """Return the settings that decide what is learnt, and that this config has otherwise."""
        if self.config is None:
            return []
        folders = None if self.folder is None else (self.folder, os.getcwd())
        return forbidden(changes(_settings(self.config), _settings(config), folders))

    def has_files_of(self, config: Mapping[str, Any]) -> bool:
        """True if it was started with the config files of this command, in their order."""
        started = _files(self.config or {}, self.folder or os.getcwd())
        return bool(started) and started == _files(config, os.getcwd())


def run_of_config(folder: Path, config: Mapping[str, Any], *, only_reads: bool) -> Path | None:
    """Return the run that ``last`` means; None if there is nothing to go on with.

    It is the newest run whose settings have the meaning of this config's. Number of devices, duration, evaluations and
    the like may differ. If there is none, it is the newest run of the same files: another command line, or an edited
    file. Then a run that trains on is refused later, with the settings that differ, unless that is allowed.

    Args:
        folder: folder with the runs of all configs whose first file has one name.
        config: the whole config of this command.
        only_reads: False if the run is trained on.

    Raises:
        UserError: there are checkpoints, but only of other configs.
    """
    runs = runs_in(folder)
    if only_reads:
        runs = _readable(runs)
    if config.get("allow_changed_config"):
        return newest_run(folder, runs)
    starts = [start_of(run) for run in runs]
    same = [start for start in starts if not start.differences(config)]
    if same:
        _say_passed(starts, same, config)
        return newest_run(folder, [start.run for start in same])
    of_files = [start for start in starts if start.has_files_of(config)]
    run = newest_run(folder, [start.run for start in of_files])
    if run is not None:
        start = next(start for start in of_files if start.run == run)
        if only_reads:
            _say(f"{run} was started with these files, but with other settings: {_listed(start.differences(config))}")
        return run
    others = [start for start in starts if start.has_checkpoint]
    if others:
        raise _refused(folder, config, others, only_reads)
    return None


def _readable(runs: list[Path]) -> list[Path]:
    """Return the runs with something to read, and name newer ones: they begin at this moment, or were stopped early."""
    readable = [run for run in runs if has_checkpoint(run)]
    if readable:
        for run in runs[: runs.index(readable[0])][:_SHOWN]:
            _say(f"last: {run} has no checkpoint yet")
    return readable


def start_of(run: Path) -> Start:
    """Return how a run was last started, from its newest readable checkpoint or its ``config.yaml``."""
    checkpoints = candidates(run / "checkpoints")
    for checkpoint in checkpoints:
        try:
            file = checkpoint / METADATA if checkpoint.is_dir() else checkpoint
            record = read_tensors(file, "ckpt_path", mmap=True).get("gspo_run") or {}
        except (UserError, AttributeError):
            continue  # damaged, or removed by its run meanwhile
        if record.get("config"):
            return Start(run, record["config"], record.get("folder"), True)
    try:
        written = load_yaml((run / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        written = None
    return Start(run, written if isinstance(written, dict) else None, None, has_checkpoint(run))


def _settings(config: Mapping[str, Any]) -> dict[str, Any]:
    sections: dict[str, Any] = {name: config[name] for name in _SECTIONS if config.get(name) is not None}
    for section, names in _LINKED.items():
        if isinstance(sections.get(section), Mapping):
            sections[section] = {name: value for name, value in sections[section].items() if name not in names}
    return sections


def _files(config: Mapping[str, Any], folder: str) -> list[str]:
    return [os.path.realpath(os.path.join(folder, str(file))) for file in config.get("config") or []]


def _refused(folder: Path, config: Mapping[str, Any], others: list[Start], only_reads: bool) -> UserError:
    runs = "; ".join(f"{start.run.name}{_described(start, config)}" for start in others[:_SHOWN])
    if len(others) > _SHOWN:
        runs += f"; and {len(others) - _SHOWN} more"
    fix = f"give all config files and options of the run that you mean, or its path (--ckpt_path {others[0].run})"
    return UserError(
        "ckpt_path",
        f"'last', but no run in {folder} is one of {_names(config) or 'these settings'}: {runs}",
        fix=fix if only_reads else f"{fix}; or leave --ckpt_path out to start a new run",
    )


def _described(start: Start, config: Mapping[str, Any]) -> str:
    files = _names(start.config or {})
    return f" ({files + ': ' if files else ''}{_listed(start.differences(config))})"


def _names(config: Mapping[str, Any]) -> str:
    return " + ".join(Path(str(file)).name for file in config.get("config") or [])


def _listed(differences: list[Change]) -> str:
    text = ", ".join(str(change) for change in differences[:_SHOWN])
    return text + (f" and {len(differences) - _SHOWN} more" if len(differences) > _SHOWN else "")


def _say_passed(starts: list[Start], same: list[Start], config: Mapping[str, Any]) -> None:
    """Name newer runs of other configs: somebody may have meant one of them."""
    newer = starts[: starts.index(same[0])]
    for start in newer[:_SHOWN]:
        _say(f"last: {start.run} is of another config{_described(start, config)}")


@rank_zero_only
def _say(text: str) -> None:
    log.info(text)
