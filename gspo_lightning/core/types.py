"""Data types of the training loop, with the shape legend that every docstring uses.

Legend: ``P`` prompts, ``G`` responses per prompt, ``N = P * G`` rows, ``S`` padded tokens (prompt + response),
``T`` padded response tokens, ``V`` vocabulary, ``D`` hidden size. Log-probabilities are natural logarithms (nats) in
float32 or wider. A ``response_mask`` is True exactly on tokens that the policy chose: not on prompts, tool output or
padding. Masks come from lengths, never from token values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from gspo_lightning.core.pictures import Media, read_media, written_media
from gspo_lightning.core.tolerance import is_right
from gspo_lightning.core.transfer import to_device

Message = Mapping[str, Any]
"""A chat message in OpenAI's shape: ``{"role": "user", "content": "..."}``, with ``tool_calls`` or ``tool_call_id``."""
# What a message of a config may hold, level by level. `str` comes before `Any`: as Any, jsonargparse reads the text
# "a list: [1, 2]" of a message as YAML.
_Argument = str | Any
_Call = str | Mapping[str, str | Mapping[str, _Argument] | Any] | Any
_Content = str | Sequence[Mapping[str, _Call]] | Any
SystemPrompt = str | Sequence[Mapping[str, _Content]]
"""A system message, or messages (:data:`Message`) such as worked examples, before every prompt."""


class FinishReason(StrEnum):
    """Reason why a response ended."""

    STOP = "stop"
    """The policy ended it: an end-of-sequence token or a stop string."""
    LENGTH = "length"
    """The response was cut at the response limit (truncated)."""
    CUT = "cut"
    """The response is incomplete: sampling was interrupted, and continues later."""
    DONE = "done"
    """The environment ended the conversation."""
    TURNS = "turns"
    """The conversation was cut at the limit of turns (truncated)."""
    LOST = "lost"
    """The environment failed: the result is unknown."""


class WeightsOn(StrEnum):
    """Ranks that need whole weights: others gather nothing from shards."""

    EVERY_RANK = "every_rank"
    """Each rank computes with whole weights."""
    FIRST_RANK = "first_rank"
    """Rank 0 computes with whole weights; the policy of other ranks has none."""
    STREAMED = "streamed"
    """Rank 0 passes weights on as they are gathered (``policy.stream``); no rank holds all of them."""
    NO_RANK = "no_rank"
    """No rank needs whole weights; a policy still provides its model's config and tokenizer."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt of a prompt set.

    ``id`` is its position in the set (part of every random draw made for it), ``token_ids`` what the policy reads,
    ``text`` what a person and the rewards read, ``columns`` everything else of its record (``answer`` ...);
    ``messages`` holds a prompt that is a list of chat messages, and ``media`` its pictures.
    """

    id: int
    text: str
    token_ids: tuple[int, ...]
    columns: Mapping[str, Any] = field(default_factory=dict)
    messages: tuple[Message, ...] = ()
    media: Media = ()

    def __post_init__(self) -> None:
        if not self.token_ids:
            raise ValueError(f"prompt {self.id} has no tokens")

    def token_budget(self, limit: int) -> int:
        """Return the token budget of a response: ``limit``, or less if the column ``max_response_tokens`` says so."""
        own = self.columns.get("max_response_tokens")
        return limit if own is None else min(limit, int(own))


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling parameters of responses.

    ``temperature`` 0 means greedy. ``top_p`` and ``top_k`` other than 1 and 0 are for evaluation only: in training
    they would make the sampled distribution differ from the policy's.
    """

    max_response_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    stop_token_ids: tuple[int, ...] = ()
    stop_strings: tuple[str, ...] = ()

    @property
    def neutral(self) -> bool:
        """True if samples follow the policy's own distribution at this temperature."""
        return self.top_p == 1.0 and self.top_k == 0 and self.temperature > 0


