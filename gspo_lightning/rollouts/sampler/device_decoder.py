"""Decoder of an accelerator: one copy of the weights, one store of keys and values, and steps recorded per bucket.

It lives as long as its policy's run (:attr:`gspo_lightning.policy.decoding.Decoding.kept`): a rollout refills the
weights in place and finds the recorded steps of earlier ones. Rows of any prompts are one batch, their lengths are data
on the device, and the draw of the next token is a part of the step, so that the host launches one graph per token.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Self

import torch
from torch import Tensor
from typing_extensions import override

from gspo_lightning.core.errors import first_line
from gspo_lightning.core.types import SamplingParams
from gspo_lightning.policy.attention.span_cache import SpanCache
from gspo_lightning.policy.attention.spans import Attend, attend_by_flash, why_no_flash
from gspo_lightning.policy.decoding import LENDING, Decoding
from gspo_lightning.policy.kernels.rounding import distribution_gap
from gspo_lightning.policy.kernels.thread_state import without_autocast
from gspo_lightning.policy.numerics.autocast_weights import compute_dtype
from gspo_lightning.policy.packing.memory import empty_cache, is_out_of_memory
from gspo_lightning.policy.packing.rows import common_prefix
from gspo_lightning.policy.policy import Policy
from gspo_lightning.rollouts.drawing import sample_tokens
from gspo_lightning.rollouts.ending import has_ended
from gspo_lightning.rollouts.sampler.admission_queue import Prefill
from gspo_lightning.rollouts.sampler.decoding import Decoder, SharedDecoder, for_rows, gap_of_steps, rounding, two_steps
from gspo_lightning.rollouts.sampler.fast_decoder import DecoderTwin, Pieces, can_compile, compiled_pieces
from gspo_lightning.rollouts.sampler.recording import CAPTURES, Capture, bucket, memory_for, record

log = logging.getLogger(__name__)

ATTENDS: dict[str, tuple[Attend, Callable[[torch.device, torch.dtype, int], str | None]]] = {
    "cuda": (attend_by_flash, why_no_flash)
}
"""Attention by device type, and why it cannot serve a dtype and a size of heads."""
WINDOW = 256
"""Steps between two visits of the host: so many random numbers are drawn ahead, and so many tokens stay in the ring."""
KEPT_ROWS = 512
"""Rows that a decoder has room for at least, so that the next rollout or an evaluation finds it large enough."""
KEPT = 0.05
"""Share of a device's memory up to which keys and values, and with them recorded steps, are kept while training."""


@dataclass(slots=True)
class StepState:
    """State of a decode step, at addresses that stay; rows behind the present ones are idle."""

    token: Tensor  # [most] fed next
    position: Tensor  # [most] of that token
    step: Tensor  # [most] tokens drawn
    budget: Tensor  # [most] most tokens
    alive: Tensor  # [most]
    stopped: Tensor  # [most]
    uniforms: Tensor  # [WINDOW, most]
    tokens: Tensor  # [WINDOW, most] drawn since the host's last visit
    logprobs: Tensor  # [WINDOW, most] of those
    turn: Tensor  # [1] steps since then
    living: Tensor  # [] rows that are alive

    @classmethod
    def of(cls, most: int, device: torch.device) -> Self:
        """Return the state of at most so many rows, all of them idle."""
        numbers = [torch.zeros(most, dtype=torch.int64, device=device) for _ in range(4)]
        flags = [torch.zeros(most, dtype=torch.bool, device=device) for _ in range(2)]
        window = [
            torch.zeros(WINDOW, most, dtype=dtype, device=device)
            for dtype in (torch.float64, torch.int64, torch.float32)
        ]
        scalars = [torch.zeros(shape, dtype=torch.int64, device=device) for shape in ((1,), ())]
        return cls(*numbers, *flags, *window, *scalars)

    def tensors(self) -> list[Tensor]:
        """Return all tensors."""
        return [getattr(self, field.name) for field in fields(self)]


