"""The arithmetic of an iteration: rows, updates, tokens, floating-point operations, and how long each half may take."""

from __future__ import annotations

from dataclasses import dataclass

from gspo_lightning.commands.plan.devices import Device
from gspo_lightning.commands.plan.job import Job
from gspo_lightning.commands.plan.memory import counts_of, kv_bytes
from gspo_lightning.commands.plan.models import config_of

__all__ = ["Work", "equation", "work_of"]

EFFICIENCY = 0.35
"""Share of a device's peak that training of dense models reaches in practice."""
READING = 0.6
"""Share of a device's bandwidth that decoding reaches."""
LAUNCHES = {"GroupedSampler": 0.5e-3, "TransformersGenerate": 0.8e-3}
"""Seconds per decoder layer and step that Python and kernel launches cost at least; 0.05e-3 for a server."""


@dataclass(frozen=True)
class Work:
    """Of one iteration, all ranks together, if every response has the greatest length."""

    prompt_tokens: int
    response_tokens: int
    sampling_flops: float
    training_flops: float
    old_flops: float
    """Of the forward pass that gives old log-probabilities."""
    sampling_seconds: float
    training_seconds: float

    @property
    def sampling_share(self) -> float:
        """Of the time of an iteration, 0 to 1."""
        return self.sampling_seconds / (self.sampling_seconds + self.training_seconds)


def equation(job: Job) -> str:
    """From prompts to optimizer steps, as the numbers multiply and divide."""
    rows = job.prompts * job.group_size
    cut = rows // job.minibatches
    ranks = f" = {job.world} ranks x {cut // job.world}" if job.world > 1 else ""
    passes = f" x {job.epochs} passes" if job.epochs > 1 else ""
    updates = job.minibatches * job.epochs
    return (
        f"{job.prompts:,} prompts x {job.group_size} responses = {rows:,} rollouts"
        f" = {job.minibatches} mini-batches x {cut:,} sequences{ranks},"
        f" each in up to {job.micro_batches:,} micro-batches of {job.rows_at_once} rows per rank;\n"
        f"{job.minibatches} mini-batches{passes} = {updates} updates per iteration"
        f" x {job.iterations:,} iterations = {updates * job.iterations:,} updates"
    )


def work_of(job: Job, device: Device) -> Work:
    """Tokens are upper bounds; 2 FLOP per active weight and token forward, 4 backward, and attention on top."""
    counts, config = counts_of(job.model), config_of(job.model).get_text_config()
    rows = job.prompts * job.group_size
    prompt = (job.prompts if job.packed else rows) * job.max_prompt
    response = rows * job.max_response
    head = int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
    attention = 2.0 * int(config.num_hidden_layers) * int(config.num_attention_heads) * head * job.longest
    token = 2.0 * counts.active + attention  # on average half of the sequence is seen, by keys and by values
    frozen = 1.0 if job.lora is not None else 2.0  # no gradients of frozen weights
    backward = (frozen + (1.0 if job.checkpointing else 0.0)) * token
    sampling = token * (job.prompts * job.max_prompt + response)
    old = token * (prompt + response) if job.old_policy != "ResidentSnapshot" else 0.0
    training = job.epochs * (token + backward) * (prompt + response)
    speed = device.flops * (1.0 if job.compute_bytes == 2 or device.cpu else 0.25) * job.world
    return Work(
        job.prompts * job.max_prompt, response, sampling, training, old,
        sampling_seconds=_sampling_seconds(job, device, sampling, speed),
        training_seconds=(training + old) / (speed * EFFICIENCY),
    )  # fmt: skip


def _sampling_seconds(job: Job, device: Device, flops: float, speed: float) -> float:
    """Each step reads all weights and the cache, computes, and costs launches; the slowest of the three counts."""
    counts, config = counts_of(job.model), config_of(job.model).get_text_config()
    rows = max(1, job.prompts // job.world) * job.group_size
    at_once = min(rows, max(job.group_size, job.max_rows))
    steps = job.max_response * -(-rows // at_once)
    read = (counts.total * job.compute_bytes + kv_bytes(job, config, at_once) / 2) / (device.bandwidth * READING)
    compute = flops / steps / (speed * EFFICIENCY)
    launch = LAUNCHES.get(job.source, 0.05e-3) * int(config.num_hidden_layers)
    return steps * max(read, compute, launch)
