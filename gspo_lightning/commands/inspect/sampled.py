"""Answer requests with a policy in this process: concurrent requests are sampled together."""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakValueDictionary

import torch

from gspo_lightning.commands.evaluate.model import Sampled
from gspo_lightning.commands.inspect.request import Choice, Numbers, Request, Response, Stop
from gspo_lightning.core.errors import UserError
from gspo_lightning.core.randomness import Purpose
from gspo_lightning.core.registry import component
from gspo_lightning.core.thinking import OPENING, OPENS, unfinished_thought
from gspo_lightning.core.types import Prompt, Rollout, SamplingParams
from gspo_lightning.data.prompts.dialogue import Dialogue
from gspo_lightning.policy.kernels.thread_state import on_device
from gspo_lightning.policy.policy import Policy
from gspo_lightning.resume.find import checkpoint_at
from gspo_lightning.rollouts import Draws
from gspo_lightning.rollouts.source import RolloutSource
from gspo_lightning.rollouts.verify import verify_decoding

_QUIET_S = 0.03
"""Seconds without a further request after which a batch begins."""
_MOST = 512
"""Most requests in a batch; the source decides how many of them are decoded at a time."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    request: Request
    prompt: Prompt
    future: Future[Response]


class InProcess:
    """Backend with a policy and a rollout source; a thread samples waiting requests in batches.

    Args:
        name: a checkpoint of ``gspo fit``, a run folder, a folder in transformers' format, a GGUF file, or a hub id.
        source: name of a rollout source; None takes the sampler of training.
        revision: branch, tag or commit of a hub id.
        trust_remote_code: run Python code from the model's repository.

    Raises:
        UserError: there is no such model or source.
    """

    def __init__(
        self, name: str, source: str | None = None, revision: str | None = None, trust_remote_code: bool = False
    ) -> None:
        rollouts: RolloutSource | None = None if source is None else component("rollouts", source)()
        model = _loaded(name, revision, trust_remote_code, rollouts)
        self.name = name
        self.policy = model.policy
        self.source = model.source
        self.batches: list[int] = []
        """Number of requests in each batch so far."""
        self._dialogue = Dialogue(self.policy.tokenizer, field="gspo/")
        self._numbers = Numbers()
        self._longest = 0
        """Longest row that the source is open for."""
        self._queue: queue.Queue[_Waiting] = queue.Queue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        """Sampling thread; None while no request waits."""

    def ask(self, request: Request) -> Future[Response]:
        """Queue a request for the sampling thread."""
        messages = [{"role": role, "content": text} for role, text in request.messages]
        future: Future[Response] = Future()
        try:
            prompt = Prompt(self._numbers.next(request.messages), "", tuple(self._dialogue.opening(messages)))
        except UserError as error:
            future.set_exception(error)
            return future
        with self._lock:
            self._queue.put(_Waiting(request, prompt, future))
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="gspo-inspect", daemon=True)
                self._thread.start()
        return future

    def close(self) -> None:
        """Wait for the sampling thread and close the source."""
        thread = self._thread  # which sets it to None when it ends
        if thread is not None:
            thread.join()
        self.source.close()

    # sampling thread ---------------------------------------------------------------------------------------------

    def _work(self) -> None:
        """Answer batches until none waits; the requests of a batch that are sampled alike are sampled together."""
        while batch := self._batch():
            alike: dict[tuple[SamplingParams, int, int], list[_Waiting]] = {}
            for waiting in batch:
                if not waiting.future.set_running_or_notify_cancel():
                    continue
                token_budget = self._token_budget(waiting.prompt)
                if token_budget < 1:
                    choice = Choice("", 0, "model_length")
                    waiting.future.set_result(Response((choice,), len(waiting.prompt.token_ids)))
                    continue
                request = waiting.request
                key = (self._sampling(request, token_budget), request.seed, request.choices)
                alike.setdefault(key, []).append(waiting)
            for (sampling, seed, choices), requests in alike.items():
                self._answer(requests, sampling, seed, choices)

    def _batch(self) -> list[_Waiting]:
        """Collect requests that arrive soon after each other; an empty batch ends the thread."""
        batch: list[_Waiting] = []
        while len(batch) < _MOST:
            try:
                batch.append(self._queue.get(timeout=_QUIET_S))
            except queue.Empty:
                if batch:
                    break
                with self._lock:
                    if self._queue.empty():
                        self._thread = None
                        break
        return batch

    def _token_budget(self, prompt: Prompt) -> int:
        """Return the number of tokens that the model's positions leave for an answer."""
        limits = self.policy.model.config.get_text_config()
        return int(getattr(limits, "max_position_embeddings", 0) or 1 << 40) - len(prompt.token_ids)

    def _sampling(self, request: Request, token_budget: int) -> SamplingParams:
        return SamplingParams(
            min(token_budget, request.max_tokens),
            1.0 if request.temperature is None else request.temperature,
            1.0 if request.top_p is None else request.top_p,
            request.top_k or 0,
            stop_token_ids=self.policy.eos_token_ids,
            stop_strings=request.stop,
        )

    def _answer(self, requests: Sequence[_Waiting], sampling: SamplingParams, seed: int, choices: int) -> None:
        prompts = [waiting.prompt for waiting in requests]
        longest = max(len(prompt.token_ids) for prompt in prompts)
        try:
            draws = Draws.of(seed, Purpose.EVAL_SAMPLING, 0)
            with torch.no_grad(), on_device(self.policy.device):
                self._open(longest + sampling.max_response_tokens, sampling)
                groups = self.source.generate(self.policy, prompts, group_size=choices, sampling=sampling, draws=draws)
        except BaseException as error:
            for waiting in requests:
                waiting.future.set_exception(error)
            return
        self.batches.append(len(requests))
        for waiting, group in zip(requests, groups, strict=True):
            answers = tuple(self._choice(waiting.request, rollout) for rollout in group)
            waiting.future.set_result(Response(answers, len(waiting.prompt.token_ids)))

    def _open(self, longest: int, sampling: SamplingParams) -> None:
        if longest <= self._longest:
            return
        self.source.open(longest)
        verify_decoding(self.policy, self.source, temperature=sampling.temperature or 1.0, longest=longest)
        if self._longest == 0:
            self.source.sync_weights(self.policy, 0)
        self._longest = longest

    def _choice(self, request: Request, rollout: Rollout) -> Choice:
        text = rollout.text
        if not OPENS.search(text) and unfinished_thought(self.policy.tokenizer, rollout):
            text = f"{OPENING}\n{text}"  # scorers see the completion alone
        for stop in request.stop:
            position = text.find(stop)
            if position >= 0:
                text = text[:position]
        reason: Stop = "stop"
        if rollout.truncated:
            reason = "max_tokens" if rollout.length >= request.max_tokens else "model_length"
        logprobs = None
        if request.logprobs and rollout.logprobs is not None:
            tokens = [self.policy.tokenizer.decode([token]) for token in rollout.token_ids.tolist()]
            logprobs = tuple(zip(tokens, rollout.logprobs.tolist(), strict=True))
        return Choice(text, rollout.length, reason, logprobs)


_POLICIES: WeakValueDictionary[tuple[object, ...], Policy] = WeakValueDictionary()
"""Policies in use: Inspect makes a model once for its name and once more for the settings of a task."""


def _loaded(name: str, revision: str | None, trust_remote_code: bool, source: RolloutSource | None) -> Sampled:
    path = checkpoint_at(Path(name), "gspo/")
    key = (str(path), path.stat().st_mtime_ns if path.exists() else 0, revision, trust_remote_code)
    policy = _POLICIES.get(key)
    if policy is not None:
        return Sampled(policy, {}, source)
    if path.suffix == ".ckpt" or (path.is_file() and path.suffix.lower() != ".gguf"):
        sampled = Sampled.of_checkpoint(path, trust_remote_code, source)
    else:
        sampled = Sampled.of_model(name, revision, trust_remote_code, source)
    _POLICIES[key] = sampled.policy
    return sampled
