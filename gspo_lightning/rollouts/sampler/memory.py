"""Memory budget of sampled rows, and upper bounds of their cost."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

import torch
from transformers import PretrainedConfig

from gspo_lightning.core.distributed import rank_and_world
from gspo_lightning.policy.attention import attention_dtype, capacity, reserved
from gspo_lightning.policy.attention.kv_cache_size import kv_cache_size
from gspo_lightning.policy.attention.pages import PAGE
from gspo_lightning.policy.numerics.autocast_weights import compute_dtype
from gspo_lightning.policy.policy import Policy

GRAPH_PAGE = 128
"""Places of a row under CUDA graphs are a multiple of it, unless there are fewer: a new recording, which takes as long
as an ordinary step, is needed as rarely."""
Growth = Literal["pages", "graph pages", "whole"]
"""How rows get places: in pages, in pages of recorded steps, or all they may need at once."""
SHARES = {"cuda": 0.85, "cpu": 0.7}
"""Share of free memory for rows, by device type. The rest is for prefills and for other users of the device."""
LOGITS = 4
"""Float32 numbers per row and vocabulary token during a draw: logits, scores, probabilities, blocks."""


def free_memory(device: torch.device) -> int | None:
    """Return the free bytes of a device; None if unknown."""
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + cached
    found = [_of_machine(), _of_container()] if device.type == "cpu" else []
    known = [size for size in found if size is not None]
    return min(known) if known else None


def budget(device: torch.device) -> int | None:
    """Return the bytes that rows may take on a device; ranks share the memory of a machine."""
    free = free_memory(device)
    ranks = rank_and_world()[1] if device.type == "cpu" else 1
    return None if free is None else int(free * SHARES[device.type] / ranks)


def _of_machine() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:  # not Linux
        return None
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")), None)


def _of_container() -> int | None:
    """Return the bytes left by the limit of a control group; reclaimable file pages do not count as used."""
    folder = Path("/sys/fs/cgroup")
    try:
        limit, used = ((folder / f"memory.{name}").read_text().strip() for name in ("max", "current"))
        statistics = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return None
    return None if limit == "max" else max(0, int(limit) - int(used) + int(statistics.get("inactive_file", 0)))


class Costs:
    """Bytes of a model's rows.

    Args:
        config: the model's config.
        itemsize: bytes per number of keys and values.
        shares: True if rows share the keys and values of their prompt.
        widest: tokens of the longest context; contexts that are not shared are padded to it.
        spare: tokens that a row may hold beside its own, if contexts are shared by whole pages.
        growth: how rows get places.
    """

    def __init__(
        self,
        config: PretrainedConfig,
        itemsize: int,
        shares: bool,
        widest: int,
        spare: int = 0,
        growth: Growth = "pages",
    ) -> None:
        self._row = kv_cache_size(config, itemsize)
        self._shares, self._widest, self._spare, self._growth = shares, widest, spare, growth
        self._token = self._row.token + self._row.largest_layer  # two copies of a layer exist while it grows
        self._logits = 4 * LOGITS * int(config.get_text_config().vocab_size)

    @classmethod
    def of(cls, policy: Policy, shares: bool, widest: int, growth: Growth = "pages") -> Self:
        """Return the costs of a policy in its current dtype of attention."""
        spare = 2 * PAGE if policy.batch_invariant else 0  # the first and the last page of a response
        dtype = attention_dtype(compute_dtype(policy), device=policy.device)
        return cls(policy.model.config, dtype.itemsize, shares, widest, spare, growth)

    @property
    def token(self) -> int:
        """Bytes of a token's keys and values in all layers."""
        return self._row.token

    def context(self, tokens: int) -> int:
        """Bytes of a context that its rows share."""
        return self._token * tokens if self._shares else 0

    def row(self, tokens: int) -> int:
        """Bytes of one row that may still get ``tokens`` tokens."""
        if not self._shares:
            return self._row.row(self._widest + tokens + tokens // 8) + self._logits
        return self._token * self.places(tokens + self._spare) + self._logits

    def places(self, tokens: int) -> int:
        """Return the places of a row that may get ``tokens`` tokens, one of them perhaps after its end."""
        if self._growth == "whole":
            return tokens + 1
        return max(capacity(tokens), reserved(tokens, GRAPH_PAGE) if self._growth == "graph pages" else 0)
