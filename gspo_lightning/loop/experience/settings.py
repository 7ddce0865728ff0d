"""Settings of one RL iteration: amount of sampling, its parameters, and how mini-batches are made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.types import SamplingParams, SystemPrompt
from gspo_lightning.loop.advantages.advantages import Advantages, learns_from_dead_groups, try_advantages
from gspo_lightning.loop.advantages.shaping import Shaping
from gspo_lightning.loop.advantages.within_groups import GroupNormalised
from gspo_lightning.policy.packing.batches import RowWeights
from gspo_lightning.policy.packing.deal import DEFAULT_DEAL, Deal


@dataclass(frozen=True, kw_only=True)
class SharedSettings:
    """Settings that ``gspo fit`` (``data.<name>``) and :class:`gspo_lightning.GSPOConfig` have in common."""

    group_size: int = 8
    """Responses per prompt (G), >= 1, and at least 2 where each is compared with its group. A larger group reduces
    noise."""
    max_response_tokens: int = 512
    """Longer responses are cut and count as truncated; tokens, >= 1."""
    temperature: float = 1.0
    """Temperature of training rollouts, > 0; every log-probability uses it. At 1 the model itself is trained."""
    deal: Deal | None = None
    """Deal of rows to mini-batches: ``stratified`` (equal parts of every group), ``shuffled`` (a random permutation of
    all rows) or ``groups`` (whole groups). None: ``stratified``; a resumed run of ``gspo fit`` keeps its own."""
    max_tokens_per_micro_batch: int = 16384
    """Tokens, padding included, in one forward pass of training, >= 1; changes memory, not results."""
    system_prompt: SystemPrompt | None = None
    """System message as text, or messages, such as worked examples as earlier turns, before every prompt; needs a chat
    template."""
    seed: int = 0
    """Seed of prompt order and sampling; the command line takes it from ``seed_everything``."""

    @property
    def dealing(self) -> Deal:
        """Deal of rows to mini-batches: the given one, or the default."""
        return self.deal or DEFAULT_DEAL


@dataclass(frozen=True, kw_only=True)
class ExperienceSettings(SharedSettings):
    """Settings of an iteration: the ``data`` of a config, besides the arguments of ``gspo_lightning.PromptDataModule``.

    Raises:
        UserError: a value outside its range, or two that cannot be combined; names field, value and rule.

    >>> ExperienceSettings(group_size=1)
    Traceback (most recent call last):
        ...
    gspo_lightning.core.errors.UserError: data.group_size: is 1, but GroupNormalised compares the responses of a group
      fix: use at least 2, or other data.advantages
    """

    prompts_per_rollout: int = 32
    """Prompts per iteration over all ranks (P), >= 1."""
    prompts_in_flight: int = 0
    """Prompts sampled at the same time, over all ranks. If above prompts_per_rollout, sampling stops when
    prompts_per_rollout groups are complete, and the other responses continue in the next iteration (partial rollouts).
    0 samples every group to its end."""
    max_carry: int = 4
    """Iterations for which an unfinished group may be carried over (partial rollouts), >= 0."""
    max_staleness: int = 0
    """Iterations that sampling runs ahead of training, in its own thread with a copy of the weights; under FSDP at most
    1, on servers. With 0 the two alternate, and only then does a resumed run repeat the interrupted one exactly."""
    minibatches_per_rollout: int = 4
    """Optimizer steps per pass over a rollout batch, >= 1; the GSPO paper uses 4."""
    epochs_per_rollout: int = 1
    """Passes over each rollout batch, >= 1."""
    rows: RowWeights = "rollout"
    """Weights in the loss of a rollout's rows, if it has several: ``rollout`` (they share the weight 1 by their trained
    tokens) or ``row`` (each has the weight 1)."""
    max_prompt_tokens: int = 512
    """Longer prompts are dropped with a message, never cut; tokens, >= 1."""
    stop_strings: list[str] | None = None
    """Further texts that end a response. For special tokens use stop_token_ids."""
    stop_token_ids: list[int] | None = None
    """Token ids that end a response, besides the end-of-sequence tokens."""
    resample_dead_groups: int = 0
    """Additional prompts per iteration and rank that may replace those whose responses all earned the same reward
    (DAPO's dynamic sampling with a budget); 0 keeps every group. Needs advantages that learn nothing from such
    groups."""
    kl_in_reward: float = 0.0
    """Weight, >= 0, of a KL penalty to the initial policy that is subtracted from the reward, per nat of the whole
    response, between the trainer's own log-probabilities (one more forward pass); groups whose rewards are equal stay
    dead. 0 needs no reference. As a loss term instead: model.objective.kl_coef."""
    record_rollouts: bool = False
    """Write every training response to ``rollouts/`` in the run folder, a file per iteration, for ``Recorded`` to
    replay."""
    record_tokens: int = 16
    """Responses of an iteration, at most, whose tokens are recorded for ``gspo view``, in whole groups: how far an
    update moved each token, and what was clipped; 0 records none."""
    advantages: Advantages | None = None
    """Comparison of a reward with its group; None takes ``GroupNormalised``."""
    shaping: Shaping = field(default_factory=Shaping)

    def __post_init__(self) -> None:
        positive = (
            "prompts_per_rollout", "minibatches_per_rollout", "epochs_per_rollout", "max_tokens_per_micro_batch",
            "max_prompt_tokens", "max_response_tokens", "group_size",
        )  # fmt: skip
        self._check_range(positive, least=1)
        self._check_groups()
        self._check_resampling()
        self._check_range(("prompts_in_flight", "max_carry", "max_staleness", "record_tokens"), least=0)
        self._check_flight()
        if self.kl_in_reward < 0:
            raise UserError("data.kl_in_reward", f"is {self.kl_in_reward}; it must be 0 or above")
        if self.temperature <= 0:
            raise UserError(
                "data.temperature",
                f"is {self.temperature}; training rollouts must be sampled, so it must be above 0",
                fix="use 1.0; greedy decoding belongs into data.evaluation.temperature",
            )
        longest = self.max_prompt_tokens + self.max_response_tokens
        if longest > self.max_tokens_per_micro_batch:
            raise UserError(
                "data.max_tokens_per_micro_batch",
                f"is {self.max_tokens_per_micro_batch}, but a sequence may have {self.max_prompt_tokens} + "
                f"{self.max_response_tokens} = {longest} tokens (max_prompt_tokens + max_response_tokens)",
                fix=f"use at least {longest}",
            )

    @cached_property
    def estimator(self) -> Advantages:
        """Estimator of advantages: the given one, or the comparison within groups."""
        return self.advantages if self.advantages is not None else GroupNormalised()

    @property
    def updates_per_iteration(self) -> int:
        """Optimizer steps per rollout batch."""
        return self.minibatches_per_rollout * self.epochs_per_rollout

    @property
    def partial(self) -> bool:
        """True if responses are cut and continue in the next iteration."""
        return self.prompts_in_flight > self.prompts_per_rollout

    def sampling(self, stops: Sequence[int]) -> SamplingParams:
        """Return the sampling parameters of training rollouts; ``stops`` are the policy's end tokens."""
        return SamplingParams(
            self.max_response_tokens,
            self.temperature,
            stop_token_ids=tuple(sorted({*stops, *(self.stop_token_ids or ())})),
            stop_strings=tuple(self.stop_strings or ()),
        )

    def check_ranks(self, world: int) -> None:
        """Check that every rank gets the same number of groups of every mini-batch.

        Raises:
            UserError: it does not.
        """
        mini_batch = self.prompts_per_rollout // self.minibatches_per_rollout
        if mini_batch % world:
            raise UserError(
                "data.prompts_per_rollout",
                f"a mini-batch of {mini_batch} groups cannot be dealt evenly to {world} ranks",
                fix=f"use a multiple of {world * self.minibatches_per_rollout}",
            )
        if self.prompts_in_flight % world:
            raise UserError("data.prompts_in_flight", f"is {self.prompts_in_flight}, which {world} ranks cannot share")

    def check_prompts(self, usable: int) -> None:
        """Check that the training set holds at least one rollout batch, so no iteration sees a prompt twice.

        Raises:
            UserError: it holds fewer.
        """
        if usable < self.prompts_per_rollout:
            raise UserError(
                "data.train",
                f"holds {usable} usable prompts, fewer than one rollout batch "
                f"(data.prompts_per_rollout = {self.prompts_per_rollout})",
                fix="give more prompts, or lower data.prompts_per_rollout",
            )
        if usable < self.prompts_in_flight:
            raise UserError(
                "data.prompts_in_flight",
                f"is {self.prompts_in_flight}, but data.train holds {usable} usable prompts",
                fix="give more prompts, or lower it",
            )

    def _check_range(self, names: Sequence[str], least: int) -> None:
        for name in names:
            value = getattr(self, name)
            if value < least:
                rule = "at least 1" if least else "0 or above"
                raise UserError(f"data.{name}", f"is {value}; it must be {rule}")

    def _check_groups(self) -> None:
        least = self.estimator.min_group_size
        if self.group_size < least:
            raise UserError(
                "data.group_size",
                f"is {self.group_size}, but {type(self.estimator).__name__} compares the responses of a group",
                fix=f"use at least {least}, or other data.advantages",
            )
        try_advantages(self.estimator, self.group_size)
        prompts = self.prompts_per_rollout
        mini_batches = self.minibatches_per_rollout
        if prompts % mini_batches:
            below = prompts - prompts % mini_batches
            above = below + mini_batches
            near = f"{below} or {above}" if below else str(above)
            raise UserError(
                "data.prompts_per_rollout",
                f"{prompts} prompts cannot be dealt evenly to {mini_batches} mini-batches",
                fix=f"use {near} prompts, or a divisor of {prompts} for data.minibatches_per_rollout",
            )

    def _check_resampling(self) -> None:
        if not self.resample_dead_groups:
            return
        field = "data.resample_dead_groups"
        if self.group_size == 1:
            raise UserError(
                field,
                f"is {self.resample_dead_groups}, but data.group_size is 1: every group would be replaced, as one "
                "reward equals itself",
                fix="use 0, or a data.group_size above 1",
            )
        if learns_from_dead_groups(self.estimator, self.group_size):
            raise UserError(
                field,
                f"is {self.resample_dead_groups}, but data.advantages is {type(self.estimator).__name__}, which also "
                "learns from a group whose rewards are all equal",
                fix="use 0, or advantages that compare the responses of a group (GroupNormalised)",
            )

    def _check_flight(self) -> None:
        in_flight = self.prompts_in_flight
        prompts = self.prompts_per_rollout
        if in_flight and in_flight < prompts:
            raise UserError(
                "data.prompts_in_flight",
                f"is {in_flight}, fewer than data.prompts_per_rollout = {prompts}",
                fix=f"use more than {prompts}, or 0 for no partial rollouts",
            )
        excluded = {"resample_dead_groups": self.resample_dead_groups, "max_staleness": self.max_staleness}
        for name, value in excluded.items():
            if self.partial and value:
                raise UserError(f"data.{name}", "cannot be combined with partial rollouts (data.prompts_in_flight)")
        if self.max_staleness and self.resample_dead_groups:
            raise UserError(
                "data.resample_dead_groups", "cannot be combined with asynchronous rollouts (data.max_staleness)"
            )
