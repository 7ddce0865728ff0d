"""vLLM engine in the trainer's own process; weights are copied in memory."""

from __future__ import annotations

import importlib.util
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from gspo_lightning.core.distributed import rank_and_world
from gspo_lightning.core.errors import GSPOError, InfrastructureError, UserError
from gspo_lightning.core.extras import install_command
from gspo_lightning.core.randomness import stream
from gspo_lightning.core.signatures import called_with
from gspo_lightning.core.types import FinishReason, Rollout, SamplingParams
from gspo_lightning.policy.numerics.autocast_weights import compute_dtype
from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.vision.qwen import QWEN
from gspo_lightning.rollouts.drawing import Draws
from gspo_lightning.rollouts.ending import finish
from gspo_lightning.rollouts.serving.answers import Answer, BadReplyError, checked
from gspo_lightning.rollouts.source import ContinuationRequest, GenerationRequest, ResponsePrefix, RolloutSource
from gspo_lightning.rollouts.vllm.in_process import InProcessEngine, Piece
from gspo_lightning.rollouts.vllm.local import parallelism
from gspo_lightning.rollouts.vllm.pictures import check_read, shown_to
from gspo_lightning.rollouts.vllm.probe import WeightProbe
from gspo_lightning.rollouts.vllm.protocol import request_body, seed_of, to_rollouts


