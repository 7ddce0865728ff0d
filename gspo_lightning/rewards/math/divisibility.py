r"""Conditions on an integer in words: "even", "all multiples of 6" and ``7 \mid n`` are residues, however written."""

from __future__ import annotations

import math
import re

from gspo_lightning.rewards.math.families import equal_families
from gspo_lightning.rewards.math.question import Question
from gspo_lightning.rewards.math.structure import congruence, family, of_residues

_FONT = re.compile(r"\\(?:text|mathrm|textrm|mbox)\s*\{([^{}]*)\}|[$~]|\\[,;:! ]")
_NUMBERS = (
    r"(?:(?:all|the|every|any) )?(?:(?:integers?|numbers?|values?|[a-z])(?: (?:that|which))? ?)?"
    r"(?:(?:is|are|be|must be) )?"
)
_PARITY = re.compile(rf"{_NUMBERS}(?:an? )?(even|odd)(?: (?:integers?|numbers?|values?|[a-z]))?(?: of [a-z])?")
_MULTIPLE = re.compile(rf"{_NUMBERS}(?:an? )?(?:multiples? of|divisible by) ?(\d{{1,6}})")
_DIVIDES = re.compile(r"(\d{1,6}) ?(?:\\mid(?![a-z])|\|) ?[a-z]|(\d{1,6}) divides [a-z]")
_RESIDUE = re.compile(
    r"(?:.*\\equiv(?![a-z]))?\s*(-?\d{1,9})\s*\\?\s*\(?\s*(?:\\p?b?mod|\bmod)\s*\{?\s*(\d{1,9})\s*\}?\s*\)?"
)
_MODULUS = re.compile(r"\\pmod\s*\{?\s*(\d{1,9})|\bmod(?:ulo)?\s*\$?(\d{1,9})")
_NAMED = re.compile(r"\s*[A-Za-z]\s*\\equiv")
"""A congruence for an unknown, which states the residue by itself."""
_MODULI = 10**5

Residues = tuple[frozenset[int], int]


def equal_divisibility(gold: str, given: str, question: Question) -> bool | None:
    r"""Compare two conditions on an integer, at least one of them in words; None if one is none.

    >>> equal_divisibility(r"\text{all odd integers}", r"n = 2k-1, k\in\mathbb{Z}", Question())
    True
    >>> equal_divisibility(r"n \equiv 0 \pmod 7", r"7 \mid n", Question())
    True
    """
    ours = in_words(gold)
    candidate = in_words(given)
    if ours is None and candidate is None:
        return _with_modulus(gold, given, question)
    ours = ours or congruence(gold)
    candidate = candidate or congruence(given)
    if ours is not None and candidate is not None:
        common = math.lcm(ours[1], candidate[1])
        return common <= _MODULI and _classes(ours, common) == _classes(candidate, common)
    if ours is not None and (result := family(given)) is not None:
        return equal_families(of_residues(*ours, result.variable), result)
    if candidate is not None and (expected := family(gold)) is not None:
        return equal_families(expected, of_residues(*candidate, expected.variable))
    return None


def in_words(text: str) -> Residues | None:
    """Return the residues and the modulus of a condition in words; None if a text is none."""
    plain = " ".join(_FONT.sub(lambda m: f" {m[1] or ''} ", text).split()).strip(" .")
    if len(plain) > 80:
        return None
    if match := _PARITY.fullmatch(plain):
        return frozenset({int(match[1] == "odd")}), 2
    match = _MULTIPLE.fullmatch(plain) or _DIVIDES.fullmatch(plain)
    modulus = next((int(group) for group in match.groups() if group), 0) if match else 0
    return (frozenset({0}), modulus) if modulus else None


def _with_modulus(gold: str, given: str, question: Question) -> bool | None:
    """Compare a residue that names its modulus with an integer, if the prompt names the modulus, too."""
    match = _RESIDUE.fullmatch(given) if re.fullmatch(r"\d{1,9}", gold) else None
    moduli = {int(group) for groups in _MODULUS.findall(question.text) for group in groups if group}
    if match is None or int(match[2]) not in moduli or _NAMED.match(match[0]):
        return None
    if len(moduli) > 1 and int(match[2]) <= int(gold):
        return None  # the record is a residue of another modulus
    return int(match[1]) == int(gold)


def _classes(residues: Residues, multiple: int) -> set[int]:
    """Return residues modulo a multiple of their modulus."""
    return {(residue + step) % multiple for residue in residues[0] for step in range(0, multiple, residues[1])}
