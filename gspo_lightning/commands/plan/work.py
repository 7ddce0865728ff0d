"""Arithmetic of an iteration: rows, updates, tokens and FLOP."""

from __future__ import annotations

from dataclasses import dataclass

from transformers import PretrainedConfig

from gspo_lightning.commands.plan.job import Job
from gspo_lightning.commands.plan.models import backbone_counts, config_of, counts_of
from gspo_lightning.commands.plan.vision import tower_of


@dataclass(frozen=True)
class Work:
    """Tokens and FLOP of one iteration over all ranks, if every response has the maximum length."""

    prompt_tokens: int
    response_tokens: int
    sampling_flops: float
    training_flops: float
    old_flops: float
    """FLOP of the forward pass for old log-probabilities."""
    token_flops: float
    """FLOP of a forward pass, per token."""
    trained_prompt_tokens: int
    """Prompt tokens of a training forward pass; if rows are packed, a prompt counts once per mini-batch with responses
    to it."""
    reference_flops: float = 0.0
    """FLOP of the reference policy's forward pass."""
    teacher_flops: float = 0.0
    """FLOP of the teacher's forward passes, here or behind a URL."""
    value_flops: float = 0.0
    """FLOP of a critic's values."""
    critic_flops: float = 0.0
    """FLOP of a critic's updates."""
    prefill_flops: float = 0.0
    """FLOP of the vision tower before sampling; included in ``sampling_flops``."""
    vision_flops: float = 0.0
    """FLOP of the vision tower in one forward pass over the rollout batch; included in ``old_flops`` and
    ``training_flops``."""


def equation(job: Job) -> str:
    """Return the arithmetic from prompts to optimizer steps as text."""
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
    """Return upper bounds of tokens and FLOP: 2 FLOP per active weight and token forward, 4 backward, plus attention.

    For a vision model, every prompt has one picture of the largest size.
    """
    rows = job.prompts * job.group_size
    prompts_trained = job.prompts_per_update * job.minibatches if job.packed else rows
    prompt_tokens = round(prompts_trained * job.max_prompt)
    response_tokens = rows * job.max_response
    tokens = prompt_tokens + response_tokens
    token = _token_flops(job, counts_of(job.model).active)
    tower = tower_of(job)
    tower_prefill = 0.0 if tower is None else tower.flops * job.prompts
    tower_forward = 0.0 if tower is None else tower.flops * job.prompts_seen
    forward = token * tokens + tower_forward
    old = 0.0
    if not job.old_from_source and job.old_policy != "ResidentSnapshot":
        old = forward * (1 - job.still_old)
    update = _training_passes(job) * token * tokens + _tower_flops(job, trained=True)
    values, critic = _critic(job, tokens)
    return Work(
        prompt_tokens=job.prompts * job.max_prompt,
        response_tokens=response_tokens,
        sampling_flops=token * (job.prompts * job.max_prompt + response_tokens) + tower_prefill,
        training_flops=job.epochs * update,
        old_flops=old,
        token_flops=token,
        trained_prompt_tokens=prompt_tokens,
        reference_flops=forward if job.reference else 0.0,
        teacher_flops=_teacher(job, token, tokens),
        value_flops=values,
        critic_flops=critic,
        prefill_flops=tower_prefill,
        vision_flops=tower_forward,
    )


def _token_flops(job: Job, active: int) -> float:
    """Return the FLOP per token of a forward pass of a model with ``active`` active parameters."""
    config = config_of(job.model).get_text_config()
    head = int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
    attention = 4.0 * int(config.num_attention_heads) * head * _attended(config, job.longest)
    return 2.0 * active + attention


def _attended(config: PretrainedConfig, length: int) -> float:
    """Return the tokens attended to by a token, averaged over a sequence and summed over layers; linear layers: 0."""
    limit = getattr(config, "sliding_window", None)
    usual = "full_attention" if limit is None else "sliding_attention"  # as in transformers' cache
    kinds = getattr(config, "layer_types", None) or [usual] * int(config.num_hidden_layers)
    window = min(length, int(limit or length))
    attended = {"sliding_attention": window * (1 - window / length / 2), "linear_attention": 0.0, "conv": 0.0}
    return sum(attended.get(kind, length / 2) for kind in kinds)  # causal: half of the sequence on average


def _training_passes(job: Job) -> float:
    """Return the cost of forward and backward in forward passes."""
    frozen = 1.0 if job.lora is not None else 2.0  # no gradients for frozen weights
    return 1.0 + frozen + (1.0 if job.checkpointing else 0.0)


def _tower_flops(job: Job, *, trained: bool = False) -> float:
    """Return the vision tower's FLOP over a rollout batch; ``trained`` adds the backward pass of a trained tower."""
    tower = tower_of(job)
    if tower is None:
        return 0.0
    passes = _training_passes(job) if trained and tower.trained else 1.0
    return passes * tower.flops * job.prompts_seen


def _teacher(job: Job, token: float, tokens: int) -> float:
    """Return the FLOP of a teacher's forward pass over a rollout batch; full distributions need one per training pass.

    A server packs nothing and may serve any model; the policy's size is assumed.
    """
    if job.teacher_served:
        return token * job.prompts * job.group_size * job.longest
    teacher = job.of_teacher
    if teacher is None:
        return 0.0
    passes = job.epochs if job.teacher_exact else 1
    return passes * (_token_flops(teacher, counts_of(teacher.model).active) * tokens + _tower_flops(teacher))


def _critic(job: Job, tokens: int) -> tuple[float, float]:
    """Return the FLOP of a critic's values and updates; a critic on the policy's model trains only its head."""
    if job.critic_shared:
        forward = _token_flops(job, backbone_counts(job.model).active) * tokens + _tower_flops(job)
        return forward, job.critic_epochs * forward
    critic = job.of_critic
    if critic is None:
        return 0.0, 0.0
    token = _token_flops(critic, backbone_counts(critic.model).active)
    updates = _training_passes(critic) * token * tokens + _tower_flops(critic, trained=True)
    return token * tokens + _tower_flops(critic), critic.epochs * updates
