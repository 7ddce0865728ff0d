"""What ``data.deal`` costs in shared prompts: ``python -m benchmarks.dealing [--rounds N] [--output FILE]``.

Four optimizer steps on the same frozen rollouts, 4 prompts x 8 responses of equal lengths, whose rows are dealt to four
mini-batches in each way. A prompt goes through the model once in every mini-batch that has responses to it. Tokens are
counted; CPU seconds are medians over rounds in which the deals take turns (the first round is dropped), one thread.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, get_args

import torch

from benchmarks.clock import TOTAL, Phases, alternate
from benchmarks.models import MODELS, build_model, word_tokenizer
from benchmarks.ours import Groups, Ours
from benchmarks.workloads import MINI_BATCHES, Workload
from gspo_lightning.core.types import FinishReason, MiniBatch, Rollout
from gspo_lightning.policy.packing.deal import Deal

__all__ = ["measure", "tokens_of"]

CASES = ((24, 128), (512, 128), (512, 512))
"""Tokens of a prompt and of a response."""
MODEL = "1m"


def measure(prompt: int, response: int, rounds: int) -> dict[str, Any]:
    """Tokens that go through the model, and CPU seconds of each deal."""
    work = Workload(4, 8, (prompt, prompt), response, response, sigma=0.0)
    shape = MODELS[MODEL]
    first = build_model(shape, context=prompt + response)
    sides = {
        deal: Ours(copy.deepcopy(first), word_tokenizer(shape.vocabulary), work, deal=deal) for deal in get_args(Deal)
    }
    groups = _frozen(work, shape.vocabulary)
    tokens = {deal: tokens_of(side.pack(groups)) for deal, side in sides.items()}
    turns: dict[str, Callable[[], Phases]] = {deal: partial(side.train, groups) for deal, side in sides.items()}
    seconds = {
        deal: statistics.median(phases.cpu[TOTAL] for phases in found)
        for deal, found in alternate(turns, rounds).items()
    }
    return {
        "prompt_tokens": prompt, "response_tokens": response, "rounds": rounds - 1, "tokens": tokens,
        "cpu_s": {deal: round(value, 3) for deal, value in seconds.items()},
        "tokens_ratio": {deal: round(n / tokens["groups"], 3) for deal, n in tokens.items()},
        "cpu_ratio": {deal: round(value / seconds["groups"], 3) for deal, value in seconds.items()},
    }  # fmt: skip


def tokens_of(batches: Sequence[MiniBatch]) -> int:
    """That go through a packed forward pass: the distinct prompts of each micro-batch, and all responses."""
    total = 0
    for part in (part for batch in batches for part in batch.micro_batches):
        assert part.prompt_index is not None
        prompts = dict(zip(part.prompt_index.tolist(), part.prompt_lengths.tolist(), strict=True))
        total += sum(prompts.values()) + int(part.response_lengths.sum())
    return total


def _frozen(work: Workload, vocabulary: int) -> Groups:
    """Random responses with random rewards, as if they had been sampled at 1 nat a token."""
    generator = torch.Generator().manual_seed(0)

    def rollouts() -> Iterator[list[Rollout]]:
        for prompt, lengths in zip(work.make_prompts(vocabulary), work.lengths.tolist(), strict=True):
            group = [
                Rollout(
                    prompt, k, torch.randint(3, vocabulary, (n,), generator=generator), -torch.ones(n),
                    torch.ones(n, dtype=torch.bool), FinishReason.STOP, 0,
                )
                for k, n in enumerate(lengths)
            ]  # fmt: skip
            for rollout in group:
                rollout.reward = float(torch.rand((), generator=generator))
            yield group

    return list(rollouts())


def main(argv: Sequence[str]) -> int:
    """Measure every case and print a table."""
    parser = argparse.ArgumentParser("benchmarks.dealing", description=__doc__)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args(list(argv))
    torch.set_num_threads(1)
    found = [measure(prompt, response, options.rounds) for prompt, response in CASES]
    print(f"| prompt | response | deal | tokens of {MINI_BATCHES} updates | ratio | CPU s | ratio |")
    print("|---|---|---|---|---|---|---|")
    for case in found:
        for deal in get_args(Deal):
            print(
                f"| {case['prompt_tokens']} | {case['response_tokens']} | {deal} | {case['tokens'][deal]:,} "
                f"| {case['tokens_ratio'][deal]:.2f} | {case['cpu_s'][deal]:.2f} | {case['cpu_ratio'][deal]:.2f} |"
            )
    if options.output is not None:
        options.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
