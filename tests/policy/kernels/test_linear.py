"""Linear layers through oneDNN: the numbers of torch's own, whatever the shape, the dtype and the number of threads."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from gspo_lightning.policy.adapters.lora import LoRA
from gspo_lightning.policy.kernels import linear
from gspo_lightning.policy.kernels.linear import OneDNNLinear
from gspo_lightning.policy.load.loading import load_policy
from gspo_lightning.policy.load.model_settings import ModelSettings
from gspo_lightning.policy.logprobs import token_logprobs
from gspo_lightning.rollouts.sampler.fast_decoder.layers import can_pack
from tests.runs import runs

pytestmark = pytest.mark.skipif(not can_pack(), reason="oneDNN's products are used on x86 only")
SHAPES = [((7, 20), 12, True), ((2, 5, 20), 12, False), ((2, 5, 3), 40, True), ((1, 300, 129), 129, False)]
"""Of the input, outputs, and whether there is a bias; the third has a gradient that is computed transposed."""


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[torch.Size]:
    """Shapes that oneDNN multiplied, with every processor one that prefers it and every product large."""
    seen: list[torch.Size] = []
    multiply = linear._multiply

    def spy(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        seen.append(x.shape)
        return multiply(x, weight, bias)

    monkeypatch.setattr(linear, "_multiply", spy)
    monkeypatch.setattr(linear, "FEWEST", 1)
    monkeypatch.setattr(linear, "prefers_onednn", lambda: True)
    return seen


def as_onednn(layer: nn.Linear) -> nn.Linear:
    linear.use_onednn(layer)
    assert type(layer) is OneDNNLinear
    return layer


@pytest.mark.parametrize(("shape", "outputs", "bias"), SHAPES)
def test_values_and_gradients_are_those_of_a_linear_layer(
    calls: list[torch.Size], shape: tuple[int, ...], outputs: int, bias: bool
) -> None:
    layer = nn.Linear(shape[-1], outputs, bias=bias)
    x, weights = torch.randn(shape, requires_grad=True), torch.randn(*shape[:-1], outputs)
    expected = [layer(x), *torch.autograd.grad((layer(x) * weights).sum(), [x, *layer.parameters()])]
    as_onednn(layer)
    assert not calls
    found = [layer(x), *torch.autograd.grad((layer(x) * weights).sum(), [x, *layer.parameters()])]
    assert len(calls) == 4  # two forwards, the gradients of input and weight
    for mine, other in zip(found, expected, strict=True):
        assert mine.shape == other.shape
        assert float((mine - other).norm() / other.norm()) < 1e-6


def test_frozen_weights_get_no_gradient(calls: list[torch.Size]) -> None:
    layer = as_onednn(nn.Linear(20, 12)).requires_grad_(False)
    layer(torch.randn(5, 20, requires_grad=True)).sum().backward()
    assert len(calls) == 2
    assert layer.weight.grad is None
    assert layer.bias.grad is None


OTHERS: dict[str, tuple[torch.dtype, Callable[[], AbstractContextManager[object]]]] = {
    "autocast to float16": (torch.float32, lambda: torch.autocast("cpu", torch.float16)),
    "float64": (torch.float64, torch.enable_grad),
    "bfloat16": (torch.bfloat16, torch.enable_grad),
    "switched off": (torch.float32, lambda: torch.backends.mkldnn.flags(enabled=False)),
}


@pytest.mark.parametrize("case", OTHERS)
def test_other_dtypes_are_multiplied_as_ever(calls: list[torch.Size], case: str) -> None:
    dtype, context = OTHERS[case]
    layer, x = nn.Linear(20, 12, dtype=dtype), torch.randn(5, 20, dtype=dtype)
    with context():
        expected = layer(x)
        assert torch.equal(as_onednn(layer)(x), expected)
    assert not calls


@pytest.mark.parametrize(("shape", "outputs", "bias"), SHAPES)
@pytest.mark.parametrize("piece", [linear.PIECE, 100])
def test_bfloat16_has_the_values_and_gradients_of_autocast_and_keeps_no_cast_weight(
    shape: tuple[int, ...], outputs: int, bias: bool, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear, "multiplies_bfloat16", lambda: True)
    monkeypatch.setattr(linear, "PIECE", piece)
    layer = nn.Linear(shape[-1], outputs, bias=bias)
    x, weights = torch.randn(shape, requires_grad=True), torch.randn(*shape[:-1], outputs)

    def evaluate() -> tuple[list[Tensor], set[tuple[int, ...]]]:
        kept: set[tuple[int, ...]] = set()

        def pack(saved: Tensor) -> Tensor:
            if saved.dtype == torch.bfloat16:
                kept.add(tuple(saved.shape))
            return saved

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved):
            with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
                out = layer(x)
            total = (out.float() * weights).sum()
        return [out, *torch.autograd.grad(total, [x, *layer.parameters()])], kept

    expected, autocast_keeps = evaluate()
    linear.use_onednn(layer)
    found, keeps = evaluate()
    for mine, other in zip(found, expected, strict=True):
        assert mine.dtype == other.dtype
        torch.testing.assert_close(mine, other, rtol=2**-7, atol=2**-7)  # oneDNN may sum another shape in another order
    assert torch.equal(found[0], expected[0])
    assert autocast_keeps & {(outputs, shape[-1]), (shape[-1], outputs)}
    assert keeps == {shape}


def test_small_products_are_multiplied_as_ever(calls: list[torch.Size], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "FEWEST", 7 * 20 * 12)
    layer = as_onednn(nn.Linear(20, 12))
    layer(torch.randn(6, 20))
    assert not calls
    layer(torch.randn(7, 20))
    assert len(calls) == 1


def test_compiled_layers_are_left_to_the_compiler(calls: list[torch.Size]) -> None:
    layer, x = as_onednn(nn.Linear(20, 12)), torch.randn(7, 20)
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    assert torch.allclose(compiled(x), layer(x), atol=1e-6)
    assert len(calls) == 1


def test_pieces_of_the_head_have_the_same_bits_with_and_without_gradients(calls: list[torch.Size]) -> None:
    head = as_onednn(nn.Linear(48, 301, bias=False))
    hidden, targets = torch.randn(70, 48), torch.arange(70)
    trained, _ = token_logprobs(head, hidden.clone().requires_grad_(), targets, chunk=32)
    with torch.no_grad():
        scored, _ = token_logprobs(head, hidden, targets, chunk=32)
    assert torch.equal(trained, scored)
    assert len(calls) == 6


def test_bits_do_not_depend_on_the_number_of_threads(calls: list[torch.Size]) -> None:
    layer, x = as_onednn(nn.Linear(128, 384)), torch.randn(900, 128, requires_grad=True)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append([layer(x), *torch.autograd.grad(layer(x).square().sum(), [x, layer.weight])])
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    assert len(calls) == 8


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("lora", "recomputed"), [(None, False), (LoRA(r=2), True)], ids=["whole", "adapters, recomputed"]
)
def test_onednn_run_has_the_weights_of_an_mkl_run(
    tmp_path: Path, calls: list[torch.Size], monkeypatch: pytest.MonkeyPatch, lora: LoRA | None, recomputed: bool
) -> None:
    options = [*runs.UNTAUGHT, "--data.val=null", f"--model.gradient_checkpointing={str(recomputed).lower()}"]
    options += ["--model.lora.r=2"] if lora else []
    fast = runs.fit(tmp_path / "fast", *options)
    assert calls
    policy = load_policy(ModelSettings("tiny-qwen3", lora=lora))
    assert {type(m) for m in policy.modules() if isinstance(m, nn.Linear)} >= {OneDNNLinear}
    monkeypatch.setattr(linear, "prefers_onednn", lambda: False)
    multiplied = len(calls)
    plain = runs.fit(tmp_path / "plain", *options)
    assert len(calls) == multiplied
    assert runs.largest_difference(runs.weights(fast), runs.weights(plain)) < 1e-5
    assert runs.weights(fast).keys() == runs.weights(plain).keys()


def test_the_gradients_of_a_head_tied_to_the_embedding_are_added_in_place(
    calls: list[torch.Size], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transposed gradient would be summed into a third tensor of that size, and copied into a fourth."""
    monkeypatch.setattr(linear, "LARGE", 1)
    embedding, head = nn.Embedding(90, 3), nn.Linear(3, 90, bias=False)
    head.weight = embedding.weight
    as_onednn(head)
    ids, weights = torch.arange(7) * 5, torch.linspace(-1, 1, 630).view(7, 90)
    exact = embedding.weight.detach().double().requires_grad_()
    (nn.functional.linear(exact[ids].tanh(), exact) * weights.double()).sum().backward()
    assert exact.grad is not None
    loss = (head(embedding(ids).tanh()) * weights).sum()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as seen:
        loss.backward()
    assert calls
    whole = [e.key for e in seen.key_averages(group_by_input_shape=True) if [90, 3] in e.input_shapes]
    assert [name for name in whole if name in ("aten::add", "aten::add_", "aten::clone", "aten::copy_")] == [
        "aten::add_"
    ]
    assert head.weight.grad is not None
    assert head.weight.grad.is_contiguous()
    assert float((head.weight.grad.double() - exact.grad).norm() / exact.grad.norm()) < 1e-6
