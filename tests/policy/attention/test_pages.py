"""Attention by pages: values and gradients of the definition, and the same bits in every batch."""

from __future__ import annotations

from itertools import accumulate

import pytest
import torch
from torch import Tensor

from gspo_lightning.policy.attention import PagedCache, PagedPlan
from gspo_lightning.policy.attention.pages import PAGE
from gspo_lightning.policy.attention.plans import dense_attention

CASES: dict[str, tuple[list[tuple[int, int]], list[tuple[int, int, int, int]], int]] = {
    "one prompt, one response": ([(0, 4), (4, 3)], [(4, 3, 0, 4)], 0),
    "pages that end with the prompt": ([(0, PAGE), (PAGE, 1), (PAGE + 1, 70)], [(PAGE, 71, 0, PAGE)], 0),
    "two prompts over two pages": (
        [(0, 130), (130, 63), (193, 10), (203, 1), (204, 80)], [(193, 11, 0, 130), (204, 80, 130, 63)], 0,
    ),
    "behind a prefix": (
        [(0, 70), (70, 5), (75, 60), (135, 9), (144, 30)], [(135, 9, 70, 5), (144, 30, 75, 60)], 70,
    ),
}  # fmt: skip
HEADS = [(4, 4), (6, 2), (9, 3), (7, 1), (20, 1)]


def drawn(tokens: int, heads: tuple[int, int], size: int, dtype: torch.dtype) -> list[Tensor]:
    draws = torch.Generator().manual_seed(tokens)
    return [torch.randn(tokens, h, size, generator=draws).to(dtype) for h in (heads[0], heads[1], heads[1])]


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_values_and_gradients_are_those_of_dense_attention(
    case: tuple[list[tuple[int, int]], list[tuple[int, int, int, int]], int], heads: tuple[int, int]
) -> None:
    segments, crossings, prefix = case
    inputs = drawn(segments[-1][0] + segments[-1][1], heads, 8, torch.float64)
    for x in inputs:
        x.requires_grad_()
    ours = PagedPlan(segments, crossings, 300, prefix).attend(0, *inputs, 0.3)
    theirs = dense_attention(segments, crossings, *inputs, 0.3, prefix=prefix)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
    weights = torch.randn_like(ours)
    mine, expected = (torch.autograd.grad((out * weights).sum(), inputs) for out in (ours, theirs))
    for gradient, other in zip(mine, expected, strict=True):
        torch.testing.assert_close(gradient, other, rtol=0, atol=1e-11)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("heads", HEADS)
def test_a_row_has_the_same_bits_alone_beside_others_and_token_by_token(
    heads: tuple[int, int], dtype: torch.dtype
) -> None:
    widths, count = [3, PAGE - 1, PAGE, PAGE + 1, 150], 10
    rows = [drawn(width + count, heads, 16, dtype) for width in widths]

    def joined(parts: list[list[Tensor]]) -> list[Tensor]:
        return [torch.cat(x) for x in zip(*parts, strict=True)]

    alone = [PagedPlan([(0, len(row[0]))], [], 300).attend(0, *row, 0.25) for row in rows]
    starts = list(accumulate([len(row[0]) for row in rows], initial=0))
    segments = [(start, len(row[0])) for start, row in zip(starts, rows, strict=False)]
    beside = PagedPlan(segments, [], 300).attend(0, *joined(rows), 0.25).split([n for _, n in segments])
    for one, other in zip(alone, beside, strict=True):
        assert torch.equal(one, other)

    cache = PagedCache(torch.device("cpu"))
    cache.enter(widths, [1] * len(widths))
    prompts = joined([[x[:width] for x in row] for row, width in zip(rows, widths, strict=True)])
    for one, part in zip(alone, cache.attend(0, *prompts, 0.25).split(widths), strict=True):
        assert torch.equal(part, one[: len(part)])
    living = list(range(len(rows)))
    for step in range(count):
        if step == 4:  # two rows leave, and their pages are used again
            cache.keep(torch.tensor([4, 1, 2]))
            living = [4, 1, 2]
        cache.write()
        fed = joined([[x[widths[i] + step : widths[i] + step + 1] for x in rows[i]] for i in living])
        out = cache.attend(0, *fed, 0.25)
        cache.advance()
        for place, i in enumerate(living):
            assert torch.equal(out[place], alone[i][widths[i] + step])


def test_rows_of_a_prompt_share_its_full_pages_and_own_the_last_one() -> None:
    cache = PagedCache(torch.device("cpu"))
    cache.enter([2 * PAGE + 5, PAGE], [3, 2])
    first, second = cache.table[:3], cache.table[3:]
    assert len(first[:, :2].unique()) == 2  # two pages for three rows
    assert len(first[:, 2].unique()) == 3
    assert second[:, 0].unique().numel() == 1
    assert second[:, 1:].eq(0).all()
    cache.write()
    assert second.shape[1] == 3  # a view of the old table: a new page for a row whose prompt ended with one
    assert len(cache.table[3:, 1].unique()) == 2
    cache.keep(torch.tensor([1]))
    used = set(cache.table.flatten().tolist())
    cache.enter([PAGE], [1])
    assert int(cache.table[1, 0]) not in used
    assert int(cache.table.max()) < 9  # of pages that were freed
