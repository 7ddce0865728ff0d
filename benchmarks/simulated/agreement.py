"""Whether the simulated device gives what the CPU gives, for every kind of run."""

from __future__ import annotations

from torch import Tensor

from benchmarks.simulated.work import MIXTURE, Job, Outcome, run_job

__all__ = ["difference", "jobs"]

TOLERANCE = 1e-5
"""Of everything, relative to the largest number of a tensor: float32 on both sides."""


def jobs(*, adapters: bool) -> dict[str, Job]:
    """A dense model whose prompts join one after another, alone, beside a critic and behind a teacher; a mixture with
    and without Routing Replay; adapters."""
    found = {
        "dense": Job(max_rows=8),
        "mixture": Job(MIXTURE),
        "Routing Replay R2": Job(MIXTURE, replay="R2"),
        "Routing Replay R3": Job(MIXTURE, replay="R3"),
        "critic": Job(asks="a critic"),
        "teacher": Job(asks="a teacher"),
        "teacher's distributions": Job(asks="a teacher's distributions"),
    }
    return found | ({"adapters": Job(adapters=True)} if adapters else {})


def difference(job: Job) -> str:
    """What is not the same on both; empty: nothing."""
    here, there = run_job(job, on_device=False), run_job(job, on_device=True)
    if here.tokens != there.tokens:
        return "other tokens"
    if not here.gradients or here.gradients.keys() != there.gradients.keys():
        return "gradients of other parameters"
    if here.beside.said.keys() != there.beside.said.keys():
        return "other answers of a critic or a teacher"
    wrong = {what: gap for what, gap in _gaps(here, there).items() if not gap <= TOLERANCE}
    return ", ".join(f"{what} off by {gap:.1g}" for what, gap in wrong.items())


def _gaps(here: Outcome, there: Outcome) -> dict[str, float]:
    return {
        "sampled log-probabilities": _gap(here.sampled_logprobs, there.sampled_logprobs),
        "old log-probabilities": _gap(here.old_logprobs, there.old_logprobs),
        "gradients": max(_gap(g, there.gradients[n]) for n, g in here.gradients.items()),
        "weights": max(_gap(w, there.weights[n]) for n, w in here.weights.items()),
        **{what: _gap(said, there.beside.said[what]) for what, said in here.beside.said.items()},
        "measured sums": max(abs(here.measured[n][0] - there.measured[n][0]) for n in here.measured),
    }


def _gap(mine: Tensor, theirs: Tensor) -> float:
    return float((mine.double() - theirs.double()).abs().max() / mine.double().abs().max().clamp(min=1e-12))
