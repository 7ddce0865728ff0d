"""One of two ranks that compute the same rows: differences to one process, and bytes kept for the backward pass."""

from __future__ import annotations

import dataclasses
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor

from gspo_lightning.core.types import MicroBatch
from gspo_lightning.policy.attention.flex import FlexPlan
from gspo_lightning.policy.load.loading import load_policy
from gspo_lightning.policy.load.model_settings import ModelSettings
from gspo_lightning.policy.packing.batches import filler
from gspo_lightning.policy.parallel import context_parallel
from gspo_lightning.policy.parallel.context_parallel import ContextGroup
from gspo_lightning.policy.policy import Policy

HEADS = {"divide": (4, 2), "few keys": (4, 1), "do not divide": (3, 1), "uneven groups": (9, 3)}


def policy_with(heads: tuple[int, int] = (4, 4)) -> Policy:
    """A tiny policy that packs rows, of so many query heads, and key and value heads."""
    sizes = {"num_attention_heads": heads[0], "num_key_value_heads": heads[1]}
    policy = load_policy(ModelSettings("tiny-qwen3", seed=3, config_overrides=sizes))
    policy.packed = True
    return policy


def rows(seed: int, prompts: list[int], responses: list[int], prefix: int = 0) -> MicroBatch:
    """Two rows of each prompt; all prompts begin with the same tokens."""
    draws = torch.Generator().manual_seed(seed)
    owner = torch.arange(len(prompts)).repeat_interleave(2)
    widths, counts = torch.tensor(prompts)[owner], torch.tensor(responses)
    ids = torch.randint(3, 20, (len(counts), int((widths + counts).max())), generator=draws)
    for row, first in enumerate((owner * 2).tolist()):
        ids[row, :prefix] = ids[0, :prefix]
        ids[row, prefix : widths[row]] = ids[first, prefix : widths[row]]
    mask = torch.arange(int(counts.max())) < counts.unsqueeze(1)
    return MicroBatch(ids, widths, counts, mask, torch.zeros(len(counts)), prompt_index=owner, common_prefix=prefix)


BATCHES = [rows(0, [5, 8], [3, 1, 7, 2]), rows(1, [21, 19], [4, 6, 1, 9], prefix=17)]
"""Of each rank."""


def gradients(policy: Policy, loss: Tensor, *, shared: bool) -> list[Tensor]:
    policy.zero_grad()
    loss.backward()
    found = [p.grad for p in policy.parameters() if p.grad is not None]
    for gradient in found if shared else ():
        dist.all_reduce(gradient)
    return found


def loss_of(policy: Policy, batch: MicroBatch) -> Tensor:
    """One term for each token, another for each; 0 for a filler."""
    logprobs, entropies = policy(batch, 0.7)
    weights = torch.linspace(0.5, 2.0, logprobs.numel()).view(logprobs.shape) * batch.response_mask
    return batch.weight * (weights * (logprobs - 0.3 * entropies)).sum()


def differences(rank: int) -> dict[str, float]:
    """Largest difference of this rank's values, and of the gradient of both ranks' losses, to those of one process."""
    found = {}
    for name, heads in HEADS.items():
        policy, group = policy_with(heads), ContextGroup(dist.new_group())
        alone = [policy(batch, 0.7) for batch in BATCHES]
        expected = gradients(policy, sum((loss_of(policy, b) for b in BATCHES), torch.zeros(())), shared=False)
        expected = [gradient.clone() for gradient in expected]
        policy.context = group
        together = policy(BATCHES[rank], 0.7)  # both at once
        found[f"{name}: both"] = max(
            float((a - b).detach().abs().max()) for a, b in zip(alone[rank], together, strict=True)
        )
        loss = torch.zeros(())
        for turn, batch in enumerate(BATCHES):
            loss = loss + loss_of(policy, batch if turn == rank else filler(BATCHES[rank]))
        loss = loss + loss_of(policy, filler(BATCHES[rank]))  # nobody's turn
        theirs = gradients(policy, loss, shared=True)
        found[f"{name}: gradients"] = max(
            float((a - b).abs().max() / a.abs().max()) for a, b in zip(expected, theirs, strict=True)
        )
        with torch.no_grad(), patch.object(context_parallel, "attention_plan", FlexPlan):
            values = policy(BATCHES[rank] if rank == 1 else filler(BATCHES[rank]), 0.7)
        if rank == 1:
            found[f"{name}: flex"] = max(float((a - b).abs().max()) for a, b in zip(alone[1], values, strict=True))
    return found


def kept_bytes(policy: Policy, batch: MicroBatch) -> int:
    """Bytes of the tensors that the backward pass of a micro-batch needs, weights apart, each storage once."""
    weights = {p.untyped_storage().data_ptr() for p in policy.parameters()}
    kept: dict[int, Any] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = loss_of(policy, batch)
    total = sum(storage.nbytes() for storage in kept.values())
    loss.backward()
    return total


def measured(rank: int) -> tuple[int, int]:
    """Bytes that this rank keeps for a micro-batch of rank 0, alone and together with the other rank."""
    policy, batch = policy_with(), rows(2, [256, 256], [200, 256, 160, 128])
    alone = kept_bytes(policy, batch)
    policy.context = ContextGroup(dist.new_group())
    return alone, kept_bytes(policy, batch if rank == 0 else filler(dataclasses.replace(BATCHES[1])))
