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
from typing import Any

import torch
from torch import Tensor

from gspo_lightning.core.pictures import Media, read_media, written_media
from gspo_lightning.core.rows import RowSpan, check_rows
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
        prompt_limit = self.columns.get("max_response_tokens")
        return limit if prompt_limit is None else min(limit, int(prompt_limit))


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
    """One response to one prompt, from sampling to scoring; tensors [T] have an entry per token."""

    prompt: Prompt
    """Prompt that the response answers."""
    sample: int
    """Number of the response among those to its prompt, from 0; part of every random draw made for it."""
    token_ids: Tensor
    """[T] int64, tool output and other turns included, and the end token if the policy wrote one."""
    logprobs: Tensor | None
    """[T] float32, nats: the sampler's own log-probabilities at the training temperature; None if a source has none."""
    response_mask: Tensor
    """[T] bool, True on the tokens that the policy chose."""
    finish_reason: FinishReason
    """Reason why the response ended."""
    policy_version: int
    """Number of optimizer steps before the newest token was sampled."""
    text: str = ""
    """Text of the response; of a conversation only what the policy wrote."""
    reward: float | None = None
    """Reward of the response, never overwritten by penalties; None: *missing*, the sample then counts nowhere."""
    reward_parts: dict[str, float | None] = field(default_factory=dict)
    """Name of a reward -> its value; None: missing, or it does not apply to the record (:meth:`applies`)."""
    reward_statuses: dict[str, str] = field(default_factory=dict)
    """Name of a reward -> its :class:`gspo_lightning.rewards.types.ScoreStatus` as text."""
    reward_agreements: dict[str, bool] = field(default_factory=dict)
    """Name of a judge -> whether it agrees with the known answer, for records that have one."""
    reward_logged: dict[str, float] = field(default_factory=dict)
    """Numbers that reward functions or an agent log; metrics are their means over responses."""
    reward_extra: dict[str, Any] = field(default_factory=dict)
    """Data that reward functions or an agent log, for recorded responses only."""
    masked: bool = False
    """True if the run leaves such responses out, e.g. truncated ones: the sample then counts nowhere."""
    kl_penalty: float = 0.0
    """Subtracted from the reward for the comparison within a group, in units of the reward."""
    advantage: float = 0.0
    """Advantage of the whole response."""
    messages: tuple[Message, ...] = ()
    """Messages of all sides of a conversation; empty for a plain response."""
    turn_ends: tuple[int, ...] = ()
    """Positions in ``token_ids`` after each turn of the policy, rising."""
    turn_rewards: tuple[float, ...] = ()
    """Rewards of the environment, one for each turn of the policy."""
    token_advantages: Tensor | None = None
    """[T] float32: replace ``advantage`` if turns, steps or tokens have their own."""
    steps: dict[str, tuple[tuple[int, float], ...]] = field(default_factory=dict)
    """Name of a reward -> (end, score) of each step; ``end`` is the position in ``token_ids`` after it, rising."""
    values: Tensor | None = None
    """[T] float32: a critic's values of the state before each token, in units of the reward."""
    returns: Tensor | None = None
    """[T] float32: targets of ``values``."""
    token_penalties: Tensor | None = None
    """[T] float32: terms of ``kl_penalty``, which is their sum."""
    lost: str = ""
    """Reason why the environment failed, which leaves no reward; empty: it did not."""
    missing: str = ""
    """Reason why rewards gave none; empty: they did."""
    malformed_calls: int | None = None
    """Number of tool calls that could not be read; None if the chat template offered no tools."""
    versions: Tensor | None = None
    """[T] int64: ``policy_version`` of each token, if the response came in pieces."""
    routes: Tensor | None = None
    """[prompt + T - 1, L, k], row after row: the k experts that the sampler chose in L layers, if requested."""
    rows: tuple[RowSpan, ...] = ()
    """Rows (branches, compactions), one after another; empty: one row after its prompt."""
    tree: tuple[Mapping[str, Any], ...] = ()
    """All messages of an agent's rollout, as they are recorded (docs/agents.md)."""
    unfinished_thought: bool = False
    """True if the response ends inside a thought that its prompt opened (:mod:`gspo_lightning.core.thinking`)."""

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
        check_rows(self.rows, shape[0])

    def applies(self, reward: str) -> bool:
        """True if a reward applies to this record."""
        return self.reward_statuses.get(reward) != "not_applicable"

    def verdict(self, reward: str) -> float | None:
        """Return the part that decides correctness: this reward's if it applies, else the first one's that applies."""
        names = (reward, *self.reward_parts) if reward else tuple(self.reward_parts)
        return next((self.reward_parts.get(name) for name in names if self.applies(name)), None)

    def correct(self, reward: str) -> bool:
        """True if the verdict of this reward is at least 1 (but for rounding), as ``val/accuracy`` counts; None is not.

        If it is not among the parts (a function that was passed to :class:`GSPOTrainer`), the whole reward decides.
        """
        return is_right(self.verdict(reward) if reward in self.reward_parts else self.reward)

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
        policy = "assistant"
        # an agent's begins with the policy's first turn: those before are its client's, examples included
        turns = [node["messages"][0] for node in self.tree if "asked_s" in node and node["messages"]]
        first = next((i for i, message in enumerate(self.messages) if message in turns), 0)
        lines = (m["content"] if m["role"] == policy else f"{m['role']}: {m['content']}" for m in self.messages[first:])
        return "\n".join(lines) if self.messages else self.text


