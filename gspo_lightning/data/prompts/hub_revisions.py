"""Commits of the hub data sets that a run reads: a resumed run reads the same ones, whatever was uploaded since."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from gspo_lightning.policy.hub import SECONDS

log = logging.getLogger(__name__)

_PINNED: dict[str, str] = {}
_READ: dict[str, str] = {}


def begin(pinned: Mapping[str, str]) -> None:
    """Begin a run of this process.

    Args:
        pinned: hub id -> commit, as the checkpoint of a resumed run records it; empty for a new run.
    """
    _READ.clear()
    _PINNED.clear()
    _PINNED.update(pinned)


def commits_read() -> dict[str, str]:
    """Return hub id -> commit of every data set that this run has read, for its checkpoints."""
    return dict(_READ)


def commit_of(path: str, revision: str | None) -> str | None:
    """Return the commit of a data set to read; None if the hub does not say, so that the cached one is read.

    Args:
        path: hub id.
        revision: branch, tag or commit; None: the pinned commit of a resumed run, else the newest one.
    """
    from huggingface_hub import HfApi, constants

    commit = revision or _PINNED.get(path)
    if not constants.HF_HUB_OFFLINE:
        try:
            commit = HfApi().dataset_info(path, revision=commit, timeout=SECONDS).sha
        except Exception as error:  # no answer, or no such revision: loading it reports what is wrong
            log.info("%s: the hub gives no commit (%s)", path, type(error).__name__)
    if commit is not None:
        _READ[path] = commit
    return commit
