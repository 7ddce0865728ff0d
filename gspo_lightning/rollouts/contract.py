"""Checks of the contract that every rollout source keeps; an error names the plug-in and the rule it breaks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gspo_lightning.core.errors import PluginError, defined, is_own
from gspo_lightning.core.types import FinishReason, Prompt, Rollout, SamplingParams
from gspo_lightning.rollouts.source import ResponsePrefix

_ROUNDING = 1e-2
"""Nats: how far above 0 rounding may put a log-probability of a plug-in, which may compute in half precision."""


def check_groups(
    source: object, groups: object, prompts: Sequence[Prompt], group_size: int, sampling: SamplingParams
) -> list[list[Rollout]]:
    """Check the result of ``generate``: one group per prompt, in order.

    Raises:
        PluginError: the result breaks a rule; names the method, and where a plug-in defines it.
    """
    rule = f"a list of {len(prompts)} lists, one for each prompt in its order, of {group_size} rollouts each"
    if not isinstance(groups, list | tuple):
        raise _wrong(source, "generate", f"{_kind(groups)}", rule)
    if len(groups) != len(prompts):
        raise _wrong(source, "generate", f"{len(groups)} groups for {len(prompts)} prompts", rule)
    return [
        check_group(source, group, group_size, sampling, prompt) for group, prompt in zip(groups, prompts, strict=True)
    ]


def check_group(
    source: object, group: object, group_size: int, sampling: SamplingParams, prompt: Prompt | None = None
) -> list[Rollout]:
    """Check the responses to one prompt; ``prompt`` None accepts any prompt."""
    rule = f"a list of {group_size} rollouts of one prompt, sample 0 to {group_size - 1} in order"
    if not isinstance(group, list | tuple):
        raise _wrong(source, "generate", f"{_kind(group)} as a group", rule)
    if len(group) != group_size:
        raise _wrong(source, "generate", f"{len(group)} responses to a prompt instead of {group_size}", rule)
    for k, rollout in enumerate(group):
        _check_rollout(source, "generate", rollout, sampling.max_response_tokens)
        _check_rows(source, rollout, sampling.max_response_tokens)
        contexts = [row.context for row in rollout.rows] or [rollout.prompt.token_ids]
        _check_routes(source, "generate", rollout, sum(map(len, contexts)) - len(contexts) + 1)
        wanted = group[0].prompt.id if prompt is None else prompt.id
        if rollout.prompt.id != wanted:
            what = f"a response to prompt {rollout.prompt.id} where one to prompt {wanted} belongs"
            raise _wrong(source, "generate", what, rule)
        if rollout.sample != k:
            what = f"sample {rollout.sample} of prompt {wanted} in the place of sample {k}"
            raise _wrong(source, "generate", what, rule)
        if rollout.finish_reason is FinishReason.CUT:
            what = f"a response to prompt {wanted} that has not ended"
            raise _wrong(source, "generate", what, "only extend may give pieces (finish_reason CUT)")
    return list(group)


def check_pieces(source: object, pieces: object, beginnings: Sequence[ResponsePrefix]) -> list[Rollout]:
    """Check the result of ``extend``: one piece per beginning, in order.

    Raises:
        PluginError: the result breaks a rule.
    """
    rule = f"a list of {len(beginnings)} rollouts, one for each beginning in its order, with the new tokens only"
    if not isinstance(pieces, list | tuple):
        raise _wrong(source, "extend", f"{_kind(pieces)}", rule)
    if len(pieces) != len(beginnings):
        raise _wrong(source, "extend", f"{len(pieces)} pieces for {len(beginnings)} beginnings", rule)
    for piece, row in zip(pieces, beginnings, strict=True):
        _check_rollout(source, "extend", piece, row.token_budget)
        if piece.rows:
            raise _wrong(source, "extend", "a piece of several rows", "only generate may give rollouts of several rows")
        _check_routes(source, "extend", piece, len(row.context))
        if (piece.prompt.id, piece.sample) != (row.prompt.id, row.sample):
            found, wanted = f"{piece.prompt.id}/{piece.sample}", f"{row.prompt.id}/{row.sample}"
            what = f"response {found} (prompt/sample) in the place of {wanted}"
            raise _wrong(source, "extend", what, rule)
    return list(pieces)


def _check_rollout(source: object, method: str, rollout: Any, token_budget: int) -> None:
    if not isinstance(rollout, Rollout):
        raise _wrong(source, method, f"{_kind(rollout)} as a response", "a Rollout")
    where = f"response {rollout.prompt.id}/{rollout.sample} (prompt/sample)"
    if rollout.token_ids.dtype != torch.int64:
        raise _wrong(source, method, f"{where} with token_ids of {rollout.token_ids.dtype}", "int64, shape [T]")
    if not rollout.rows and len(rollout.token_ids) > token_budget:
        what = f"{where} with {len(rollout.token_ids)} tokens where {token_budget} are allowed"
        raise _wrong(source, method, what, "what is longer is cut there, with finish_reason LENGTH")
    reason: Any = rollout.finish_reason
    if not isinstance(reason, FinishReason):
        what = f"{where} with the finish_reason {reason!r}"
        raise _wrong(source, method, what, f"one of {', '.join(FinishReason.__members__)}")
    text: Any = rollout.text
    if not isinstance(text, str):
        raise _wrong(source, method, f"{where} with {_kind(text)} as text", "the decoded tokens")
    if len(rollout.token_ids) and int(rollout.token_ids.min()) < 0:
        raise _wrong(source, method, f"{where} with a negative token id", "padding is no token")
    if rollout.logprobs is None or is_own(type(source)):  # a built-in source reports what the model says, NaN as well
        return
    if not rollout.logprobs.is_floating_point() or not bool(rollout.logprobs.isfinite().all()):
        rule = "the log-probability of every token (nats, float32), or logprobs=None where there are none"
        raise _wrong(source, method, f"{where} with log-probabilities that are not finite", rule)
    if bool((rollout.logprobs > _ROUNDING).any()):
        raise _wrong(source, method, f"{where} with a log-probability above 0", "logarithms, not probabilities")


def _check_rows(source: object, rollout: Rollout, token_budget: int) -> None:
    """Check the rows of a rollout that has several: each must fit where a response to the prompt would."""
    where = f"response {rollout.prompt.id}/{rollout.sample} (prompt/sample)"
    prompt = rollout.prompt.token_ids
    longest = len(prompt) + token_budget
    for number, row in enumerate(rollout.rows):
        if row.length > longest:
            what = f"{where} with a row {number} of {row.length} tokens where {longest} are allowed"
            raise _wrong(source, "generate", what, "context and response of a row have the room of prompt and response")
        if min(row.context) < 0:
            raise _wrong(source, "generate", f"{where} with a negative token id", "padding is no token")
        if rollout.prompt.media and row.context[: len(prompt)] != prompt:
            what = f"{where} with a row {number} that does not begin with its prompt"
            raise _wrong(source, "generate", what, "with pictures every context begins with the prompt that shows them")


def _check_routes(source: object, method: str, rollout: Rollout, context: int) -> None:
    """Check the shape of routes: experts are replayed by position, so a missing row would shift all later ones."""
    tokens = len(rollout.token_ids)
    if rollout.routes is None or not tokens:
        return
    shape = tuple(rollout.routes.shape)
    if len(shape) != 3 or shape[0] != context + tokens - 1:
        what = f"response {rollout.prompt.id}/{rollout.sample} (prompt/sample) with routes of shape {shape}"
        rule = (
            f"[{context + tokens - 1}, layers, experts per token]: one row for each token of context and response but "
            "the last"
        )
        raise _wrong(source, method, what, rule)


def _wrong(source: object, method: str, what: str, rule: str) -> PluginError:
    return PluginError.returned(defined(source, method), what, rule)


def _kind(value: Any) -> str:
    return "None" if value is None else f"a value of type {type(value).__name__}"
