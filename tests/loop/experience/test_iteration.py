"""One iteration as ``gspo fit`` and ``GSPOTrainer`` tell it: what comes before what, and what each step sees."""

from __future__ import annotations

import dataclasses
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.randomness import Purpose
from gspo_lightning.core.types import Prompt
from gspo_lightning.data.prompts.order import PromptOrder
from gspo_lightning.loop.advantages import GAE, BatchNormalised, Raw
from gspo_lightning.loop.advantages.shaping import Shaping
from gspo_lightning.loop.experience.collect import Experience
from gspo_lightning.loop.experience.generate_and_score import GenerateAndScore
from gspo_lightning.loop.experience.iteration import Iteration
from gspo_lightning.loop.experience.sampling import Sampling
from gspo_lightning.loop.experience.settings import ExperienceSettings
from gspo_lightning.loop.old_policy import CachedLogProbs, OldPolicy, ResidentSnapshot
from gspo_lightning.loop.old_policy.logprobs import OldLogProbs
from gspo_lightning.loop.old_policy.reference import ReferencePolicy
from gspo_lightning.loop.old_policy.teacher import Teacher
from gspo_lightning.objectives import GSPO
from gspo_lightning.policy.policy import Policy
from gspo_lightning.rewards import Sample, SampleScore
from gspo_lightning.rollouts import GroupedSampler
from gspo_lightning.rollouts.recording.records import recording_file

SETTINGS = ExperienceSettings(
    group_size=4, prompts_per_rollout=4, minibatches_per_rollout=2, max_response_tokens=6, max_prompt_tokens=8,
    max_tokens_per_micro_batch=64, seed=3,
)  # fmt: skip


class Student:
    """A learner that stands at update 7 of nothing in particular."""

    def __init__(self, policy: Policy, old: OldPolicy | None = None, choice: Any = "recompute") -> None:
        self.policy = policy
        self.every_row_learns = False
        self.old_policy: OldPolicy = old or CachedLogProbs()
        self.old_logprobs = OldLogProbs(choice, GSPO())
        self.reference: ReferencePolicy | None = None
        self.teacher: Teacher | None = None
        self.device, self.version = policy.device, 7
        self.iterations: int | None = None

    lr_factor = 1.0

    def forward_context(self) -> AbstractContextManager[Any]:
        return nullcontext()


class Sevens:
    """Pays for every 7, and nothing to prompts of a text it is told."""

    def __init__(self, dead: str = "") -> None:
        self.dead, self.asked = dead, list[str]()

    def score(self, samples: list[Sample]) -> list[SampleScore]:
        self.asked += [s.prompt for s in samples]
        return [SampleScore(0.0 if s.prompt == self.dead else float(len(s.completion)), {}) for s in samples]


def iteration(
    student: Student, prompts: list[Prompt], settings: ExperienceSettings = SETTINGS, rewards: Any = None, **rest: Any
) -> Iteration:
    order = PromptOrder(prompts, settings.prompts_per_rollout, settings.minibatches_per_rollout, settings.seed)
    generate_and_score = GenerateAndScore(
        GroupedSampler(), rewards or Sevens(), settings.group_size, settings.seed, Purpose.TRAIN_SAMPLING
    )
    sampling = Sampling(student, settings, order, generate_and_score)
    return Iteration(sampling, lambda: settings.max_tokens_per_micro_batch, **rest)


@pytest.fixture
def many(prompts: list[Prompt]) -> list[Prompt]:
    return [dataclasses.replace(prompts[i % len(prompts)], id=i, text=f"prompt {i}") for i in range(9)]


def advantages(experience: Experience) -> torch.Tensor:
    return torch.cat([part.advantages for batch in experience.mini_batches for part in batch.micro_batches])


