"""Decoding without the model's own modules: the same logits as theirs, and theirs wherever that is not certain."""

from __future__ import annotations

import logging
import os
import platform
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, inject_adapter_in_model
from torch import Tensor, nn
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)
from transformers.models.llama import modeling_llama

import gspo_lightning
from gspo_lightning.core.randomness import Purpose
from gspo_lightning.core.types import Prompt, SamplingParams
from gspo_lightning.policy.adapters.lora import LoRA, adapters_off, add_adapters
from gspo_lightning.policy.attention import padded_kv_cache as caches
from gspo_lightning.policy.kernels.processor import multiplies_bfloat16
from gspo_lightning.policy.numerics.autocast_weights import in_compute_dtype
from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.tiny import build_tiny_model, character_tokenizer
from gspo_lightning.rollouts import Draws, GroupedSampler
from gspo_lightning.rollouts.sampler import decode_batch, decoding
from gspo_lightning.rollouts.sampler.admission_queue import Prefill
from gspo_lightning.rollouts.sampler.decoding import SharedDecoder, decoder_for
from gspo_lightning.rollouts.sampler.fast_decoder import DirectDecoderLayers
from gspo_lightning.rollouts.sampler.fast_decoder import layers as fast_decoder
from tests.support.model_families import COMMON

GROUPED = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
FAMILIES: dict[str, Callable[[], PreTrainedModel]] = {
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**COMMON | GROUPED)),
    "qwen3, head of its own": lambda: Qwen3ForCausalLM(Qwen3Config(**COMMON | {"tie_word_embeddings": False})),
    "qwen3-moe": lambda: Qwen3MoeForCausalLM(
        Qwen3MoeConfig(
            **COMMON | GROUPED,
            num_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=16,
            mlp_only_layers=[0],
        )
    ),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**COMMON | {"num_key_value_heads": 2})),
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**COMMON | GROUPED)),
    "llama with biases": lambda: LlamaForCausalLM(LlamaConfig(**COMMON, attention_bias=True, mlp_bias=True)),
    "llama with gelu": lambda: LlamaForCausalLM(LlamaConfig(**COMMON, hidden_act="gelu")),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**COMMON | GROUPED, sliding_window=None)),
}


def build(model: PreTrainedModel, dtype: torch.dtype = torch.float32) -> Policy:
    """Weights of which none is 0 or 1: a scale or a bias that is left out shows."""
    draws = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn(weight.shape, generator=draws) * 0.3 + (1.0 if weight.dim() == 1 else 0.0))
    policy = Policy(model.to(dtype).eval(), character_tokenizer())
    policy.packed = True
    return policy


def answers(decoder: Any) -> list[Tensor]:
    """Prompts that join at different times, rows that leave and change places, and more tokens than fit at first."""
    tokens = torch.arange(1, 60)
    found = [decoder.add(Prefill([[3, 5, 7, 11], [2, 4]], [3, 2]))]
    positions = torch.tensor([4, 4, 4, 2, 2])
    for step in range(3):
        found.append(decoder.step(tokens[step : step + 5] % 20, positions + step))
    decoder.keep(torch.tensor([4, 1, 2]))
    found.append(decoder.add(Prefill([[9, 8, 7, 6, 5, 4]], [2])))
    positions = torch.tensor([5, 7, 7, 6, 6])
    for step in range(caches.FIRST + 4):
        found.append(decoder.step(tokens[step : step + 5] % 20, positions + step))
    decoder.keep(torch.tensor([1]))
    found.append(decoder.step(tokens[:1], positions[1:2] + caches.FIRST + 4))
    return found


def whole(policy: Policy) -> list[Tensor]:
    """The same by full forwards, one row at a time."""
    tokens = torch.arange(1, 60)
    rows = [[3, 5, 7, 11], [3, 5, 7, 11], [3, 5, 7, 11], [2, 4], [2, 4]]

    def logits(ids: Sequence[int]) -> Tensor:
        with torch.no_grad():
            return policy.model(torch.tensor([ids]), use_cache=False).logits[0, -1]

    def each(rows: Sequence[Sequence[int]]) -> Tensor:
        return torch.stack([logits(ids) for ids in rows])

    found = [each(rows)]
    for step in range(3):
        rows = [[*ids, int(t)] for ids, t in zip(rows, tokens[step : step + 5] % 20, strict=True)]
        found.append(each(rows))
    rows = [rows[4], rows[1], rows[2], *([9, 8, 7, 6, 5, 4] for _ in range(2))]
    found.append(each(rows[3:]))
    for step in range(caches.FIRST + 4):
        rows = [[*ids, int(t)] for ids, t in zip(rows, tokens[step : step + 5] % 20, strict=True)]
        found.append(each(rows))
    found.append(each([[*rows[1], 1]]))
    return found


