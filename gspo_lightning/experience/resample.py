"""Dynamic sampling (DAPO, arXiv 2503.14476) with a budget: groups that teach nothing are replaced."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gspo_lightning.advantages.shaping import Shaping, is_dead, mask_truncated
from gspo_lightning.experience.respond import Groups
from gspo_lightning.types import Prompt

__all__ = ["resample"]


def resample(
    groups: Groups,
    sample: Callable[[Sequence[Prompt]], tuple[Groups, dict[str, float]]],
    spare: Sequence[Prompt],
    shaping: Shaping,
) -> dict[str, float]:
    """Put groups that can teach something in the place of dead ones, in place, until ``spare`` prompts are used up.

    An iteration trains on as many groups as ever, and a dead group for which no better one was found stays.

    Args:
        groups: this rank's scored groups.
        sample: scored groups for some prompts, and the seconds that took.
        spare: prompts that may be sampled.
        shaping: decides, by raw rewards, what is dead.

    Returns:
        The seconds of all samples by name, and ``reward/resampled_groups``, the groups replaced.
    """
    left, replaced, seconds = list(spare), 0, dict[str, float]()
    while left and (dead := [i for i, g in enumerate(groups) if is_dead(g, shaping)]):
        now, left = left[: len(dead)], left[len(dead) :]
        fresh, spent = sample(now)
        mask_truncated([r for g in fresh for r in g], shaping)
        seconds = {name: seconds.get(name, 0.0) + value for name, value in spent.items()}
        alive = [g for g in fresh if not is_dead(g, shaping)]
        for i, group in zip(dead, alive, strict=False):  # fewer may be alive than are needed
            groups[i] = group
        replaced += len(alive)
    return seconds | {"reward/resampled_groups": float(replaced)}
