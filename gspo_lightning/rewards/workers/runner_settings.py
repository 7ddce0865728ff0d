"""Settings of a runner: validation, defaults, and pickling of rewards for workers."""

from __future__ import annotations

import math
import os
import pickle
from collections.abc import Mapping, Sequence

from gspo_lightning.core.errors import UserError, did_you_mean
from gspo_lightning.rewards.reward import Reward


def default_workers() -> int:
    """Return the default number of workers: one core per local trainer process, the rest shared evenly; at least 1."""
    ranks = _local_ranks()
    return max(1, (available_cpus() - ranks) // ranks)


def available_cpus() -> int:
    """Return the number of CPUs that this process may use; of all CPUs on macOS, which has no affinity."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _local_ranks() -> int:
    """Return the number of trainer processes on this machine, as set by torchrun, Slurm or Lightning.

    Lightning only sets the number on all machines; with several machines that gives too few workers, never too many.
    """
    for name in ("LOCAL_WORLD_SIZE", "SLURM_NTASKS_PER_NODE", "WORLD_SIZE"):
        if os.environ.get(name, "").isdigit():
            return max(1, int(os.environ[name]))
    return 1


def check_settings(
    rewards: Mapping[str, Reward], workers: int, deadline_s: float, memory_mb: int, recycle_after: int, rate: float
) -> None:
    """Refuse settings that cannot work, naming field, value and rule."""
    if not rewards:
        raise UserError("rewards", "is empty", fix="name at least one")
    for name, reward in rewards.items():
        if not isinstance(reward, Reward):
            raise UserError(f"rewards.{name}", f"is a {type(reward).__name__}, not a Reward")
    for field, value, least in (
        ("num_workers", workers, 1),
        ("memory_mb", memory_mb, 256),
        ("recycle_after", recycle_after, 1),
    ):
        if value < least:
            raise UserError(f"RewardRunner.{field}", f"is {value}; it must be at least {least}")
    if not (math.isfinite(deadline_s) and deadline_s > 0):
        raise UserError("RewardRunner.deadline_s", f"is {deadline_s}; it must be a number of seconds above 0")
    if not 0 <= rate <= 1:
        raise UserError("RewardRunner.max_missing_rate", f"is {rate}; it must lie in [0, 1]")


def fill_weights(rewards: Mapping[str, object], weights: Mapping[str, float]) -> dict[str, float]:
    """Return a finite weight for every reward, 1 by default."""
    for name, weight in weights.items():
        if name not in rewards:
            raise UserError("reward_weights", f"{name!r} is not a reward; {did_you_mean(name, rewards)}")
        if not math.isfinite(weight):
            raise UserError(f"reward_weights.{name}", f"is {weight}; it must be finite")
    return {name: float(weights.get(name, 1.0)) for name in rewards}


def weights_by_name(
    rewards: Mapping[str, object], weights: Mapping[str, float] | Sequence[float] | None
) -> dict[str, float]:
    """Convert weights to a mapping; a list is in the order of the rewards, like TRL's ``reward_weights``.

    Raises:
        UserError: a list of another length.
    """
    if weights is None or isinstance(weights, Mapping):
        return dict(weights or {})
    if len(weights) != len(rewards):
        names = ", ".join(rewards)
        raise UserError(
            "data.reward_weights",
            f"is a list of {len(weights)} weights for {len(rewards)} rewards ({names})",
            fix="give one weight for each reward in this order, or a mapping: {name: weight}",
        )
    return {name: float(weight) for name, weight in zip(rewards, weights, strict=True)}


def pickle_rewards(rewards: Mapping[str, Reward]) -> bytes:
    """Pickle rewards for a worker, which must be able to import their classes."""
    for name, reward in rewards.items():
        if type(reward).__module__ == "__main__":
            raise UserError(
                f"rewards.{name}",
                f"{type(reward).__qualname__} is defined in the running script, from which a worker process "
                "cannot import it",
                fix="move it into a module or a plug-in file, or set where = 'trainer'",
            )
        try:
            pickle.dumps(reward)
        except Exception as error:
            raise UserError(
                f"rewards.{name}",
                f"cannot be sent to a worker process: {type(error).__name__}: {error}",
                fix="keep only plain data in the reward (open files, models and lambdas belong into prepare())",
            ) from error
    return pickle.dumps(dict(rewards))
