"""Settings of :class:`gspo_lightning.GSPOTrainer`."""

from __future__ import annotations

import dataclasses
import inspect
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import torch
import yaml
from transformers import PreTrainedModel

from gspo_lightning.core.errors import UserError, check_number, first_line
from gspo_lightning.core.parsing import load_yaml
from gspo_lightning.core.registry import component
from gspo_lightning.loop.advantages.advantages import Advantages
from gspo_lightning.loop.advantages.within_groups import GroupNormalised
from gspo_lightning.loop.experience.settings import ExperienceSettings, SharedSettings
from gspo_lightning.objectives import GSPO, Objective
from gspo_lightning.policy.packing.deal import Deal
from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.unsaid import placeholders_of

log = logging.getLogger(__name__)

_SAME = (
    "group_size", "max_response_tokens", "max_prompt_tokens", "temperature", "deal", "max_tokens_per_micro_batch",
    "system_prompt",
)  # fmt: skip
WORDS = {f"data.{name}": name for name in _SAME} | {
    "data.minibatches_per_rollout": "minibatches", "data.epochs_per_rollout": "epochs",
    "data.rollouts.max_rows": "max_rows", "model.optimizer.lr": "learning_rate",
    "model.optimizer.weight_decay": "weight_decay", "seed_everything": "seed",
    "trainer.gradient_clip_val": "gradient_clip",
}  # fmt: skip
"""Setting of ``gspo fit`` -> field of :class:`GSPOConfig`."""
_ONLY = {
    "model.optimizer": ("AdamW",), "model.optimizer.class_path": ("AdamW",), "data.rollouts": ("GroupedSampler",),
    "data.rollouts.class_path": ("GroupedSampler",), "trainer.precision": ("32-true", "32"),
}  # fmt: skip
"""Setting -> the only values that :class:`GSPOTrainer` trains with."""
_OF_THE_CALLER = (
    "trainer.", "plugins", "model.name_or_path", "data.train", "data.val", "data.test", "data.predict", "data.columns",
    "data.reward", "data.prompts_per_rollout", "data.evaluation",
)  # fmt: skip
"""Prefixes of settings that :class:`GSPOTrainer` and its methods take as arguments instead."""


@dataclass(frozen=True, kw_only=True)
class GSPOConfig(SharedSettings):
    """Settings of :class:`GSPOTrainer`; each is checked when the config is made.

    The scale of the clip range is free here. On the command line, where 0.2 is usually a mistake, it is not.

    Raises:
        UserError: a value outside its range; names field, value and rule.

    >>> GSPOConfig(group_size=1)
    Traceback (most recent call last):
        ...
    gspo_lightning.core.errors.UserError: group_size: is 1, but a response is compared with the others of its group
      fix: use at least 2
    """

    learning_rate: float = 1e-6
    """Learning rate of AdamW, constant, > 0. 1e-6 is usual for models of billions of parameters (the default of TRL and
    verl); tiny models need 1e-4 or more."""
    left_clip_range: float = 3e-4
    """Sequence ratios are clipped below 1 - this if the advantage is negative, in [0, 1). Default from the paper."""
    right_clip_range: float = 4e-4
    """Sequence ratios are clipped above 1 + this if the advantage is positive, >= 0. Default from the paper."""
    max_prompt_tokens: int | None = None
    """Largest length of a query, chat template included; longer ones are refused, never cut. None: the rest of the
    model's context."""
    minibatches: int = 1
    """Optimizer steps per pass over the responses of a step; divides the number of queries. With 1 (and 1 epoch) every
    ratio is 1 and nothing can be clipped; the paper uses 4."""
    epochs: int = 1
    """Passes over the responses of a step."""
    gradient_clip: float | None = 1.0
    """Largest gradient norm, > 0; None switches clipping off."""
    weight_decay: float = 0.0
    """Weight decay of AdamW, >= 0. Default 0: decay would change the policy even if rewards are equal."""
    max_rows: int = 512
    """Responses generated at the same time; changes memory, not results."""
    device: str | torch.device | None = None
    """Device to train on; None: the model's device."""
    use_chat_template: bool = True
    """Queries become user messages if the tokenizer has a chat template; False: they are encoded as they are."""

    def __post_init__(self) -> None:
        counts = [
            "group_size", "max_response_tokens", "minibatches", "epochs", "max_tokens_per_micro_batch", "max_rows",
        ]  # fmt: skip
        if self.max_prompt_tokens is not None:
            counts.append("max_prompt_tokens")
        for name in counts:
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise UserError(name, f"is {value!r}, but must be a whole number >= 1")
        if self.deal is not None and self.deal not in get_args(Deal):
            raise UserError("deal", f"is {self.deal!r}", fix=f"use one of {', '.join(get_args(Deal))}")
        if self.group_size < GroupNormalised.min_group_size:
            raise UserError(
                "group_size",
                f"is {self.group_size}, but a response is compared with the others of its group",
                fix=f"use at least {GroupNormalised.min_group_size}",
            )
        check_number("learning_rate", self.learning_rate, low=0.0, open_low=True)
        check_number("left_clip_range", self.left_clip_range, low=0.0, high=1.0, open_high=True)
        check_number("right_clip_range", self.right_clip_range, low=0.0)
        check_number("temperature", self.temperature, low=0.0, open_low=True)
        check_number("weight_decay", self.weight_decay, low=0.0)
        if self.gradient_clip is not None:
            check_number("gradient_clip", self.gradient_clip, low=0.0, open_low=True)
        if self.system_prompt is not None and not self.use_chat_template:
            raise UserError("system_prompt", "is set, but use_chat_template is False", fix="set one of the two only")


