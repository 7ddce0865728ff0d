"""In-process grouped sampler: the default rollout source.

Each prompt is prefilled once and all G responses share its keys and values; finished rows leave the batch and
waiting prompts take their place; log-probabilities are recorded while sampling. Works on unmodified transformers
models.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import get_args

import torch
from typing_extensions import override

from gspo_lightning.core.errors import first_line
from gspo_lightning.core.host_memory import return_freed_memory
from gspo_lightning.core.signatures import called_with
from gspo_lightning.core.types import Rollout, SamplingParams
from gspo_lightning.policy.numerics.autocast_weights import in_compute_dtype
from gspo_lightning.policy.packing.memory import empty_cache, is_out_of_memory
from gspo_lightning.policy.policy import Policy
from gspo_lightning.rollouts.drawing import Draws
from gspo_lightning.rollouts.generate import TransformersGenerate
from gspo_lightning.rollouts.sampler.admission_queue import AdmissionQueue
from gspo_lightning.rollouts.sampler.decode_batch import DecodeBatch
from gspo_lightning.rollouts.sampler.decoding import DecodeBy, Decoder, decoder_for
from gspo_lightning.rollouts.sampler.decoding_rows import ResponseBuffer
from gspo_lightning.rollouts.sampler.device_batch import DeviceBatch
from gspo_lightning.rollouts.sampler.device_decoder import KEPT_ROWS, DeviceDecoder, device_decoder
from gspo_lightning.rollouts.sampler.memory import Costs, budget
from gspo_lightning.rollouts.sampler.routes import RecordingDecoder, RouteBook
from gspo_lightning.rollouts.source import ContinuationRequest, GenerationRequest, ResponsePrefix, RolloutSource

log = logging.getLogger(__name__)
LARGE = 64 << 20
"""Bytes of weights beyond which a rollout's copies are worth the milliseconds that it takes to give them back."""


