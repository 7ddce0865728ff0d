"""Rotary embeddings that follow the length of a call, pinned: a row is the same beside any other row."""

from __future__ import annotations

import dataclasses
import json
import logging
from pathlib import Path

import pytest
import torch
from torch import Tensor

from gspo_lightning.commands.replay import replay
from gspo_lightning.core.types import MicroBatch, MiniBatch, Prompt, SamplingParams
from gspo_lightning.loop.old_policy.snapshots import CachedLogProbs
from gspo_lightning.loop.update.dump import Dump, make_dump
from gspo_lightning.loop.update.loss import LossTerms
from gspo_lightning.objectives import GSPO
from gspo_lightning.policy.attention.rope import pin_rope
from gspo_lightning.policy.load.loading import load_policy
from gspo_lightning.policy.load.model_settings import ModelSettings
from gspo_lightning.policy.model_checks.checks import choose_layout
from gspo_lightning.policy.packing.batches import make_micro_batch
from gspo_lightning.policy.packing.memory import cut_rows
from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.tiny import character_tokenizer
from gspo_lightning.rollouts import Draws, GroupedSampler, RolloutSource, TransformersGenerate
from tests.policy.model_checks.test_checks import batch
from tests.support.exact_families import SWITCH, exact_model

LONGEST = 40
LENGTHS = {5: [3, 30, 7], 9: [4, 20]}
"""Width of a prompt -> lengths of its responses: some rows end before SWITCH positions, some behind."""
SHORT, LONG = torch.tensor([1.0, 1.1, 1.2, 1.3]), torch.tensor([2.0, 4.0, 8.0, 16.0])
LAYOUTS = pytest.mark.parametrize("packed", [False, True])


def pinned(family: str, longest: int = LONGEST, packed: bool = False) -> Policy:
    policy = Policy(exact_model(family), character_tokenizer()).train()
    pin_rope(policy.model, longest)
    policy.packed = packed
    return policy


@torch.no_grad()
def parts(policy: Policy, rows: MicroBatch, budget: int) -> Tensor:
    """Log-probabilities of rows that went through the model in as many pieces as a budget makes of them."""
    pieces = [policy(piece, 0.7)[0] for piece in cut_rows(rows, budget, packed=policy.packed)]
    return torch.cat([torch.nn.functional.pad(p, (0, rows.response_mask.shape[1] - p.shape[1])) for p in pieces])


def frequencies(policy: Policy) -> Tensor:
    return policy.backbone.rotary_emb.inv_freq


@LAYOUTS
@pytest.mark.parametrize("family", ["phi3", "dynamic"])
def test_ratios_of_unchanged_weights_are_1_however_rows_are_cut(family: str, packed: bool) -> None:
    policy = pinned(family, packed=packed)
    rows = batch(LENGTHS)
    together, apart = parts(policy, rows, 1 << 20), parts(policy, rows, 1)
    log_ratio = ((together - apart) * rows.response_mask).sum(-1) / rows.response_lengths
    assert float((log_ratio.exp() - 1).abs().max()) <= 1e-6
    twin = policy.frozen_copy()
    assert torch.equal(parts(twin, rows, 1), apart)


@LAYOUTS
@pytest.mark.parametrize(("longest", "factors"), [(LONGEST, "long"), (SWITCH, "short")])
def test_the_chosen_factors_are_those_of_the_longest_row(longest: int, factors: str, packed: bool) -> None:
    """Against a model that knows the chosen factors only: nothing in it can switch."""
    policy = pinned("phi3", longest, packed)
    lengths = {w: [n for n in counts if w + n <= longest] for w, counts in LENGTHS.items()}
    rows = batch(lengths)
    other = exact_model("phi3")
    settings = dict(other.config.rope_parameters)
    settings["short_factor"] = settings["long_factor"] = settings[f"{factors}_factor"]
    other.config.rope_parameters = settings
    other.model.rotary_emb = type(other.model.rotary_emb)(other.config)
    with torch.no_grad():
        found, _ = policy(rows, 0.7)
        for i, (width, count) in enumerate(zip(rows.prompt_lengths, rows.response_lengths, strict=True)):
            ids = rows.input_ids[i, : width + count]
            expected = (other(ids[None], use_cache=False).logits[0] / 0.7).log_softmax(-1)[width - 1 : -1]
            theirs = expected.gather(-1, ids[width:, None])[:, 0]
            torch.testing.assert_close(found[i, :count], theirs, rtol=0, atol=1e-5)


