"""Memory of one device by item, in each phase of an iteration that may have the peak."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import torch

from gspo_lightning.commands.plan.decoding import growth_of, keeps_decoder, kv_bytes
from gspo_lightning.commands.plan.devices import Device
from gspo_lightning.commands.plan.job import Job, padded_batch
from gspo_lightning.commands.plan.models import Counts, backbone_counts, bucket, config_of, counts_of, gathered_layer
from gspo_lightning.commands.plan.step import Step, StepMemory, measure_phases
from gspo_lightning.commands.plan.vision import tower_of
from gspo_lightning.core.errors import UserError
from gspo_lightning.loop.update.optimizers import FUSED
from gspo_lightning.rollouts.sampler.fast_decoder import LARGEST_COPY
from gspo_lightning.rollouts.sampler.memory import LOGITS, SHARES, Costs

SAMPLING, TRAINING, STEPPING = "sampling", "backward pass", "optimizer step"
"""Phases of every iteration."""
CRITIC = "critic"
"""Phase of runs with a critic: its backward pass, between sampling and the policy's."""
TEACHER = "teacher's pass"
"""Phase of runs with a teacher: its forward pass over a rollout batch, before the critic's."""
ADAM_LIKE = {"adam": 2, "adamw": 2, "nadam": 2, "radam": 2, "adamax": 2, "lion": 1, "rmsprop": 1, "adagrad": 1}
"""Optimizer class -> state tensors per weight; 8-bit and paged variants are derived from the name."""
NF4 = 0.5 + 4 / 64
"""Bytes per weight in 4-bit storage, with one float32 scale per 64 weights."""


@dataclass
class Memory:
    """Bytes by item and phase."""

    phases: tuple[str, ...] = (SAMPLING, TRAINING, STEPPING)
    items: dict[str, dict[str, int]] = field(default_factory=dict)
    """Item -> phase -> bytes."""
    host: dict[str, int] = field(default_factory=dict)
    """Item -> bytes in host memory."""
    rows: int = 0
    """Responses sampled at the same time; 0 if servers sample."""

    def add(self, item: str, size: float, *phases: str) -> None:
        """Add bytes to an item in the given phases, or in every phase if none is given."""
        row = self.items.setdefault(item, {})
        for phase in phases or self.phases:
            row[phase] = row.get(phase, 0) + round(size)

    def total(self, phase: str) -> int:
        """Return the bytes of all items in a phase."""
        return sum(row.get(phase, 0) for row in self.items.values())

    @property
    def fullest(self) -> str:
        """Phase with the largest total."""
        return max(self.phases, key=self.total)

    @property
    def peak(self) -> int:
        """Bytes in the fullest phase."""
        return self.total(self.fullest)


def memory_of(job: Job, device: Device) -> Memory:
    """Return the memory of one device, by item and phase."""
    counts = counts_of(job.model)
    teacher, critic = job.of_teacher, job.of_critic
    passes = [TEACHER] if teacher is not None and not job.teacher_exact else []
    passes += [CRITIC] if critic is not None else []
    memory = Memory((SAMPLING, *passes, TRAINING, STEPPING))
    shards = job.shards
    _weights(memory, job, counts, shards)
    _states(memory, job, counts, shards, device)
    _training(memory, job, device, shards)
    if teacher is not None:
        _teacher(memory, teacher, device, TRAINING if job.teacher_exact else TEACHER)
    if critic is not None:
        _critic(memory, critic, device, shares_frozen=job.strategy != "fsdp" and not job.critic)
    if job.in_process:
        _sampling(memory, job, counts, device)
    elif job.served_share and not device.cpu:
        _served(memory, job, counts, device)
    if device.reserved:
        memory.add("context, libraries, fragments", device.reserved)
    memory.items = {item: row for item, row in memory.items.items() if any(row.values())}
    return memory