class GroupedSampler(RolloutSource):
    """Sampler in the trainer's own process, from the live weights.

    Args:
        max_rows: responses decoded at the same time; more prompts wait. Fewer if free memory cannot hold the
            keys and values of so many at their full length.
        compact_at: share of finished rows at which the batch is compacted, in (0, 1].
        decode: how tokens go through the model: ``model`` calls its own modules; ``auto`` bypasses them if a
            comparison with them allows it, which on a CPU halves the time of a small model's step.
    """

    records_routes = True
    extends_routes = True
    reads_pictures = True

    def __init__(self, max_rows: int = 512, compact_at: float = 0.125, decode: DecodeBy = "auto") -> None:
        if max_rows < 1:
            raise ValueError(f"max_rows must be at least 1, got {max_rows}")
        if not 0 < compact_at <= 1:
            raise ValueError(f"compact_at must lie in (0, 1], got {compact_at}")
        if decode not in get_args(DecodeBy):
            raise ValueError(f"decode must be one of {', '.join(get_args(DecodeBy))}, got {decode!r}")
        self.max_rows = max_rows
        self.compact_at = compact_at
        self.decode = decode
        self._busiest = 0
        """Largest number of rows that the fallback decoded at a time since the last :meth:`reduce_batch`."""
        self._too_many = 0
        """Number of rows at which the fallback ran out of memory last; 0: never."""
        self._fitting: int | None = None
        """Rows that fit into memory; None: all of ``max_rows``, as far as known."""
        self._steps = Counter[str]()
        """Decode steps of an accelerator since the last :meth:`measured`, by kind."""

    @override
    @called_with(GenerationRequest)
    def generate(self, request: GenerationRequest) -> list[list[Rollout]]:
        policy = request.policy
        group_size = request.group_size
        sampling = request.sampling
        if policy.decoding.way == "generate":
            return self._slow(request.size).generate(
                policy,
                request.prompts,
                group_size=group_size,
                sampling=sampling,
                draws=request.draws,
                version=request.version,
                progress=request.progress,
            )
        beginnings = request.prefixes
        buffer = ResponseBuffer(beginnings, policy.device)
        book: RouteBook | None = None
        if policy.routing is not None and policy.routing.replay != "R2" and sampling.neutral:
            numbers = [row // group_size for row in range(len(beginnings))]
            book = RouteBook(numbers, sampling.max_response_tokens, policy.routing, policy.device)
        groups: dict[int, list[Rollout]] = {}

        def left(entered: int, busy: set[int]) -> bool:
            """Return the groups whose rows have all left the batch; never ends the call."""
            working = {slot // group_size for slot in busy}
            over = [p for p in range(entered // group_size) if p not in working and p not in groups]
            rollouts = buffer.rollouts(
                [p * group_size + k for p in over for k in range(group_size)], request.version, policy
            )
            if book is not None:
                numbers = (p * group_size + k for p in over for k in range(group_size))
                book.fill(dict(zip(numbers, rollouts, strict=True)))
            for i, p in enumerate(over):
                group = rollouts[i * group_size : (i + 1) * group_size]
                groups[p] = group
                if self.on_group is not None:
                    self.on_group(group)
            if request.progress is not None:
                request.progress(entered - len(busy), len(beginnings))
            return False

        with self._weights(policy, beginnings, [group_size], sampling, book) as (cast, device):
            self._decode(cast, buffer, [group_size] * len(request.prompts), sampling, request.draws, left, book, device)
        return [groups[p] for p in range(len(request.prompts))]

    @called_with(ContinuationRequest)
    def extend(self, request: ContinuationRequest) -> list[Rollout]:
        """Continue responses; neighbours with the same context and pictures share its keys and values.

        Experts are recorded for Routing Replay R3 only.
        """
        policy = request.policy
        beginnings = request.beginnings
        sampling = request.sampling
        enough = request.enough
        if policy.decoding.way == "generate":
            return self._slow(len(beginnings)).extend(
                policy, beginnings, sampling=sampling, draws=request.draws, version=request.version, enough=enough
            )
        buffer = ResponseBuffer(beginnings, policy.device)
        blocks = [len(list(same)) for _, same in groupby(beginnings, key=lambda row: (row.context, row.prompt.media))]
        book: RouteBook | None = None
        if policy.routing is not None and policy.routing.replay == "R3" and sampling.neutral:
            numbers = [number for number, rows in enumerate(blocks) for _ in range(rows)]
            book = RouteBook(
                numbers, max((b.token_budget for b in beginnings), default=0), policy.routing, policy.device
            )

        def left(entered: int, busy: set[int]) -> bool:
            return enough is not None and enough([i for i in range(entered) if i not in busy])

        with self._weights(policy, beginnings, blocks, sampling, book) as (cast, device):
            self._decode(cast, buffer, blocks, sampling, request.draws, left, book, device)
        pieces = buffer.rollouts(range(len(beginnings)), request.version, policy)
        if book is not None:
            book.fill(dict(enumerate(pieces)))
        return pieces

    @contextmanager
    def _weights(
        self,
        policy: Policy,
        beginnings: Sequence[ResponsePrefix],
        blocks: Sequence[int],
        sampling: SamplingParams,
        book: RouteBook | None,
    ) -> Iterator[tuple[Policy, DeviceDecoder | None]]:
        """Yield the policy to sample from, in the compute dtype, and an accelerator's decoder of it, if it has one."""
        plain = book is None and not sampling.stop_strings and not any(b.prompt.media for b in beginnings)
        if self.decode == "auto" and plain and beginnings:
            most = max(min(self.max_rows, len(beginnings)), KEPT_ROWS, *blocks)
            with device_decoder(policy, most) as decoder:
                if decoder is not None:
                    before = dict(decoder.counts)
                    yield policy, decoder
                    self._steps.update({name: count - before[name] for name, count in decoder.counts.items()})
                    return
        with in_compute_dtype(policy) as cast:
            yield cast, None
        if policy.device.type == "cpu" and sum(weight.nbytes for weight in policy.parameters()) > LARGE:
            return_freed_memory()  # copies of the weights, beside which the backward pass would be the run's peak

    def measured(self) -> dict[str, float]:
        """Return the share of an accelerator's decode steps that were CUDA graphs."""
        steps = self._steps
        self._steps = Counter[str]()
        total = steps["graph"] + steps["ordinary"]
        return {"sampler/graph_steps": steps["graph"] / total} if total else {}

    @override
    def local(self) -> GroupedSampler:
        return self

    def reduce_batch(self) -> int:
        """Halve the number of rows of ``generate``; other decoders fit rows themselves."""
        most = self._busiest
        self._busiest = 0
        if most <= 1 or 0 < self._too_many <= most:
            return 0
        self._too_many = most
        self.max_rows = most // 2
        return self.max_rows

    def _slow(self, rows: int) -> TransformersGenerate:
        """Return the fallback source, used if no faster decoder is correct."""
        self._busiest = max(self._busiest, min(rows, self.max_rows))
        return TransformersGenerate(self.max_rows)

    @torch.no_grad()
    def _decode(
        self,
        policy: Policy,
        buffer: ResponseBuffer,
        blocks: Sequence[int],
        sampling: SamplingParams,
        draws: Draws,
        left: Callable[[int, set[int]], bool],
        book: RouteBook | None = None,
        device: DeviceDecoder | None = None,
    ) -> None:
        """Decode all responses. After an out-of-memory error, rows keep their tokens and continue, fewer at a time.

        Args:
            policy: the weights, in the compute dtype.
            buffer: receives the responses.
            blocks: sizes of runs of neighbours in ``buffer.beginnings`` that share a context.
            sampling: temperature and stops.
            draws: the randomness.
            left: called after rows have left the batch, with the number of rows that ever entered and the slots of
                incomplete ones; True ends the call.
            book: records the experts of a mixture.
            device: decoder of an accelerator.
        """
        queue = AdmissionQueue(buffer.beginnings, blocks, self.max_rows, self.compact_at)
        ran_out = False
        while len(queue):
            queue.fitting = self._fitting
            decoder = device or self._decoder(policy)
            costs = Costs.of(policy, decoder.may_grow, queue.widest, decoder.growth)
            batch = (
                DeviceBatch(device, buffer, sampling, draws, self.compact_at)
                if device is not None
                else DecodeBatch(
                    decoder if book is None else RecordingDecoder(decoder, book, policy),
                    buffer, sampling, draws, self.compact_at,
                )
            )  # fmt: skip
            over, why = self._run(batch, queue, costs, left)
            if over:
                break
            ran_out = True
            unfinished = batch.unfinished()
            queue.back(unfinished)
            del decoder, batch  # releases their memory
            if device is not None:
                device.release()
            self._fit(len(unfinished), why)
            if left(queue.entered, queue.put_back):
                break
        if not ran_out:
            self._relax(len(buffer.beginnings))

    def _decoder(self, policy: Policy) -> Decoder:
        """Return an empty decoder of these weights."""
        return decoder_for(policy, self.decode)

    def _fit(self, rows: int, why: str) -> None:
        """Halve the number of rows decoded at the same time.

        Raises:
            torch.OutOfMemoryError: only one row was left.
        """
        if rows == 1:
            raise torch.OutOfMemoryError(why)
        self._fitting = rows // 2 or self._fitting
        log.warning(
            "%s is out of memory (%s); %d responses go on from their tokens, from now on with at most %d responses at "
            "a time", type(self).__name__, why, rows, self._fitting,
        )  # fmt: skip
        empty_cache()

    def _relax(self, rows: int) -> None:
        """Decode an eighth more rows at a time after a call that reached the limit, until memory runs out again.

        The other use of memory may be gone. Running out costs a forward pass over the existing tokens.
        """
        if self._fitting is not None and rows > self._fitting:
            more = self._fitting + max(1, self._fitting // 8)
            self._fitting = more if more < self.max_rows else None

    @staticmethod
    def _run(
        batch: DecodeBatch, queue: AdmissionQueue, costs: Costs, left: Callable[[int, set[int]], bool]
    ) -> tuple[bool, str]:
        """Decode until all rows are complete, ``left`` ends it or memory runs out; return (over, error message)."""
        bytes_left = budget(batch.policy.device)
        may_join = True
        if bytes_left is not None:
            bytes_left += batch.decoder.free_bytes
        while may_join or len(batch):
            try:
                batch.step()
                if may_join:
                    batch.join(queue.admit(batch.slots.tolist(), batch.decoder.may_grow, costs, bytes_left))
                batch.sample()
                may_join = batch.close_up()
            except (RuntimeError, MemoryError) as error:
                if batch.policy.in_lockstep or not is_out_of_memory(error):
                    raise
                return False, first_line(error)[:200]
            if may_join and left(queue.entered, {*batch.slots.tolist(), *queue.put_back}):
                return True, ""
            may_join = may_join and bool(len(queue))
        return True, ""
