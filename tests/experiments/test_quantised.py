"""Weights of few bits in the sampler: what they are rounded to, and that only the sampler has them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from experiments.lab.quantised import QuantisedSampler, rounded
from gspo_lightning.core.randomness import Purpose
from gspo_lightning.core.types import Prompt, SamplingParams
from gspo_lightning.policy.adapters.lora import LoRA, add_adapters
from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.tiny import build_tiny_model, character_tokenizer
from gspo_lightning.rollouts import Draws
from tests.runs import runs


@pytest.mark.parametrize(
    ("to", "scales", "expected"),
    [
        ("int4", "tensor", [[7.0, 4.0, -1.0, 0.0], [14.0 / 2, 0.0, 1.0, -7.0]]),
        ("int4", "channel", [[7.0, 4.0, -1.0, 0.0], [7.0, 0.0, 1.0, -7.0]]),
        ("int8", "tensor", [[7.0, 3.5275590551, -1.2125984252, 0.2204724409], [7.0, 0.4409448819, 0.7165354331, -7.0]]),
        ("float8", "tensor", [[7.0, 3.5, -1.25, 0.203125], [7.0, 0.4375, 0.75, -7.0]]),
    ],
)
def test_quantised_weights_by_hand(to: str, scales: str, expected: list[list[float]]) -> None:
    """By hand: the largest is 7, so a step of int4 is 1, of int8 7/127; float8 keeps 3 bits behind the first one."""
    weight = torch.tensor([[7.0, 3.53, -1.2, 0.21], [7.0, 0.45, 0.73, -7.0]])
    torch.testing.assert_close(rounded(weight, to, scales), torch.tensor(expected))  # type: ignore[arg-type]


def test_a_block_has_a_scale_of_its_own() -> None:
    weight = torch.cat([torch.full((2, 32), 700.0), torch.full((2, 32), 0.07)], dim=1)
    assert torch.allclose(rounded(weight, "int4", "block"), weight)
    assert not torch.allclose(rounded(weight, "int4", "channel"), weight)


def test_frozen_weights_of_the_policy_stay() -> None:
    """A frozen copy shares them: under adapters, rounding in place would change what is trained."""
    model = build_tiny_model("tiny-qwen3", 1)
    add_adapters(model, LoRA(r=2), 0)
    policy = Policy(model, character_tokenizer())
    before = {name: weight.clone() for name, weight in policy.state_dict().items()}
    QuantisedSampler("int4").generate(
        policy, [Prompt(0, "", (3, 4))], group_size=2, sampling=SamplingParams(3),
        draws=Draws.of(0, Purpose.TRAIN_SAMPLING, 1),
    )  # fmt: skip
    assert all(torch.equal(weight, before[name]) for name, weight in policy.state_dict().items())


def test_a_run_samples_from_them_and_trains_the_others(tmp_path: Path) -> None:
    sampler = "{class_path: experiments.lab.quantised.QuantisedSampler, init_args: {to: int4}}"
    options = [*runs.UNTAUGHT, "--trainer.max_epochs=1", "--model.old_logprobs=recompute"]
    plain, coarse = (
        runs.scalars(runs.fit(tmp_path / name, *options, *more))["noise/kl_sampler_old_k3"][0][1]
        for name, more in (("plain", []), ("coarse", [f"--data.rollouts={sampler}"]))
    )
    assert plain < 1e-9 < 1e-4 < coarse
