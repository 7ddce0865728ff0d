"""TRL's GRPOTrainer on a workload: its own generation, old log-probabilities, loss and backward.

What runs is ``GRPOTrainer.training_step``, which generates and scores when its buffer is spent. Left out is the loop of
transformers' Trainer around it (data loader, callbacks, logging, scheduler), to TRL's advantage.
"""

from __future__ import annotations

import importlib.metadata
import os
import tempfile
import warnings
from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import LogitsProcessor, LogitsProcessorList, PreTrainedModel, PreTrainedTokenizerBase

from benchmarks.clock import TOTAL, Phases
from benchmarks.models import EOS, PAD
from benchmarks.workloads import Workload, reward
from gspo_lightning.core.errors import UserError
from gspo_lightning.core.types import FinishReason, Prompt, Rollout

__all__ = ["TRL", "ForcedLengths", "as_batch", "as_groups", "trl_version"]


def trl_version() -> str | None:
    """The installed version, None without TRL."""
    try:
        return importlib.metadata.version("trl")
    except importlib.metadata.PackageNotFoundError:
        return None


class ForcedLengths(LogitsProcessor):
    """Ends row ``i`` of one ``generate`` call after exactly ``lengths[i]`` tokens: two writes to the scores a step."""

    def __init__(self, lengths: Tensor) -> None:
        self.ending = {int(n): (lengths == n).nonzero().squeeze(-1) for n in lengths.unique()}
        self.start: int | None = None

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Scores with the end token impossible, or certain where a row has to end."""
        if self.start is None:
            self.start = input_ids.shape[1]
        scores[:, EOS] = -torch.inf
        rows = self.ending.get(input_ids.shape[1] - self.start + 1)
        if rows is not None:
            scores[rows] = -torch.inf
            scores[rows, EOS] = 0.0
        return scores


class TRL:
    """One side of a comparison.

    Args:
        model: trained and patched in place.
        tokenizer: the model's.
        workload: prompts and scheduled lengths.
        micro_batch: rows of a forward while training; divides the rows of a mini-batch.
        cpu: False: the CUDA device.
        bf16: bf16-mixed.
        sync: waits for the device.
        peft_config: adapters, of PEFT.
        settings: more of TRL's ``GRPOConfig``.

    Attributes:
        phases: the clock of the last call.

    Raises:
        UserError: TRL is not installed.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        workload: Workload,
        *,
        micro_batch: int | None = None,
        cpu: bool = True,
        bf16: bool = False,
        sync: Callable[[], None] | None = None,
        peft_config: Any = None,
        **settings: Any,
    ) -> None:
        if trl_version() is None:
            raise UserError("trl", "is not installed, and nothing can be compared with it", fix="make bench-install")
        from datasets import Dataset
        from trl.trainer.grpo_config import GRPOConfig
        from trl.trainer.grpo_trainer import GRPOTrainer

        transformers.logging.set_verbosity_error()
        warnings.filterwarnings("ignore")
        os.environ.pop("ACCELERATE_MIXED_PRECISION", None)  # an earlier trainer of this process may have left it
        self.workload, self._sync = workload, sync
        self.prompts = workload.make_prompts(model.config.vocab_size)
        self._folder = tempfile.TemporaryDirectory(prefix="benchmark-trl-")
        rows = workload.rows // workload.mini_batches

        def rewards(completion_ids: list[list[int]], **_: Any) -> list[float]:
            return workload.rewards(completion_ids)

        self.trainer: Any = GRPOTrainer(
            model=model,
            reward_funcs=rewards,
            processing_class=tokenizer,
            train_dataset=Dataset.from_list([{"prompt": p.text} for p in self.prompts]),
            args=GRPOConfig(
                output_dir=self._folder.name,
                use_cpu=cpu,
                bf16=bf16,
                fp16=False,
                report_to=[],
                disable_tqdm=True,
                save_strategy="no",
                logging_strategy="no",
                gradient_checkpointing=settings.pop("gradient_checkpointing", False),
                learning_rate=1e-6,
                weight_decay=0.0,
                max_grad_norm=1.0,
                beta=0.0,
                loss_type="grpo",
                importance_sampling_level="sequence",
                epsilon=3e-4,
                epsilon_high=4e-4,
                router_aux_loss_coef=0.0,
                num_generations=workload.group_size,
                max_completion_length=int(workload.lengths.max()),
                per_device_train_batch_size=rows,
                gradient_accumulation_steps=1,
                steps_per_generation=workload.mini_batches,
                temperature=1.0,
                top_p=1.0,
                top_k=0,
                **settings,
            ),
            peft_config=peft_config,
        )
        model = self.trainer.model  # with adapters
        self.trainer.create_optimizer()
        self.model, self.trainer.optimizer = self.trainer.accelerator.prepare(model, self.trainer.optimizer)
        self.trainer.model_wrapped = self.model
        self.model.train()
        self._force_lengths(model)
        self.set_micro_batch(micro_batch or rows)
        self.phases = self._clock()
        self._measure()

    def _force_lengths(self, model: PreTrainedModel) -> None:
        generate, lengths = model.generate, self.workload.lengths.flatten()

        def forced(*args: Any, **kwargs: Any) -> Any:
            processors = LogitsProcessorList([ForcedLengths(lengths.to(self.trainer.accelerator.device))])
            return generate(*args, logits_processor=processors, **kwargs)

        model.generate = forced

    def _measure(self) -> None:
        trainer = self.trainer
        generate, score = trainer._generate_single_turn, trainer._get_per_token_logps_and_entropies
        backward = trainer.accelerator.backward

        def scored(*args: Any, **kwargs: Any) -> Any:
            with self.phases("forward" if torch.is_grad_enabled() else "old"):
                return score(*args, **kwargs)

        trainer._generate_single_turn = lambda *a, **k: self.phases.timed("generate", generate)(*a, **k)
        trainer._get_per_token_logps_and_entropies = scored
        trainer.accelerator.backward = lambda *a, **k: self.phases.timed("backward", backward)(*a, **k)

    def set_micro_batch(self, rows: int) -> None:
        """Train with ``rows`` rows per forward from now on."""
        pieces = self.workload.rows // self.workload.mini_batches // rows
        args = self.trainer.args
        args.per_device_train_batch_size = rows
        args.gradient_accumulation_steps = self.trainer.current_gradient_accumulation_steps = pieces
        args.steps_per_generation = self.workload.mini_batches * pieces
        self.pieces = pieces
        self.trainer._step, self.trainer._buffered_inputs = 0, None

    def _clock(self) -> Phases:
        return Phases(self._sync) if self._sync else Phases()

    @property
    def inputs(self) -> list[dict[str, Any]]:
        """What the data loader would give: every prompt G times."""
        return [{"prompt": p.text} for p in self.prompts for _ in range(self.workload.group_size)]

    def rollout(self) -> dict[str, Any]:
        """A generated, scored and padded batch: N rows, prompt by prompt."""
        self.phases = self._clock()
        with self.phases(TOTAL):
            return dict(self.trainer._generate_and_score_completions(self.inputs))

    def loss(self, batch: dict[str, Any]) -> Tensor:
        """TRL's loss of a whole batch as one mini-batch."""
        pieces = self.trainer.current_gradient_accumulation_steps
        self.trainer.current_gradient_accumulation_steps = 1
        loss: Tensor = self.trainer.compute_loss(self.model, batch)
        self.trainer.current_gradient_accumulation_steps = pieces
        return loss

    def accumulate(self, batch: dict[str, Any], rows: int) -> None:
        """Forward and backward of a batch as one mini-batch, ``rows`` rows at a time."""
        pieces = -(-len(batch["completion_ids"]) // rows)
        self.trainer.current_gradient_accumulation_steps = pieces
        cut = {k: v.split(rows) for k, v in batch.items() if v.ndim > 0}
        for i in range(pieces):
            part = {k: v[i] for k, v in cut.items()} | {k: v for k, v in batch.items() if v.ndim == 0}
            self.trainer.accelerator.backward(self.trainer.compute_loss(self.model, part))

    def step(self) -> Phases:
        """A whole rollout batch: generation, rewards, old log-probabilities, four updates."""
        return self._updates(self.inputs)

    def train(self, batch: dict[str, Any]) -> Phases:
        """Four updates on a batch of :meth:`rollout`, in the order of its rows."""
        count = self.workload.mini_batches * self.pieces
        pieces = {k: v.chunk(count) for k, v in batch.items() if v.ndim > 0}
        shared = {k: v for k, v in batch.items() if v.ndim == 0}
        self.trainer._buffered_inputs = [{k: v[i] for k, v in pieces.items()} | shared for i in range(count)]
        self.trainer._step = count  # the buffer counts as used for the count-th time: nothing is generated
        generate_every, self.trainer.num_iterations = self.trainer.num_iterations, 1 << 20
        try:
            return self._updates([])
        finally:
            self.trainer.num_iterations = generate_every

    def _updates(self, inputs: list[dict[str, Any]]) -> Phases:
        phases = self.phases = self._clock()
        trainer = self.trainer
        with phases(TOTAL):
            for _ in range(self.workload.mini_batches):
                for _ in range(self.pieces):
                    trainer.training_step(self.model, inputs, None)
                with phases("optimizer"):
                    trainer.accelerator.clip_grad_norm_(self.model.parameters(), 1.0)
                    trainer.optimizer.step()
                    trainer.optimizer.zero_grad()
        trainer._metrics["train"].clear()
        return phases


def as_groups(batch: dict[str, Any], prompts: list[Prompt], group_size: int) -> list[list[Rollout]]:
    """The rows of :meth:`TRL.rollout` as rollouts; ``logprobs`` are TRL's old ones, advantages are its own."""
    groups: list[list[Rollout]] = [[] for _ in prompts]
    for i, count in enumerate(batch["completion_mask"].sum(1).tolist()):
        ids = batch["completion_ids"][i, :count].cpu()
        groups[i // group_size].append(
            Rollout(
                prompt=prompts[i // group_size],
                sample=i % group_size,
                token_ids=ids,
                logprobs=batch["old_per_token_logps"][i, :count].cpu().float(),
                response_mask=torch.ones(count, dtype=torch.bool),
                finish_reason=FinishReason.STOP,
                policy_version=0,
                reward=reward(ids.tolist()),
                advantage=float(batch["advantages"][i]),
            )
        )
    return groups


def as_batch(groups: list[list[Rollout]]) -> dict[str, Tensor]:
    """Rollouts as TRL pads them: prompts on the left, responses on the right."""
    rows = [r for g in groups for r in g]
    prompts = [torch.tensor(r.prompt.token_ids) for r in rows]
    ones = [torch.ones_like(r.token_ids) for r in rows]
    old = [r.logprobs for r in rows if r.logprobs is not None]
    return {
        "prompt_ids": pad_sequence(prompts, True, PAD, padding_side="left"),
        "prompt_mask": pad_sequence([torch.ones_like(p) for p in prompts], True, 0, padding_side="left"),
        "completion_ids": pad_sequence([r.token_ids for r in rows], True, PAD),
        "completion_mask": pad_sequence(ones, True, 0),
        "old_per_token_logps": pad_sequence(old, True, 0.0),
        "advantages": torch.tensor([r.advantage for r in rows]),
        "num_items_in_batch": torch.tensor(sum(len(r.token_ids) for r in rows)),
    }