class VLLMEngine(RolloutSource):
    """vLLM sampler in the trainer's own process, on its device; weights are copied in memory.

    The engine starts at the first rollout and has its own weights and KV cache next to the trainer's. On a GPU
    it sleeps while the policy is trained, and releases that memory. With several ranks, each has an engine of its own,
    on its device, for its own prompts.

    Args:
        dtype: dtype of the engine's weights; None is the compute dtype of training: bfloat16 with bf16-mixed.
        gpu_memory_utilization: share of a GPU's memory that the engine may fill, its weights and cache together.
        options: further arguments of ``vllm.LLM`` (``{max_num_seqs: 64}``). ``enable_sleep_mode: false`` keeps the
            engine awake; ``enable_lora: true`` sends it adapters alone; ``tensor_parallel_size`` shards it over
            several GPUs, in a run of one rank.
        tolerance: nats by which log-probabilities of a probe may differ from the trainer's, on average, after weights
            were copied; None is 1e-3 in float32, else 0.1.
        exact_seeds: give every response a seed of its own, so that it depends on no other response. On a CPU vLLM
            then draws for one response after another, in Python. False: the engine is seeded at each call, and the same
            call draws the same. None: true on a GPU, where vLLM 0.32 draws every row from a counter anyway.
    """

    reads_pictures = True
    picture_families = QWEN

    def __init__(
        self,
        dtype: str | None = None,
        gpu_memory_utilization: float = 0.4,
        options: dict[str, Any] | None = None,
        tolerance: float | None = None,
        exact_seeds: bool | None = None,
    ) -> None:
        if not 0 < gpu_memory_utilization < 1:
            raise UserError(
                "data.rollouts.gpu_memory_utilization", f"is {gpu_memory_utilization}; it must lie in (0, 1)"
            )
        self.dtype, self.gpu_memory_utilization, self.tolerance = dtype, gpu_memory_utilization, tolerance
        self.exact_seeds = exact_seeds
        self.options = dict(options or {})
        self._seeded = bool(exact_seeds)
        self._longest = 0
        self._met = False
        self._engine: InProcessEngine | None = None
        self._synced: tuple[weakref.ref[Policy], int] | None = None

    def open(self, longest: int) -> None:
        """Check that vLLM is installed."""
        self._longest = max(self._longest, longest)
        if importlib.util.find_spec("vllm") is None:
            raise UserError(
                "data.rollouts",
                "is VLLMEngine, but vLLM is not installed for this Python",
                fix=f"{install_command('vllm')}; or VLLMServer with data.rollouts.python, the interpreter of "
                "an environment that has vLLM",
            )

    def close(self) -> None:
        """Shut down the engine and release its memory."""
        if self._engine is not None:
            self._engine.close()
        self._engine = self._synced = None

    def sync_weights(self, policy: Policy, version: int) -> None:
        """Copy the weights into the engine; a probe verifies that they arrived.

        Raises:
            InfrastructureError: they did not.
            UserError: several ranks want several devices each, or vLLM cannot serve this model.
        """
        if self._synced is not None and self._synced[0]() is policy and self._synced[1] == version:
            return
        self._synced = None
        if (ranks := rank_and_world()[1]) > 1 and (size := parallelism(self.options)) > 1:
            raise UserError(
                "data.rollouts.options",
                f"wants {size} devices for the engine of each of {ranks} ranks, which have one each",
                fix="leave out tensor_parallel_size, or use VLLMServer, which all ranks share",
            )
        try:
            self._weight_sync(policy)
        except GSPOError:
            raise
        except Exception as error:
            if self._met:
                raise
            raise UserError(
                "data.rollouts",
                f"is VLLMEngine, but vLLM cannot serve this model: {error}",
                fix="change data.rollouts.options (arguments of vllm.LLM), or use GroupedSampler",
            ) from error
        self._met = True
        self._seeded = policy.device.type == "cuda" if self.exact_seeds is None else self.exact_seeds
        self._synced = (weakref.ref(policy), version)
        policy.release()  # the engine has a copy: weights gathered for it would be another one while it samples

    def sleep(self) -> None:
        """Put the engine to sleep; the next :meth:`sync_weights` wakes it up."""
        if self._engine is not None and self._engine.sleep():
            self._synced = None

    def _weight_sync(self, policy: Policy) -> None:
        probe = WeightProbe(policy, self.tolerance, self.dtype)
        if self._engine is None:
            self._engine = InProcessEngine(policy, self._arguments(policy, probe.length))
        self._engine.load(policy)
        ((_, piece),) = self._engine.run([probe.request], [probe.row.prompt.media])
        probe.check(["vLLM"], [_checked(piece, probe.request, probe.row, policy)])

    @called_with(GenerationRequest)
    def generate(self, request: GenerationRequest) -> list[list[Rollout]]:
        """Generate groups with the weights of the last :meth:`sync_weights`.

        Raises:
            InfrastructureError: the engine's output does not match the request.
        """
        rows = request.prefixes
        groups: list[dict[int, Rollout]] = [{} for _ in request.prompts]
        for ended, (i, rollout) in enumerate(self._rollouts(request.begin(rows)), 1):
            group = groups[i // request.group_size]
            group[rollout.sample] = rollout
            if self.on_group is not None and len(group) == request.group_size:
                self.on_group(_in_order(group))
            if request.progress is not None:
                request.progress(ended, len(rows))
        return [_in_order(group) for group in groups]

    @called_with(ContinuationRequest)
    def extend(self, request: ContinuationRequest) -> list[Rollout]:
        """Continue responses; draws differ between a whole response and its pieces.

        Raises:
            InfrastructureError: the engine's output does not match the request.
        """
        ended: set[int] = set()
        pieces: dict[int, Rollout] = {}
        enough = request.enough
        stop = None if enough is None else lambda: enough(ended)
        for i, piece in self._rollouts(request, stop):
            pieces[i] = piece
            if piece.finish_reason is not FinishReason.CUT:
                ended.add(i)
        return [pieces[i] for i in range(len(request.beginnings))]

    def _rollouts(
        self, request: ContinuationRequest, enough: Callable[[], bool] | None = None
    ) -> Iterator[tuple[int, Rollout]]:
        """Yield (index of the row, its rollout) in the order in which rows end."""
        policy = request.policy
        rows = request.beginnings
        sampling = request.sampling
        if self._engine is None or self._synced is None or self._synced[1] != request.version:
            raise RuntimeError(f"version {request.version} was not copied by sync_weights()")
        bodies = [
            request_body("", row, 1, sampling, seed_of(request.draws, row) if self._seeded else None, policy.unsaid)
            for row in rows
        ]
        media = [row.prompt.media for row in rows]
        for i, piece in self._engine.run(bodies, media, enough, seed=_seed_of_call(request.draws, rows)):
            yield i, _rollout(piece, rows[i], bodies[i], sampling, request.version, policy)

    def _arguments(self, policy: Policy, least: int) -> dict[str, Any]:
        ours: dict[str, Any] = {"dtype": self.dtype or str(compute_dtype(policy))[6:]}
        if policy.device.type == "cpu":
            ours |= {"enforce_eager": True, "kv_cache_memory_bytes": 2**30}
        else:
            ours |= {"gpu_memory_utilization": self.gpu_memory_utilization, "enable_sleep_mode": True}
        if self._longest:
            ours["max_model_len"] = max(self._longest, least)
        return ours | self.options


def _seed_of_call(draws: Draws, rows: Sequence[ResponsePrefix]) -> int:
    """Return a seed, equal for the same responses in the same order of the same iteration."""
    return stream(draws.base, *(key for row in rows for key in (row.prompt.id, row.sample, row.drawn))) % (1 << 32)


def _rollout(
    piece: Piece, row: ResponsePrefix, asked: Mapping[str, Any], sampling: SamplingParams, version: int, policy: Policy
) -> Rollout:
    if not piece.reason:
        tokens, logprobs = torch.tensor(piece.answer.token_ids), torch.tensor(piece.answer.logprobs)
        return finish(row.prompt, row.sample, tokens, logprobs, reason=FinishReason.CUT, version=version, policy=policy)
    (rollout,) = to_rollouts([_checked(piece, asked, row, policy)], row, [row.sample], sampling, version, policy)
    return rollout


def _checked(piece: Piece, asked: Mapping[str, Any], row: ResponsePrefix, policy: Policy) -> Answer:
    vocabulary = int(policy.model.config.get_text_config().vocab_size)
    try:
        if (image_processor := shown_to(policy)) is not None:
            check_read("vLLM", piece.read, row.context, row.prompt.media, image_processor)
        return checked(piece.answer, piece.reason, asked, vocabulary)
    except BadReplyError as error:
        raise InfrastructureError(f"vLLM failed: {error}") from error


def _in_order(group: Mapping[int, Rollout]) -> list[Rollout]:
    return [group[k] for k in range(len(group))]
