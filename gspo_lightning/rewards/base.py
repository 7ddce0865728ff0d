"""What a reward is: a class with a ``score`` method whose arguments are injected by name.

A reward sees text, not tensors, and runs in worker processes that can be killed, so nothing here imports torch.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from gspo_lightning.errors import UserError
from gspo_lightning.rewards.scores import to_score
from gspo_lightning.rewards.signature import Plan, make_plan
from gspo_lightning.rewards.types import Sample, Score

__all__ = ["Reward"]


class Reward(ABC):
    """A judge of completions. Defining a subclass registers it under its name.

    Subclasses define ``score``. Its parameters are filled by name from ``prompt``, ``completion``,
    ``completion_ids``, ``truncated``, ``sample`` (the whole :class:`Sample`) and the record's columns (``answer``
    ...); ``**columns`` takes all columns that are not named. It returns a number, a :class:`Score`, or None for
    *missing*, and may be ``async``. Rewards that judge many samples at once define ``score_batch`` instead.

    An exception stops the run: a reward that cannot judge an answer returns ``Score.model_error``. In a
    worker an ``InfrastructureError`` (a server is down, a sandbox did not start) costs only the sample: it is judged
    once more, then *missing*.

    >>> class _Length(Reward):
    ...     def score(self, completion: str) -> float:
    ...         return float(len(completion))
    >>> _Length().score_batch([Sample("0", "say hi", "hi")])
    [Score(reward=2.0, status=<ScoreStatus.OK: 'ok'>, detail='')]
    """

    where: Literal["worker", "trainer"] = "worker"
    """Where it runs: in a killable worker process, or (models on the device) in the training process itself."""
    deadline_s: float | None = None
    """CPU seconds that a sample may use, for rewards that keep time limits of their own; None: the runner's."""
    agrees_with: str | None = None
    """Name of another reward, with known answers, that its verdicts are compared with (``reward/agreement/<name>``)."""
    reads_answers: bool = False
    """Whether it may be unable to read a record's answer: many are tried, and counted, before the first rollout."""
    no_answer: ClassVar[str] = ".+"
    """A regular expression of the details that say, with a reward of 0, that there was no answer to judge."""
    _plan: ClassVar[Plan]

    def __init_subclass__(cls, **options: Any) -> None:
        """Refuse a class that could only fail later.

        Raises:
            UserError: ``score`` is not a plain method, takes ``*args`` or nothing, or ``where`` is no known place.
        """
        super().__init_subclass__(**options)
        if cls.where not in ("worker", "trainer"):
            raise UserError(f"{cls.__qualname__}.where", f"is {cls.where!r}; it must be 'worker' or 'trainer'")
        if "score" in cls.__dict__:
            cls._plan = make_plan(cls.__dict__["score"], f"{cls.__qualname__}.score", method=True)
        elif "score_batch" in cls.__dict__ and getattr(cls.score, "__isabstractmethod__", False):
            cls.score = _score_by_batch  # type: ignore[method-assign]
            cls._plan = Plan((), (), takes_columns=False)

    @abstractmethod
    def score(self, *args: Any, **kwargs: Any) -> Any:
        """Judge one sample; see the class."""

    def score_batch(self, samples: Sequence[Sample]) -> Sequence[float | Score | None]:
        """Judge samples together; one value per sample, in order. It may be ``async``.

        In a worker a batch is a part of what is to be scored (up to 32 samples) and its deadline is that of a single
        sample; if it overruns, its samples are judged one by one.
        """
        if inspect.iscoroutinefunction(self.score):
            import asyncio  # slow to import, and most workers never use it

            return asyncio.run(self._score_concurrently(samples))
        return [self.score_one(sample) for sample in samples]

    def prepare(self) -> None:  # noqa: B027 (a hook that few rewards need)
        """Called once in each process that scores, before its first sample and outside its deadline: slow imports."""

    def score_one(self, sample: Sample) -> Score:
        """The verdict on one sample by ``score``.

        Raises:
            UserError: ``score`` returned something that is not a reward.
        """
        return to_score(self.score(**self.arguments(sample)), type(self).__name__, sample.id)

    def reads_images(self) -> bool:
        """Whether it names ``images``: only then are the files of a prompt's pictures sent to where it runs."""
        return "images" in (*self._plan.required, *self._plan.optional)

    def required_columns(self) -> tuple[str, ...]:
        """The columns that a record must have: parameters of ``score`` without a default."""
        return self._plan.required

    def missing_column(self, sample: Sample) -> str | None:
        """Why a sample cannot be judged (a missing column, an answer of None), or None if it can."""
        for name in self.required_columns():
            if name not in sample.columns:
                return f"the record has no column {name!r}"
            if name == "answer" and sample.columns[name] is None:
                return "the record's answer is null"
        return None

    def arguments(self, sample: Sample) -> dict[str, Any]:
        """The keyword arguments of ``score`` for a sample."""
        return self._plan.arguments(sample)

    @property
    def batched(self) -> bool:
        """Whether several samples are judged by one call (own ``score_batch``, or async ``score``)."""
        return type(self).score_batch is not Reward.score_batch or inspect.iscoroutinefunction(self.score)

    async def _score_concurrently(self, samples: Sequence[Sample]) -> list[Score]:
        import asyncio

        values = await asyncio.gather(*(self.score(**self.arguments(sample)) for sample in samples))
        return [to_score(v, type(self).__name__, s.id) for v, s in zip(values, samples, strict=True)]


def _score_by_batch(self: Reward, sample: Sample) -> Any:
    return self.score_batch([sample])[0]
