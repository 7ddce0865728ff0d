"""Dynamic sampling (DAPO, arXiv 2503.14476) with a budget: replace groups that give no signal."""

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
    limit: int | None = None,
    source: Callable[[Prompt], object] = lambda _: None,
) -> dict[str, float]:
    """Replace dead groups in place by groups with a signal, until the ``spare`` prompts are used up.

    The number of groups per iteration stays the same: a dead group without a replacement stays. In a mixture a group
    replaces one of its own source, so every source keeps its share.

    Args:
        groups: this rank's scored groups.
        sample: returns scored groups for some prompts, and the seconds that took.
        spare: prompts that may be sampled.
        shaping: decides from raw rewards which groups are dead.
        limit: most prompts to sample; ``spare`` may hold up to that many of each source.
        source: returns the source of a prompt.

    Returns:
        The seconds of all samples by name, and ``reward/resampled_groups``, the groups replaced.
    """
    budget, left, replaced, seconds = len(spare) if limit is None else limit, list(spare), 0, dict[str, float]()
    while dead := [i for i, g in enumerate(groups) if is_dead(g, shaping)]:
        now = _taken([source(groups[i][0].prompt) for i in dead], left, source)[:budget]
        if not now:
            break
        budget, left = budget - len(now), [prompt for prompt in left if all(prompt is not one for one in now)]
        fresh, spent = sample(now)
        mask_truncated([r for g in fresh for r in g], shaping)
        seconds = {name: seconds.get(name, 0.0) + value for name, value in spent.items()}
        for group in (g for g in fresh if not is_dead(g, shaping)):
            place = next(i for i in dead if source(groups[i][0].prompt) == source(group[0].prompt))
            dead.remove(place)
            groups[place] = group
            replaced += 1
    return seconds | {"reward/resampled_groups": float(replaced)}


def _taken(wanted: Sequence[object], spare: Sequence[Prompt], source: Callable[[Prompt], object]) -> list[Prompt]:
    """Return the first spare prompts of the wanted sources, one for each while they last."""
    left, found = list(spare), list[Prompt]()
    for one in wanted:
        number = next((i for i, prompt in enumerate(left) if source(prompt) == one), None)
        if number is not None:
            found.append(left.pop(number))
    return found
