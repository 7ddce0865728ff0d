"""Judges beside rewards with known answers: do they say the same?"""

from __future__ import annotations

from collections.abc import Mapping

from gspo_lightning.errors import UserError, did_you_mean
from gspo_lightning.rewards.by_record import Judges
from gspo_lightning.rewards.types import Score

__all__ = ["agreements", "check_agreements"]


def check_agreements(judges: Judges) -> None:
    """What a reward is compared with is another reward.

    Raises:
        UserError: it is not.
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
    """Name of a reward -> whether it and what it is compared with are both at least 1/2, or both below it.

    No entry where one of the two is missing, or does not apply.

    Args:
        judges: all rewards.
        singles: what each single one said.
        parts: the same by name.
    """
    found = {}
    for name, reward in judges.single.items():
        if reward.agrees_with is None:
            continue
        said, known = singles[name].reward, parts[reward.agrees_with].reward
        if said is not None and known is not None:
            found[judges.owner[name]] = (said >= 0.5) == (known >= 0.5)
    return found
