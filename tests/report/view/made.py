"""Run folders made by hand: for what a real run is too small, too large or too well-behaved to show."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gspo_lightning.report.scalars import SCALARS
from gspo_lightning.report.tokens import TOKENS


def row(iteration: int, prompt_id: int = 1, sample: int = 0, **more: Any) -> dict[str, Any]:
    """Return a line of the recorded tokens."""
    return {
        "update": 4 * iteration + 2, "mini_batch": 1, "iteration": iteration, "choice": "any", "prompt_id": prompt_id,
        "sample": sample, "prompt": f"prompt {prompt_id}", "answer": "1", "completion": f"answer {sample}",
        "reward": 0.0, "parts": {"correct": 0.0}, "finish": "stop", "age": 0, "length": 3, "log_s": 0.001, "clip": 0,
        "clipped": 0.0, "advantage": 1.0, "band": [0.0003, 0.0004],
        "tokens": {"text": ["a", "b", "c"], "log_ratio": [0.003, -0.001, 0.001], "entropy": [0.1, 0.2, 0.3]},
    } | more  # fmt: skip


def make_run(
    folder: Path,
    rows: Iterable[Mapping[str, Any]] = (),
    *,
    scalars: Mapping[str, Sequence[float]] | None = None,
    evaluations: Sequence[float] = (),
    config: Mapping[str, Any] | None = None,
    answers: Iterable[Mapping[str, Any]] = (),
) -> Path:
    """Write the files of a run: tag -> a value per update, and held-out accuracies every tenth of the run."""
    folder.mkdir(parents=True, exist_ok=True)
    curves = {"reward/mean": [0.5] * 40} if scalars is None else scalars
    count = max(len(values) for values in curves.values())
    curves = {
        "data/iteration": [i // 4 for i in range(count)],
        "data/mini_batch": [i % 4 for i in range(count)],
        **curves,
    }
    with open(folder / SCALARS, "w") as file:
        file.write(json.dumps({"table": 0, "tags": list(curves)}) + "\n")
        for i in range(count):
            file.write(json.dumps([0, i + 1, 1.7e9 + i, *(values[i] for values in curves.values())]) + "\n")
        if evaluations:
            file.write(json.dumps({"table": 1, "tags": ["val/accuracy", "val/accuracy_standard_error"]}) + "\n")
            for i, accuracy in enumerate(evaluations):
                file.write(json.dumps([1, i * count // max(1, len(evaluations) - 1), 1.7e9 + i, accuracy, 0.02]) + "\n")
    (folder / "config.yaml").write_text(json.dumps(config if config is not None else {"seed_everything": 1}))
    lines = "".join(json.dumps(line) + "\n" for line in rows)
    if lines:
        (folder / TOKENS).write_text(lines)
    (folder / "held_out_answers.jsonl").write_text("".join(json.dumps(line) + "\n" for line in answers))
    (folder / "summary.json").write_text(
        json.dumps({"objective": "GSPO", "model": "tiny", "updates": count, "seed": 1})
    )
    return folder