def test_iteration_trains_on_group_normalised_rewards(policy: Policy, many: list[Prompt]) -> None:
    """By hand: less the mean, over the standard deviation, of each group; rows are known by their hash."""
    found = iteration(Student(policy), many).run(0)
    by_prompt: dict[str, list[float]] = {}
    for name, (_, reward) in found.rewards.items():
        by_prompt.setdefault(name.partition("/")[0], []).append(reward)
    wanted: list[float] = []
    for values in by_prompt.values():
        rewards = torch.tensor(values, dtype=torch.float64)
        spread = rewards.std()
        wanted += ((rewards - rewards.mean()) / spread if spread > 0 else 0 * rewards).tolist()
    assert sorted(advantages(found).tolist()) == pytest.approx(sorted(wanted), abs=1e-3)
    assert max(wanted) > 0.5
    assert [batch.index for batch in found.mini_batches] == [0, 1]


def test_the_first_update_has_no_old_logprobs_to_compute_and_the_second_has(policy: Policy, many: list[Prompt]) -> None:
    first, second = iteration(Student(policy), many).run(0).mini_batches
    assert all(part.old_logprobs is None for part in first.micro_batches)
    for part in second.micro_batches:
        with torch.no_grad():
            assert part.old_logprobs is not None
            gap = torch.where(part.response_mask, policy(part, 1.0)[0] - part.old_logprobs, 0.0)
        assert float(gap.abs().max()) == 0.0


def test_two_epochs_need_all_old_logprobs(policy: Policy, many: list[Prompt]) -> None:
    settings = dataclasses.replace(SETTINGS, epochs_per_rollout=2)
    found = iteration(Student(policy), many, settings).run(0)
    assert all(part.old_logprobs is not None for batch in found.mini_batches for part in batch.micro_batches)


def test_a_snapshot_samples_and_is_taken_before(policy: Policy, many: list[Prompt]) -> None:
    """The live policy moves between two iterations: with ``refresh_every: 2`` the second one samples as the first."""
    student = Student(policy, ResidentSnapshot(refresh_every=2))
    made = iteration(student, many[:4])
    made.run(0)
    with torch.no_grad():
        policy.model.get_output_embeddings().weight.mul_(3.0)
    same = iteration(Student(student.old_policy.sampling_policy(policy)), many[:4]).run(1)
    assert made.run(1).rewards == same.rewards
    assert iteration(Student(policy), many[:4]).run(1).rewards != same.rewards


def test_dead_groups_by_raw_reward_are_replaced_before_anything_is_computed(policy: Policy, many: list[Prompt]) -> None:
    settings = dataclasses.replace(SETTINGS, resample_dead_groups=3)
    order = PromptOrder(many, 4, 2, settings.seed)
    dead, spare = order.prompts_for_rank(0)[1].text, [p.text for p in order.replacement_prompts(0, 3)]
    rewards = Sevens(dead)
    found = iteration(Student(policy), many, settings, rewards).run(0)
    assert found.metrics["reward/resampled_groups"] >= 1
    assert set(rewards.asked[16:]) <= set(spare)
    assert not any(name.startswith(f"{order.prompts_for_rank(0)[1].id}/") for name in found.rewards)


def test_every_response_that_was_sampled_is_recorded(policy: Policy, many: list[Prompt], tmp_path: Path) -> None:
    settings = dataclasses.replace(SETTINGS, resample_dead_groups=3, record_rollouts=True)
    rewards = Sevens(PromptOrder(many, 4, 2, settings.seed).prompts_for_rank(0)[1].text)
    iteration(Student(policy), many, settings, rewards, folder=tmp_path).run(0)
    assert len(recording_file(tmp_path, 0, 0).read_text().splitlines()) == len(rewards.asked) > 16


def test_the_share_of_waiting_is_of_the_time_since_the_last_rollouts(policy: Policy, many: list[Prompt]) -> None:
    found = iteration(Student(policy), many)
    assert [found._wait_share(*times) for times in ((10.0, 14.0), (20.0, 22.0), (30.0, 30.0))] == [1.0, 0.25, 0.0]
    assert iteration(Student(policy), many).run(0).metrics["time/rollout_wait_share"] == 1.0


