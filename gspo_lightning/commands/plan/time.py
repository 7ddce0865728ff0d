"""Time of an iteration, phase by phase: a roofline estimate from data sheets, with its assumptions."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from gspo_lightning.commands.plan.decoding import kv_itemsize
from gspo_lightning.commands.plan.devices import Device
from gspo_lightning.commands.plan.job import Job
from gspo_lightning.commands.plan.memory import memory_of
from gspo_lightning.commands.plan.models import Counts, backbone_counts, config_of, counts_of
from gspo_lightning.commands.plan.optimizer_state import optimizer_bytes
from gspo_lightning.commands.plan.work import Work, work_of
from gspo_lightning.policy.attention.kv_cache_size import KVCacheSize, kv_cache_size

PREFILL = "prompts (prefill)"
DECODING = "decoding"
FORWARD_BACKWARD = "forward and backward"
SAMPLED = (PREFILL, DECODING)
"""Phases of sampling."""

CPU_EFFICIENCY = 0.6
"""The same share of a CPU, whose peak is measured."""
DECODED = 0.35
"""Share of a card's peak that matrix products reach in prefill and decoding, in bfloat16 without gradients."""
READING = 0.6
"""Share of a device's bandwidth that decoding reaches."""
GRAPH = 0.05e-3
"""Minimum seconds per decoder layer and decoding step of a server, which replays CUDA graphs."""
ON_A_CPU = 0.5e-3
"""Minimum seconds per decoder layer and decoding step in this process, on a CPU."""
SERVED_MEMORY = 0.9
"""Share of a device's memory that a server fills with weights and KV cache."""
ACROSS = 50e9
"""Bytes per second and device between machines: 400 Gb/s per device."""
LINK_SHARE = 0.7
"""Share of a link's rate that collectives reach."""


@dataclass(frozen=True)
class Pace:
    """Pace of a card where data sheets do not say it."""

    efficiency: float
    """Share of the peak FLOP/s that matrix products reach over a forward pass or a pass of training."""
    launches: dict[str, float]
    """Minimum seconds per decoder layer and decoding step in this process, by source, for Python and launches."""


MEASURED = Pace(0.19, {"GroupedSampler": 0.82e-3, "TransformersGenerate": 0.82e-3})
"""Pace of the one step that was measured on a GPU: Qwen3-1.7B, 64 rows, H100, steps launched kernel by kernel.

Decoding 1,024 tokens in 28 layers took 23.5 s, and 31,400 tokens forward and backward 1.74 s of 989 TFLOP/s
(docs/gpu_checks.md). That launches of ``TransformersGenerate`` take as long is an assumption.
"""
HOPED = Pace(0.35, {"GroupedSampler": GRAPH, "TransformersGenerate": 0.82e-3})
"""Pace of well-tuned training, and of decoding by CUDA graphs as fast as a server's. No run has shown it."""

ASSUMPTIONS = (
    f"matrix products reach {MEASURED.efficiency:.0%} of a card's peak, as measured on an H100, in the shorter time "
    f"{HOPED.efficiency:.0%}, and {DECODED:.0%} in prefill and decoding; {CPU_EFFICIENCY:.0%} of the rate measured on "
    f"this CPU; decoding reaches {READING:.0%} of the bandwidth",
    f"a decoding step in this process costs at least {MEASURED.launches['GroupedSampler'] * 1e3:g} ms a layer, as "
    f"measured without CUDA graphs, in the shorter time {GRAPH * 1e3:g} ms, as in a server with CUDA graphs",
    "the longer time is calibrated by one step on one card (Qwen3-1.7B, 64 rows, H100); other models, cards and row "
    "counts may be slower, and more than a few rows at a time are (docs/memory.md)",
    "the sampler in this process decodes one wave after another, each with as many responses as free memory has room "
    "for; layers with a sliding window read no more than it, and recurrent states are read and written at every step",
    "every prompt and every response has its greatest length; with shorter ones all phases shrink in proportion, "
    "decoding in this process only as far as the longest response does",
    f"a server fills {SERVED_MEMORY:.0%} of its device with weights and cache, beside training its share of one, and "
    "stands on as many devices as train; "
    "a teacher behind a URL counts as a model of the policy's size that reads every row whole, in bfloat16",
    f"links carry {LINK_SHARE:.0%} of their rate: NVLink or PCIe within a machine, {ACROSS / 1e9:g} GB/s a device "
    "between machines; communication overlaps with computing",
    "rewards are scored while responses are sampled; evaluation, checkpoints and start-up are not counted",
)
"""Assumptions of :func:`phases_of`, as sentences."""


