"""The arithmetic of an iteration: rows, updates, tokens, floating-point operations."""

from __future__ import annotations

from dataclasses import dataclass

from gspo_lightning.commands.plan.job import Job
from gspo_lightning.commands.plan.memory import counts_of
from gspo_lightning.commands.plan.models import config_of
from gspo_lightning.commands.plan.vision import tower_of

__all__ = ["Work", "equation", "work_of"]


@dataclass(frozen=True)
class Work:
    """Of one iteration, all ranks together, if every response has the greatest length."""

    prompt_tokens: int
    response_tokens: int
    sampling_flops: float
    training_flops: float
    old_flops: float
    """Of the forward pass that gives old log-probabilities."""
    token_flops: float
    """Of a forward pass, per token."""
    trained_prompt_tokens: int
    """That go through a forward pass in training: where rows are packed, a prompt once in each mini-batch that has
    responses to it."""
    critic_flops: float = 0.0
    """Of a critic: its values, then its updates."""
    prefill_flops: float = 0.0
    """Of the vision tower before responses are sampled; in ``sampling_flops``, too."""
    vision_flops: float = 0.0
    """Of the vision tower in one forward pass over the rollout batch; in ``old_flops`` and ``training_flops``, too."""


def equation(job: Job) -> str:
    """From prompts to optimizer steps, as the numbers multiply and divide."""
    rows = job.prompts * job.group_size
    cut = rows // job.minibatches
    ranks = f" = {job.world} ranks x {cut // job.world}" if job.world > 1 else ""
    passes = f" x {job.epochs} passes" if job.epochs > 1 else ""
    updates = job.minibatches * job.epochs
    mixed = f" of {job.prompts_per_update:.0f} prompts (data.deal: {job.deal})" if job.deal != "groups" else ""
    return (
        f"{job.prompts:,} prompts x {job.group_size} responses = {rows:,} rollouts"
        f" = {job.minibatches} mini-batches x {cut:,} sequences{mixed}{ranks},"
        f" each in up to {job.micro_batches:,} micro-batches of {job.rows_at_once} rows per rank;\n"
        f"{job.minibatches} mini-batches{passes} = {updates} updates per iteration"
        f" x {job.iterations:,} iterations = {updates * job.iterations:,} updates"
    )


def work_of(job: Job) -> Work:
    """Tokens are upper bounds; 2 FLOP per active weight and token forward, 4 backward, and attention on top.

    Of a model that reads pictures, every prompt has one of the largest size.
    """
    counts, config = counts_of(job.model), config_of(job.model).get_text_config()
    rows = job.prompts * job.group_size
    prompt = round((job.prompts_per_update * job.minibatches if job.packed else rows) * job.max_prompt)
    response = rows * job.max_response
    head = int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
    attention = 2.0 * int(config.num_hidden_layers) * int(config.num_attention_heads) * head * job.longest
    token = 2.0 * counts.active + attention  # on average half of the sequence is seen, by keys and by values
    frozen = 1.0 if job.lora is not None else 2.0  # no gradients of frozen weights
    backward = (frozen + (1.0 if job.checkpointing else 0.0)) * token
    tower = tower_of(job)
    prefill, seen = (0.0, 0.0) if tower is None else (tower.flops * job.prompts, tower.flops * job.prompts_seen)
    again = 0.0 if tower is None or not tower.trained else frozen + (1.0 if job.checkpointing else 0.0)
    sampling = token * (job.prompts * job.max_prompt + response) + prefill
    old = token * (prompt + response) + seen if job.old_policy != "ResidentSnapshot" else 0.0
    training = job.epochs * ((token + backward) * (prompt + response) + (1.0 + again) * seen)
    critic = 0.0
    if (other := job.of_critic) is not None:
        own = work_of(other)
        updates = (own.training_flops / job.epochs) * job.critic_epochs
        critic = own.token_flops * (prompt + response) + updates
    return Work(job.prompts * job.max_prompt, response, sampling, training, old, token, prompt, critic, prefill, seen)
