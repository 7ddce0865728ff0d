"""Types of scoring: samples, scores, their status, and all scores of a sample."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class ScoreStatus(StrEnum):
    """Status of a score: why a sample has this reward."""

    OK = "ok"
    """The reward was computed."""
    MODEL_ERROR = "model_error"
    """The answer could not be judged because of a mistake of the model: reward 0."""
    TIMEOUT = "timeout"
    """Judging the answer used up its CPU time. A mistake of the model: reward 0."""
    MISSING = "missing"
    """There is no reward (None): the sample takes no part in statistics or the loss."""
    NOT_APPLICABLE = "not_applicable"
    """The reward does not apply to the record: the other rewards score it, with the weight of all."""


_SEVERITY = (
    ScoreStatus.MISSING, ScoreStatus.TIMEOUT, ScoreStatus.MODEL_ERROR, ScoreStatus.OK, ScoreStatus.NOT_APPLICABLE,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sample:
    """A completion to score.

    ``id`` names it in messages, ``completion_ids`` are the policy's own tokens, ``columns`` is the rest of the record
    (``answer`` ...), ``truncated`` says whether the completion was cut at the response limit. ``unfinished_thought``
    says that it ends inside a thought, which the text does not show if the prompt opened it: there is no answer
    (:mod:`gspo_lightning.core.thinking`). ``prompt_messages`` holds a prompt that is a list of chat messages. ``step``
    is the number of optimizer steps that the weights had when they generated the completion, ``total_steps`` that of
    the whole run (-1: unknown).
    """

    id: str
    prompt: str
    completion: str
    completion_ids: tuple[int, ...] = ()
    columns: Mapping[str, Any] = field(default_factory=dict)
    truncated: bool = False
    prompt_messages: tuple[Mapping[str, Any], ...] = ()
    step: int = 0
    total_steps: int = -1
    unfinished_thought: bool = False


@dataclass(frozen=True, slots=True)
class TrainerState:
    """The progress of training, under the field names of transformers' ``TrainerState``.

    ``global_step`` and ``max_steps`` count optimizer steps; ``max_steps`` is -1 if unknown.

    >>> TrainerState.of(Sample("0", "", "", step=30, total_steps=80))
    TrainerState(global_step=30, max_steps=80)
    """

    global_step: int = 0
    max_steps: int = -1

    @classmethod
    def of(cls, sample: Sample) -> TrainerState:
        """Return the state at the time the sample was generated."""
        return cls(sample.step, sample.total_steps)


@dataclass(frozen=True, slots=True)
class Score:
    """The score of one reward for one sample: a finite number and a status, or None for *missing*.

    ``detail`` names the kind of a failure, for people. ``logged`` holds numbers that become metrics
    (``reward/logged/<name>``), ``extra`` plain values that are recorded with the rollout. ``steps`` holds (end, score)
    of each step of the completion if steps were scored one by one: ``end`` counts characters, rises, and is the place
    behind a step. ``single`` says that the number came as float32 or narrower: differences of float32 roundings are
    none in its group (:mod:`gspo_lightning.core.tolerance`).

    >>> Score.model_error("no answer")
    Score(reward=0.0, status=<ScoreStatus.MODEL_ERROR: 'model_error'>, detail='no answer')
    """

    reward: float | None
    status: ScoreStatus = ScoreStatus.OK
    detail: str = ""
    logged: Mapping[str, float] = field(default_factory=dict, repr=False)
    extra: Mapping[str, Any] = field(default_factory=dict, repr=False)
    steps: tuple[tuple[int, float], ...] = field(default=(), repr=False)
    single: bool = field(default=False, repr=False)

    @classmethod
    def model_error(cls, detail: str) -> Score:
        """Return reward 0: the answer cannot be judged because of a mistake of the model."""
        return cls(0.0, ScoreStatus.MODEL_ERROR, detail)

    @classmethod
    def missing(cls, detail: str) -> Score:
        """Return no reward: the answer cannot be judged."""
        return cls(None, ScoreStatus.MISSING, detail)

    @classmethod
    def not_applicable(cls, detail: str = "does not apply to the record") -> Score:
        """Return no reward: this record is for other rewards. Use it for all answers to a record, or for none."""
        return cls(None, ScoreStatus.NOT_APPLICABLE, detail)


@dataclass(frozen=True, slots=True)
class SampleScore:
    """The scores of all rewards for one sample.

    ``reward`` is the weighted sum of the parts, or None (*missing*) if a part of non-zero weight is missing. Parts that
    do not apply are left out, and the weights of the others are scaled up to the sum of all; None if no part applies.
    ``agreements`` says, for each part that is compared with another, whether both are at least 1/2, or both below it;
    it has no entry if one of the two is missing. ``single`` says that the reward has the precision of float32.
    """

    reward: float | None
    parts: dict[str, Score]
    agreements: dict[str, bool] = field(default_factory=dict)
    single: bool = False

    @property
    def status(self) -> ScoreStatus:
        """The worst status of a part: missing, then timeout, model_error, ok; not_applicable if no part applies."""
        return min((p.status for p in self.parts.values()), key=_SEVERITY.index)

    @property
    def detail(self) -> str:
        """The details of the parts, with their names if there is more than one."""
        if len(self.parts) == 1:
            return next(iter(self.parts.values())).detail
        return "; ".join(f"{name}: {part.detail}" for name, part in self.parts.items() if part.detail)
