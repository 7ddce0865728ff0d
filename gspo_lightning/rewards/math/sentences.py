"""Answers in a sentence: "The series converges." is ``converges``, if the subject is one of the prompt."""

from __future__ import annotations

import re

_COPULAS = {"is", "are", "was", "were", "be"}
_SUBJECTS = {"the", "this", "that", "it", "they", "these", "both", "answer"}
_OTHER = {"not", "no", "never", "neither", "nor", "or", "and", "but", "nothing", "cannot", "without"}
_CHOICE = re.compile(r"([a-z]+),?\s+or\s+(?:(?:an?|the)\s+)?([a-z]+)")
"""Two answers between which a prompt lets one choose: "true or false"."""
_LONGEST = 12


def same_sentence(gold: str, given: str | None, prompt: str) -> bool:
    """True if one text is a sentence that says the other of a subject in the prompt.

    The subject's words stand in the prompt, or are pronouns; behind it is a form of *to be*, or the text is a verb.

    Args:
        gold: the words of the record, without articles.
        given: those of the answer; None if it is not made of words.
        prompt: the prompt.

    >>> same_sentence("false", "statement is false", "Is the statement true?")
    True
    >>> same_sentence("continuous", "f is not continuous", "Is f continuous?")
    False
    """
    if given is None:
        return False
    if "neither" in (gold, given):
        return all(text.startswith("neither") for text in (gold, given))
    shorter, longer = sorted((gold.split(), given.split()), key=len)
    if not shorter or len(longer) > _LONGEST or longer[-len(shorter) :] != shorter:
        return False
    subject = longer[: -len(shorter)]
    prompt_words = set(re.findall("[a-z]+", prompt.lower()))
    copula = bool(subject) and subject[-1] in _COPULAS
    if not subject or (not copula and not (len(shorter) == 1 and shorter[0].endswith("s"))):
        return False
    names = subject[:-1] if copula else subject
    choices = {word for pair in _CHOICE.findall(prompt.lower()) for word in pair}
    if not (_OTHER | choices).isdisjoint(names):
        return False
    return all(name in prompt_words or name in _SUBJECTS for name in names)
