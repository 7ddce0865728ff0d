"""Memory of one device by item, in each phase of an iteration that may have the peak."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import torch

from gspo_lightning.commands.plan.decoding import growth_of, keeps_decoder, kv_bytes, kv_itemsize
from gspo_lightning.commands.plan.devices import Device
from gspo_lightning.commands.plan.job import Job, padded_batch
from gspo_lightning.commands.plan.models import Counts, backbone_counts, bucket, config_of, counts_of, gathered_layer
from gspo_lightning.commands.plan.optimizer_state import optimizer_bytes
from gspo_lightning.commands.plan.step import Step, StepMemory, measure_phases
from gspo_lightning.commands.plan.vision import tower_of
from gspo_lightning.loop.update.optimizers import FUSED
from gspo_lightning.policy.kernels.processor import multiplies_bfloat16
from gspo_lightning.rollouts.sampler.fast_decoder import LARGEST_COPY
from gspo_lightning.rollouts.sampler.memory import LOGITS, SHARES, Costs

SAMPLING = "sampling"
TRAINING = "backward pass"
STEPPING = "optimizer step"
CRITIC = "critic"
"""Phase of runs with a critic: its backward pass, between sampling and the policy's."""
TEACHER = "teacher's pass"
"""Phase of runs with a teacher: its forward pass over a rollout batch, before the critic's."""
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
    teacher = job.of_teacher
    critic = job.of_critic
    passes = []
    if teacher is not None and not job.teacher_exact:
        passes.append(TEACHER)
    if critic is not None:
        passes.append(CRITIC)
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
    size = job.weight_dtype.itemsize
    kept = shards if job.shards_weights else 1
    trained = counts.trainable
    frozen = counts.total - counts.trainable
    if job.lora is None:
        share = trained * size / kept
        target = "weights (float32 masters)" if size == 4 and job.autocast else "weights"
    else:
        four_bit = counts.quantisable * (size - NF4) if job.lora.base == "4bit" else 0
        memory.add("adapters", trained * 4 / kept)
        share = (frozen * size - four_bit) / kept
        target = "frozen weights"
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


def checkpoint_bytes(job: Job) -> int:
    """Return the bytes of a checkpoint: trained weights (without adapters all weights), optimizer state, snapshot."""
    counts = counts_of(job.model)
    size = 4 if job.lora is not None else job.weight_dtype.itemsize
    total = (counts.total if job.lora is None else counts.trainable) * size
    if job.old_policy == "ResidentSnapshot":
        total *= 2
    if job.checkpoints is None or job.checkpoints.save_optimizer:
        total += optimizer_bytes(job.optimizer, counts, size)
    critic = job.of_critic
    if critic is not None:  # weights and two moments of AdamW
        total += 3 * backbone_counts(critic.model).trainable * size
    return total


def _training(memory: Memory, job: Job, device: Device, shards: int) -> None:
    counts = counts_of(job.model)
    step = fullest_step(job, device, shards)
    memory.add("gradients", step.gradients, TRAINING)
    memory.add("gathered gradients", step.gathered, TRAINING)
    if job.strategy != "fsdp":  # FSDP gathers layers in compute precision instead
        memory.add("weights in bfloat16 (autocast)", step.copies, TRAINING)
    memory.add("activations", step.activations, TRAINING)
    memory.add("logits and temporaries", step.temporaries, TRAINING)
    _pictures(memory, job, TRAINING)
    if job.lora is not None and job.lora.base == "4bit":
        memory.add("dequantised weights of a layer", counts.largest_layer * job.compute_bytes, TRAINING, SAMPLING)


def _pictures(memory: Memory, job: Job, phase: str, keeps: bool = True) -> None:
    """Add a micro-batch's pictures; ``keeps`` adds the activations that a trained tower keeps for backward."""
    tower = tower_of(job)
    if tower is not None:
        keeps = keeps and tower.trained
        size = tower.bytes(job.prompts_at_once, job.compute_bytes, keeps=keeps, checkpointing=job.checkpointing)
        memory.add("pictures in the vision tower", size, phase)


def _teacher(memory: Memory, job: Job, device: Device, phase: str) -> None:
    """Add the teacher: frozen weights, and a forward pass over the fullest micro-batch without kept activations."""
    counts = counts_of(job.model)
    kept = job.shards if job.shards_weights else 1
    memory.add("teacher", counts.total * job.weight_dtype.itemsize / kept)
    forward = step_memory(job, device, backward=False)
    memory.add("teacher's forward pass", forward.activations + forward.temporaries, phase)
    _pictures(memory, job, phase, keeps=False)
    if job.strategy == "fsdp":
        memory.add("gathered weights", (2 * counts.largest_layer + counts.outside) * job.compute_bytes, phase)