def _weights(memory: Memory, job: Job, counts: Counts, shards: int) -> None:
    size, kept = job.weight_dtype.itemsize, shards if job.shards_weights else 1
    trained, frozen = counts.trainable, counts.total - counts.trainable
    if job.lora is None:
        share = trained * size / kept
        target = "weights (float32 masters)" if size == 4 and job.autocast else "weights"
    else:
        four_bit = counts.quantisable * (size - NF4) if job.lora.base == "4bit" else 0
        memory.add("adapters", trained * 4 / kept)
        share, target = (frozen * size - four_bit) / kept, "frozen weights"
    if job.cpu_offload:
        memory.host[target] = round(share)
    else:
        memory.add(target, share)
    if job.strategy == "fsdp":
        whole = counts.total * 2 if job.autocast else (counts.total if job.lora is None else frozen) * size
        gathered = (2 * gathered_layer(counts, job.expert_parallel) + counts.outside) * job.compute_bytes
        memory.add("gathered weights", gathered, TRAINING)
        sending = min(whole, max(gathered, 2 * bucket(counts, job.compute_bytes)))  # the probe is a pass over shards
        whole = gathered if job.lockstep and job.in_process else whole
        held = {"VLLMEngine": 0, "VLLMServer": sending}.get(job.source, whole)  # an engine has copied them by then
        memory.add("gathered weights", held, SAMPLING)
    if job.copies:
        memory.add("weights of rollouts ahead", job.copies * trained * (4 if job.lora else size))
    if job.old_policy == "ResidentSnapshot":
        memory.add("old policy", counts.trainable * (4 if job.lora else size) / kept)
    elif job.old_policy == "OffloadedSnapshot":
        memory.host["old policy"] = round(counts.trainable * size / kept)
        if kept == 1:  # shards are moved to the device layer by layer
            memory.add("old policy", counts.trainable * size, SAMPLING)
    else:
        cached = job.minibatches * job.rows * job.max_response * 4
        memory.add("old log-probabilities", cached, TRAINING, STEPPING)
    if job.reference and job.lora is None:
        memory.add("reference policy", counts.total * size / kept)


def _states(memory: Memory, job: Job, counts: Counts, shards: int, device: Device) -> None:
    size = 4 if job.lora is not None else job.weight_dtype.itemsize
    memory.add("gradients", counts.trainable * size / shards, STEPPING)  # freed after it; a backward pass adds its own
    if job.strategy == "ddp":
        memory.add("gradient buckets (DDP)", counts.trainable * size)
    state = optimizer_bytes(job.optimizer, counts, size) / shards
    if job.cpu_offload or "paged" in job.optimizer.lower():
        memory.host["optimizer state"] = round(state)
    else:
        memory.add("optimizer state", state)
    if job.optimizer not in {f"torch.optim.{kind.__name__}" for kind in FUSED}:
        at_once = not device.cpu and "bitsandbytes" not in job.optimizer  # all tensors at once, or one by one
        step = counts.trainable * size / shards if at_once else 2 * counts.largest * size
        memory.add("optimizer temporaries", step, STEPPING)


def optimizer_bytes(name: str, counts: Counts, size: int) -> int:
    """Return the bytes of an optimizer's state over the trained parameters.

    Raises:
        UserError: the optimizer's state size is not known.
    """
    word = name.rsplit(".", 1)[-1].lower()
    plain = word.removeprefix("paged").removesuffix("8bit").removesuffix("32bit")
    if plain in ("sgd", "adafactor"):
        return 0 if plain == "adafactor" else counts.trainable * size
    if plain not in ADAM_LIKE:
        raise UserError("model.optimizer", f"how much state {name!r} keeps is unknown")
    tensors = ADAM_LIKE[plain]
    if not word.endswith("8bit"):
        return tensors * counts.trainable * (size if "bitsandbytes" not in name else 4)
    large = counts.trainable - counts.small
    return round(tensors * (large * (1 + 4 / 256) + counts.small * 4))


