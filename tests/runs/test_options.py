"""Options that change what is learnt from: KL to a reference, truncated responses, several rewards, resampling."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.objectives.reference_formulas import FAMILY, REQUIRED
from tests.runs import runs

UNTAUGHT = [*runs.UNTAUGHT, "--data.val=null", "--trainer.num_sanity_val_steps=0"]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run without any option, to compare with; tests read it only."""
    return runs.fit(tmp_path_factory.mktemp("plain"), *UNTAUGHT)


@pytest.mark.thorough
def test_kl_to_the_reference_is_zero_at_the_start_and_pulls_back(tmp_path: Path) -> None:
    options = [*UNTAUGHT, "--model.objective=GSPO", "--trainer.max_epochs=4", "--model.optimizer.lr=0.003"]
    tags = ("kl/policy_reference_k3", "kl/policy_reference_k1")
    near = runs.fit(tmp_path / "near", *options, "--model.objective.kl_coef=10.0")
    far = runs.fit(tmp_path / "far", *options, "--model.objective.kl_coef=1e-9")
    for run in (near, far):
        assert all(runs.scalars(run)[tag][0] == (1, 0.0) for tag in tags)
    assert runs.scalars(near)[tags[0]][-1][1] < 0.6 * runs.scalars(far)[tags[0]][-1][1]
    assert not any("reference" in name for name in runs.checkpoint(near)["state_dict"])


@pytest.mark.thorough
def test_kl_reference_survives_a_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = [*UNTAUGHT, "--model.objective=GSPO", "--model.objective.kl_coef=0.5", "--model.optimizer.lr=0.003"]
    whole = runs.fit(tmp_path / "whole", *options, "--trainer.max_epochs=4")
    runs.fit(tmp_path / "halves", *options, "--trainer.max_epochs=2")
    resumed = runs.fit(tmp_path / "halves", *options, "--trainer.max_epochs=4", "--ckpt_path=last")
    assert runs.largest_difference(runs.weights(whole), runs.weights(resumed)) == 0.0


@pytest.mark.thorough
def test_kl_in_the_reward_pulls_back_too(tmp_path: Path) -> None:
    # the penalty is 0 while policy and reference are equal, then it changes advantages, never the raw reward
    options = [*UNTAUGHT, "--trainer.max_epochs=3", "--model.optimizer.lr=0.003"]
    free = runs.scalars(runs.fit(tmp_path / "free", *options))
    held = runs.scalars(runs.fit(tmp_path / "held", *options, "--data.kl_in_reward=1.0"))
    norms = [[v for _, v in s["optim/gradient_norm"]] for s in (free, held)]
    assert norms[0][:2] == norms[1][:2]
    assert norms[0][2] != pytest.approx(norms[1][2], rel=1e-3)
    assert (
        free["reward/mean"][2] == held["reward/mean"][2]
    )  # the same rollouts: only the first iteration's updates differ


@pytest.mark.thorough
def test_segments_by_delimiter(tmp_path: Path) -> None:
    segment = [*UNTAUGHT, "--model.objective=Segment", "--model.objective.by=given", "--trainer.max_epochs=1"]
    never = runs.fit(tmp_path / "never", *segment, '--model.segment_delimiters=["<eos>"]')
    whole = runs.fit(tmp_path / "whole", *UNTAUGHT, "--trainer.max_epochs=1", "--model.objective=GSPOToken",
                     "--model.objective.clip_low=2e-3", "--model.objective.clip_high=2.7e-3")  # fmt: skip
    digits = runs.fit(tmp_path / "digits", *segment, '--model.segment_delimiters=["1","2","3"]')
    assert runs.largest_difference(runs.weights(never), runs.weights(whole)) < 1e-6
    assert runs.largest_difference(runs.weights(digits), runs.weights(whole)) > 1e-6


@pytest.mark.thorough
def test_masked_truncated_responses_leave_statistics_and_denominator(tmp_path: Path, plain: Path) -> None:
    masked = runs.scalars(runs.fit(tmp_path / "mask", *UNTAUGHT, "--data.truncated_responses=mask"))
    kept = runs.scalars(plain)
    assert masked["reward/masked"] == masked["response/truncated"]
    assert all(0 < value < 1 for _, value in masked["reward/masked"])
    assert kept["reward/masked"][0] == (1, 0.0)
    assert masked["reward/mean"][0] == kept["reward/mean"][0]  # the raw reward is never overwritten
    assert masked["optim/gradient_norm"][0] != kept["optim/gradient_norm"][0]


@pytest.mark.thorough
def test_penalised_truncation_changes_advantages_not_rewards(tmp_path: Path, plain: Path) -> None:
    kept = runs.scalars(plain)
    penalised = runs.scalars(runs.fit(tmp_path / "penalise", *UNTAUGHT, "--data.truncated_responses=penalise"))
    assert penalised["reward/mean"][0] == kept["reward/mean"][0]
    assert penalised["optim/gradient_norm"][0] != kept["optim/gradient_norm"][0]


