"""``python -m experiments.smollm2.bfloat16``: which sequences bfloat16 alone puts outside of GSPO's clip range.

An iteration of configs/smollm2.yaml: responses are sampled and scored, and one update is made in float32 on the first
mini-batch. The ratios of the second mini-batch's sequences, with the weights before and after, are then computed three
times: in float64, in float32 and in bf16-mixed, each on one code path for both weights. Prints a table in Markdown.
``--rounded`` begins with the model's weights rounded to bfloat16, as those of most checkpoints are.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gspo_lightning.core.parsing import load_yaml
from gspo_lightning.core.randomness import Purpose
from gspo_lightning.core.types import MiniBatch, SamplingParams
from gspo_lightning.data.prompts import WordProblems
from gspo_lightning.data.prompts.encode import encode_prompts
from gspo_lightning.loop.advantages.assign import assign_advantages
from gspo_lightning.loop.advantages.shaping import Shaping
from gspo_lightning.loop.advantages.within_groups import GroupNormalised
from gspo_lightning.loop.metrics.sums import MetricSums
from gspo_lightning.loop.old_policy.snapshots import CachedLogProbs
from gspo_lightning.loop.update.loss import LossTerms, micro_batch_loss, mini_batch_count
from gspo_lightning.objectives import GSPO
from gspo_lightning.policy.load.loading import load_policy
from gspo_lightning.policy.load.model_settings import ModelSettings
from gspo_lightning.policy.model_checks.checks import choose_layout
from gspo_lightning.policy.packing.deal import DEFAULT_DEAL
from gspo_lightning.policy.packing.rollout_batch import RolloutBatch
from gspo_lightning.policy.policy import Policy
from gspo_lightning.rewards import MathVerifier
from gspo_lightning.rollouts import Draws, GroupedSampler
from tools.real_model import model_file

CONFIG = Path(__file__).parents[2] / "configs" / "smollm2.yaml"
RATES = (2e-5, 1e-6)
"""Learning rates: that of the config, and the usual one of large models."""
PATHS = ("float64", "float32", "bf16-mixed")
OBJECTIVE = GSPO()


@dataclass(frozen=True, slots=True)
class Count:
    """Sequences beside the clip range, by float64 and by another precision."""

    sequences: int
    outside: int
    """In the other precision."""
    exact_outside: int
    wrongly_outside: int
    """Outside in the other precision, inside in float64."""
    wrongly_inside: int
    spread: float
    """Root mean square of log s_i in float64, nats per token."""
    error: float
    """Root mean square of the difference from float64, nats per token."""


def outside(log_ratios: Tensor) -> Tensor:
    """Return which sequence log-ratios [N] lie outside of GSPO's clip range, on either side.

    >>> outside(torch.tensor([3.9e-4, 4.1e-4, -2.9e-4, -3.1e-4], dtype=torch.float64)).tolist()
    [False, True, False, True]
    """
    ratios = log_ratios.double().exp()
    return (ratios < 1 - OBJECTIVE.clip_low) | (ratios > 1 + OBJECTIVE.clip_high)


def compare(exact: Tensor, other: Tensor) -> Count:
    """Count sequences by log-ratios [N] in float64 and in another precision.

    >>> found = compare(torch.tensor([1e-4, 5e-4, 0.0]).double(), torch.tensor([6e-4, 5e-4, 0.0]).double())
    >>> found.outside, found.exact_outside, found.wrongly_outside, found.wrongly_inside
    (2, 1, 1, 0)
    """
    here, there = outside(exact), outside(other)
    return Count(
        len(exact), int(there.sum()), int(here.sum()), int((there & ~here).sum()), int((here & ~there).sum()),
        float(exact.square().mean().sqrt()), float((other - exact).square().mean().sqrt()),
    )  # fmt: skip


class Iteration:
    """Sampled, scored and dealt responses of an iteration, and the policy that sampled them.

    Args:
        model: GGUF file, folder or name.
        prompts: number of prompts.
        group: responses to each.
        seed: of the problems and the draws.
        config: settings of the run.
        rounded: True rounds the weights to bfloat16 first.
    """

    def __init__(
        self, model: str, prompts: int, group: int, seed: int, config: Mapping[str, Any], rounded: bool = False
    ) -> None:
        data = config["data"]
        self.temperature = float(data["temperature"])
        self.policy = load_policy(ModelSettings(model))
        if rounded:
            with torch.no_grad():
                for weight in self.policy.model.parameters():
                    weight.copy_(weight.bfloat16())
        choose_layout(self.policy, "auto", data["max_prompt_tokens"] + data["max_response_tokens"])
        problems = encode_prompts(
            WordProblems("train", prompts, seed).records(), self.policy.tokenizer,
            max_prompt_tokens=data["max_prompt_tokens"], system_prompt=data["system_prompt"],
        )  # fmt: skip
        sampling = SamplingParams(
            data["max_response_tokens"], temperature=self.temperature, stop_token_ids=self.policy.eos_token_ids
        )
        self.policy.eval()
        groups = GroupedSampler().generate(
            self.policy, problems, group_size=group, sampling=sampling,
            draws=Draws.of(seed, Purpose.TRAIN_SAMPLING, 0),
        )  # fmt: skip
        self.policy.train()
        judge = MathVerifier(answer_type="integer")
        for rollout in (r for members in groups for r in members):
            rollout.reward = float(judge.score(rollout.text, rollout.prompt.columns["answer"]).reward or 0.0)
        assign_advantages(groups, GroupNormalised(), Shaping(), self.policy.device)
        self.first, self.second = RolloutBatch.of(
            groups, mini_batches=2, max_tokens=data["max_tokens_per_micro_batch"], packed=self.policy.packed,
            shares_prefix=self.policy.shares_prefix, deal=DEFAULT_DEAL,
        ).mini_batches  # fmt: skip

    def update(self, rate: float) -> None:
        """Make one update on the first mini-batch, in float32, as a run with AdamW does."""
        optimizer = torch.optim.AdamW(self.policy.parameters(), lr=rate, weight_decay=0.0)
        terms = LossTerms(self.policy, CachedLogProbs(), OBJECTIVE, self.temperature)
        denominator = mini_batch_count(OBJECTIVE, self.first.micro_batches)
        for part in self.first.micro_batches:
            micro_batch_loss(part, terms, denominator=denominator, sums=MetricSums(), on_policy=True).backward()
        nn.utils.clip_grad_norm_(self.policy.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def logprobs(self) -> dict[str, list[Tensor]]:
        """Return the log-probabilities of each micro-batch of the second mini-batch, by precision."""
        found = {name: evaluated(self.policy, self.second, self.temperature, name) for name in PATHS[1:]}
        found["float64"] = evaluated(in_float64(self.policy), self.second, self.temperature, "float64")
        return found


@torch.no_grad()
def evaluated(policy: Policy, batch: MiniBatch, temperature: float, precision: str) -> list[Tensor]:
    """Return log-probabilities [N, T] of each micro-batch, in float64."""
    context: AbstractContextManager[Any] = nullcontext()
    if precision == "bf16-mixed":
        context = torch.autocast("cpu", torch.bfloat16, cache_enabled=False)
    with context:
        return [policy(part, temperature)[0].double() for part in batch.micro_batches]


def in_float64(policy: Policy) -> Policy:
    """Return a copy in float64, norms included, which transformers computes in float32."""
    twin = policy.frozen_copy().double()
    for module in twin.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = _Norm(module)
    return twin.train(policy.training)


class _Norm:
    def __init__(self, module: Any) -> None:
        self.weight, self.eps = module.weight, module.variance_epsilon

    def __call__(self, x: Tensor) -> Tensor:
        return nn.functional.rms_norm(x, self.weight.shape, self.weight, self.eps)


def log_ratios(batch: MiniBatch, new: Sequence[Tensor], old: Sequence[Tensor]) -> Tensor:
    """Return log s_i [N] of all sequences of a mini-batch that have a token."""
    found = []
    for part, after, before in zip(batch.micro_batches, new, old, strict=True):
        lengths = part.response_mask.sum(-1)
        summed = torch.where(part.response_mask, after - before, 0.0).sum(-1)
        found.append((summed / lengths.clamp(min=1))[lengths > 0])
    return torch.cat(found)


Counts = dict[str, dict[str, Count]]
"""Learning rate -> precision -> its count."""


def measure(
    model: str, prompts: int, group: int, seeds: Sequence[int], rounded: bool = False
) -> Iterator[tuple[int, Counts]]:
    """Yield a seed and the counts of all seeds up to it."""
    config = load_yaml(CONFIG.read_text(encoding="utf-8"))
    ratios: dict[str, dict[str, list[Tensor]]] = {}
    for seed in seeds:
        iteration = Iteration(model, prompts, group, seed, config, rounded)
        start = {name: weight.clone() for name, weight in iteration.policy.model.state_dict().items()}
        before = iteration.logprobs()
        for rate in RATES:
            iteration.policy.model.load_state_dict(start)
            iteration.update(rate)
            after = iteration.logprobs()
            parts = ratios.setdefault(f"{rate:g}", {name: [] for name in PATHS})
            for name in PATHS:
                parts[name].append(log_ratios(iteration.second, after[name], before[name]))
        yield seed, {name: counts(by) for name, by in ratios.items()}


def counts(ratios: Mapping[str, Sequence[Tensor]]) -> dict[str, Count]:
    """Return the count of each precision beside float64, of log-ratios [N] by precision, one tensor a seed."""
    together = {name: torch.cat(list(parts)) for name, parts in ratios.items()}
    return {name: compare(together["float64"], together[name]) for name in PATHS[1:]}


def table(counts: Mapping[str, Mapping[str, Count]]) -> str:
    """Return the counts as Markdown."""
    lines = [
        "| learning rate | precision | sequences | outside in float64 | outside | of these inside in float64 "
        "| inside, but outside in float64 | rms of log s_i in float64 | rms error |",
        "|" + "---|" * 9,
    ]
    for rate, by in counts.items():
        for name, c in by.items():
            share = f"{c.wrongly_outside / c.outside:.0%}" if c.outside else "-"
            lines.append(
                f"| {rate} | {name} | {c.sequences} | {c.exact_outside} | {c.outside} | {c.wrongly_outside} ({share}) "
                f"| {c.wrongly_inside} | {c.spread:.1e} | {c.error:.1e} |"
            )
    return "\n".join(lines)


def main(argv: Sequence[str]) -> int:
    """Measure and print the table; write the numbers after every seed: an interruption costs only the rest."""
    parser = argparse.ArgumentParser("python -m experiments.smollm2.bfloat16", description=__doc__)
    parser.add_argument("--model", help="GGUF file, folder or name; default: what make real-model has fetched")
    parser.add_argument("--prompts", type=int, default=18)
    parser.add_argument("--group", type=int, default=8, help="responses to a prompt")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--rounded", action="store_true", help="begin with weights that are bfloat16 numbers")
    parser.add_argument("--output", type=Path, help="JSON file")
    given = parser.parse_args(argv)
    total: Counts = {}
    model = given.model or str(model_file())
    for seed, total in measure(model, given.prompts, given.group, given.seeds, given.rounded):
        if given.output is not None:
            plain = {rate: {name: asdict(count) for name, count in by.items()} for rate, by in total.items()}
            seeds = given.seeds[: given.seeds.index(seed) + 1]
            given.output.write_text(json.dumps({"seeds": seeds, "counts": plain}, indent=1) + "\n")
    print(table(total))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
