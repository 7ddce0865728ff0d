"""The error model, once (docs/architecture.md, "Errors").

* The **user's** mistake raises :class:`UserError`: one message that names the field, the value, the rule and the
  fix. The command line prints it without a traceback and exits with code 2.
* The **model's** mistake (a wrong, slow or crashing answer) is data: reward 0, counted by kind.
* The **infrastructure's** mistake (a worker lost, a server down) is retried, then the sample is *missing* (masked,
  never a silent 0). Above a set rate :class:`InfrastructureError` stops the run.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable

__all__ = [
    "CollapseError",
    "GSPOError",
    "InfrastructureError",
    "NonFiniteError",
    "UserError",
    "counted",
    "did_you_mean",
    "first_line",
]


class GSPOError(Exception):
    """Base of everything this package raises on purpose."""


class UserError(GSPOError, ValueError):
    """Something the user wrote cannot work.

    Args:
        field: the YAML field, flag, file or argument that is wrong, as the user wrote it.
        problem: what was found there and which rule it breaks.
        fix: what to write instead.

    >>> print(UserError("data.group_size", "is 1, but a group needs a spread", fix="use at least 2"))
    data.group_size: is 1, but a group needs a spread
      fix: use at least 2
    """

    def __init__(self, field: str, problem: str, *, fix: str | None = None) -> None:
        self.field, self.problem, self.fix = field, problem, fix
        super().__init__(f"{field}: {problem}" + (f"\n  fix: {fix}" if fix else ""))

    def __reduce__(self) -> tuple[object, ...]:  # keyword-only ``fix`` would be lost by the default reduction
        return (_rebuild_user_error, (self.field, self.problem, self.fix))


class InfrastructureError(GSPOError, RuntimeError):
    """Something the run depends on (worker, server, sandbox) failed more often than the run tolerates."""


class NonFiniteError(GSPOError, ArithmeticError):
    """A NaN or infinity was about to reach the optimizer."""


class CollapseError(GSPOError, RuntimeError):
    """The run shows a signature of collapse, and was told to stop there."""


def _rebuild_user_error(field: str, problem: str, fix: str | None) -> UserError:
    return UserError(field, problem, fix=fix)


def first_line(error: BaseException) -> str:
    """What an error says, in one line; its kind where it says nothing.

    >>> first_line(ValueError("too long\\nby 3")), first_line(MemoryError())
    ('too long', 'MemoryError')
    """
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def counted(reasons: Iterable[str], shown: int = 3) -> str:
    """Reasons with how often they occur, the most frequent first; the rest is only counted.

    >>> counted(["no answer", "a tie", "no answer"]), counted(["a", "b", "c"], shown=1)
    ('2 x no answer, 1 x a tie', '1 x a, 2 x something else')
    """
    counts = Counter(reason or "no reason given" for reason in reasons)
    named = counts.most_common(shown)
    rest = sum(counts.values()) - sum(count for _, count in named)
    words = [f"{count} x {reason}" for reason, count in named]
    return ", ".join([*words, f"{rest} x something else"] if rest else words)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A half sentence that lists the known names and the nearest one.

    >>> did_you_mean("GPSO", ["GRPO", "GSPO"])
    'did you mean GSPO? known: GRPO, GSPO'
    """
    names = sorted(known)
    lowered = {n.lower(): n for n in names}
    near = difflib.get_close_matches(name.lower(), list(lowered), n=1, cutoff=0.5)
    hint = f"did you mean {lowered[near[0]]}? " if near else ""
    return f"{hint}known: {', '.join(names) if names else '(none)'}"
