"""Refuse strategies and optimizers that would not work as expected here."""

from __future__ import annotations

import torch
from lightning.pytorch.strategies import FSDPStrategy as LightningFSDP
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import nn

from gspo_lightning.core.errors import UserError
from gspo_lightning.policy.parallel.expert_parallel import expert_modules
from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.strategies.sharding import is_sharded
from gspo_lightning.policy.strategies.sharding_strategy import sharding_of

_ENGINES = {"DeepSpeedStrategy", "XLAStrategy", "SingleDeviceXLAStrategy", "XLAFSDPStrategy"}
"""Compared by name: importing them would need their dependencies."""


def check_strategy(strategy: object) -> None:
    """Refuse unsupported strategies and ways of starting processes.

    These are Lightning's own sharding strategies, which gather weights only inside a forward pass; strategies with an
    engine of their own; and processes that are not started from the command line.

    Raises:
        UserError: the strategy, or its name, is one of these.
    """
    name = strategy if isinstance(strategy, str) else f"Lightning's {type(strategy).__name__}"
    named = isinstance(strategy, str) and strategy.startswith("fsdp")
    if named or (isinstance(strategy, LightningFSDP | ModelParallelStrategy) and sharding_of(strategy) is None):
        raise UserError(
            "trainer.strategy",
            f"{name} cannot sample from sharded weights",
            fix="add --config fsdp2 (class_path: gspo_lightning.policy.strategies.FSDP2Strategy), or --config fsdp",
        )
    engine = isinstance(strategy, str) and strategy.startswith(("deepspeed", "xla"))
    if engine or {kind.__name__ for kind in type(strategy).__mro__} & _ENGINES:
        raise UserError(
            "trainer.strategy",
            f"{name} has its own backward pass and optimizer step, which this package does not drive",
            fix="use ddp, or --config fsdp2 where a rank cannot hold the whole optimizer state",
        )
    start = getattr(strategy, "_start_method", "popen")
    if start != "popen":
        raise UserError(
            "trainer.strategy",
            f"starts its processes by {start!r}: reward workers and prompts are in this process and cannot follow",
            fix="use ddp, which starts every rank from the command line",
        )


def check_context(policy: Policy, size: int) -> None:
    """Refuse models whose tokens cannot be cut over ``size`` ranks; 1 leaves them together.

    Raises:
        UserError: a rank would have no head, or something beside attention by a plan looks at several tokens.
    """
    if size == 1:
        return
    name = type(policy.model).__name__
    config = policy.model.config.get_text_config()
    heads = int(getattr(config, "num_attention_heads", 0))

    def refused(reason: str, fix: str = "use context: 1") -> UserError:
        return UserError("trainer.strategy.context", f"is {size}, but {name} {reason}", fix=fix)

    if policy.image_processor is not None:
        raise refused("reads pictures, whose tokens are not cut over ranks")
    if policy.routing is not None:
        off = "model.router_metrics: false, router_aux_loss_coef: 0 and routing_replay: off, or context: 1"
        raise refused("has routers that are measured, balanced or replayed over whole rows", f"use {off}")
    if not policy.packed:
        raise refused(f"has padded rows, because of {policy.padded_because}, and only packed ones are cut over ranks")
    if heads < size:
        raise refused(f"has {heads} query heads, of which each rank needs one", f"use at most {heads}")


def check_experts(module: nn.Module, ranks: int) -> None:
    """Refuse mixtures whose experts cannot be dealt to ranks whole.

    Raises:
        UserError: their number is no multiple of ``ranks``.
    """
    for name, experts in expert_modules(module).items():
        count = int(getattr(experts, "num_experts", 0))
        if count % ranks or not count:
            raise UserError(
                "trainer.strategy.expert_parallel",
                f"is true, but {ranks} ranks cannot have equal parts of the {count} experts of {name}",
                fix="use a divisor of the number of experts as the number of ranks, or leave it out",
            )


def check_one_set_of_weights(optimizer: torch.optim.Optimizer) -> None:
    """Refuse an optimizer whose weights of training are not those to evaluate (schedule-free, arXiv 2405.15682).

    Its ``train()`` and ``eval()`` switch between the two. A run calls neither: without them some raise in the first
    step, and others train, and the weights of training are evaluated and exported.

    Raises:
        UserError: the optimizer has both methods.
    """
    if callable(getattr(optimizer, "train", None)) and callable(getattr(optimizer, "eval", None)):
        raise UserError(
            "model.optimizer",
            f"{type(optimizer).__name__} evaluates other weights than it trains (its train() and eval()), which a run "
            "does not switch",
            fix="use torch.optim.AdamW and the callback EMAWeightAveraging, whose average is evaluated and exported",
        )


def check_optimizer(optimizer: torch.optim.Optimizer, policy: nn.Module) -> None:
    """Refuse optimizers of bitsandbytes on shards, whose 8-bit state belongs to blocks of whole tensors, and others.

    Raises:
        UserError: the policy is sharded and the optimizer is one of these; or it evaluates other weights than it
            trains.
    """
    check_one_set_of_weights(optimizer)
    if is_sharded(policy) and type(optimizer).__module__.startswith("bitsandbytes"):
        raise UserError(
            "model.optimizer",
            f"{type(optimizer).__name__} of bitsandbytes cannot step or save sharded weights",
            fix="use torch.optim.AdamW (every rank keeps only its share of the state), or strategy: ddp",
        )
