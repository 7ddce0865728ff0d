"""Kinds of answers that computer algebra takes for products or cannot read, each with a comparison of its own."""

from __future__ import annotations

from gspo_lightning.rewards.math.bound_letters import equal_bound
from gspo_lightning.rewards.math.builders import equal_builders, is_builder
from gspo_lightning.rewards.math.chemistry import reaction, same_reaction
from gspo_lightning.rewards.math.divisibility import equal_divisibility, in_words
from gspo_lightning.rewards.math.growth import equal_growth, is_growth
from gspo_lightning.rewards.math.labels import equal_labelled, labelled
from gspo_lightning.rewards.math.ordinals import equal_places, place
from gspo_lightning.rewards.math.permutations import cycles, equal_permutations
from gspo_lightning.rewards.math.question import Question
from gspo_lightning.rewards.math.structure import Same
from gspo_lightning.rewards.math.subspaces import equal_subspaces, is_flat


def by_kind(gold: str, given: str, same: Same, question: Question) -> bool | None:
    """Return the verdict of the first kind that both answers are of, or None.

    Args:
        gold: the record's answer, in LaTeX's spelling.
        given: the answer, in the same spelling.
        same: compares two parts.
        question: the prompt.
    """
    for rule in (equal_permutations, equal_places, equal_divisibility, equal_subspaces):
        verdict = rule(gold, given, question)
        if verdict is not None:
            return verdict
    for plain_rule in (equal_growth, same_reaction, equal_bound):
        verdict = plain_rule(gold, given)
        if verdict is not None:
            return verdict
    verdict = equal_labelled(gold, given, same)
    return equal_builders(gold, given, same) if verdict is None else verdict


def is_of_a_kind(text: str) -> bool:
    """True if a record's answer is of one of these kinds, so that it can be compared."""
    if cycles(text, digits=False) or reaction(text) or place(text) or in_words(text):
        return True
    return is_growth(text) or is_builder(text) or is_flat(text) or labelled(text) is not None
