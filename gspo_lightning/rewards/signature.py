"""Arguments by name: the parameters of a reward's ``score``, read from its signature once."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

from gspo_lightning.core.errors import UserError
from gspo_lightning.rewards.types import Sample

BUILT_IN = ("prompt", "completion", "completion_ids", "truncated", "unfinished_thought", "sample")
"""Names that every sample has; any other name is a column of the record."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The parameters of a function, grouped by the source of their values.

    ``built_in``: names that every sample has; ``required`` and ``optional``: columns without and with a default;
    ``takes_columns``: whether ``**kwargs`` takes the remaining columns.
    """

    built_in: tuple[str, ...]
    required: tuple[str, ...]
    optional: tuple[str, ...] = ()
    takes_columns: bool = False

    def arguments(self, sample: Sample) -> dict[str, Any]:
        """Return the keyword arguments for one sample; its required columns must be present."""
        columns = sample.columns
        values: dict[str, Any] = {name: sample if name == "sample" else getattr(sample, name) for name in self.built_in}
        for name in self.required:
            values[name] = columns[name]
        for name in self.optional:
            if name in columns:
                values[name] = columns[name]
        if self.takes_columns:
            values |= {name: value for name, value in columns.items() if name not in values and name not in BUILT_IN}
        return values


def make_plan(function: object, field: str, *, method: bool, built_in: tuple[str, ...] = BUILT_IN) -> Plan:
    """Read the parameters of a function from its signature.

    Args:
        function: a function or ``async`` function.
        field: name of the function in messages.
        method: whether the first parameter is ``self``.
        built_in: the names that are not columns.

    Raises:
        UserError: not a function, ``*args``, positional-only parameters, or no parameters at all.
    """
    if method and not inspect.isfunction(function):
        raise UserError(
            field, f"is a {type(function).__name__}, not a method", fix="write def score(self, completion, answer)"
        )
    parameters = list(inspect.signature(function).parameters.values())  # type: ignore[arg-type]
    if method:
        parameters = parameters[1:]
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY):
            star = "*" if parameter.kind is parameter.VAR_POSITIONAL else ""
            raise UserError(
                field,
                f"takes {star}{parameter.name} by position, but arguments are passed by name",
                fix=f"name what it needs: {', '.join(built_in)} or columns of the records such as answer",
            )
    if not parameters:
        raise UserError(
            field,
            "takes no arguments, so it cannot see what to judge",
            fix=f"name some of {', '.join(built_in)}, answer",
        )
    named = [p for p in parameters if p.kind is not p.VAR_KEYWORD]
    columns = [p for p in named if p.name not in built_in]
    return Plan(
        built_in=tuple(p.name for p in named if p.name in built_in),
        required=tuple(p.name for p in columns if p.default is p.empty),
        optional=tuple(p.name for p in columns if p.default is not p.empty),
        takes_columns=any(p.kind is p.VAR_KEYWORD for p in parameters),
    )
