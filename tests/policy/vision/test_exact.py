"""Rows with pictures: the same log-probabilities and gradients as transformers gives a row alone, in both layouts."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

import pytest
import torch
from PIL import Image
from torch import Tensor

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.pictures import Picture
from gspo_lightning.core.types import FinishReason, MicroBatch, Prompt, Rollout
from gspo_lightning.policy.load.loading import load_policy
from gspo_lightning.policy.load.model_settings import ModelSettings
from gspo_lightning.policy.packing.batches import filler, make_micro_batch
from gspo_lightning.policy.packing.memory import cut_rows
from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.vision.families import tower_of
from gspo_lightning.policy.vision.qwen import QwenImageProcessor
from gspo_lightning.policy.vision.vision_inputs import position_table, shift
from tests.support.pictures import SEEING, plain_inputs, png, seeing_prompt

TINY = SEEING
QWENS = SEEING[:3]


def policy_of(name: str) -> Policy:
    return load_policy(ModelSettings(name, seed=3, freeze=[])).eval()


def prompts_of(policy: Policy) -> list[Prompt]:
    """One picture, two of different sizes with text between them, none, and the same text with another picture."""
    return [
        seeing_prompt(policy, 0, ["1+", png(0), "=?"]),
        seeing_prompt(policy, 1, [png(1, 48, 32), "ABC", png(2, 16, 64)]),
        seeing_prompt(policy, 2, ["7+5*3:"]),
        seeing_prompt(policy, 3, ["1+", png(4), "=?"]),
    ]


def rollouts_of(prompts: Sequence[Prompt], counts: Sequence[int] = (3, 7)) -> list[Rollout]:
    rows = []
    for prompt in prompts:
        for sample, count in enumerate(counts):
            ids = (torch.arange(count) * 5 + prompt.id * 3 + sample) % 30 + 3
            rows.append(
                Rollout(
                    prompt, sample, ids, None, torch.ones(count, dtype=torch.bool), FinishReason.LENGTH, 0, reward=1.0
                )
            )
    return rows


def alone(policy: Policy, rollout: Rollout) -> Tensor:
    """Log-probabilities of a response by transformers' own model: its pixels, its rope index, no padding."""
    image_processor = policy.image_processor
    assert image_processor is not None
    ids = torch.cat([torch.tensor(rollout.prompt.token_ids), rollout.token_ids]).unsqueeze(0)
    options = plain_inputs(policy, rollout.prompt.media, ids)
    width = len(rollout.prompt.token_ids)
    logits = policy.model(input_ids=ids, use_cache=False, **options).logits[0, width - 1 : -1]
    logits = logits.index_fill(-1, torch.tensor(image_processor.unsaid), -torch.inf)
    return logits.log_softmax(-1).gather(-1, rollout.token_ids[:, None])[:, 0]


