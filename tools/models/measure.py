"""What a family comes to on a tiny model: how rows are laid out, how they are sampled, and how far both are off.

The reference is the model as it was built, one row at a time: ``log_softmax(model(row).logits / T)``.
"""

from __future__ import annotations

import copy
import dataclasses
import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from gspo_lightning.core.errors import UserError, first_line
from gspo_lightning.core.randomness import Purpose
from gspo_lightning.core.types import FinishReason, Prompt, Rollout, SamplingParams
from gspo_lightning.policy.model_checks.checks import check_head, choose_layout
from gspo_lightning.policy.packing.batches import make_micro_batch
from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.tiny import character_tokenizer
from gspo_lightning.rollouts import Draws, GroupedSampler
from gspo_lightning.rollouts.source import ResponsePrefix
from gspo_lightning.rollouts.verify import verify_decoding
from tools.models import tiny

__all__ = ["LONGEST", "TEMPERATURE", "TOLERANCE", "Row", "measure"]

TEMPERATURE = 0.7
PROMPTS = (3, 8, 10, 17)
ROOM = (3, 6)
LONGEST = max(PROMPTS) + max(ROOM)
"""Tokens of the longest row: beyond every window of the tiny models, and of the probe that chooses the layout."""
TOLERANCE = 1e-3
"""Nats beyond which a family that is not refused is wrong."""

CRASHED = "crashes: "


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. Gaps are the largest of any token, in nats; None: there was nothing to measure."""

    family: str
    kind: str
    """Name of the class."""
    layout: str = ""
    """``packed`` or ``padded``; empty where the family is refused before that."""
    sampler: str = ""
    """``lean``, ``shared``, ``padded`` or ``generate``; empty where it is refused."""
    training: float | None = None
    sampling: float | None = None
    reason: str = ""
    """Why not packed, why refused, or why it could not be built."""
    built: bool = True

    @property
    def wrong(self) -> bool:
        """It is neither right nor refused."""
        right = all(gap is not None and gap <= TOLERANCE for gap in (self.training, self.sampling))
        return bool(self.sampler) and not right

    @property
    def crashed(self) -> bool:
        """It is refused by an error of its own code, and not by name."""
        return self.reason.startswith(CRASHED)


def measure(family: str) -> Row:
    """Try a family; nothing that its own code raises gets out of here."""
    row = Row(family, tiny.class_name(family))
    try:
        model = tiny.build(family)
    except Exception as error:
        return dataclasses.replace(row, reason=_said(error), built=False)
    with _Messages() as messages:
        try:
            return _measured(row, model, messages)
        except UserError as error:
            return dataclasses.replace(row, reason=_problem(error, row))
        except Exception as error:
            return dataclasses.replace(row, reason=f"{CRASHED}{_said(error)}")


def _measured(row: Row, model: PreTrainedModel, messages: _Messages) -> Row:
    reference = copy.deepcopy(model)
    policy = Policy(model, character_tokenizer()).eval()
    check_head(policy)
    choose_layout(policy, "auto", LONGEST)
    row = dataclasses.replace(row, layout="packed" if policy.packed else "padded", reason=messages.because())
    given = _given()
    row = dataclasses.replace(row, training=_gap(_trained(policy, given), _alone(reference, given)))
    try:
        verify_decoding(policy, GroupedSampler(), temperature=TEMPERATURE, longest=LONGEST)
    except UserError as error:
        return dataclasses.replace(row, reason=_problem(error, row))
    found = GroupedSampler().extend(
        policy,
        [ResponsePrefix(p, k, p.token_ids, 0, token_budget) for p in _prompts() for k, token_budget in enumerate(ROOM)],
        sampling=SamplingParams(max(ROOM), TEMPERATURE),
        draws=Draws.of(1, Purpose.TRAIN_SAMPLING, 0),
    )
    alone = _alone(reference, found)
    return dataclasses.replace(
        row,
        sampler="lean"
        if policy.decoding.way == "shared" and policy.decoding.fast_decoder
        else str(policy.decoding.way),
        training=max(row.training or 0.0, _gap(_trained(policy, found), alone)),
        sampling=_gap([r.logprobs for r in found if r.logprobs is not None], alone),
    )


def _prompts() -> list[Prompt]:
    draws = torch.Generator().manual_seed(0)
    ids = [torch.randint(3, tiny.VOCABULARY, (width,), generator=draws).tolist() for width in PROMPTS]
    return [Prompt(i, "", tuple(row)) for i, row in enumerate(ids)]


def _given() -> list[Rollout]:
    """Responses that nobody sampled: training is measured where sampling is impossible, too."""
    draws = torch.Generator().manual_seed(1)

    def response(prompt: Prompt, k: int, token_budget: int) -> Rollout:
        ids = torch.randint(3, tiny.VOCABULARY, (token_budget,), generator=draws)
        none = torch.zeros(token_budget)
        return Rollout(prompt, k, ids, none, torch.ones(token_budget, dtype=torch.bool), FinishReason.LENGTH, 0)

    return [response(p, k, token_budget) for p in _prompts() for k, token_budget in enumerate(ROOM)]


@torch.no_grad()
def _alone(model: PreTrainedModel, rollouts: Sequence[Rollout]) -> list[Tensor]:
    """[n] log-probabilities of every response, by the model's own logits."""
    found = []
    for rollout in rollouts:
        ids = torch.cat([torch.tensor(rollout.prompt.token_ids), rollout.token_ids])
        scores = (model(input_ids=ids.unsqueeze(0), use_cache=False).logits[0].float() / TEMPERATURE).log_softmax(-1)
        before = len(rollout.prompt.token_ids) - 1
        found.append(scores[before:-1].gather(1, rollout.token_ids.unsqueeze(1)).squeeze(1))
    return found


@torch.no_grad()
def _trained(policy: Policy, rollouts: Sequence[Rollout]) -> list[Tensor]:
    """The same by the forward that training uses, all rows together."""
    for rollout in rollouts:
        rollout.reward = 0.0
    logprobs, _ = policy(make_micro_batch(rollouts), TEMPERATURE)
    return [row[: r.length] for row, r in zip(logprobs, rollouts, strict=True)]


def _gap(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> float:
    return float((torch.cat(list(ours)) - torch.cat(list(theirs))).abs().nan_to_num(torch.inf).max())


def _problem(error: UserError, row: Row) -> str:
    """What a message says without what the other columns say."""
    return error.problem.partition("as they are trained: ")[2] or error.problem.removeprefix(f"{row.kind} ")


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {first_line(error)}"


class _Messages(logging.Handler):
    """What the package says meanwhile, in the place of the terminal."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []
        self.logger = logging.getLogger("gspo_lightning")

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())

    def because(self) -> str:
        """Why rows are not packed; empty where they are."""
        return next((text.split("because of ", 1)[1] for text in self.said if "because of " in text), "")

    def __enter__(self) -> _Messages:
        self.logger.addHandler(self)
        self._propagated, self.logger.propagate = self.logger.propagate, False
        return self

    def __exit__(self, *_: Any) -> None:
        self.logger.propagate = self._propagated
        self.logger.removeHandler(self)
