"""Rollout and scoring together: scoring begins while other groups are still being sampled."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any
from unittest import mock

import pytest

from gspo_lightning.core.errors import InfrastructureError
from gspo_lightning.core.types import Prompt, Rollout, SamplingParams
from gspo_lightning.loop.experience.generate_and_score import generate_and_score
from gspo_lightning.policy.policy import Policy
from gspo_lightning.rewards import FormatReward, RewardRunner, Sample
from gspo_lightning.rewards.workers.runner import Pending
from gspo_lightning.rollouts import Draws, GroupedSampler
from gspo_lightning.rollouts.sampler.decode_batch import DecodeBatch

SAMPLING = SamplingParams(12, stop_token_ids=(1, 5, 9, 20))
PATIENCE_S = 120


class Watched(RewardRunner):
    """Remembers what was submitted."""

    submitted: list[Pending]

    def submit(self, samples: Sequence[Sample]) -> Pending:
        pending = super().submit(samples)
        self.submitted = [*getattr(self, "submitted", []), pending]
        return pending


class Waiting(GroupedSampler):
    """Does not go on before the groups that are complete are scored."""

    def __init__(self, runner: Watched) -> None:
        super().__init__(max_rows=3)  # one prompt after another
        self.runner = runner
        self.scored_early = 0

    def generate(self, *args: Any, **options: Any) -> list[list[Rollout]]:
        """See :meth:`GroupedSampler.generate`."""
        own = DecodeBatch.sample

        def sample(batch: DecodeBatch) -> None:
            self._wait()
            own(batch)

        with mock.patch.object(DecodeBatch, "sample", sample):
            return super().generate(*args, **options)

    def _wait(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        begun = getattr(self.runner, "submitted", [])
        while not all(p.done() for p in begun) and time.monotonic() < deadline:
            time.sleep(0.01)
        self.scored_early = max(self.scored_early, sum(p.done() for p in begun))


def ask(policy: Policy, prompts: list[Prompt], source: GroupedSampler, runner: RewardRunner) -> list[list[Rollout]]:
    groups, seconds = generate_and_score(
        source, policy, prompts, runner, group_size=3, sampling=SAMPLING, draws=Draws(7), version=0
    )
    assert set(seconds) == {"time/rollout_s", "time/reward_s"}
    return groups


@pytest.mark.parametrize("packed", [False, True])
def test_groups_are_scored_while_others_are_sampled(policy: Policy, prompts: list[Prompt], packed: bool) -> None:
    policy.packed = packed
    with Watched({"digits": FormatReward(r"[0-9].*")}, num_workers=1) as runner:
        source = Waiting(runner)
        groups = ask(policy, prompts, source, runner)
        assert source.scored_early >= len(prompts) - 1  # all but the last were scored before the last was sampled
        assert source.on_group is None
        assert [g[0].prompt for g in groups] == prompts
        alone = [runner.score([Sample("x", r.prompt.text, r.text)])[0].reward for g in groups for r in g]
        assert [r.reward for g in groups for r in g] == alone
        assert len(set(alone)) == 2


def test_a_source_that_says_nothing_is_scored_at_the_end(policy: Policy, prompts: list[Prompt]) -> None:
    class Silent(GroupedSampler):
        def generate(self, *args: Any, **kwargs: Any) -> list[list[Rollout]]:
            self.on_group = None
            return super().generate(*args, **kwargs)

    with RewardRunner({"digits": FormatReward(r"[0-9].*")}, num_workers=1) as runner:
        groups, told = ask(policy, prompts, Silent(), runner), ask(policy, prompts, GroupedSampler(), runner)
    assert [r.reward for g in groups for r in g] == [r.reward for g in told for r in g]
    assert all(r.reward is not None for g in groups for r in g)


def test_lost_samples_are_counted_over_all_submissions() -> None:
    with RewardRunner({"digits": FormatReward(r"[0-9].*")}, num_workers=1, max_missing_rate=0.25) as runner:
        pending = [runner.submit([Sample(f"{i}/{k}", "", "1") for k in range(5)]) for i in range(4)]
        runner.gather(pending)
        for p in pending[:2]:  # as if their workers had been lost twice
            p._job.lost.update({0, 1, 2})
            for name, scores in p._job.parts.items():
                p._job.parts[name] = [lost(s) if i < 3 else s for i, s in enumerate(scores)]
        with pytest.raises(InfrastructureError, match=r"6 of 20 samples could not be scored.*0/0: gone"):
            runner.gather(pending)
        runner.max_missing_rate = 0.3
        assert [s.reward for s in runner.gather(pending)[:5]] == [None, None, None, 1.0, 1.0]


def lost(score: Any) -> Any:
    return type(score)(None, type(score.status).MISSING, "gone")