@dataclass(slots=True)
class Rollout:
    """One response to one prompt, from sampling to scoring.

    ``token_ids`` [T] int64, including the end token if the policy wrote one; ``logprobs`` [T] float32, the
    sampler's own log-probabilities at the training temperature (nats), or None if a source has none;
    ``response_mask`` [T] bool; ``policy_version`` counts the optimizer steps when the newest token was sampled;
    ``versions`` [T] int64 does so per token if a response came in pieces; ``routes`` [prompt + T - 1, L, k] are the
    experts that the sampler chose for each token, if requested.

    A rollout of several rows (branches, a context that was compacted) has all their tokens in ``token_ids``, row by
    row in the order of sampling: row k ends at ``row_ends[k]`` and follows the token ids ``contexts[k]``, and
    ``routes`` are those of one row after another. Without ``row_ends`` there is one row, after the prompt. ``tree`` is
    all that was said in a rollout of an agent, as it is recorded (docs/agents.md).

    ``reward`` None means *missing*, and ``masked`` that the run leaves such responses out: the sample then takes no
    part in statistics, loss or denominator. ``kl_penalty`` is subtracted from the reward for the comparison within
    a group; ``reward`` itself is never overwritten. In ``reward_parts``, None is missing, or does not apply to the
    record (:meth:`applies`). ``reward_agreements`` are the agreements of judges with known answers;
    ``reward_logged`` and ``reward_extra`` are values that reward functions, or an agent, have logged.

    For a conversation, ``text`` is what the policy said and ``messages`` is all of it; ``turn_ends`` are the
    positions in ``token_ids`` after each turn of the policy, ``turn_rewards`` the environment's rewards for them.
    ``token_advantages`` [T] float32 replace ``advantage`` if turns, steps or tokens have their own; ``steps`` are
    (end, score) of each step by the name of the reward, ``end`` a position in ``token_ids``, rising. ``values`` and
    ``returns`` [T] float32 are a critic's values of the state before each token, and their targets;
    ``token_penalties`` [T] float32 add up to ``kl_penalty``. ``lost`` is the reason of a failed environment, which
    leaves no reward; ``missing`` is the reason why rewards gave none. ``unfinished_thought`` says that the response
    ends inside a thought that its prompt opened (:mod:`gspo_lightning.core.thinking`). ``malformed_calls`` counts calls
    of tools that could not be read; None if the chat template showed no tools.
    """

    prompt: Prompt
    sample: int
    token_ids: Tensor
    logprobs: Tensor | None
    response_mask: Tensor
    finish_reason: FinishReason
    policy_version: int
    text: str = ""
    reward: float | None = None
    reward_parts: dict[str, float | None] = field(default_factory=dict)
    reward_statuses: dict[str, str] = field(default_factory=dict)
    reward_agreements: dict[str, bool] = field(default_factory=dict)
    reward_logged: dict[str, float] = field(default_factory=dict)
    reward_extra: dict[str, Any] = field(default_factory=dict)
    masked: bool = False
    kl_penalty: float = 0.0
    advantage: float = 0.0
    messages: tuple[Message, ...] = ()
    turn_ends: tuple[int, ...] = ()
    turn_rewards: tuple[float, ...] = ()
    token_advantages: Tensor | None = None
    steps: dict[str, tuple[tuple[int, float], ...]] = field(default_factory=dict)
    values: Tensor | None = None
    returns: Tensor | None = None
    token_penalties: Tensor | None = None
    lost: str = ""
    missing: str = ""
    malformed_calls: int | None = None
    versions: Tensor | None = None
    routes: Tensor | None = None
    row_ends: tuple[int, ...] = ()
    contexts: tuple[tuple[int, ...], ...] = ()
    tree: tuple[Mapping[str, Any], ...] = ()
    unfinished_thought: bool = False

    def __post_init__(self) -> None:
        shape = tuple(self.token_ids.shape)
        if len(shape) != 1 or (shape[0] == 0 and self.finish_reason is not FinishReason.CUT):
            raise ValueError(f"a response needs one token or more, got token_ids of shape {shape}")
        if self.response_mask.dtype != torch.bool or tuple(self.response_mask.shape) != shape:
            raise ValueError(f"response_mask must be bool of shape {shape}, got {tuple(self.response_mask.shape)}")
        for name in ("logprobs", "versions"):
            value = getattr(self, name)
            if value is not None and tuple(value.shape) != shape:
                raise ValueError(f"{name} must have shape {shape}, got {tuple(value.shape)}")
        rising = all(a < b for a, b in pairwise((0, *self.row_ends)))
        if (self.row_ends and (not rising or self.row_ends[-1] != shape[0])) or not all(self.contexts):
            raise ValueError(f"row_ends must rise to {shape[0]}, after contexts with tokens, got {self.row_ends}")
        if len(self.row_ends) != len(self.contexts):
            raise ValueError(f"every row needs a context, got {len(self.contexts)} for {len(self.row_ends)} row_ends")

    def applies(self, reward: str) -> bool:
        """True if a reward applies to this record."""
        return self.reward_statuses.get(reward) != "not_applicable"

    def verdict(self, reward: str) -> float | None:
        """Return the reward part that decides whether the response is correct.

        It is the part of this reward, or of the first one that applies, if none is named (empty) or the named one does
        not apply to this record.
        """
        names = (reward, *self.reward_parts) if reward else tuple(self.reward_parts)
        return next((self.reward_parts.get(name) for name in names if self.applies(name)), None)

    def correct(self, reward: str) -> bool:
        """True if the verdict of this reward is at least 1 (but for rounding), as ``val/accuracy`` counts; None is not.

        If it is not among the parts (a function that was passed to :class:`GSPOTrainer`), the whole reward decides.
        """
        value = self.verdict(reward) if reward in self.reward_parts else self.reward
        return is_right(value)

    @property
    def truncated(self) -> bool:
        """True if the response was cut at a limit."""
        return self.finish_reason in (FinishReason.LENGTH, FinishReason.TURNS)

    @property
    def length(self) -> int:
        """Tokens that the policy chose."""
        return int(self.response_mask.sum())

    @property
    def own_ids(self) -> Tensor:
        """Tokens that the policy chose, [length] int64."""
        return self.token_ids[self.response_mask]

    @property
    def transcript(self) -> str:
        """Text for a person: the response, or all sides of a conversation, one message per line."""
        own = "assistant"
        lines = (m["content"] if m["role"] == own else f"{m['role']}: {m['content']}" for m in self.messages)
        return "\n".join(lines) if self.messages else self.text