class DeviceDecoder(Decoder):
    """Decoder with its own copy of the weights, for one rollout at a time.

    Args:
        policy: supported (:meth:`why_not`).
        dtype: of the products.
        most: rows at the same time.
        pieces: what is computed between the products.
    """

    may_grow = True
    growth = "whole"

    def __init__(self, policy: Policy, dtype: torch.dtype, most: int, pieces: Pieces) -> None:
        super().__init__(policy)
        self.device, self.dtype, self.most = policy.device, dtype, most
        with torch.inference_mode():
            self.twin = DecoderTwin(policy, dtype, pieces)
            self.cache = SpanCache(self.device, most, ATTENDS[self.device.type][0], pieces.joined)
            self.state = StepState.of(most, self.device)
        self.busy = False
        """True while a rollout uses it."""
        self.records = self.device.type in CAPTURES
        """False: steps of this rollout are not recorded (any more)."""
        self.counts = {"graph": 0, "ordinary": 0, "recorded": 0}
        """Steps that were replayed, other ones, and recordings."""
        self._graphs: dict[object, Capture] = {}
        self._memory = memory_for(self, self.device)
        self._version: object = None

    @staticmethod
    def why_not(policy: Policy, dtype: torch.dtype) -> str | None:
        """Return why a policy is not decoded this way, or None."""
        if policy.device.type not in ATTENDS:
            return f"a device of type {policy.device.type}"
        shares = policy.packed and policy.decoding.way in (None, "shared")
        if policy.batch_invariant or not shares or policy.routing is not None:
            return "batch-invariant, padded or routed forward passes"
        if (reason := DecoderTwin.why_not(policy)) is not None:
            return reason
        size = int(policy.backbone.layers[0].self_attn.head_dim)  # type: ignore[union-attr,index]
        return ATTENDS[policy.device.type][1](policy.device, dtype, size)

    @property
    def nbytes(self) -> int:
        """Bytes that are held: the copy of the weights, and keys and values."""
        return self.twin.nbytes + self.cache.nbytes

    @property
    def free_bytes(self) -> int:  # type: ignore[override]
        """Bytes of keys and values, which belong to no row at the beginning of a rollout."""
        return self.cache.nbytes

    def begin(self, policy: Policy) -> None:
        """Take the weights of a policy, and forget all rows."""
        with torch.inference_mode():
            self.policy, self.records = policy, self.device.type in CAPTURES and policy.decoding.graphs is not False
            self.twin.fill(policy)
            self.cache.clear()

    def release(self) -> None:
        """Free keys and values, and the recorded steps that read them; the weights stay."""
        self._graphs = {}
        with torch.inference_mode():
            self.cache = SpanCache(self.device, self.most, self.cache.attend_span, self.cache.join)
        self._memory.free()

    # Decoder -----------------------------------------------------------------------------------------------------

    @override
    def add(self, prefill: Prefill) -> Tensor:
        contexts = prefill.contexts
        widths = [len(ids) for ids in contexts]
        prefix = common_prefix(contexts) if self.policy.shares_prefix else 0
        parts = [contexts[0][:prefix], *(ids[prefix:] for ids in contexts)]
        steps = [torch.arange(prefix), *(torch.arange(prefix, width) for width in widths)]
        packed = torch.tensor([token for ids in parts for token in ids])
        last = prefix + torch.tensor([width - prefix for width in widths]).cumsum(0) - 1
        with torch.inference_mode(), without_autocast(self.device):
            ids, positions, last = (x.to(self.device, non_blocking=True) for x in (packed, torch.cat(steps), last))
            self.cache.enter(widths, prefill.rows, prefill.room or [WINDOW] * sum(prefill.rows), prefix)
            hidden = self.twin.hidden(ids, positions, self.cache, prefill=True)
            logits = for_rows(self._finished(hidden[last]), prefill.rows)
            self.cache.write()
        return logits

    @override
    def keep(self, rows: Tensor) -> None:
        with torch.inference_mode():
            self.cache.keep(rows)

    @override
    def step(self, tokens: Tensor, positions: Tensor) -> Tensor:
        with torch.inference_mode(), without_autocast(self.device):
            count, state = len(self.cache), self.state
            state.token[:count], state.position[:count] = tokens, positions
            state.alive[:count], state.alive[count:] = True, False
            return self._run("logits", self._step)[:count]

    # steps -------------------------------------------------------------------------------------------------------

    def draw(self, sampling: SamplingParams) -> None:
        """Feed the tokens of the state, draw the next ones, and find the rows that end; the state has the result."""
        stops = tuple(sampling.stop_token_ids)
        key = sampling.temperature, sampling.top_p, sampling.top_k, stops

        def step(rows: int) -> Tensor:
            return self._draw(rows, sampling)

        with torch.inference_mode(), without_autocast(self.device):
            self._run(key, step)

    def _step(self, rows: int) -> Tensor:
        """Feed one token of the first rows of the state; return logits [rows, V]."""
        state = self.state
        self.cache.write(rows)
        logits = self._finished(self.twin.hidden(state.token[:rows], state.position[:rows], self.cache, prefill=False))
        self.cache.advance(state.alive[:rows])
        return logits

    def _draw(self, rows: int, sampling: SamplingParams) -> Tensor:
        logits, state = self._step(rows), self.state
        uniform = state.uniforms[:, :rows].index_select(0, state.turn).squeeze(0)
        chosen, logprobs = sample_tokens(logits, uniform, sampling)
        state.tokens[:, :rows].index_copy_(0, state.turn, chosen.unsqueeze(0))
        state.logprobs[:, :rows].index_copy_(0, state.turn, logprobs.unsqueeze(0))
        alive, stopped, step = state.alive[:rows], state.stopped[:rows], state.step[:rows]
        state.position[:rows].add_(alive)
        state.token[:rows].copy_(chosen)
        step.add_(alive)
        ended = has_ended(self.policy, chosen, sampling, lambda *_: [], alive)
        stopped.logical_or_(ended & alive)
        alive.logical_and_(~(ended | (step >= state.budget[:rows])))
        state.turn.add_(1)
        state.living.copy_(alive.sum())
        return chosen if self.policy.decoding.graphs else logits  # a result is kept for the run, and logits are large

    def _finished(self, hidden: Tensor) -> Tensor:
        return self.policy.finish_logits(self.twin.head(hidden))

    # recording ---------------------------------------------------------------------------------------------------

    def _run(self, kind: object, step: Callable[[int], Tensor]) -> Tensor:
        """Replay a step for the present rows; record it first, or take an ordinary step if that is not possible."""
        rows = len(self.cache)
        if self.records:
            version = self.cache.version, self.twin.embedding.data_ptr()
            if version != self._version:
                self._graphs, self._version = {}, version
            size = min(bucket(rows), self.most)
            graph = self._graphs.get((kind, size)) or self._record(kind, size, step)
            if graph is not None:
                graph.replay()
                self.counts["graph"] += 1
                return graph.result
        self.counts["ordinary"] += 1
        return step(rows)

    def _record(self, kind: object, size: int, step: Callable[[int], Tensor]) -> Capture | None:
        """Record a step of ``size`` rows; the first of a policy is compared with ordinary ones, on two sets of tokens.

        A failure ends recording for this rollout; a difference for all.
        """
        decoding, before = self.policy.decoding, self._saved()
        try:
            step(size)  # what is compiled or allocated at first use must not become a part of a graph
            self._restore(before)
            self._graphs[kind, size] = graph = record(lambda: step(size), self._memory)
            self._restore(before)
            if not decoding.graphs:
                self._compare(graph, size, step, before)
            decoding.graphs, self.counts["recorded"] = True, self.counts["recorded"] + 1
            return graph
        except (RuntimeError, ValueError) as error:  # known by name only
            differs = isinstance(error, ValueError)
            what = "this run" if differs else "the rest of this rollout"
            if is_out_of_memory(error):
                what += ", for want of memory,"
            log.warning("steps of %s in %s are not CUDA graphs: %s", type(self.policy.model).__name__, what,
                        first_line(error))  # fmt: skip
            self._graphs, self.records = {}, False
            decoding.failed_graphs += 1
            if differs:
                decoding.graphs = False
            self._restore(before)
            return None

    def _compare(self, graph: Capture, size: int, step: Callable[[int], Tensor], before: list[Tensor]) -> None:
        """Compare two replays with ordinary steps: a replay that does nothing has the result of the recording.

        The logits of the first graph stay with it: 512 rows of a vocabulary of 151,936 are 150 MiB in bfloat16.
        """
        vocabulary = self.policy.model.config.get_text_config().vocab_size
        for shift in (0, 1):
            found = []
            for way in (lambda: step(size), graph.replay):
                self._restore(before)
                self.state.token.add_(shift).remainder_(vocabulary)
                out = way()
                found.append((graph.result if out is None else out).log_softmax(-1).clone())
            gap = distribution_gap(found[0], found[1])
            if not gap <= rounding(self.policy):
                raise ValueError(f"log-probabilities of a replayed step are off by {gap:.2g} nats")
        self._restore(before)

    def _saved(self) -> list[Tensor]:
        return [x.clone() for x in (*self.state.tensors(), self.cache.seen)]

    def _restore(self, before: Sequence[Tensor]) -> None:
        for now, then in zip((*self.state.tensors(), self.cache.seen), before, strict=True):
            now.copy_(then)


