"""Policy weights for inference engines: in memory, or in folders that servers read."""

from __future__ import annotations

import copy
import shutil
import tempfile
from contextlib import nullcontext
from pathlib import Path

import torch
from torch import Tensor
from transformers.core_model_loading import revert_weight_conversion
from transformers.modeling_utils import remove_tied_weights_from_state_dict
from transformers.utils import logging as transformers_logging

from gspo_lightning.policy.adapters.adapter_files import save_adapters
from gspo_lightning.policy.policy import Policy
from gspo_lightning.rollouts.serving.streamed import write_streamed
from gspo_lightning.rollouts.serving.untied import needs_own_head, untie

MEMORY = Path("/dev/shm")
"""Shared-memory folder on Linux, whose files never reach a disk."""


def in_checkpoint_format(policy: Policy, *, adapters: bool = True) -> dict[str, Tensor]:
    """Return the weights by the names and in the shapes that ``save_pretrained`` writes, as views if possible.

    Transformers keeps the experts of a layer in one tensor, checkpoints have one each.

    Args:
        policy: gathered on this rank.
        adapters: merged into the weights; False leaves them out.
    """
    model = policy.merged_model() if adapters else policy.base_model()
    state = {name: value.detach() for name, value in model.state_dict().items()}
    weights: dict[str, Tensor] = revert_weight_conversion(model, remove_tied_weights_from_state_dict(state, model))
    return weights


def save_without_weights(policy: Policy, folder: str | Path) -> None:
    """Save config, tokenizer and image processor, for an engine that gets its weights in another way."""
    config = copy.deepcopy(policy.model.config)
    config.architectures = [type(policy.model).__name__]  # as save_pretrained writes it
    config.save_pretrained(folder)
    policy.tokenizer.save_pretrained(folder)
    if policy.image_processor is not None:
        policy.image_processor.save(Path(folder))


class WeightFolders:
    """Weight folders of recent synchronisations; folders that are no longer needed are removed.

    Args:
        root: parent folder, on a file system that the servers see under the same path; None takes a temporary
            folder.
        in_memory: True if a temporary folder may be in shared memory, if there is room for the weights three times.
    """

    def __init__(self, root: str | None, in_memory: bool) -> None:
        self._given = root
        self._in_memory = in_memory
        self.root: Path | None = None
        self._count = 0
        self._made: list[Path] = []

    @torch.no_grad()
    def write(self, policy: Policy, dtype: torch.dtype | None = None, *, adapters: bool = True) -> Path:
        """Write model, tokenizer and generation config in transformers format; return the folder.

        Args:
            policy: with whole weights, or with a :attr:`Policy.stream`, of which a bucket is in memory at a time.
            dtype: dtype of the weights in the files; None keeps each one's own.
            adapters: merged into the weights; False leaves them out.

        Raises:
            OSError: there is no room.
        """
        folder = self._next(policy, "weights")
        if policy.stream is not None:
            with policy.disabled_dropout.undone(policy.model.config):
                save_without_weights(policy, folder)
            if getattr(policy.model, "generation_config", None) is not None:
                policy.model.generation_config.save_pretrained(folder)
            write_streamed(policy, folder, dtype, adapters=adapters)
            return folder
        showed_bars = transformers_logging.is_progress_bar_enabled()
        transformers_logging.disable_progress_bar()
        try:
            policy.save_pretrained(folder, dtype, adapters=adapters)
            if needs_own_head(policy):
                untie(policy, folder, dtype)
        finally:
            if showed_bars:
                transformers_logging.enable_progress_bar()
        return folder

    def write_without_weights(self, policy: Policy) -> Path:
        """Write config and tokenizer alone; return the folder."""
        folder = self._next(policy, "model")
        save_without_weights(policy, folder)
        return folder

    def write_adapters(self, policy: Policy, dtype: torch.dtype | None = None) -> Path:
        """Write the adapters alone, in PEFT's format; return the folder."""
        folder = self._next(policy, "adapters")
        gathered = nullcontext(policy) if policy.stream is None else policy.stream.adapters()
        with gathered as adapted:
            save_adapters(adapted.model, folder, dtype)
        return folder

    def keep(self, *needed: Path | None) -> None:
        """Remove all other folders that were made here."""
        for folder in self._made:
            if folder not in needed:
                shutil.rmtree(folder, ignore_errors=True)
        self._made = [folder for folder in self._made if folder in needed]

    def close(self) -> None:
        """Remove everything that was made here."""
        self.keep()
        if self.root is not None:
            shutil.rmtree(self.root, ignore_errors=True)
        self.root = None

    def _next(self, policy: Policy, kind: str) -> Path:
        if self.root is None:
            self.root = self._make_root(policy)
        self._count += 1
        self._made.append(self.root / f"{kind}-{self._count}")
        return self._made[-1]

    def _make_root(self, policy: Policy) -> Path:
        size = sum(p.numel() * p.element_size() for p in policy.parameters())
        if self._given is not None:
            place = Path(self._given)
        elif self._in_memory and MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > 3 * size:
            place = MEMORY
        else:
            place = Path(tempfile.gettempdir())
        place.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix="gspo-weights-", dir=place))
