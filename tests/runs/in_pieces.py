"""Plug-in: on ranks, the output head works in pieces of 16 rows, by its fast path while there are gradients.

Not in a process of its own, which is that of the tests: they would find it changed.
"""

from __future__ import annotations

import os
from typing import Any

import torch

from gspo_lightning.policy import logprobs

_is_product = logprobs._is_product


def is_product(head: Any, hidden: torch.Tensor, dtype: torch.dtype) -> bool:
    if not _is_product(head, hidden, dtype):
        raise RuntimeError(f"pieces of {type(head)} with a {type(getattr(head, 'weight', None))} are computed twice")
    return True


if "LOCAL_RANK" in os.environ:
    logprobs.KEPT_LOGITS = 0
    logprobs.CHUNK_LOGITS = {True: 0, False: 0}
    logprobs._is_product = is_product
