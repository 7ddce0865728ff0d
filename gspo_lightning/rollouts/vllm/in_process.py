"""In-process vLLM engine: startup, weight loading, engine steps."""

from __future__ import annotations

import itertools
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from gspo_lightning.core.distributed import rank_and_world
from gspo_lightning.core.errors import InfrastructureError
from gspo_lightning.core.pictures import Media
from gspo_lightning.policy.adapters.lora import frozen_norm, has_adapters
from gspo_lightning.policy.kernels.thread_state import without_autocast
from gspo_lightning.policy.numerics.autocast_weights import compute_dtype
from gspo_lightning.policy.policy import Policy
from gspo_lightning.rollouts.serving.answers import Answer
from gspo_lightning.rollouts.serving.untied import needs_own_head, own_head, untie
from gspo_lightning.rollouts.serving.weights import WeightFolders, in_checkpoint_format, save_without_weights
from gspo_lightning.rollouts.vllm.local import lora_rank, parallelism
from gspo_lightning.rollouts.vllm.pictures import NOT_SAMPLING, engine_prompt, shown_to
from gspo_lightning.rollouts.vllm.process_state import RandomState, keep_process_groups, preserve_process_state

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # in this process: weights are passed by reference
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
}
ARGUMENTS: dict[str, Any] = {
    "load_format": "dummy",  # load() sets the weights
    "logprobs_mode": "processed_logprobs",  # at the sampling temperature
    "generation_config": "vllm",  # the model's own would change what is sampled
    "distributed_executor_backend": "uni",
    "disable_log_stats": True,
}
PICTURES: dict[str, Any] = {
    "mm_device_do_normalize": False,  # else a buffer of the tower: random after a dummy load, in no checkpoint
}


@dataclass
class Piece:
    """Tokens of a response so far, and its finish reason."""

    answer: Answer = field(default_factory=lambda: Answer([], []))
    reason: str = ""
    """Finish reason; empty while the response is not complete."""
    read: list[int] = field(default_factory=list)
    """Tokens of its prompt, as vLLM read them."""


