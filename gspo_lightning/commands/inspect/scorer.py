"""Rewards as scorers of Inspect: the verdicts of training and of ``gspo evaluate`` in Inspect's logs."""

from __future__ import annotations

import math
from typing import Any

from inspect_ai._util.error import PrerequisiteError
from inspect_ai.scorer import CORRECT, INCORRECT, NOANSWER, Score, Scorer, Target, accuracy, scorer, stderr
from inspect_ai.solver import TaskState

from gspo_lightning.commands.inspect.request import until
from gspo_lightning.core.errors import GSPOError, UserError, did_you_mean
from gspo_lightning.core.registry import component, parameters
from gspo_lightning.core.tolerance import is_right
from gspo_lightning.rewards import Reward, RewardRunner, Sample, SampleScore
from gspo_lightning.training.suites.judging import unread


@scorer(metrics=[accuracy(), stderr()])
def reward_scorer(reward: str, **init_args: Any) -> Scorer:
    """Score answers by a reward, in a worker process with a deadline.

    An answer is correct if the reward is 1 or more, as in ``gspo evaluate``: the accuracy of one epoch is ``avg@1``, of
    k epochs ``avg@k``. The reward itself is in the score's metadata. An answer that cannot be graded (*missing*: a
    sandbox or a judge failed) is left out of the metrics.

    The reward's columns are the sample's metadata; without ``answer`` there, the target is the answer. Of several
    targets, any is right: the best score counts.

    Args:
        reward: name of the reward, such as ``MathVerifier``.
        init_args: settings of the reward.

    Raises:
        PrerequisiteError: no such reward or setting.

    >>> judge = reward_scorer("MathVerifier")
    """
    try:
        return RewardScorer(reward, _reward(reward, init_args))
    except UserError as error:
        raise PrerequisiteError(str(error)) from error


class RewardScorer:
    """Scorer made by :func:`reward_scorer`. Its worker processes end with the program, or by :meth:`close`."""

    def __init__(self, name: str, reward: Reward) -> None:
        self.name = name
        self.runner = RewardRunner({"answer": reward})

    async def __call__(self, state: TaskState, target: Target) -> Score:
        """Score the model's last answer.

        Raises:
            PrerequisiteError: the sample lacks a column, or the reward itself is broken.
        """
        answers = [state.metadata["answer"]] if "answer" in state.metadata else list(target) or [""]
        truncated = bool(state.output.choices) and state.output.stop_reason in ("max_tokens", "model_length")
        text = state.output.completion
        samples = []
        for number, answer in enumerate(answers):
            sample_id = f"{state.sample_id}/{state.epoch}" + f"/{number}" * (len(answers) > 1)
            columns = {**state.metadata, "answer": answer}
            samples.append(Sample(sample_id, state.input_text, text, (), columns, truncated))
        missing = self.runner.rewards["answer"].missing_column(samples[0])
        if missing:
            raise PrerequisiteError(f"{self.name}: {missing}; put it into the metadata of the samples")
        try:
            pending = self.runner.submit(samples)
            await until(pending.done)
            best = max(pending.result(), key=lambda verdict: -math.inf if verdict.reward is None else verdict.reward)
            return _score(self.runner.rewards["answer"], best, text)
        except GSPOError as error:
            raise PrerequisiteError(str(error)) from error

    def close(self) -> None:
        """Stop the worker processes; the next answer starts new ones."""
        self.runner.close()


def _reward(name: str, init_args: dict[str, Any]) -> Reward:
    cls = component("rewards", name)
    settings = [parameter.name for parameter in parameters(cls)]
    for argument in init_args:
        if argument not in settings:
            raise UserError("reward_scorer", f"{name} has no setting {argument!r}; {did_you_mean(argument, settings)}")
    try:
        reward: Reward = cls(**init_args)
    except (TypeError, ValueError) as error:
        raise UserError("reward_scorer", f"{name}: {error}") from error
    if reward.where != "worker":
        raise UserError("reward_scorer", f"{name} runs in the process of a training only", fix="name another reward")
    return reward


def _score(reward: Reward, verdict: SampleScore, text: str) -> Score:
    metadata = {"reward": verdict.reward, "status": str(verdict.status)}
    if verdict.reward is None:
        return Score.unscored(reason="scoring_failed", explanation=verdict.detail, metadata=metadata)
    if is_right(verdict.reward):
        value = CORRECT
    else:
        value = NOANSWER if unread(reward, verdict) else INCORRECT
    return Score(value=value, answer=text or None, explanation=verdict.detail or None, metadata=metadata)
