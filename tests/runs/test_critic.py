"""Runs with a critic: what they log, where they resume, on how many ranks, and what is refused before they begin."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from gspo_lightning.commands.export import sharded_weights
from gspo_lightning.core.types import Rollout
from gspo_lightning.loop.advantages import assign
from gspo_lightning.loop.experience.generate_and_score import Groups
from tests.runs import runs
from tests.runs.processes import Command
from tests.runs.ranks import fit_on_ranks
from tests.runs.test_invariance import SGD

CRITIC = ["--model.objective=GSPOToken", "--data.advantages=GAE", "--model.critic=ValueModel", "--model.critic.lr=1e-3"]
OPTIONS = [
    *runs.UNTAUGHT,
    *CRITIC,
    *SGD,
    "--model.optimizer.momentum=0.9",
    "--trainer.check_val_every_n_epoch=1",
    "--data.max_tokens_per_micro_batch=60",
]
"""Uneven micro-batches, and rewards that a model which cannot do anything yet earns."""
STRATEGIES = ["ddp", "fsdp", "fsdp2"]
KINDS = {
    "copy": [],
    "share": ["--model.critic.share=true"],
    "adapters": ["--model.lora={r: 4}", "--model.critic.epochs=2", "--model.critic.clip=0.2"],
    "group": ["--data.advantages=BatchNormalised", "--model.critic=null", "--model.objective=PPO"],
}


def critic_state(run: Path) -> dict[str, Any]:
    last = run / "checkpoints" / "last.ckpt"
    file = last / "meta.pt" if last.is_dir() else last
    found: dict[str, Any] = torch.load(file, weights_only=True, map_location="cpu")["gspo_critic"]
    return found


def flat(value: Any, name: str = "") -> dict[str, Any]:
    """Leaves of nested dictionaries and lists, by their places."""
    if isinstance(value, dict):
        return {k: v for key, part in value.items() for k, v in flat(part, f"{name}/{key}").items()}
    if isinstance(value, list):
        return {k: v for i, part in enumerate(value) for k, v in flat(part, f"{name}/{i}").items()}
    return {name: value}


def same(a: Any, b: Any) -> bool:
    first, second = flat(a), flat(b)
    return first.keys() == second.keys() and all(
        torch.equal(x, second[k]) if isinstance(x, torch.Tensor) else x == second[k] for k, x in first.items()
    )


def policy_weights(run: Path) -> dict[str, torch.Tensor]:
    last = run / "checkpoints" / "last.ckpt"
    return sharded_weights(last) if last.is_dir() else runs.weights(run)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return runs.fit(tmp_path_factory.mktemp("whole"), *OPTIONS)


@pytest.mark.thorough
def test_a_run_measures_its_critic(whole: Path) -> None:
    found = runs.scalars(whole)
    assert [v for _, v in found["critic/updates"]] == [2, 2, 4, 4]
    assert found["critic/value_mean"][0][1] == 0.0  # the head starts at zero
    assert found["critic/explained_variance"][0][1] == 0.0
    assert found["critic/value_mean"][2][1] != 0.0
    assert found["critic/loss"][0][1] > 0
    for quarter in (
        "first",
        "second",
        "third",
        "last",
    ):  # values of 0: the advantage is the return, whatever the lambda
        assert f"critic/advantage_bias_by_position/{quarter}" in found
    assert "reward/dead_groups" not in found  # with a critic no group is


def measured(run: Path) -> dict[str, list[tuple[int, float]]]:
    """Without the evaluation where a run was cut."""
    return {tag: values for tag, values in runs.scalars(run).items() if not tag.startswith("val/")}


def assert_goes_on(root: Path, undisturbed: Path, updates: Sequence[int], *options: str) -> None:
    """After each of these numbers of updates one run is cut, and goes on."""
    for count in updates:
        runs.fit(root, *OPTIONS, *options, f"--trainer.max_steps={count}", "--ckpt_path=last")
    run = runs.fit(root, *OPTIONS, *options, "--ckpt_path=last")
    assert runs.largest_difference(runs.weights(undisturbed), runs.weights(run)) == 0.0
    assert same(critic_state(undisturbed), critic_state(run))
    assert measured(undisturbed) == measured(run)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "updates", [pytest.param(1, marks=pytest.mark.long), pytest.param(2, marks=pytest.mark.long), 3]
)
def test_run_with_a_critic_resumes_bit_for_bit(tmp_path: Path, whole: Path, updates: int) -> None:
    assert_goes_on(tmp_path, whole, [updates])


HALVED = ["--model.lr_scheduler=torch.optim.lr_scheduler.StepLR", "--model.lr_scheduler.step_size=2"]


@pytest.mark.thorough
def test_critic_lr_follows_the_policys_schedule_and_resumes_exactly(tmp_path: Path) -> None:
    """Halved after the two updates of an iteration; interrupted there, and so before the critic's next updates."""
    halved = [*HALVED, "--model.lr_scheduler.gamma=0.5"]
    whole = runs.fit(tmp_path / "whole", *OPTIONS, *halved)
    assert [v for _, v in runs.scalars(whole)["critic/lr"]] == pytest.approx([1e-3, 1e-3, 5e-4, 5e-4])
    assert [v for _, v in runs.scalars(whole)["optim/lr"]] == pytest.approx([0.5, 0.5, 0.25, 0.25])
    assert_goes_on(tmp_path / "cut", whole, [2], *halved)