def config_of(given: str | Path | Mapping[str, Any]) -> tuple[GSPOConfig, Objective | None]:
    """Return config and objective from settings of ``gspo fit``, which keep their names, meaning and defaults.

    Settings that arguments stand for (model, prompts, rewards, devices, number of steps) are not read.

    Args:
        given: a YAML file, or a mapping of settings, nested or dotted; ``model.optimizer.lr`` is needed.

    Raises:
        UserError: the file cannot be read, or a setting has no counterpart in :class:`GSPOTrainer`.

    >>> config_of({"model.optimizer.lr": 1e-5, "data": {"group_size": 16}})[0].minibatches
    4
    >>> config_of({"model.optimizer.lr": 1e-5, "model.lora.r": 4})
    Traceback (most recent call last):
        ...
    gspo_lightning.core.errors.UserError: model.lora.r: is no setting of GSPOTrainer
      fix: leave it out, or use gspo fit
    """
    if not isinstance(given, Mapping):
        try:
            given = load_yaml(Path(given).read_text(encoding="utf-8"))
        except (OSError, ValueError, yaml.YAMLError) as error:
            raise UserError("config", f"{str(given)!r} cannot be read: {first_line(error)}") from error
    if not isinstance(given, Mapping):
        raise UserError("config", "is no mapping of settings of gspo fit")
    defaults = ExperienceSettings()  # of gspo fit: some differ from GSPOConfig's
    fields: dict[str, Any] = {}
    for path, field in WORDS.items():
        name = path.removeprefix("data.")
        if hasattr(defaults, name):
            fields[field] = getattr(defaults, name)
    types = {field.name: str(field.type) for field in dataclasses.fields(GSPOConfig)}
    objective = None
    for path, value in _settings(given, ""):
        class_name = str(value).rsplit(".", 1)[-1]
        if path == "model.objective":
            named = value if isinstance(value, Mapping) else {"class_path": value}
            objective = component("objectives", named["class_path"])(**named.get("init_args", {}))
        elif path in WORDS:
            is_number = isinstance(value, str) and types[WORDS[path]].startswith("float")
            fields[WORDS[path]] = float(value) if is_number else value  # 1e-6 is a text in YAML
        elif class_name not in _ONLY.get(path, ()) and (path in _ONLY or not path.startswith(_OF_THE_CALLER)):
            raise UserError(path, "is no setting of GSPOTrainer", fix="leave it out, or use gspo fit")
    if "learning_rate" not in fields:
        raise UserError("model.optimizer.lr", "is not set", fix="docs/first_real_run.md has usual ones")
    return GSPOConfig(**fields), objective


def _settings(given: Mapping[str, Any], at: str) -> Iterator[tuple[str, Any]]:
    """Yield dotted path and value of each setting; the objective stays whole."""
    for name, value in given.items():
        path = f"{at}{name}"
        if isinstance(value, Mapping) and path != "model.objective":
            yield from _settings(value, f"{path}.")
        elif value is not None or path == "trainer.gradient_clip_val":  # without a number there is no clipping
            yield path.replace(".init_args.", "."), value