def checkpoint_bytes(job: Job) -> int:
    """Return the bytes of a checkpoint: trained weights (without adapters all weights), optimizer state, snapshot."""
    counts, size = counts_of(job.model), 4 if job.lora is not None else job.weight_dtype.itemsize
    weights = (counts.total if job.lora is None else counts.trainable) * size
    found = weights * (2 if job.old_policy == "ResidentSnapshot" else 1)
    if job.checkpoints is None or job.checkpoints.save_optimizer:
        found += optimizer_bytes(job.optimizer, counts, size)
    if (critic := job.of_critic) is not None:
        found += 3 * backbone_counts(critic.model).trainable * size
    return found


def _training(memory: Memory, job: Job, device: Device, shards: int) -> None:
    counts, found = counts_of(job.model), fullest_step(job, device, shards)
    memory.add("gradients", found.gradients, TRAINING)
    memory.add("gathered gradients", found.gathered, TRAINING)
    if job.strategy != "fsdp":  # FSDP gathers layers in compute precision instead
        memory.add("weights in bfloat16 (autocast)", found.copies, TRAINING)
    memory.add("activations", found.activations, TRAINING)
    memory.add("logits and temporaries", found.temporaries, TRAINING)
    _pictures(memory, job, TRAINING)
    if job.lora is not None and job.lora.base == "4bit":
        memory.add("dequantised weights of a layer", counts.largest_layer * job.compute_bytes, TRAINING, SAMPLING)


def _pictures(memory: Memory, job: Job, phase: str, keeps: bool = True) -> None:
    """Add a micro-batch's pictures; ``keeps`` adds the activations that a trained tower keeps for backward."""
    if (tower := tower_of(job)) is not None:
        kept = keeps and tower.trained
        size = tower.bytes(job.prompts_at_once, job.compute_bytes, keeps=kept, checkpointing=job.checkpointing)
        memory.add("pictures in the vision tower", size, phase)


def _teacher(memory: Memory, job: Job, device: Device, phase: str) -> None:
    """Add the teacher: frozen weights, and a forward pass over the fullest micro-batch without kept activations."""
    counts = counts_of(job.model)
    kept = job.shards if job.shards_weights else 1
    memory.add("teacher", counts.total * job.weight_dtype.itemsize / kept)
    found = step_memory(job, device, backward=False)
    memory.add("teacher's forward pass", found.activations + found.temporaries, phase)
    _pictures(memory, job, phase, keeps=False)
    if job.strategy == "fsdp":
        memory.add("gathered weights", (2 * counts.largest_layer + counts.outside) * job.compute_bytes, phase)


def _critic(memory: Memory, job: Job, device: Device, shares_frozen: bool) -> None:
    """Add the critic: a model without its output head, with gradients and activations during its training."""
    counts, size = backbone_counts(job.model), job.weight_dtype.itemsize
    shards = job.shards
    kept = shards if job.shards_weights else 1
    trained, frozen, width = counts.trainable, 0, size
    if job.lora is not None:
        frozen, width = counts.total - counts.trainable, 4
    state = 2 * trained * width / shards
    if job.cpu_offload:
        memory.host["critic's weights"] = round((trained * width + frozen * size) / kept)
        memory.host["critic's optimizer state"] = round(state)
    else:
        memory.add("critic's weights", (trained * width + (0 if shares_frozen else frozen * size)) / kept)
        memory.add("critic's optimizer state", state)
    memory.add("critic's gradients", trained * width / shards, CRITIC)
    found = fullest_step(job, device, shards)
    memory.add("gathered gradients", found.gathered, CRITIC)
    if job.strategy == "fsdp":
        memory.add("gathered weights", (2 * counts.largest_layer + counts.outside) * job.compute_bytes, CRITIC)
    else:
        memory.add("weights in bfloat16 (autocast)", found.copies, CRITIC)
    memory.add("activations", found.activations, CRITIC)
    _pictures(memory, job, CRITIC)


