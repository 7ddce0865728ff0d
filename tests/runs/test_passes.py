"""Passes over all weights and gradients that an update makes beside its optimizer step."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.runs import runs

OPTIONS = ["--trainer.max_epochs=2", "--data.minibatches_per_rollout=2", "--model.cold_start=null", "--data.val=null"]


def test_an_update_reads_its_gradients_and_its_weights_once_for_norms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Norm, clipping, the look for a NaN and the sizes of parts were four passes."""
    real, seen = torch._foreach_norm, list[int]()

    def counted(tensors: Sequence[Tensor], *arguments: Any, **options: Any) -> Any:
        seen.append(sum(tensor.numel() for tensor in tensors))
        return real(tensors, *arguments, **options)

    monkeypatch.setattr(torch, "_foreach_norm", counted)
    runs.fit(tmp_path, *OPTIONS, "--trainer.gradient_clip_val=0.01")
    whole = max(seen)
    assert [size for size in seen if size == whole][1:] == [whole] * 8  # the first is the check of what was loaded
