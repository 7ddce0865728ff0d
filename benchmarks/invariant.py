"""What ``model.batch_invariant: true`` costs, and what deterministic algorithms leave: one thread, CPU seconds.

``python -m benchmarks.invariant`` on the 8.9M model; ``--model FOLDER_OR_FILE`` takes a real one. Sides take turns: the
mode off, on, and off under ``torch.use_deterministic_algorithms``. Of each side's first rollouts it counts the tokens
whose log-probability, as the sampler reported it, has other bits than that of a forward pass of training.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch

from benchmarks.clock import TOTAL, Phases, alternate
from benchmarks.models import MODELS, build_model, word_tokenizer
from benchmarks.ours import Ours
from benchmarks.real_side import load
from benchmarks.result import add_output, finish
from benchmarks.workloads import WORKLOADS
from gspo_lightning.policy.numerics.batch_invariant import make_batch_invariant

PARTS = {"sampling": ("generate",), "forward": ("forward",), "backward": ("backward",), "step": (TOTAL,)}
"""Lines of the result -> phases."""
SIDES = ("off", "on", "deterministic")
CONTEXTS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "32-true": nullcontext,
    "bf16-mixed": partial(torch.autocast, "cpu", torch.bfloat16),
}


@contextmanager
def deterministic(on: bool) -> Iterator[None]:
    """PyTorch's deterministic algorithms, inside."""
    torch.use_deterministic_algorithms(on)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def make_side(name: str, given: argparse.Namespace) -> Ours:
    """Return one side, with weights of its own."""
    context = CONTEXTS[given.precision]
    if given.model in MODELS:
        shape = MODELS[given.model]
        found = build_model(shape), word_tokenizer(shape.vocabulary), WORKLOADS[given.workload]
    else:
        found = load(given)
    side = Ours(*found, max_tokens=512 if given.model not in MODELS else 16384, context=context)
    if name == "on":
        make_batch_invariant(side.policy)
    return side


def tokens_off(side: Ours) -> tuple[int, int]:
    """Return the tokens whose sampled log-probability differs from training's, and all."""
    groups = side.generate()
    for rollout in (r for group in groups for r in group):
        rollout.reward = 0.0
    off = total = 0
    for part in (part for batch in side.cut(groups) for part in batch.micro_batches):
        with side.context(), torch.no_grad():
            logprobs, _ = side.policy(part)
        assert part.behaviour_logprobs is not None
        off += int((logprobs != part.behaviour_logprobs)[part.response_mask].sum())
        total += int(part.response_mask.sum())
    return off, total


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.invariant", description=__doc__)
    parser.add_argument("--model", default="10m", help=f"{', '.join(sorted(MODELS))}, a folder or a GGUF file")
    parser.add_argument("--workload", choices=sorted(WORKLOADS), default="balanced", help="of made-up models")
    parser.add_argument("--precision", choices=list(CONTEXTS), default="32-true")
    parser.add_argument("--rounds", type=int, default=6, help="turns of each side; the first is not counted")
    add_output(parser)
    given = parser.parse_args(list(argv))
    command = f"python -m benchmarks.invariant {' '.join(argv)}".strip()
    vars(given).update(side="ours", method="adamw", prompts=4, group=8, tokens=(40, 64), updates=2)
    torch.set_num_threads(1)
    sides = {name: make_side(name, given) for name in SIDES}
    counts = {}
    for name, side in sides.items():
        with deterministic(name == "deterministic"):
            counts[name] = tokens_off(side)

    def turn(name: str) -> Phases:
        with deterministic(name == "deterministic"):
            return sides[name].step()

    rounds = alternate({name: partial(turn, name) for name in SIDES}, given.rounds)

    def seconds(name: str, part: str) -> list[float]:
        return [sum(phases.cpu[p] for p in PARTS[part]) for phases in rounds[name]]

    def ratio(name: str, part: str) -> float:
        return round(statistics.median(seconds(name, part)) / statistics.median(seconds("off", part)), 3)

    result = {
        "model": given.model if given.model in MODELS else given.model.rpartition("/")[2],
        "precision": given.precision,
        "response_tokens": sides["on"].workload.response_tokens,
        "rounds": len(rounds["off"]),
        "tokens_with_other_bits": {name: f"{off} of {total}" for name, (off, total) in counts.items()},
        "seconds_off": {part: round(statistics.median(seconds("off", part)), 3) for part in PARTS},
        "on_to_off": {part: ratio("on", part) for part in PARTS},
        "deterministic_to_off": {part: ratio("deterministic", part) for part in PARTS},
    }
    finish(result, command.replace(given.model, str(result["model"])), given.output)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
