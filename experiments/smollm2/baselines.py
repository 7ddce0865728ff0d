"""``python -m experiments.smollm2.baselines runs/baselines``: leave-one-out beside the group's mean, and 60 updates.

Makes the steps that are missing, one after the other: runs of 20 updates with ``LeaveOneOut`` and ``GroupMean`` in
groups of 4, their evaluations, and the same ``GroupMean`` runs up to 60 updates. A step that was cut off goes on from
its last checkpoint, by the same command. ``--minutes 30`` begins no further step after half an hour.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gspo_lightning.cli import main as gspo
from tools.real_model import model_file

HOME = Path(__file__).parent
CONFIGS = ("--config=smollm2", f"--config={HOME / 'baselines.yaml'}")
SUITE = HOME / "held_out_192.yaml"
ARMS = ("LeaveOneOut", "GroupMean")
LONG = "GroupMean"
"""The arm whose runs go on to 60 updates."""
FIRST_ITERATIONS, SHORT_ITERATIONS, LONG_ITERATIONS = 2, 10, 30
"""Of two updates each; the first ones of seed 1 already say whether the arms differ by a factor only."""
ORDER: tuple[tuple[tuple[str, ...], int], ...] = ((ARMS, 1), (ARMS, 2), ((), 1), (ARMS, 3), ((), 2), ((), 3))
"""Arms of 20 updates, or none for 60 updates, and the seed: first what a machine that is busy should not leave out."""


@dataclass(frozen=True, slots=True)
class Step:
    """A training to some iteration, or the evaluation of what it gave.

    Args:
        arm: name of the advantages; empty for the untrained model.
        seed: of the run.
        iterations: that the run then has.
        evaluates: False trains.
    """

    arm: str
    seed: int
    iterations: int
    evaluates: bool

    @property
    def run(self) -> str:
        """Folder of the run, below the root."""
        return f"{self.arm}-seed{self.seed}" if self.arm else "untrained"

    @property
    def result(self) -> str:
        """Name of what the step trains or evaluates: the run after so many updates."""
        return f"{self.run}-{2 * self.iterations}"

    @property
    def name(self) -> str:
        """Key of the step in done.json, and folder of its evaluation."""
        return f"{self.result}-{'evaluate' if self.evaluates else 'fit'}"


def steps() -> Iterator[Step]:
    """Yield all steps, in the order in which they are made."""
    yield from (Step(arm, 1, FIRST_ITERATIONS, False) for arm in ARMS)
    for number, (arms, seed) in enumerate(ORDER):
        iterations = SHORT_ITERATIONS if arms else LONG_ITERATIONS
        for evaluates in (False, True):
            yield from (Step(arm, seed, iterations, evaluates) for arm in arms or (LONG,))
        if number == 0:
            yield Step("", 0, 0, True)


def arguments(root: Path, step: Step, model: str, extra: Sequence[str] = ()) -> list[str]:
    """Return the command line of a step; a run with a checkpoint goes on from it.

    Args:
        root: folder of all runs.
        step: to make.
        model: file or folder of the model.
        extra: more arguments of ``gspo``, for smaller runs.
    """
    folder = root / step.run
    begun = any(folder.glob("**/last.ckpt"))  # a run that was cut off before has nothing to go on from
    shared = [*CONFIGS, f"--model.name_or_path={model}", *extra]
    if step.arm:
        shared += [f"--data.advantages={step.arm}", f"--trainer.default_root_dir={folder}"]
    if begun:
        shared += ["--ckpt_path=last"]
    if step.evaluates:
        return ["evaluate", *shared, f"--suite={SUITE}", f"--output={root / step.name}"]
    return ["fit", *shared, f"--seed_everything={step.seed}", f"--trainer.max_epochs={step.iterations}"]


def run_all(
    root: Path, todo: Iterable[Step], model: str, minutes: float | None = None, extra: Sequence[str] = ()
) -> int:
    """Make the missing steps; the exit code of the first ``gspo`` that fails.

    Args:
        root: folder of all runs; its done.json has the CPU seconds of every step that is done, by name.
        todo: steps, in this order.
        model: file or folder of the model.
        minutes: after which no further step is begun; None makes all.
        extra: more arguments of ``gspo``, for smaller runs.
    """
    root.mkdir(parents=True, exist_ok=True)
    file = root / "done.json"
    done: dict[str, float] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    end = None if minutes is None else time.monotonic() + 60 * minutes
    for step in todo:
        if step.name in done:
            continue
        if end is not None and time.monotonic() > end:
            break
        before = sum(os.times()[:4])
        if code := gspo(arguments(root, step, model, extra)):
            return code
        done[step.name] = round(sum(os.times()[:4]) - before, 1)
        file.write_text(json.dumps(done, indent=1) + "\n", encoding="utf-8")
    return 0


def main(argv: Sequence[str]) -> int:
    """Make the steps."""
    parser = argparse.ArgumentParser("experiments.smollm2.baselines", description=__doc__)
    parser.add_argument("root", type=Path, help="folder of the runs")
    parser.add_argument("--minutes", type=float, help="after which no further step is begun")
    options = parser.parse_args(list(argv))
    return run_all(options.root, steps(), str(model_file()), options.minutes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
