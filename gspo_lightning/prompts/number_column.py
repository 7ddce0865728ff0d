"""A column of numbers, read along with the prompts."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gspo_lightning.errors import UserError
from gspo_lightning.types import Prompt

__all__ = ["NumberColumn"]


class NumberColumn:
    """A column of numbers of a prompt set. Memory: 8 bytes a prompt if any prompt has a value, else nothing.

    Args:
        column: its name.
        default: value of prompts that have none.
        least: smallest valid value.
        most: largest valid value.
        meaning: of a value, for messages.
    """

    def __init__(self, column: str, default: float, least: float, most: float, meaning: str) -> None:
        self._column, self._default, self._least, self._most = column, default, least, most
        self._meaning = meaning
        self._count, self._found = 0, array("d")
        self._wrong: tuple[int, object] | None = None

    @property
    def given(self) -> bool:
        """True if any prompt has a value."""
        return bool(self._found) or self._wrong is not None

    def add(self, prompt: Prompt) -> None:
        """Add the next prompt; a cell of a table is a text, and an empty one is no value."""
        self._count += 1
        value = prompt.columns.get(self._column)
        if value is not None and value != "":
            self._found.extend([self._default] * (self._count - 1 - len(self._found)))
            self._found.append(self._number(prompt.id, value))

    def values(self, field_name: str, where: Callable[[int], str]) -> NDArray[np.float64]:
        """Return the values [n], the default for prompts without one.

        Raises:
            UserError: a value is wrong; names the first one by ``where``.
        """
        if self._wrong is not None:
            number, value = self._wrong
            problem = "out of range" if _as_float(value) is not None else "not a number"
            what = f"{where(number)}: {self._column!r} is {str(value)[:40]!r}, which is {problem}"
            span = f" from {self._least:g} to {self._most:g}" if math.isfinite(self._least) else ""
            rename = f"rename the column (data.columns: {{own_{self._column}: {self._column}}})"
            raise UserError(field_name, what, fix=f"write numbers{span} ({self._meaning}), or {rename}")
        self._found.extend([self._default] * (self._count - len(self._found)))
        return np.frombuffer(self._found, dtype=np.float64)

    def _number(self, number: int, value: object) -> float:
        found = _as_float(value)
        if found is not None and math.isnan(found) and math.isnan(self._default):
            return self._default
        if found is None or math.isinf(found) or not self._least <= found <= self._most:
            self._wrong = self._wrong or (number, value)
            return self._default
        return found


def _as_float(value: Any) -> float | None:
    if isinstance(value, bool):
        return None
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None
