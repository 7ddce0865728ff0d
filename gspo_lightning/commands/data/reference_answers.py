"""Check which reference answers of a file its reward can parse, and count the kinds of program tests."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gspo_lightning.commands.score import build_reward
from gspo_lightning.core.errors import counted
from gspo_lightning.data.corpus.files import Inputs
from gspo_lightning.data.corpus.text import prompt_text
from gspo_lightning.rewards import Reward, RewardRunner, Sample, ScoreStatus
from gspo_lightning.rewards.code.answer import BadAnswerError, read_answer

_MOST = 2000
"""Maximum number of records checked, spread over the file."""
_TESTS = ("tests", "inputs", "input_output", "public_tests", "public_test_cases", "test", "test_list", "assert_case")


@dataclass(slots=True)
class ReferenceAnswers:
    """Results of the check of reference answers."""

    reward: str = ""
    read: int = 0
    of: int = 0
    unreadable: list[tuple[str, str]] = field(default_factory=list)
    """(place, reason) of each unreadable answer."""
    kinds: Counter[str] = field(default_factory=Counter)
    """Kind and language of tests -> number of records."""

    def lines(self) -> list[str]:
        """Return the results as lines of text."""
        if not self.reward:
            return ["answers: no record has one"]
        extent = "all" if self.read == self.of else f"{self.read:,} of them, from all over the file,"
        lines = [f"answers: {self.of:,}, {extent} read by {self.reward}; {len(self.unreadable):,} unreadable"]
        if self.unreadable:
            first, _ = self.unreadable[0]
            lines.append(f"  {counted(_without_text(reason) for _, reason in self.unreadable)}; the first is {first}")
        if self.kinds:
            lines.append("tests: " + ", ".join(f"{count:,} {kind}" for kind, count in self.kinds.most_common()))
        return lines


def read_reference_answers(
    inputs: Inputs, columns: Mapping[str, Any], rewards: Mapping[str, Reward], named: str | None
) -> ReferenceAnswers:
    """Score an empty response to each record: the status *missing* means that the reference answer cannot be parsed.

    Args:
        inputs: the files, read once more.
        columns: name here -> column of the file.
        rewards: rewards of a config; ``named`` takes precedence.
        named: reward as ``NAME[:JSON]``; without any reward, the kind of the answers determines it.
    """
    step = max(1, -(-len(inputs) // _MOST))
    samples = []
    places = []
    for index, record in enumerate(inputs.records()):
        if index % step == 0:
            values = _mapped(record.values, columns)
            if values.get("answer") is not None or rewards or named:
                samples.append(_sample(index, values))
                places.append(inputs.name(record.file, record.number))
    if not samples:
        return ReferenceAnswers()
    judges = {named: build_reward(named)} if named else dict(rewards) or _guessed(samples)
    names = [type(reward).__name__ for reward in judges.values()]
    references = ReferenceAnswers(", ".join(names), len(samples), len(inputs))
    with RewardRunner(judges) as runner:
        scores = runner.score(samples)
    for sample, place, score in zip(samples, places, scores, strict=True):
        reason = _reason(sample, judges, score)
        if reason is not None:
            references.unreadable.append((place, reason))
        elif "CodeExecutor" in names:
            references.kinds[_kind(sample.columns.get("answer"))] += 1
    return references


def _mapped(values: Mapping[str, Any], columns: Mapping[str, Any]) -> dict[str, Any]:
    if not columns:
        return dict(values)
    from gspo_lightning.data.prompts.prompt_set import map_columns  # torch

    return map_columns(values, columns)


def _sample(index: int, values: Mapping[str, Any]) -> Sample:
    rest = {name: value for name, value in values.items() if name != "prompt"}
    return Sample(str(index), prompt_text(values.get("prompt")) or "", "", columns=rest)


def _guessed(samples: list[Sample]) -> dict[str, Reward]:
    """Return CodeExecutor if most answers are program tests, else MathVerifier."""
    answers = [sample.columns.get("answer") for sample in samples]
    tests = sum(isinstance(answer, Mapping) and any(name in answer for name in _TESTS) for answer in answers)
    name = "CodeExecutor" if 2 * tests > len(answers) else "MathVerifier"
    return {name: build_reward(name)}


def _reason(sample: Sample, rewards: Mapping[str, Reward], score: Any) -> str | None:
    """Return why the first reward that cannot read a record's answer cannot; None if all can."""
    for name, reward in rewards.items():
        missing = reward.missing_column(sample)
        if missing is not None:
            return missing
        if score.parts[name].status is ScoreStatus.MISSING:
            return str(score.parts[name].detail)
    return None


def _without_text(reason: str) -> str:
    """Return a reason without the answer it quotes, so that reasons of one kind are counted together."""
    return re.split(r""": ['"]""", reason, maxsplit=1)[0]


def _kind(answer: Any) -> str:
    try:
        task = read_answer(answer)
    except BadAnswerError:
        return "unreadable"
    return f"{task.kind} in {task.language or 'python'}"
