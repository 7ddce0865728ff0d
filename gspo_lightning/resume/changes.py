"""Compare the config of a checkpoint with the config of its resume, and the versions that each ran with."""

from __future__ import annotations

import filecmp
import functools
import os
import platform
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gspo_lightning.core.moved_names import current
from gspo_lightning.core.parsing import PATH_SETTINGS
from gspo_lightning.core.registry import installed_version

BOOKKEEPING = ("config", "ckpt_path", "allow_changed_config", "weights_only")
"""Settings of the command itself; changes are not reported."""
HARMLESS = (
    *BOOKKEEPING,
    # duration, output, frequency, devices: no effect on what is learnt
    "trainer.max_epochs", "trainer.max_steps", "trainer.min_epochs", "trainer.min_steps", "trainer.max_time",
    "trainer.default_root_dir", "trainer.logger", "trainer.callbacks", "trainer.plugins", "trainer.profiler",
    "trainer.enable_checkpointing", "trainer.enable_progress_bar", "trainer.enable_model_summary",
    "trainer.log_every_n_steps", "trainer.check_val_every_n_epoch", "trainer.val_check_interval",
    "trainer.num_sanity_val_steps", "trainer.limit_val_batches", "trainer.limit_test_batches",
    "trainer.limit_predict_batches", "trainer.detect_anomaly", "trainer.barebones", "trainer.benchmark",
    "trainer.accelerator", "trainer.strategy", "trainer.devices", "trainer.num_nodes", "trainer.sync_batchnorm",
    "data.val", "data.test", "data.predict", "data.evaluation", "data.reward_workers", "data.rollout_retries",
    "data.rollout_retry_s", "data.record_rollouts", "data.record_tokens",
    "data.max_tokens_per_micro_batch", "data.micro_batch_size", "model.gradient_checkpointing",
    "model.histogram_every", "model.on_nonfinite", "model.max_skips", "model.old_policy.class_path",
    "data.rollouts.init_args.waves",  # of EnvironmentRollouts, until conversations spoke without rounds
)  # fmt: skip
"""Settings that may change in a run without changing its meaning, including everything below them."""
ADDED: Mapping[str, Any] = {
    "model.objective.init_args.distill_coef": 0.0,
    "model.objective.init_args.distill_exact": False,
    "model.objective.init_args.positive_nll_coef": 0.0,
    "model.ess_step_scaling": False,
    "model.batch_invariant": False,
    "model.cold_start.adapters": False,
    "data.rows": "rollout",
    "data.pictures.bad": "stop",
    "data.pictures.urls": False,
    "data.rollouts.init_args.transfer": "auto",
    "data.rollouts.init_args.source.init_args.transfer": "auto",
}
"""Settings that older checkpoints lack -> the value that matches their behaviour."""
PACKAGES = ("gspo_lightning", "torch", "lightning", "transformers", "torchmetrics", "jsonargparse", "tensorboard")
PRECISION = "trainer.precision"
SPELLED: Mapping[Any, str] = {
    None: "32-true", "32": "32-true", "16": "16-mixed", "bf16": "bf16-mixed", "64": "64-true",
}  # fmt: skip
"""Other words for precisions -> Lightning's own; without a word it trains in float32."""
_PLUGIN = re.compile(r"gspo_plugin_(\w+)_[0-9a-f]{8}\.(.+)")
"""Name of a class of a plug-in outside of the working directory (``import_plugins`` of the registry)."""
_installed = functools.cache(installed_version)


@dataclass(frozen=True)
class Change:
    """A setting before and now; None if it was absent."""

    name: str
    before: Any
    now: Any

    @property
    def harmless(self) -> bool:
        """True if the run keeps its meaning."""
        return any(self.name == name or self.name.startswith(f"{name}.") for name in HARMLESS)

    @property
    def bookkeeping(self) -> bool:
        """True if the change is not worth reporting."""
        return self.name.split(".")[0] in BOOKKEEPING

    def __str__(self) -> str:
        """Return ``model.optimizer.init_args.lr: 0.0002 -> 0.0001``."""
        return f"{self.name}: {_short(self.before)} -> {_short(self.now)}"


