"""The teacher of a run, from its settings: checked before anything is sampled, made where it has to be, and loaded."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Trainer

from gspo_lightning.addresses import UNIX
from gspo_lightning.errors import UserError
from gspo_lightning.objectives import Objective
from gspo_lightning.old_policy.teacher import FIELD, LocalTeacher, Teacher, check_vocabulary
from gspo_lightning.policy.checks import check_head, choose_layout
from gspo_lightning.policy.loading import load_policy
from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.settings import DType, ModelSettings
from gspo_lightning.rollouts.serving.endpoint import given
from gspo_lightning.rollouts.serving.teacher import ServedTeacher
from gspo_lightning.strategies.base import sharding_of
from gspo_lightning.training.cold_start import ColdStart, asking_of
from gspo_lightning.training.data import PromptDataModule
from gspo_lightning.update.nonfinite import check_weights

__all__ = [
    "Taught", "TeacherModel", "check_served", "check_teacher", "check_use", "is_url", "load_teacher", "local_teacher",
    "taught_by", "teacher_start",
]  # fmt: skip


@dataclass(frozen=True)
class TeacherModel:
    """Which teacher, where its name alone does not say it."""

    name_or_path: str
    """Hub id, local folder, built-in tiny model, or the URL of a server (``http://host:8000``, ``unix:/path``)."""
    cold_start: ColdStart | None = None
    """Supervised steps that make the teacher, once; cached like the policy's own (docs/cold_start.md)."""
    dtype: DType = "auto"
    """Of the weights; ``auto`` keeps that of the files. Log-probabilities are float32 in any case."""
    revision: str | None = None
    """Branch, tag or commit of a hub id."""
    config_overrides: dict[str, Any] = field(default_factory=dict)
    """Fields of the model's config to change before it is built."""
    plain_http: bool = False
    """Whether a server's key (``VLLM_API_KEY``) may go to another host unencrypted."""


Taught = TeacherModel | str | None
"""What ``model.teacher`` takes: a name or URL, all settings, or none."""


def is_url(name: str) -> bool:
    """Whether a teacher is asked over HTTP.

    >>> is_url("http://127.0.0.1:8000"), is_url("Qwen/Qwen3-8B"), is_url("/models/qwen")
    (True, False, False)
    """
    return "://" in name or name.startswith(UNIX)


def taught_by(teacher: Taught) -> TeacherModel | None:
    """The settings of a teacher, of which the name may have been all."""
    return TeacherModel(teacher) if isinstance(teacher, str) else teacher


def check_teacher(
    teacher: TeacherModel | None, objective: Objective, data: PromptDataModule, trainer: Trainer
) -> None:
    """Teacher, objective, rewards and strategy go together.

    Raises:
        UserError: they do not.
    """
    check_use(teacher is not None, objective)
    if not data.rewards and teacher is None:
        raise UserError(
            "data.rewards",
            "is empty, and there is no teacher either: nothing says what to learn",
            fix="name at least one, for example rewards: {correct: ExactMatch}, or set model.teacher and "
            "model.objective.distill_coef",
        )
    if teacher is None:
        return
    if is_url(teacher.name_or_path):
        check_served(teacher, objective, data.settings.temperature)
    elif objective.distill_exact and sharding_of(trainer.strategy) is not None:
        raise UserError(
            "model.objective.distill_exact",
            f"needs the teacher's whole output head on every rank, but {type(trainer.strategy).__name__} shards it",
            fix="set distill_exact: false, or use ddp",
        )


def check_use(there: bool, objective: Objective, field: str = FIELD) -> None:
    """There is a teacher exactly where something follows it.

    Args:
        there: whether there is a teacher.
        objective: has the coefficient.
        field: the setting that names the teacher, for messages.

    Raises:
        UserError: one is missing.
    """
    coef = getattr(objective, "distill_coef", 0.0)
    if coef > 0 and not there:
        raise UserError(
            field, f"is not set, but the objective's distill_coef is {coef:g}", fix="name a model or a server"
        )
    if coef == 0 and there:
        raise UserError(
            field, "is set, but the objective's distill_coef is 0: nothing follows it", fix="set distill_coef: 1"
        )


def check_served(teacher: TeacherModel, objective: Objective, temperature: float) -> None:
    """What a server cannot do is not asked of it.

    Raises:
        UserError: it is.
    """
    given([teacher.name_or_path], teacher.plain_http, FIELD)
    if objective.distill_exact:
        raise UserError(
            "model.objective.distill_exact",
            "needs the teacher's whole distribution, but a server sends one log-probability per token",
            fix="set distill_exact: false, or use a teacher in this process",
        )
    if temperature != 1.0:
        raise UserError(
            "data.temperature",
            f"is {temperature:g}, but a server's log-probabilities of a prompt are those of temperature 1",
            fix="use data.temperature: 1.0, or a teacher in this process",
        )
    for name, default in (("cold_start", None), ("dtype", "auto"), ("revision", None), ("config_overrides", {})):
        if getattr(teacher, name) != default:
            raise UserError(f"{FIELD}.{name}", "means nothing to a server", fix="leave it out")


def teacher_start(teacher: TeacherModel, policy: ModelSettings, root: Path, data: PromptDataModule) -> ModelSettings:
    """The model to load: the one that is named, or what its cold start has made of it.

    Args:
        teacher: in this process.
        policy: settings of the policy; whether code is trusted is the same for both.
        root: the folder of all runs, where cold starts are kept.
        data: how the run asks.
    """
    settings = ModelSettings(
        teacher.name_or_path, teacher.dtype, policy.attn_implementation, revision=teacher.revision,
        trust_remote_code=policy.trust_remote_code, config_overrides=teacher.config_overrides,
        experts_implementation=policy.experts_implementation,
    )  # fmt: skip
    if teacher.cold_start is None:
        return settings
    plain = dataclasses.replace(settings, attn_implementation=None, experts_implementation=None)
    made = teacher.cold_start.ensure(plain, root, data.longest, asking_of(data))
    return dataclasses.replace(settings, name_or_path=made.name_or_path, revision=None, config_overrides={})


def load_teacher(
    teacher: TeacherModel,
    settings: ModelSettings | None,
    policy: Policy,
    *,
    exact: bool,
    longest: int,
    dtype: torch.dtype | None = None,
    shard: Callable[[Policy], Policy] | None = None,
) -> Teacher:
    """The teacher, with the policy's vocabulary.

    Args:
        teacher: which one.
        settings: of a model in this process (:func:`teacher_start`); None for a server.
        policy: is trained; not sharded yet.
        exact: compare whole distributions.
        longest: tokens that a row may have.
        dtype: of autocast in training; None: there is none.
        shard: spreads it over ranks.

    Raises:
        UserError: it cannot be loaded or reached, or its vocabulary is another one.
    """
    if settings is None:
        (endpoint,) = given([teacher.name_or_path], teacher.plain_http, FIELD)
        served = ServedTeacher(endpoint)
        try:
            served.meet(policy.tokenizer)
        except UserError:
            served.close()
            raise
        return served
    try:
        own = load_policy(settings)
        check_weights(own, f"in {settings.name_or_path}")
    except UserError as error:
        named = FIELD if error.field == "model.name_or_path" else error.field
        raise UserError(named, error.problem, fix=error.fix) from error
    return local_teacher(own, policy, exact=exact, longest=longest, dtype=dtype, shard=shard)


def local_teacher(
    own: Policy,
    policy: Policy,
    *,
    exact: bool,
    longest: int,
    dtype: torch.dtype | None = None,
    shard: Callable[[Policy], Policy] | None = None,
) -> LocalTeacher:
    """A model that is loaded already, as the teacher; see :func:`load_teacher`."""
    check_vocabulary(policy, own, exact=exact)
    check_head(own)
    choose_layout(own, "auto", longest, policy.device, dtype)
    return LocalTeacher(own, exact=exact, shard=shard)

