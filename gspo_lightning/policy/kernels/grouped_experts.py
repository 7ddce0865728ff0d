"""Products of a mixture's experts under autocast: PyTorch's grouped product does not know it.

transformers casts the input to the weights' dtype instead. With float32 weights in bf16-mixed, experts, which are most
of a mixture, would compute in float32. Imported for its effect, by :mod:`gspo_lightning.policy.policy`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor
from transformers.integrations import moe

Product = Callable[[Tensor, Tensor, Tensor], Tensor]


def _under_autocast(product: Product) -> Product:
    @functools.wraps(product)
    def grouped(rows: Tensor, weight: Tensor, offs: Tensor) -> Tensor:
        kind = weight.device.type
        if torch.is_autocast_enabled(kind) and weight.dtype != torch.float64:
            dtype = torch.get_autocast_dtype(kind)
            rows = rows.to(dtype)
            weight = weight.to(dtype)
        return product(rows, weight, offs)

    return grouped


moe._grouped_mm = _under_autocast(moe._grouped_mm)