def test_a_kl_penalty_moves_advantages_and_never_rewards(policy: Policy, many: list[Prompt]) -> None:
    plain = iteration(Student(policy), many).run(0)
    student = Student(policy)
    student.reference = ReferencePolicy(policy)
    with torch.no_grad():
        student.reference.policy.model.get_output_embeddings().weight.mul_(3.0)
    kept = student.reference.policy.model.get_output_embeddings().weight.clone()
    penalised = iteration(student, many, dataclasses.replace(SETTINGS, kl_in_reward=1.0)).run(0)
    assert penalised.rewards == plain.rewards
    assert float((advantages(penalised) - advantages(plain)).abs().max()) > 0.01
    assert torch.equal(student.reference.policy.model.get_output_embeddings().weight, kept)
    for batch in penalised.mini_batches:
        assert all(part.ref_logprobs is not None for part in batch.micro_batches)


def test_masked_responses_have_no_part_in_the_loss(policy: Policy, many: list[Prompt]) -> None:
    settings = dataclasses.replace(SETTINGS, shaping=Shaping(truncated="mask"), max_response_tokens=2)
    found = iteration(Student(policy), many, settings).run(0)
    masks = [part.response_mask.any(dim=1) for batch in found.mini_batches for part in batch.micro_batches]
    assert found.metrics["reward/masked"] == pytest.approx(1 - float(torch.cat(masks).double().mean()))
    assert found.metrics["reward/masked"] > 0


def test_nothing_to_learn_from_stops_before_any_forward_pass(
    policy: Policy, many: list[Prompt], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Silent:
        def score(self, samples: list[Sample]) -> list[SampleScore]:
            return [SampleScore(None, {}) for _ in samples]

    def prepare(*_: Any) -> None:
        pytest.fail("old log-probabilities were computed")

    student = Student(policy)
    monkeypatch.setattr(student.old_policy, "prepare", prepare)
    made = iteration(student, many, rewards=Silent())
    with pytest.raises(UserError, match="no response of iteration 5 has a reward"):
        made.run(5)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"group_size": 0}, "data.group_size: is 0; it must be at least 1"),
        ({"temperature": 0.0}, "data.temperature: is 0.0; training rollouts must be sampled"),
        ({"prompts_per_rollout": 5}, "5 prompts cannot be dealt evenly to 2 mini-batches"),
        ({"max_tokens_per_micro_batch": 13}, "8 \\+ 6 = 14 tokens"),
        ({"prompts_in_flight": 2}, "fewer than data.prompts_per_rollout = 4"),
        ({"prompts_in_flight": 8, "max_staleness": 1}, "data.max_staleness: cannot be combined with partial rollouts"),
        ({"resample_dead_groups": 1, "max_staleness": 1}, "cannot be combined with asynchronous rollouts"),
        (
            {"resample_dead_groups": 8, "group_size": 1, "advantages": Raw()},
            r"data\.resample_dead_groups: is 8, but data\.group_size is 1: every group would be replaced",
        ),
        *(
            ({"resample_dead_groups": 8, "advantages": advantages}, f"is 8, but data.advantages is {name}, which also")
            for name, advantages in {"GAE": GAE(), "Raw": Raw(), "BatchNormalised": BatchNormalised()}.items()
        ),
        ({"kl_in_reward": -0.1}, "data.kl_in_reward: is -0.1; it must be 0 or above"),
        ({"max_carry": -1}, "data.max_carry: is -1; it must be 0 or above"),
    ],
)
def test_settings_check_themselves(change: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        dataclasses.replace(SETTINGS, **change)


def test_settings_know_what_ranks_can_share() -> None:
    SETTINGS.check_ranks(2)
    with pytest.raises(UserError, match=r"a mini-batch of 2 groups cannot be dealt evenly to 4 ranks"):
        SETTINGS.check_ranks(4)
    with pytest.raises(UserError, match="holds 3 usable prompts, fewer than one rollout batch"):
        SETTINGS.check_prompts(3)