def _served(memory: Memory, job: Job, counts: Counts, device: Device) -> None:
    """Add vLLM beside training. An engine that wakes up gets its weights, gathered from shards, before its cache."""
    size = job.served_share * device.memory
    if not job.served_sleeps:
        memory.add("vLLM (weights, keys and values)", size)
        return
    own = counts.total * job.compute_bytes
    waking = own + (own if job.strategy == "fsdp" else 0)
    memory.add("vLLM (weights, keys and values)", max(size, waking), SAMPLING)


def _sampling(memory: Memory, job: Job, counts: Counts, device: Device) -> None:
    """Add the memory of a batch of responses, which fills what the other items leave free."""
    if keeps_decoder(job, device):
        memory.add("weights, decoding copy", counts.products * job.compute_bytes)  # stays while training
    elif job.autocast and job.strategy != "fsdp":  # gathered weights are cast already
        memory.add("weights in bfloat16 (autocast)", counts.products * job.compute_bytes, SAMPLING)
    copies = counts.total * job.compute_bytes
    plain = job.lora is None or job.lora.base != "4bit"
    fast_decoder = plain and job.packed and job.compute_bytes == 4 and not job.lockstep
    if fast_decoder and copies <= LARGEST_COPY:  # on a CPU
        memory.add("weights, decoding copy", copies, SAMPLING)
    free = device.memory - device.reserved - memory.total(SAMPLING)
    memory.rows = wave_rows(job, device, free)
    while memory.rows > 1 and job.waves_fit and sum(_wave(job, device, memory.rows).values()) > free:
        memory.rows //= 2  # as the sampler does when a prefill does not fit
    for item, size in _wave(job, device, memory.rows).items():
        memory.add(item, size, SAMPLING)