@pytest.mark.thorough
def test_rewards_normalised_separately(tmp_path: Path) -> None:
    two = '--data.rewards={"graded": "Graded", "short": {"class_path": "Brevity"}}'
    plugins = f"--plugins={[str(Path(__file__).with_name('graded.py')), str(runs.ROOT / 'plugins' / 'brevity.py')]}"
    options = [*UNTAUGHT, plugins, two, '--data.reward_weights={"short": 100.0}']
    together = runs.scalars(runs.fit(tmp_path / "sum", *options))
    apart = runs.scalars(runs.fit(tmp_path / "gdpo", *options, "--data.combine_rewards=normalised_separately"))
    assert together["reward/mean"][0] == apart["reward/mean"][0]
    assert together["optim/gradient_norm"][0] != apart["optim/gradient_norm"][0]


@pytest.mark.thorough
def test_dead_groups_are_replaced_within_the_budget(taught: Path) -> None:
    options = ["--data.group_size=2", "--data.val=null", "--trainer.num_sanity_val_steps=0"]
    plain = runs.scalars(runs.fit(taught, *options))
    resampled = runs.scalars(runs.fit(taught, *options, "--data.resample_dead_groups=16"))
    assert plain["reward/dead_groups"][0][1] > resampled["reward/dead_groups"][0][1]
    assert resampled["reward/resampled_groups"][0][1] > 0
    assert len(resampled["loss"]) == len(plain["loss"])  # an epoch keeps its meaning
    assert resampled["data/iteration"] == plain["data/iteration"]


ALONE = ["--data.group_size=1", "--data.advantages=BatchNormalised", "--data.prompts_per_rollout=32"]


def test_groups_of_one_are_not_dead(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """They are compared with each other: nothing is counted, warned of or replaced because one reward equals itself."""
    found = runs.scalars(runs.fit(tmp_path, *UNTAUGHT, *ALONE))
    assert found["optim/gradient_norm"][0][1] > 0
    assert "reward/dead_groups" not in found
    assert "nothing to learn from yet" not in caplog.text


def test_groups_of_one_cannot_be_resampled(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    runs.fit(tmp_path, *UNTAUGHT, *ALONE, "--data.resample_dead_groups=8", code=2)
    said = " ".join(capfd.readouterr().err.split())
    assert "data.resample_dead_groups: is 8, but data.group_size is 1: every group would be replaced" in said


@pytest.mark.thorough
def test_gradient_checkpointing_changes_memory_not_results(tmp_path: Path, plain: Path) -> None:
    saved = runs.fit(tmp_path / "saved", *UNTAUGHT, "--model.gradient_checkpointing=true")
    assert runs.largest_difference(runs.weights(plain), runs.weights(saved)) < 1e-6


@pytest.mark.thorough
def test_adapters_on_bfloat16_weights_keep_float32_log_probabilities(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = runs.handed_out(monkeypatch)
    narrow = ["--model.dtype=bfloat16", "--model.lora={r: 4}", "--data.max_tokens_per_micro_batch=4096"]
    run = runs.fit(tmp_path, *UNTAUGHT, *narrow)
    first = runs.scalars(run)["ratio/log_sequence_std"][0]
    assert first == (1, 0.0)  # one code path: the noise of bfloat16 is the same on both sides of the ratio
    first_of_all, second, *_ = (batch.micro_batches[0].old_logprobs for batch in batches)
    assert first_of_all is None  # the first update's are the policy's own
    assert second is not None
    assert second.dtype == torch.float32  # too noisy to be the sampler's
    assert dict(runs.scalars(run)["noise/sampler_sequence_rms"])[1] > 3e-5


BY_DEFAULT = {"DAPO", "Segment", "DrGRPO"}
"""A ratio a token, segments, and a denominator that is configured; every objective has its own unit tests."""


@pytest.mark.thorough("DrGRPO", "Segment")
@pytest.mark.parametrize(
    "objective",
    [
        pytest.param(name, marks=() if name in BY_DEFAULT else pytest.mark.long)
        for name in sorted(set(FAMILY) - {"GSPO", "GRPO"})
    ],
)
def test_every_objective_trains(objective: str, tmp_path: Path) -> None:
    extra = [f"--model.objective.{name}={value}" for name, value in REQUIRED.get(objective, {}).items()]
    run = runs.fit(tmp_path, *UNTAUGHT, f"--model.objective={objective}", *extra, "--trainer.max_epochs=1")
    scalars = runs.scalars(run)
    assert scalars["optim/gradient_norm"][0][1] > 0
    assert runs.summary(run)["objective"] == objective
