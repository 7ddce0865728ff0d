"""Token values of chosen rows of a mini-batch, kept while their losses are computed; training does not change."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gspo_lightning.core.types import MicroBatch, ObjectiveOutput

_DIGITS = 4


@dataclass(slots=True)
class TokenValues:
    """Copies the values of some rows, as the micro-batches of a mini-batch pass by in their order.

    Args:
        wanted: position of a row in the mini-batch -> its description, JSON data.
    """

    wanted: Mapping[int, Mapping[str, Any]]
    _passed: int = 0
    """Rows of the mini-batch in the micro-batches so far."""
    _copies: list[tuple[list[int], dict[str, Tensor]]] = field(default_factory=list)
    """Of each micro-batch the positions of its R recorded rows in the mini-batch, and values: name -> [R, ...]."""

    @torch.no_grad()
    def add(self, part: MicroBatch, new: Tensor, old: Tensor, entropy: Tensor | None, out: ObjectiveOutput) -> None:
        """Copy the recorded rows of a micro-batch, on the device; a filler has no rows of the mini-batch.

        Args:
            part: N rows.
            new: [N, T] log-probabilities of the policy, nats.
            old: [N, T] those of the old policy.
            entropy: [N, T] nats; None: not computed.
            out: result of the objective.
        """
        count = int(part.response_mask.shape[0]) if part.weight > 0 else 0
        first = self._passed
        self._passed += count
        rows = [i for i in range(count) if first + i in self.wanted]
        if not rows:
            return
        values = {
            "mask": part.response_mask, "length": part.response_lengths, "ids": part.response_ids,
            "log_ratio": new - old, "advantage": part.advantages, "clipped": out.clipped, "ratio": out.ratio,
        }  # fmt: skip
        if entropy is not None:
            values["entropy"] = entropy
        if part.behaviour_logprobs is not None and old is not part.behaviour_logprobs:
            values["gap"] = old - part.behaviour_logprobs
        index = torch.tensor(rows, device=new.device)
        copies = {name: value.detach().index_select(0, index) for name, value in values.items()}
        self._copies.append(([first + i for i in rows], copies))

    def rows(self) -> list[dict[str, Any]]:
        """Return the description of each kept row with its values: ``ids`` [T], and lists of T per quantity.

        ``log_s`` is the mean of ``log_ratio`` over the tokens that are trained; ``clip`` of the row is the side on
        which it is clipped, if the objective clips whole sequences, else the difference of shares of clipped tokens.
        """
        rows = []
        for positions, tensors in self._copies:
            columns = {name: tensor.cpu().tolist() for name, tensor in tensors.items()}
            for i, position in enumerate(positions):
                values = {name: column[i] for name, column in columns.items()}
                rows.append(dict(self.wanted[position]) | _row(values))
        return rows


def _row(values: dict[str, Any]) -> dict[str, Any]:
    """Return the record of one row: values of the whole row, its token ids, and under ``tokens`` values of each token.

    Args:
        values: name -> a number or a padded list of T; ratio, clipped and advantage are either, as the objective has
            them.
    """
    length = values["length"]
    mask = values["mask"][:length]
    count = sum(mask)
    tokens: dict[str, Any] = {"log_ratio": _rounded(values["log_ratio"], mask)}
    for name in ("entropy", "gap"):
        if name in values:
            tokens[name] = _rounded(values[name], mask)
    if not all(mask):
        tokens["own"] = [int(is_own) for is_own in mask]

    log_ratios = itertools.compress(values["log_ratio"], mask)
    row: dict[str, Any] = {"length": count, "log_s": _short(sum(log_ratios) / count) if count else None}
    if isinstance(values["clipped"], list):  # a ratio per token
        sides = [_side(clipped, ratio) for clipped, ratio in zip(values["clipped"], values["ratio"], strict=True)]
        tokens["clip"] = [side if is_own else 0 for side, is_own in zip(sides, mask, strict=False)]
        row["clip"] = _short(sum(tokens["clip"]) / count) if count else 0
        row["clipped"] = _short(sum(map(abs, tokens["clip"])) / count) if count else 0
    else:
        row["clip"] = _side(values["clipped"], values["ratio"]) if count else 0
        row["clipped"] = float(abs(row["clip"]))
    if isinstance(values["advantage"], list):
        tokens["advantage"] = _rounded(values["advantage"], mask)
    else:
        row["advantage"] = _short(values["advantage"])
    return row | {"ids": values["ids"][:length], "tokens": tokens}


def _side(clipped: bool, ratio: float) -> int:
    """Return 1 if a ratio was clipped from above, -1 from below, 0 if it was not clipped."""
    if not clipped:
        return 0
    return 1 if ratio > 1 else -1


def _rounded(values: list[float], mask: list[bool]) -> list[float]:
    """Round the values [T] of a row's tokens; 0 at tokens that the policy did not choose, and nothing for padding."""
    return [_short(value) if is_own else 0.0 for value, is_own in zip(values, mask, strict=False)]


def _short(value: float) -> float:
    """Round to four digits: files of recorded rows are read by people, and large."""
    return float(f"{value:.{_DIGITS}g}")
