"""The quickstart with every objective, several seeds, one table: ``python -m experiments.objective_family``.

Same prompts, same cold start and same settings for all; nothing is tuned per objective, so the table says how each one
does with the quickstart's learning rate and its own defaults, not which one is best. Objectives that learn badly are in
the table like the others.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gspo_lightning.cli import main as gspo
from gspo_lightning.core.registry import components
from gspo_lightning.resume.changes import versions

EXTRA = {"DrGRPO": ["--model.objective.max_response_tokens=32"]}
"""Arguments without a default."""
ADVANTAGES = {"PPO": "BatchNormalised", "REINFORCE": "LeaveOneOut", "DrGRPO": "GroupMean"}
"""The advantages an objective's own paper uses, where they are not the group's mean and standard deviation."""


def run(objective: str, seed: int, root: Path, iterations: int) -> dict[str, Any]:
    """One quickstart; returns its summary."""
    name = root / f"{objective}-{seed}"
    config = name.with_suffix(".yaml")
    config.write_text(Path("configs/quickstart.yaml").read_text())
    argv = [
        "fit", f"--config={config}", f"--trainer.default_root_dir={root}", f"--seed_everything={seed}",
        f"--trainer.max_epochs={iterations}", "--trainer.enable_progress_bar=false", f"--model.objective={objective}",
        "--data.deal=groups",
        *EXTRA.get(objective, []),
        *([f"--data.advantages={ADVANTAGES[objective]}"] if objective in ADVANTAGES else []),
    ]  # fmt: skip
    assert gspo(argv) == 0, argv
    summary: dict[str, Any] = json.loads(max(name.glob("version_*/summary.json")).read_text())
    return summary


def table(results: dict[str, list[dict[str, Any]]], seeds: Sequence[int], iterations: int) -> str:
    """Markdown: an accuracy per seed, the clipped share of tokens, the settings."""
    before = [results[next(iter(results))][i]["accuracy_before"] for i in range(len(seeds))]
    lines = [
        "# The quickstart with every objective",
        "",
        "`python -m experiments.objective_family`: held-out greedy accuracy (512 prompts) after "
        f"{iterations} iterations, one column a seed. Same prompts, cold start (accuracy before: "
        f"{', '.join(f'{b:.3f}' for b in before)}), learning rate 2e-4, 4 mini-batches of whole groups; each "
        "objective with its own defaults, nothing tuned. It shows that each one trains, not which is best: at this "
        "size and this mild regime nothing collapses.",
        "",
        "| objective | advantages | "
        + " | ".join(f"seed {s}" for s in seeds)
        + " | mean | tokens clipped | settings |",
        "|---|---|" + "---|" * (len(seeds) + 3),
    ]
    for name, runs in results.items():
        after = [r["accuracy_after"] for r in runs]
        clipped = [r["clip_fraction_tokens"] for r in runs if r["clip_fraction_tokens"] is not None]
        share = f"{statistics.mean(clipped):.4f}" if clipped else "no clipping"
        cells = " | ".join(f"{a:.3f}" for a in after)
        settings = runs[0]["objective_settings"]
        kind = ADVANTAGES.get(name, "GroupNormalised")
        lines.append(f"| {name} | {kind} | {cells} | {statistics.mean(after):.3f} | {share} | `{settings}` |")
    found = ", ".join(f"{k} {v}" for k, v in versions().items())
    return "\n".join([*lines, "", f"Versions: {found}. One CPU thread.", ""])


def main(argv: Sequence[str]) -> int:
    """Run the family and write the table."""
    parser = argparse.ArgumentParser("experiments.objective_family", description=__doc__)
    parser.add_argument("--objectives", nargs="*", default=None, help="names; default: all")
    parser.add_argument("--seeds", nargs="*", type=int, default=[1, 2, 3])
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--root", type=Path, default=Path("runs/objective_family"))
    parser.add_argument("--output", type=Path, default=Path("experiments/objective_family.md"))
    options = parser.parse_args(list(argv))
    options.root.mkdir(parents=True, exist_ok=True)
    results: dict[str, list[dict[str, Any]]] = {}
    for name in options.objectives or components("objectives"):
        results[name] = [run(name, seed, options.root, options.iterations) for seed in options.seeds]
        options.output.write_text(table(results, options.seeds, options.iterations))
    print(f"written: {options.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