@dataclass(slots=True)
class MicroBatch:
    """Rows that go through the model together, left-aligned: prompt, response, padding.

    ``input_ids`` [N, S]; ``prompt_lengths`` [N] and ``response_lengths`` [N] int64; ``response_mask`` [N, T];
    ``advantages`` [N] or [N, T] float32; ``old_logprobs``, ``behaviour_logprobs``, ``ref_logprobs`` and
    ``teacher_logprobs`` [N, T] float32 or None. With ``old_from_source``, ``behaviour_logprobs`` serve as the old
    ones; the same holds for tokens that ``stale`` [N, T] bool marks: pieces of partial rollouts that an earlier
    version sampled. Rows with the same ``prompt_index`` [N] int64 have the same prompt (None: unknown). ``routes``
    [N, S - 1, L, k], small integers: the k experts that the rollout or the old policy chose for each token, in L
    layers. ``positive`` [N] bool: rows of correct responses (:meth:`Rollout.correct`). ``row_weights`` [N] float32
    are the shares of rows in their rollouts (None: 1 each). ``sources`` [N, S] bool: the source of each row, of the
    S sources of a mixture. ``segments`` [N, T] int64 numbers the steps of responses whose steps were scored.
    ``media`` are the pictures of each row, None if no row has one. ``group_index`` numbers the groups of the
    mini-batch, on the host: rows with the same number answer the same prompt (None: unknown). All prompts begin with
    the same ``common_prefix`` tokens, such as a system prompt, which may be computed once; the shortest prompt has
    more. ``weight`` is 1, or 0 for a filler that only keeps ranks in step. ``host`` keeps the lengths and
    ``prompt_index`` from before the batch moved to a device: planning with them does not wait for the device.
    """

    input_ids: Tensor
    prompt_lengths: Tensor
    response_lengths: Tensor
    response_mask: Tensor
    advantages: Tensor
    old_logprobs: Tensor | None = None
    behaviour_logprobs: Tensor | None = None
    ref_logprobs: Tensor | None = None
    teacher_logprobs: Tensor | None = None
    weight: float = 1.0
    prompt_index: Tensor | None = None
    stale: Tensor | None = None
    old_from_source: bool = False
    routes: Tensor | None = None
    sources: Tensor | None = None
    segments: Tensor | None = None
    positive: Tensor | None = None
    row_weights: Tensor | None = None
    media: tuple[Media, ...] | None = None
    group_index: tuple[int, ...] | None = None
    common_prefix: int = 0
    host: tuple[Tensor, Tensor, Tensor | None] | None = None

    def __post_init__(self) -> None:
        rows, width = self.response_mask.shape
        if self.input_ids.shape[0] != rows:
            raise ValueError(f"input_ids has {self.input_ids.shape[0]} rows, response_mask {rows}")
        if self.host is not None and len(self.host[0]) != rows:
            raise ValueError(f"host has {len(self.host[0])} rows, response_mask {rows}: it belongs to other rows")
        for name in ("media", "group_index"):
            if (own := getattr(self, name)) is not None and len(own) != rows:
                raise ValueError(f"{name} has {len(own)} rows, response_mask {rows}")
        for name in ("old_logprobs", "behaviour_logprobs", "ref_logprobs", "teacher_logprobs"):
            if (value := getattr(self, name)) is not None and tuple(value.shape) != (rows, width):
                raise ValueError(f"{name} must have shape {(rows, width)}, got {tuple(value.shape)}")

    @property
    def num_tokens(self) -> int:
        """Tokens that are not padding, prompts included."""
        return int(self.prompt_lengths.sum() + self.response_lengths.sum())

    @property
    def lengths(self) -> Tensor:
        """Tokens of each row, prompt and response together, [N]."""
        return self.prompt_lengths + self.response_lengths

    @property
    def response_ids(self) -> Tensor:
        """Token ids of the responses, [N, T] int64; 0 beyond a row's response."""
        steps = torch.arange(self.response_mask.shape[1], device=self.input_ids.device).unsqueeze(0)
        inside = steps < self.response_lengths.unsqueeze(1)
        places = (self.prompt_lengths.unsqueeze(1) + steps).clamp(max=self.input_ids.shape[1] - 1)
        return torch.where(inside, self.input_ids.gather(1, places), 0)

    def to(self, device: torch.device | str) -> MicroBatch:
        """Return the rows on another device; the host does not wait for tensors that leave it."""
        here = self.input_ids.device.type == "cpu"
        tensors = {f.name: value for f in fields(self) if isinstance(value := getattr(self, f.name), Tensor)}
        moved: dict[str, Any] = dict(zip(tensors, to_device(list(tensors.values()), device), strict=True))
        return replace(self, **moved, host=self.on_host() if here else self.host)

    def on_host(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return ``prompt_lengths``, ``response_lengths`` and ``prompt_index`` on the CPU."""
        if self.host is not None:
            return self.host
        index = None if self.prompt_index is None else self.prompt_index.cpu()
        return self.prompt_lengths.cpu(), self.response_lengths.cpu(), index

    def state_dict(self) -> dict[str, Any]:
        """Return tensors and primitives only, so a checkpoint loads with ``weights_only=True``."""
        state = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "host"}
        return state if self.media is None else state | {"media": written_media(self.media)}

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any]) -> MicroBatch:
        """Restore the result of :meth:`state_dict`."""
        return cls(**{**state, "media": read_media(state.get("media"))})


@dataclass(slots=True)
class MiniBatch:
    """Rows of groups for one optimizer step, split into micro-batches.

    ``index`` counts the mini-batches of an iteration, over all passes; ``iteration`` counts rollout batches.
    """

    micro_batches: list[MicroBatch]
    index: int = 0
    iteration: int = 0

    def __post_init__(self) -> None:
        if not self.micro_batches:
            raise ValueError("a mini-batch needs one micro-batch or more")

    @property
    def num_rows(self) -> int:
        """Sequences in this mini-batch on this rank."""
        return sum(int(m.response_mask.shape[0]) for m in self.micro_batches if m.weight > 0)

    @property
    def num_tokens(self) -> int:
        """Tokens that are not padding, prompts included."""
        return sum(m.num_tokens for m in self.micro_batches if m.weight > 0)

    def to(self, device: torch.device | str, *_: Any, **__: Any) -> MiniBatch:
        """Return the mini-batch on another device (Lightning calls this)."""
        return replace(self, micro_batches=[m.to(device) for m in self.micro_batches])

    def state_dict(self) -> dict[str, Any]:
        """Return tensors and primitives only."""
        parts = [m.state_dict() for m in self.micro_batches]
        return {"micro_batches": parts, "index": self.index, "iteration": self.iteration}

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any]) -> MiniBatch:
        """Restore the result of :meth:`state_dict`."""
        micro = [MicroBatch.from_state_dict(m) for m in state["micro_batches"]]
        return cls(micro, index=int(state["index"]), iteration=int(state["iteration"]))


@dataclass(slots=True)
class ObjectiveOutput:
    """Result of an objective.

    ``loss``: scalar to minimise. ``ratio``: [N] or [N, T], before clipping. ``clipped``: bool, the same shape, True
    where the clipped branch is taken and the gradient is zero. ``sums``: ``{metric: (sum, count)}`` that add up.
    """

    loss: Tensor
    ratio: Tensor
    clipped: Tensor
    sums: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
