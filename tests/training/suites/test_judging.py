"""Answers are judged as they are read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gspo_lightning.rewards import RewardRunner
from gspo_lightning.training.suites.judging import _AHEAD, _BATCH, judge
from gspo_lightning.training.suites.problems import Problem
from gspo_lightning.training.suites.suite import load_suite
from gspo_lightning.training.suites.verdicts import Answer

SUITE = "about: sums\nreward: {class_path: ExactMatch}\nmetrics: [avg]\n"
COUNT = 6000


def test_a_few_batches_of_texts_are_held_however_many_answers_there_are(tmp_path: Path) -> None:
    (tmp_path / "sums.yaml").write_text(SUITE)
    suite, problem = load_suite(str(tmp_path / "sums.yaml")), Problem("1", "1+1:", {"answer": "2"})
    read = graded = most = 0

    def answers() -> Iterator[Answer]:
        nonlocal read, most
        for sample in range(COUNT):
            read += 1
            most = max(most, read - graded)
            yield Answer("1", sample, f"#{sample % 3}")

    right = 0
    with RewardRunner({"answer": suite.reward}, num_workers=1) as runner:
        for verdicts in judge(suite, {"1": problem}, answers(), runner):
            graded += len(verdicts)
            right += sum(verdict.right for verdict in verdicts)
    assert (graded, right) == (COUNT, COUNT // 3)
    assert most <= (_AHEAD + 2) * _BATCH
