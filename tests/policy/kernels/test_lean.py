"""Norms and gated MLPs that keep fewer activations: the bits of the modules' own, gradients as exact as theirs."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from peft import LoraConfig, inject_adapter_in_model
from torch import Tensor, nn
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    SmolLM3Config,
    SmolLM3ForCausalLM,
)

from gspo_lightning.policy.kernels import lean, linear
from gspo_lightning.policy.kernels.lean import use_cpu_kernels, use_lean_modules
from gspo_lightning.rollouts.sampler.fast_decoder.layers import can_pack

SIZES: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": None,
}  # fmt: skip
FAMILIES: dict[str, Callable[[], PreTrainedModel]] = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, mlp_bias=True)),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**SIZES)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES)),
    "smollm3": lambda: SmolLM3ForCausalLM(SmolLM3Config(**SIZES)),
}
IDS = (torch.arange(34) * 7 % 61 + 2).view(2, 17)


def build(family: str) -> PreTrainedModel:
    """A small model whose norms are not all ones."""
    torch.manual_seed(3)
    model = FAMILIES[family]()
    for name, weight in model.named_parameters():
        if "norm" in name:
            nn.init.normal_(weight, 1.0, 0.2)
    return model


def gradients(model: nn.Module) -> tuple[Tensor, list[Tensor]]:
    """Logits, and gradients of a fixed sum of them."""
    logits = model(IDS).logits
    weights = torch.linspace(-1, 1, logits.numel(), dtype=torch.float64).view_as(logits)
    trained = [p for p in model.parameters() if p.requires_grad]
    return logits.detach(), list(torch.autograd.grad((logits.double() * weights).sum(), trained))


def off(found: list[Tensor], exact: list[Tensor]) -> float:
    """Relative L2 of a whole gradient from another."""
    distance = sum(float((a.double() - b.double()).square().sum()) for a, b in zip(found, exact, strict=True))
    return float((distance / sum(float(b.double().square().sum()) for b in exact)) ** 0.5)


def in_float64(model: PreTrainedModel) -> PreTrainedModel:
    """A copy in float64, norms included, which transformers computes in float32."""
    exact = copy.deepcopy(model).double()
    for module in exact.modules():
        if type(module).__name__.endswith("RMSNorm"):
            weight, eps = module.weight, module.variance_epsilon
            module.forward = lambda x, w=weight, e=eps: nn.functional.rms_norm(x, w.shape, w, e)  # type: ignore
    return exact


@contextmanager
def kept_bytes() -> Iterator[list[int]]:
    """Bytes of the distinct storages that autograd keeps inside."""
    total, storages = [0], set[int]()

    def pack(x: Tensor) -> Tensor:
        if not isinstance(x, nn.Parameter) and (place := x.untyped_storage().data_ptr()) not in storages:
            storages.add(place)
            total[0] += x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        yield total


@pytest.mark.parametrize("family", FAMILIES)
def test_values_have_the_bits_of_the_modules_own_and_gradients_are_as_exact(family: str) -> None:
    own = build(family)
    ours, exact = copy.deepcopy(own), gradients(in_float64(own))[1]
    use_lean_modules(ours)
    assert type(ours.model.norm) is not type(own.model.norm)
    (values, found), (expected, theirs) = gradients(ours), gradients(own)
    assert torch.equal(values, expected)
    assert off(found, exact) <= 1.2 * off(theirs, exact) + 1e-8
    assert off(found, exact) < 2e-6


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_bfloat16_rounds_where_the_modules_do(family: str) -> None:
    own = build(family)
    ours = copy.deepcopy(own)
    use_lean_modules(ours)
    with torch.autocast("cpu", torch.bfloat16):
        (values, found), (expected, theirs) = gradients(ours), gradients(own)
    assert torch.equal(values, expected)
    assert off(found, theirs) < 1e-6


@pytest.mark.skipif(not can_pack(), reason="oneDNN's products are used on x86 only")
def test_a_product_through_onednn_is_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "FEWEST", 1)
    monkeypatch.setattr(linear, "prefers_onednn", lambda: True)
    own = build("llama")
    exact = gradients(in_float64(own))[1]
    linear.use_onednn(own)
    ours = copy.deepcopy(own)
    use_cpu_kernels(ours)
    (values, found), (expected, _) = gradients(ours), gradients(own)
    assert torch.equal(values, expected)
    assert off(found, exact) < 2e-6


def test_fewer_bytes_are_kept() -> None:
    own = build("llama")
    ours = copy.deepcopy(own)
    use_lean_modules(ours)
    kept = []
    for model in (own, ours):
        with kept_bytes() as total:
            gradients(model)
        kept.append(total[0])
    assert kept[1] < 0.72 * kept[0]


def test_hooks_and_adapters_of_the_last_product_see_its_input() -> None:
    own = build("llama")
    config = LoraConfig(r=4, lora_alpha=8, target_modules=["down_proj", "gate_proj"], init_lora_weights=False)
    torch.manual_seed(5)
    inject_adapter_in_model(config, own)
    ours = copy.deepcopy(own)
    use_lean_modules(ours)
    (values, found), (expected, theirs) = gradients(ours), gradients(own)
    assert torch.equal(values, expected)
    assert off(found, theirs) < 1e-6
    plain = build("llama")
    use_lean_modules(plain)
    shapes: list[torch.Size] = []
    down = plain.model.layers[0].mlp.down_proj
    handle = down.register_forward_hook(lambda _, inputs, __: shapes.append(inputs[0].shape))
    gradients(plain)
    handle.remove()
    assert shapes == [torch.Size([2, 17, 192])]


def test_without_gradients_and_for_other_activations_the_modules_compute_themselves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def never(*_: Any) -> Any:
        raise AssertionError("a function with a gradient of its own")

    for name in ("_Gated", "_GatedProduct"):
        monkeypatch.setattr(getattr(lean, name), "apply", never)
    model = build("llama")
    use_lean_modules(model)
    with torch.no_grad():
        model(IDS)
    for layer in model.model.layers:
        layer.mlp.act_fn = nn.GELU()
    gradients(model)


def test_classes_keep_their_names_and_twice_is_once() -> None:
    model = build("qwen3")
    names = [type(module).__name__ for module in model.modules()]
    use_lean_modules(model)
    kinds = [type(module) for module in model.modules()]
    use_lean_modules(model)
    assert [kind.__name__ for kind in kinds] == names
    assert [type(module) for module in model.modules()] == kinds
    assert copy.deepcopy(model)(IDS).logits.shape == (2, 17, 64)


def test_a_class_of_somebody_else_stays() -> None:
    class LlamaMLP(nn.Module):
        """Not transformers'."""

    model = nn.Sequential(LlamaMLP())
    use_lean_modules(model)
    assert type(model[0]) is LlamaMLP