def _critic(memory: Memory, job: Job, device: Device, shares_frozen: bool) -> None:
    """Add the critic: a model without its output head, with gradients and activations during its training."""
    counts = backbone_counts(job.model)
    shards = job.shards
    kept = shards if job.shards_weights else 1
    size = job.weight_dtype.itemsize
    if job.lora is None:
        trained = counts.trainable * size
        frozen = 0
    else:  # adapters are float32
        trained = counts.trainable * 4
        frozen = (counts.total - counts.trainable) * size
    state = 2 * trained / shards
    if job.cpu_offload:
        memory.host["critic's weights"] = round((trained + frozen) / kept)
        memory.host["critic's optimizer state"] = round(state)
    else:
        memory.add("critic's weights", (trained + (0 if shares_frozen else frozen)) / kept)
        memory.add("critic's optimizer state", state)
    memory.add("critic's gradients", trained / shards, CRITIC)
    step = fullest_step(job, device, shards)
    memory.add("gathered gradients", step.gathered, CRITIC)
    if job.strategy == "fsdp":
        memory.add("gathered weights", (2 * counts.largest_layer + counts.outside) * job.compute_bytes, CRITIC)
    else:
        memory.add("weights in bfloat16 (autocast)", step.copies, CRITIC)
    memory.add("activations", step.activations, CRITIC)
    _pictures(memory, job, CRITIC)


def _served(memory: Memory, job: Job, counts: Counts, device: Device) -> None:
    """Add vLLM beside training. An engine that wakes up gets its weights, gathered from shards, before its cache."""
    size = job.served_share * device.memory
    if not job.served_sleeps:
        memory.add("vLLM (weights, keys and values)", size)
        return
    weights = counts.total * job.compute_bytes
    waking = weights * (2 if job.strategy == "fsdp" else 1)
    memory.add("vLLM (weights, keys and values)", max(size, waking), SAMPLING)


def _sampling(memory: Memory, job: Job, counts: Counts, device: Device) -> None:
    """Add the memory of a batch of responses, which fills what the other items leave free."""
    if keeps_decoder(job, device):
        memory.add("weights, decoding copy", counts.products * job.compute_bytes)  # stays while training
    elif job.autocast and job.strategy != "fsdp":  # gathered weights are cast already
        memory.add("weights in bfloat16 (autocast)", counts.products * job.compute_bytes, SAMPLING)
    copies = counts.total * job.compute_bytes
    plain = job.lora is None or job.lora.base != "4bit"
    multiplies = job.compute_bytes == 4 or (device.cpu and job.autocast and multiplies_bfloat16())
    fast_decoder = plain and job.packed and multiplies and not job.lockstep
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
    items = {
        "keys and values": kv_bytes(job, config, rows, growth_of(job, device), kv_itemsize(job, device)),
        "logits and temporaries": max(logits, prefill.total() - prefill.copies),
    }
    tower = tower_of(job)
    if tower is not None:
        pictures = tower.bytes(prompts, job.compute_bytes, keeps=False, checkpointing=False)
        items["pictures in the vision tower"] = pictures
    return items


def wave_rows(job: Job, device: Device, free: int) -> int:
    """Return the number of responses that a device samples at the same time.

    Args:
        job: the run.
        device: one device.
        free: bytes left by other items during sampling.
    """
    group = job.group_size
    rows_of_rank = max(1, job.prompts // job.world) * group
    most = min(rows_of_rank, max(group, job.max_rows // group * group))  # only whole groups join
    if not job.waves_fit:
        return most
    growth = growth_of(job, device)
    costs = Costs(config_of(job.model), kv_itemsize(job, device), job.packed, job.max_prompt, growth=growth)
    context = costs.context(job.max_prompt)
    row = costs.row(job.max_response)
    budget = int(free * SHARES["cpu" if device.cpu else "cuda"])
    groups = budget // (context + group * row)
    fit = groups * group if groups >= 1 else (budget - context) // row
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
    counts = counts_of(job.model)
    config = config_of(job.model)
    text = config.get_text_config()
    head = 0 if config.tie_word_embeddings else int(text.vocab_size) * int(text.hidden_size)
    layer = gathered_layer(counts, job.expert_parallel)
    gathered = round(counts.trainable / counts.total * (head * job.compute_bytes + layer * 4))
    phases = []
    for phase, memory in step_phases(job, device).items():
        is_before = phase in ("forward", "head")  # no layer has gradients of this micro-batch yet
        phase_memory = dataclasses.replace(
            memory,
            activations=memory.activations // job.context,
            gradients=0 if is_before and job.micro_batches == 1 else gradients,
            gathered=0 if is_before else gathered,
        )
        phases.append(phase_memory)
    return max(phases, key=StepMemory.total)


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