# one per run -----------------------------------------------------------------------------------------------------


@contextmanager
def device_decoder(policy: Policy, most: int) -> Iterator[DeviceDecoder | None]:
    """Lend the decoder that is kept for a policy's run, with its present weights; None: decode another way.

    Call it inside the autocast of the rollout. A second rollout at the same time gets a decoder of its own.
    """
    decoding, dtype = policy.decoding, compute_dtype(policy)
    reason = DeviceDecoder.why_not(policy, dtype) if decoding.device_decoder is not False else "it gave other results"
    if reason is not None:
        _tell(policy, reason)
        yield None
        return
    decoder = _taken(decoding, dtype, policy.device, most) or _fresh(policy, dtype, most)
    if decoder is None:
        yield None
        return
    decoder.busy = True
    with LENDING:
        if decoding.kept is None or not decoding.kept.busy:
            decoding.kept = decoder
    try:
        decoder.begin(policy)
        decoder.records &= decoder is decoding.kept  # two of them would share the memory of recorded steps
        yield decoder
    finally:
        if decoder is decoding.kept and decoder.cache.nbytes > KEPT * _memory(policy.device):
            decoder.release()
        decoder.busy = False


def _taken(decoding: Decoding, dtype: torch.dtype, device: torch.device, most: int) -> DeviceDecoder | None:
    """Take the decoder that is kept, if it serves; one that never will is freed, before there are two of them."""
    with LENDING:
        kept = decoding.kept
        if isinstance(kept, DeviceDecoder) and (kept.dtype, kept.device) == (dtype, device) and kept.most >= most:
            if kept.busy:
                return None
            kept.busy = True
            return kept
    decoding.release()
    return None


