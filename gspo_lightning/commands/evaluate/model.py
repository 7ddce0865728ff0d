"""Answers sampled in this process, with the sampler of training."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch

from gspo_lightning.commands.export import checkpoint_policy
from gspo_lightning.core.types import SystemPrompt
from gspo_lightning.policy.load.loading import load_policy
from gspo_lightning.policy.load.model_settings import DType, ModelSettings
from gspo_lightning.policy.load.threads import few_threads
from gspo_lightning.policy.model_checks.checks import pack_if_exact
from gspo_lightning.policy.numerics.autocast_weights import compute_dtype
from gspo_lightning.policy.policy import Policy
from gspo_lightning.rollouts import GroupedSampler
from gspo_lightning.rollouts.source import RolloutSource
from gspo_lightning.training.evaluation.answering import ROWS, SampleRequests, answers_of
from gspo_lightning.training.suites.suite import Suite
from gspo_lightning.training.suites.verdicts import Answer

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
"""Device of sampling."""


class Sampled:
    """Answers sampled from a policy in this process.

    Args:
        policy: the model to evaluate.
        described: description of the model, for the results.
        source: rollout source; None takes the sampler of training.
        system_prompt: for suites that define none.
        chat_template_kwargs: passed to the chat template for every prompt.
        context: entered around sampling (autocast).
    """

    recorded = False

    def __init__(
        self,
        policy: Policy,
        described: Mapping[str, Any],
        source: RolloutSource | None = None,
        system_prompt: SystemPrompt | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        context: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        self.policy = policy.to(DEVICE).eval()
        self._until_closed = contextlib.ExitStack()
        width = getattr(policy.model.config.get_text_config(), "hidden_size", None)
        self._until_closed.enter_context(few_threads(width, DEVICE))
        self.source = (source or GroupedSampler(max_rows=ROWS)).for_evaluation()
        self.system_prompt = system_prompt
        self.template_kwargs = dict(chat_template_kwargs or {})
        self.context = context
        self._described = dict(described)
        with context():
            pack_if_exact(self.policy, compute_dtype(self.policy))  # else every row pays for its whole prompt

    @classmethod
    def of_model(
        cls,
        name: str,
        revision: str | None = None,
        trust_remote_code: bool = False,
        source: RolloutSource | None = None,
    ) -> Sampled:
        """Load a hub id or a folder in transformers format."""
        dtype: DType = "auto" if torch.cuda.is_available() else "float32"
        settings = ModelSettings(name, dtype=dtype, revision=revision, trust_remote_code=trust_remote_code)
        return cls(load_policy(settings), {"model": name, "revision": revision}, source)

    @classmethod
    def of_checkpoint(cls, path: Path, trust_remote_code: bool = False, source: RolloutSource | None = None) -> Sampled:
        """Load a checkpoint of ``gspo fit``."""
        policy = checkpoint_policy(path, trust_remote_code=trust_remote_code)
        return cls(policy, {"checkpoint": str(path)}, source)

    def described(self) -> Mapping[str, Any]:
        """Return the description of the model."""
        return self._described

    def answer(self, suite: Suite, wanted: SampleRequests, *, several: bool) -> Iterator[Answer]:
        """Sample the wanted answers."""
        del several
        yield from answers_of(
            self.policy,
            self.source,
            suite,
            wanted,
            system_prompt=self.system_prompt,
            chat_template_kwargs=self.template_kwargs,
            context=self.context,
        )

    def close(self) -> None:
        """Close the servers and processes of the source."""
        self._until_closed.close()
        self.source.close()
