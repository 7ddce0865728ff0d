"""One cell: a few iterations of the chain task, every update measured."""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from experiments.paper_in_miniature.grid import Cell
from gspo_lightning import GSPOConfig, GSPOTrainer
from gspo_lightning.core.errors import UserError
from gspo_lightning.core.randomness import Purpose, permutation, stream
from gspo_lightning.core.registry import component
from gspo_lightning.core.types import MicroBatch, MiniBatch, SamplingParams
from gspo_lightning.data.prompts import ChainTask
from gspo_lightning.data.prompts.encode import encode_prompts
from gspo_lightning.data.prompts.prompt_set import Record
from gspo_lightning.loop.metrics.sums import MetricSums
from gspo_lightning.loop.metrics.update import update_scalars
from gspo_lightning.loop.old_policy.logprobs import OldLogProbs
from gspo_lightning.loop.old_policy.snapshots import CachedLogProbs
from gspo_lightning.loop.update.router_loss import changed_routes
from gspo_lightning.policy.load.loading import load_policy
from gspo_lightning.policy.load.model_settings import ModelSettings
from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.routing import replay_word, routers_of
from gspo_lightning.rewards.exact import ExactMatch
from gspo_lightning.rollouts import Draws, GroupedSampler
from gspo_lightning.training.cold_start import ColdStart

__all__ = ["run"]

PROMPTS, GROUP, TOKENS = 32, 8, 32
PER_UPDATE = {
    "clipped": "clip/tokens",
    "ratio_std": "ratio/std",
    "log_sequence_std": "ratio/log_sequence_std",
    "kl": "kl/old_new_k3",
    "entropy": "policy/entropy",
    "changed": "moe/changed_choices",
}
"""Our word -> tag."""


class BFloat16OldLogProbs(CachedLogProbs):
    """Old log-probabilities as an engine of lower precision would report them."""

    def prepare(self, policy: Policy, batches: Sequence[MiniBatch], temperature: float) -> list[MiniBatch]:
        """See :meth:`CachedLogProbs.prepare`."""
        with torch.autocast(policy.device.type, torch.bfloat16):
            return super().prepare(policy, batches, temperature)

    def logprobs(self, batch: MicroBatch, temperature: float, current: Tensor | None = None) -> Tensor:
        """Also in the first update."""
        return super().logprobs(batch, temperature)


class Recomputed(OldLogProbs):
    """Every mini-batch gets old log-probabilities by a forward pass, the first one, too."""

    def fill(self, *args: Any, first_is_free: bool = False) -> list[MiniBatch]:
        """See :meth:`OldLogProbs.fill`."""
        return super().fill(*args, first_is_free=False)