@pytest.mark.thorough
def test_critic_does_not_change_at_a_learning_rate_of_zero(tmp_path: Path, whole: Path) -> None:
    stopped = runs.fit(tmp_path / "stopped", *OPTIONS, *HALVED, "--model.lr_scheduler.gamma=0")
    first = runs.fit(tmp_path / "first", *OPTIONS, "--trainer.max_epochs=1")

    def weights(run: Path) -> dict[str, torch.Tensor]:
        return {name: saved["weight"] for name, saved in critic_state(run)["trunk"].items()}

    assert critic_state(stopped)["updates"] == 4
    assert runs.largest_difference(weights(stopped), weights(first)) == 0.0
    assert runs.largest_difference(weights(whole), weights(first)) > 1e-4


@pytest.mark.long
@pytest.mark.parametrize("kind", ["share", "adapters"])
def test_every_kind_goes_on_bit_for_bit(tmp_path: Path, kind: str) -> None:
    assert_goes_on(tmp_path / "cut", runs.fit(tmp_path / "whole", *OPTIONS, *KINDS[kind]), [3], *KINDS[kind])


@pytest.mark.long
def test_a_killed_run_goes_on_bit_for_bit(tmp_path: Path, whole: Path) -> None:
    """SIGKILL in the middle of the critic's updates of the second iteration."""
    argv = ["fit", f"--config={runs.QUICKSTART}", *runs.SMALL, *OPTIONS, f"--trainer.default_root_dir={tmp_path}"]
    kill = "gspo_lightning.loop.critic.value_model:ValueModel._step:4"
    assert Command(argv, kill_at=kill).start().wait() == [-9]
    run = runs.fit(tmp_path, *OPTIONS, "--ckpt_path=last")
    assert runs.largest_difference(runs.weights(whole), runs.weights(run)) == 0.0
    assert same(critic_state(whole), critic_state(run))


@pytest.mark.thorough
def test_the_policy_waits_for_the_critic(tmp_path: Path) -> None:
    """4 updates are 2 iterations: the third one is the first that moves the policy."""
    warm = [*OPTIONS, "--model.critic.warm_up=3"]
    waits = runs.fit(tmp_path / "waits", *warm)
    assert runs.largest_difference(runs.untrained(), runs.weights(waits)) == 0.0
    assert critic_state(waits)["updates"] == 4
    moves = runs.fit(tmp_path / "moves", *warm, "--trainer.max_epochs=3")
    assert runs.largest_difference(runs.untrained(), runs.weights(moves)) > 1e-3


RISES = [
    "--model.critic.warm_up=3", "--model.lr_scheduler=torch.optim.lr_scheduler.LinearLR",
    "--model.lr_scheduler.start_factor=0.01", "--model.lr_scheduler.total_iters=4", "--trainer.max_epochs=4",
]  # fmt: skip


