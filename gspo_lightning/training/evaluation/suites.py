"""Evaluate suites during training, with the code of ``gspo evaluate``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from gspo_lightning.core.distributed import all_gather_objects, fail_together, rank_and_world
from gspo_lightning.core.types import SystemPrompt
from gspo_lightning.policy.policy import Policy
from gspo_lightning.rewards import RewardRunner
from gspo_lightning.rollouts.source import RolloutSource
from gspo_lightning.training.evaluation.answering import answers_of
from gspo_lightning.training.suites.judging import judge
from gspo_lightning.training.suites.metrics import Graded, measure
from gspo_lightning.training.suites.problems import Problem, read_problems
from gspo_lightning.training.suites.suite import Suite, load_suite


class SuiteEvaluations:
    """Suites with their problems, answered by the policy of a run; ranks share the problems.

    Args:
        names: names of shipped suites, or YAML files; ``NAME:WINDOW`` for a window of dates.
        workers: processes that grade answers; None takes all cores but one.
        system_prompt: for suites without one.
        chat_template_kwargs: for every prompt.
    """

    def __init__(
        self,
        names: Sequence[str],
        workers: int | None = None,
        system_prompt: SystemPrompt | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        self.names, self.workers = tuple(names), workers
        self.system_prompt, self.template_kwargs = system_prompt, dict(chat_template_kwargs or {})
        self._read: list[tuple[Suite, list[Problem]]] = []

    def prepare(self) -> None:
        """Read suites and problems, before training starts.

        Raises:
            UserError: a suite or its data are missing or malformed.
        """
        if not self._read:
            for name, _, window in (name.partition(":") for name in self.names):
                suite = load_suite(name)
                self._read.append((suite, read_problems(suite, None, window)))

    def measure(
        self,
        policy: Policy,
        source: RolloutSource,
        *,
        context: Callable[[], AbstractContextManager[Any]] = nullcontext,
        version: int = 0,
    ) -> dict[str, float]:
        """Return ``suite/<name>/<metric>`` -> value over all ranks' problems; see :func:`answers_of`. A collective."""
        self.prepare()
        training = policy.training
        policy.eval()
        try:
            parts = [self._measure(policy, source, *one, context, version) for one in self._read]
        finally:
            policy.train(training)
        return {name: value for part in parts for name, value in part.items()}

    def _measure(
        self,
        policy: Policy,
        source: RolloutSource,
        suite: Suite,
        problems: Sequence[Problem],
        context: Callable[[], AbstractContextManager[Any]],
        version: int,
    ) -> dict[str, float]:
        rank, world = rank_and_world()
        wanted = [(p, range(suite.samples) if i % world == rank else ()) for i, p in enumerate(problems)]
        graded: dict[str, list[Graded]] = {}
        with fail_together(), RewardRunner({"answer": suite.reward}, num_workers=self.workers) as runner:
            answers = answers_of(
                policy, source, suite, wanted, system_prompt=self.system_prompt,
                chat_template_kwargs=self.template_kwargs, context=context, version=version,
            )  # fmt: skip
            for verdicts in judge(suite, {p.id: p for p in problems}, answers, runner):
                for verdict in (v for v in verdicts if v.value is not None):
                    graded.setdefault(verdict.id, []).append(Graded.of(verdict))
        everybodys = {i: rows for part in all_gather_objects(graded) for i, rows in part.items()}
        counted = measure(suite, problems, everybodys)
        return {f"suite/{suite.name}/{metric}": one.new_problems.value for metric, one in counted.items()}
