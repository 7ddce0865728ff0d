"""Reward functions with the signatures that TRL's users write, to be named by a dotted path."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

SEEN: list[dict[str, Any]] = []


def thinks(completions: list[list[dict[str, str]]], **kwargs: Any) -> list[float]:
    """As ``trl.rewards.think_format_reward``."""
    return [float(c[0]["content"].startswith("<think>")) for c in completions]


def unannotated(completions, **kwargs):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN003, ANN201
    """As many scripts write it."""
    return [float("please" in c[0]["content"]) for c in completions]


def accurate(
    completions: list[list[dict[str, str]]],
    solution: list[str],
    log_extra: Callable[[str, list[Any]], None] | None = None,
    log_metric: Callable[[str, float], None] | None = None,
    **kwargs: Any,
) -> list[float | None]:
    """As ``trl.rewards.accuracy_reward``."""
    said = [c[0]["content"] for c in completions]
    if log_extra is not None:
        log_extra("said", said)
    if log_metric is not None:
        log_metric("known", sum(s is not None for s in solution) / len(solution))
    return [None if s is None else float(s == c) for c, s in zip(said, solution, strict=True)]


def make_penalty(size: int, penalty: float = -1.0) -> Callable[..., list[float]]:
    """A factory whose function is a closure, which cannot be pickled."""
    if size < 1:
        raise ValueError(f"size {size} should be positive")

    def penalise(completion_ids: list[list[int]], **kwargs: Any) -> list[float]:
        return [penalty if len(ids) > size else 0.0 for ids in completion_ids]

    return penalise


def shaped(completions: list[str], trainer_state: Any, **kwargs: Any) -> list[float]:
    """Falls from 1 to 0 over the run."""
    return [1 - trainer_state.global_step / trainer_state.max_steps] * len(completions)


def by_kwargs(completions: list[str], **kwargs: Any) -> list[float]:
    """Reads what TRL passes to every function from ``**kwargs``."""
    SEEN.append(kwargs)
    kwargs["log_metric"]("called", 1.0)
    return [float(kwargs["trainer_state"].global_step)] * len(completions)


class Waits:
    """A callable object whose call is ``async``."""

    async def __call__(self, completions: list[str], **kwargs: Any) -> list[float]:
        return [float(len(c)) for c in completions]


waits = Waits()


def logs_too_few(completions: list[str], log_extra: Callable[[str, list[Any]], None]) -> list[float]:
    log_extra("only", ["one"])
    return [0.0] * len(completions)
