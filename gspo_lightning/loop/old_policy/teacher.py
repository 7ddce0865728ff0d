"""Teacher of on-policy distillation: gives log-probabilities of the tokens that the policy sampled."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch
from transformers import PreTrainedTokenizerBase

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.types import MicroBatch, MiniBatch
from gspo_lightning.loop.old_policy.frozen import FrozenPolicy
from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.states import Distribution
from gspo_lightning.policy.vision.image_processor import check_same_tokens

FIELD = "model.teacher"


class Teacher(ABC):
    """Source of log-probabilities of given tokens, in this process or elsewhere; never trained."""

    @abstractmethod
    def fill(self, batches: Sequence[MiniBatch], temperature: float, device: torch.device) -> list[MiniBatch]:
        """Return the mini-batches with ``teacher_logprobs`` [N, T], float32, nats; once a rollout batch, on every rank.

        Args:
            batches: of this rank.
            temperature: of the rollouts.
            device: of the policy.

        Raises:
            InfrastructureError: a server failed for good.
        """

    def distribution(self, part: MicroBatch) -> Distribution | None:
        """Return the prediction for a micro-batch on the policy's device, for the exact KL; None if not used."""
        return None

    def close(self) -> None:  # noqa: B027 - most have nothing to close
        """Close connections."""


class LocalTeacher(FrozenPolicy, Teacher):
    """Frozen model in this process.

    Args:
        policy: weights and tokenizer, already checked and with its layout chosen.
        exact: compare whole distributions in every update instead of one log-probability per token once.
        shard: shards it over ranks.
    """

    field = "teacher_logprobs"

    def __init__(self, policy: Policy, *, exact: bool = False, shard: Callable[[Policy], Policy] | None = None) -> None:
        super().__init__(policy, shard)
        self.exact = exact

    def fill(self, batches: Sequence[MiniBatch], temperature: float, device: torch.device) -> list[MiniBatch]:
        """Return the mini-batches as in :meth:`Teacher.fill`; unchanged if whole distributions are compared."""
        return list(batches) if self.exact else super().fill(batches, temperature, device)

    def distribution(self, part: MicroBatch) -> Distribution | None:
        """Return the prediction for a micro-batch if whole distributions are compared, else None."""
        if not self.exact:
            return None
        self._to(part.input_ids.device)
        with self._as_it_was():
            return self.policy.distribution(part)


def check_vocabulary(policy: PreTrainedTokenizerBase, teacher: PreTrainedTokenizerBase) -> None:
    """Refuse a teacher whose token ids mean other text than the policy's.

    Args:
        policy: tokenizer of the trained model.
        teacher: tokenizer of the model that scores its token ids.

    Raises:
        UserError: the tokenizers differ; names the first differing token, or the number of tokens of a picture.
    """
    policy_vocab = policy.get_vocab()
    teacher_vocab = teacher.get_vocab()
    if policy_vocab == teacher_vocab:
        check_same_tokens(policy, teacher, FIELD)
        return
    policy_tokens = {token_id: token for token, token_id in policy_vocab.items()}
    teacher_tokens = {token_id: token for token, token_id in teacher_vocab.items()}
    token_ids = policy_tokens.keys() | teacher_tokens.keys()
    first = min(i for i in token_ids if policy_tokens.get(i) != teacher_tokens.get(i))
    raise UserError(
        FIELD,
        f"has another vocabulary than the policy: token {first} is {_quoted(teacher_tokens, first)} to the teacher and "
        f"{_quoted(policy_tokens, first)} to the policy ({len(teacher_vocab)} and {len(policy_vocab)} tokens)",
        fix="use a teacher of the same model family, with the same tokenizer",
    )


def check_outputs(policy: Policy, teacher: Policy, *, exact: bool) -> None:
    """Refuse a teacher with too few logits for the tokens or, with ``exact``, with another number than the policy.

    Raises:
        UserError: the numbers of logits do not fit.
    """
    policy_logits = int(policy.model.config.get_text_config().vocab_size)
    teacher_logits = int(teacher.model.config.get_text_config().vocab_size)
    if teacher_logits < len(policy.tokenizer):
        raise UserError(
            FIELD,
            f"has {teacher_logits} logits for the {len(policy.tokenizer)} tokens of the policy",
            fix="use a teacher with the same vocabulary",
        )
    if exact and policy_logits != teacher_logits:
        raise UserError(
            "model.objective.distill_exact",
            f"compares whole distributions, but the policy's has {policy_logits} entries and the teacher's "
            f"{teacher_logits}",
            fix="set distill_exact: false",
        )


def _quoted(tokens: dict[int, str], number: int) -> str:
    return repr(tokens[number]) if number in tokens else "unknown"
