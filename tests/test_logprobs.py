"""Chunked log-probabilities equal the plain formula, in values and gradients, and keep no [M, V] tensor alive."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from gspo_lightning.logprobs import logprobs_from_logits, token_logprobs

ROWS, WIDTH, VOCABULARY = 11, 6, 17


def problem(dtype: torch.dtype = torch.float64) -> tuple[nn.Linear, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    head = nn.Linear(WIDTH, VOCABULARY, bias=False, dtype=dtype)
    with torch.no_grad():
        head.weight.copy_(torch.randn(VOCABULARY, WIDTH, generator=generator))
    hidden = torch.randn(ROWS, WIDTH, generator=generator).to(dtype).requires_grad_()
    return head, hidden, torch.randint(VOCABULARY, (ROWS,), generator=generator)


def plain(head: nn.Linear, hidden: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    log_p = torch.log_softmax(head(hidden) / temperature, dim=-1)
    return log_p[torch.arange(len(targets)), targets], torch.distributions.Categorical(logits=log_p).entropy()


def gradients(
    function: Callable[[], tuple[Tensor, Tensor]], head: nn.Linear, hidden: Tensor, entropy_weight: float
) -> tuple[Tensor, Tensor]:
    chosen, entropy = function()
    weights = torch.linspace(-1, 2, ROWS, dtype=chosen.dtype)
    loss = (chosen * weights).sum() + entropy_weight * entropy.sum()
    first, second = torch.autograd.grad(loss, [hidden, head.weight])
    return first, second


@pytest.mark.parametrize("temperature", [1.0, 0.5, 1.7])
@pytest.mark.parametrize("chunk", [1, 2, 5, ROWS, 1000])
def test_values_are_those_of_log_softmax_and_gather(chunk: int, temperature: float) -> None:
    head, hidden, targets = problem()
    chosen, entropy = token_logprobs(head, hidden, targets, temperature=temperature, chunk=chunk)
    expected, expected_entropy = plain(head, hidden, targets, temperature)
    assert chosen.dtype == torch.float64
    torch.testing.assert_close(chosen, expected, rtol=0, atol=1e-13)
    torch.testing.assert_close(entropy, expected_entropy, rtol=0, atol=1e-13)


@pytest.mark.parametrize("entropy_weight", [0.0, 0.3])
@pytest.mark.parametrize("chunk", [1, 2, 5, ROWS, 1000])
def test_gradients_do_not_depend_on_the_chunk_size(chunk: int, entropy_weight: float) -> None:
    head, hidden, targets = problem()
    found = gradients(
        lambda: token_logprobs(head, hidden, targets, temperature=0.8, chunk=chunk), head, hidden, entropy_weight
    )
    expected = gradients(lambda: plain(head, hidden, targets, 0.8), head, hidden, entropy_weight)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_gradient_is_the_one_on_paper() -> None:
    """d log p(y) / d logits = (onehot(y) - p) / temperature."""
    logits = torch.tensor([[1.0, 2.0, 0.5]], dtype=torch.float64, requires_grad=True)
    chosen, _ = logprobs_from_logits(logits, torch.tensor([1]), 2.0)
    (gradient,) = torch.autograd.grad(chosen.sum(), logits)
    weights = [2.718281828459045 ** (x / 2) for x in (1.0, 2.0, 0.5)]
    p = [w / sum(weights) for w in weights]
    assert gradient[0].tolist() == pytest.approx([-p[0] / 2, (1 - p[1]) / 2, -p[2] / 2], abs=1e-15)


def test_evaluating_with_and_without_gradients_gives_the_same_bits() -> None:
    head, hidden, targets = problem(torch.float32)
    with_gradients = token_logprobs(head, hidden, targets, chunk=4)
    with torch.no_grad():
        without = token_logprobs(head, hidden, targets, chunk=4)
    assert all(torch.equal(a, b) for a, b in zip(with_gradients, without, strict=True))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_logits_are_upcast_before_the_softmax(dtype: torch.dtype) -> None:
    logits = (torch.randn(64, 500, generator=torch.Generator().manual_seed(0)) * 3).to(dtype)
    targets = torch.arange(64)
    chosen, entropy = logprobs_from_logits(logits, targets, 1.0)
    exact = torch.log_softmax(logits.double(), -1)
    assert chosen.dtype == entropy.dtype == torch.float32
    torch.testing.assert_close(chosen.double(), exact.gather(-1, targets[:, None])[:, 0], rtol=0, atol=2e-6)
    low = torch.log_softmax(logits, -1).gather(-1, targets[:, None])[:, 0]
    assert (low.double() - chosen.double()).abs().max() > 1e-3  # what it would cost otherwise


def test_a_temperature_of_one_makes_no_copy_of_the_logits() -> None:
    logits = torch.randn(3, VOCABULARY, requires_grad=True)
    kept: list[int] = []

    def pack(tensor: Tensor) -> Tensor:
        kept.append(tensor.data_ptr())
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        logprobs_from_logits(logits, torch.arange(3), 1.0)
    assert logits.data_ptr() in kept


def test_entropy_of_known_distributions() -> None:
    logits = torch.tensor([[0.0, 0.0, 0.0, 0.0], [200.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
    _, entropy = logprobs_from_logits(logits, torch.tensor([0, 0]), 1.0)
    assert entropy.tolist() == pytest.approx([1.3862943611198906, 0.0], abs=1e-12)


def test_large_logits_do_not_overflow() -> None:
    chosen, entropy = logprobs_from_logits(torch.tensor([[1e4, -1e4], [3e38, 3e38]]), torch.tensor([1, 0]), 1.0)
    assert chosen[0].item() == pytest.approx(-2e4)
    assert torch.isfinite(chosen).all()
    assert torch.isfinite(entropy[0])


@pytest.mark.parametrize(
    ("dtype", "wide"),
    [(torch.bfloat16, torch.float32), (torch.float32, torch.float32), (torch.float64, torch.float64)],
)
def test_an_empty_selection_stays_in_the_graph_of_every_parameter(dtype: torch.dtype, wide: torch.dtype) -> None:
    head, hidden, _ = problem(dtype)
    chosen, entropy = token_logprobs(head, hidden[:0], torch.zeros(0, dtype=torch.int64))
    assert chosen.shape == entropy.shape == (0,)
    assert chosen.dtype == entropy.dtype == wide
    (chosen.sum() + entropy.sum()).backward()
    assert hidden.grad is not None
    assert head.weight.grad is not None
    assert not hidden.grad.any()
    assert not head.weight.grad.any()


def calls(rows: int, **options: int) -> tuple[int, int, int]:
    """How often the head runs in the forward pass and in all, and the most rows it sees."""
    seen: list[int] = []

    def head(part: Tensor) -> Tensor:
        seen.append(len(part))
        return part * 2.0

    hidden = torch.randn(rows, WIDTH, requires_grad=True)
    chosen, _ = token_logprobs(head, hidden, torch.zeros(rows, dtype=torch.int64), **options)
    forward = len(seen)
    chosen.sum().backward()
    return forward, len(seen), max(seen)


@pytest.mark.parametrize(
    ("rows", "options", "expected"),
    [
        (1, {}, (1, 1, 1)),
        (1024, {}, (1, 1, 1024)),
        (1025, {}, (2, 4, 1024)),
        (4, {"chunk": 4}, (1, 1, 4)),  # fewer rows than the width of a row
        (5, {"chunk": 4}, (2, 4, 4)),
    ],
)
def test_the_head_runs_again_in_the_backward_pass_only_where_there_is_more_than_one_chunk(
    rows: int, options: dict[str, int], expected: tuple[int, int, int]
) -> None:
    assert calls(rows, **options) == expected


def test_one_row_and_the_default_temperature() -> None:
    head, hidden, targets = problem()
    chosen, entropy = token_logprobs(head, hidden[:1], targets[:1])
    expected, expected_entropy = plain(head, hidden[:1], targets[:1], 1.0)
    torch.testing.assert_close(chosen, expected, rtol=0, atol=1e-13)
    torch.testing.assert_close(entropy, expected_entropy, rtol=0, atol=1e-13)


def test_a_different_number_of_targets_is_refused() -> None:
    head, hidden, targets = problem()
    with pytest.raises(ValueError, match=r"shorter|longer"):
        token_logprobs(head, hidden, targets[:4], chunk=2)


@pytest.mark.parametrize("temperature", [0.0, -1.0])
def test_a_temperature_that_is_not_positive_is_refused(temperature: float) -> None:
    head, hidden, targets = problem()
    with pytest.raises(ValueError, match="temperature must be > 0"):
        token_logprobs(head, hidden, targets, temperature=temperature)


def test_no_tensor_of_all_logits_is_kept_for_the_backward_pass() -> None:
    rows, width, vocabulary, chunk = 64, 8, 512, 4
    head = nn.Linear(width, vocabulary, bias=False)
    hidden = torch.randn(rows, width, requires_grad=True)
    saved: list[int] = []

    def pack(tensor: Tensor) -> Tensor:
        saved.append(tensor.numel())
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        chosen, entropy = token_logprobs(head, hidden, torch.arange(rows), chunk=chunk)
        forward = list(saved)
        loss = chosen.sum() + 0.1 * entropy.sum()
    loss.backward()
    assert max(forward) <= max(vocabulary * width, rows * width)  # the weight and the hidden states, no logits at all
    assert sum(n for n in forward if n >= chunk * vocabulary and n != vocabulary * width) == 0
    assert max(saved) <= max(vocabulary * width, chunk * vocabulary)  # recomputed a chunk at a time
