"""Chunked log-probabilities equal the plain formula, in values and gradients, and keep no [M, V] tensor alive."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode

from gspo_lightning.policy.logprobs import logprobs_from_logits, token_logprobs

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


each_form = pytest.mark.parametrize("product", [True, False], ids=["a product", "any head"])


def form(head: nn.Linear, product: bool) -> Callable[[Tensor], Tensor]:
    """The head, as the product that it is or as a function that could be anything."""
    return head if product else lambda hidden: head(hidden)


@each_form
@pytest.mark.parametrize("temperature", [1.0, 0.5, 1.7])
@pytest.mark.parametrize("chunk", [1, 2, 5, ROWS, 1000])
def test_values_are_those_of_log_softmax_and_gather(chunk: int, temperature: float, product: bool) -> None:
    head, hidden, targets = problem()
    chosen, entropy = token_logprobs(form(head, product), hidden, targets, temperature=temperature, chunk=chunk)
    expected, expected_entropy = plain(head, hidden, targets, temperature)
    assert chosen.dtype == torch.float64
    torch.testing.assert_close(chosen, expected, rtol=0, atol=1e-13)
    torch.testing.assert_close(entropy, expected_entropy, rtol=0, atol=1e-13)


@each_form
@pytest.mark.parametrize("entropy_weight", [0.0, 0.3])
@pytest.mark.parametrize("chunk", [1, 2, 5, ROWS, 1000])
def test_gradients_do_not_depend_on_the_chunk_size(chunk: int, entropy_weight: float, product: bool) -> None:
    head, hidden, targets = problem()
    given = form(head, product)
    found = gradients(
        lambda: token_logprobs(given, hidden, targets, temperature=0.8, chunk=chunk), head, hidden, entropy_weight
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
    with pytest.raises(ValueError, match="11 hidden states and 4 targets"):
        token_logprobs(head, hidden, targets[:4], chunk=2)


@pytest.mark.parametrize("temperature", [0.0, -1.0])
def test_a_temperature_that_is_not_positive_is_refused(temperature: float) -> None:
    head, hidden, targets = problem()
    with pytest.raises(ValueError, match="temperature must be > 0"):
        token_logprobs(head, hidden, targets, temperature=temperature)


@each_form
def test_no_tensor_of_all_logits_is_kept_for_the_backward_pass(product: bool) -> None:
    rows, width, vocabulary, chunk = 64, 8, 512, 4
    head = nn.Linear(width, vocabulary, bias=False)
    hidden = torch.randn(rows, width, requires_grad=True)
    saved: list[int] = []

    def pack(tensor: Tensor) -> Tensor:
        saved.append(tensor.numel())
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        chosen, entropy = token_logprobs(form(head, product), hidden, torch.arange(rows), chunk=chunk)
        forward = list(saved)
        loss = chosen.sum() + 0.1 * entropy.sum()
    loss.backward()
    assert max(forward) <= max(vocabulary * width, rows * width)  # the weight and the hidden states, no logits at all
    assert sum(n for n in forward if n >= chunk * vocabulary and n != vocabulary * width) == 0
    assert max(saved) <= max(vocabulary * width, chunk * vocabulary)  # recomputed a chunk at a time


def test_only_what_is_asked_for_gets_a_gradient() -> None:
    head, hidden, targets = problem()
    head.weight.requires_grad_(False)
    chosen, _ = token_logprobs(head, hidden, targets, chunk=3)
    chosen.sum().backward()
    assert head.weight.grad is None
    found, hidden.grad = hidden.grad, None
    head.weight.requires_grad_(True)
    token_logprobs(head, hidden.detach(), targets, chunk=3)[0].sum().backward()
    assert hidden.grad is None
    expected_hidden, expected_weight = torch.autograd.grad(
        plain(head, hidden, targets, 1.0)[0].sum(), [hidden, head.weight]
    )
    torch.testing.assert_close((found, head.weight.grad), (expected_hidden, expected_weight), rtol=0, atol=1e-12)


def test_a_graph_that_is_kept_gives_the_same_gradient_again() -> None:
    """The gradient of logits is written over them, but these are made anew for every backward pass."""
    head, hidden, targets = problem()
    chosen, entropy = token_logprobs(head, hidden, targets, chunk=3)
    loss = chosen.sum() + entropy.sum()
    first = torch.autograd.grad(loss, [hidden, head.weight], retain_graph=True)
    assert all(torch.equal(a, b) for a, b in zip(first, torch.autograd.grad(loss, [hidden, head.weight]), strict=True))


class _Doubled(nn.Linear):
    def forward(self, hidden: Tensor) -> Tensor:
        return 2 * super().forward(hidden)


def bf16_problem() -> tuple[nn.Linear, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    head = nn.Linear(32, 200, bias=False)
    with torch.no_grad():
        head.weight.copy_(0.3 * torch.randn(200, 32, generator=generator))
    hidden = torch.randn(300, 32, generator=generator).requires_grad_()
    return head, hidden, torch.randint(200, (300,), generator=generator)


@pytest.mark.parametrize("hidden_dtype", [torch.float32, torch.bfloat16])
def test_autocast_casts_the_head_once_and_adds_up_its_gradient_in_float32(hidden_dtype: torch.dtype) -> None:
    head, hidden, targets = bf16_problem()
    given = hidden.detach().to(hidden_dtype).requires_grad_()
    casts = []

    class Casts(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            if "_to_copy" in str(func) and out.shape == head.weight.shape:
                casts.append(out.dtype)
            return out

    def loss(form: Callable[[Tensor], Tensor]) -> tuple[Tensor, tuple[Tensor, ...]]:
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
            chosen, entropy = token_logprobs(form, given, targets, temperature=0.9, chunk=32)
        return chosen, torch.autograd.grad(chosen.sum() + 0.1 * entropy.sum(), [given, head.weight])

    with Casts():
        chosen, (d_hidden, d_weight) = loss(head)
    assert casts == [torch.bfloat16] * 2  # forward and backward
    assert chosen.dtype == d_weight.dtype == torch.float32
    assert d_hidden.dtype == hidden_dtype
    by_pieces, _ = loss(lambda x: head(x))
    assert torch.equal(chosen, by_pieces)  # what every piece for itself gives
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(chosen, token_logprobs(head, given, targets, temperature=0.9, chunk=32)[0])
    exact = nn.Linear(32, 200, bias=False, dtype=torch.float64)
    exact.weight = nn.Parameter(head.weight.detach().bfloat16().double())
    inputs = given.detach().bfloat16().double().requires_grad_()
    log_p, entropies = plain(exact, inputs, targets, 0.9)
    expected = torch.autograd.grad(log_p.sum() + 0.1 * entropies.sum(), [inputs, exact.weight])
    for found, right in zip((d_hidden, d_weight), expected, strict=True):
        assert (found.double() - right).norm() < 0.01 * right.norm()


@pytest.mark.parametrize("change", ["subclass", "hook", "bias", "autocast", "replaced"])
def test_a_head_that_does_more_than_a_product_is_called(change: str) -> None:
    head, hidden, targets = problem(torch.float32)
    hidden = hidden.detach()
    if change == "subclass":
        head.__class__ = _Doubled
    elif change == "hook":
        head.register_forward_hook(lambda *args: 2 * args[2])
    elif change == "bias":
        head.bias = nn.Parameter(torch.arange(VOCABULARY) / 10)
    elif change == "replaced":
        head.forward = lambda x: 2 * nn.Linear.forward(head, x)  # type: ignore[method-assign]
    with torch.autocast("cpu", torch.bfloat16, enabled=change == "autocast"):
        chosen, _ = token_logprobs(head, hidden, targets, chunk=3)
        expected, _ = plain(head, hidden, targets, 1.0)
    torch.testing.assert_close(chosen, expected.float(), rtol=1e-2 if change == "autocast" else 1e-5, atol=1e-5)
    if change == "autocast":
        assert not torch.allclose(chosen, plain(head, hidden, targets, 1.0)[0], rtol=1e-5)


def test_the_gradient_of_a_bfloat16_head_loses_nothing_between_pieces() -> None:
    """Under FSDP2 the gathered weight is in bfloat16: added up in it, 256 pieces would lose a digit."""
    draws = torch.Generator().manual_seed(0)
    head = nn.Linear(8, 12, bias=False)
    hidden = (torch.randn(4096, 8, generator=draws) + 1.0).bfloat16()
    targets = torch.randint(12, (4096,), generator=draws)
    exact = head.weight.detach().bfloat16().double().requires_grad_()
    logits = hidden.double() @ exact.t()
    logits.log_softmax(-1).gather(1, targets[:, None]).sum().backward()
    head = head.bfloat16()
    token_logprobs(head, hidden, targets, chunk=16)[0].sum().backward()
    assert head.weight.grad is not None
    assert head.weight.grad.dtype == torch.bfloat16
    assert exact.grad is not None
    error = (head.weight.grad.double() - exact.grad).norm() / exact.grad.norm()
    assert error < 4e-3  # of one rounding to 8 bits: 2e-3


@pytest.mark.parametrize("threads", [1, 2])
def test_a_row_of_a_large_vocabulary_has_the_same_bits_beside_any_number_of_others(threads: int) -> None:
    logits = torch.randn(40, 50_021, generator=torch.Generator().manual_seed(0))
    targets = torch.arange(40)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        whole, _ = logprobs_from_logits(logits, targets, 0.7)
        alone = [logprobs_from_logits(logits[i : i + 1].clone(), targets[i : i + 1], 0.7)[0] for i in range(40)]
    finally:
        torch.set_num_threads(before)
    assert torch.equal(torch.cat(alone), whole)
    torch.testing.assert_close(whole, torch.log_softmax(logits.double() / 0.7, -1)[targets, targets].float())
