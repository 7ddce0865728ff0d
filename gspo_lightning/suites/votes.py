"""Group equal answers for a majority vote."""

from __future__ import annotations

from gspo_lightning.rewards.math.commitment import committed
from gspo_lightning.rewards.math.notation import canonical
from gspo_lightning.rewards.math.numbers import literal
from gspo_lightning.rewards.math.text import after_thinking, boxed, visible

__all__ = ["RIGHT", "vote"]

RIGHT = "="
"""Vote of every right answer, however it is written."""
_CHARACTERS, _READ = 200, 2000


def vote(completion: str, *, right: bool) -> str | None:
    r"""Return the vote of a mathematical answer; None has no vote.

    All right answers share one vote. Wrong ones share a vote if they are the same number, or if their texts are equal
    after notation without meaning is removed. A wrong answer counts if it is in a box, or is a number that the text
    commits to.

    >>> vote(r"\boxed{024.0}", right=False), vote(r"so \boxed{\dfrac12}", right=False), vote("I give up", right=False)
    ('24', '1/2', None)
    """
    if right:
        return RIGHT
    text = after_thinking(completion)
    if text is None:
        return None
    text = visible(text)
    found = boxed(text, _READ)
    if found.reason == "no box":
        found = committed(text, _READ)
    if found.reason:
        return None
    short = canonical(found.text)
    number = literal(short)
    if number is None and not found.boxed:
        return None  # the last words of a text without an answer
    return (str(number.value) if number is not None else short)[:_CHARACTERS]
