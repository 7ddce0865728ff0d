"""Headline and before/after table of a run, and number formats."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from gspo_lightning.report.ending import value_of
from gspo_lightning.report.held_out import (
    Change,
    held_out_change,
    prompts,
    reward_change,
    reward_interval,
    scores,
    standard_error,
)
from gspo_lightning.report.run import OF_NO_ITERATION, Run, number
from gspo_lightning.report.statistics.intervals import NORMAL, of_new_problems

EXTRA_ROWS = {
    "update/relative_norm": "size of an update relative to the weights",
    "response/repetition": "repeated 4-grams",
    "cold_start/loss": "loss of the cold start (nats per token)",
    "cold_start/held_out_loss": "the same on held-out demonstrations",
}
EXTRA_PREFIXES = ("moe/changed", "staleness/")
"""Further rows of the table, for runs that log them: tags with their labels, and all tags with these prefixes."""


def plain(value: float | None) -> str:
    """Format with three significant digits, without a needless exponent.

    >>> [plain(v) for v in (0.98, 1.0, 21.04, 0.00123, 1.5e-6, 12345.0, float("nan"), None)]
    ['0.98', '1', '21', '0.00123', '1.5e-06', '12345', 'not finite', '-']
    """
    if value is None:
        return "-"
    if not np.isfinite(value):
        return "not finite"
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def arrow(pair: tuple[float | None, float | None] | None, style: Callable[[float | None], str] = plain) -> str:
    """Format a pair as ``before → after``, or ``not logged``."""
    if pair is None or pair == (None, None):
        return "not logged"
    return f"{style(pair[0])} → {style(pair[1])}"


def from_to(run: Run, pair: tuple[float, float], style: Callable[[float | None], str]) -> str:
    """Format a pair of the first and the last iteration; one number if a run has a single iteration."""
    return style(pair[0]) if run.iterations == 1 else arrow(pair, style)


def headline(run: Run) -> str:
    """Return one line with the result, its 95 % interval and n, and the effort: updates, iterations, time."""
    effort = count(run.updates, "update")
    if run.iterations is not None:
        effort += f", {count(run.iterations, 'iteration')}"
    if run.seconds is not None:
        effort += f", {_duration(run.seconds)}"
    return f"{result(run)} ({effort})"


def result(run: Run) -> str:
    """Return the result of a run with its 95 % interval and n."""
    before, after = run.held_out()
    if before is None and after is None:
        return "no evaluation" if run.first_and_last("reward/mean") is None else training_reward(run)
    change = held_out_change(run)
    if change is None:
        return f"held-out {run.shown_by} {two(before)}{_interval_of_first(run)} before, not evaluated after"
    series = run.get(run.held_out_tag)
    since = "" if series is None or series.steps[0] == 0 else f" since update {series.steps[0]}"
    return f"held-out {run.shown_by} {arrow((before, after), two)}{since}: {change.words}"


def training_reward(run: Run) -> str:
    """Return the change of the training reward with its interval, as words."""
    pair = run.first_and_last("reward/mean")
    if run.iterations == 1 and pair is not None:
        return f"training reward {two(pair[0])}{reward_interval(run)} in the only iteration"
    change = reward_change(run)
    text = f"training reward {arrow(pair, two)}"
    return text if change is None or not np.isfinite(change.value) else f"{text}: {change.words}"


def _interval_of_first(run: Run) -> str:
    series = run.get(run.held_out_tag)
    if series is None:
        return ""
    of_prompts = list(scores(run, int(series.steps[0])).values())
    if run.shown_by == "accuracy" and len(of_prompts) > 1 and all(0 <= value <= 1 for value in of_prompts):
        estimate = of_new_problems(of_prompts)
        return f" [{two(estimate.low)}, {two(estimate.high)}], n = {estimate.n}"
    error = standard_error(run, int(series.steps[0]))
    if error is None:
        return ""
    value = float(series.values[0])
    number_of_prompts = prompts(run)
    size = "" if number_of_prompts is None else f", n = {number_of_prompts}"
    return f" [{value - NORMAL * error:.2f}, {value + NORMAL * error:.2f}]{size}"


def count(number: int, noun: str) -> str:
    """Format a number and a noun: ``1 update``, ``2 updates``."""
    return f"{number} {noun}" + ("" if number == 1 else "s")


def two(value: float | None) -> str:
    """Format with two decimals."""
    return "?" if value is None else f"{value:.2f}" if np.isfinite(value) else "not finite"


def known(run: Run, tag: str) -> tuple[float, float] | None:
    """Return the first and last value if both are finite; other values have a verdict of their own."""
    pair = run.first_and_last(tag)
    return pair if pair is not None and np.isfinite(pair).all() else None


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def table(runs: Sequence[Run]) -> list[tuple[str, list[str]]]:
    """Return rows of (label, one cell per run). Arrows go from the first to the last iteration (or evaluation)."""
    rows: list[tuple[str, Callable[[Run], str]]] = [
        *_held_out_rows(runs),
        *[(tag[4:], _pair(tag)) for tag in _pass_tags(runs)],
        ("training reward", _pair("reward/mean")),
        ("change of training reward, 95 % interval", lambda r: _change(reward_change(r))),
        ("response length (tokens)", _pair("response/length")),
        ("responses that end by themselves", _pair("response/terminated")),
        ("dead groups", _pair("reward/dead_groups")),
        ("alarms of collapse", lambda r: str(len(r.alarms)) if r.alarms or "collapse/alarms" in r.scalars else "-"),
        ("entropy (nats)", _pair("policy/entropy")),
        ("clipped tokens, after an iteration's first mini-batch", lambda r: plain(value_of(r, "clip/tokens"))),
        ("spread of sequence ratios, largest (nats)", lambda r: _statistic(r, "ratio/log_sequence_std", np.max)),
        ("KL old to new, largest (k3, nats)", lambda r: _statistic(r, "kl/old_new_k3", np.max)),
        ("gradient norm, median", lambda r: _statistic(r, "optim/gradient_norm", np.median)),
        ("gradient norm, largest", lambda r: _statistic(r, "optim/gradient_norm", np.max)),
        ("effective sample size, smallest", lambda r: _statistic(r, "ratio/effective_sample_size", np.min)),
        *[(words, _pair(tag)) for tag, words in _extra_rows(runs).items()],
        ("generated tokens/s, median", lambda r: _statistic(r, "throughput/generated_tokens_per_s", np.median)),
        ("iterations / updates", lambda r: f"{'?' if r.iterations is None else r.iterations} / {r.updates}"),
        ("time", lambda r: "-" if r.seconds is None else _duration(r.seconds)),
        ("peak memory (MiB)", lambda r: plain(number(r.summary.get("peak_memory_mb")))),
    ]  # fmt: skip
    return [(name, [cell(run) for run in runs]) for name, cell in rows]


def _pair(tag: str) -> Callable[[Run], str]:
    def cell(run: Run) -> str:
        pair = run.first_and_last(tag)
        return arrow(pair) if pair is None or tag.startswith(OF_NO_ITERATION) else from_to(run, pair, plain)

    return cell


def _held_out_rows(runs: Sequence[Run]) -> list[tuple[str, Callable[[Run], str]]]:
    """Return rows for accuracy or mean reward, or for both if runs differ in the one they use."""
    headlines = {run.shown_by for run in runs}
    rows: list[tuple[str, Callable[[Run], str]]] = []
    if "accuracy" in headlines:
        rows.append(("held-out accuracy", lambda r: arrow(r.accuracy(), two)))
        label = "change of held-out accuracy, 95 % interval"
        rows.append((label, lambda r: _change(held_out_change(r)) if r.shown_by == "accuracy" else "-"))
    if "mean reward" in headlines:
        rows.append(("held-out mean reward", lambda r: "-" if r.shown_by == "accuracy" else arrow(r.held_out(), two)))
        label = "change of held-out mean reward, 95 % interval"
        rows.append((label, lambda r: "-" if r.shown_by == "accuracy" else _change(held_out_change(r))))
    return rows


def _change(change: Change | None) -> str:
    return "-" if change is None or not np.isfinite(change.value) else change.words


def _pass_tags(runs: Sequence[Run]) -> list[str]:
    tags = {tag for run in runs for tag in run.scalars if tag.startswith("val/pass@")}
    return sorted(tags, key=lambda tag: (len(tag), tag))


def _extra_rows(runs: Sequence[Run]) -> dict[str, str]:
    logged = sorted({tag for run in runs for tag in run.scalars})
    named = {tag: words for tag, words in EXTRA_ROWS.items() if tag in logged}
    return named | {tag: tag for tag in logged if tag.startswith(EXTRA_PREFIXES)}


def _statistic(run: Run, tag: str, reduce: Callable[..., float]) -> str:
    series = run.get(tag)
    return "not logged" if series is None else plain(float(reduce(series.values)))