def _wave(job: Job, device: Device, rows: int) -> dict[str, int]:
    """Return bytes by item while ``rows`` responses are sampled."""
    config = config_of(job.model).get_text_config()
    prompts = min(max(1, job.prompts // job.world), max(1, rows // job.group_size))
    logits = 4 * LOGITS * rows * int(config.vocab_size)
    prefill = step_memory(job, device, prefilled=prompts)  # its weights are cast already: counted as such, or gathered
    found = {
        "keys and values": kv_bytes(job, config, rows, growth_of(job, device)),
        "logits and temporaries": max(logits, prefill.total() - prefill.copies),
    }
    if (tower := tower_of(job)) is not None:
        found["pictures in the vision tower"] = tower.bytes(
            prompts, job.compute_bytes, keeps=False, checkpointing=False
        )
    return found


def wave_rows(job: Job, device: Device, free: int) -> int:
    """Return the number of responses that a device samples at the same time.

    Args:
        job: the run.
        device: one device.
        free: bytes left by other items during sampling.
    """
    group, mine = job.group_size, max(1, job.prompts // job.world) * job.group_size
    most = min(mine, max(group, job.max_rows // group * group))  # only whole groups join
    if not job.waves_fit:
        return most
    growth = growth_of(job, device)
    costs = Costs(config_of(job.model), job.compute_bytes, job.packed, job.max_prompt, growth=growth)
    context, row = costs.context(job.max_prompt), costs.row(job.max_response)
    budget = int(free * SHARES["cpu" if device.cpu else "cuda"])
    whole = budget // (context + group * row)
    fit = whole * group if whole >= 1 else (budget - context) // row
    return max(1, min(most, fit))


def fullest_step(job: Job, device: Device, shards: int = 1) -> StepMemory:
    """Return the memory of the micro-batch that needs most, its gradients included.

    A micro-batch that has a mini-batch for itself makes its gradients while its activations go. One after others finds
    them there. If full lengths take two packed micro-batches, these are equally large, and shorter responses may fill
    one: the larger need counts.

    Args:
        job: the run.
        device: one device.
        shards: ranks that share the gradients.
    """
    size = 4 if job.lora is not None else job.weight_dtype.itemsize
    gradients = round(counts_of(job.model).trainable * size / shards)
    if job.strategy == "fsdp":
        return _sharded_step(job, device, gradients)
    halves = job.packed and job.micro_batches == 2
    alone = step_memory(job, device, accumulates=False) if halves or job.micro_batches == 1 else None
    if alone is not None and not halves:
        return alone
    prompts = -(-job.rows // job.rows_of_prompt)
    rows = min(job.rows_at_once, -(-prompts // 2) * job.rows_of_prompt) if halves else job.rows_at_once
    later = dataclasses.replace(step_memory(job, device, rows=rows), gradients=gradients)
    return later if alone is None else max(alone, later, key=StepMemory.total)


def _sharded_step(job: Job, device: Device, gradients: int) -> StepMemory:
    """Return the memory of a micro-batch whose layers' gradients are reduced in float32 as soon as they are complete.

    The gradient of the head waits for that of the embedding; if they are tied, it is among the temporaries.
    """
    counts, config = counts_of(job.model), config_of(job.model)
    text = config.get_text_config()
    head = 0 if config.tie_word_embeddings else int(text.vocab_size) * int(text.hidden_size)
    layer = gathered_layer(counts, job.expert_parallel)
    gathered = round(counts.trainable / counts.total * (head * job.compute_bytes + layer * 4))
    found = []
    for phase, memory in step_phases(job, device).items():
        before = phase in ("forward", "head")
        own = 0 if before and job.micro_batches == 1 else gradients
        kept = memory.activations // job.context
        found.append(dataclasses.replace(memory, activations=kept, gradients=own, gathered=0 if before else gathered))
    return max(found, key=StepMemory.total)


def step_memory(
    job: Job, device: Device, *, rows: int = 0, prefilled: int = 0, backward: bool = True, accumulates: bool = True
) -> StepMemory:
    """Return the memory of a step over the fullest micro-batch, or of a prefill of rollout prompts.

    Args:
        job: the run.
        device: one device.
        rows: responses of the micro-batch; 0 takes as many as the budget has room for.
        prefilled: number of prompts to prefill, without a backward pass; 0 takes the micro-batch.
        backward: False takes a forward pass over the same micro-batch without gradients.
        accumulates: True if an earlier micro-batch has made gradients.
    """
    phases = step_phases(job, device, rows=rows, prefilled=prefilled, backward=backward, accumulates=accumulates)
    return max(phases.values(), key=StepMemory.total)


def step_phases(
    job: Job, device: Device, *, rows: int = 0, prefilled: int = 0, backward: bool = True, accumulates: bool = True
) -> dict[str, StepMemory]:
    """Return the memory of :func:`step_memory` in each phase of a step, cached."""
    backward = backward and not prefilled
    sharded = job.strategy == "fsdp"  # weights are gathered in compute precision, and so is the residual stream
    step = Step(
        dtype=torch.bfloat16 if sharded and job.autocast else job.weight_dtype,
        autocast=job.autocast,
        checkpointing=job.checkpointing and backward,
        packed=job.packed,
        lora=job.lora,
        accumulates=accumulates,
        backward=backward,
        sharded=sharded,
        cpu=device.cpu,
    )
    if prefilled:
        batch = padded_batch(prefilled, 1, job.max_prompt, 1)
    else:
        batch = padded_batch(rows or job.rows_at_once, job.rows_of_prompt, job.max_prompt, job.max_response)
    key = (repr(job.model), repr(step), tuple(batch.input_ids.shape), tuple(batch.response_mask.shape))
    if key not in _steps:
        _steps[key] = measure_phases(config_of(job.model), batch, step)
    return _steps[key]


_steps: dict[tuple[Any, ...], dict[str, StepMemory]] = {}
