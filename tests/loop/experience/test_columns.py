"""Rewards and the pictures of prompts: files go where they are asked for, and nowhere else."""

from __future__ import annotations

from gspo_lightning.loop.experience.generate_and_score import _sample, columns_of
from gspo_lightning.policy.load.loading import load_policy
from gspo_lightning.policy.load.model_settings import ModelSettings
from gspo_lightning.rewards import FunctionReward, Reward
from gspo_lightning.rewards.by_record import Judges
from tests.policy.vision.test_exact import rollouts_of
from tests.support.pictures import png, seeing_prompt


class _Looks(Reward):
    def score(self, completion: str, images: list[bytes]) -> float:
        return float(len(images[0]))


class _Reads(Reward):
    def score(self, completion: str) -> float:
        return 0.0


def looks(completions: list[str], images: list[list[bytes]] | None = None) -> list[float]:
    return [float(len(files[0])) for files in images or []]


def everything(completions: list[str], **columns: list[object]) -> list[float]:
    return [float("images" in columns)]


def test_a_reward_that_names_images_gets_the_files_and_others_do_not() -> None:
    policy = load_policy(ModelSettings("tiny-qwen3-vl"))
    prompt = seeing_prompt(policy, 0, ["1+", png(0)])
    (rollout,) = rollouts_of([prompt], counts=(3,))
    for reward, asked in ((_Looks(), True), (_Reads(), False), (FunctionReward(looks), True)):
        judges = Judges({"one": reward})
        sample = _sample(rollout, -1, judges)
        assert ("images" in sample.columns) == asked
        assert (columns_of(prompt, judges) is prompt.columns) != asked
        if asked:
            (score,) = reward.score_batch([sample])
            assert getattr(score, "reward", score) == len(png(0))
    assert "images" not in _sample(rollout, -1, Judges({"all": FunctionReward(everything)})).columns
