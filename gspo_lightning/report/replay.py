"""Replay the collapse watch over the scalars of a recorded run, for runs that were trained without it."""

from __future__ import annotations

import functools
import itertools

from gspo_lightning.core.metric_table.spec import METRICS
from gspo_lightning.report.collapse.signatures import SIGNATURES, TAUGHT
from gspo_lightning.report.collapse.watch import REMEMBERED, Alarm, Watch
from gspo_lightning.report.held_out import scores
from gspo_lightning.report.run import Run, number


@functools.cache
def _watched() -> frozenset[str]:
    """Tags that any signature reads, ``non_finite`` apart, which has a verdict of its own."""
    with_alarm = {spec.tag for spec in METRICS if spec.alarms}
    return frozenset({*with_alarm, *REMEMBERED, TAUGHT, "ratio/clamped", "optim/gradient_norm", "data/iteration"})


def replayed(run: Run) -> list[Alarm]:
    """Return the alarms that a watch with the documented thresholds would have raised."""
    looks: dict[int, dict[str, float]] = {}
    evaluations: dict[int, dict[str, float]] = {}
    for tag, series in run.scalars.items():
        held_out = tag in ("val/accuracy", "val/accuracy_standard_error")
        if not held_out and tag not in _watched():
            continue
        for step, value in zip(series.steps.tolist(), series.values.tolist(), strict=True):
            (evaluations if held_out else looks).setdefault(step, {})[tag] = value
    watch = Watch(kind() for kind in SIGNATURES.values())
    prompts = number(run.setting("data", "prompts_per_rollout"))
    for signature in watch.signatures:
        if prompts and hasattr(signature, "prompts"):
            signature.prompts = int(prompts)
    steps = sorted(looks.keys() | evaluations.keys())
    updates = [step for step in steps if step in looks]
    following = dict(itertools.pairwise(updates))
    alarms: list[Alarm] = []
    for step in steps:
        if step in looks:
            look = dict(looks[step])
            iteration = look.pop("data/iteration", None)
            after = looks[following[step]].get("data/iteration") if step in following else None
            alarms += watch.see(look, step, last=iteration is None or after != iteration)
        if len(evaluations.get(step, {})) == 2 and run.shown_by == "accuracy":
            alarms += watch.see_evaluation(evaluations[step], step, scores(run, step))
    return alarms
