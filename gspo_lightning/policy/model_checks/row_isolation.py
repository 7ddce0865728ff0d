"""Row isolation checks: nothing beside a row in a micro-batch may change its log-probabilities.

A model's name and attributes say little about that. So the checks change everything but one row, and require that
this row stays the same up to rounding (:mod:`gspo_lightning.policy.kernels.rounding`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from gspo_lightning.core.types import MicroBatch
from gspo_lightning.policy.attention import layers_attended, windows
from gspo_lightning.policy.kernels.rounding import (
    FLOOR,
    OPERATIONS,
    distribution_gap,
    few_tokens,
    nudged,
    response_gap,
)
from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.unsaid import sayable_tokens

TRIED = 256
"""Longest row tried. Longer windows are known by their names; a few models have short ones."""
ATTENTION = {"full_attention", "attention", "sliding_attention", "chunked_attention", "global", "local"}
"""Kinds of layers (of a config's ``layer_types``) that mix tokens only by attention."""
LONG = 4096
"""Longest row of a probe in the training layout: many blocks of any kernel."""
LEAK = 2.0
"""Largest allowed shift of a row, in multiples of the shift from padded rows and rounding.

Only mixtures of experts shift at all, because their products are cut by the token counts of experts. The smallest leak
seen was 3.3 (measured).
"""
COMMON = 2
"""First tokens of all prompts of :func:`probe`."""
WATCHED = 1
"""Row of :func:`probe` that may not move."""
COMPANION = 0
"""Row of :func:`probe` with the same prompt, which changes except for its first token."""
IN_CONFIG = re.compile(
    r"sliding_window|window_size|attention_window|local_attention|chunk_size|index_topk|indexer_budget"
)
"""Substrings of config field names."""
ANYWHERE = re.compile(r"(window(_size)?|attention_chunk_size|local_attention|index_topk)$")
"""Endings of names of config fields and module attributes; as attributes, shorter names mean other things, too."""


def probe(policy: Policy, longest: int = 9) -> MicroBatch:
    """Return two prompts with two responses each, all of different lengths; one row has ``longest`` (>= 9) tokens.

    The prompts share their first :data:`COMMON` tokens.
    """
    prompts = torch.tensor([5, 5, 3, 3])
    responses = torch.tensor([4, 1, 6, 2])
    responses[WATCHED] = max(1, longest - 6)
    responses[2] = longest - 3
    vocabulary = policy.model.config.get_text_config().vocab_size
    ids = sayable_tokens(torch.arange(4 * longest).view(4, longest) * 7, vocabulary, policy.unsaid)
    ids[2, :COMMON] = ids[0, :COMMON]
    ids[1, :5] = ids[0, :5]
    ids[3, :3] = ids[2, :3]
    mask = torch.arange(int(responses.max())) < responses.unsqueeze(1)
    index = torch.tensor([0, 0, 1, 1])
    batch = MicroBatch(ids, prompts, responses, mask, torch.zeros(4), prompt_index=index, common_prefix=COMMON)
    return batch.to(policy.device)


def probe_length(policy: Policy, longest: int, budget: int) -> int:
    """Return the longest row of a :func:`probe` that fits into a micro-batch of a run, in tokens; at most :data:`LONG`.

    Args:
        policy: knows its number of positions.
        longest: largest number of tokens of a row of the run.
        budget: tokens of a micro-batch.
    """
    context = getattr(policy.model.config.get_text_config(), "max_position_embeddings", None) or longest
    return max(9, min(longest, context, budget // 4, LONG))


def carried_state(model: PreTrainedModel) -> str | None:
    """Name the state that a model carries from token to token beside attention, as far as its parts show; None: none.

    A response packed behind another prompt would begin with the state that this prompt left.
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
    """Return log-probabilities [N, T] of rows in the given layout, whatever layout the policy has."""
    before = policy.packed
    policy.packed = packed
    try:
        return policy(rows)[0]
    finally:
        policy.packed = before


@dataclass
class Probe:
    """Compare a policy's log-probabilities for a batch of rows with those for one that keeps only one row.

    Args:
        policy: in eval or train mode; :attr:`Policy.packed` is restored afterwards.
        longest: tokens of the longest row of the run.
    """

    policy: Policy
    longest: int

    @cached_property
    def rows(self) -> MicroBatch:
        """Probe rows, long enough to exceed every window that is short enough to try."""
        lengths = [size + 2 for size in context_thresholds(self.policy) if size + 2 <= min(self.longest, TRIED)]
        return probe(self.policy, max([9, *lengths]))

    @cached_property
    def others(self) -> MicroBatch:
        """Probe rows with other tokens, except the watched row, its prompt, and the first token of one response.

        Every prompt keeps the tokens that all share.
        """
        rows = self.rows
        vocabulary = int(self.policy.model.config.get_text_config().vocab_size)
        steps = torch.arange(rows.input_ids.shape[1], device=rows.input_ids.device)
        ids = sayable_tokens(rows.input_ids + 1 + steps, vocabulary, self.policy.unsaid)
        ids[WATCHED] = rows.input_ids[WATCHED]
        ids[:, :COMMON] = rows.input_ids[:, :COMMON]
        kept = int(rows.prompt_lengths[COMPANION]) + 1
        ids[COMPANION, :kept] = rows.input_ids[COMPANION, :kept]
        return replace(rows, input_ids=ids)

    @cached_property
    def rounding(self) -> float:
        """Mean shift (nats) caused by one rounding of the embeddings in this model's dtype."""
        with nudged(self.policy.model):
            moved = answers(self.policy, self.rows, packed=False)
        return response_gap(moved, self.padded, self.rows.response_mask)

    @cached_property
    def limit(self) -> float:
        """Largest mean difference (nats) that counts as rounding between two computations of the same."""
        return OPERATIONS * self.rounding + FLOOR.get(self.padded.dtype, 1e-5)

    @cached_property
    def padded(self) -> Tensor:
        """Log-probabilities [N, T] of the padded probe rows."""
        return answers(self.policy, self.rows, packed=False)

    @cached_property
    def moved_by_others(self) -> float:
        """Shift of padded rows when neighbours or later tokens change: 0 or rounding; nats."""
        return self._moved(answers(self.policy, self.others, packed=False), self.padded)

    def why_not_exact(self) -> str | None:
        """Return what is wrong with padded rows, which every model must get right; None if nothing was found."""
        selected = _selected(self.policy, self.longest)
        if selected:
            return selected
        rows = self.rows
        for row in (WATCHED, 2, 3):
            gap = response_gap(self.padded[row], self._alone(row), rows.response_mask[row])
            if not gap <= self.limit:
                return f"gives a padded row log-probabilities that are {gap:.2g} nats off those of the row alone"
        if not self.moved_by_others <= self.limit:
            moved = self.moved_by_others
            return f"moves a token's log-probability by {moved:.2g} nats when later tokens or other rows change"
        gap = self._company()
        if not gap <= self.limit:
            return f"moves a row's log-probabilities by {gap:.2g} nats when another row of the call has later positions"
        return None

    def why_not_packed(self) -> str | None:
        """Return what is wrong with rows that share prompts and have no padding; None if nothing was found.

        Raises:
            UnsupportedAttentionError: plans do not support the model's kind of attention.
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
        """Return [T] from the model's own forward of one row without padding: the definition."""
        rows = self.rows
        width = int(rows.prompt_lengths[row])
        count = int(rows.response_lengths[row])
        ids = rows.input_ids[row, : width + count]
        logits = self.policy.sayable(self.policy.model(input_ids=ids[None], use_cache=False).logits[0, width - 1 : -1])
        logprobs = logits.to(self.padded.dtype).log_softmax(-1).gather(-1, ids[width:, None])[:, 0]
        return torch.nn.functional.pad(logprobs, (0, self.padded.shape[1] - count))

    def _moved(self, ours: Tensor, theirs: Tensor) -> float:
        """Mean difference on the watched row and on its companion's first token, which sees nothing that changed."""
        mask = torch.zeros_like(self.rows.response_mask)
        mask[WATCHED] = self.rows.response_mask[WATCHED]
        mask[COMPANION, 0] = True
        return response_gap(ours, theirs, mask)

    @torch.no_grad()
    def _company(self) -> float:
        """Return the shift of a row when the other row of its call stands at the last positions of the run; nats.

        Detects frequencies that follow the longest position of a call. Models without a known context are
        skipped: their table of positions may end earlier.
        """
        context = getattr(self.policy.model.config.get_text_config(), "max_position_embeddings", None)
        tokens = few_tokens(self.policy.model, 6)
        last = min(self.longest, context or 0)
        if last <= 6:
            return 0.0
        ids = tokens.expand(2, -1)
        steps = torch.arange(6, device=tokens.device)
        logprobs = []
        for start in (0, last - 6):
            hidden = self.policy.backbone(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                position_ids=torch.stack([steps, steps + start]),
                use_cache=False,
            ).last_hidden_state
            logprobs.append(self.policy.head(hidden[0]).to(self.padded.dtype).log_softmax(-1))
        return distribution_gap(logprobs[0], logprobs[1])


def _selected(policy: Policy, longest: int) -> str | None:
    """Return what is wrong with attention to selected keys: ties and rounding, and so padding, decide the selection."""
    config = policy.model.config.get_text_config()
    size = getattr(config, "index_topk", None)
    blocks = getattr(config, "index_topk_blocks", None)
    if isinstance(blocks, int):
        size = blocks * int(getattr(config, "index_block_size", 1))
    if not isinstance(size, int) or size >= longest:
        return None
    return (
        f"attends to {size} selected tokens, and in rows of up to {longest} their choice depends on rounding and on "
        f"padding"
    )


def context_thresholds(policy: Policy) -> list[int]:
    """Return token counts (2 or more, ascending) beyond which a model may attend or carry state differently."""
    config = policy.model.config.get_text_config().to_dict()
    sizes = [value for name, value in config.items() if IN_CONFIG.search(name) or ANYWHERE.search(name)]
    sizes += [value for name, value in _attributes(policy) if ANYWHERE.search(name)]
    blocks = config.get("index_topk_blocks"), config.get("index_block_size")
    if all(isinstance(number, int) for number in blocks):
        count, size = blocks
        sizes.append(count * size)
    sizes += windows(policy.backbone)
    return sorted({size for size in sizes if type(size) is int and size > 1})


def _attributes(policy: Policy) -> Iterator[tuple[str, Any]]:
    for module in policy.backbone.modules():
        yield from vars(module).items()