class MeasuredTrainer(GSPOTrainer):
    """Keeps what each update showed, not only the mean of an iteration."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.updates: list[dict[str, float]] = []
        self.changed_over_iteration: list[float] = []

    def _update(self, batch: MiniBatch, sums: MetricSums) -> float:
        own = MetricSums()
        norm = super()._update(batch, own)
        scalars = update_scalars(own.reduce()[0])
        found = {word: scalars[tag] for word, tag in PER_UPDATE.items() if tag in scalars}
        self.updates.append({"gradient_norm": norm, "index": batch.index, **found})
        if self.policy.routing is not None and batch.index == self.config.minibatches - 1:
            changed = changed_routes(batch.micro_batches[0], self.policy, self.config.temperature)
            self.changed_over_iteration.append(changed)
        sums.add({name: (torch.tensor(a), torch.tensor(b)) for name, (a, b) in own.reduce()[0].items()})
        sums.add_vector("ratio", torch.tensor(own.reduce()[1]["ratio"]))
        return norm


def run(cell: Cell, declared: Mapping[str, Any], root: Path, device: str = "cpu") -> dict[str, Any]:
    """Train one cell of a declared grid; returns curves, one value per update or iteration, and accuracies."""
    start = time.perf_counter()
    trainer = _trainer(cell, declared["cold_start_steps"], declared["prompts"], root, device)
    exact, answers = ExactMatch(), {str(r["prompt"]): str(r["answer"]) for r in _records("train", declared["prompts"])}
    queries = list(answers)
    torch.set_num_threads(1)
    order = permutation(stream(cell.seed, Purpose.PROMPT_ORDER, 0), len(queries)).tolist()

    def reward(query: str, response: str) -> float:
        # a response that was cut has no answer after its "#", or is no longer than one that ended
        return exact.score(response, False, answers[query]).reward or 0.0

    accuracy = functools.partial(_accuracy, trainer.policy, declared["held_out_prompts"])
    result: dict[str, Any] = {"accuracy_before": accuracy(), "reward": [], "length": [], "tokens": [], "failed": None}
    for i in range(declared["iterations"]):
        chosen = [queries[k] for k in order[i * PROMPTS : (i + 1) * PROMPTS]]
        try:
            step = trainer.train_step(chosen, reward)
        except UserError as error:
            result["failed"] = f"iteration {i}: {error}".splitlines()[0]
            break
        result["reward"].append(step["reward/mean"])
        result["length"].append(step["response/length"])
        result["tokens"].append(step["data/tokens_per_update"] * cell.mini_batches)
    result["accuracy_after"] = accuracy()
    result["updates"] = {k: [u[k] for u in trainer.updates] for k in (trainer.updates or [{}])[0]}
    result["changed_over_iteration"] = trainer.changed_over_iteration
    return _rounded(result) | {"seconds": round(time.perf_counter() - start, 1)}


def _trainer(cell: Cell, steps: int, size: int, root: Path, device: str) -> MeasuredTrainer:
    policy = load_policy(_start(cell.model, steps, size, root))
    config = GSPOConfig(
        learning_rate=cell.learning_rate, group_size=GROUP, max_response_tokens=TOKENS, max_prompt_tokens=16,
        minibatches=cell.mini_batches, seed=cell.seed, device=device, max_tokens_per_micro_batch=8192,
    )  # fmt: skip
    trainer = MeasuredTrainer(policy.model, policy.tokenizer, config)
    given = dict(cell.settings)
    if (advantages := given.pop("advantages", None)) is not None:
        trainer.advantages = component("advantages", advantages)()
    if given.pop("old_logprobs", None) == "bfloat16":
        trainer.old_policy = BFloat16OldLogProbs()
    replay = replay_word(given.pop("routing_replay", "off"))
    trainer.policy.routing = routers_of(trainer.policy.backbone, replay, None)
    trainer.objective = component("objectives", given.pop("objective"))(**given)
    trainer.old_logprobs = Recomputed("recompute", trainer.objective)
    return trainer


@functools.cache
def _start(model: str, steps: int, size: int, root: Path) -> ModelSettings:
    """As in the quickstart."""
    start = ColdStart(ChainTask(split="cold_start", size=size), steps=steps)
    return start.ensure(ModelSettings(model, seed=1), root)


@functools.cache
def _records(split: str, size: int) -> list[Record]:
    return list(ChainTask(split=split, size=size).records())  # type: ignore[arg-type]


@torch.no_grad()
def _accuracy(policy: Policy, held_out: int) -> float:
    """Share of held-out prompts that are answered right, greedily."""
    records = _records("held_out", 512)[:held_out]
    prompts = encode_prompts(records, policy.tokenizer, max_prompt_tokens=16, field="held_out")
    training = policy.training
    policy.eval()
    groups = GroupedSampler().generate(
        policy, prompts, group_size=1, draws=Draws.of(0, Purpose.EVAL_SAMPLING, 0),
        sampling=SamplingParams(TOKENS, temperature=0.0, stop_token_ids=policy.eos_token_ids),
    )  # fmt: skip
    policy.train(training)
    exact = ExactMatch()
    first = [group[0] for group in groups]
    right = [exact.score(r.text, r.truncated, r.prompt.columns["answer"]).reward or 0.0 for r in first]
    return sum(right) / len(right)


def _rounded(value: Any) -> Any:
    """Five significant digits: enough for tables, small in a file."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, Mapping):
        return {k: _rounded(v) for k, v in value.items()}
    return [_rounded(v) for v in value] if isinstance(value, list) else value