@pytest.mark.parametrize("small", [0, 400, 1 << 30])
@pytest.mark.parametrize("family", FAMILIES)
def test_fast_decoder_logits_equal_full_forwards(family: str, small: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caches, "SMALL_PRODUCT", small)
    policy = build(FAMILIES[family]())
    decoder = decoder_for(policy)
    assert isinstance(decoder, SharedDecoder)
    assert decoder.fast_layers is not None
    for ours, theirs in zip(answers(decoder), whole(policy), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.skipif(not fast_decoder.can_pack(), reason="no packed products on this processor")
@pytest.mark.parametrize("family", ["qwen3", "qwen3-moe", "llama with biases"])
def test_large_weights_are_packed_and_give_the_same(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast_decoder, "PACKED", 0)
    policy = build(FAMILIES[family]())
    decoder = SharedDecoder(policy)
    assert decoder.fast_layers is not None
    assert decoder.fast_layers.layers[0].qkv.weight.is_mkldnn
    assert decoder.fast_layers.head.weight.is_mkldnn
    for ours, theirs in zip(answers(decoder), whole(policy), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_under_autocast_products_are_in_its_dtype_and_as_exact_as_the_modules(
    family: str, packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside float64: what is not a product is computed in float32, as in the modules."""
    if packed and not (fast_decoder.can_pack() and multiplies_bfloat16()):
        pytest.skip("no packed products of bfloat16 on this processor")
    monkeypatch.setattr(fast_decoder, "PACKED", 0 if packed else 1 << 40)
    monkeypatch.setattr(fast_decoder, "multiplies_bfloat16", lambda: True)
    policy = build(FAMILIES[family]())
    exact = [logits.log_softmax(-1) for logits in whole(decoding._in_float64(policy))]
    gaps = {}
    with torch.autocast("cpu", torch.bfloat16):
        for by in ("auto", "model"):
            decoder = SharedDecoder(policy, by)  # type: ignore[arg-type]
            assert (decoder.fast_layers is not None) == (by == "auto")
            found = [logits.double().log_softmax(-1) for logits in answers(decoder)]
            gaps[by] = sum(float((a - b).abs().mean()) for a, b in zip(found, exact, strict=True)) / len(exact)
    assert policy.decoding.fast_decoder == {torch.bfloat16: True}
    assert 0 < gaps["auto"] < 1.3 * gaps["model"]


def test_small_adapters_reach_a_decoder_in_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """A weight that was cast has 8 bits: less than a 500th of it is lost if it is added after that."""
    monkeypatch.setattr(fast_decoder, "PACKED", 1 << 40)
    monkeypatch.setattr(fast_decoder, "multiplies_bfloat16", lambda: True)
    policy = build(FAMILIES["llama"]())
    add_adapters(policy.model, LoRA(r=2), seed=0)
    for name, weight in policy.model.named_parameters():
        if "lora_B" in name:
            nn.init.constant_(weight, 2e-4)
    layer = policy.backbone.layers[0].mlp.up_proj  # type: ignore[union-attr]
    merged = (layer.weight + layer.get_delta_weight("default")).bfloat16()
    rounded = layer.weight.bfloat16()
    added_late = (rounded + layer.get_delta_weight("default")).bfloat16()
    assert (merged != added_late).float().mean() > 0.01
    with torch.autocast("cpu", torch.bfloat16), in_compute_dtype(policy) as twin:
        decoder = SharedDecoder(twin)
        assert decoder.fast_layers is not None
        product = decoder.fast_layers.layers[0].mlp.gate_up.weight  # [in, gate and up]
    assert torch.equal(product.t()[len(merged) :], merged)


@pytest.mark.skipif(not fast_decoder.can_pack(), reason="no packed products on this processor")
def test_a_product_is_added_once_to_a_large_residual() -> None:
    """Hidden states of 25,000 occur in models of 135 million weights; partial sums added to them lose digits."""
    linear, x, residual = nn.Linear(1024, 256, bias=False), torch.randn(16, 1024), torch.full((16, 256), 25_000.0)
    product = fast_decoder._product([linear], torch.float32)
    assert product.weight.is_mkldnn
    exact = residual.double() + x.double() @ linear.weight.double().t()
    assert (product.onto(residual, x) - exact).abs().max() <= 25_000 * 2.0**-24 + 1e-5


def test_far_fewer_operators_than_in_the_models_own_modules() -> None:
    """What it is for: operators bound a step of a small model on a CPU."""
    policy = build(FAMILIES["qwen3"]())
    counts = {}
    for by in ("auto", "model"):
        decoder = SharedDecoder(policy, by)  # type: ignore[arg-type]
        decoder.add(Prefill([[3, 5, 7]], [2]))
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as trace:
            decoder.step(torch.tensor([1, 2]), torch.tensor([3, 3]))
        counts[by] = sum(e.count for e in trace.key_averages() if e.key.startswith("aten::"))
    assert counts["auto"] < 0.6 * counts["model"]


def test_weights_are_those_of_the_moment() -> None:
    """They are copied for one rollout; the next one sees what training has made of them."""
    policy = build(FAMILIES["qwen3"]())
    prompts = [Prompt(i, "", (3 + i, 5, 7)) for i in range(3)]
    job: dict[str, Any] = {
        "group_size": 3,
        "sampling": SamplingParams(12, temperature=0.7),
        "draws": Draws.of(0, Purpose.TRAIN_SAMPLING, 0),
    }
    seen = []
    for _ in range(2):
        fast, slow = (
            [r.token_ids.tolist() for g in GroupedSampler(decode=by).generate(policy, prompts, **job) for r in g]
            for by in ("auto", "model")
        )  # type: ignore[arg-type]
        assert fast == slow
        seen.append(fast)
        with torch.no_grad():
            for weight in policy.parameters():
                weight.mul_(1.3).add_(0.05)
    assert seen[0] != seen[1]


def test_draws_ahead_are_the_draws_of_each_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows join, leave and change places in the middle of what was drawn ahead."""
    policy = build(FAMILIES["qwen3"]())
    prompts = [Prompt(i, "", (3 + i, 5, 7)) for i in range(5)]
    found = []
    for ahead in (1, 3, 100):
        monkeypatch.setattr(decode_batch, "AHEAD", ahead)
        groups = GroupedSampler(max_rows=6, compact_at=1e-9).generate(
            policy,
            prompts,
            group_size=3,
            sampling=SamplingParams(25, stop_token_ids=(1, 2, 3)),
            draws=Draws.of(0, Purpose.TRAIN_SAMPLING, 0),
        )
        found.append([r.token_ids.tolist() for g in groups for r in g])
    assert found[0] == found[1] == found[2]
    assert len({len(row) for row in found[0]}) > 4


def changed_class(policy: Policy) -> None:
    class LlamaDecoderLayer(modeling_llama.LlamaDecoderLayer):  # of that name, and yet another model
        def forward(self, *args: Any, **options: Any) -> Any:
            return 1.1 * super().forward(*args, **options)

    for layer in policy.backbone.layers:  # type: ignore[union-attr]
        layer.__class__ = LlamaDecoderLayer


def test_a_model_that_only_looks_known_is_asked_itself(caplog: pytest.LogCaptureFixture) -> None:
    policy = build(FAMILIES["llama"]())
    changed_class(policy)
    with caplog.at_level(logging.WARNING):
        decoder = SharedDecoder(policy)
    assert decoder.fast_layers is None
    assert "goes through the modules of LlamaForCausalLM: without them log-probabilities are off by" in caplog.text
    for ours, theirs in zip(answers(decoder), whole(policy), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    caplog.clear()
    assert SharedDecoder(policy).fast_layers is None
    assert not caplog.text  # said once


def wrapped(policy: Policy) -> None:
    layer = policy.backbone.layers[0].mlp  # type: ignore[union-attr]
    layer.down_proj = nn.Sequential(layer.down_proj)


def test_a_model_whose_parts_have_other_names_is_asked_itself(caplog: pytest.LogCaptureFixture) -> None:
    policy = build(FAMILIES["llama"]())
    del policy.backbone.norm.variance_epsilon  # type: ignore[union-attr]
    with caplog.at_level(logging.WARNING):
        assert SharedDecoder(policy).fast_layers is None
    assert "no attribute 'variance_epsilon'" in caplog.text


def hook(policy: Policy) -> None:
    policy.backbone.layers[1].self_attn.k_proj.register_forward_hook(lambda *_: None)  # type: ignore[union-attr]


def replaced_forward(policy: Policy) -> None:
    layer = policy.backbone.layers[0].mlp  # type: ignore[union-attr]
    layer.forward = lambda x: x


def half(policy: Policy) -> None:
    policy.model.to(torch.bfloat16)


def merged_adapters(policy: Policy) -> None:
    add_adapters(policy.model, LoRA(r=2), seed=0)
    policy.backbone.layers[0].mlp.down_proj.merge()  # type: ignore[union-attr]


def adapters_with_dropout(policy: Policy) -> None:
    config = LoraConfig(r=2, lora_dropout=0.5, target_modules="all-linear")
    inject_adapter_in_model(config, policy.model)


def adapters_of_another_kind(policy: Policy) -> None:
    inject_adapter_in_model(LoraConfig(r=2, use_dora=True, target_modules="all-linear"), policy.model)


@pytest.mark.parametrize(
    "change",
    [hook, replaced_forward, half, merged_adapters, adapters_with_dropout, adapters_of_another_kind, wrapped],
)
def test_fast_decoder_is_not_used_with_hooked_or_changed_modules(
    change: Callable[[Policy], None], caplog: pytest.LogCaptureFixture
) -> None:
    policy = build(FAMILIES["llama"]())
    change(policy)
    with caplog.at_level(logging.WARNING):
        assert SharedDecoder(policy).fast_layers is None
    assert "decoding" not in caplog.text  # nothing is wrong


@pytest.mark.thorough
def test_adapters_are_added_to_the_copies_as_they_are_now() -> None:
    policy = build(FAMILIES["llama with biases"]())
    add_adapters(policy.model, LoRA(r=2), seed=0)
    for turn in range(2):
        with torch.no_grad():
            for name, weight in policy.named_parameters():
                if "lora_B" in name:
                    weight.add_(0.004 + 0.004 * turn)
        found = answers(SharedDecoder(policy))
        for ours, theirs in zip(found, whole(policy), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
        with adapters_off(policy.model):
            decoder = SharedDecoder(policy)
            assert decoder.fast_layers is not None
            base = answers(decoder)
            for ours, theirs in zip(base, whole(policy), strict=True):
                torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
        assert (base[-1] - found[-1]).abs().max() > 0.01


def test_fast_decoder_is_not_used_for_unknown_families_and_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    gemma = Gemma3ForCausalLM(Gemma3TextConfig(**COMMON, query_pre_attn_scalar=8))
    sliding = MistralForCausalLM(MistralConfig(**COMMON, sliding_window=100))
    for model in (gemma, sliding):
        assert SharedDecoder(build(model)).fast_layers is None
    policy = build(FAMILIES["llama"]())
    with monkeypatch.context() as patch:
        patch.setattr(fast_decoder, "multiplies_bfloat16", lambda: False)
        with torch.autocast("cpu", torch.bfloat16):
            assert SharedDecoder(policy).fast_layers is None
    with torch.autocast("cpu", torch.float16):
        assert SharedDecoder(policy).fast_layers is None
    monkeypatch.setattr(fast_decoder, "LARGEST_COPY", sum(p.nbytes for p in policy.parameters()) // 2)
    assert SharedDecoder(policy).fast_layers is None


def test_the_router_of_a_mixture_is_still_called_as_a_module() -> None:
    """Routing Replay and router metrics listen to it."""
    policy = Policy(build_tiny_model("tiny-qwen3-moe", 0).eval(), character_tokenizer())
    policy.packed = True
    called = []
    policy.backbone.layers[0].mlp.gate.register_forward_hook(lambda *_: called.append(1))  # type: ignore[union-attr]
    decoder = SharedDecoder(policy)
    assert decoder.fast_layers is not None
    decoder.add(Prefill([[3, 5, 7]], [2]))
    called.clear()
    decoder.step(torch.tensor([1, 2]), torch.tensor([3, 3]))
    assert called == [1]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_form_for_other_devices_gives_what_the_modules_give(family: str) -> None:
    """It is never chosen on a CPU (tests/device has the choice), but it computes there, too."""
    policy = build(FAMILIES[family]())
    direct = SharedDecoder(policy, "model")
    direct.fast_layers = DirectDecoderLayers(policy)
    for mine, theirs in zip(answers(direct), answers(SharedDecoder(policy, "model")), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
    assert DirectDecoderLayers.of(policy) is None


def test_the_form_for_other_devices_rounds_under_autocast_as_the_modules_do() -> None:
    policy = build(FAMILIES["qwen3"]())
    direct = SharedDecoder(policy, "model")
    with torch.autocast("cpu", torch.bfloat16):
        direct.fast_layers = DirectDecoderLayers(policy)
        mine, theirs = answers(direct), answers(SharedDecoder(policy, "model"))
        limit = decoding.rounding(policy)
    gaps = [
        (a.float().log_softmax(-1) - b.float().log_softmax(-1)).abs().mean() for a, b in zip(mine, theirs, strict=True)
    ]
    assert 0 < max(gaps) < limit < 0.4


def test_a_word_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="decode must be one of auto, model, got 'fast'"):
        GroupedSampler(decode="fast")  # type: ignore[arg-type]


def test_the_tolerance_is_what_rounding_does_to_the_model_in_its_dtype() -> None:
    """A model of hidden states in the thousands moves by more than 1e-4 in float32 and is right nevertheless."""
    policy = build(FAMILIES["llama"]())
    exact = decoding.rounding(policy)
    assert 1e-5 < exact < 1e-3
    with torch.autocast("cpu", torch.bfloat16):
        assert decoding.rounding(policy) > 100 * exact
    assert policy.decoding.rounding.keys() == {torch.float32, torch.bfloat16}
    loud = build(FAMILIES["llama"]())
    with torch.no_grad():
        loud.model.get_output_embeddings().weight.mul_(300.0)
    assert decoding.rounding(loud) > 1e-4
    assert SharedDecoder(loud).fast_layers is not None


@pytest.mark.parametrize("family", ["llama", "qwen3-moe"])
def test_float64_decides_what_the_yardstick_leaves_open(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of a processor with AMX differ by more than one rounding explains, and are no further from the truth."""
    monkeypatch.setattr(decoding, "rounding", lambda policy: 0.0)
    monkeypatch.setattr(decoding, "AS_EXACT", 4.0)
    policy = build(FAMILIES[family]())
    before = {name: p.detach().clone() for name, p in policy.named_parameters()}
    assert SharedDecoder(policy).fast_layers is not None
    assert all(torch.equal(p, before[name]) and p.dtype == torch.float32 for name, p in policy.named_parameters())
    if family == "llama":
        wrong = build(FAMILIES[family]())
        changed_class(wrong)
        assert SharedDecoder(wrong).fast_layers is None


def test_the_rest_of_the_package_knows_its_interface_only() -> None:
    package = Path(gspo_lightning.__file__).parent
    folder = package / "rollouts" / "sampler" / "fast_decoder"
    outside = [f for f in package.rglob("*.py") if not f.is_relative_to(folder)]
    assert not [f for f in outside if re.search(r"sampler\.fast_decoder\.\w", f.read_text(encoding="utf-8"))]
    names = [
        n for f in outside for n in re.findall(r"sampler\.fast_decoder import (.+)", f.read_text(encoding="utf-8"))
    ]
    assert sorted(names) == [
        "DecoderTwin, Pieces, can_compile, compiled_pieces",
        "DirectDecoderLayers, FastDecoderLayers, fast_decoder_layers",
        "LARGEST_COPY",
        "may_be_copied",
    ]


def resident() -> int:
    """Bytes of this process in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.thorough
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library decides itself what it keeps")
def test_the_copies_of_a_large_model_are_given_back_after_a_rollout() -> None:
    """109 MiB in blocks of 1 to 6, which glibc would keep; the gradients that come next are as large."""
    sizes = {"hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 8, "num_attention_heads": 8}
    model = LlamaForCausalLM(LlamaConfig(**COMMON | sizes | {"num_key_value_heads": 8, "head_dim": 64})).eval()
    policy = Policy(model, character_tokenizer())
    policy.packed = True
    size = sum(weight.nbytes for weight in model.parameters())
    prompts = [Prompt(0, "", (3, 4, 5))]
    before = resident()
    draws = Draws.of(0, Purpose.TRAIN_SAMPLING, 0)
    GroupedSampler().generate(policy, prompts, group_size=2, sampling=SamplingParams(3), draws=draws)
    assert policy.decoding.fast_decoder[torch.float32]
    assert resident() - before < size / 3
