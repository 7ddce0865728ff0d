"""Extract a record's final answer in a form that can be compared with other records."""

from __future__ import annotations

from typing import Any

__all__ = ["short_answer"]

_LONGEST = 200


def short_answer(value: Any) -> str | None:
    r"""Return a text or number without GSM8K's working, ``\boxed`` and dollar signs; None if it is not short.

    >>> short_answer("40 + 2 = 42\n#### 42"), short_answer(r"\boxed{42}"), short_answer(42), short_answer({"tests": []})
    ('42', '42', '42', None)
    """
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    text = str(value).rsplit("####", 1)[-1].strip().strip("$").strip()
    if text.startswith("\\boxed{") and text.endswith("}"):
        text = text[len("\\boxed{") : -1].strip()
    return text.casefold() if 0 < len(text) <= _LONGEST else None
