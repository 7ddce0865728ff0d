r"""Values behind words: ``\text{max } 5, \text{min } -3`` is no ``\text{min } 5, \text{max } -3``."""

from __future__ import annotations

import re

from gspo_lightning.rewards.math.equations import split
from gspo_lightning.rewards.math.structure import Same

_FONT = re.compile(r"\\(?:text|mathrm|textrm|mbox|operatorname)\s*\{([^{}]*)\}|\\(max|min)(?![a-z])")
_LABELLED = re.compile(
    r"\s*(?:and )?(?:the )?([A-Za-z]{3,})(?: value)?\s*(?:is|[:=])?\s*((?:[-+\\$(\[.]|\d).*)", re.DOTALL
)
_LONGEST = 200


def equal_labelled(gold: str, given: str, same: Same) -> bool | None:
    r"""Compare two lists of labelled values by label; None if one is no such list, or if the labels differ.

    >>> equal_labelled(r"\text{max }5, \text{ min }3", r"\text{minimum: }3, \text{maximum: }5", lambda a, b: a == b)
    True
    """
    ours = labelled(gold)
    candidate = labelled(given) if ours else None
    if ours is None or candidate is None or len(ours) != len(candidate):
        return None
    pairs = []
    for label, value in ours.items():
        names = [name for name in candidate if _is_short_for(*sorted((name, label), key=len))]
        if len(names) != 1:
            return None
        pairs.append((value, candidate[names[0]]))
    return all(same(value, answer) for value, answer in pairs)


def _is_short_for(short: str, label: str) -> bool:
    """True of ``max`` and ``maximum``, but not of ``sin`` and ``sinh``, which one letter tells apart."""
    return label == short or (label.startswith(short) and len(label) > len(short) + 1)


def labelled(text: str) -> dict[str, str] | None:
    """Return two or more values by their labels; None if a text is no list of them."""
    if len(text) > _LONGEST:
        return None
    plain = _FONT.sub(lambda m: f" {m[1] or m[2]} ", text)
    matches = [_LABELLED.fullmatch(piece) for piece in split(re.sub(r"\band\b", ",", plain), ",") if piece]
    values = {match[1].lower(): match[2].strip() for match in matches if match}
    return values if 1 < len(values) == len(matches) else None
