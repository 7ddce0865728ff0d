"""A policy's weights as an inference engine reads them: in memory, or on disk where servers find them."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import torch
from torch import Tensor
from transformers.core_model_loading import revert_weight_conversion
from transformers.modeling_utils import remove_tied_weights_from_state_dict
from transformers.utils import logging as transformers_logging

from gspo_lightning.policy.policy import Policy

__all__ = ["WeightFolders", "in_checkpoint_format"]

MEMORY = Path("/dev/shm")
"""Files that never reach a disk, on Linux."""


def in_checkpoint_format(policy: Policy) -> dict[str, Tensor]:
    """The weights by the names and in the shapes that ``save_pretrained`` writes, as views where that is possible.

    Transformers keeps the experts of a layer in one tensor, checkpoints have one each; adapters are merged.
    """
    model = policy.merged_model()
    state = {name: value.detach() for name, value in model.state_dict().items()}
    found: dict[str, Tensor] = revert_weight_conversion(model, remove_tied_weights_from_state_dict(state, model))
    return found


class WeightFolders:
    """One folder in transformers format per synchronisation; all but the newest are removed.

    Args:
        root: where they are made, on a file system that the servers see under the same path; None takes a temporary
            folder.
        in_memory: whether a temporary folder may be in shared memory, if there is room for the weights three times.
    """

    def __init__(self, root: str | None, in_memory: bool) -> None:
        self._given, self._in_memory = root, in_memory
        self.root: Path | None = None
        self._count = 0
        self._made: list[Path] = []

    @torch.no_grad()
    def write(self, policy: Policy, dtype: torch.dtype | None = None) -> Path:
        """Model, tokenizer and generation config; returns the folder.

        Args:
            policy: gathered on this rank.
            dtype: of the weights in the files; None keeps each one's own.

        Raises:
            OSError: no room.
        """
        if self.root is None:
            self.root = self._make_root(policy)
        self._count += 1
        folder = self.root / f"weights-{self._count}"
        shown = transformers_logging.is_progress_bar_enabled()
        transformers_logging.disable_progress_bar()
        try:
            policy.save_pretrained(folder, dtype)
        finally:
            if shown:
                transformers_logging.enable_progress_bar()
        self._made.append(folder)
        return folder

    def keep_newest(self) -> None:
        """Remove what no server needs any more."""
        for folder in self._made[:-1]:
            shutil.rmtree(folder, ignore_errors=True)
        del self._made[:-1]

    def close(self) -> None:
        """Remove everything that was made here."""
        for folder in [*self._made, *([self.root] if self.root is not None else [])]:
            shutil.rmtree(folder, ignore_errors=True)
        self._made, self.root = [], None

    def _make_root(self, policy: Policy) -> Path:
        size = sum(p.numel() * p.element_size() for p in policy.parameters())
        roomy = self._in_memory and MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > 3 * size
        place = Path(self._given) if self._given is not None else MEMORY if roomy else Path(tempfile.gettempdir())
        place.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix="gspo-weights-", dir=place))
