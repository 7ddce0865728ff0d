"""One draw per (prompt, sample, position) turned into a token by the policy's own distribution."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gspo_lightning.core.randomness import Purpose, stream, uniforms
from gspo_lightning.core.types import SamplingParams
from gspo_lightning.rollouts import Draws, sample_tokens
from gspo_lightning.rollouts.drawing import FIRST, _truncate

EVEN = (torch.arange(10_000, dtype=torch.float64) + 0.5) / 10_000
"""A stratified set of draws: counts are the probabilities, rounded."""


def distribution(probabilities: list[float], sampling: SamplingParams) -> Tensor:
    logits = torch.tensor(probabilities).log().expand(len(EVEN), -1)
    tokens, _ = sample_tokens(logits, EVEN, sampling)
    return torch.bincount(tokens, minlength=len(probabilities)).double() / len(EVEN)


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (SamplingParams(1), [0.1, 0.4, 0.3, 0.2]),
        (SamplingParams(1, temperature=0.5), [0.01 / 0.3, 0.16 / 0.3, 0.09 / 0.3, 0.04 / 0.3]),
        (SamplingParams(1, top_k=1), [0, 1, 0, 0]),
        (SamplingParams(1, top_k=2), [0, 4 / 7, 3 / 7, 0]),
        (SamplingParams(1, top_k=99), [0.1, 0.4, 0.3, 0.2]),
        (SamplingParams(1, top_p=0.3), [0, 1, 0, 0]),  # the smallest set that reaches top_p
        (SamplingParams(1, top_p=0.5), [0, 4 / 7, 3 / 7, 0]),
        (SamplingParams(1, top_p=0.89), [0, 4 / 9, 3 / 9, 2 / 9]),
        (SamplingParams(1, top_p=0.95), [0.1, 0.4, 0.3, 0.2]),
        (SamplingParams(1, top_k=3, top_p=0.5), [0, 4 / 7, 3 / 7, 0]),  # top_p of what top_k left: 4/9, 7/9, 1
        (SamplingParams(1, temperature=0.5, top_p=0.5), [0, 1, 0, 0]),  # temperature first, as in vLLM and transformers
    ],
)
def test_tokens_follow_the_distribution(sampling: SamplingParams, expected: list[float]) -> None:
    found = distribution([0.1, 0.4, 0.3, 0.2], sampling)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=2e-4)


def test_greedy_takes_the_largest_and_ignores_the_draw() -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0], [5.0, 1.0, 4.0]])
    for uniform in (torch.zeros(2), torch.full((2,), 0.999)):
        tokens, logprobs = sample_tokens(logits, uniform.double(), SamplingParams(1, temperature=0.0))
        assert tokens.tolist() == [1, 0]
        torch.testing.assert_close(logprobs, torch.log_softmax(logits, -1).max(-1).values)


@pytest.mark.parametrize("sampling", [SamplingParams(1, temperature=0.7), SamplingParams(1, 0.7, top_p=0.5, top_k=2)])
def test_logprobs_are_the_policys_at_the_temperature_even_when_truncated(sampling: SamplingParams) -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0, 0.5]]).expand(50, -1)
    tokens, logprobs = sample_tokens(logits, EVEN[::200], sampling)
    expected = torch.log_softmax(logits.double() / 0.7, -1).gather(-1, tokens[:, None])[:, 0]
    assert logprobs.dtype == torch.float32
    torch.testing.assert_close(logprobs.double(), expected, rtol=0, atol=1e-6)


@settings(deadline=None, max_examples=100)
@given(
    st.lists(st.floats(-60, 60), min_size=1, max_size=40),
    st.floats(0, 1, exclude_max=True),
    st.sampled_from([0, 1, 3]),
    st.sampled_from([1.0, 0.4]),
)
def test_a_forbidden_token_is_never_drawn(values: list[float], uniform: float, top_k: int, top_p: float) -> None:
    logits = torch.full((1, 2 * len(values)), -torch.inf)
    logits[0, 1::2] = torch.tensor(values)
    draws = torch.tensor([uniform, 0.0, 1 - 2.0**-53], dtype=torch.float64)
    tokens, logprobs = sample_tokens(logits.expand(3, -1), draws, SamplingParams(1, top_k=top_k, top_p=top_p))
    assert (tokens % 2 == 1).all()
    assert torch.isfinite(logprobs).all()


def test_rare_tokens_of_a_large_vocabulary_can_all_be_drawn() -> None:
    """One token has 0.999, the others 1e-8 each: less than the spacing of float32 numbers near 1."""
    probabilities = torch.full((100_001,), 1e-8, dtype=torch.float64)
    probabilities[0] = 0.999
    uniform = 0.9995 + 1e-8 * torch.arange(50, dtype=torch.float64)
    tokens, _ = sample_tokens(probabilities.log().float().expand(50, -1), uniform, SamplingParams(1))
    steps = tokens.diff()
    assert ((steps >= 0) & (steps <= 2)).all()  # neighbours in probability, neighbours in the vocabulary
    assert len(set(tokens.tolist())) >= 45


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_logits_are_upcast(dtype: torch.dtype) -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0]]).to(dtype)
    _, logprobs = sample_tokens(logits, torch.zeros(1, dtype=torch.float64), SamplingParams(1))
    assert logprobs.item() == pytest.approx(torch.log_softmax(torch.tensor([1.0, 3.0, 2.0]), -1)[0].item(), abs=1e-6)


def test_draws_are_the_hash_of_prompt_sample_and_position() -> None:
    draws = Draws.of(7, Purpose.TRAIN_SAMPLING, 3)
    prompts, samples = torch.tensor([4, 9, 4]), torch.tensor([0, 0, 1])
    expected = uniforms(stream(7, Purpose.TRAIN_SAMPLING, 3), prompts, samples, 5)
    assert torch.equal(draws.uniform(prompts, samples, 5), expected)
    assert len(set(expected.tolist())) == 3
    others = [Draws.of(8, Purpose.TRAIN_SAMPLING, 3), Draws.of(7, Purpose.EVAL_SAMPLING, 3)]
    others.append(Draws.of(7, Purpose.TRAIN_SAMPLING, 4))
    assert all(not torch.equal(other.uniform(prompts, samples, 5), expected) for other in others)


@pytest.mark.parametrize("size", [1, 63, 64, 65, 200, 8192])
def test_tokens_of_weight_zero_are_never_drawn_even_at_the_ends(size: int) -> None:
    logits = torch.full((1, size), -torch.inf)
    allowed = sorted({0 if size < 10 else 7, size // 2, max(0, size - 3)})
    logits[0, allowed] = torch.tensor([0.0, -20.0, 3.0])[: len(allowed)]
    draws = torch.tensor([0.0, 2.0**-53, 0.3, 0.5, 1 - 2.0**-20, 1 - 2.0**-53], dtype=torch.float64)
    tokens, _ = sample_tokens(logits.expand(len(draws), -1), draws, SamplingParams(1))
    assert set(tokens.tolist()) <= set(allowed)
    assert tokens[0] == allowed[0]
    assert tokens[-1] == allowed[-1]


@pytest.mark.parametrize("size", [38, 1000, 150_001])
def test_draws_invert_the_cumulative_distribution_of_float64(size: int) -> None:
    logits = 4 * torch.randn(3, size, generator=torch.Generator().manual_seed(0))
    draws = torch.linspace(0, 0.999, 3, dtype=torch.float64)
    tokens, logprobs = sample_tokens(logits, draws, SamplingParams(1, temperature=0.8))
    exact = torch.softmax(logits.double() / 0.8, dim=-1)
    cumulative = exact.cumsum(-1)
    rows = torch.arange(3)
    assert bool((cumulative[rows, tokens] >= draws - 1e-6).all())
    assert bool((cumulative[rows, tokens] - exact[rows, tokens] <= draws + 1e-6).all())
    torch.testing.assert_close(logprobs.double(), exact[rows, tokens].log(), rtol=0, atol=2e-6)


def test_not_a_number_gives_tokens_of_the_vocabulary_and_says_so_in_the_logprobs() -> None:
    tokens, logprobs = sample_tokens(torch.full((2, 39), torch.nan), EVEN[:2], SamplingParams(1))
    assert bool((tokens < 39).all())
    assert bool(logprobs.isnan().all())


def test_top_p_of_a_large_vocabulary_is_that_of_sorting_it_row_by_row() -> None:
    """Peaked rows need the most likely tokens alone, flat ones need more than those; neither depends on the other."""
    flatness = torch.tensor([[0.01], [1.0], [3.0], [8.0]])
    logits = torch.randn(4, 4 * FIRST, generator=torch.Generator().manual_seed(3)) * flatness
    probabilities, sampling = logits.softmax(-1), SamplingParams(1, top_p=0.9)
    ordered, index = probabilities.sort(descending=True)
    before = ordered.double().cumsum(-1) - ordered
    expected = torch.zeros_like(probabilities).scatter(-1, index, ordered * (before <= 0.9))
    counts = (expected > 0).sum(-1)
    assert counts[0] > counts[1] > FIRST > counts[2] > counts[3] > 0
    kept = _truncate(probabilities, sampling)
    assert torch.equal(kept, expected)
    assert torch.equal(kept, torch.cat([_truncate(row, sampling) for row in probabilities.split(1)]))