def changes(before: Mapping[str, Any], now: Mapping[str, Any], folders: tuple[str, str] | None = None) -> list[Change]:
    """Return every setting whose value differs, by dotted name.

    Args:
        before: settings of a run.
        now: settings of this command.
        folders: their working directories, in which relative paths are one file if they lead to it; None compares
            paths as they are written.

    >>> [str(c) for c in changes({"data": {"group_size": 8, "val": None}}, {"data": {"group_size": 4, "val": None}})]
    ['data.group_size: 8 -> 4']
    """
    values_before = dict(_flat(before))
    values_now = dict(_flat(now))
    if PRECISION in values_before or PRECISION in values_now:
        for values in (values_before, values_now):
            word = values.get(PRECISION)
            values[PRECISION] = SPELLED.get(None if word is None else str(word), word)
    for name, value in ADDED.items():
        if name in values_now:
            values_before.setdefault(name, value)
    differences = []
    paths = []
    for name in {**values_before, **values_now}:
        value_before = values_before.get(name)
        value_now = values_now.get(name)
        if not _same(value_before, value_now, folders):
            differences.append(Change(name, value_before, value_now))
        elif value_before == value_now and folders is not None and folders[0] != folders[1]:
            two_files = _two_files(name, value_now, folders)
            if two_files is not None:
                paths.append(two_files)
    return differences + paths


def _two_files(name: str, value: Any, folders: tuple[str, str]) -> Change | None:
    """Return a relative path that leads to other content in each of two folders; None for any other value."""
    paths = [value] if isinstance(value, str) else value if isinstance(value, list) else []
    for path in paths:
        if not isinstance(path, str) or "\0" in path or os.path.isabs(path):
            continue
        if not ("/" in path or os.path.splitext(path)[1] or name.rpartition(".")[2] in PATH_SETTINGS):
            continue
        places = [os.path.realpath(os.path.join(folder, path)) for folder in folders]
        change = Change(name, *places)
        if not change.harmless and all(map(os.path.exists, places)) and not same_content(*places):
            return change
    return None


def same_content(first: str, second: str) -> bool:
    """True if two paths are files of equal bytes, or folders with equal files; reading stops at a difference."""
    if os.path.realpath(first) == os.path.realpath(second):
        return True
    if os.path.isfile(first) and os.path.isfile(second):
        return filecmp.cmp(first, second, shallow=False)
    if not (os.path.isdir(first) and os.path.isdir(second)):
        return False
    files = _visible_files(first)
    if files != _visible_files(second):
        return False
    _, different, unreadable = filecmp.cmpfiles(first, second, files, shallow=False)
    return not different and not unreadable


def _visible_files(folder: str) -> list[str]:
    return sorted(entry.name for entry in os.scandir(folder) if entry.is_file() and not entry.name.startswith("."))


def _same(before: Any, now: Any, folders: tuple[str, str] | None) -> bool:
    """True if two values mean the same: they are equal, or name one file or one class of a plug-in."""
    if before == now:
        return True
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        return before.keys() == now.keys() and all(_same(before[name], now[name], folders) for name in before)
    if isinstance(before, list) and isinstance(now, list):
        return len(before) == len(now) and all(_same(a, b, folders) for a, b in zip(before, now, strict=True))
    if not isinstance(before, str) or not isinstance(now, str):
        return False
    return _same_file(before, now, folders) or _same_plugin_class(before, now)


def _same_file(before: str, now: str, folders: tuple[str, str] | None) -> bool:
    if folders is None or not ("/" in before or "/" in now) or "\0" in before + now:
        return False
    return os.path.realpath(os.path.join(folders[0], before)) == os.path.realpath(os.path.join(folders[1], now))


def _same_plugin_class(before: str, now: str) -> bool:
    """True for names of one class: a plug-in's module is named by its place, which the working directory decides.

    >>> _same_plugin_class("plugins.curve.Mine", "gspo_plugin_curve_0a1b2c3d.Mine")
    True
    """
    matches = [_PLUGIN.fullmatch(name) for name in (before, now)]
    if not any(matches):
        return False
    names = []
    for name, match in zip((before, now), matches, strict=True):
        names.append(name if match is None else f"{match[1]}.{match[2]}")
    shorter, longer = sorted(names, key=len)  # two names, also where their lengths are equal
    return f".{longer}".endswith(f".{shorter}")


def forbidden(differences: Iterable[Change]) -> list[Change]:
    """Return the changes that alter the meaning of a run."""
    return [change for change in differences if not change.harmless]


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{name}.")
        elif value is not None and value != {}:
            yield name, _current(value)


def _current(value: Any) -> Any:
    """Return a value with the class paths of today; tuples as lists, as YAML has them."""
    if isinstance(value, str):
        return current(value)
    if isinstance(value, Mapping):
        return {key: _current(inner) for key, inner in value.items()}
    return [_current(inner) for inner in value] if isinstance(value, list | tuple) else value


def _short(value: Any) -> str:
    text = "(not set)" if value is None else str(value)
    if len(text) <= 60:
        return text
    return "..." + text[-57:] if os.path.isabs(text) else text[:57] + "..."  # paths differ at their ends


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that influence results."""
    return {"python": platform.python_version(), **{name: _installed(name) for name in PACKAGES}}
