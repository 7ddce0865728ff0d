"""A cache that grows in place holds what transformers' own does, whatever its layers are and whichever rows go on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import DynamicCache

from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.tiny import character_tokenizer
from gspo_lightning.rollouts.sampler import preallocated_cache as module
from gspo_lightning.rollouts.sampler.admission_queue import Prefill
from gspo_lightning.rollouts.sampler.decoding import PaddedDecoder
from gspo_lightning.rollouts.sampler.preallocated_cache import (
    FIRST,
    PreallocatedTensor,
    cache_argument,
    only_states,
    preallocated_cache,
)
from tools.models import tiny

FAMILIES = {
    "qwen3": {"PreallocatedDynamicLayer"},
    "bloom": {"PreallocatedDynamicLayer"},  # positions by ALiBi
    "deepseek_v3": {"PreallocatedDynamicLayer"},  # values are narrower than keys
    "gemma3_text": {"PreallocatedDynamicLayer", "PreallocatedDynamicSlidingWindowLayer"},
    "gpt_oss": {"PreallocatedDynamicLayer", "PreallocatedDynamicSlidingWindowLayer"},
    "llama4_text": {"PreallocatedDynamicLayer", "PreallocatedDynamicSlidingWindowLayer"},  # chunks
    "glm_moe_dsa": {"PreallocatedDynamicIndexedLayer"},
    "qwen3_next": {"PreallocatedDynamicLayer", "LinearAttentionLayer"},
    "falcon_h1": {"PreallocatedLinearAttentionAndFullAttentionLayer"},
    "lfm2": {"PreallocatedDynamicLayer", "LinearAttentionLayer"},
}
"""Model type -> the kinds of its layers."""
QUICK = ("gemma3_text", "glm_moe_dsa", "qwen3_next")
WIDTHS, ROWS, STEPS = (9, 2, 14), (2, 1, 3), FIRST + 10
KEPT = {3: [5, 0, 3, 2], 6: [1, 2]}
"""Before that step rows end, and the others change places; then there are enough steps for what is there to move."""


@torch.inference_mode()
def decoded(policy: Policy) -> tuple[list[Tensor], set[str]]:
    """Logits of every step for fixed tokens, and the kinds of layers."""
    decoder = PaddedDecoder(policy)
    logits = [
        decoder.add(Prefill([[(5 * t + i) % 30 + 3 for t in range(width)] for i, width in enumerate(WIDTHS)], ROWS))
    ]
    tokens, positions = torch.arange(6), torch.tensor(WIDTHS).repeat_interleave(torch.tensor(ROWS))
    for step in range(STEPS):
        if step in KEPT:
            keep = torch.tensor(KEPT[step])
            decoder.keep(keep)
            tokens, positions = tokens[keep], positions[keep]
        logits.append(decoder.step((tokens + step) % 28 + 3, positions + step))
    return logits, {type(layer).__name__ for layer in decoder.cache.layers}


@pytest.mark.thorough("glm_moe_dsa", "qwen3_next")
@pytest.mark.parametrize("family", [pytest.param(f, marks=() if f in QUICK else pytest.mark.long) for f in FAMILIES])
def test_every_step_is_that_of_transformers_cache(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = Policy(tiny.build(family), character_tokenizer()).eval()
    found, kinds = decoded(policy)
    assert kinds == FAMILIES[family]
    monkeypatch.setattr(PaddedDecoder, "new_cache", lambda self: DynamicCache(config=self.policy.model.config))
    wanted, theirs = decoded(policy)
    assert not any(name.startswith("Preallocated") for name in theirs)
    for mine, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=2e-6)


def forgotten(self: PreallocatedTensor, held: Tensor, new: Tensor, window: int | None = None) -> tuple[Tensor, Tensor]:
    """Loses the oldest token when it moves."""
    before = self._store
    full, kept = EXTENDED(self, held, new, window)
    if self._store is not before and before is not None:
        full[..., 0, :] = 0
    return full, kept


EXTENDED = PreallocatedTensor.extended


def test_comparison_detects_a_cache_that_forgets(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison above can fail."""
    policy = Policy(tiny.build("qwen3"), character_tokenizer()).eval()
    wanted, _ = decoded(policy)
    monkeypatch.setattr(PreallocatedTensor, "extended", forgotten)
    found, _ = decoded(policy)
    assert max(float((a - b).abs().max()) for a, b in zip(found, wanted, strict=True)) > 1e-4


