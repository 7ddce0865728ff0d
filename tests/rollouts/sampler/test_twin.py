"""One copy of the weights for decoding: what the modules compute, refilled in place, bit for bit."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from gspo_lightning.policy.adapters.lora import LoRA, add_adapters
from gspo_lightning.policy.attention.span_cache import SpanCache
from gspo_lightning.policy.attention.spans import attend_by_definition
from gspo_lightning.policy.policy import Policy
from gspo_lightning.rollouts.sampler.fast_decoder import twin as twins
from gspo_lightning.rollouts.sampler.fast_decoder.twin import DecoderTwin
from tests.rollouts.sampler.test_fast_decoder import FAMILIES, build, whole

DENSE = [name for name in FAMILIES if name != "qwen3-moe"]


def answers(twin: DecoderTwin) -> list[Tensor]:
    """As in test_fast_decoder: rows join, leave and change places; all of them in one batch."""
    cache = SpanCache(torch.device("cpu"), 8, attend_by_definition)
    tokens = torch.arange(1, 60)

    def add(contexts: list[list[int]], rows: list[int]) -> Tensor:
        cache.enter([len(c) for c in contexts], rows, [50] * sum(rows))
        packed = torch.tensor([t for c in contexts for t in c])
        positions = torch.cat([torch.arange(len(c)) for c in contexts])
        last = torch.tensor([len(c) for c in contexts]).cumsum(0) - 1
        hidden = twin.hidden(packed, positions, cache, prefill=True)[last]
        return twin.head(hidden.repeat_interleave(torch.tensor(rows), dim=0))

    def step(ids: Tensor, positions: Tensor) -> Tensor:
        cache.write()
        logits = twin.head(twin.hidden(ids, positions, cache, prefill=False))
        cache.advance(torch.ones(len(ids), dtype=torch.int32))
        return logits

    with torch.inference_mode():
        found = [add([[3, 5, 7, 11], [2, 4]], [3, 2])]
        positions = torch.tensor([4, 4, 4, 2, 2])
        found += [step(tokens[i : i + 5] % 20, positions + i) for i in range(3)]
        cache.keep(torch.tensor([4, 1, 2]))
        found.append(add([[9, 8, 7, 6, 5, 4]], [2]))
        positions = torch.tensor([5, 7, 7, 6, 6])
        found += [step(tokens[i : i + 5] % 20, positions + i) for i in range(36)]
        cache.keep(torch.tensor([1]))
        found.append(step(tokens[:1], positions[1:2] + 36))
    return found


def copies(twin: DecoderTwin) -> list[Tensor]:
    return [view.clone() for view, _ in twin._pairs]


@pytest.mark.thorough("llama with gelu", "mistral", "qwen2", "qwen3", "qwen3, head of its own")
@pytest.mark.parametrize("family", DENSE)
def test_decoder_twin_logits_equal_full_forwards(family: str) -> None:
    policy = build(FAMILIES[family]())
    for ours, theirs in zip(answers(DecoderTwin(policy, torch.float32)), whole(policy), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.thorough
def test_adapters_are_merged_in_float32_and_follow_the_policy() -> None:
    policy = build(FAMILIES["qwen3"]())
    add_adapters(policy.model, LoRA(r=2), seed=0)
    twin = DecoderTwin(policy, torch.float32)
    addresses = [view.data_ptr() for view, _ in twin._pairs]
    for turn in range(2):
        with torch.no_grad():
            for name, weight in policy.named_parameters():
                if "lora_B" in name:
                    weight.add_(0.004 + 0.004 * turn)
        twin.fill(policy)
        for ours, theirs in zip(answers(twin), whole(policy), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    assert [view.data_ptr() for view, _ in twin._pairs] == addresses

    layer: Any = policy.backbone.layers[0]  # type: ignore[union-attr,index]
    up: Any = layer.mlp.up_proj
    delta = up.lora_B["default"].weight @ up.lora_A["default"].weight * up.scaling["default"]
    with torch.autocast("cpu", torch.bfloat16):  # in which the factors' product would be rounded before it is added
        half = DecoderTwin(policy, torch.bfloat16)
    wanted = (up.weight + delta).to(torch.bfloat16)
    torch.testing.assert_close(half.layers[0].gate_up.weight[up.out_features :], wanted, rtol=0, atol=0)


@pytest.mark.parametrize("adapters", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_refilled_copy_has_the_bits_of_a_fresh_one(adapters: bool, dtype: torch.dtype) -> None:
    """A run that is resumed makes its copy anew; one that went on has refilled it many times."""
    policy = build(FAMILIES["llama with biases"]())
    if adapters:
        add_adapters(policy.model, LoRA(r=2), seed=0)
    twin = DecoderTwin(policy, dtype)
    before = copies(twin)
    for _ in range(3):
        with torch.no_grad():
            for weight in policy.parameters():
                weight.mul_(1.01).add_(0.003)
        twin.fill(policy)
    resumed = Policy(copy.deepcopy(policy.model), policy.tokenizer)
    fresh = DecoderTwin(resumed, dtype)
    assert all(torch.equal(a, b) for a, b in zip(copies(twin), copies(fresh), strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(copies(twin)[:-1], before[:-1], strict=True))


def test_decoder_twin_takes_the_bytes_of_products_in_compute_dtype() -> None:
    policy = build(FAMILIES["llama"]())
    twin = DecoderTwin(policy, torch.bfloat16)
    small = sum(p.nbytes for n, p in policy.model.named_parameters() if "norm" in n) + twin.inv_freq.nbytes
    products = sum(module.weight.numel() for module in policy.modules() if isinstance(module, torch.nn.Linear))
    assert twin.nbytes == 2 * products + small  # the embedding is read in place, in its own dtype


def test_decoder_twin_says_why_a_model_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = build(FAMILIES["llama"]())
    assert DecoderTwin.why_not(policy) == "a CPU"
    monkeypatch.setattr(twins, "HOST", "nowhere")
    assert DecoderTwin.why_not(policy) is None
    assert DecoderTwin.why_not(build(FAMILIES["qwen3-moe"]())) == "layers of Qwen3MoeModel"
    handle = policy.backbone.layers[0].mlp.register_forward_hook(print)  # type: ignore[union-attr,index]
    assert DecoderTwin.why_not(policy) == "a hook or a patch"
    handle.remove()
    policy.backbone.rotary_emb.rope_type = "dynamic"  # type: ignore[union-attr,assignment]
    assert "depends on the length" in str(DecoderTwin.why_not(policy))
