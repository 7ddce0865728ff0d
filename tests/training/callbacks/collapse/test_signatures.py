"""Each signature on numbers written by hand: when it rings, since when, and what is health and must not ring."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import pytest

from gspo_lightning.training.callbacks import Collapse
from gspo_lightning.training.callbacks.collapse import SIGNATURES, Alarm, Watch

HEALTHY = {
    "policy/entropy": 0.3, "response/length": 20.0, "response/truncated": 0.0, "response/repetition": 0.02,
    "reward/mean": 0.5, "reward/std": 0.5, "reward/min": 0.0, "reward/max": 1.0, "reward/dead_groups": 0.2,
    "ratio/log_sequence_std": 0.02, "ratio/effective_sample_size": 0.99, "ratio/clamped": 0.0,
    "ratio/log_sequence_p05": -0.05, "ratio/log_sequence_p95": 0.05, "kl/old_new_k3": 0.005,
    "optim/gradient_norm": 1.0, "optim/gradient_spike": 1.0, "loss": 0.0,
}  # fmt: skip
PER_ITERATION = 2


def alarms(iterations: Sequence[Mapping[str, float]], watch: Watch | None = None) -> list[Alarm]:
    """All alarms of a run of two updates an iteration, in which each update of an iteration shows the same numbers."""
    watch = watch or Watch(kind() for kind in SIGNATURES.values())
    found, update = [], 0
    for changed in iterations:
        for place in range(PER_ITERATION):
            update += 1
            found += watch.see(HEALTHY | changed, update, last=place == PER_ITERATION - 1)
    return found


CALM: list[dict[str, float]] = [{}] * 6
SICK = {
    "entropy_collapse": {"policy/entropy": 0.05},
    "entropy_explosion": {"policy/entropy": 1.0},
    "length_collapse": {"response/length": 5.0},
    "length_runaway": {"response/length": 45.0},
    "ratio_explosion": {"ratio/log_sequence_std": 0.4},
    "sample_size_fall": {"ratio/effective_sample_size": 0.8},
    "ratio_tails": {"ratio/log_sequence_p05": -0.8},
    "drift_without_reward": {"kl/old_new_k3": 0.06},
    "reward_collapse": {"reward/mean": 0.05},
    "repetition": {"response/repetition": 0.6},
    "gradient_spikes": {"optim/gradient_spike": 15.0},
    "non_finite": {"loss": float("nan")},
    "dead_group_flood": {"reward/dead_groups": 0.95},
    "blind_critic": {"critic/explained_variance": 0.01},
}


@pytest.mark.parametrize("name", SICK)
def test_rings_once_within_three_iterations_and_knows_since_when(name: str) -> None:
    (alarm,) = alarms([*CALM, *[SICK[name]] * 5])
    assert alarm.signature == name
    assert alarm.since == 13  # the first update of iteration 6
    assert alarm.update <= 13 + 3 * PER_ITERATION - 1
    assert alarm.what
    assert alarm.advice


@pytest.mark.parametrize("name", sorted(set(SICK) - {"non_finite"}))
def test_one_odd_update_or_iteration_is_not_enough(name: str) -> None:
    watch = Watch(kind() for kind in SIGNATURES.values())
    alarms([*CALM], watch)
    found = watch.see(HEALTHY | SICK[name], 13, last=True)
    assert not found
    assert not watch.quiet
    assert not watch.present


def test_a_huge_gradient_is_enough_at_once() -> None:
    watch = Watch(kind() for kind in SIGNATURES.values())
    alarms(CALM, watch)
    assert watch.see(HEALTHY | {"optim/gradient_spike": 500.0}, 13, last=False)[0].signature == "gradient_spikes"


def test_early_warnings_say_what_they_saw() -> None:
    def seen(**changed: float) -> list[str]:
        return [a.what for a in alarms([*CALM, *[{tag.replace("__", "/"): v for tag, v in changed.items()}] * 2])]

    assert seen(ratio__effective_sample_size=0.8) == ["the effective sample size is 80% of the samples"]
    assert seen(ratio__log_sequence_p05=-0.8) == ["5% of sequences have log s_i beyond -0.8 nats per token"]
    assert seen(ratio__log_sequence_p95=0.75) == ["5% of sequences have log s_i beyond 0.75 nats per token"]
    drift = "the policy moved by 0.06 nats per token within an iteration, while the reward does not rise"
    assert seen(kl__old_new_k3=0.06) == [drift]
    assert seen(kl__old_new_k3=0.06, reward__mean=0.59) == [drift]  # a gain of 0.09 of a range of 1
    assert seen(kl__old_new_k3=0.06, reward__mean=0.61) == []


def test_every_signature_has_a_case() -> None:
    assert set(SICK) | {"held_out_fall"} == set(SIGNATURES)  # whose numbers are those of evaluations


@pytest.mark.parametrize(
    ("what", "iterations"),
    [
        ("a skill that is learned: longer and surer while the reward rises",
         [{"policy/entropy": 0.3 * 0.8**i, "response/length": 8 + 2.0 * i, "reward/mean": min(0.3 + 0.06 * i, 0.98)}
          for i in range(20)]),
        ("a sudden insight",
         [*CALM, *[{"policy/entropy": 0.05, "response/length": 60.0, "reward/mean": 0.9}] * 4]),
        ("a shorter way to the same answer that pays more",
         [*CALM, *[{"response/length": 5.0, "reward/mean": 0.8}] * 4]),
        ("solved prompts: certain, and all groups equal",
         [*CALM, *[{"reward/mean": 0.97, "reward/dead_groups": 0.96, "policy/entropy": 0.1}] * 2,
          *[{"reward/mean": 0.98, "reward/dead_groups": 1.0, "policy/entropy": 0.01}] * 6]),
        ("a rare reward that comes and goes",
         [{"reward/mean": r, "reward/std": 0.14} for r in (0.0, 0.02, 0.03, 0.02, 0.0, 0.0, 0.01, 0.0, 0.0)]),
        ("texts that repeat themselves from the start", [{"response/repetition": 0.4}] * 10),
        ("entropy that doubles from nothing", [*[{"policy/entropy": 0.02}] * 6, *[{"policy/entropy": 0.05}] * 4]),
        ("a critic that is young, or has nothing left to explain",
         [*[{"critic/explained_variance": 0.0}] * 4, *[{"critic/explained_variance": 0.3}] * 4,
          *[{"critic/explained_variance": -0.1, "reward/mean": 0.95}] * 5]),
        ("a new optimizer's first steps",
         [{"ratio/log_sequence_std": 0.6, "ratio/effective_sample_size": 0.7, "ratio/log_sequence_p05": -3.0,
           "kl/old_new_k3": 0.3}, *CALM]),
        ("drift towards a teacher", [*CALM, *[{"kl/old_new_k3": 0.1, "distill/kl": 0.3}] * 4]),
        ("drift that pays", [*CALM, *[{"kl/old_new_k3": 0.1, "reward/mean": 0.65}] * 4]),
        ("just inside each bound",
         [*CALM, *[{"ratio/effective_sample_size": 0.86, "ratio/log_sequence_p05": -0.69,
                    "kl/old_new_k3": 0.049}] * 4]),
        ("two single spikes far apart", [*CALM, {"optim/gradient_spike": 26.0}, *CALM]),
    ],
)  # fmt: skip
def test_health_does_not_ring(what: str, iterations: list[dict[str, float]]) -> None:
    found = alarms(iterations)
    assert not [a for a in found if not (what.startswith("two") and a.signature != "gradient_spikes")], what


def test_nothing_ever_right_rings_after_three_iterations() -> None:
    nothing = {"reward/mean": 0.0, "reward/max": 0.0, "reward/std": 0.0, "reward/dead_groups": 1.0}
    (alarm,) = alarms([nothing] * 6)
    assert (alarm.signature, alarm.since, alarm.update) == ("dead_group_flood", 1, 6)


def test_signatures_stay_silent_about_metrics_that_are_not_measured() -> None:
    watch = Watch(kind() for kind in SIGNATURES.values())
    for update in range(1, 20):
        assert watch.see({"loss": 0.0, "reward/mean": 0.5}, update, last=True) == []


def test_an_episode_ends_and_the_next_one_rings_again() -> None:
    sick = [SICK["entropy_collapse"]] * 3
    watch = Watch(kind() for kind in SIGNATURES.values())
    found = alarms([*CALM, *sick, *CALM, *sick], watch)
    assert [a.since for a in found] == [13, 31]
    assert watch.present == ["entropy_collapse"]
    alarms([{}, {}], watch)
    assert watch.present == []


def test_sick_iterations_do_not_become_the_new_normal() -> None:
    watch = Watch(kind() for kind in SIGNATURES.values())
    alarms([*CALM, *[SICK["length_runaway"]] * 20], watch)
    assert watch.history.usual("response/length") == 20.0
    assert watch.present == ["length_runaway"]


def test_state_goes_through_json_and_raises_the_same_alarms() -> None:
    run = [*CALM, *[SICK["repetition"] | SICK["entropy_explosion"]] * 4]
    whole = Watch(kind() for kind in SIGNATURES.values())
    expected = alarms(run, whole)
    for cut in range(1, len(run) * PER_ITERATION):
        watch, found = Watch(kind() for kind in SIGNATURES.values()), []
        for update in range(1, len(run) * PER_ITERATION + 1):
            look = HEALTHY | run[(update - 1) // PER_ITERATION]
            found += watch.see(look, update, last=update % PER_ITERATION == 0)
            if update == cut:
                state = json.loads(json.dumps(watch.state_dict()))
                watch = Watch(kind() for kind in SIGNATURES.values())
                watch.load_state_dict(state)
        assert found == expected
        assert watch.state_dict() == whole.state_dict()


def held_out(accuracy: float, error: float = 0.02) -> dict[str, float]:
    return {"val/accuracy": accuracy, "val/accuracy_standard_error": error}


def test_held_out_accuracy_falls_when_it_is_three_standard_errors_of_the_difference_below_its_best() -> None:
    watch = Watch(kind() for kind in SIGNATURES.values())
    assert watch.see_evaluation(held_out(0.5), 0) == []
    assert watch.see_evaluation(held_out(0.6), 10) == []
    assert watch.see_evaluation(held_out(0.52), 20) == []  # 0.08 is less than 3 x 0.02 x sqrt(2) = 0.085
    assert watch.quiet
    (alarm,) = watch.see_evaluation(held_out(0.51), 30)
    assert (alarm.signature, alarm.since, alarm.update) == ("held_out_fall", 11, 30)
    assert alarm.what == "held-out accuracy 51.0%, 60.0% after update 10"
    assert watch.see_evaluation(held_out(0.4), 40) == []  # the same episode
    assert not watch.quiet
    assert watch.see_evaluation(held_out(0.6), 50) == []
    assert watch.quiet
    (again,) = watch.see_evaluation(held_out(0.4), 60)
    assert again.since == 51  # the later one of two equal evaluations is the best


def test_the_best_evaluation_is_part_of_the_state() -> None:
    watch, resumed = (Watch(kind() for kind in SIGNATURES.values()) for _ in range(2))
    watch.see_evaluation(held_out(0.6), 10)
    state = json.loads(json.dumps(watch.state_dict()))
    resumed.load_state_dict(state)
    assert [a.signature for a in resumed.see_evaluation(held_out(0.3), 20)] == ["held_out_fall"]


def share(right: range, n: int = 400) -> dict[int, float]:
    return {prompt: float(prompt in right) for prompt in range(n)}


def test_a_fall_of_held_out_accuracy_is_judged_by_the_paired_difference() -> None:
    """20 of 400 prompts become wrong and none right: sqrt(0.05 * 0.95 / 399) = 0.0109 is the error of -0.05.

    Two independent means of 0.5 and 0.45 have an error of 0.035, by which -0.05 is nothing.
    """
    watch, resumed = (Watch(kind() for kind in SIGNATURES.values()) for _ in range(2))
    assert watch.see_evaluation(held_out(0.5, 0.025), 10, share(range(200))) == []
    resumed.load_state_dict(json.loads(json.dumps(watch.state_dict())))
    for each in (watch, resumed):
        (alarm,) = each.see_evaluation(held_out(0.45, 0.0249), 20, share(range(180)))
        assert alarm.what == (
            "held-out accuracy 45.0%, 50.0% after update 10: -5.0 points, standard error 1.1, n = 400 paired prompts"
        )


def test_held_out_accuracy_that_was_perfect_has_an_error_all_the_same() -> None:
    """All or none of 5 prompts right has the standard error 0, and 5 signs are equal by chance once in 16 times."""
    watch = Watch(kind() for kind in SIGNATURES.values())
    assert watch.see_evaluation(held_out(1.0, 0.0), 10, share(range(5), 5)) == []
    assert watch.see_evaluation(held_out(0.0, 0.0), 20, share(range(0), 5)) == []
    ten = Watch(kind() for kind in SIGNATURES.values())
    assert ten.see_evaluation(held_out(1.0, 0.0), 10, share(range(10), 10)) == []
    assert len(ten.see_evaluation(held_out(0.0, 0.0), 20, share(range(0), 10))) == 1


def test_prompts_that_were_swapped_do_not_make_a_fall_of_held_out_accuracy() -> None:
    """60 become wrong and 40 right: -0.05 with an error of sqrt((0.25 - 0.05^2) / 399) = 0.0249."""
    watch = Watch(kind() for kind in SIGNATURES.values())
    watch.see_evaluation(held_out(0.5, 0.025), 10, share(range(200)))
    assert watch.see_evaluation(held_out(0.45, 0.0249), 20, share(range(60, 240))) == []


@pytest.mark.parametrize(("own", "paired"), [({}, 4), ({"errors": 5}, 5), ({"errors": 5, "paired_errors": 3}, 3)])
def test_errors_of_an_older_config_hold_for_paired_differences(own: dict[str, float], paired: float) -> None:
    watch = Collapse(thresholds={f"held_out_fall.{name}": value for name, value in own.items()}).watch
    (signature,) = (s for s in watch.signatures if s.name == "held_out_fall")
    assert vars(signature)["paired_errors"] == paired
