"""Attention over spans: what plain softmax attention over a row's own keys gives, whatever lies beside them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gspo_lightning.policy.attention import spans
from gspo_lightning.policy.attention.span_cache import Places, SpanCache
from gspo_lightning.policy.attention.spans import (
    FLASH_ARGUMENTS,
    Span,
    attend_by_definition,
    joined,
    why_no_flash,
)


def plain(query: Tensor, keys: Tensor, values: Tensor, scaling: float) -> Tensor:
    """Softmax attention of [n, K, d] over [m, K, d] in one piece."""
    weights = (torch.einsum("nkd,mkd->nkm", query, keys) * scaling).softmax(-1)
    return torch.einsum("nkm,mkd->nkd", weights, values)


@pytest.mark.parametrize(("shared", "heads"), [(1, 1), (2, 2), (3, 3), (4, 1)])
def test_two_spans_joined_are_softmax_attention_over_all_their_keys(shared: int, heads: int) -> None:
    """Rows share prompts in any order, spans overlap with nothing, and lengths are those of the tensors."""
    torch.manual_seed(0)
    rows, size = 5, 8
    store = torch.randn(60, 2, heads, size, dtype=torch.float64) * 3
    qkv = torch.randn(rows, shared + 2, heads, size, dtype=torch.float64) * 3
    own = Span(torch.tensor([40, 3, 20, 11, 50, 0]).int(), torch.tensor([7, 1, 9, 4, 10]).int(), 12)
    prompt = Span(torch.tensor([30, 12, 30, 12, 0, 0]).int(), torch.tensor([10, 6, 10, 6, 2]).int(), 10)
    queries = torch.arange(rows + 1).int() * (shared + 2)
    parts = [attend_by_definition(qkv, store, span, queries, 0.3) for span in (own, prompt)]
    out = joined(*parts[0], *parts[1])
    for r in range(rows):
        places = [
            place
            for span in (prompt, own)
            for place in range(int(span.starts[r]), int(span.starts[r] + span.lengths[r]))
        ]
        expected = plain(qkv[r, :-2], store[places, 0], store[places, 1], 0.3)
        torch.testing.assert_close(out[r], expected, rtol=1e-12, atol=1e-12)


def test_a_span_of_length_0_changes_nothing_whichever_sign_its_log_sum_exp_has() -> None:
    """FlashAttention-2 writes zeros and +inf for a row without keys; the definition has -inf."""
    store, qkv = torch.randn(9, 2, 1, 4, dtype=torch.float64), torch.randn(2, 3, 1, 4, dtype=torch.float64)
    own = Span(torch.tensor([1, 5, 0]).int(), torch.tensor([3, 2]).int(), 4)
    none = Span(torch.tensor([0, 0, 0]).int(), torch.tensor([0, 0]).int(), 4)
    queries = torch.arange(3).int() * 3
    out, lse = attend_by_definition(qkv, store, own, queries, 1.0)
    nothing, empty = attend_by_definition(qkv, store, none, queries, 1.0)
    assert nothing.abs().max() == 0
    assert empty.max() == -torch.inf
    torch.testing.assert_close(joined(out, lse, nothing, empty), out)
    assert joined(out, lse, nothing, -empty).isfinite().all()  # an idle row's, which nobody reads


def test_the_call_of_the_kernel_fits_the_schema_of_this_pytorch() -> None:
    schema = torch.ops.aten._flash_attention_forward.default._schema
    assert {*FLASH_ARGUMENTS} <= {argument.name for argument in schema.arguments}
    assert [a.name for a in schema.arguments if not a.kwarg_only] == list(FLASH_ARGUMENTS[:10])
    assert [r.name for r in schema.returns][:2] == ["output", "softmax_logsumexp"]
    needed = [a.name for a in schema.arguments if a.kwarg_only and not a.has_default_value()]
    assert needed == []


def test_the_kernel_refuses_a_cpu_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = torch.device("cuda", 0)
    assert why_no_flash(torch.device("cpu"), torch.bfloat16, 64) == "a device of type cpu"
    assert why_no_flash(cuda, torch.float32, 64) == "no kernel for torch.float32 and heads of 64"
    assert why_no_flash(cuda, torch.bfloat16, 60) == "no kernel for torch.bfloat16 and heads of 60"
    assert why_no_flash(cuda, torch.bfloat16, 64) is None
    monkeypatch.setattr(spans, "FLASH_ARGUMENTS", ("query", "pages"))
    assert why_no_flash(cuda, torch.bfloat16, 64) == "PyTorch's FlashAttention does not take pages"


def test_places_are_given_once_and_reused() -> None:
    places = Places()
    a, b, c = (places.take(n) for n in (4, 3, 5))
    assert (a, b, c, places.size) == (1, 5, 8, 13)
    places.give(b, 3)
    assert places.take(2) == 5
    assert places.take(2) == 13  # one place is left in the gap
    places.give(a, 4)
    places.give(5, 2)
    assert places.take(7) == 1  # neighbours were merged
    places.give(13, 2)
    assert places.take(4) == 13  # a gap at the end is used before the store grows
    assert places.size == 17


def test_a_cache_of_rows_of_any_prompts_attends_as_plain_attention() -> None:
    """Prompts of other lengths with a common prefix, rows that join, leave and change places, idle rows behind."""
    torch.manual_seed(1)
    heads, shared, size = 2, 2, 4
    cache = SpanCache(torch.device("cpu"), 8, attend_by_definition)
    held: list[tuple[Tensor, Tensor]] = []

    def numbers(count: int, slots: int) -> Tensor:
        return torch.randn(count, slots, size, dtype=torch.float64)

    def join(widths: list[int], rows: list[int], prefix: int) -> None:
        cache.enter(widths, rows, [6] * sum(rows), prefix)
        packed = prefix + sum(width - prefix for width in widths)
        key, value = numbers(packed, heads), numbers(packed, heads)
        cache.attend(0, numbers(packed, heads * shared), key, value, 0.5)
        start = prefix
        for width, count in zip(widths, rows, strict=True):
            own = slice(start, start + width - prefix)
            pair = [torch.cat([x[:prefix], x[own]]) for x in (key, value)]
            held.extend((pair[0], pair[1]) for _ in range(count))
            start += width - prefix

    def step(active: int) -> None:
        qkv = torch.randn(active, shared + 2, heads, size, dtype=torch.float64)
        cache.write(active)
        out = cache.decode(0, qkv, 0.5)
        cache.advance(torch.ones(active, dtype=torch.int32))
        cache.seen[len(held) :].fill_(1)
        assert out.isfinite().all()
        for i, (keys, values) in enumerate(held):
            held[i] = torch.cat([keys, qkv[i, -2:-1]]), torch.cat([values, qkv[i, -1:]])
            torch.testing.assert_close(out[i], plain(qkv[i, :-2], *held[i], 0.5), rtol=1e-10, atol=1e-10)

    join([5, 3], [2, 1], 2)
    step(3)
    step(4)
    cache.keep(torch.tensor([2, 0]))
    held[:] = [held[2], held[0]]
    step(2)
    version = cache.version
    join([4], [2], 0)
    step(8)
    assert cache.version > version  # the store has grown
    cache.keep(torch.tensor([3]))
    held[:] = [held[3]]
    step(1)
    size_before = cache.nbytes
    cache.clear()
    held.clear()
    join([3], [2], 0)
    step(2)
    assert cache.nbytes == size_before
    with pytest.raises(ValueError, match="9 rows in a cache of at most 8"):
        cache.enter([2], [7], [1] * 7)
