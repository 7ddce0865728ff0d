"""Build policy, critic, optimizer and schedule of a run, each checked before anything is sampled."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.types import MicroBatch
from gspo_lightning.loop.critic import ValueModel
from gspo_lightning.loop.update.learning_rates import warn_if_rate_is_high
from gspo_lightning.loop.update.nonfinite import check_weights
from gspo_lightning.loop.update.optimizers import fuse, settings_of_optimizer, take_closure, undecayed
from gspo_lightning.loop.update.schedules import schedule
from gspo_lightning.objectives import Objective, segments_by_delimiter
from gspo_lightning.policy.load.loading import load_policy
from gspo_lightning.policy.load.model_settings import ModelSettings
from gspo_lightning.policy.load.trained_dtype import check_trained_dtype
from gspo_lightning.policy.model_checks.checks import check_head, choose_layout
from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.routing import Replay, routers_of
from gspo_lightning.policy.strategies.checks import check_optimizer
from gspo_lightning.policy.strategies.loading import made_by_first_rank
from gspo_lightning.policy.strategies.optimizer_trial import try_steps
from gspo_lightning.policy.strategies.sharding_strategy import sharding_of


def build_policy(
    settings: ModelSettings,
    *,
    replay: Replay,
    router_metrics: bool | None,
    router_aux_loss_coef: float,
    longest: int,
    device: torch.device,
    dtype: torch.dtype | None,
    on_first_rank: bool = False,
    init_context: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> Policy:
    """Load the policy, in train mode, and check its weights, its output head and the layouts of its rows.

    Args:
        settings: settings of the model.
        replay: replay mode of the routers' choices.
        router_metrics: True to measure routers; None: if there are any.
        router_aux_loss_coef: weight of the load-balancing loss.
        longest: tokens that a row may have.
        device: the device that will train.
        dtype: dtype of autocast in training; None without autocast.
        on_first_rank: load on rank 0 only; other ranks get a policy without weights; a collective.
        init_context: entered to load the weights only: under Lightning's, all that is made is made on the GPU, and
            kernels that the checks compile would be compiled again outside of it.

    Raises:
        UserError: the model cannot be trained exactly, with the reason.
    """

    def make() -> Policy:
        with init_context():
            policy = load_policy(settings)
        policy.train()
        check_weights(policy, f"in {settings.name_or_path}")
        check_head(policy)
        policy.routing = routers_of(policy.backbone, replay, router_metrics, router_aux_loss_coef)
        choose_layout(policy, settings.layout, longest, device, dtype)
        return policy

    policy = made_by_first_rank(make) if on_first_rank else make()
    if policy.disabled_dropout.held:  # on purpose (gspo_lightning.policy.disable_dropout); Lightning would warn
        warnings.filterwarnings("ignore", message=r"Found \d+ module\(s\) in eval mode")
    return policy


def build_critic(
    critic: ValueModel | None,
    policy: Policy,
    settings: ModelSettings,
    trainer: Trainer,
    *,
    longest: int,
    dtype: torch.dtype | None,
) -> None:
    """Build the critic's model from the policy before it is sharded, if there is a critic and it will be trained.

    Args:
        critic: the critic; None without one.
        policy: whole, with its initial weights.
        settings: settings of the policy.
        trainer: provides the strategy that shards it.
        longest: tokens that a row may have.
        dtype: dtype of autocast in training; None without autocast.

    Raises:
        UserError: its model cannot be loaded, or does not fit the policy.
    """
    if critic is not None and trainer.state.fn == "fit":
        device = trainer.strategy.root_device
        sharding = sharding_of(trainer.strategy)
        critic.build(policy, settings, longest=longest, device=device, dtype=dtype, sharding=sharding)


def build_optimizers(
    policy: Policy,
    optimizer: OptimizerCallable,
    scheduler: LRSchedulerCallable | None,
    check_monitor: Callable[[str, str], None],
    *,
    scaled: bool = False,
) -> Any:
    """Build the optimizer over the policy's trainable parameters, and its scheduler, in the form that Lightning takes.

    Args:
        policy: the trained policy, sharded or not.
        optimizer: makes an optimizer from parameters.
        scheduler: makes a scheduler from the optimizer; None keeps the learning rate constant.
        check_monitor: called with the metric that a schedule monitors, and its mode.
        scaled: True if gradients are those of a scaled loss (float16), which a fused optimizer would unscale
            itself, after they were clipped.

    Raises:
        UserError: an optimizer or a schedule that cannot work here, or weights to train in bfloat16 or float16.
    """
    check_trained_dtype(policy)

    def build(weights: list[nn.Parameter]) -> torch.optim.Optimizer:
        instance = undecayed(optimizer)(weights)
        take_closure(instance)
        if not scaled:
            fuse(instance)
        return instance

    with settings_of_optimizer():
        policy_optimizer = build([p for p in policy.parameters() if p.requires_grad])
    check_optimizer(policy_optimizer, policy)
    try_steps(build, policy)
    if scaled and getattr(policy_optimizer, "_step_supports_amp_scaling", False):  # the user set fused: true
        raise UserError(
            "model.optimizer.fused",
            "is true, but a fused step divides the gradients of 16-mixed only after they were measured and clipped",
            fix="leave fused out, or use trainer.precision: bf16-mixed",
        )
    warn_if_rate_is_high(policy, policy_optimizer)
    if scheduler is None:
        return policy_optimizer
    config = schedule(scheduler(policy_optimizer))
    if "monitor" in config:
        check_monitor(config["monitor"], config["scheduler"].mode)
    return {"optimizer": policy_optimizer, "lr_scheduler": config}


def segments_of(
    objective: Objective, delimiters: Sequence[str], tokenizer: PreTrainedTokenizerBase, part: MicroBatch
) -> Tensor | None:
    """Return segment numbers [N, T] if the objective uses delimited segments, or if rewards score steps; else None.

    A response without a step is one segment, even if no row of a micro-batch has any.

    Args:
        objective: of the run.
        delimiters: texts that end a segment.
        tokenizer: of the model.
        part: N rows.
    """
    if not delimiters:
        needs_segments = getattr(objective, "by", None) == "given"
        if needs_segments and part.segments is None:  # no row has a step
            return torch.zeros_like(part.response_mask, dtype=torch.int64)
        return part.segments
    ends = [tokenizer.encode(text, add_special_tokens=False)[-1] for text in delimiters]
    return segments_by_delimiter(part.response_ids, part.response_mask, ends)