def pieces(*sizes: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(2, 3, size, 4, generator=generator) for size in sizes]


@pytest.mark.parametrize("window", [None, 1, 2, 5, 40])
@pytest.mark.parametrize("sizes", [(1,) * 150, (7, *(1,) * 60), (90, 1, 1, 30, 1, 2, *(1,) * 70)])
def test_preallocated_cache_equals_torch_cat(sizes: tuple[int, ...], window: int | None) -> None:
    grown, held, whole = PreallocatedTensor(), torch.tensor([]), torch.zeros(2, 3, 0, 4)
    for new in pieces(*sizes):
        seen = whole if window is None else whole[:, :, max(0, whole.shape[2] - (window - 1)) :]
        full, held = grown.extended(held, new, window)
        assert torch.equal(full, torch.cat([seen, new], dim=2))
        whole = torch.cat([whole, new], dim=2)


def test_tokens_are_written_into_place_and_moved_seldom() -> None:
    grown, held, places = PreallocatedTensor(), torch.tensor([]), []
    for new in pieces(*(1,) * 2000):
        full, held = grown.extended(held, new)
        places.append(full.data_ptr())
    assert len(set(places)) < 40  # 33, 66, 99 ..., from 256 on by an eighth
    assert grown._store is not None
    assert grown._store.shape[2] <= 1.125 * 2000 + FIRST


@pytest.mark.parametrize("change", [lambda x: x[[1, 0]], lambda x: x[:, :, :-3], lambda x: x.double()])
def test_preallocated_cache_grows_from_a_replaced_tensor(change: Callable[[Tensor], Tensor]) -> None:
    """Rows that were selected, tokens that were taken back, another precision."""
    (first, new, last), grown = pieces(6, 1, 1), PreallocatedTensor()
    _, held = grown.extended(torch.tensor([]), first)
    changed = change(held)
    full, held = grown.extended(changed, new)
    assert torch.equal(full, torch.cat([changed, new], dim=2))
    full, _ = grown.extended(held, last)
    assert torch.equal(full, torch.cat([changed, new, last], dim=2))


def test_layers_that_are_not_known_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    config: Any = tiny.tiny_config("gemma3_text")
    kinds = {kind: own for kind, own in module.KINDS.items() if kind.__name__ == "DynamicLayer"}
    monkeypatch.setattr(module, "KINDS", kinds)
    found = {type(layer).__name__ for layer in preallocated_cache(config).layers}
    assert found == {"PreallocatedDynamicLayer", "DynamicSlidingWindowLayer"}


@pytest.mark.parametrize(("family", "states"), [("llama", False), ("mamba", True), ("qwen3_next", False)])
def test_a_model_takes_its_cache_by_the_name_that_this_transformers_has(family: str, states: bool) -> None:
    """Any other name would vanish among the keyword arguments of some models, which then begin again at every token."""
    model = tiny.build(family).base_model
    cache = DynamicCache(config=model.config)
    name = cache_argument(model)
    with torch.no_grad():
        out = model(torch.ones(1, 3, dtype=torch.int64), use_cache=True, **{name: cache})
    assert out[name] is cache
    assert only_states(cache) is states


def test_code_that_comes_with_a_checkpoint_keeps_the_name_it_was_written_for() -> None:
    class Older(nn.Module):
        def forward(self, input_ids: Tensor, past_key_values: Any = None, **options: Any) -> Any: ...

    assert cache_argument(Older()) == "past_key_values"
