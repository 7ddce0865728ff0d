"""``python -m experiments.smollm2.rejection EVALUATION demos.jsonl [SEED]``: right answers as demonstrations.

Rejection sampling: the untrained model answers the training problems (train.yaml), and a supervised cold start learns
the answers that the reward accepts (rejection.yaml). Samples, updates and trained tokens are as many as in a run of
GSPO. SEED is that of the problems, if train.yaml has been changed to have one.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from gspo_lightning.data.prompts import WordProblems


def main(argv: Sequence[str]) -> int:
    """Write the right answers of an evaluation with train.yaml that end, and print how many they are."""
    evaluation, output = map(Path, argv[:2])
    seed = int(argv[2]) if len(argv) > 2 else 0
    lines = [json.loads(line) for line in (evaluation / "samples.jsonl").read_text(encoding="utf-8").splitlines()]
    records = WordProblems("train", max(int(line["id"]) for line in lines), seed).records()
    right = [line for line in lines if line["value"] == 1 and not line["truncated"]]
    demonstrations = [
        {"prompt": str(records[int(line["id"]) - 1]["prompt"]), "completion": str(line["completion"])} for line in right
    ]
    output.write_text("".join(json.dumps(one) + "\n" for one in demonstrations), encoding="utf-8")
    print(f"{len(demonstrations)} of {len(lines)} answers are right")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
