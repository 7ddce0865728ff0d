"""Rollouts with weights rounded to 8 bits, as an engine's ``quantization`` does; training stays in float32.

Named in a grid: ``data.rollouts: {class_path: experiments.lab.quantised.QuantisedSampler, init_args: {to: float8}}``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from typing_extensions import override

from gspo_lightning.core.types import Prompt, Rollout
from gspo_lightning.policy.policy import Policy
from gspo_lightning.rollouts import GroupedSampler

__all__ = ["QuantisedSampler", "rounded"]

To = Literal["float8", "float8_e5m2", "int8", "int4"]
LARGEST: dict[To, float] = {"float8": 448.0, "float8_e5m2": 57344.0, "int8": 127.0, "int4": 7.0}


class QuantisedSampler(GroupedSampler):
    """Samples from weights of few bits and reports their log-probabilities.

    Only the weights of linear layers are rounded, and not that of the output head: those that vLLM rounds by default.

    Args:
        to: format of the rounded weights.
        scales: one ``tensor``, one per output ``channel``, or one per ``block`` of 32 inputs of a channel.
    """

    def __init__(self, to: To, scales: Literal["tensor", "channel", "block"] = "tensor") -> None:
        super().__init__()
        self.to, self.scales = to, scales

    @override
    def generate(self, policy: Policy, prompts: Sequence[Prompt], **how: Any) -> list[list[Rollout]]:
        if how["sampling"].temperature == 0:  # evaluation
            return super().generate(policy, prompts, **how)
        twin = policy.frozen_copy()
        twin.eval()
        head = twin.model.get_output_embeddings()
        with torch.no_grad():
            for module in twin.model.modules():
                if isinstance(module, nn.Linear) and module is not head:
                    weight = rounded(module.weight, self.to, self.scales)
                    module.weight = nn.Parameter(weight, requires_grad=False)  # the policy may hold the old one, frozen
        return super().generate(twin, prompts, **how)

    @override
    def local(self) -> GroupedSampler:
        """Without rounding: the check before the first rollout would refuse it, which is its purpose."""
        return GroupedSampler()


def rounded(weight: Tensor, to: To, scales: str) -> Tensor:
    """Return weights [out, in] rounded to a format, each scale that of the largest weight it belongs to."""
    parts = weight.reshape({"tensor": (1, -1), "channel": (len(weight), -1), "block": (-1, 32)}[scales])
    scale = (parts.abs().amax(1, keepdim=True) / LARGEST[to]).clamp(min=1e-12)
    scaled = parts / scale
    if to.startswith("float8"):
        kind = torch.float8_e4m3fn if to == "float8" else torch.float8_e5m2
        return (scaled.to(kind).float() * scale).view_as(weight)
    return (scaled.round() * scale).view_as(weight)
