"""Choice between the Triton kernels for log-probabilities and their definition, by a comparison on the device."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from gspo_lightning.core.errors import first_line

log = logging.getLogger(__name__)

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
ROWS = 3
"""Rows of the comparison."""
TEMPERATURE = 0.7
"""Temperature of the comparison, not 1, which would hide a kernel that forgets it."""
NATS = 1e-4
"""Largest difference of a log-probability or an entropy from the definition in float64 that counts as rounding."""
Definition = tuple[Callable[..., None], Callable[..., None]]
"""Two functions: write log-probabilities, entropies and log Z; write the gradient."""


def kernels_for(logits: Tensor, definition: Definition) -> Any:
    """Return the module with kernels for [M, V] logits, or None: then the definition computes them.

    The first call for a device, a dtype and a vocabulary compares the two; if they differ, or a kernel cannot be
    compiled, one warning says so.
    """
    fits = logits.device.type == "cuda" and logits.dtype in DTYPES and not isinstance(logits, FakeTensor)
    if not fits or logits.stride(-1) != 1:
        return None
    return _checked(logits.device, logits.dtype, logits.shape[-1], definition)


@functools.cache
def _checked(device: torch.device, dtype: torch.dtype, vocabulary: int, definition: Definition) -> Any:
    if importlib.util.find_spec("triton") is None:
        return None
    try:
        kernels = importlib.import_module("gspo_lightning.policy.kernels.fused_logprobs")
        problem = difference(kernels, device, dtype, vocabulary, definition)
    except Exception as error:  # of any kind: compilers fail in many ways
        problem = first_line(error)
    if problem:
        log.warning("log-probabilities are computed without a kernel of their own, because of %s", problem)
        return None
    return kernels


@torch.no_grad()
def difference(kernels: Any, device: torch.device, dtype: torch.dtype, vocabulary: int, definition: Definition) -> str:
    """Return what the kernels compute otherwise than the definition in float64, on random logits; empty if nothing."""
    draws = torch.Generator().manual_seed(0)
    logits = (6 * torch.randn(ROWS, vocabulary, generator=draws)).to(device, dtype)
    targets = (torch.arange(ROWS) * (vocabulary // ROWS)).to(device)
    weights = torch.randn(2, ROWS, generator=draws).to(device)
    measure, differentiate = definition
    results = torch.empty(3, ROWS, dtype=torch.float32, device=device)
    kernels.measure(logits, targets, TEMPERATURE, *results)
    exact_results = torch.empty(3, ROWS, dtype=torch.float64, device=device)
    measure(logits.double(), targets, TEMPERATURE, *exact_results)
    names = ("log-probabilities", "entropies", "log Z")
    for name, result, exact_result in zip(names, results, exact_results, strict=True):
        gap = float((result - exact_result).abs().max())
        if not gap <= NATS:
            return f"{name} that are off by {gap:.1g}"
    _, entropy, log_z = results
    gradient = logits.clone()
    kernels.differentiate(gradient, gradient, targets, TEMPERATURE, log_z, entropy, *weights)
    _, exact_entropy, exact_log_z = exact_results
    exact = logits.double()
    differentiate(exact, exact, targets, TEMPERATURE, exact_log_z, exact_entropy, *weights.double())
    gap = float((gradient - exact).abs().max() / exact.abs().max())
    return "" if gap <= 4 * torch.finfo(dtype).eps + 1e-5 else f"gradients that are off by {gap:.1g} of the largest"