@dataclass(frozen=True)
class Phase:
    """Phase of an iteration."""

    name: str
    seconds: float
    tokens: int
    """Tokens that pass through the model in this phase, over all devices; 0 if none."""
    bound: str
    """Bottleneck: compute, bandwidth, launches or communication."""

    def rate(self, devices: int) -> float:
        """Return the tokens per second and device."""
        return self.tokens / self.seconds / devices if self.seconds else 0.0


def phases_of(job: Job, device: Device, pace: Pace = MEASURED) -> list[Phase]:
    """Return the phases of one iteration, in order, at a pace."""
    work = work_of(job)
    counts = counts_of(job.model)
    tokens = work.response_tokens + work.trained_prompt_tokens  # of a pass over the rollout batch
    phases = []
    handing_over = _handing_over(job, device)
    if handing_over is not None:
        phases.append(handing_over)
    phases += _sampling(job, device, work, pace)
    if work.old_flops:
        old_tokens = tokens - int(tokens * job.still_old)
        phases.append(_forward("old log-probabilities", job, device, pace, work.old_flops, old_tokens, counts))
    if work.reference_flops:
        phases.append(_forward("reference", job, device, pace, work.reference_flops, tokens, counts))
    if work.teacher_flops:
        phases.append(_teacher(job, device, pace, work, tokens))
    if work.value_flops:
        critic = job.of_critic or job
        critic_counts = backbone_counts(critic.model)
        phases.append(_forward("critic's values", critic, device, pace, work.value_flops, tokens, critic_counts))
        phases += _critic(job, device, pace, work, tokens * job.critic_epochs)
    phases.append(_training(FORWARD_BACKWARD, job, device, pace, work.training_flops, tokens * job.epochs, counts))
    phases.append(_optimizer("optimizer", job, device, counts))
    return phases


def _teacher(job: Job, device: Device, pace: Pace, work: Work, tokens: int) -> Phase:
    if job.teacher_served:
        seconds = work.teacher_flops / (device.flops * job.world * pace.efficiency)
        return Phase("teacher (server)", seconds, job.prompts * job.group_size * job.longest, "compute")
    teacher = job.of_teacher
    assert teacher is not None
    passes = job.epochs if job.teacher_exact else 1
    counts = counts_of(teacher.model)
    return _forward("teacher", teacher, device, pace, work.teacher_flops, tokens * passes, counts, passes)


def _critic(job: Job, device: Device, pace: Pace, work: Work, tokens: int) -> list[Phase]:
    """Return the critic's updates; for a head alone, communication and the optimizer step are negligible."""
    name = "critic's updates"
    critic = job.of_critic
    if critic is None:
        return [Phase(name, work.critic_flops / _speed(job, device, pace.efficiency), tokens, "compute")]
    counts = backbone_counts(critic.model)
    trained = _training(name, critic, device, pace, work.critic_flops, tokens, counts)
    return [trained, _optimizer("critic's optimizer", critic, device, counts)]