@pytest.mark.parametrize("source", [GroupedSampler(), TransformersGenerate()], ids=lambda s: type(s).__name__)
@LAYOUTS
@pytest.mark.parametrize("family", ["phi3", "dynamic"])
def test_the_sampler_says_what_the_policy_says_before_and_behind_the_switch(
    family: str, packed: bool, source: RolloutSource
) -> None:
    policy = pinned(family, packed=packed).eval()
    prompts = [Prompt(0, "", (5, 9, 4, 7)), Prompt(1, "", tuple(range(3, 15)))]
    policy.model.generation_config.eos_token_id = None
    groups = source.generate(policy, prompts, group_size=2, sampling=SamplingParams(24), draws=Draws(1), version=0)
    rows = [row for group in groups for row in group]
    assert max(len(row.token_ids) for row in rows) == 24
    with torch.no_grad():
        found, _ = policy(make_micro_batch(rows))
    for i, row in enumerate(rows):
        assert row.logprobs is not None
        torch.testing.assert_close(found[i, : len(row.logprobs)], row.logprobs, rtol=0, atol=1e-5)


def test_the_layout_pins_and_says_so_and_may_pin_again(caplog: pytest.LogCaptureFixture) -> None:
    policy = Policy(exact_model("phi3"), character_tokenizer())
    with caplog.at_level(logging.INFO, logger="gspo_lightning"):
        choose_layout(policy, "auto", SWITCH)
    assert f"longrope's short factors (they change beyond {SWITCH} positions)" in caplog.text
    assert policy.packed
    short = frequencies(policy).clone()
    with caplog.at_level(logging.INFO, logger="gspo_lightning"):
        choose_layout(policy, "auto", SWITCH + 1)
    assert "longrope's long factors" in caplog.text
    long = frequencies(policy)
    torch.testing.assert_close(short / long, LONG / SHORT)
    assert pin_rope(Policy(exact_model("diffllama"), character_tokenizer()).model, 64) is None


def test_export_of_a_pinned_policy_keeps_length_dependent_rope(tmp_path: Path) -> None:
    policy = pinned("phi3")
    before = exact_model("phi3").config.to_dict()["rope_parameters"]
    policy.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["rope_parameters"] == before
    again = load_policy(ModelSettings(str(tmp_path)))
    again.model(torch.arange(3, 7)[None])
    torch.testing.assert_close(frequencies(again), frequencies(policy) * LONG / SHORT)
    again.model(torch.arange(3, 3 + SWITCH + 1)[None])
    torch.testing.assert_close(frequencies(again), frequencies(policy))


def test_a_replay_has_the_factors_of_its_run(tmp_path: Path) -> None:
    policy = pinned("phi3", LONGEST)
    policy.save_pretrained(tmp_path / "model")
    rows = batch({5: [3, 6], 9: [4]})  # short ones: left alone, a replay would take the short factors
    rows.advantages = torch.tensor([1.0, -1.0, 0.5])
    dump = make_dump(
        MiniBatch([rows], 1, 0), LossTerms(policy, CachedLogProbs(), GSPO(), 0.7), on_policy=True, update=1, values={},
        rewards={}, rng={}, model=ModelSettings(str(tmp_path / "model")), longest=LONGEST,
    )  # fmt: skip
    found = Dump.read(dump.write(tmp_path, 0))
    assert replay(found)[1]["ratio/log_sequence_std"] <= 1e-6
    assert replay(dataclasses.replace(found, longest=0))[1]["ratio/log_sequence_std"] >= 1e-3
