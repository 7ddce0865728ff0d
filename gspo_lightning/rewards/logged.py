"""Values logged by a reward function beside its rewards: TRL's ``log_metric`` and ``log_extra``."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gspo_lightning.errors import UserError
from gspo_lightning.rewards.types import Score

__all__ = ["Logged"]

_CHARACTERS = 500
_NONE = "the reward returned None"


class Logged:
    """The values logged during one call of a reward function.

    Args:
        samples: completions of the call.

    >>> logged = Logged(2)
    >>> logged.metric("share_parsed", 0.5)
    >>> logged.extra("parsed", ["2", None])
    >>> [(score.reward, score.logged, score.extra) for score in logged.attached([1.0, None])]
    [(1.0, {'share_parsed': 0.5}, {'parsed': '2'}), (None, {'share_parsed': 0.5}, {'parsed': None})]
    """

    def __init__(self, samples: int) -> None:
        self._samples = samples
        self._metrics: dict[str, list[float]] = {}
        self._extra: dict[str, list[Any]] = {}

    def metric(self, name: str, value: float) -> None:
        """Log a number about this call (``log_metric``); its mean is logged as ``reward/logged/<name>``.

        Raises:
            UserError: the value is not a finite number.
        """
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not math.isfinite(number):
            raise UserError(f"log_metric({name!r})", f"got {value!r}", fix="log a finite number")
        self._metrics.setdefault(str(name), []).append(number)

    def extra(self, column: str, values: Sequence[Any]) -> None:
        """Log one value per completion (``log_extra``), written beside its reward in recorded rollouts.

        Raises:
            UserError: not one value for each completion.
        """
        found = list(values)
        if len(found) != self._samples:
            problem = f"got {len(found)} values for {self._samples} completions"
            raise UserError(f"log_extra({column!r})", problem, fix="log one value for each completion")
        self._extra[str(column)] = [_plain(value) for value in found]

    def attached(self, values: Any) -> Any:
        """Attach the logged values to rewards; unchanged if nothing was logged or the length does not fit."""
        if not (self._metrics or self._extra) or not hasattr(values, "__len__") or len(values) != self._samples:
            return values
        means: Mapping[str, float] = {name: sum(seen) / len(seen) for name, seen in self._metrics.items()}
        return [
            replace(
                value if isinstance(value, Score) else Score(value, detail="" if value is not None else _NONE),
                logged=means,
                extra={name: column[i] for name, column in self._extra.items()},
            )
            for i, value in enumerate(values)
        ]


def _plain(value: Any) -> Any:
    """Return a value that fits in JSON and is short, else its text."""
    try:
        if len(json.dumps(value, allow_nan=False)) <= _CHARACTERS:
            return value
    except (TypeError, ValueError):
        pass
    return str(value)[:_CHARACTERS]