@pytest.mark.thorough
def test_the_first_update_of_the_policy_has_the_first_rate_of_the_schedule(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Of 8 updates the first 4 train the critic alone: the policy's 4 have 1/100 + 99/100 * (0, 1/4, 1/2, 3/4)."""
    run = runs.fit(tmp_path / "whole", *OPTIONS, *RISES)
    rates = [0.01] * 4 + [0.01, 0.2575, 0.505, 0.7525]
    assert [v for _, v in runs.scalars(run)["optim/lr"]] == pytest.approx([0.5 * rate for rate in rates])
    of_critic = [1.0] * 4 + [0.01] * 2 + [0.505] * 2  # its own until the schedule begins
    assert [v for _, v in runs.scalars(run)["critic/lr"]] == pytest.approx([1e-3 * rate for rate in of_critic])
    (schedule,) = runs.checkpoint(run)["lr_schedulers"]
    assert schedule["last_epoch"] == 4
    assert "the first 4 updates train the critic alone, and model.lr_scheduler does not count them" in caplog.text
    assert_goes_on(tmp_path / "cut", run, [3, 5], *RISES)


@pytest.mark.thorough
def test_a_plateau_does_not_count_what_came_before_the_policy(tmp_path: Path) -> None:
    """Nothing is an improvement here: the second of its looks lowers the rate, and the first is after 3 iterations."""
    plateau = ["--model.lr_scheduler=lightning.pytorch.cli.ReduceLROnPlateau", "--model.lr_scheduler.mode=max"]
    strict = ["--model.lr_scheduler.threshold=10", "--model.lr_scheduler.threshold_mode=abs"]
    watches = [*plateau, "--model.lr_scheduler.monitor=reward/mean", "--model.lr_scheduler.patience=0", *strict]
    warm = ["--model.critic.warm_up=3", "--trainer.max_epochs=5"]
    run = runs.fit(tmp_path, *OPTIONS, *watches, *warm)
    assert [v for _, v in runs.scalars(run)["optim/lr"]] == pytest.approx([0.5] * 8 + [0.05] * 2)


@pytest.mark.thorough
def test_weights_that_wait_for_the_critic_are_not_averaged(tmp_path: Path) -> None:
    """The mean of the weights after the policy's two updates, without four times those of the start."""
    mean = "--trainer.callbacks+=lightning.pytorch.callbacks.WeightAveraging"
    one, two = (
        runs.fit(tmp_path / str(steps), *OPTIONS, "--model.critic.warm_up=3", f"--trainer.max_steps={steps}",
                 "--trainer.max_epochs=3", mean)
        for steps in (5, 6)
    )  # fmt: skip
    after = [runs.checkpoint(run)["current_model_state"] for run in (one, two)]
    averaged = runs.weights(two)
    expected = {name: (after[0][name] + after[1][name]) / 2 for name in after[0]}
    assert runs.largest_difference({name: averaged[name] for name in expected}, expected) < 1e-6


def two_ranks(root: Path, strategy: str, kind: str, *more: str) -> Path:
    return fit_on_ranks(root, *OPTIONS, *KINDS[kind], *more, overlay=strategy)


def assert_two_are_one(root: Path, strategy: str, kind: str) -> None:
    one, two = runs.fit(root / "one", *OPTIONS, *KINDS[kind]), two_ranks(root / "two", strategy, kind)
    assert runs.largest_difference(runs.weights(one), policy_weights(two)) < 1e-4
    alone, together = runs.scalars(one), runs.scalars(two)
    assert alone.keys() - {"update/gradient_noise"} == together.keys() - {"update/gradient_noise"}  # not of shards
    for tag in (t for t in alone if t.startswith(("critic/", "reward/", "loss"))):
        for (_, a), (_, b) in zip(alone[tag], together[tag], strict=True):
            assert a == pytest.approx(b, abs=1e-4, rel=1e-4), tag
    if kind == "group":
        return
    first, second = (
        {name: saved["weight"] for name, saved in critic_state(run)["trunk"].items()} for run in (one, two)
    )
    assert runs.largest_difference(first, second) < 2e-3  # AdamW makes a whole step of a rounding: lr is 1e-3


@pytest.mark.thorough
def test_two_ranks_are_one(tmp_path: Path) -> None:
    assert_two_are_one(tmp_path, "fsdp2", "copy")


@pytest.mark.long
@pytest.mark.parametrize(
    ("strategy", "kind"),
    [p for p in itertools.product(STRATEGIES, ["copy", "adapters"]) if p != ("fsdp2", "copy")] + [("ddp", "group")],
)
def test_two_ranks_are_one_under_every_strategy(tmp_path: Path, strategy: str, kind: str) -> None:
    assert_two_are_one(tmp_path, strategy, kind)


@pytest.mark.long
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_two_ranks_go_on_bit_for_bit(tmp_path: Path, strategy: str) -> None:
    undisturbed = two_ranks(tmp_path / "whole", strategy, "copy")
    cut = two_ranks(tmp_path / "cut", strategy, "copy", "--trainer.max_steps=3")
    two_ranks(tmp_path / "cut", strategy, "copy", "--ckpt_path=last")
    assert runs.largest_difference(policy_weights(undisturbed), policy_weights(cut)) == 0.0
    assert same(critic_state(undisturbed), critic_state(cut))


@pytest.mark.thorough
def test_replicas_go_on_with_the_critic_of_plain_shards(tmp_path: Path) -> None:
    run = two_ranks(tmp_path / "run", "fsdp2", "copy", "--trainer.max_epochs=1")
    before = critic_state(run)["trunk"]
    replicas = [*OPTIONS, "--trainer.max_epochs=2", "--ckpt_path=last"]
    assert fit_on_ranks(tmp_path / "run", *replicas, overlay="hsdp", ranks=4) == run
    after = critic_state(run)["trunk"]
    for name, saved in before.items():
        assert after[name]["step"] == 2 * saved["step"]
        for key in ("weight", "exp_avg", "exp_avg_sq"):
            assert after[name][key].shape == saved[key].shape, (name, key)
        assert 0 < float((after[name]["weight"] - saved["weight"]).abs().max()) < 1e-2  # a few steps at a rate of 1e-3


@pytest.mark.thorough
def test_turns_and_a_penalty_per_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guess the number: what turns earn and what tokens pay arrives where it arose; the other side's tokens get 0."""
    seen: list[Rollout] = []
    own = assign.assign_token_advantages

    def noted(groups: Groups, *rest: Any) -> dict[str, float]:
        seen.extend(r for g in groups for r in g)
        return own(groups, *rest)

    monkeypatch.setattr(assign, "assign_token_advantages", noted)
    options = ["--model.cold_start.steps=30", "--model.cold_start.demonstrations.step=10", "--data.turn_credit=turn"]
    cost = ["--data.rollouts.environment.cost=0.125", "--data.kl_in_reward=0.5", "--data.advantages.whiten=false"]
    lam = ["--data.advantages.lam=1.0", "--model.optimizer.lr=1e-3"]
    run = runs.fit(tmp_path, *CRITIC, *options, *cost, *lam, config=runs.ROOT / "configs" / "guess.yaml")
    assert "critic/value_mean" in runs.scalars(run)
    several = [r for r in seen if r.reward is not None and len(r.turn_ends) > 1]
    assert several
    assert any(r.kl_penalty != 0 for r in seen)  # the second iteration's policy is no longer the reference
    for rollout in several:
        assert rollout.token_penalties is not None
        assert rollout.token_advantages is not None
        assert rollout.values is not None
        assert float(rollout.token_penalties.sum()) == pytest.approx(rollout.kl_penalty, abs=1e-5)
        assert not rollout.token_advantages[~rollout.response_mask].any()
        first = int(torch.nonzero(rollout.response_mask)[0])  # lambda 1: all that is earned, less the value
        earned = rollout.reward - rollout.kl_penalty - float(rollout.values[first])  # type: ignore[operator]
        assert float(rollout.token_advantages[first]) == pytest.approx(earned, abs=1e-4)
        after = torch.arange(len(rollout.token_ids)) >= rollout.turn_ends[0]
        second = int(torch.nonzero(rollout.response_mask & after)[0])
        later = rollout.reward - rollout.turn_rewards[0] - float(rollout.token_penalties[second:].sum())  # type: ignore
        assert float(rollout.token_advantages[second]) == pytest.approx(later - float(rollout.values[second]), abs=1e-4)


REFUSED = {
    "GAE without a critic": (["--model.critic=null"], "data.advantages: is GAE, which needs the values of a critic"),
    "a critic that nobody asks": (
        ["--data.advantages=GroupNormalised"],
        "data.advantages: is GroupNormalised, which never asks the critic",
    ),
    "one ratio per sequence": (["--model.objective=GSPO"], "GSPO takes one per response"),
    "rewards compared one by one": (
        ["--data.combine_rewards=normalised_separately"],
        "data.combine_rewards: is 'normalised_separately'",
    ),
    "a trunk that is sharded": (
        ["--model.critic.share=true", f"--config={runs.ROOT / 'configs' / 'fsdp2.yaml'}", "--trainer.devices=1"],
        "model.critic.share: is true, but FSDP2Strategy",
    ),
    "groups that teach the critic": (
        ["--data.resample_dead_groups=8"],
        "data.resample_dead_groups: is 8, but data.advantages is GAE, which also learns from a group whose rewards are",
    ),
    "two lambdas": (["--data.advantages.lam=0.9", "--data.advantages.alpha=0.05"], "alpha computes lam"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_critic_refuses_settings_that_it_excludes_at_start(
    case: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    options, message = REFUSED[case]
    runs.fit(tmp_path, *OPTIONS, "--trainer.accelerator=cpu", *options, code=2)
    said = capfd.readouterr().err
    assert message in " ".join(said.split())
    assert "Traceback" not in said


def test_a_checkpoint_without_a_critic_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    without = [*OPTIONS, *KINDS["group"], "--trainer.max_steps=1"]
    runs.fit(tmp_path, *without)
    runs.fit(tmp_path, *OPTIONS, "--ckpt_path=last", "--allow_changed_config=true", code=2)
    assert "model.critic: is set, but the checkpoint was written by a run without" in capfd.readouterr().err
