"""What sources count: by hand, on two of them."""

from __future__ import annotations

import pytest
import torch

from gspo_lightning.core.types import FinishReason, Prompt, Rollout
from gspo_lightning.loop.metrics.sources import clipped_by_source, clipped_scalars, measure_sources
from gspo_lightning.policy.packing.batches import filler, make_micro_batch
from gspo_lightning.policy.packing.memory import cut_rows

NAMES = ("math", "code")


def rollout(prompt: int, source: str, length: int, reward: float | None) -> Rollout:
    ids = torch.arange(length)
    made = Rollout(
        Prompt(prompt, "p", (3,), {"source": source}), 0, ids, torch.zeros(length),
        torch.ones(length, dtype=torch.bool), FinishReason.STOP, 0,
    )  # fmt: skip
    made.reward = reward
    return made


GROUPS = [
    [rollout(0, "math", 2, 1.0), rollout(0, "math", 4, 0.0)],
    [rollout(1, "code", 6, 0.5), rollout(1, "code", 6, 0.5)],
    [rollout(2, "math", 1, 1.0), rollout(2, "math", 3, None)],
]
DEAD = [False, True, False]


def test_means_of_each_source() -> None:
    found = measure_sources(GROUPS, NAMES, DEAD, torch.device("cpu"))
    assert found == {
        "source/math/groups": 2.0, "source/math/reward": pytest.approx(2 / 3), "source/math/length": 2.5,
        "source/math/dead_groups": 0.0, "source/code/groups": 1.0, "source/code/reward": 0.5,
        "source/code/length": 6.0, "source/code/dead_groups": 1.0,
    }  # fmt: skip


def test_where_every_group_teaches_none_is_dead() -> None:
    found = measure_sources(GROUPS, NAMES, None, torch.device("cpu"))
    assert found["source/math/groups"] == 2.0
    assert not any(tag.endswith("dead_groups") for tag in found)


def test_a_source_that_has_nothing_now_has_no_means() -> None:
    assert measure_sources(GROUPS[:1], NAMES, DEAD[:1], torch.device("cpu")).get("source/code/reward") is None


def test_clipped_tokens_of_each_source() -> None:
    """Rows of 2, 4 (math) and 6 tokens (code); sequences 2 and 3 clipped: 4 of 6, and 6 of 6."""
    rows = [*GROUPS[0], GROUPS[1][0]]
    part = make_micro_batch(rows, None, NAMES)
    assert part.sources is not None
    assert part.sources.tolist() == [[True, False], [True, False], [False, True]]
    by_row = clipped_by_source(torch.tensor([False, True, True]), part.response_mask, part.sources)
    assert by_row.tolist() == [4.0, 6.0, 6.0, 6.0]
    assert clipped_scalars(by_row.tolist(), NAMES) == {
        "source/math/clipped_tokens": pytest.approx(4 / 6), "source/code/clipped_tokens": 1.0
    }  # fmt: skip
    by_token = torch.zeros(3, 6, dtype=torch.bool)
    by_token[1, :5] = True  # the fifth is padding
    assert clipped_by_source(by_token, part.response_mask, part.sources).tolist() == [4.0, 0.0, 6.0, 6.0]
    empty = filler(part)
    assert empty.sources is not None
    assert clipped_by_source(torch.tensor([True]), empty.response_mask, empty.sources).tolist() == [0.0] * 4


def test_without_a_mixture_rows_have_no_source() -> None:
    assert make_micro_batch(GROUPS[0]).sources is None


def test_pieces_of_a_micro_batch_keep_all_sources() -> None:
    """Responses of 2 tokens, three sources: a piece has fewer columns of tokens than there are sources."""
    names = ("a", "b", "c")
    part = make_micro_batch([rollout(i, name, 2, 1.0) for i, name in enumerate(names)], None, names)
    pieces = cut_rows(part, 3, packed=False)
    assert len(pieces) == 3
    assert [piece.sources.tolist() for piece in pieces if piece.sources is not None] == [
        [[True, False, False]], [[False, True, False]], [[False, False, True]]
    ]  # fmt: skip
