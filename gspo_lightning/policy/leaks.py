"""Whether a row's log-probabilities are its own: whatever stands beside it in a micro-batch must not reach it.

What a model is called, and which attributes it has, says little about that; so everything but one row is changed, and
this row has to stay as it was up to rounding (:mod:`gspo_lightning.policy.rounding`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from gspo_lightning.policy.attention import layers_attended
from gspo_lightning.policy.horizons import horizons
from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.rounding import FLOOR, OPERATIONS, few_tokens, nudged, response_gap
from gspo_lightning.types import MicroBatch

__all__ = ["Probe", "answers", "carried_state", "probe", "probe_length"]

TRIED = 256
"""Longest row that is tried. Windows that are longer are known by their names; a few models have short ones."""
ATTENTION = {"full_attention", "attention", "sliding_attention", "chunked_attention", "global", "local"}
"""Kinds of layers (of a config's ``layer_types``) that mix tokens by attention and by nothing else."""
LONG = 4096
"""Longest row of a probe in training's own layout: many blocks of any kernel."""
LEAK = 2.0
"""A row may move by so many times what padded rows and rounding move it; it does not move at all but in mixtures of
experts, whose products are cut by how many tokens an expert has. The smallest leak that was seen was 3.3 (measured)."""
WATCHED, COMPANION = 1, 0
"""Rows of :func:`probe` with one prompt: what may not move, and what is changed but for its first token."""


def probe(policy: Policy, longest: int = 9) -> MicroBatch:
    """Two prompts with two responses each, all of different lengths; one row has ``longest`` tokens, 9 or more."""
    prompts, responses = torch.tensor([5, 5, 3, 3]), torch.tensor([4, 1, 6, 2])
    responses[WATCHED], responses[2] = max(1, longest - 6), longest - 3
    vocabulary = policy.model.config.get_text_config().vocab_size
    ids = torch.arange(4 * longest).view(4, longest) * 7 % vocabulary
    ids[1, :5], ids[3, :3] = ids[0, :5], ids[2, :3]
    mask = torch.arange(int(responses.max())) < responses.unsqueeze(1)
    batch = MicroBatch(ids, prompts, responses, mask, torch.zeros(4), prompt_index=torch.tensor([0, 0, 1, 1]))
    return batch.to(policy.device)


def probe_length(policy: Policy, longest: int, budget: int) -> int:
    """Tokens of the longest row of a :func:`probe` that fits into a micro-batch of a run; at most :data:`LONG`.

    Args:
        policy: knows how many positions it has.
        longest: tokens that a row of the run may have.
        budget: tokens of a micro-batch.
    """
    context = getattr(policy.model.config.get_text_config(), "max_position_embeddings", None) or longest
    return max(9, min(longest, context, budget // 4, LONG))


def carried_state(model: PreTrainedModel) -> str | None:
    """What a model hands from token to token beside attention, as far as it can be told from its parts; None: nothing.

    A response that is packed behind another prompt would begin with the state that this one has left.
    """
    if getattr(model, "_is_stateful", False):
        return f"a state that {type(model).__name__} carries from token to token"
    config = model.config.get_text_config()
    for name in ("layer_types", "layers_block_type", "block_types"):
        for kind in getattr(config, name, None) or ():
            if isinstance(kind, str) and kind not in ATTENTION and not _inside_a_token(kind):
                return f"layers of the kind {kind!r}"
    for name, module in model.named_modules():
        if isinstance(module, nn.Conv1d | nn.RNNBase):
            return f"a {type(module).__name__} over tokens ({name})"
    return None


def _inside_a_token(kind: str) -> bool:
    return kind in ("mlp", "moe", "dense", "sparse")


@torch.no_grad()
def answers(policy: Policy, rows: MicroBatch, *, packed: bool) -> Tensor:
    """[N, T] log-probabilities of rows in one of the two layouts, whichever the policy has."""
    before, policy.packed = policy.packed, packed
    try:
        return policy(rows)[0]
    finally:
        policy.packed = before


@dataclass
class Probe:
    """A policy's answers for one batch of rows, and for another one in which only one row is the same.

    Args:
        policy: in eval or train mode; :attr:`Policy.packed` is what it was afterwards.
        longest: tokens of the longest row of the run.
    """

    policy: Policy
    longest: int

    @cached_property
    def rows(self) -> MicroBatch:
        """As long as it takes to go beyond every window that is short enough to be tried."""
        found = [size + 2 for size in horizons(self.policy) if size + 2 <= min(self.longest, TRIED)]
        return probe(self.policy, max([9, *found]))

    @cached_property
    def others(self) -> MicroBatch:
        """All tokens are other ones but those of the watched row, of its prompt, and of one response's beginning."""
        rows, vocabulary = self.rows, int(self.policy.model.config.get_text_config().vocab_size)
        ids = (rows.input_ids + 1 + torch.arange(rows.input_ids.shape[1], device=rows.input_ids.device)) % vocabulary
        ids[WATCHED] = rows.input_ids[WATCHED]
        kept = int(rows.prompt_lengths[COMPANION]) + 1
        ids[COMPANION, :kept] = rows.input_ids[COMPANION, :kept]
        return replace(rows, input_ids=ids)

    @cached_property
    def rounding(self) -> float:
        """Mean difference (nats) that one rounding of the embeddings makes in this model's dtype."""
        with nudged(self.policy.model):
            moved = answers(self.policy, self.rows, packed=False)
        return response_gap(moved, self.padded, self.rows.response_mask)

    @cached_property
    def limit(self) -> float:
        """Mean difference (nats) between two ways to compute the same that is rounding."""
        return OPERATIONS * self.rounding + FLOOR.get(self.padded.dtype, 1e-5)

    @cached_property
    def padded(self) -> Tensor:
        """[N, T]."""
        return answers(self.policy, self.rows, packed=False)

    @cached_property
    def moved_by_others(self) -> float:
        """How far padded rows move by what stands beside them (or after a token): none, or rounding; nats."""
        return self._moved(answers(self.policy, self.others, packed=False), self.padded)

    def why_not_exact(self) -> str | None:
        """What is wrong with padded rows, which every model has to get right; None: nothing was found."""
        if selected := _selected(self.policy, self.longest):
            return selected
        rows = self.rows
        for row in (WATCHED, 2, 3):
            gap = response_gap(self.padded[row], self._alone(row), rows.response_mask[row])
            if not gap <= self.limit:
                return f"gives a padded row log-probabilities that are {gap:.2g} nats off those of the row alone"
        if not self.moved_by_others <= self.limit:
            moved = self.moved_by_others
            return f"moves a token's log-probability by {moved:.2g} nats when later tokens or other rows change"
        if not (gap := self._company()) <= self.limit:
            return f"moves a row's log-probabilities by {gap:.2g} nats when another row of the call has later positions"
        return None

    def why_not_packed(self) -> str | None:
        """What is wrong with rows that share prompts and have no padding; None: nothing was found.

        Raises:
            UnsupportedAttentionError: the model's attention is of a kind that plans do not know.
        """
        with layers_attended() as layers:
            packed = answers(self.policy, self.rows, packed=True)
        if len(layers) > len(set(layers)):
            return "layers that attend more than once"
        gap = response_gap(packed, self.padded, self.rows.response_mask)
        if not gap <= self.limit:
            return f"log-probabilities that differ by {gap:.2g} nats on average from those of padded rows"
        leak = self._moved(answers(self.policy, self.others, packed=True), packed)
        if not leak <= LEAK * (self.moved_by_others + self.rounding) + FLOOR.get(packed.dtype, 1e-6):
            return f"log-probabilities that move by {leak:.2g} nats when other rows change"
        return None

    @torch.no_grad()
    def _alone(self, row: int) -> Tensor:
        """[T], by the model's own forward of one row without padding: the definition."""
        rows = self.rows
        width, count = int(rows.prompt_lengths[row]), int(rows.response_lengths[row])
        ids = rows.input_ids[row, : width + count]
        logits = self.policy.sayable(self.policy.model(input_ids=ids[None], use_cache=False).logits[0, width - 1 : -1])
        found = logits.to(self.padded.dtype).log_softmax(-1).gather(-1, ids[width:, None])[:, 0]
        return torch.nn.functional.pad(found, (0, self.padded.shape[1] - count))

    def _moved(self, ours: Tensor, theirs: Tensor) -> float:
        """Of the watched row, and of the first token of its companion, which sees nothing that has changed."""
        mask = torch.zeros_like(self.rows.response_mask)
        mask[WATCHED], mask[COMPANION, 0] = self.rows.response_mask[WATCHED], True
        return response_gap(ours, theirs, mask)

    @torch.no_grad()
    def _company(self) -> float:
        """How far a row moves when the other row of its call stands at the last positions of the run; nats.

        Frequencies that follow the longest position of a call would change. A model without a known context is not
        asked: its table of positions may end before.
        """
        context = getattr(self.policy.model.config.get_text_config(), "max_position_embeddings", None)
        tokens = few_tokens(self.policy.model, 6)
        last = min(self.longest, context or 0)
        if last <= 6:
            return 0.0
        ids, steps = tokens.expand(2, -1), torch.arange(6, device=tokens.device)
        found = []
        for start in (0, last - 6):
            hidden = self.policy.backbone(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                position_ids=torch.stack([steps, steps + start]),
                use_cache=False,
            ).last_hidden_state
            found.append(self.policy.head(hidden[0]).to(self.padded.dtype).log_softmax(-1))
        return response_gap(found[0], found[1], torch.ones_like(found[0], dtype=torch.bool))


def _selected(policy: Policy, longest: int) -> str | None:
    """Attention to the few keys that score highest: ties and rounding decide, so padding does."""
    config = policy.model.config.get_text_config()
    size = getattr(config, "index_topk", None)
    if isinstance(blocks := getattr(config, "index_topk_blocks", None), int):
        size = blocks * int(getattr(config, "index_block_size", 1))
    if not isinstance(size, int) or size >= longest:
        return None
    return (
        f"attends to {size} selected tokens, and in rows of up to {longest} their choice depends on rounding and on "
        f"padding"
    )