@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
@pytest.mark.parametrize("name", TINY)
def test_logprobs_equal_a_plain_forward_of_each_row_alone(name: str, packed: bool) -> None:
    policy = policy_of(name)
    policy.packed = packed
    rollouts = rollouts_of(prompts_of(policy))
    with torch.no_grad():
        logprobs, entropies = policy(make_micro_batch(rollouts))
        assert torch.isfinite(entropies).all()
        for row, rollout in zip(logprobs, rollouts, strict=True):
            torch.testing.assert_close(row[: rollout.length], alone(policy, rollout), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
@pytest.mark.parametrize("name", TINY)
def test_gradients_equal_those_of_rows_alone_and_reach_the_vision_tower(name: str, packed: bool) -> None:
    policy = policy_of(name).double()
    policy.packed = packed
    if name.endswith("moe"):
        policy.model.set_experts_implementation("eager")  # torch's grouped product knows no float64
    rollouts = rollouts_of(prompts_of(policy))
    weights = torch.randn(len(rollouts), 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    logprobs, _ = policy(make_micro_batch(rollouts))
    (logprobs * weights).sum().backward()
    found = {n: p.grad.clone() for n, p in policy.model.named_parameters() if p.grad is not None}
    policy.zero_grad()
    sum((alone(policy, r) * w[: r.length]).sum() for r, w in zip(rollouts, weights, strict=True)).backward()
    expected = {n: p.grad for n, p in policy.model.named_parameters() if p.grad is not None}
    assert found.keys() == expected.keys()
    parts = tower_of(policy.model)
    tower = [g for n, g in found.items() if any(n.startswith(part) for part in parts)]
    assert len(tower) > 20
    assert any(g.abs().max() > 1e-3 for g in tower)
    for n, gradient in expected.items():
        torch.testing.assert_close(found[n], gradient, rtol=1e-5, atol=1e-5, msg=lambda m, n=n: f"{n}: {m}")


@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
@pytest.mark.parametrize("name", ["tiny-qwen3-vl", "tiny-smolvlm", "tiny-gemma3"])
def test_a_row_does_not_see_the_pictures_of_others(name: str, packed: bool) -> None:
    policy = policy_of(name)
    policy.packed = packed
    first, _, _, other = prompts_of(policy)
    changed = seeing_prompt(policy, 3, ["1+", png(77), "=?"])
    with torch.no_grad():
        before = policy(make_micro_batch(rollouts_of([first, other])))[0]
        after = policy(make_micro_batch(rollouts_of([first, changed])))[0]
    torch.testing.assert_close(before[:2], after[:2], rtol=0, atol=1e-6)
    assert (before[2:] - after[2:]).abs().max() > 1e-3  # what they see, they do see


@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
@pytest.mark.parametrize("name", ["tiny-qwen3-vl", "tiny-smolvlm", "tiny-gemma3"])
def test_a_picture_is_seen_once_for_all_responses(name: str, packed: bool) -> None:
    policy = policy_of(name)
    policy.packed = packed
    batch = make_micro_batch(rollouts_of(prompts_of(policy), counts=(2, 3, 4, 5)))
    seen: list[int] = []
    last = list(tower_of(policy.model).values())[-1]  # what makes tokens: the tower itself, or what follows it

    def count(module: torch.nn.Module, inputs: object, out: Any) -> None:
        features = getattr(out, "pooler_output", out)
        seen.append(features.numel() // features.shape[-1])

    hook = last.register_forward_hook(count)
    kind = type(policy.image_processor)
    with torch.no_grad(), patch.object(kind, "features", autospec=True, side_effect=kind.features) as called:
        policy(batch)
    hook.remove()
    assert called.call_count == 1
    (_, _, pictures), _ = called.call_args
    assert len(pictures) == 4
    assert seen == [sum(p.tokens for p in pictures)]


def test_positions_are_those_of_transformers() -> None:
    for name in QWENS:
        policy = policy_of(name)
        for rollout in rollouts_of(prompts_of(policy)):
            if not rollout.prompt.media:
                continue
            assert policy.image_processor is not None
            ids = torch.cat([torch.tensor(rollout.prompt.token_ids), rollout.token_ids]).unsqueeze(0)
            grids = torch.tensor([[1, 2 * p.rows, 2 * p.columns] for p in rollout.prompt.media])
            kinds = (ids == policy.image_processor.image).int()
            expected, delta = policy.model.model.get_rope_index(ids, kinds, image_grid_thw=grids)
            ours = position_table([rollout.prompt.media], ids.shape[1])
            assert torch.equal(ours, expected)
            assert int(delta) == shift(rollout.prompt.media)


@pytest.mark.parametrize("name", ["tiny-qwen3-vl", "tiny-smolvlm"])
def test_pieces_and_fillers_keep_their_pictures_and_a_checkpoint_does(name: str) -> None:
    policy = policy_of(name)
    batch = make_micro_batch(rollouts_of(prompts_of(policy)))
    with torch.no_grad():
        whole = policy(batch)[0]
        pieces = torch.cat([torch.nn.functional.pad(policy(p)[0], (0, 7))[:, :7] for p in cut_rows(batch, 40, False)])
        again = policy(MicroBatch.from_state_dict(batch.state_dict()))[0]
        first = policy(filler(batch))[0]
    torch.testing.assert_close(pieces, whole, rtol=0, atol=1e-5)
    torch.testing.assert_close(first[0], whole[0], rtol=0, atol=1e-5)
    assert torch.equal(again, whole)
    file = io.BytesIO()
    torch.save(batch.state_dict(), file)
    file.seek(0)
    assert torch.load(file, weights_only=True)["media"]["rows"] == batch.state_dict()["media"]["rows"]


def test_pixels_are_those_of_the_processor_also_beyond_its_limit() -> None:
    image_processor = policy_of("tiny-qwen3-vl").image_processor
    assert isinstance(image_processor, QwenImageProcessor)
    for width, height in [(32, 32), (300, 500), (37, 90)]:
        image = Image.open(io.BytesIO(png(5, width, height)))
        expected = image_processor.processor(images=[image], return_tensors="pt")
        rows, columns = image_processor.grid(width, height)
        assert expected["image_grid_thw"].tolist() == [[1, 2 * rows, 2 * columns]]
        picture = Picture(png(5, width, height), "", 0, rows, columns)
        pixels, grids = image_processor.pixels([picture])
        assert torch.equal(pixels, expected["pixel_values"])
        assert torch.equal(grids, expected["image_grid_thw"])
    assert image_processor.shrinks(300, 500)
    assert image_processor.limited(1024).grid(300, 500) == (2, 1)


def test_a_text_model_refuses_pictures_by_name() -> None:
    policy = policy_of("tiny-qwen3-vl")
    batch = make_micro_batch(rollouts_of(prompts_of(policy)))
    with pytest.raises(UserError, match=r"(?s)Qwen3ForCausalLM reads text only.*Qwen2.5-VL, Qwen3-VL"):
        policy_of("tiny-qwen3")(batch)
