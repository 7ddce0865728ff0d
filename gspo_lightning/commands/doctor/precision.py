"""Ratio noise: the distance from 1 of a policy's ratio to itself, by precision, batching and layout."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch

from gspo_lightning.commands.doctor.finding import Finding
from gspo_lightning.core.types import MicroBatch
from gspo_lightning.loop.old_policy.noise import band, ratio_noise
from gspo_lightning.objectives import GSPO
from gspo_lightning.policy.load.loading import load_policy
from gspo_lightning.policy.load.model_settings import DType, ModelSettings
from gspo_lightning.policy.model_checks.checks import choose_layout
from gspo_lightning.policy.model_checks.row_isolation import probe
from gspo_lightning.policy.packing.memory import cut_rows
from gspo_lightning.policy.policy import Policy

MODEL = "tiny-qwen3"
PRECISIONS: dict[str, tuple[DType, bool]] = {
    "32-true": ("float32", False),
    "bf16-mixed": ("float32", True),
    "model.dtype: bfloat16": ("bfloat16", False),
}
"""Name -> (dtype of the weights, True if forward passes run under autocast)."""


def findings() -> Iterator[Finding]:
    """Yield a finding per precision, and one per other way to evaluate the same weights on the same rows."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    limit = 0.1 * float(band(GSPO()) or 0.0)
    for name, (dtype, autocast) in PRECISIONS.items():
        policy = load_policy(ModelSettings(MODEL, dtype)).to(device)
        choose_layout(policy, "auto", 64)
        batch = probe(policy)
        context = _autocast(device) if autocast else contextlib.nullcontext
        same = ratio_noise(policy, batch, context=context)
        yield Finding(
            "ok" if same <= limit else "problem",
            name,
            f"{same:.1e} between two evaluations alike",
            "" if same <= limit else "an attention implementation that is deterministic: model.attn_implementation",
        )
        for way, evaluation in _others(policy, batch, autocast or dtype != "float32").items():
            noise = ratio_noise(policy, batch, evaluation, context)
            large = noise > limit
            yield Finding(
                "note" if large else "ok",
                f"  {way}",
                f"{noise:.1e} nats a sequence",
                f"above {limit:.0e}, a tenth of GSPO's clip range: never mixed in a ratio" if large else "",
            )


def _autocast(device: torch.device) -> Callable[[], AbstractContextManager[Any]]:
    return lambda: torch.autocast(device.type, dtype=torch.bfloat16, cache_enabled=False)


def _others(policy: Policy, batch: MicroBatch, rounds: bool) -> dict[str, Callable[[], torch.Tensor]]:
    """Return other ways to evaluate the log-probabilities of a batch [N, T]; float32 only if the policy rounds."""

    def one_by_one() -> torch.Tensor:
        width = batch.response_mask.shape[1]
        rows = [policy(part)[0] for part in cut_rows(batch, 1, policy.packed)]
        return torch.cat([torch.nn.functional.pad(row, (0, width - row.shape[1])) for row in rows])

    def other_layout() -> torch.Tensor:
        policy.packed = not policy.packed
        try:
            logprobs: torch.Tensor = policy(batch)[0]
        finally:
            policy.packed = not policy.packed
        return logprobs

    def in_float32() -> torch.Tensor:
        twin = policy.frozen_copy().float()
        with torch.autocast(policy.device.type, enabled=False):
            logprobs: torch.Tensor = twin(batch)[0]
        return logprobs

    others = {"row by row": one_by_one, "the other layout (padded)": other_layout}
    if rounds:
        others["in float32"] = in_float32
    return others
