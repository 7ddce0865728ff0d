"""Agreement of judges with rewards that have known answers."""

from __future__ import annotations

from collections.abc import Mapping

from gspo_lightning.core.errors import UserError, did_you_mean
from gspo_lightning.rewards.by_record import Judges
from gspo_lightning.rewards.types import Score


def check_agreements(judges: Judges) -> None:
    """Check that each reward with ``agrees_with`` names another reward.

    Raises:
        UserError: it does not.
    """
    for name, reward in judges.single.items():
        others = [other for other in judges.given if other != judges.owner[name]]
        if reward.agrees_with is not None and reward.agrees_with not in others:
            raise UserError(
                f"rewards.{name}",
                f"agrees_with: {reward.agrees_with!r} is not another reward; "
                f"{did_you_mean(reward.agrees_with, others)}",
                fix="name a reward with known answers; its weight may be 0",
            )


def agreements(judges: Judges, singles: Mapping[str, Score], parts: Mapping[str, Score]) -> dict[str, bool]:
    """Return for each compared reward whether it and its reference are both at least 1/2, or both below it.

    A reward has no entry if one of the two is missing, or does not apply.

    Args:
        judges: all rewards.
        singles: score of each single reward.
        parts: the same scores by name, as joined.
    """
    agrees = {}
    for name, reward in judges.single.items():
        if reward.agrees_with is None:
            continue
        judged = singles[name].reward
        reference = parts[reward.agrees_with].reward
        if judged is not None and reference is not None:
            agrees[judges.owner[name]] = (judged >= 0.5) == (reference >= 0.5)
    return agrees
