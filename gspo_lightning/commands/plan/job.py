"""Numbers of a config that determine memory and compute."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import torch

from gspo_lightning.commands.plan.models import config_of
from gspo_lightning.core.errors import UserError
from gspo_lightning.core.types import MicroBatch
from gspo_lightning.loop.old_policy.logprobs import OldLogProbsChoice
from gspo_lightning.policy.adapters.lora import LoRA
from gspo_lightning.policy.load.model_settings import DType, ModelSettings
from gspo_lightning.policy.packing.deal import DEFAULT_DEAL, Deal, prompts_per_update
from gspo_lightning.policy.tiny import TINY_MODELS

if TYPE_CHECKING:
    from gspo_lightning.rollouts.source import RolloutSource
    from gspo_lightning.training.callbacks import LastCheckpoint
    from gspo_lightning.training.data import PromptDataModule
    from gspo_lightning.training.module import GSPOModule

Strategy = Literal["single", "ddp", "fsdp"]


@dataclass(frozen=True)
class Job:
    """Settings of a run that determine memory and compute."""

    model: ModelSettings
    optimizer: str
    """Dotted path of the optimizer's class."""
    precision: str
    strategy: Strategy
    shards_weights: bool
    """FSDP's full sharding; False keeps unsharded weights (``SHARD_GRAD_OP``)."""
    cpu_offload: bool
    world: int
    nodes: int
    old_policy: str
    """Class name of the old policy."""
    reference: bool
    prompts: int
    """Prompts per iteration, over all ranks."""
    group_size: int
    minibatches: int
    epochs: int
    budget: int
    """Maximum tokens of a micro-batch."""
    max_prompt: int
    max_response: int
    iterations: int
    packed: bool
    source: str
    """Class name of the rollout source."""
    max_rows: int
    """Maximum responses decoded at the same time."""
    teacher: ModelSettings | None = None
    """Teacher model of distillation on the training devices; None without one."""
    teacher_exact: bool = False
    """True if the teacher returns full distributions, in every update."""
    teacher_served: bool = False
    """True if the teacher is behind a URL instead."""
    deal: Deal = DEFAULT_DEAL
    """Assignment of rows to mini-batches."""
    critic: str | None = None
    """Model name of the critic; empty for a copy of the policy's model; None without a critic, or if it has only a
    head on the policy."""
    critic_epochs: int = 1
    critic_shared: bool = False
    """True if the critic is only a head on the policy's hidden states."""
    lockstep: bool = False
    """True if responses are sampled from the shards, layer by layer, in lockstep with all ranks (FSDP2)."""
    replicas: int = 1
    """Groups of ranks that each have all weights (HSDP)."""
    context: int = 1
    """Ranks that compute the same rows, in turns (context parallelism)."""
    expert_parallel: bool = False
    """True if experts stay on the ranks that hold their shards."""
    copies: int = 0
    """Copies of the trained weights kept for rollouts ahead of training (``data.max_staleness``); none of shards."""
    old_logprobs: OldLogProbsChoice = "auto"
    max_pixels: int | None = None
    """Maximum pixels of a picture (``data.pictures.max_pixels``); None is the limit of the model's processor."""
    served_share: float = 0.0
    """Share of a training device's memory that vLLM fills beside training; 0 if it samples elsewhere, or not at all."""
    served_sleeps: bool = False
    """True if vLLM releases that memory while the policy is trained."""
    checkpoints: LastCheckpoint | None = None
    """When checkpoints are written, and how many are kept; None without any."""

    @property
    def of_critic(self) -> Job | None:
        """This run with the critic's model in place of the policy: AdamW, a model without an output head."""
        if self.critic is None:
            return None
        changes: dict[str, Any] = {}
        if self.critic:
            changes = {"name_or_path": self.critic, "revision": None, "config_overrides": {}}
        return dataclasses.replace(
            self.with_model(**changes), optimizer="torch.optim.AdamW", critic=None, epochs=self.critic_epochs
        )

    @property
    def of_teacher(self) -> Job | None:
        """This run with the teacher in place of the policy, in the teacher's dtype in memory."""
        if self.teacher is None:
            return None
        taught = dataclasses.replace(self.teacher, dtype=stored_dtype(self.teacher))
        precision = "32-true" if self.precision == "bf16-true" else self.precision
        return dataclasses.replace(self, model=taught, precision=precision, teacher=None, critic=None)

    @property
    def old_from_source(self) -> bool:
        """True if old log-probabilities are the sampler's: a run's own choice in float32, after the first iteration."""
        precise = self.in_process and self.compute_bytes == 4 and not self.copies
        return self.old_logprobs == "source" or (self.old_logprobs == "auto" and precise)

    @property
    def checkpointing(self) -> bool:
        """True if activations are recomputed in the backward pass."""
        return self.model.gradient_checkpointing

    @property
    def lora(self) -> LoRA | None:
        """LoRA settings; None without adapters."""
        return self.model.lora

    @property
    def autocast(self) -> bool:
        """True if 16-bit compute runs on float32 weights."""
        return self.precision in ("bf16", "bf16-mixed", "16", "16-mixed") and self.weight_dtype != torch.bfloat16

    @cached_property
    def weight_dtype(self) -> torch.dtype:
        """Dtype of the model's weights; of ``auto``, that of its files."""
        narrow = self.precision == "bf16-true" or stored_dtype(self.model) == "bfloat16"
        return torch.bfloat16 if narrow else torch.float32

    @property
    def compute_bytes(self) -> int:
        """Bytes per number in compute precision."""
        return 2 if self.autocast or self.weight_dtype == torch.bfloat16 else 4

    @property
    def in_process(self) -> bool:
        """True if responses are sampled on the training devices."""
        return self.source in ("GroupedSampler", "TransformersGenerate")

    @property
    def waves_fit(self) -> bool:
        """True if the source limits the responses decoded at a time to what free memory has room for."""
        return self.source == "GroupedSampler"

    @property
    def shards(self) -> int:
        """Ranks over which weights are sharded; 1 if they are not."""
        return self.world // self.replicas if self.strategy == "fsdp" else 1

    @property
    def still_old(self) -> float:
        """Share of an iteration whose policy is the old policy: no forward pass gives its old log-probabilities."""
        return 1 / self.minibatches if self.epochs == 1 else 0.0

    @property
    def rows(self) -> int:
        """Responses per rank and mini-batch."""
        return max(1, self.prompts // self.minibatches // self.world) * self.group_size

    @property
    def prompts_per_update(self) -> float:
        """Distinct prompts per mini-batch, over all ranks."""
        return prompts_per_update(
            self.deal, prompts=self.prompts, group_size=self.group_size, mini_batches=self.minibatches
        )

    @property
    def rows_of_prompt(self) -> int:
        """Responses per prompt in a mini-batch, rounded up; they share the computation of the prompt."""
        return math.ceil(self.prompts * self.group_size / self.minibatches / self.prompts_per_update)

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence."""
        return self.max_prompt + self.max_response

    @property
    def rows_at_once(self) -> int:
        """Responses of the fullest micro-batch if all have the maximum length."""
        if not self.packed:
            return max(1, min(self.rows, self.budget // self.longest))
        together = self.rows_of_prompt
        group = self.max_prompt + together * self.max_response
        if group > self.budget:
            return max(1, min(together, (self.budget - self.max_prompt) // self.max_response))
        return min(self.rows, self.budget // group * together)

    @property
    def micro_batches(self) -> int:
        """Maximum micro-batches per rank and update."""
        return -(-self.rows // self.rows_at_once)

    @property
    def passes(self) -> int:
        """Maximum forward passes per rank and update, of its own micro-batches and of those of its context group."""
        return self.micro_batches * self.context

    @property
    def prompts_at_once(self) -> int:
        """Distinct prompts of the fullest micro-batch."""
        return -(-self.rows_at_once // self.rows_of_prompt)

    @property
    def prompts_seen(self) -> int:
        """Prompts processed in a pass over a rollout batch, counted once per micro-batch that contains them."""
        parts = self.minibatches * self.world * self.micro_batches * self.prompts_at_once
        return max(parts, round(self.prompts_per_update * self.minibatches))

    def with_model(self, **changes: Any) -> Job:
        """Return this run with changed model settings."""
        return dataclasses.replace(self, model=dataclasses.replace(self.model, **changes))


def job_of(module: GSPOModule, data: PromptDataModule, config: Any, packed: bool) -> Job:
    """Build a job from a parsed config.

    Args:
        module: model module before its setup; only its settings are read.
        data: data module before its setup.
        config: config of ``fit``.
        packed: pack rows if ``model.layout`` is ``auto``.
    """
    trainer = config.trainer
    strategy, options = _class_and_options(trainer.strategy)
    kind = _strategy_kind(strategy)
    world = _devices(trainer.devices) * int(trainer.num_nodes or 1)
    settings = module.settings
    rollouts = innermost(data.rollouts)
    critic = module.critic
    ahead = data.settings.max_staleness
    share, sleeps = _served(rollouts, world // int(trainer.num_nodes or 1))
    from gspo_lightning.training.teacher import is_url, teacher_settings

    hybrid = str(options.get("sharding_strategy")).upper().startswith("HYBRID")
    return Job(
        model=settings,
        replicas=int(trainer.num_nodes or 1) if hybrid else int(options.get("replicas") or 1),
        context=int(options.get("context") or 1),
        expert_parallel=bool(options.get("expert_parallel")),
        optimizer=_class_and_options(config.model.optimizer)[0],
        precision=str(trainer.precision or "32-true"),
        strategy="single" if world == 1 and kind == "ddp" else kind,
        shards_weights=str(options.get("sharding_strategy") or "FULL_SHARD").upper() in ("FULL_SHARD", "HYBRID_SHARD"),
        cpu_offload=bool(options.get("cpu_offload")),
        world=world,
        nodes=int(trainer.num_nodes or 1),
        old_policy=type(module.old_policy).__name__,
        old_logprobs=module.old_logprobs.choice,
        reference=getattr(module.objective, "kl_coef", 0.0) > 0 or data.settings.kl_in_reward > 0,
        prompts=data.settings.prompts_per_rollout,
        group_size=data.settings.group_size,
        minibatches=data.settings.minibatches_per_rollout,
        epochs=data.settings.epochs_per_rollout,
        budget=data.settings.max_tokens_per_micro_batch,
        max_prompt=data.settings.max_prompt_tokens,
        max_response=data.settings.max_response_tokens,
        iterations=max(0, int(trainer.max_epochs or 0)),
        packed=settings.layout == "packed" or (settings.layout == "auto" and packed),
        source=type(rollouts).__name__,
        max_rows=int(getattr(rollouts, "max_rows", 1 << 30)),
        teacher=None if module.teacher_model is None else teacher_settings(module.teacher_model, settings),
        deal=data.settings.dealing,
        teacher_exact=bool(getattr(module.objective, "distill_exact", False)),
        teacher_served=module.teacher_model is not None and is_url(module.teacher_model.name_or_path),
        critic=None if critic is None or critic.share else critic.name_or_path or "",
        critic_epochs=1 if critic is None else critic.epochs,
        critic_shared=critic is not None and critic.share,
        lockstep=options.get("rollouts") == "lockstep",
        copies=0 if kind == "fsdp" else ahead + (ahead > 0 and rollouts.updates_in_flight),
        max_pixels=data.sets.pictures.max_pixels,
        served_share=share,
        served_sleeps=sleeps,
        checkpoints=_checkpoints(trainer),
    )


def innermost(source: RolloutSource) -> RolloutSource:
    """Return the source that samples: the one inside of conversations, retries and partial rollouts."""
    while (inner := getattr(source, "source", None)) is not None:
        source = inner
    return source


def _served(source: RolloutSource, ranks: int) -> tuple[float, bool]:
    """Return the share of a device that vLLM has beside training, and whether it sleeps then.

    A single server started here counts unless it has named GPUs of its own: without a free one it shares the first
    rank's. So a plan is right for as many cards as ranks, and too high if there is another.

    Args:
        source: the source that samples.
        ranks: ranks of a machine, on the GPUs 0 to ``ranks`` - 1.
    """
    from gspo_lightning.rollouts import VLLMEngine, VLLMServer
    from gspo_lightning.rollouts.vllm.gpus import Placement, listed

    if isinstance(source, VLLMEngine):
        share = source.options.get("gpu_memory_utilization", source.gpu_memory_utilization)
        return float(share), bool(source.options.get("enable_sleep_mode", True))
    if not isinstance(source, VLLMServer) or source.servers.urls is not None:
        return 0.0, False
    local = source.servers.local
    training_gpus = [str(rank) for rank in range(ranks)]
    gpus_by_server = [training_gpus[:1]] if source.servers.count == 1 else []
    if local.gpus is not None:
        gpus_by_server = [listed(names) for names in local.gpus]
    placement = Placement("0", gpus_by_server, frozenset(training_gpus))
    shares = dict.fromkeys(training_gpus, 0.0)
    for number, gpus in enumerate(gpus_by_server):
        options = {**placement.defaults(number)[0], **local.options}
        for gpu in set(gpus) & set(training_gpus):
            shares[gpu] += float(options["gpu_memory_utilization"])
    return max(shares.values()), False


def _checkpoints(trainer: Any) -> LastCheckpoint | None:
    """Return the callback that the run will have; None if it writes no checkpoints."""
    from gspo_lightning.commands.fit.callbacks import listed
    from gspo_lightning.training.callbacks import (
        LastCheckpoint,  # imports jsonargparse, which the checks of a GPU do without
    )

    if trainer.enable_checkpointing is False:
        return None
    arguments: dict[str, Any] = {}
    for callback in listed(trainer.callbacks):
        name, options = _class_and_options(callback)
        if name.rsplit(".", 1)[-1] == LastCheckpoint.__name__:
            arguments = options
    return LastCheckpoint(**arguments)


def stored_dtype(settings: ModelSettings) -> DType:
    """Return the dtype of weights in memory; ``auto`` is that of the model's config, usually bfloat16."""
    if settings.dtype != "auto":
        return settings.dtype
    if settings.name_or_path in TINY_MODELS:
        return "float32"
    return "float32" if getattr(config_of(settings), "dtype", None) == torch.float32 else "bfloat16"


def padded_batch(rows: int, group_size: int, prompt: int, response: int) -> MicroBatch:
    """Return a micro-batch whose prompts and responses all have these lengths, in tokens."""
    return MicroBatch(
        torch.zeros(rows, prompt + response, dtype=torch.int64),
        torch.full((rows,), prompt),
        torch.full((rows,), response),
        torch.ones(rows, response, dtype=torch.bool),
        torch.zeros(rows),
        prompt_index=torch.arange(rows) // group_size,
    )


def _class_and_options(value: Any) -> tuple[str, dict[str, Any]]:
    """Return name and arguments of a setting that is a plain name or a class path with ``init_args``."""
    if value is None or isinstance(value, str):
        return str(value or ""), {}
    given = value.get("init_args") or {}
    return str(value["class_path"]), dict(given if isinstance(given, dict) else vars(given))


def _strategy_kind(name: str) -> Strategy:
    last = name.rsplit(".", 1)[-1].lower()
    if "fsdp" in last or "modelparallel" in last:
        return "fsdp"
    if last in ("auto", "") or "ddp" in last or last.startswith("singledevice"):
        return "ddp"
    raise UserError("trainer.strategy", f"{name!r} is not supported by gspo plan", fix="use ddp, or --config fsdp2")


def _devices(value: Any) -> int:
    if isinstance(value, list):
        return len(value)
    text = str(value)
    if text in ("auto", "-1", "None"):
        return max(1, torch.cuda.device_count())
    return int(text) if text.isdigit() else len([part for part in text.split(",") if part])
