"""What a run came to: rollouts to the goal, mean reward, and the last evaluation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gspo_lightning.commands.compare.runs import Variant
from gspo_lightning.report.read import read_run
from gspo_lightning.report.run import Run

__all__ = ["GOAL", "MEASURES", "Numbers", "finished", "read_task"]

GOAL = 0.9


@dataclass(frozen=True, slots=True)
class Numbers:
    """Of one run; ``rollouts`` is the number of responses sampled before the first evaluation at :data:`GOAL`."""

    rollouts: float | None
    reward: float
    accuracy: float


MEASURES: Mapping[str, tuple[str, Callable[[Numbers], float | None]]] = {
    "Mean reward over the run": ("{:.4f}", lambda n: n.reward),
    f"Rollouts to {GOAL:.0%} held-out accuracy": ("{:.0f}", lambda n: n.rollouts),
    "Held-out accuracy at the end": ("{:.3f}", lambda n: n.accuracy),
}


def read_task(root: Path, deals: Sequence[str], seeds: Sequence[int]) -> dict[str, dict[int, Numbers]]:
    """Deal -> seed -> numbers, of the seeds that every deal has finished."""
    there = finished(root, deals, seeds)
    return {deal: {seed: _numbers(read_run(there[deal][seed])) for seed in there[deal]} for deal in deals}


def finished(root: Path, deals: Sequence[str], seeds: Sequence[int]) -> dict[str, dict[int, Path]]:
    """Deal -> seed -> run folder, of the seeds that every deal has finished."""
    found = {deal: {s: f for s in seeds if (f := _folder(root / "runs", deal, s)) is not None} for deal in deals}
    common = [s for s in seeds if all(s in by_seed for by_seed in found.values())]
    return {deal: {s: by_seed[s] for s in common} for deal, by_seed in found.items()}


def _folder(runs: Path, name: str, seed: int) -> Path | None:
    done = sorted((runs / f"{Variant(name, ()).folder}-seed{seed}").glob("version_*/summary.json"))
    return done[-1].parent if done else None


def _numbers(run: Run) -> Numbers:
    accuracy, reward = run.get("val/accuracy"), run.get("reward/mean")
    updates = run.get("data/mini_batch")
    assert accuracy is not None, run
    assert reward is not None, run
    assert updates is not None, run
    per_iteration = int(updates.values.max()) + 1
    settings = run.config["data"]
    batch = settings["prompts_per_rollout"] * settings["group_size"]
    at = zip(accuracy.steps.tolist(), accuracy.values.tolist(), strict=True)
    reached = next((step // per_iteration * batch for step, value in at if value >= GOAL), None)
    return Numbers(reached, float(reward.values.mean()), float(accuracy.values[-1]))
