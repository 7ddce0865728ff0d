"""Recorded rows are found by their place in the mini-batch, whatever fillers are among its micro-batches."""

from __future__ import annotations

import pytest
import torch

from gspo_lightning.core.types import MicroBatch
from gspo_lightning.loop.metrics.tokens import TokenValues
from gspo_lightning.objectives import GSPO
from gspo_lightning.policy.packing.batches import filler


def rows(first: int) -> MicroBatch:
    ids = torch.tensor([[first, first + 1, first + 2], [first, first + 3, 0]])
    responses = torch.tensor([2, 1])
    return MicroBatch(
        ids, torch.ones(2, dtype=torch.int64), responses, torch.arange(2) < responses[:, None], torch.ones(2)
    )


@pytest.mark.parametrize("fillers", [0, 1, 3])
def test_fillers_have_no_place(fillers: int) -> None:
    values = TokenValues({1: {"name": "second"}, 2: {"name": "third"}})
    for part in (*[filler(rows(3))] * fillers, rows(3), filler(rows(3)), rows(9)):
        new = torch.zeros(part.response_mask.shape)
        values.add(part, new, new, None, GSPO()(new, new, part.advantages, part.response_mask, denominator=4.0))
    found = {row["name"]: row["ids"] for row in values.rows()}
    assert found == {"second": [6], "third": [10, 11]}
