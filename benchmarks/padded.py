"""What a token costs the decoder for families whose rows are padded: ``python -m benchmarks.padded``.

The last tokens of rows of 512, 2,048 and 4,096 tokens are decoded, one thread, three ways in turn: with the cache that
grows in place, with transformers' own, which copies itself for every token, and by the decoder that shares prompts
(which reads the prompt once for all rows, so that its figure is for a long prompt).
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch
from transformers import DynamicCache

from benchmarks.models import MODELS, build_model, word_tokenizer
from gspo_lightning.policy.policy import Policy
from gspo_lightning.rollouts.sampler.decoding import Decoder, PaddedDecoder, SharedDecoder

STEPS = 128
LENGTHS = (512, 2048, 4096)
Make = Callable[[Policy], Decoder]


class ByCat(PaddedDecoder):
    """With transformers' cache."""

    def new_cache(self) -> DynamicCache:
        """Return a cache that grows with every token."""
        return DynamicCache(config=self.policy.model.config)


SIDES: dict[str, Make] = {"in place": PaddedDecoder, "by cat": ByCat, "shared": SharedDecoder}


@torch.inference_mode()
def microseconds(policy: Policy, make: Make, rows: int, length: int) -> float:
    """CPU time of a row's token, over the last ones of ``length``; moving the cache to a larger place included."""
    decoder = make(policy)
    decoder.add([[3 + t % 500 for t in range(length - STEPS)]], [rows])
    tokens = torch.arange(rows) % 500 + 3
    begun = time.process_time()
    for position in range(length - STEPS, length):
        decoder.step(tokens, torch.full((rows,), position))
    return 1e6 * (time.process_time() - begun) / (rows * STEPS)


def main() -> None:
    """Medians of paired rounds, as one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    policy = Policy(build_model(MODELS["1m"]), word_tokenizer(MODELS["1m"].vocabulary)).eval()
    for length in options.lengths:
        found: dict[str, list[float]] = {name: [] for name in SIDES}
        for turn in range(options.rounds):
            for name in list(SIDES)[:: 1 if turn % 2 == 0 else -1]:
                found[name].append(microseconds(policy, SIDES[name], options.rows, length))
        medians = {name: round(statistics.median(values), 1) for name, values in found.items()}
        ratio = statistics.median(a / b for a, b in zip(found["by cat"], found["in place"], strict=True))
        print(json.dumps({"tokens": length, "us per token": medians, "by cat / in place": round(ratio, 2)}), flush=True)


if __name__ == "__main__":
    main()
