"""Run models that are too small for several threads on one.

The threads of an OpenMP region wait for each other, actively. A matrix of a tiny model is multiplied in microseconds,
so on a busy machine nearly all time goes into waiting for a thread that has no core: 60 steps of the quickstart's cold
start took 2.8 s on one thread and more than 95 s on two, on two cores with two other busy processes. Idle, one thread
is as fast as two. Results of such a model are bit-identical; those of a larger one depend on the number of threads.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import torch
from lightning.pytorch.utilities import rank_zero_only

from gspo_lightning.policy.load.gguf import loadable_name
from gspo_lightning.policy.load.model_settings import ModelSettings
from gspo_lightning.policy.tiny import TINY_MODELS, tiny_config

log = logging.getLogger(__name__)

NARROW = 128
"""Largest hidden size of a model that runs on one thread."""
VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
"""Environment variables that set the number of threads."""
_DEFAULT = torch.get_num_threads()
"""Torch's own choice; a different number later was chosen by the user."""


def width_of(settings: ModelSettings) -> int | None:
    """Return the hidden size of a built-in model or of a folder in transformers format; None for others."""
    name = settings.name_or_path
    if name in TINY_MODELS:
        return int(tiny_config(name, settings.overrides).get_text_config().hidden_size)
    try:
        width = json.loads((Path(loadable_name(name)) / "config.json").read_text(encoding="utf-8")).get("hidden_size")
    except (OSError, ValueError, AttributeError):  # a hub id, or a broken folder that loading will report
        return None
    return width if isinstance(width, int) else None


@contextlib.contextmanager
def few_threads(width: int | None, device: torch.device) -> Iterator[None]:
    """Run on one thread inside the context, and in processes started inside it, if that is faster.

    It is faster for a model of at most ``NARROW`` hidden units on a CPU. A number that the user chose, by environment
    variable or by ``torch.set_num_threads``, stays.

    Args:
        width: hidden size of the model; None if it is not known.
        device: compute device.
    """
    chosen = any(name in os.environ for name in VARIABLES) or torch.get_num_threads() != _DEFAULT
    if device.type != "cpu" or width is None or width > NARROW or chosen or _DEFAULT == 1:
        yield
        return
    _say(f"1 thread: the model is too small for the {_DEFAULT} of this machine (OMP_NUM_THREADS sets another number)")
    os.environ["OMP_NUM_THREADS"] = "1"  # otherwise Lightning gives its ranks more
    torch.set_num_threads(1)
    try:
        yield
    finally:
        os.environ.pop("OMP_NUM_THREADS", None)
        torch.set_num_threads(_DEFAULT)


def threads_of(device: torch.device) -> int | None:
    """Return the number of threads that decide how sums are cut: this process's on a CPU, None on another device."""
    return torch.get_num_threads() if device.type == "cpu" else None


@rank_zero_only
def _say(text: str) -> None:
    log.info(text)
