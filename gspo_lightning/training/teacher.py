"""Check, make and load the teacher of a run from its settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Trainer
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from gspo_lightning.core.addresses import UNIX
from gspo_lightning.core.errors import UserError
from gspo_lightning.loop.old_policy.served_teacher import ServedTeacher
from gspo_lightning.loop.old_policy.teacher import FIELD, LocalTeacher, Teacher, check_outputs, check_vocabulary
from gspo_lightning.loop.update.nonfinite import check_weights
from gspo_lightning.objectives import Objective
from gspo_lightning.policy.load.loading import load_policy, load_tokenizer
from gspo_lightning.policy.load.model_settings import DType, ModelSettings
from gspo_lightning.policy.model_checks.checks import check_causal, check_head, choose_layout
from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.strategies.sharding_strategy import sharding_of
from gspo_lightning.rollouts.serving.endpoint import given
from gspo_lightning.training.cold_start import ColdStart, prompt_format_of
from gspo_lightning.training.data import PromptDataModule


@dataclass(frozen=True)
class TeacherModel:
    """Settings of a teacher, for when its name alone is not enough."""

    name_or_path: str
    """Hub id, local folder, built-in tiny model, or the URL of a server (``http://host:8000``, ``unix:/path``)."""
    cold_start: ColdStart | None = None
    """Supervised steps that make the teacher, once; cached like the policy's own (docs/cold_start.md)."""
    dtype: DType = "auto"
    """Dtype of the weights; ``auto`` keeps that of the files. Log-probabilities are float32 in any case."""
    revision: str | None = None
    """Branch, tag or commit of a hub id."""
    config_overrides: dict[str, Any] = field(default_factory=dict)
    """Fields of the model's config to change before it is built."""
    plain_http: bool = False
    """Allow sending a server's key (``VLLM_API_KEY``) to another host unencrypted."""


Taught = TeacherModel | str | None
"""Type of ``model.teacher``: a name or URL, all settings, or None."""


def is_url(name: str) -> bool:
    """True if a teacher is queried over HTTP.

    >>> is_url("http://127.0.0.1:8000"), is_url("Qwen/Qwen3-8B"), is_url("/models/qwen")
    (True, False, False)
    """
    return "://" in name or name.startswith(UNIX)


def taught_by(teacher: Taught) -> TeacherModel | None:
    """Return the settings of a teacher; a name alone becomes settings."""
    return TeacherModel(teacher) if isinstance(teacher, str) else teacher


def check_teacher(
    teacher: TeacherModel | None,
    objective: Objective,
    settings: ModelSettings,
    tokenizer: PreTrainedTokenizerBase,
    data: PromptDataModule,
    trainer: Trainer,
) -> None:
    """Check that teacher, objective, policy, rewards and strategy go together.

    Args:
        teacher: settings of the run's teacher; None without one.
        objective: the objective that distils from it.
        settings: settings of the policy.
        tokenizer: the policy's.
        data: provides the rewards.
        trainer: provides the strategy.

    Raises:
        UserError: they do not go together.
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
    local = teacher_settings(teacher, settings)
    if local is None:
        check_served(teacher, objective, data.settings.temperature)
        return
    try:
        check_vocabulary(tokenizer, load_tokenizer(local))
    except UserError as error:
        raise _of_teacher(error) from error
    if teacher.cold_start is not None:
        teacher.cold_start.check(tokenizer, prompt_format_of(data))
    if objective.distill_exact and sharding_of(trainer.strategy) is not None:
        raise UserError(
            "model.objective.distill_exact",
            f"needs the teacher's whole output head on every rank, but {type(trainer.strategy).__name__} shards it",
            fix="set distill_exact: false, or use ddp",
        )


def check_use(there: bool, objective: Objective, field: str = FIELD) -> None:
    """Check that a teacher is set exactly if the objective distils from one.

    Args:
        there: True if a teacher is set.
        objective: provides the coefficient.
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
    """Refuse settings that a teacher on a server cannot support.

    Raises:
        UserError: a setting needs the teacher in this process.
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


def teacher_settings(teacher: TeacherModel, policy: ModelSettings) -> ModelSettings | None:
    """Return the settings of a teacher that is loaded in this process, before its cold start; None for a server.

    Args:
        teacher: settings of the teacher.
        policy: settings of the policy; ``trust_remote_code`` is the same for both.
    """
    if is_url(teacher.name_or_path):
        return None
    return ModelSettings(
        teacher.name_or_path, teacher.dtype, policy.attn_implementation, revision=teacher.revision,
        trust_remote_code=policy.trust_remote_code, config_overrides=teacher.config_overrides,
        experts_implementation=policy.experts_implementation if teacher.cold_start is None else None,
        mask_padding=policy.mask_padding,
    )  # fmt: skip


def load_teacher(
    teacher: TeacherModel | None,
    settings: ModelSettings,
    policy: Policy,
    objective: Objective,
    data: PromptDataModule,
    trainer: Trainer,
    dtype: torch.dtype | None = None,
) -> Teacher | None:
    """Load the teacher of a ``gspo fit`` run, after its cold start if it has one; return None without a teacher.

    Args:
        teacher: settings of the teacher.
        settings: settings of the policy.
        policy: the trained policy; may be sharded.
        objective: the objective that distils from the teacher.
        data: provides the prompt format, and the longest row.
        trainer: provides the folder of all runs, and the strategy that also shards the teacher.
        dtype: dtype of autocast in training; None without autocast.

    Raises:
        UserError: it cannot be made, loaded or reached, or has another vocabulary.
    """
    if teacher is None:
        return None
    start = teacher_settings(teacher, settings)
    if start is None:
        return served_teacher(teacher, policy)
    if teacher.cold_start is not None:
        root = Path(trainer.default_root_dir)
        device = trainer.strategy.root_device
        start = teacher.cold_start.ensure(start, root, data.longest, prompt_format_of(data), device)
    sharding = sharding_of(trainer.strategy)
    return local_teacher(
        _loaded(start), policy, exact=objective.distill_exact, longest=data.longest, dtype=dtype,
        shard=None if sharding is None else sharding.shard,
    )  # fmt: skip


def served_teacher(teacher: TeacherModel, policy: Policy) -> ServedTeacher:
    """Connect to a teacher on a server, and verify that it can serve as one.

    Raises:
        UserError: it cannot.
    """
    (endpoint,) = given([teacher.name_or_path], teacher.plain_http, FIELD)
    served = ServedTeacher(endpoint)
    try:
        served.meet(policy.tokenizer)
    except UserError:
        served.close()
        raise
    return served


def _loaded(settings: ModelSettings) -> Policy:
    try:
        policy = load_policy(settings)
        check_weights(policy, f"in {settings.name_or_path}")
        check_head(policy)
    except UserError as error:
        raise _of_teacher(error) from error
    return policy


def _of_teacher(error: UserError) -> UserError:
    """Return the same error, with the teacher as its field."""
    field = FIELD if error.field == "model.name_or_path" else error.field
    return UserError(field, error.problem, fix=error.fix)


def local_teacher(
    teacher: Policy,
    policy: Policy,
    *,
    exact: bool,
    longest: int,
    dtype: torch.dtype | None = None,
    shard: Callable[[Policy], Policy] | None = None,
) -> LocalTeacher:
    """Wrap a loaded model as the teacher.

    Args:
        teacher: the teacher's weights.
        policy: the trained policy.
        exact: compare whole distributions.
        longest: tokens that a row may have.
        dtype: dtype of autocast in training; None without autocast.
        shard: shards the teacher over ranks.

    Raises:
        UserError: its outputs differ from the policy's, or it cannot compute exact log-probabilities.
    """
    check_outputs(policy, teacher, exact=exact)
    choose_layout(teacher, "auto", longest, policy.device, dtype)
    return LocalTeacher(teacher, exact=exact, shard=shard)


def teacher_of(
    teacher: PreTrainedModel | str | None, policy: Policy, objective: Objective, *, temperature: float, longest: int
) -> Teacher | None:
    """Return the teacher of :class:`gspo_lightning.GSPOTrainer`; None without one.

    Args:
        teacher: a model of transformers, which is frozen and used unchanged; a name, folder or URL; or None.
        policy: the trained policy.
        objective: the objective that distils from it.
        temperature: temperature of the rollouts.
        longest: tokens that a row may have.

    Raises:
        UserError: it cannot be used, the objective does not distil, or the objective distils but no teacher is given.
    """
    check_use(teacher is not None, objective, "teacher")
    if teacher is None:
        return None
    exact = objective.distill_exact
    if isinstance(teacher, PreTrainedModel):
        check_causal(teacher)
        given_teacher = Policy(teacher, policy.tokenizer)
        check_head(given_teacher)
        return local_teacher(given_teacher, policy, exact=exact, longest=longest)
    settings = TeacherModel(teacher)
    if is_url(teacher):
        check_served(settings, objective, temperature)
        return served_teacher(settings, policy)
    loaded_teacher = _loaded(ModelSettings(teacher, settings.dtype))
    check_vocabulary(policy.tokenizer, loaded_teacher.tokenizer)
    return local_teacher(loaded_teacher, policy, exact=exact, longest=longest)
