"""The mask of the CUDA kernel, run without compiling: values of dense attention, and no block that is seen left out.

Gradients and compiled kernels exist on CUDA only; there ``check_attention`` compares them before every run.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_mask

from gspo_lightning.policy.attention import UnsupportedAttentionError, check_attention, flex, plans
from gspo_lightning.policy.attention.flex import BLOCK, FlexPlan
from gspo_lightning.policy.attention.plans import PrefixPlan, dense_attention

Places = tuple[list[tuple[int, int]], list[tuple[int, int, int, int]]]
PREFIXES = {"behind a prefix": 200, "behind a prefix of a block": 256}
"""Tokens of the first segment of some cases that all others see."""

CASES: dict[str, Places] = {
    "one prompt, no response": ([(0, 5)], []),
    "small": ([(0, 2), (2, 1), (3, 2), (5, 1)], [(3, 2, 0, 2), (5, 1, 2, 1)]),
    "exactly a block": ([(0, 64), (64, 64)], [(64, 64, 0, 64)]),
    "a long prompt": ([(0, 300), (300, 70), (370, 30)], [(300, 100, 0, 300)]),
    "many": (
        [(0, 200), (200, 150), (350, 140), (490, 60), (550, 1), (551, 90)],
        [(350, 200, 0, 200), (550, 91, 200, 150)],
    ),
    "behind a prefix": (
        [(0, 200), (200, 150), (350, 9), (359, 140), (499, 60), (559, 1), (560, 90)],
        [(359, 200, 200, 150), (559, 91, 350, 9)],
    ),
    "behind a prefix of a block": ([(0, 256), (256, 128), (384, 128), (512, 256)], [(512, 256, 384, 128)]),
}


PICTURES = [(2, 9), (100, 64), (230, 110)]
"""Tokens of "many" that see each other: within a block of the kernel, and over its edges."""


@pytest.mark.thorough("a long prompt-heads0")
@pytest.mark.parametrize("heads", [(4, 4), (4, 2)])
@pytest.mark.parametrize("case", CASES)
def test_values_are_those_of_dense_attention(case: str, heads: tuple[int, int]) -> None:
    places, prefix = CASES[case], PREFIXES.get(case, 0)
    tokens = sum(n for _, n in places[0])
    draws = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(tokens, h, 16, generator=draws) for h in (heads[0], heads[1], heads[1]))
    plan = FlexPlan(*places, tokens, torch.device("cpu"), prefix=prefix)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is not compiled
        ours = plan.attend(0, query, key, value, 0.3)
    expected = dense_attention(*places, query, key, value, 0.3, prefix=prefix)
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-5)


def test_tokens_of_a_picture_see_each_other() -> None:
    draws = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(641, h, 16, generator=draws) for h in (4, 2, 2))
    plan = FlexPlan(*CASES["many"], 641, torch.device("cpu"), PICTURES)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ours = plan.attend(0, query, key, value, 0.3)
    expected = dense_attention(*CASES["many"], query, key, value, 0.3, PICTURES)
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-5)
    assert (expected - dense_attention(*CASES["many"], query, key, value, 0.3)).abs().max() > 0.1


@pytest.mark.parametrize("pictures", [[], PICTURES], ids=["text", "pictures"])
@pytest.mark.parametrize("case", CASES)
def test_every_block_that_a_token_sees_is_listed(case: str, pictures: list[tuple[int, int]]) -> None:
    """Compiled kernels visit listed blocks only; the uncompiled form does not look at the list."""
    places, prefix = CASES[case], PREFIXES.get(case, 0)
    inside = [p for p in pictures if any(s <= p[0] and sum(p) <= s + n for s, n in places[0])]
    mask = FlexPlan(*places, 1000, torch.device("cpu"), inside, prefix).mask
    size = mask.seq_lengths[0]
    seen: Tensor = create_mask(mask.mask_mod, 1, 1, size, size, device="cpu")[0, 0]
    blocks = seen.view(size // BLOCK, BLOCK, -1, BLOCK).transpose(1, 2).flatten(2).any(-1)
    listed = mask.to_dense()[0, 0].bool()
    assert not (blocks & ~listed).any()
    assert bool(seen.any(-1).all())  # padding, too: a softmax over nothing is NaN


def test_blocks_that_nobody_sees_are_left_out() -> None:
    """Eight responses of 512 tokens to one prompt of 512: each sees the prompt and itself."""
    segments = [(512 * i, 512) for i in range(9)]
    mask = FlexPlan(segments, [(512, 8 * 512, 0, 512)], 1024, torch.device("cpu")).mask
    assert mask.full_kv_num_blocks is not None
    whole = 6 + 8 * (6 + 16)  # below the diagonal of each segment, and the prompt of each response
    assert int(mask.full_kv_num_blocks.sum()) == whole
    assert int(mask.kv_num_blocks.sum()) == 9 * 4  # the diagonals
    assert whole / (whole + 9 * 4) > 0.8


@pytest.mark.parametrize("pictures", [[], PICTURES], ids=["text", "pictures"])
@pytest.mark.parametrize("case", CASES)
def test_a_block_without_a_mask_is_seen_as_a_whole_and_listed_once(case: str, pictures: list[tuple[int, int]]) -> None:
    places, prefix = CASES[case], PREFIXES.get(case, 0)
    inside = [p for p in pictures if any(s <= p[0] and sum(p) <= s + n for s, n in places[0])]
    mask = FlexPlan(*places, 1000, torch.device("cpu"), inside, prefix).mask
    size = mask.seq_lengths[0]
    seen: Tensor = create_mask(mask.mask_mod, 1, 1, size, size, device="cpu")[0, 0]
    whole = seen.view(size // BLOCK, BLOCK, -1, BLOCK).transpose(1, 2).flatten(2).all(-1)
    assert mask.full_kv_num_blocks is not None
    assert mask.full_kv_indices is not None
    for row in range(size // BLOCK):
        partial = mask.kv_indices[0, 0, row, : mask.kv_num_blocks[0, 0, row]].tolist()
        full = mask.full_kv_indices[0, 0, row, : mask.full_kv_num_blocks[0, 0, row]].tolist()
        assert len({*partial, *full}) == len(partial) + len(full)
        assert all(whole[row, block] for block in full)


def test_a_kernel_that_is_wrong_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    check_attention(cpu, (4, 2), 16, torch.float32)
    check_attention(cpu, (4, 2), 16, torch.bfloat16)

    class Causal(PrefixPlan):
        """Forgets the prompts."""

        def __init__(self, segments: list[tuple[int, int]], crossings: object, *rest: object) -> None:
            super().__init__(segments, [], *rest)

    monkeypatch.setattr(plans, "PrefixPlan", Causal)
    with pytest.raises(UnsupportedAttentionError, match="an attention kernel whose values are off by"):
        check_attention(cpu, (4, 2), 16, torch.float32)

    class Inexact(PrefixPlan):
        """Right values, wrong gradients."""

        def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
            out = super().attend(layer, query, key, value, scaling)
            return out + (query - query.detach()).sum(1, keepdim=True)

    monkeypatch.setattr(plans, "PrefixPlan", Inexact)
    with pytest.raises(UnsupportedAttentionError, match="gradients of queries are off by"):
        check_attention(cpu, (4, 2), 16, torch.float32)


def test_other_devices_have_no_kernel() -> None:
    with pytest.raises(UnsupportedAttentionError, match="'mps', which has no kernel for it yet"):
        plans.attention_plan([(0, 2)], [], 2, torch.device("mps"))


def test_a_pytorch_without_the_argument_gets_the_limit_for_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch 2.11 has no ``recompile_limit`` in ``torch.compile``: eight kernels would be an error."""

    def compile_of_2_11(model: Callable[..., Any], *, fullgraph: bool, dynamic: bool) -> Callable[..., Any]:
        return model

    monkeypatch.setattr(torch, "compile", compile_of_2_11)
    with torch._dynamo.config.patch(recompile_limit=8):
        flex.compiled()
        assert torch._dynamo.config.recompile_limit == flex.LIMIT