def context_of(model: PreTrainedModel) -> int | None:
    """Return the positions that a model was built for, if its config says so."""
    context: int | None = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return context


def fitting(config: GSPOConfig, context: int | None) -> GSPOConfig:
    """Return a config whose responses leave room for a query: half of a context that 512 tokens would fill.

    512 is the default, and a caller who sets it cannot be told from one who does not: the change is logged. Any other
    limit stays as it is.

    Args:
        config: of the trainer.
        context: positions that the model was built for; None: unknown.

    >>> fitting(GSPOConfig(), 512).max_response_tokens, fitting(GSPOConfig(), 1024).max_response_tokens
    (256, 512)
    """
    default = SharedSettings.max_response_tokens
    if context is None or context > default or config.max_response_tokens != default:
        return config
    half = max(1, context // 2)
    log.info("max_response_tokens is %d: half of the model's context of %d, not %d", half, context, default)
    return dataclasses.replace(config, max_response_tokens=half)


def restore_unsaid(state: Mapping[str, Any], *policies: Policy) -> None:
    """Let policies suppress the tokens that a saved one did, so that they sample from the same distribution.

    Args:
        state: of ``GSPOTrainer.state_dict()``; one without ``unsaid`` is older than the mask of padding, and
            suppressed placeholders of pictures only.
        policies: those that sample and train, or are compared with.
    """
    for policy in policies:
        policy.unsaid = tuple(state.get("unsaid", placeholders_of(policy.image_processor)))
        policy.unsaid_on.clear()


def prompt_limit(config: GSPOConfig, context: int | None) -> tuple[int, str]:
    """Return the number of tokens that a prompt may have, and the setting that determines it.

    Args:
        config: of the trainer.
        context: positions that the model was built for; None: unknown.

    >>> prompt_limit(GSPOConfig(max_response_tokens=100, max_prompt_tokens=200), 256)
    (156, "the model's context - max_response_tokens = 256 - 100")
    """
    response = config.max_response_tokens
    budget = config.max_tokens_per_micro_batch
    limits = [(budget - response, f"max_tokens_per_micro_batch - max_response_tokens = {budget} - {response}")]
    if config.max_prompt_tokens is not None:
        limits.append((config.max_prompt_tokens, "max_prompt_tokens"))
    if context:
        limits.append((context - response, f"the model's context - max_response_tokens = {context} - {response}"))
    return min(limits)


def settings_of(config: GSPOConfig, prompts: int, max_prompt_tokens: int, advantages: Advantages) -> ExperienceSettings:
    """Return the settings of an iteration over this number of prompts."""
    shared = {field.name: getattr(config, field.name) for field in dataclasses.fields(SharedSettings)}
    return ExperienceSettings(
        prompts_per_rollout=prompts,
        minibatches_per_rollout=config.minibatches,
        epochs_per_rollout=config.epochs,
        max_prompt_tokens=max_prompt_tokens,
        record_tokens=0,
        advantages=advantages,
        **shared,
    )


def objective_of(given: Objective | type[Objective] | str | None, config: GSPOConfig) -> Objective:
    """Return the objective of a trainer: GSPO with the config's clip range, or a given one with its own.

    Raises:
        UserError: no objective of that name, one that needs arguments, or a clip range in the config beside an
            objective that has its own.

    >>> objective_of("DAPO", GSPOConfig()).clip_high
    0.28
    """
    if given is None:
        return GSPO(config.left_clip_range, config.right_clip_range)
    defaults = GSPOConfig()
    if (config.left_clip_range, config.right_clip_range) != (defaults.left_clip_range, defaults.right_clip_range):
        raise UserError(
            "objective",
            "has its own clip range, but the config sets left_clip_range or right_clip_range",
            fix="leave them out and set it in the objective: GSPO(clip_low=2e-4, clip_high=3e-4)",
        )
    if isinstance(given, Objective):
        return given
    cls = component("objectives", given) if isinstance(given, str) else given
    if not (inspect.isclass(cls) and issubclass(cls, Objective)):
        raise UserError("objective", f"is {given!r}", fix="give an Objective: its name, class or an instance")
    required = [p.name for p in inspect.signature(cls).parameters.values() if p.default is p.empty]
    if required:
        raise UserError("objective", f"{cls.__name__} needs {', '.join(required)}", fix="give an instance")
    objective: Objective = cls()
    return objective