@dataclass(slots=True)
class MicroBatch:
    """Rows that go through the model together, left-aligned: prompt, response, padding."""

    input_ids: Tensor
    """[N, S] int64."""
    prompt_lengths: Tensor
    """[N] int64, tokens before the response."""
    response_lengths: Tensor
    """[N] int64, tokens of the response, tool output and other turns included."""
    response_mask: Tensor
    """[N, T] bool, True on the tokens that are trained."""
    advantages: Tensor
    """[N] or [N, T] float32."""
    old_logprobs: Tensor | None = None
    """[N, T] float32, nats: of the old policy, the denominator of ratios; None: computed later, or not needed."""
    behaviour_logprobs: Tensor | None = None
    """[N, T] float32, nats: of the sampler; None if the rollout source has none."""
    ref_logprobs: Tensor | None = None
    """[N, T] float32, nats: of the reference policy; None without a KL term."""
    teacher_logprobs: Tensor | None = None
    """[N, T] float32, nats: of the teacher; None without distillation."""
    weight: float = 1.0
    """1, or 0 for a filler that only keeps ranks in step."""
    prompt_index: Tensor | None = None
    """[N] int64: rows with the same number have the same prompt; None: unknown."""
    stale: Tensor | None = None
    """[N, T] bool: tokens that an earlier version sampled, whose old log-probabilities are the sampler's."""
    old_from_source: bool = False
    """True if ``behaviour_logprobs`` serve as the old log-probabilities of all tokens."""
    routes: Tensor | None = None
    """[N, S - 1, L, k], small integers: the k experts that sampler or old policy chose for each token in L layers."""
    sources: Tensor | None = None
    """[N, number of sources] bool: the source of each row in a mixture."""
    segments: Tensor | None = None
    """[N, T] int64: numbers of the steps of responses whose steps were scored."""
    positive: Tensor | None = None
    """[N] bool: rows of correct responses (:meth:`Rollout.correct`)."""
    row_weights: Tensor | None = None
    """[N] float32: share of each row in its rollout; None: 1 each."""
    media: tuple[Media, ...] | None = None
    """Pictures of each row, as many as rows; None if no row has one."""
    group_index: tuple[int, ...] | None = None
    """N numbers, on the host: rows with the same number answer the same prompt; None: unknown."""
    common_prefix: int = 0
    """Number of tokens that all prompts begin with, such as a system prompt; the shortest prompt has more."""
    no_gradient: tuple[bool, ...] | None = None
    """N flags, on the host: rows whose gradient is expected to be 0; the policy computes them without a graph. None: no
    such row, or unknown."""
    host: tuple[Tensor, Tensor, Tensor | None] | None = None
    """Lengths and ``prompt_index`` from before the batch moved to a device: planning does not wait for the device."""

    def __post_init__(self) -> None:
        rows, width = self.response_mask.shape
        if self.input_ids.shape[0] != rows:
            raise ValueError(f"input_ids has {self.input_ids.shape[0]} rows, response_mask {rows}")
        if self.host is not None and len(self.host[0]) != rows:
            raise ValueError(f"host has {len(self.host[0])} rows, response_mask {rows}: it belongs to other rows")
        for name in ("media", "group_index", "no_gradient"):
            if (values := getattr(self, name)) is not None and len(values) != rows:
                raise ValueError(f"{name} has {len(values)} rows, response_mask {rows}")
        for name in ("old_logprobs", "behaviour_logprobs", "ref_logprobs", "teacher_logprobs"):
            if (logprobs := getattr(self, name)) is not None and tuple(logprobs.shape) != (rows, width):
                raise ValueError(f"{name} must have shape {(rows, width)}, got {tuple(logprobs.shape)}")

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