def _fresh(policy: Policy, dtype: torch.dtype, most: int) -> DeviceDecoder | None:
    """Return a new decoder that was compared with the modules, at least once in this run, or None."""
    decoding = policy.decoding
    choices = [compiled_pieces] if can_compile(policy.device) and decoding.compiled is not False else []
    full = False
    for pieces in (*choices, Pieces):
        decoder, chosen = None, pieces()  # not beside the last one: two copies of the weights may be one too many
        try:
            decoder = DeviceDecoder(policy, dtype, most, chosen)
            if decoding.device_decoder or _same(policy, decoder):
                decoding.device_decoder = True
                return decoder
            reason = "its log-probabilities differ from the modules'"
        except (AttributeError, RuntimeError, TypeError, ValueError) as error:  # known by name only
            reason = first_line(error)
            if full := is_out_of_memory(error):
                reason = "there is no memory for one"
        if full:
            break
        if chosen.compiled:
            decoding.compiled = False
            log.warning("decode steps of %s are not compiled: %s", type(policy.model).__name__, reason)
    if full:
        decoder = None
        empty_cache()
        if decoding.kept is not None:  # of a rollout at the same time, which goes on
            return None
    decoding.device_decoder = False
    _tell(policy, reason)
    return None


def _same(policy: Policy, decoder: DeviceDecoder) -> bool:
    """Compare two steps, with different tokens, with those of the policy's own modules."""
    decoder.records = False
    theirs = two_steps(policy, SharedDecoder(policy, "model"))
    gap = gap_of_steps([x.clone() for x in two_steps(policy, decoder)], theirs)
    log.debug("the copy of the weights gives log-probabilities within %.2g nats of the modules'", gap)
    return gap <= rounding(policy)


def _tell(policy: Policy, reason: str) -> None:
    """Say once per run why an accelerator does not decode by this decoder."""
    if policy.device.type in ATTENDS and policy.decoding.fallback is None:
        policy.decoding.fallback = reason
        log.warning("%s is decoded without a copy of its weights: %s", type(policy.model).__name__, reason)


def _memory(device: torch.device) -> int:
    if device.type != "cuda":
        return 1 << 62
    return int(torch.cuda.get_device_properties(device).total_memory)