class InProcessEngine:
    """vLLM engine of one rank; with several ranks, all start together.

    Args:
        policy: determines model and tokenizer; the weights come by :meth:`load`.
        arguments: arguments of ``vllm.LLM``, in addition to those that this module needs. With a
            ``tensor_parallel_size`` above 1 its workers are processes of their own, and weights reach them as files.
            With ``enable_lora`` it gets adapters as such. With ``enable_sleep_mode`` it can :meth:`sleep`.
    """

    def __init__(self, policy: Policy, arguments: Mapping[str, Any]) -> None:
        self._spread = parallelism(arguments) > 1
        self._sleeps = bool(arguments.get("enable_sleep_mode"))
        self._lora = bool(arguments.get("enable_lora")) and has_adapters(policy.model)
        self._asleep = False
        dtype = getattr(torch, str(arguments.get("dtype")), None)
        self._dtype = dtype if isinstance(dtype, torch.dtype) else compute_dtype(policy)  # autocast's, if enabled
        self._adapter: Any = None
        self._base: float | None = None
        """Norm of the engine's frozen weights, if it gets adapters as such."""
        self._folders = WeightFolders(None, in_memory=True)
        self._own_precision = partial(without_autocast, policy.device)
        """Context of the engine's computations: the trainer's autocast must not apply to its models."""
        own: dict[str, Any] = {}
        if self._lora:
            own["max_lora_rank"] = lora_rank(policy)
        if self._spread:
            own |= {"distributed_executor_backend": "mp", "load_format": "auto"}  # files cannot replace dummy weights
        elif rank_and_world()[1] > 1:
            own["distributed_executor_backend"] = "external_launcher"
        os.environ |= {name: os.environ.get(name, value) for name, value in ENVIRONMENT.items()}
        self._folder = tempfile.mkdtemp(prefix="gspo-vllm-")
        if self._spread:
            policy.save_pretrained(self._folder, self._dtype, adapters=not self._lora)
        else:
            save_without_weights(policy, self._folder)
        if needs_own_head(policy):
            untie(policy, Path(self._folder), self._dtype)
        self._image_processor = shown_to(policy)
        self._owns_group = not torch.distributed.is_initialized()
        try:
            with preserve_process_state(), self._own_precision():
                import vllm

                self._vllm = vllm
                seeing = {} if self._image_processor is None else PICTURES
                os.environ |= {"RANK": "0", "LOCAL_RANK": str(policy.device.index or 0)}  # for external_launcher
                self._llm = vllm.LLM(model=self._folder, **ARGUMENTS | seeing | own | dict(arguments))
        except BaseException:
            self._clean_up()
            raise
        self._numbers = itertools.count()
        known = "flat_logprobs" in getattr(self._vllm.SamplingParams, "__struct_fields__", ())
        self._flat = {"flat_logprobs": True} if known else {}
        """Log-probabilities of a response in a few lists, without an object for each token."""

    def close(self) -> None:
        """Shut the engine down and release its memory."""
        with nullcontext() if self._owns_group else keep_process_groups():
            self._llm.llm_engine.engine_core.shutdown()
        del self._llm
        self._clean_up()

    def sleep(self) -> bool:
        """Release the engine's memory until :meth:`load`; False if it was not started with ``enable_sleep_mode``.

        Weights are discarded (level 2), because they will be copied again. Base weights of adapters are not copied
        again and move to main memory (level 1).
        """
        if self._sleeps and not self._asleep:
            self._llm.sleep(level=1 if self._lora else 2)
            self._asleep = True
        return self._asleep

    @torch.no_grad()
    def load(self, policy: Policy) -> None:
        """Copy the weights, and drop caches computed with earlier ones; wakes the engine up.

        Raises:
            InfrastructureError: the cache was in use.
        """
        with self._own_precision():
            if self._asleep:
                self._llm.wake_up(tags=["weights"])
            self._give(policy)
            if self._asleep:  # last: weights in transfer and the cache need not fit together
                self._llm.wake_up(tags=["kv_cache"])
                self._asleep = False
            if not self._llm.reset_prefix_cache():
                raise InfrastructureError("vLLM's prefix cache was in use while weights were being copied")
            if self._image_processor is not None:
                self._llm.llm_engine.reset_encoder_cache()

    def _give(self, policy: Policy) -> None:
        if not self._lora:
            self._reload(policy, adapters=True)
            return
        norm = frozen_norm(policy)
        if self._base is None or not math.isclose(self._base, norm, rel_tol=1e-6):
            self._reload(policy, adapters=False)
            self._base = norm
        folder, number = self._folders.write_adapters(policy, self._dtype), next(self._numbers) + 1
        self._adapter = self._vllm.lora.request.LoRARequest(f"adapters-{number}", number, str(folder))
        self._llm.llm_engine.add_lora(self._adapter)
        self._folders.keep(folder)

    def _reload(self, policy: Policy, *, adapters: bool) -> None:
        if self._spread:
            folder = self._folders.write(policy, self._dtype, adapters=adapters)
            self._llm.collective_rpc("reload_weights", kwargs={"weights_path": str(folder)})
            self._folders.keep()
        else:
            weights = in_checkpoint_format(policy, adapters=adapters)
            if needs_own_head(policy):
                weights |= own_head(policy, self._dtype)
            # one by one in the engine's dtype: vLLM warns of every other one, at every copy
            cast = ((name, w.to(self._dtype) if w.is_floating_point() else w) for name, w in weights.items())
            self._llm.collective_rpc("reload_weights", kwargs={"weights_iterator": cast})

    def run(
        self,
        asked: Sequence[Mapping[str, Any]],
        media: Sequence[Media],
        enough: Callable[[], bool] | None = None,
        *,
        seed: int = 0,
    ) -> Iterator[tuple[int, Piece]]:
        """Yield (index, response) as responses end; once ``enough`` returns True, all other responses as they are.

        Args:
            asked: as :func:`~gspo_lightning.rollouts.vllm.protocol.request_body` makes them, one response each.
            media: the pictures of their prompts.
            enough: checked after every engine step.
            seed: seed of requests without one; below 2^32.
        """
        random_state = RandomState(seed)
        engine = self._llm.llm_engine
        kind = self._vllm.sampling_params.RequestOutputKind
        places: dict[str, int] = {}
        pieces = [Piece() for _ in asked]
        try:
            for i, body in enumerate(asked):
                words = {name: value for name, value in body.items() if name not in NOT_SAMPLING}
                words["output_kind"] = kind.FINAL_ONLY if enough is None else kind.DELTA
                words["detokenize"] = bool(body["stop"])
                words |= self._flat
                name = f"{next(self._numbers)}"
                places[name] = i
                prompt, how = engine_prompt(body, media[i], self._image_processor), self._vllm.SamplingParams(**words)
                with self._own_precision():  # pictures are preprocessed here
                    engine.add_request(name, prompt, how, lora_request=self._adapter)
            while places:
                with random_state.in_use(), self._own_precision():
                    outputs = engine.step()
                for output in outputs:
                    i = places[output.request_id]
                    pieces[i].read = output.prompt_token_ids
                    _take(pieces[i], output.outputs[0])
                    if output.finished:
                        del places[output.request_id]
                        yield i, pieces[i]
                if enough is not None and enough():
                    break
            for i in places.values():
                yield i, pieces[i]
        finally:
            engine.abort_request(list(places))

    def _clean_up(self) -> None:
        if self._owns_group and torch.distributed.is_initialized():
            from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

            cleanup_dist_env_and_memory()
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folders.close()


def _take(piece: Piece, new: Any) -> None:
    piece.answer.token_ids.extend(new.token_ids)
    piece.answer.logprobs.extend(_sampled(new.logprobs, new.token_ids))
    piece.reason = str(new.finish_reason or "")


def _sampled(logprobs: Any, tokens: Sequence[int]) -> list[float]:
    """Return the log-probabilities of the sampled tokens; vLLM lists them first at each position."""
    if not hasattr(logprobs, "start_indices"):
        return [position[token].logprob for position, token in zip(logprobs, tokens, strict=True)]
    if [logprobs.token_ids[i] for i in logprobs.start_indices] != list(tokens):
        raise InfrastructureError("vLLM gave log-probabilities of other tokens than it sampled")
    return [logprobs.logprobs[i] for i in logprobs.start_indices]
