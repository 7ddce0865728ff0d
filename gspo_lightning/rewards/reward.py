"""The ``Reward`` base class: a ``score`` method whose arguments are injected by name.

A reward sees text, not tensors, and runs in worker processes that can be killed. Nothing here imports torch.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from gspo_lightning.core.errors import UserError
from gspo_lightning.rewards.scores import to_score
from gspo_lightning.rewards.signature import Plan, make_plan
from gspo_lightning.rewards.types import Sample, Score


class Reward(ABC):
    """A scorer of completions. Defining a subclass registers it under its name.

    Subclasses define ``score``. Its parameters are filled by name from ``prompt``, ``completion``,
    ``completion_ids``, ``truncated``, ``unfinished_thought``, ``sample`` (the whole :class:`Sample`) and the record's
    columns (``answer`` ...); ``**columns`` takes all columns that are not named. It returns a number, a
    :class:`Score`, or None for *missing*, and may be ``async``. Rewards that score many samples at once define
    ``score_batch`` instead.

    An exception stops the run. A reward that cannot judge an answer returns ``Score.model_error``. In a worker an
    ``InfrastructureError`` (a server is down, a sandbox did not start) costs only the sample: it is scored once more,
    then *missing*.

    >>> class _Length(Reward):
    ...     def score(self, completion: str) -> float:
    ...         return float(len(completion))
    >>> _Length().score_batch([Sample("0", "say hi", "hi")])
    [Score(reward=2.0, status=<ScoreStatus.OK: 'ok'>, detail='')]
    """

    where: Literal["worker", "trainer"] = "worker"
    """A ``worker`` is a killable process; the ``trainer`` is the training process, for models on its device."""
    deadline_s: float | None = None
    """CPU seconds per sample, for rewards that enforce time limits of their own; None: the runner's deadline."""
    agrees_with: str | None = None
    """Name of another reward, with known answers, to compare scores with (``reward/agreement/<name>``)."""
    reads_answers: bool = False
    """True if the reward may fail to read a record's answer: many records are checked before the first rollout."""
    finds_answers: ClassVar[bool] = False
    """True if it reads what comes after a thought, wherever the thought was opened."""
    no_answer: ClassVar[str] = ".+"
    """A regular expression for the details that mean, with a reward of 0, that there was no answer to judge."""
    _plan: ClassVar[Plan]

    def __init_subclass__(cls, **options: Any) -> None:
        """Check the class when it is defined, and store the parameters of ``score``.

        Raises:
            UserError: ``score`` is not a plain method, takes ``*args`` or nothing, or ``where`` is not a known place.
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
        """Score several samples; return one value per sample, in order. May be ``async``.

        In a worker a batch holds up to 32 samples and has the deadline of a single sample. If it overruns, its samples
        are scored one by one.
        """
        if inspect.iscoroutinefunction(self.score):
            import asyncio  # slow to import, and most workers never use it

            return asyncio.run(self._score_concurrently(samples))
        return [self.score_one(sample) for sample in samples]

    def prepare(self) -> None:  # noqa: B027 (a hook that few rewards need)
        """Do slow imports; called once in each scoring process, before its first sample and outside its deadline."""

    def score_one(self, sample: Sample) -> Score:
        """Score one sample with ``score``.

        Raises:
            UserError: ``score`` returned something that is not a reward.
        """
        return to_score(self.score(**self.arguments(sample)), type(self).__name__, sample.id)

    def reads_images(self) -> bool:
        """True if ``score`` names ``images``: only then are a prompt's image files sent to its process."""
        return "images" in (*self._plan.required, *self._plan.optional)

    def required_columns(self) -> tuple[str, ...]:
        """Return the columns that a record must have: parameters of ``score`` without a default."""
        return self._plan.required

    def missing_column(self, sample: Sample) -> str | None:
        """Return why a sample cannot be scored (a missing column, an answer of None), or None if it can."""
        for name in self.required_columns():
            if name not in sample.columns:
                return f"the record has no column {name!r}"
            if name == "answer" and sample.columns[name] is None:
                return "the record's answer is null"
        return None

    def arguments(self, sample: Sample) -> dict[str, Any]:
        """Return the keyword arguments of ``score`` for a sample."""
        return self._plan.arguments(sample)

    @property
    def batched(self) -> bool:
        """True if one call scores several samples (own ``score_batch``, or async ``score``)."""
        return type(self).score_batch is not Reward.score_batch or inspect.iscoroutinefunction(self.score)

    async def _score_concurrently(self, samples: Sequence[Sample]) -> list[Score]:
        import asyncio

        values = await asyncio.gather(*(self.score(**self.arguments(sample)) for sample in samples))
        return [to_score(v, type(self).__name__, s.id) for v, s in zip(values, samples, strict=True)]


def _score_by_batch(self: Reward, sample: Sample) -> Any:
    return self.score_batch([sample])[0]