def decoding_seconds(job: Job, device: Device, rows: int, tokens: int, pace: Pace = MEASURED) -> tuple[float, str]:
    """Return the seconds to decode ``rows`` responses of ``tokens`` tokens on one device, and the bottleneck.

    The slowest of three costs counts in each step: reading all weights and the cache, compute, and launches. In
    this process waves run one after another; a server admits a response as soon as there is room.

    Args:
        job: model and precision; its lengths determine a cache row.
        device: one device.
        rows: number of responses on this device.
        tokens: tokens per response.
        pace: of a card.
    """
    cache = kv_cache_size(config_of(job.model), kv_itemsize(job, device))
    room = memory_of(job, device).rows if job.in_process else _served(job, device, cache)
    room = min(rows, room)
    waves = [float(room)] * (rows // room)
    if rows % room:
        waves.append(float(rows % room))
    if not job.in_process:
        waves = [rows / len(waves)] * len(waves)
    steps = [_step(job, device, cache, wave, tokens, pace) for wave in waves]
    _, bound = steps[0]
    return tokens * sum(seconds for seconds, _ in steps), bound


def _step(job: Job, device: Device, cache: KVCacheSize, rows: float, tokens: int, pace: Pace) -> tuple[float, str]:
    """Return the seconds of a decoding step of ``rows`` responses, and the bottleneck."""
    counts = counts_of(job.model)
    layers = int(config_of(job.model).get_text_config().num_hidden_layers)
    shared = cache.row(job.max_prompt) if job.waves_fit and job.packed else 0  # read once per group
    cache_bytes = rows * (cache_read(cache, job.max_prompt, tokens) - shared) + rows / job.group_size * shared
    weights = (counts.total - counts.vision) * job.compute_bytes  # a step of many rows uses every expert
    costs = {
        "bandwidth": (weights + cache_bytes) / (device.bandwidth * READING),
        "compute": rows * 2.0 * counts.active / (_speed(job, device, DECODED) / job.world),
        "launches": layers * (ON_A_CPU if device.cpu else pace.launches.get(job.source, GRAPH)),
    }
    if job.lockstep and job.in_process:  # every layer is gathered again in each step
        costs["communication"] = counts.total * job.compute_bytes * (job.shards - 1) / job.shards / _link(job, device)
    bound = max(costs, key=lambda name: costs[name])
    return costs[bound], bound


def cache_read(cache: KVCacheSize, start: int, tokens: int) -> float:
    """Return the cache bytes that a step reads per row (and writes, for states), averaged over the response.

    Args:
        cache: KV-cache size of the model.
        start: prompt tokens.
        tokens: response tokens.
    """
    total = 2.0 * cache.state
    for size, kept in cache.layers:
        growing = tokens if kept is None else min(max(0, kept - start), tokens)
        full = tokens - growing  # steps with a full window
        total += size * (growing * (start + growing / 2) + full * (kept or 0)) / tokens
    return total


def _served(job: Job, device: Device, cache: KVCacheSize) -> int:
    """Return the number of responses that a server decodes at the same time; its pages are allocated on demand."""
    free = (job.served_share or SERVED_MEMORY) * device.memory - counts_of(job.model).total * job.compute_bytes
    row = cache_read(cache, job.max_prompt, job.max_response) - cache.state
    return max(1, int(free / max(row, 1.0)))


def _speed(job: Job, device: Device, share: float) -> float:
    """Return the FLOP per second of all devices that reach a share of their peak."""
    if device.cpu:
        return device.flops * job.world * CPU_EFFICIENCY
    return device.flops * (1.0 if job.compute_bytes == 2 else 0.25) * job.world * share


def _sampling(job: Job, device: Device, work: Work, pace: Pace) -> tuple[Phase, Phase]:
    rows = max(1, job.prompts // job.world) * job.group_size
    prefill = (work.prompt_tokens * work.token_flops + work.prefill_flops) / _speed(job, device, DECODED)
    seconds, bound = decoding_seconds(job, device, rows, job.max_response, pace)
    return (
        Phase(PREFILL, prefill, work.prompt_tokens, "compute"),
        Phase(DECODING, seconds, work.response_tokens, bound),
    )


def _link(job: Job, device: Device) -> float:
    """Return the bytes per second between devices, over the slowest link."""
    return LINK_SHARE * (ACROSS if job.nodes > 1 else device.link)


def _handing_over(job: Job, device: Device) -> Phase | None:
    """Return the phase that gathers shards or sends weights to servers; None if sampling uses them in place."""
    if job.in_process and (job.strategy != "fsdp" or job.lockstep):
        return None
    sent = counts_of(job.model).total * job.compute_bytes
    return Phase("weights to the sampler", sent / _link(job, device), 0, "communication")


def _forward(
    name: str, job: Job, device: Device, pace: Pace, flops: float, tokens: int, counts: Counts, passes: int = 1
) -> Phase:
    """Return the phase of forward passes over a rollout batch; shards are gathered once per micro-batch."""
    sent = 0.0
    if job.strategy == "fsdp":
        gathers = passes * job.minibatches * job.passes
        others = (job.shards - 1) / job.shards  # share of the weights that other ranks hold
        sent = _gathered(job, counts) * job.compute_bytes * others * gathers
        sent += 2 * _exchanged(job, counts, tokens)
    return _longer(name, flops / _speed(job, device, pace.efficiency), sent / _link(job, device), tokens)


def _gathered(job: Job, counts: Counts) -> int:
    """Return the parameters that are gathered to compute all layers."""
    return counts.total - (counts.experts if job.expert_parallel else 0)


def _exchanged(job: Job, counts: Counts, tokens: int) -> float:
    """Return the bytes that a device sends to have ``tokens`` of all devices at their experts once, in all layers."""
    if not job.expert_parallel:
        return 0.0
    text = config_of(job.model).get_text_config()
    row = int(text.num_experts_per_tok) * int(text.hidden_size) * job.compute_bytes
    return tokens / job.world * row * counts.expert_layers * (job.shards - 1) / job.shards


def faster_with_experts(job: Job, device: Device, pace: Pace = MEASURED) -> float | None:
    """Return the seconds of an iteration with expert parallelism, if a run could have it and would be faster."""
    alone = job.replicas == job.context == 1 and not job.cpu_offload and not job.lockstep and not job.expert_parallel
    experts = getattr(config_of(job.model).get_text_config(), "num_experts", 0) or 0
    if job.strategy != "fsdp" or not alone or not counts_of(job.model).experts or experts % job.world:
        return None
    changed = dataclasses.replace(job, expert_parallel=True)
    seconds = sum(phase.seconds for phase in phases_of(job, device, pace))
    changed_seconds = sum(phase.seconds for phase in phases_of(changed, device, pace))
    return changed_seconds if changed_seconds < 0.99 * seconds else None


def _longer(name: str, compute: float, wait: float, tokens: int) -> Phase:
    return Phase(name, max(compute, wait), tokens, "compute" if compute >= wait else "communication")


def _training(name: str, job: Job, device: Device, pace: Pace, flops: float, tokens: int, counts: Counts) -> Phase:
    updates = job.minibatches * job.epochs
    others = (job.world - 1) / job.world
    sent = 2.0 * counts.trainable * 4 * others * updates if job.world > 1 else 0.0  # an all-reduce of gradients
    if job.strategy == "fsdp":  # two all-gathers and one reduce-scatter per micro-batch
        others = (job.shards - 1) / job.shards
        sent = _gathered(job, counts) * (2 * job.compute_bytes + 4) * others * updates * job.passes
        sent += (6 if job.checkpointing else 4) * _exchanged(job, counts, tokens)  # there and back in every pass
    return _longer(name, flops / _speed(job, device, pace.efficiency), sent / _link(job, device), tokens)


def _optimizer(name: str, job: Job, device: Device, counts: Counts) -> Phase:
    shards = job.shards
    size = 4 if job.lora is not None else job.weight_dtype.itemsize
    touched = 2 * (optimizer_bytes(job.optimizer, counts, size) + counts.trainable * size) + counts.trainable * size
    off = job.cpu_offload or "paged" in job.optimizer.lower()
    seconds = touched / shards / (min(device.bandwidth, 25e9) if off else device.bandwidth * READING)
    return Phase(name, seconds * job.minibatches * job.epochs, 0, "bandwidth")
