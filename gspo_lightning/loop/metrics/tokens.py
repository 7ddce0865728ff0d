"""Token values of chosen rows of a mini-batch, kept while their losses are computed; training does not change."""

from __future__ import annotations

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
    _found: list[tuple[list[int], dict[str, Tensor]]] = field(default_factory=list)

    @torch.no_grad()
    def add(self, part: MicroBatch, new: Tensor, old: Tensor, entropy: Tensor | None, out: ObjectiveOutput) -> None:
        """Keep the wanted rows of a micro-batch, on the device; a filler has no place among those of the mini-batch.

        Args:
            part: N rows.
            new: [N, T] log-probabilities of the policy, nats.
            old: [N, T] those of the old policy.
            entropy: [N, T] nats; None: not computed.
            out: result of the objective.
        """
        count = int(part.response_mask.shape[0]) if part.weight > 0 else 0
        rows = [i for i in range(count) if self._passed + i in self.wanted]
        places, self._passed = [self._passed + i for i in rows], self._passed + count
        if not rows:
            return
        kept = {
            "mask": part.response_mask, "length": part.response_lengths, "ids": part.response_ids,
            "log_ratio": new - old, "advantage": part.advantages, "clipped": out.clipped, "ratio": out.ratio,
        }  # fmt: skip
        if entropy is not None:
            kept["entropy"] = entropy
        if part.behaviour_logprobs is not None and old is not part.behaviour_logprobs:
            kept["gap"] = old - part.behaviour_logprobs
        index = torch.tensor(rows, device=new.device)
        self._found.append((places, {name: value.detach().index_select(0, index) for name, value in kept.items()}))

    def rows(self) -> list[dict[str, Any]]:
        """Return the description of each kept row with its values: ``ids`` [T], and lists of T per quantity.

        ``log_s`` is the mean of ``log_ratio`` over the tokens that are trained; ``clip`` of the row is the side on
        which it is clipped, if the objective clips whole sequences, else the difference of shares of clipped tokens.
        """
        rows = []
        for places, tensors in self._found:
            lists = {name: value.cpu().tolist() for name, value in tensors.items()}
            for i, place in enumerate(places):
                rows.append(dict(self.wanted[place]) | _row({name: values[i] for name, values in lists.items()}))
        return rows


def _row(values: dict[str, Any]) -> dict[str, Any]:
    length, mask = values["length"], values["mask"]
    own = mask[:length]
    counted = [x for x, m in zip(values["log_ratio"], mask, strict=True) if m]
    tokens: dict[str, Any] = {"log_ratio": _of(values["log_ratio"], own)}
    tokens |= {name: _of(values[name], own) for name in ("entropy", "gap") if name in values}
    tokens |= {} if all(own) else {"own": [int(m) for m in own]}
    found = {"length": len(counted), "log_s": _short(sum(counted) / len(counted)) if counted else None}
    if isinstance(values["clipped"], list):
        tokens["clip"] = [
            _side(c, r) if m else 0 for c, r, m in zip(values["clipped"], values["ratio"], own, strict=False)
        ]
        found["clip"] = _short(sum(tokens["clip"]) / len(counted)) if counted else 0
        found["clipped"] = _short(sum(map(abs, tokens["clip"])) / len(counted)) if counted else 0
    else:
        found["clip"] = _side(values["clipped"], values["ratio"]) if counted else 0
        found["clipped"] = float(abs(found["clip"] or 0))
    if isinstance(values["advantage"], list):
        tokens["advantage"] = _of(values["advantage"], own)
    else:
        found["advantage"] = _short(values["advantage"])
    return found | {"ids": values["ids"][:length], "tokens": tokens}


def _side(clipped: bool, ratio: float) -> int:
    return (1 if ratio > 1 else -1) if clipped else 0


def _of(values: list[float], own: list[bool]) -> list[float]:
    return [_short(value) if mine else 0.0 for value, mine in zip(values, own, strict=False)]


def _short(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
